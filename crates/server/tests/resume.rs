//! The rest of an answer, asked of a node that did not begin it.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use crate::common::{Answer, Server, quick, start, start_with};
use exo_api::Prompt;
use exo_server::ServerOptions;
use serde_json::{Value, json};

const STREAM: &str = r#","stream":true"#;

/// Answers with whole events, each with an id of its own, and without `last` and what stands before it.
fn behind(body: &str, last: &str) -> String {
    let at = body.find(&format!("id: {last}\n")).unwrap_or_else(|| panic!("no {last} in {body}"));
    let end = body[at..].find("\n\n").unwrap();
    body[at + end + 2..].to_owned()
}

#[tokio::test]
async fn who_shows_the_secret_gets_what_comes_behind_the_last_event() {
    let server = start().await;
    for path in ["chat", "completion", "messages"] {
        let began = match path {
            "chat" => server.chat("good", STREAM).await,
            "completion" => server.complete("good", STREAM).await,
            _ => server.messages("good", STREAM).await,
        };
        assert_eq!(began.status, 200, "{path}: {}", began.body);
        let ticket = began.header("exo-resume").unwrap().to_owned();
        let id = ticket.split('.').next().unwrap();
        let ids: Vec<&str> = began.body.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
        assert!(ids.len() > 1, "{path}: {}", began.body);
        let header = format!("exo-resume: {ticket}");
        for last in [None, Some(ids[0]), ids.last().copied()] {
            let last_header = last.map(|last| format!("last-event-id: {last}"));
            let headers: Vec<&str> =
                [Some(header.as_str()), last_header.as_deref()].into_iter().flatten().collect();
            let rest = server.send(&format!("GET /v1/requests/{id}"), &headers, "").await;
            assert_eq!(rest.status, 200, "{path}: {}", rest.body);
            let expected = last.map_or(began.body.clone(), |last| behind(&began.body, last));
            let timeless = |text: &str| -> String {
                text.lines().filter(|line| !line.contains("\"exo\"")).collect::<Vec<_>>().join("\n")
            };
            assert_eq!(timeless(&rest.body), timeless(&expected), "{path} behind {last:?}");
            assert_eq!(rest.header("exo-resume"), Some(ticket.as_str()), "it may move again");
        }
    }
}

