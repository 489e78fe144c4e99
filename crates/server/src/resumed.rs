//! The endpoints whose answers go on elsewhere, and how far the client of such an answer is.

use std::fmt::Display;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use exo_api::GenerateEvent;
use exo_types::RequestId;
use serde::{Deserialize, Serialize};

use crate::encode::{push_comment, push_event, push_ping};
use crate::errors::ApiError;

/// How far the client's answer was, as browsers send it.
pub const LAST_EVENT_ID: &str = "last-event-id";

/// The endpoints whose streams go on elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resumed {
    Chat,
    Completion,
    Messages,
    Responses,
    OllamaChat,
    OllamaGenerate,
}

/// What a client has of an answer, as the id of its last event says it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Had {
    /// Of each choice.
    pub positions: Positions,
    /// The last event, where they are numbered.
    pub event: Option<u32>,
}

impl Resumed {
    /// Whether the ids of its events are positions of its choices, and the answer may outlive its reader.
    pub fn has_positions(self) -> bool {
        matches!(self, Self::Chat | Self::Completion | Self::Messages)
    }

    /// What a client has whose last event has this id.
    pub fn had(self, last: Option<&str>) -> Result<Had, ApiError> {
        let Some(last) = last else { return Ok(Had::default()) };
        let number = last.parse().ok();
        let had = match self {
            Self::Chat | Self::Completion | Self::Messages => {
                Positions::parse(last).map(|positions| Had { positions, event: None })
            }
            Self::Responses => number.map(|_| Had { event: number, ..Had::default() }),
            Self::OllamaChat | Self::OllamaGenerate => {
                number.map(|tokens| Had { positions: Positions(vec![tokens]), event: None })
            }
        };
        let example = if self.has_positions() { "0:57" } else { "57" };
        had.ok_or_else(|| {
            let what = format!(
                "`{last:.80}` is no `{LAST_EVENT_ID}` of this answer: it is like `{example}`, as in the last event"
            );
            ApiError::invalid(StatusCode::BAD_REQUEST, "invalid_last_event_id", what)
        })
    }

    /// Appends the event that ends an answer which failed and may outlive its reader, as its clients read it.
    pub fn fail(self, error: &ApiError, request: RequestId, out: &mut String) {
        match self {
            Self::Messages => push_event(out, "error", &error.anthropic_body(&request.to_string())),
            _ => push_event(out, "error", &error.body()),
        }
    }

    /// Appends a sign of life of such an answer, and why it waits.
    pub fn keep_alive(self, waiting_for: Option<&str>, out: &mut String) {
        match self {
            Self::Messages => push_ping(waiting_for, out),
            _ => push_comment(out, waiting_for.unwrap_or("keep-alive")),
        }
    }

    /// The answer that says what is wrong, as its clients read it.
    pub fn refuse(self, error: ApiError, request: RequestId) -> Response {
        match self {
            Self::Messages => error.respond(&error.anthropic_body(&request.to_string())),
            Self::OllamaChat | Self::OllamaGenerate => error.respond(&error.ollama_body()),
            Self::Chat | Self::Completion | Self::Responses => error.into_response(),
        }
    }
}

/// How far each choice of an answer is: its tokens; its end counts two more.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Positions(Vec<u32>);

impl Positions {
    /// Of an answer that has not begun.
    pub fn start(choices: u16) -> Self {
        Self(vec![0; usize::from(choices)])
    }

    /// The same of an answer that goes on, of which its client has these already: of no choice its events may
    /// say less, or the next node would tell again what the client has.
    pub fn behind(mut self, had: &Self) -> Self {
        for (own, had) in self.0.iter_mut().zip(&had.0) {
            *own = (*own).max(*had);
        }
        self
    }

    /// Takes in an event; whether it is one that a client can go on behind.
    pub fn advance(&mut self, event: &GenerateEvent) -> bool {
        let (index, position) = match event {
            GenerateEvent::Delta(delta) if !delta.is_empty() => (delta.index, delta.position),
            GenerateEvent::Finished { index, completion_tokens, .. } => (*index, completion_tokens + 2),
            _ => return false,
        };
        match self.0.get_mut(usize::from(index)) {
            Some(own) => *own = (*own).max(position),
            None => return false,
        }
        true
    }

