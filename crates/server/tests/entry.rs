//! How browsers get in, and everything that must not let anybody in.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::path::Path;
use std::time::Duration;

use crate::common::{Answer, SECRET, Server, chat_body, quick, start, start_both, start_with};
use exo_local_channel::LocalListener;
use exo_server::{ApiKey, ApiKeys, ServerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const JSON: &str = "content-type: application/json";

/// A server with a local channel, whose path comes with it.
async fn with_channel(folder: &Path, options: ServerOptions) -> (Server, std::path::PathBuf) {
    let (local, path) = LocalListener::open(folder).unwrap();
    (start_both("127.0.0.1:0", Some(local), options).await, path)
}

/// What the local channel answers when a code is asked for.
async fn asked_for_code(channel: &Path) -> String {
    let mut stream = exo_local_channel::connect(channel).await.unwrap();
    let head = "POST /exo/v1/codes HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    stream.write_all(format!("{head}{JSON}\r\ncontent-length: 2\r\n\r\n{{}}").as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut bytes)).await;
    read.expect("a code within 5 s").unwrap();
    String::from_utf8(bytes).unwrap()
}

/// What `exo open` asks for.
async fn code(channel: &Path) -> String {
    let text = asked_for_code(channel).await;
    let body = text.split_once("\r\n\r\n").unwrap().1;
    let view: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(view["expires_in_s"], 60);
    view["code"].as_str().unwrap().to_owned()
}

async fn exchange(server: &Server, code: &str) -> Answer {
    server.post("/exo/v1/session", &format!(r#"{{"code":"{code}"}}"#)).await
}

fn token_of(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["token"].as_str().unwrap().to_owned()
}

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}")
}

#[tokio::test]
async fn a_code_becomes_a_session_once_and_the_session_opens_what_the_secret_opens() {
    let folder = tempfile::tempdir().unwrap();
    let (server, channel) = with_channel(folder.path(), quick()).await;
    let code = code(&channel).await;
    let answer = exchange(&server, &code).await;
    let token = token_of(&answer);
    let session = answer.json();
    assert_eq!((session["access"].as_str(), session["idle_max_s"].as_u64()), (Some("owner"), Some(43_200)));
    assert_eq!(answer.header("set-cookie"), None);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(exchange(&server, &code).await.error(), "401 code_used");
    assert_eq!(exchange(&server, &"0".repeat(64)).await.error(), "401 code_unknown");
    let with = bearer(&token);
    for path in ["/exo/v1/cluster", "/exo/v1/requests", "/exo/v1/session", "/v1/models"] {
        assert_eq!(server.send(&format!("GET {path}"), &[&with], "").await.status, 200, "{path}");
    }
    assert_eq!(server.send("POST /exo/v1/shutdown", &[JSON, &with], "{}").await.status, 204);
    assert_eq!(server.send("DELETE /exo/v1/session", &[&with], "").await.status, 204);
    assert_eq!(server.send("GET /exo/v1/cluster", &[&with], "").await.error(), "401 session_ended");
}

#[tokio::test]
async fn codes_are_given_out_over_the_local_channel_and_to_nobody_else() {
    let server = start().await;
    assert_eq!(server.post("/exo/v1/codes", "{}").await.error(), "403 owner_only");
    assert_eq!(server.admin("POST /exo/v1/codes", "{}").await.error(), "403 owner_only");
}

#[tokio::test]
async fn the_local_secret_begins_a_session_and_nothing_like_it_does() {
    let server = start().await;
    let ask = |body: String| {
        let server = &server;
        async move { server.post("/exo/v1/session", &body).await }
    };
    token_of(&ask(format!(r#"{{"secret":" {SECRET}\n"}}"#)).await);
    let wrong = ask(format!(r#"{{"secret":"{}"}}"#, &SECRET[1..])).await;
    assert_eq!(wrong.error(), "401 invalid_local_secret");
    assert_eq!(ask("{}".to_owned()).await.error(), "400 invalid_value");
    assert_eq!(ask(format!(r#"{{"secret":"{SECRET}","code":"x"}}"#)).await.error(), "400 invalid_value");
    assert_eq!(ask(r#"{"secret":1}"#.to_owned()).await.status, 400);
}

#[tokio::test]
async fn no_page_of_another_origin_port_or_name_trades_a_code_it_has_seen() {
    let folder = tempfile::tempdir().unwrap();
    let (server, channel) = with_channel(folder.path(), quick()).await;
    let code = code(&channel).await;
    let body = format!(r#"{{"code":"{code}"}}"#);
    let port = server.address.port();
    let other_port = format!("origin: http://127.0.0.1:{}", port.wrapping_add(1));
    let rebound = format!("host: evil.example:{port}");
    let rebound_origin = format!("origin: http://evil.example:{port}");
    for headers in [
        vec![JSON, "origin: https://evil.example"],
        vec![JSON, &other_port],
        vec![JSON, "origin: null"],
        vec![JSON, "sec-fetch-site: cross-site"],
        vec![JSON, "sec-fetch-site: same-site"],
        vec![JSON, &rebound, &rebound_origin],
        vec![JSON, "x-forwarded-for: 203.0.113.1"],
        vec![JSON, "via: 1.1 proxy"],
    ] {
        let answer = server.send("POST /exo/v1/session", &headers, &body).await;
        assert_eq!(answer.status, 403, "{headers:?}: {}", answer.body);
    }
    let form = server.send("POST /exo/v1/session", &["content-type: text/plain"], &body).await;
    assert_eq!(form.error(), "415 unsupported_media_type");
    // Nothing of that has used it up.
    let own = format!("origin: http://127.0.0.1:{port}");
    let answer =
        server.send("POST /exo/v1/session", &[JSON, &own, "sec-fetch-site: same-origin"], &body).await;
    token_of(&answer);
}

#[tokio::test]
async fn a_page_of_an_allowed_origin_trades_no_code_and_no_session_is_good_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let api_keys = ApiKeys::default();
    api_keys.replace(vec![(ApiKey::from_key("key-of-a-page"), None)]);
    let allowed_origins = vec!["app://obsidian.md".parse().unwrap()];
    let options = ServerOptions { allowed_origins, api_keys, ..quick() };
    let (server, channel) = with_channel(folder.path(), options).await;
    let (from, key) = ("origin: app://obsidian.md", "authorization: Bearer key-of-a-page");
    let code = code(&channel).await;
    let body = format!(r#"{{"code":"{code}"}}"#);
    for headers in
        [vec![JSON, from], vec![JSON, from, key], vec![JSON, from, key, "sec-fetch-site: cross-site"]]
    {
        let answer = server.send("POST /exo/v1/session", &headers, &body).await;
        assert_eq!(answer.error(), "403 origin_not_allowed", "{headers:?}");
        assert_eq!(answer.header("access-control-allow-origin"), None, "{headers:?}");
    }
    let asks = [from, "access-control-request-method: POST"];
    let may = server.send("OPTIONS /exo/v1/session", &asks, "").await;
    assert_eq!(may.error(), "403 origin_not_allowed");
    assert_eq!(may.header("access-control-allow-origin"), None);

    // Nothing of that has used the code up, and its session is for the node's own page.
    let with = bearer(&token_of(&exchange(&server, &code).await));
    for path in ["/v1/models", "/api/tags"] {
        assert_eq!(server.send(&format!("GET {path}"), &[&with], "").await.status, 200, "{path}");
        let answer = server.send(&format!("GET {path}"), &[from, &with], "").await;
        assert_eq!(answer.status, 401, "{path}: {}", answer.body);
    }
    let chat = server.send("POST /v1/chat/completions", &[JSON, from, &with], &chat_body("good", "")).await;
    assert_eq!(chat.error(), "401 invalid_api_key");
    for path in ["/exo/v1/cluster", "/exo/v1/session", "/metrics"] {
        let answer = server.send(&format!("GET {path}"), &[from, &with], "").await;
        assert_eq!(answer.error(), "403 origin_not_allowed", "{path}");
    }
    assert_eq!(server.send("GET /v1/models", &[from, key], "").await.status, 200);
}

#[tokio::test]
async fn a_session_is_no_cookie_and_none_in_an_address_and_good_on_this_machine_only() {
    let folder = tempfile::tempdir().unwrap();
    let (server, channel) = with_channel(folder.path(), quick()).await;
    let token = token_of(&exchange(&server, &code(&channel).await).await);
    let cookie = format!("cookie: exo-session={token}; token={token}; authorization={token}");
    let missing = "401 missing_local_secret";
    assert_eq!(server.send("GET /exo/v1/cluster", &[&cookie], "").await.error(), missing);
    assert_eq!(server.get(&format!("/exo/v1/cluster?token={token}")).await.error(), missing);
    let with = bearer(&token);
    for proxy in ["x-forwarded-for: 203.0.113.1", "forwarded: for=1.2.3.4", "via: 1.1 proxy"] {
        let answer = server.send("GET /exo/v1/cluster", &[&with, proxy], "").await;
        assert_eq!(answer.error(), "403 local_only", "{proxy}");
    }
}

#[tokio::test]
async fn a_session_opens_the_api_where_keys_are_needed_and_not_through_a_proxy() {
    let folder = tempfile::tempdir().unwrap();
    let options = ServerOptions { api_keys: vec![ApiKey::from_key("sesame")].into(), ..quick() };
    let (server, channel) = with_channel(folder.path(), options).await;
    let with = bearer(&token_of(&exchange(&server, &code(&channel).await).await));
    let chat = chat_body("good", "");
    assert_eq!(server.send("POST /v1/chat/completions", &[JSON, &with], &chat).await.status, 200);
    let proxied = [JSON, &with, "x-forwarded-for: 203.0.113.1"];
    let answer = server.send("POST /v1/chat/completions", &proxied, &chat).await;
    assert_eq!(answer.error(), "401 session_ended");
    // A key is told what it opens, and no more.
    let key = bearer("sesame");
    let session = server.send("GET /exo/v1/session", &[&key], "").await.json();
    assert_eq!((session["access"].as_str(), session["plain_http"].as_bool()), (Some("chat"), Some(false)));
    assert_eq!(session["needs_key"], true);
    assert_eq!(server.send("GET /exo/v1/cluster", &[&key], "").await.error(), "401 invalid_local_secret");
    assert_eq!(server.get("/exo/v1/session").await.error(), "401 missing_local_secret");
}

#[tokio::test]
async fn the_local_secret_counts_on_this_machine_alone_wherever_it_is_shown() {
    let options = ServerOptions { api_keys: vec![ApiKey::from_key("sesame")].into(), ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let secret = bearer(SECRET);
    for line in ["GET /v1/models", "GET /metrics", "GET /exo/v1/cluster"] {
        assert_eq!(server.send(line, &[&secret], "").await.status, 200, "{line}");
        let proxied = server.send(line, &[&secret, "x-forwarded-for: 203.0.113.1"], "").await;
        let expected = if line.contains("/exo/") { "403 local_only" } else { "401 invalid_api_key" };
        assert_eq!(proxied.error(), expected, "{line}");
    }
}

#[tokio::test]
async fn by_a_setting_a_key_looks_at_the_cluster_and_changes_nothing() {
    let keys = vec![ApiKey::from_key("sesame")];
    let options = ServerOptions { api_keys: keys.into(), keys_see_cluster: true, ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    server.fake.view.send_modify(|view| {
        view.warnings.push(exo_api::WarningView { at_unix_s: 1, text: "of this node alone".into() });
    });
    let far = ["authorization: Bearer sesame", JSON, "x-forwarded-for: 203.0.113.1"];
    let session = server.send("GET /exo/v1/session", &far, "").await.json();
    assert_eq!((session["access"].as_str(), session["plain_http"].as_bool()), (Some("viewer"), Some(true)));
    let view = server.send("GET /exo/v1/cluster", &far, "").await;
    assert_eq!((view.status, view.json()["warnings"].as_array().map(Vec::len)), (200, Some(0)));
    assert_eq!(server.send("GET /exo/v1/instances", &far, "").await.status, 200);
    for line in [
        "GET /exo/v1/requests",
        "GET /exo/v1/members",
        "GET /exo/v1/models",
        "GET /exo/v1/models/org%2Fgood",
        "DELETE /exo/v1/instances/i1a",
        "DELETE /exo/v1/sessions",
        "POST /exo/v1/shutdown",
        "POST /exo/v1/session",
    ] {
        assert_eq!(server.send(line, &far, "{}").await.error(), "403 local_only", "{line}");
    }
    assert!(server.fake.calls.lock().unwrap().is_empty(), "nothing reached the node");
    let near = server.send("DELETE /exo/v1/instances/i1a", &["authorization: Bearer sesame"], "").await;
    assert_eq!(near.error(), "401 invalid_local_secret");
}

#[tokio::test]
async fn sessions_outlast_the_server_until_everybody_is_signed_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.json");
    let options = ServerOptions { sessions_path: Some(path), ..quick() };
    let secret = format!(r#"{{"secret":"{SECRET}"}}"#);
    let first = start_with("127.0.0.1:0", options.clone()).await;
    let with = bearer(&token_of(&first.post("/exo/v1/session", &secret).await));
    first.stop.notify_one();
    first.task.await.unwrap().unwrap();
    let second = start_with("127.0.0.1:0", options.clone()).await;
    assert_eq!(second.send("GET /exo/v1/cluster", &[&with], "").await.status, 200);
    assert_eq!(second.send("DELETE /exo/v1/sessions", &[&with], "").await.status, 204);
    assert_eq!(second.send("GET /exo/v1/cluster", &[&with], "").await.error(), "401 session_ended");
    second.stop.notify_one();
    second.task.await.unwrap().unwrap();
    let third = start_with("127.0.0.1:0", options).await;
    assert_eq!(third.send("GET /exo/v1/cluster", &[&with], "").await.error(), "401 session_ended");
}

#[tokio::test]
async fn a_session_tells_whether_programs_need_a_key() {
    let secret = format!(r#"{{"secret":"{SECRET}"}}"#);
    for (keys, needs_key) in [(vec![], false), (vec![ApiKey::from_key("sesame")], true)] {
        let options = ServerOptions { api_keys: keys.into(), ..quick() };
        let server = start_with("127.0.0.1:0", options).await;
        let session = server.post("/exo/v1/session", &secret).await.json();
        assert_eq!(session["needs_key"], needs_key);
        let status = server.get("/v1/models").await.status;
        assert_eq!(status, if needs_key { 401 } else { 200 }, "it says what holds");
    }
}

#[tokio::test]
async fn an_idle_session_ends() {
    let options = ServerOptions { session_idle_max: Duration::from_secs(2), ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let answer = server.post("/exo/v1/session", &format!(r#"{{"secret":"{SECRET}"}}"#)).await;
    let with = bearer(&token_of(&answer));
    assert_eq!(server.send("GET /exo/v1/session", &[&with], "").await.status, 200);
    // A page that is left open asks nothing: its stream ends with the session.
    let left_open = server.send("GET /exo/v1/events", &[&with], "").await;
    assert!(left_open.body.contains("signed_out"), "{}", left_open.body);
    assert_eq!(server.send("GET /exo/v1/session", &[&with], "").await.error(), "401 session_ended");
}

#[tokio::test]
async fn a_page_that_nobody_is_at_keeps_its_session_by_nothing_that_it_asks() {
    let options = ServerOptions { session_idle_max: Duration::from_secs(3), ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let answer = server.post("/exo/v1/session", &format!(r#"{{"secret":"{SECRET}"}}"#)).await;
    let with = bearer(&token_of(&answer));
    let mut statuses = Vec::new();
    while statuses.last() != Some(&401) && statuses.len() < 100 {
        statuses.push(server.send("GET /exo/v1/cluster", &[&with, "exo-unattended: true"], "").await.status);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!((statuses.first(), statuses.last()), (Some(&200), Some(&401)));
}

#[tokio::test]
async fn a_listener_that_is_told_of_a_proxy_is_administered_over_the_local_channel_alone() {
    let folder = tempfile::tempdir().unwrap();
    let keys = vec![ApiKey::from_key("sesame")];
    let options = ServerOptions { api_keys: keys.into(), is_proxied: true, ..quick() };
    let (server, channel) = with_channel(folder.path(), options).await;
    // The proxy adds no header that says so.
    let secret = bearer(SECRET);
    assert_eq!(server.send("GET /exo/v1/cluster", &[&secret], "").await.error(), "403 local_only");
    assert_eq!(server.send("GET /metrics", &[&secret], "").await.error(), "401 invalid_api_key");
    assert_eq!(server.send("GET /v1/models", &[&secret], "").await.error(), "401 invalid_api_key");
    let body = format!(r#"{{"secret":"{SECRET}"}}"#);
    assert_eq!(server.send("POST /exo/v1/session", &[JSON], &body).await.error(), "403 local_only");
    assert_eq!(server.send("GET /v1/models", &[&bearer("sesame")], "").await.status, 200);
    let answer = asked_for_code(&channel).await;
    assert!(answer.starts_with("HTTP/1.1 409") && answer.contains("api_proxied"), "{answer}");
    // Without any key nobody is let in rather than everybody.
    let bare = tempfile::tempdir().unwrap();
    let (server, _channel) = with_channel(bare.path(), ServerOptions { is_proxied: true, ..quick() }).await;
    assert_eq!(server.get("/v1/models").await.error(), "401 missing_api_key");
}
