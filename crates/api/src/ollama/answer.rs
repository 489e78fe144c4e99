//! The answers of `/api/chat` and `/api/generate`, whole and line by line.

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::generate::{CallDelta, Delta, FinishReason, GenerateEvent, Summary};
use crate::summary::{ExoSummary, TokenLogprob};

/// The whole answer, or a line of it.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct OllamaAnswer {
    /// The model's name, as the request gave it.
    pub model: String,
    /// When the request came, as RFC 3339.
    pub created_at: String,
    /// What is said; of `/api/chat`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<OllamaMessage>,
    /// What is said; of `/api/generate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// What was thought; of `/api/generate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Probabilities, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// Whether it is complete.
    pub done: bool,
    /// Why it ended: `stop`, `length`, or `load`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<String>,
    /// Nanoseconds that the request took in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_duration: Option<u64>,
    /// Nanoseconds until the prompt was begun: of loading and waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_duration: Option<u64>,
    /// Tokens of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_eval_count: Option<u32>,
    /// Nanoseconds of reading the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_eval_duration: Option<u64>,
    /// Tokens generated for the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_count: Option<u32>,
    /// Nanoseconds of generating those behind the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_duration: Option<u64>,
    /// Extension: how it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exo: Option<ExoSummary>,
    /// Extension, of a line behind which another node can go on: to be sent as `Last-Event-ID`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exo_id: Option<u32>,
}

/// What the model says.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct OllamaMessage {
    /// Always `assistant`.
    pub role: String,
    /// Text of the message.
    pub content: String,
    /// What was thought before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Tools that the model calls. A call that the end of the answer cut is not among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<OllamaCall>,
}

/// A call of a tool.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct OllamaCall {
    /// The call's own name.
    pub id: String,
    /// The tool that is called.
    pub function: OllamaFunction,
}

/// A tool's name and arguments.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct OllamaFunction {
    /// Which call, from 0.
    pub index: u32,
    /// Name of the tool.
    pub name: String,
    /// An object, spelt as the model spelt it.
    #[schema(value_type = Object)]
    pub arguments: Box<RawValue>,
}

/// Folds events into the lines of an answer.
pub struct OllamaStream {
    request: String,
    head: OllamaAnswer,
    is_chat: bool,
    shows_thoughts: bool,
    only_loads: bool,
    has_ids: bool,
    /// The call that grows: which, its id, its tool, its arguments.
    call: Option<(u32, String, String, String)>,
    reason: Option<FinishReason>,
}

impl OllamaStream {
    /// For the request of this id, which came at `created_at`.
    pub fn new(request: String, created_at: String, asked: &super::OllamaRequest) -> Self {
        let head = OllamaAnswer { model: asked.model.clone(), created_at, ..OllamaAnswer::default() };
        let super::OllamaRequest { is_chat, shows_thoughts, only_loads, .. } = *asked;
        let has_ids = false;
        Self { request, head, is_chat, shows_thoughts, only_loads, has_ids, call: None, reason: None }
    }

    /// With an id in each line behind which another node can go on: the answer's tokens up to there, and for
    /// what its end brings two more.
    pub fn with_ids(self) -> Self {
        Self { has_ids: true, ..self }
    }

    /// A line that says nothing: a sign of life.
    pub fn nothing(&self) -> OllamaAnswer {
        self.line(String::new(), String::new(), Vec::new())
    }

    /// The line that `event` becomes, if any.
    pub fn push(&mut self, event: GenerateEvent) -> Option<OllamaAnswer> {
        match event {
            GenerateEvent::Queued { .. } | GenerateEvent::Watched | GenerateEvent::Started { .. } => None,
            GenerateEvent::Delta(_) if self.only_loads => None,
            GenerateEvent::Delta(delta) => {
                let exo_id = self.has_ids.then_some(delta.position);
                self.delta(delta).map(|line| OllamaAnswer { exo_id, ..line })
            }
            GenerateEvent::Finished { reason, completion_tokens, .. } => {
                self.reason = Some(reason);
                let exo_id = self.has_ids.then_some(completion_tokens.saturating_add(2));
                let call = self.end_call()?;
                Some(OllamaAnswer { exo_id, ..self.line(String::new(), String::new(), vec![call]) })
            }
            GenerateEvent::Done(summary) => Some(self.end(&summary)),
        }
    }

    fn line(&self, text: String, thought: String, tool_calls: Vec<OllamaCall>) -> OllamaAnswer {
        let thinking = Some(thought).filter(|thought| !thought.is_empty());
        if self.is_chat {
            let message = OllamaMessage { role: "assistant".to_owned(), content: text, thinking, tool_calls };
            return OllamaAnswer { message: Some(message), ..self.head.clone() };
        }
        OllamaAnswer { response: Some(text), thinking, ..self.head.clone() }
    }

    fn delta(&mut self, delta: Delta) -> Option<OllamaAnswer> {
        let thought = if self.shows_thoughts { delta.reasoning } else { String::new() };
        let mut calls = Vec::new();
        for CallDelta { index, begins, arguments } in delta.calls {
            if let Some((id, name)) = begins {
                calls.extend(self.end_call());
                self.call = Some((index, id, name, String::new()));
            }
            if let Some((_, _, _, all)) = &mut self.call {
                all.push_str(&arguments);
            }
        }
        let logprobs: Vec<_> = delta.tokens.into_iter().map(TokenLogprob::from).collect();
        if delta.text.is_empty() && thought.is_empty() && calls.is_empty() && logprobs.is_empty() {
            return None;
        }
        let line = self.line(delta.text, thought, calls);
        Some(OllamaAnswer { logprobs: Some(logprobs).filter(|all| !all.is_empty()), ..line })
    }