/// A client may have more of one choice than the copy that its answer goes on from, and lose that node as
/// well.
#[tokio::test]
async fn the_events_of_an_answer_that_goes_on_say_of_no_choice_less_than_its_client_has() {
    let server = start().await;
    let (id, secret) = ticket(&server.chat("good", r#","stream":true,"n":2"#).await);
    let had = "last-event-id: 0:1,1:2";
    let rest = server.send(&format!("GET /v1/requests/{id}"), &[&secret, had], "").await;
    assert_eq!(rest.status, 200, "{}", rest.body);
    let ids: Vec<&str> = rest.body.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    assert_eq!(ids, ["0:2,1:2", "0:4,1:2", "0:4,1:4"], "{}", rest.body);
}

#[tokio::test]
async fn what_is_no_claim_is_refused_by_name() {
    let server = start().await;
    let began = server.chat("good", STREAM).await;
    let ticket = began.header("exo-resume").unwrap().to_owned();
    let id = ticket.split('.').next().unwrap();
    let wrong = format!("exo-resume: {id}.{:032}", 0);
    let right = format!("exo-resume: {ticket}");
    let cases = [
        (format!("GET /v1/requests/{id}"), vec![], "401 missing_secret"),
        (format!("GET /v1/requests/{id}"), vec![wrong.as_str()], "404 request_not_found"),
        (format!("GET /v1/requests/{:032x}", 7), vec![right.as_str()], "404 request_not_found"),
        ("GET /v1/requests/nobody's".to_owned(), vec![right.as_str()], "400 invalid_request_id"),
        (
            format!("GET /v1/requests/{id}"),
            vec![right.as_str(), "last-event-id: 57"],
            "400 invalid_last_event_id",
        ),
    ];
    for (line, headers, expected) in cases {
        let answer = server.send(&line, &headers, "").await;
        let code = answer.json()["error"]["code"].as_str().unwrap().to_owned();
        assert_eq!(format!("{} {code}", answer.status), expected, "{line} {headers:?}");
    }
}

#[tokio::test]
async fn whole_answers_and_those_that_are_not_to_be_copied_have_no_ticket() {
    let server = start().await;
    assert_eq!(server.chat("good", "").await.header("exo-resume"), None);
    let long = format!(r#"{STREAM},"user":"{}""#, "x".repeat(1 << 20));
    let long = server.chat("good", &long).await;
    assert_eq!((long.status, long.header("exo-resume")), (200, None));
    let plain = start_with("127.0.0.1:0", ServerOptions { resume: false, ..quick() }).await;
    let answer = plain.chat("good", STREAM).await;
    assert_eq!((answer.status, answer.header("exo-resume")), (200, None));
    assert!(!answer.body.contains("id: "), "{}", answer.body);
    let answer = respond(&plain, json!({})).await;
    assert!(answer.header("exo-resume").is_none() && !answer.body.contains("id: "), "{}", answer.body);
    let answer = plain.post("/api/generate", r#"{"model":"good","prompt":"Hi"}"#).await;
    assert!(answer.header("exo-resume").is_none() && !answer.body.contains("exo_id"), "{}", answer.body);
}

/// A streamed response to this body.
async fn respond(server: &Server, more: Value) -> Answer {
    let mut body = json!({"model": "thinks-and-calls", "input": "Hi", "stream": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let began = server.post("/v1/responses", &body.to_string()).await;
    assert_eq!(began.status, 200, "{}", began.body);
    began
}

/// The id of a streamed answer, and the header that shows its secret.
fn ticket(began: &Answer) -> (String, String) {
    let ticket = began.header("exo-resume").unwrap_or_else(|| panic!("{}", began.headers));
    (ticket.split('.').next().unwrap().to_owned(), format!("exo-resume: {ticket}"))
}

/// Forgets a response here, as if another node had kept it.
async fn forget(server: &Server, id: &str) {
    assert_eq!(server.send(&format!("DELETE /v1/responses/{id}"), &[], "").await.status, 200);
}

#[tokio::test]
async fn the_events_of_a_response_go_on_behind_any_number() {
    let server = start().await;
    let began = respond(&server, json!({})).await;
    let (id, secret) = ticket(&began);
    let events: Vec<&str> = began.body.split_inclusive("\n\n").collect();
    assert!(events.len() > 15, "{}", began.body);
    for (number, event) in events.iter().enumerate() {
        assert!(event.contains(&format!(r#""sequence_number":{number}}}"#)), "{event}");
        assert!(event.ends_with(&format!("\nid: {number}\n\n")), "{event}");
        let expected = events[number + 1..].concat();
        let last = format!("last-event-id: {number}");
        let rest = server.send(&format!("GET /v1/requests/{id}"), &[&secret, &last], "").await;
        assert_eq!((rest.status, &rest.body), (200, &expected), "behind {number}");
        let path = format!("GET /v1/responses/resp_{id}?stream=true&starting_after={number}");
        let rest = server.send(&path, &[&secret], "").await;
        assert_eq!((rest.status, &rest.body), (200, &expected), "as OpenAI's clients ask, behind {number}");
    }
    for path in [format!("/v1/requests/{id}"), format!("/v1/responses/resp_{id}?stream=true")] {
        let all = server.send(&format!("GET {path}"), &[&secret], "").await;
        assert_eq!(all.body, began.body, "{path}");
    }
    let path = format!("GET /v1/requests/{id}");
    for wrong in ["0:57", "-1", "x"] {
        let refused = server.send(&path, &[&secret, &format!("last-event-id: {wrong}")], "").await;
        assert_eq!(refused.error(), "400 invalid_last_event_id", "{wrong}");
    }
}

#[tokio::test]
async fn the_events_of_a_response_that_is_kept_are_those_that_it_came_in() {
    let server = start().await;
    let began = respond(&server, json!({})).await;
    let path = format!("/v1/responses/resp_{}?stream=true", ticket(&began).0);
    let all = server.get(&path).await;
    assert_eq!((all.status, &all.body), (200, &began.body));
    assert_eq!(all.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let events: Vec<&str> = began.body.split_inclusive("\n\n").collect();
    for number in 0..events.len() {
        let expected = events[number + 1..].concat();
        let rest = server.get(&format!("{path}&starting_after={number}")).await;
        assert_eq!((rest.status, &rest.body), (200, &expected), "behind {number}");
        let last = format!("last-event-id: {number}");
        assert_eq!(server.send(&format!("GET {path}"), &[&last], "").await.body, expected, "{last}");
    }
    let odd = server.get(&format!("{path}&starting_after=x")).await;
    assert_eq!(odd.error(), "400 invalid_last_event_id");
}

#[tokio::test]
async fn what_a_response_went_on_from_moves_with_it() {
    let server = start().await;
    let first = respond(&server, json!({"model": "good", "stream": false})).await.json();
    let first = first["id"].as_str().unwrap();
    let named = json!({"type": "item_reference", "id": first.replace("resp_", "msg_") + "_0"});
    let question = json!({"role": "user", "content": "And?"});
    for more in [
        json!({"previous_response_id": first, "input": "And?"}),
        json!({"input": [{"role": "user", "content": "Hi"}, named, question]}),
    ] {
        let again = respond(&server, json!({"model": "good", "stream": false})).await.json();
        let kept = again["id"].as_str().unwrap();
        let more = more.to_string().replace(&first["resp_".len()..], &kept["resp_".len()..]);
        let began = respond(&server, serde_json::from_str(&more).unwrap()).await;
        let (id, secret) = ticket(&began);
        forget(&server, kept).await;
        forget(&server, &format!("resp_{id}")).await;
        let rest = server.send(&format!("GET /v1/requests/{id}"), &[&secret], "").await;
        assert_eq!((rest.status, &rest.body), (200, &began.body), "{more}");
        let request = server.fake.last.lock().unwrap().clone().unwrap();
        let [Prompt::Chat { messages }] = request.prompts.as_slice() else { panic!("no conversation") };
        let said: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
        assert_eq!(said, ["Hi", "The answer.", "And?"], "{more}");
        let next = json!({"previous_response_id": format!("resp_{id}"), "input": [{"type": "function_call_output", "call_id": "call_1", "output": "Sun."}]});
        respond(&server, next).await;
    }
}

#[tokio::test]
async fn an_answer_whose_node_is_lost_may_be_had_whole() {
    let server = start().await;
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat", "/api/generate"] {
        let mut body = match path {
            "/v1/completions" | "/api/generate" => json!({"model": "good", "prompt": "Once"}),
            _ => json!({"model": "good", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}),
        };
        if path == "/api/chat" {
            body.as_object_mut().unwrap().remove("max_tokens");
        }
        body["stream"] = false.into();
        let expected = server.post(path, &body.to_string()).await.json();
        body["stream"] = true.into();
        let (id, secret) = ticket(&server.post(path, &body.to_string()).await);
        let line = format!("GET /v1/requests/{id}?stream=false");
        // Where it is asked for whole, no last event counts.
        let whole = server.send(&line, &[&secret, "last-event-id: 0:1"], "").await;
        assert_eq!(whole.status, 200, "{path}: {}", whole.body);
        let plain = |mut value: Value| {
            for name in ["id", "created", "created_at", "exo"] {
                value.as_object_mut().unwrap().remove(name);
            }
            value
        };
        assert_eq!(plain(whole.json()), plain(expected), "{path}");
        let odd = server.send(&format!("GET /v1/requests/{id}?stream=some"), &[&secret], "").await;
        assert_eq!(odd.error(), "400 invalid_value stream");
    }
    let began = respond(&server, json!({})).await;
    let (id, secret) = ticket(&began);
    let path = format!("/v1/responses/resp_{id}");
    let kept = server.get(&path).await.json();
    forget(&server, &format!("resp_{id}")).await;
    assert_eq!(server.get(&path).await.error(), "404 response_not_found response_id");
    assert_eq!(server.send(&format!("GET {path}"), &[&secret], "").await.json(), kept);
    assert_eq!(server.get(&path).await.json(), kept, "it is kept where it went on");
}

#[tokio::test]
async fn lines_of_ollama_go_on_behind_the_id_in_the_last_one() {
    let server = start().await;
    for (path, asks) in [
        ("/api/chat", r#""messages":[{"role":"user","content":"Hi"}]"#),
        ("/api/generate", r#""prompt":"Hi","logprobs":true"#),
    ] {
        for model in ["thinks-and-calls", "good"] {
            let began = server.post(path, &format!(r#"{{"model":"{model}",{asks}}}"#)).await;
            let (id, secret) = ticket(&began);
            // Lines that say nothing are signs of life.
            let is_said = |line: &&str| line.contains("exo_id") || line.contains(r#""done":true"#);
            let lines: Vec<&str> = began.body.lines().filter(is_said).collect();
            assert!(lines.len() > 2, "{}", began.body);
            for (i, line) in lines.iter().enumerate() {
                let line: Value = serde_json::from_str(line).unwrap();
                assert_eq!(line["exo_id"].is_null(), line["done"] == true, "{line}");
                let Some(last) = line["exo_id"].as_u64() else { continue };
                let last = format!("last-event-id: {last}");
                let rest = server.send(&format!("GET /v1/requests/{id}"), &[&secret, &last], "").await;
                assert_eq!(rest.header("content-type"), Some("application/x-ndjson"));
                let rest: Vec<&str> = rest.body.lines().filter(is_said).collect();
                assert_eq!(rest, lines[i + 1..], "{path} {model} {last}");
            }
            let all = server.send(&format!("GET /v1/requests/{id}"), &[&secret], "").await;
            assert_eq!(all.body.lines().filter(is_said).collect::<Vec<_>>(), lines);
            let wrong =
                server.send(&format!("GET /v1/requests/{id}"), &[&secret, "last-event-id: 0:1"], "").await;
            assert_eq!((wrong.status, &wrong.json()["code"]), (400, &json!("invalid_last_event_id")));
        }
    }
    let loads = server.post("/api/generate", r#"{"model":"good"}"#).await;
    assert_eq!((loads.status, loads.header("exo-resume")), (200, None));
}