    /// Whether a client that was sent these has this event.
    pub fn covers(&self, event: &GenerateEvent) -> bool {
        let (index, position) = match event {
            GenerateEvent::Delta(delta) => (delta.index, delta.position),
            GenerateEvent::Finished { index, completion_tokens, .. } => (*index, completion_tokens + 2),
            GenerateEvent::Started { .. } => return self.0.iter().any(|position| *position > 0),
            _ => return false,
        };
        self.0.get(usize::from(index)).is_some_and(|own| *own >= position && *own > 0)
    }

    /// Whether a client that was sent these has all that was there at others.
    pub fn reach(&self, others: &Self) -> bool {
        self.0.len() == others.0.len() && self.0.iter().zip(&others.0).all(|(own, other)| own >= other)
    }

    /// As [`std::fmt::Display`] writes them.
    pub fn parse(text: &str) -> Option<Self> {
        let mut positions = Vec::new();
        for (number, part) in text.split(',').enumerate() {
            let (index, position) = part.trim().split_once(':')?;
            if index.parse() != Ok(number) || number > usize::from(u16::MAX) {
                return None;
            }
            positions.push(position.parse().ok()?);
        }
        Some(Self(positions))
    }
}

impl std::fmt::Display for Positions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, position) in self.0.iter().enumerate() {
            write!(f, "{}{index}:{position}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// Puts the id into the last of some server-sent events, behind its data: there are clients that look at the
/// first line only.
pub fn mark(out: &mut String, id: &impl Display) {
    if out.ends_with("\n\n") {
        out.pop();
        out.push_str(&format!("id: {id}\n\n"));
    }
}

#[cfg(test)]
mod tests {
    use exo_api::{Delta, FinishReason};

    use super::*;

    #[test]
    fn positions_are_told_and_read_alike() {
        let positions = Positions::parse("0:57,1:3").expect("positions");
        assert_eq!(positions.to_string(), "0:57,1:3");
        for wrong in ["", "57", "1:2", "0:x", "0:1,0:2", "0:1;1:2", "0:-1"] {
            assert_eq!(Positions::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_client_has_what_is_not_behind_its_last_event() {
        let delta = |position| {
            GenerateEvent::Delta(Delta { index: 0, position, text: "x".into(), ..Delta::default() })
        };
        let end = GenerateEvent::Finished {
            index: 0,
            reason: FinishReason::Stop,
            stop: None,
            completion_tokens: 4,
            kernels: Vec::new(),
        };
        let started = GenerateEvent::Started { prompt_tokens: 3 };
        let (nothing, three) =
            (Positions::parse("0:0").expect("none"), Positions::parse("0:3").expect("three"));
        assert!(!nothing.covers(&started) && three.covers(&started));
        assert!(three.covers(&delta(3)) && !three.covers(&delta(4)) && !three.covers(&end));
        let mut all = Positions(vec![0]);
        assert!(all.advance(&delta(5)) && !all.covers(&end));
        assert!(all.advance(&end) && all.covers(&end) && all.covers(&delta(5)));
    }

    /// One choice is told again before the other, and may be ahead of the copy that the answer went on from.
    #[test]
    fn an_answer_that_goes_on_says_of_no_choice_that_its_client_has_less_than_it_has() {
        let had = Positions::parse("0:3,1:57").expect("positions");
        let mut all = Positions::start(2).behind(&had);
        for (position, expected) in [(2, "0:3,1:57"), (4, "0:4,1:57")] {
            let text = "x".into();
            assert!(all.advance(&GenerateEvent::Delta(Delta {
                index: 0,
                position,
                text,
                ..Delta::default()
            })));
            assert_eq!(all.to_string(), expected);
        }
        let of_others = Positions::parse("0:1,1:2,2:9").expect("positions");
        assert_eq!(Positions::start(2).behind(&of_others).to_string(), "0:1,1:2", "it has two choices");
        assert_eq!(Positions::start(2).behind(&Positions::default()), Positions::start(2));
    }

    #[test]
    fn the_last_event_of_some_is_marked() {
        let mut out = "event: a\ndata: 1\n\ndata: 2\n\n".to_owned();
        mark(&mut out, &Positions(vec![7]));
        assert_eq!(out, "event: a\ndata: 1\n\ndata: 2\nid: 0:7\n\n");
        let mut none = String::new();
        mark(&mut none, &Positions(vec![7]));
        assert_eq!(none, "");
    }
}