    /// The call that grows, if it is whole. Clients run what they get without a look at `done_reason`: one
    /// that the end of the answer cut is left out.
    fn end_call(&mut self) -> Option<OllamaCall> {
        let (index, id, name, arguments) = self.call.take()?;
        let arguments = RawValue::from_string(arguments).ok()?;
        Some(OllamaCall { id, function: OllamaFunction { index, name, arguments } })
    }

    fn end(&self, summary: &Summary) -> OllamaAnswer {
        let reason = match self.reason {
            _ if self.only_loads => "load",
            Some(FinishReason::Length) => "length",
            _ => "stop",
        };
        let line = OllamaAnswer { done: true, done_reason: Some(reason.to_owned()), ..self.nothing() };
        let times = Durations::of(summary);
        let exo = Some(ExoSummary::new(self.request.clone(), summary));
        if self.only_loads {
            let load = Some(times.load);
            return OllamaAnswer { total_duration: Some(times.total), load_duration: load, exo, ..line };
        }
        OllamaAnswer {
            total_duration: Some(times.total),
            load_duration: Some(times.load),
            prompt_eval_count: Some(summary.usage.prompt_tokens),
            prompt_eval_duration: Some(times.prompt),
            eval_count: Some(summary.usage.completion_tokens),
            eval_duration: Some(times.answer),
            exo,
            ..line
        }
    }
}

/// Times of an answer, in nanoseconds.
struct Durations {
    total: u64,
    load: u64,
    prompt: u64,
    answer: u64,
}

impl Durations {
    fn of(summary: &Summary) -> Self {
        // The cast saturates.
        let ns = |ms: f64| (ms * 1e6) as u64;
        let (timings, tokens) = (&summary.timings, summary.usage.completion_tokens);
        let per_s = timings.tokens_per_s.filter(|rate| *rate > 0.0);
        let answer = per_s.map_or(0, |rate| ns(f64::from(tokens.saturating_sub(1)) / rate * 1e3));
        let load = ns(timings.queued_ms);
        let prompt = ns(timings.ttft_ms).saturating_sub(load);
        Self { total: load.saturating_add(prompt).saturating_add(answer), load, prompt, answer }
    }
}

/// The whole answer, from its lines.
pub struct OllamaWhole {
    stream: OllamaStream,
    all: Option<OllamaAnswer>,
}

impl OllamaWhole {
    /// From nothing.
    pub fn new(stream: OllamaStream) -> Self {
        Self { stream, all: None }
    }

    /// Takes an event in.
    pub fn push(&mut self, event: GenerateEvent) {
        let Some(line) = self.stream.push(event) else { return };
        self.all = Some(match self.all.take() {
            Some(all) => joined(all, line),
            None => line,
        });
    }

    /// The answer; `None` if it did not finish.
    pub fn finish(self) -> Option<OllamaAnswer> {
        let is_finished = self.stream.reason.is_some();
        self.all.filter(|all| all.done && is_finished)
    }
}

/// `more` behind `all`; what only the last line has comes from it.
fn joined(all: OllamaAnswer, more: OllamaAnswer) -> OllamaAnswer {
    let join = |all: Option<String>, more: Option<String>| match (all, more) {
        (Some(all), Some(more)) => Some(all + &more),
        (all, more) => all.or(more),
    };
    let message = match (all.message, more.message) {
        (Some(mut all), Some(more)) => {
            all.content.push_str(&more.content);
            all.thinking = join(all.thinking, more.thinking);
            all.tool_calls.extend(more.tool_calls);
            Some(all)
        }
        (all, more) => all.or(more),
    };
    let logprobs = match (all.logprobs, more.logprobs) {
        (Some(mut all), Some(more)) => {
            all.extend(more);
            Some(all)
        }
        (all, more) => all.or(more),
    };
    let (response, thinking) = (join(all.response, more.response), join(all.thinking, more.thinking));
    OllamaAnswer { message, response, thinking, logprobs, ..more }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ollama::OllamaRequest;

    /// The tools that an answer calls whose second call has these arguments.
    fn called(arguments: &str, reason: FinishReason) -> Vec<String> {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
        let asked = OllamaRequest::parse_chat(body).unwrap();
        let mut stream = OllamaStream::new("r1".to_owned(), String::new(), &asked);
        let call = |index: u32, arguments: &str| {
            let begins = Some((format!("call_{index}"), format!("f{index}")));
            let calls = vec![CallDelta { index, begins, arguments: arguments.to_owned() }];
            GenerateEvent::Delta(Delta { calls, ..Delta::default() })
        };
        let (stop, kernels) = (None, Vec::new());
        let end = GenerateEvent::Finished { index: 0, reason, stop, completion_tokens: 9, kernels };
        let events = [call(0, r#"{"n": 1.50}"#), call(1, arguments), end];
        let lines = events.into_iter().filter_map(|event| stream.push(event));
        let calls = lines.filter_map(|line| line.message).flat_map(|message| message.tool_calls);
        calls.map(|call| format!("{}({})", call.function.name, call.function.arguments.get())).collect()
    }

    #[test]
    fn a_call_that_was_cut_is_none_that_a_client_could_run() {
        assert_eq!(called("{}", FinishReason::ToolCalls), [r#"f0({"n": 1.50})"#, "f1({})"]);
        for cut in ["", "{", r#"{"path": "/tm"#, r#"{"path": "/tmp""#] {
            assert_eq!(called(cut, FinishReason::Length), [r#"f0({"n": 1.50})"#], "{cut}");
        }
    }
}
