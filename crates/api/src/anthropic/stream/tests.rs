//! The events of a message, however the answer was cut.

use serde_json::Value;

use super::*;
use crate::testing::{pieces, summary};

/// A thought, a text and two calls, in deltas of `step` characters.
fn deltas(step: usize) -> Vec<Delta> {
    let pieces = |text: &str| pieces(text, step);
    let mut all = Vec::new();
    all.extend(pieces("Hm, é?").into_iter().map(|reasoning| Delta { reasoning, ..Delta::default() }));
    all.extend(pieces("I'll look.").into_iter().map(|text| Delta { text, ..Delta::default() }));
    for (index, arguments) in [(0, r#"{"city": "Rome", "n": 1.50}"#), (1, "{}")] {
        let begins = Some((format!("call_{index}"), "weather".to_owned()));
        let call = |begins, arguments| Delta {
            calls: vec![CallDelta { index, begins, arguments }],
            ..Delta::default()
        };
        all.push(call(begins, String::new()));
        all.extend(pieces(arguments).into_iter().map(|arguments| call(None, arguments)));
    }
    all
}

fn events(
    deltas: Vec<Delta>,
    end: GenerateEvent,
    thoughts: Thoughts,
) -> (Vec<MessageEvent>, Option<Message>) {
    let mut stream = MessageStream::new("r1".to_owned(), "m".to_owned(), thoughts);
    let mut all = stream.push(GenerateEvent::Queued { reason: "loading".to_owned() });
    all.extend(stream.push(GenerateEvent::Started { prompt_tokens: 9 }));
    for delta in deltas {
        all.extend(stream.push(GenerateEvent::Delta(delta)));
    }
    all.extend(stream.push(end));
    all.extend(stream.push(GenerateEvent::Done(summary())));
    (all, stream.into_message())
}

fn finished(reason: FinishReason, stop: Option<&str>) -> GenerateEvent {
    let stop = stop.map(str::to_owned);
    GenerateEvent::Finished { index: 0, reason, stop, completion_tokens: 7, kernels: Vec::new() }
}

fn lines(events: &[MessageEvent]) -> String {
    let line = |event: &MessageEvent| {
        let value = serde_json::to_value(event).unwrap();
        assert_eq!(value["type"], event.name());
        serde_json::to_string(event).unwrap() + "\n"
    };
    events.iter().map(line).collect()
}

#[test]
fn events_come_in_the_dialects_order() {
    let (all, _) = events(deltas(100), finished(FinishReason::ToolCalls, None), Thoughts::Shown);
    insta::assert_snapshot!(lines(&all));
}

/// The blocks that a client puts together.
fn put_together(events: &[MessageEvent]) -> Vec<(String, String)> {
    let mut blocks: Vec<(String, String)> = Vec::new();
    let mut open = None;
    for event in events {
        let value: Value = serde_json::to_value(event).unwrap();
        match event {
            MessageEvent::ContentBlockStart { index, .. } => {
                assert_eq!((open, *index), (None, blocks.len()), "one block at a time");
                open = Some(*index);
                blocks.push((value["content_block"]["type"].as_str().unwrap().to_owned(), String::new()));
            }
            MessageEvent::ContentBlockDelta { index, .. } => {
                assert_eq!(open, Some(*index));
                let delta = &value["delta"];
                let texts = ["text", "thinking", "partial_json"].map(|name| delta[name].as_str());
                blocks[*index].1.push_str(texts.into_iter().flatten().next().unwrap_or_default());
            }
            MessageEvent::ContentBlockStop { index } => assert_eq!(open.take(), Some(*index)),
            _ => assert_eq!(open, None),
        }
    }
    blocks
}

#[test]
fn any_cut_gives_the_same_blocks_and_the_whole_message_has_them() {
    let (whole, message) = events(deltas(100), finished(FinishReason::ToolCalls, None), Thoughts::Shown);
    let expected = put_together(&whole);
    assert_eq!(expected.len(), 4);
    for step in 1..12 {
        let (all, cut) = events(deltas(step), finished(FinishReason::ToolCalls, None), Thoughts::Shown);
        assert_eq!(put_together(&all), expected, "{step}");
        let json = |message: &Option<Message>| serde_json::to_string(message.as_ref().unwrap()).unwrap();
        assert_eq!(json(&cut), json(&message));
    }
    let message = serde_json::to_string(&message.unwrap()).unwrap();
    assert!(
        message.contains(r#""input":{"city": "Rome", "n": 1.50}"#),
        "numbers keep their spelling: {message}"
    );
}

#[test]
fn the_end_says_why() {
    let text = || vec![Delta { text: "Once".to_owned(), ..Delta::default() }];
    let end = |reason, stop| {
        let (_, message) = events(text(), finished(reason, stop), Thoughts::Shown);
        let message = message.unwrap();
        (message.stop_reason.unwrap(), message.stop_sequence)
    };
    assert_eq!(end(FinishReason::Stop, None), (StopReason::EndTurn, None));
    assert_eq!(end(FinishReason::Stop, Some("END")), (StopReason::StopSequence, Some("END".to_owned())));
    assert_eq!(end(FinishReason::Length, None), (StopReason::MaxTokens, None));
}

#[test]
fn thoughts_that_are_not_shown_leave_a_block_without_text() {
    let (all, message) = events(deltas(3), finished(FinishReason::ToolCalls, None), Thoughts::Omitted);
    assert_eq!(put_together(&all)[0], ("thinking".to_owned(), String::new()));
    let Some(ContentBlock::Thinking { thinking, signature }) = message.unwrap().content.into_iter().next()
    else {
        panic!("no thought");
    };
    assert_eq!((thinking.as_str(), signature.as_str()), ("", SIGNATURE));
}

#[test]
fn arguments_that_were_cut_are_an_empty_object() {
    let mut cut = deltas(4);
    cut.truncate(cut.len() - 3);
    let (_, message) = events(cut, finished(FinishReason::Length, None), Thoughts::Shown);
    let message = serde_json::to_value(message.unwrap()).unwrap();
    assert_eq!(message["stop_reason"], "max_tokens");
    assert_eq!(message["content"][2]["input"], serde_json::json!({}));
}

#[test]
fn thoughts_that_nobody_asked_for_leave_no_trace_but_in_usage() {
    let (all, message) = events(deltas(3), finished(FinishReason::ToolCalls, None), Thoughts::Hidden);
    let message = message.unwrap();
    assert!(!serde_json::to_string(&all).unwrap().contains(r#""type":"thinking"#));
    assert!(!message.content.iter().any(|block| matches!(block, ContentBlock::Thinking { .. })));
    assert!(message.usage.output_tokens_details.thinking_tokens > 0);
}
