//! The rest of an answer, asked of a node that did not begin it.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use crate::common::{quick, start, start_with};
use exo_server::ServerOptions;

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
}
