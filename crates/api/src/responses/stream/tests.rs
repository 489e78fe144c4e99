//! The events of a response, however the answer was cut.

use std::time::Duration;

use serde_json::Value;

use super::*;
use crate::responses::ResponsesRequest;
use crate::testing::{pieces, summary};

fn start() -> ResponseStream {
    let asked = ResponsesRequest::parse(json!({"model": "m", "input": "hi"})).unwrap();
    ResponseStream::new("r1".to_owned(), asked.head("r1", Duration::from_secs(5).as_secs()))
}

/// A thought, a text and a call, in deltas of `step` characters.
fn deltas(step: usize) -> Vec<Delta> {
    let pieces = |text: &str| pieces(text, step);
    let call = |begins, arguments| Delta {
        calls: vec![CallDelta { index: 0, begins, arguments }],
        ..Delta::default()
    };
    let mut all = Vec::new();
    all.extend(pieces("Hm, é?").into_iter().map(|reasoning| Delta { reasoning, ..Delta::default() }));
    all.extend(pieces("I'll look.").into_iter().map(|text| Delta { text, ..Delta::default() }));
    all.push(call(Some(("call_0".to_owned(), "weather".to_owned())), String::new()));
    all.extend(pieces(r#"{"n": 1.50}"#).into_iter().map(|arguments| call(None, arguments)));
    all
}

fn run(step: usize, reason: FinishReason) -> (Vec<ResponseEvent>, Response) {
    run_from(start(), step, reason)
}

fn run_from(stream: ResponseStream, step: usize, reason: FinishReason) -> (Vec<ResponseEvent>, Response) {
    let (all, stream) = fold(stream, step, reason);
    (all, stream.response)
}

fn fold(
    mut stream: ResponseStream,
    step: usize,
    reason: FinishReason,
) -> (Vec<ResponseEvent>, ResponseStream) {
    let mut all = stream.push(GenerateEvent::Queued { reason: "loading".to_owned() });
    all.extend(stream.push(GenerateEvent::Started { prompt_tokens: 9 }));
    for delta in deltas(step) {
        all.extend(stream.push(GenerateEvent::Delta(delta)));
    }
    all.extend(stream.push(GenerateEvent::Finished {
        index: 0,
        reason,
        stop: None,
        completion_tokens: 7,
        kernels: Vec::new(),
    }));
    all.extend(stream.push(GenerateEvent::Done(summary())));
    assert!(stream.is_done());
    (all, stream)
}

fn json_of(event: &ResponseEvent) -> Value {
    let value = serde_json::to_value(event).unwrap();
    assert_eq!(value["type"], event.body.name());
    value
}

#[test]
fn events_come_in_the_documented_order_and_are_numbered() {
    let (all, response) = run(100, FinishReason::ToolCalls);
    let line = |(i, event): (usize, &ResponseEvent)| {
        let mut value = json_of(event);
        assert_eq!(value["sequence_number"], i, "one more each time");
        if let Some(response) = value.get_mut("response") {
            *response =
                json!({"status": response["status"], "items": response["output"].as_array().map(Vec::len)});
        }
        value.to_string() + "\n"
    };
    insta::assert_snapshot!(all.iter().enumerate().map(line).collect::<String>());
    insta::assert_snapshot!(serde_json::to_string_pretty(&response).unwrap());
}

#[test]
fn any_cut_gives_the_same_items_and_deltas_add_up_to_them() {
    let (_, whole) = run(100, FinishReason::ToolCalls);
    for step in 1..12 {
        let (all, cut) = run(step, FinishReason::ToolCalls);
        assert_eq!(cut, whole);
        let mut texts = vec![String::new(); whole.output.len()];
        for value in all.iter().map(json_of).filter(|value| value["delta"].is_string()) {
            let index = value["output_index"].as_u64().unwrap() as usize;
            assert_eq!(value["item_id"], whole.output[index].id());
            texts[index].push_str(value["delta"].as_str().unwrap());
        }
        assert_eq!(texts, ["Hm, é?", "I'll look.", r#"{"n": 1.50}"#]);
    }
}

#[test]
fn a_client_that_has_some_gets_exactly_the_others_and_the_whole_answer_at_the_end() {
    let (all, whole) = run(3, FinishReason::ToolCalls);
    for last in 0..all.len() {
        let (rest, response) = run_from(start().behind(last as u32), 3, FinishReason::ToolCalls);
        assert_eq!(rest, all[last + 1..], "behind {last}");
        assert_eq!(response, whole);
    }
    let failed = start().behind(7).fail("stage_lost", "gone");
    let numbered = failed.iter().map(|event| (event.body.name(), event.sequence_number));
    assert_eq!(numbered.collect::<Vec<_>>(), [("response.failed", 8)]);
}

#[test]
fn a_whole_answer_is_told_once_more_in_the_events_that_it_came_in() {
    let runs = [(1, FinishReason::ToolCalls), (3, FinishReason::Length), (100, FinishReason::ToolCalls)];
    for (step, reason) in runs {
        let (all, stream) = fold(start(), step, reason);
        let json = serde_json::to_string(stream.response()).unwrap();
        for had in 0..=all.len() {
            let after = had.checked_sub(1).map(|last| last as u32);
            let whole = serde_json::from_str(&json).unwrap();
            let told = Replay::new(whole, stream.deltas().to_vec(), after).flatten();
            assert_eq!(told.collect::<Vec<_>>(), all[had..], "in steps of {step}, behind {after:?}");
        }
    }
}

#[test]
fn what_was_cut_says_so() {
    let (all, response) = run(100, FinishReason::Length);
    assert_eq!(all.last().unwrap().body.name(), "response.incomplete");
    let value = serde_json::to_value(&response).unwrap();
    assert_eq!(value["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(
        (&value["status"], &value["output"][2]["status"]),
        (&json!("incomplete"), &json!("incomplete"))
    );
}

#[test]
fn a_failure_is_a_failed_answer_before_it_begins_and_after() {
    let names = |events: Vec<ResponseEvent>| events.iter().map(|event| event.body.name()).collect::<Vec<_>>();
    let mut stream = start();
    assert_eq!(names(stream.fail("stage_lost", "gone")), ["response.created", "response.failed"]);
    let mut stream = start();
    stream.push(GenerateEvent::Started { prompt_tokens: 1 });
    stream.push(GenerateEvent::Delta(Delta { text: "The".to_owned(), ..Delta::default() }));
    let failed = stream.fail("stage_lost", "gone");
    let value = json_of(&failed[0]);
    assert_eq!(
        (value["type"].as_str(), &value["response"]["error"]["code"]),
        (Some("response.failed"), &json!("stage_lost"))
    );
    assert_eq!(value["response"]["output"], json!([]), "it goes out whether or not there is room");
}

#[test]
fn what_was_said_goes_on_as_a_message() {
    let (_, response) = run(3, FinishReason::ToolCalls);
    let said = response.said();
    assert_eq!((said.content.as_str(), said.reasoning_content.as_deref()), ("I'll look.", Some("Hm, é?")));
    assert_eq!((said.tool_calls.len(), said.tool_calls[0].id.as_str()), (1, "call_0"));
}

#[test]
fn probabilities_come_with_text_and_not_with_every_end() {
    let piece = |text: &str| TokenPiece {
        id: 0,
        text: text.to_owned(),
        bytes: text.as_bytes().to_vec(),
        logprob: Some(-1.0),
        is_text: true,
        top: Vec::new(),
    };
    let say = |text: &str, tokens: &[&str]| {
        let tokens = tokens.iter().map(|text| piece(text)).collect();
        GenerateEvent::Delta(Delta { text: text.to_owned(), tokens, ..Delta::default() })
    };
    let mut stream = start();
    let mut all = stream.push(GenerateEvent::Started { prompt_tokens: 9 });
    for event in [say("a", &["a"]), say("", &["b"]), say("bc", &["c"]), say("", &["<call>"])] {
        all.extend(stream.push(event));
    }
    let reason = FinishReason::Stop;
    all.extend(stream.push(GenerateEvent::Finished {
        index: 0,
        reason,
        stop: None,
        completion_tokens: 7,
        kernels: Vec::new(),
    }));
    let scored = |value: Value| {
        let part = [&value, &value["part"], &value["item"]["content"][0]]
            .map(|at| at["logprobs"].as_array().map(Vec::len));
        Some(format!("{} {}", value["type"].as_str()?, part.into_iter().flatten().next()?))
    };
    let lines: Vec<String> = all.iter().map(json_of).filter_map(scored).collect();
    let expected = [
        "response.content_part.added 0",
        "response.output_text.delta 1",
        "response.output_text.delta 2",
        "response.output_text.done 3",
        "response.content_part.done 0",
        "response.output_item.done 0",
    ];
    assert_eq!(lines, expected);
    let whole = serde_json::to_value(stream.response()).unwrap();
    assert_eq!(whole["output"][0]["content"][0]["logprobs"].as_array().map(Vec::len), Some(3));
    let again = Replay::new(stream.response().clone(), stream.deltas().to_vec(), None).flatten();
    assert_eq!(again.take(all.len()).collect::<Vec<_>>(), all);
}

#[test]
fn a_character_in_two_tokens_has_both_probabilities_also_as_the_first_of_a_text() {
    let half = |byte: u8, reasoning: &str, text: &str| {
        let piece = TokenPiece {
            id: 0,
            text: "\u{fffd}".to_owned(),
            bytes: vec![byte],
            logprob: Some(-1.0),
            is_text: true,
            top: Vec::new(),
        };
        let (reasoning, text) = (reasoning.to_owned(), text.to_owned());
        GenerateEvent::Delta(Delta { reasoning, text, tokens: vec![piece], ..Delta::default() })
    };
    let mut stream = start();
    stream.push(GenerateEvent::Started { prompt_tokens: 9 });
    for event in [half(0xc3, "", ""), half(0xa9, "é", ""), half(0xc3, "", ""), half(0xa8, "", "è")] {
        stream.push(event);
    }
    let whole = serde_json::to_value(stream.response()).unwrap();
    let scored = &whole["output"][1]["content"][0]["logprobs"];
    assert_eq!((&scored[0]["bytes"], &scored[1]["bytes"]), (&json!([0xc3]), &json!([0xa8])), "{whole}");
    assert_eq!(scored.as_array().map(Vec::len), Some(2), "{whole}");
}
