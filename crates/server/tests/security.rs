//! Each rule of the guard, and an attempt to get past it.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::time::{Duration, Instant};

use crate::common::{self, SECRET, chat_body, quick, start, start_both, start_with};
use exo_server::{ApiKey, ApiKeys, ServeError, ServerOptions};
use exo_types::Principal;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

const JSON: &str = "content-type: application/json";

#[tokio::test]
async fn a_host_that_was_rebound_to_us_is_refused() {
    let server = start().await;
    let port = server.address.port();
    for host in [
        "evil.example".to_owned(),
        format!("evil.example:{port}"),
        "127.0.0.1.evil.example".to_owned(),
        "localhost.evil.example".to_owned(),
        "localhost@evil.example".to_owned(),
        "evil.example@localhost".to_owned(),
        "127.0.0.2".to_owned(),
        "192.168.0.9".to_owned(),
        "[::2]".to_owned(),
        "localhost:80:80".to_owned(),
        " ".to_owned(),
    ] {
        let answer = server.send("GET /v1/models", &[&format!("host: {host}")], "").await;
        assert_eq!(answer.error(), "403 host_not_allowed", "host {host}");
    }
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1:9", "[::1]", "[::1]:80"] {
        let answer = server.send("GET /v1/models", &[&format!("host: {host}")], "").await;
        assert_eq!(answer.status, 200, "host {host}");
    }
}

#[tokio::test]
async fn every_place_a_host_can_stand_is_checked() {
    let server = start().await;
    let proxy = server.send("GET http://evil.example/v1/models", &["host: localhost"], "").await;
    assert_eq!(proxy.error(), "403 host_not_allowed");
    let twice = server.send("GET /v1/models", &["host: localhost", "host: evil.example"], "").await;
    assert_eq!(twice.error(), "400 bad_host");
    let none = server.raw(b"GET /v1/models HTTP/1.0\r\n\r\n").await;
    assert_eq!(none.error(), "400 bad_host");
    // Even the harmless pages.
    assert_eq!(server.send("GET /health", &["host: evil.example"], "").await.status, 403);
}

#[tokio::test]
async fn a_host_can_be_allowed_by_name() {
    let options = ServerOptions { allowed_hosts: vec!["Desk.local".into()], ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    assert_eq!(server.send("GET /v1/models", &["host: desk.LOCAL:52415"], "").await.status, 200);
    assert_eq!(server.send("GET /v1/models", &["host: other.local"], "").await.status, 403);
}

#[tokio::test]
async fn a_page_of_another_origin_is_refused_and_gets_no_cors_headers() {
    let server = start().await;
    let own = format!("origin: http://{}", server.address);
    let other_port = "origin: http://127.0.0.1:1".to_owned();
    let others = ["origin: https://evil.example", "origin: null", "origin: http://localhost", &other_port];
    for origin in others {
        let answer = server.send("POST /v1/chat/completions", &[JSON, origin], &chat_body("good", "")).await;
        assert_eq!(answer.error(), "403 origin_not_allowed", "{origin}");
        assert_eq!(answer.header("access-control-allow-origin"), None);
        assert_eq!(server.send("GET /v1/models", &[origin], "").await.status, 403);
    }
    assert!(server.fake.last.lock().unwrap().is_none(), "nothing reached the node");
    let answer = server.send("POST /v1/chat/completions", &[JSON, &own], &chat_body("good", "")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("access-control-allow-origin"), None);
}

#[tokio::test]
async fn a_preflight_is_not_answered_with_permission() {
    let server = start().await;
    let headers = ["origin: https://evil.example", "access-control-request-method: POST"];
    let cross = server.send("OPTIONS /v1/chat/completions", &headers, "").await;
    assert_eq!(cross.error(), "403 origin_not_allowed");
    let own = server.send("OPTIONS /v1/chat/completions", &[], "").await;
    assert_eq!(own.error(), "405 method_not_allowed");
    for answer in [cross, own] {
        assert!(!answer.headers.to_ascii_lowercase().contains("access-control"), "{}", answer.headers);
    }
}

/// A server that lets pages of one program in, and one key.
async fn with_origins() -> common::Server {
    let api_keys = ApiKeys::default();
    api_keys.replace(vec![(ApiKey::from_key("key-of-a-page"), None)]);
    let allowed_origins = ["app://obsidian.md", "vscode-webview://*"].map(|text| text.parse().unwrap());
    let options = ServerOptions { allowed_origins: allowed_origins.to_vec(), api_keys, ..quick() };
    start_with("127.0.0.1:0", options).await
}

#[tokio::test]
async fn a_page_of_an_allowed_origin_uses_the_models_with_a_key_and_reads_the_answers() {
    let server = with_origins().await;
    let key = "authorization: Bearer key-of-a-page";
    for origin in ["app://obsidian.md", "vscode-webview://0a1b2c"] {
        let from = format!("origin: {origin}");
        let asks = [
            from.as_str(),
            "sec-fetch-site: cross-site",
            "access-control-request-method: POST",
            "access-control-request-headers: authorization,content-type,x-stainless-os",
            "access-control-request-private-network: true",
        ];
        let may = server.send("OPTIONS /v1/chat/completions", &asks, "").await;
        assert_eq!(may.status, 204);
        for (name, value) in [
            ("access-control-allow-origin", origin),
            ("access-control-allow-methods", "GET, POST, DELETE"),
            ("access-control-allow-headers", "authorization,content-type,x-stainless-os"),
            ("access-control-allow-private-network", "true"),
            ("vary", "origin"),
        ] {
            assert_eq!(may.header(name), Some(value), "{name}");
        }
        assert_eq!(may.header("access-control-allow-credentials"), None);
        let with_key = [JSON, key, &from, "sec-fetch-site: cross-site"];
        let answer = server.send("POST /v1/chat/completions", &with_key, &chat_body("good", "")).await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some(origin)));
        assert!(answer.header("access-control-expose-headers").unwrap().contains("exo-resume"));
        // What went wrong can be read, too.
        let wrong = server.send("POST /v1/chat/completions", &with_key, "{").await;
        assert_eq!((wrong.status, wrong.header("access-control-allow-origin")), (400, Some(origin)));
    }
}

#[tokio::test]
async fn a_page_of_an_allowed_origin_gets_nothing_by_any_other_means_than_a_key() {
    let server = with_origins().await;
    let from = "origin: app://obsidian.md";
    let secret = format!("authorization: Bearer {SECRET}");
    let ask = async |headers: &[&str]| {
        server.send("POST /v1/chat/completions", headers, &chat_body("good", "")).await.error()
    };
    assert_eq!(ask(&[JSON, from]).await, "401 missing_api_key");
    assert_eq!(ask(&[JSON, from, &secret]).await, "401 invalid_api_key", "also from this machine");
    let own = format!("origin: http://{}", server.address);
    for other in [own.as_str(), "origin: https://evil.example"] {
        assert_eq!(ask(&[JSON, from, other]).await, "403 origin_not_allowed", "{other}");
        assert_eq!(ask(&[JSON, other, from, &secret]).await, "403 origin_not_allowed", "{other}");
    }
    for path in ["/exo/v1/cluster", "/exo/v1/session", "/metrics", "/health"] {
        let answer = server.send(&format!("GET {path}"), &[from, &secret], "").await;
        assert_eq!(answer.error(), "403 origin_not_allowed", "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    // Where nobody else needs a key.
    let allowed_origins = vec!["app://obsidian.md".parse().unwrap()];
    let open = start_with("127.0.0.1:0", ServerOptions { allowed_origins, ..quick() }).await;
    let answer = open.send("GET /v1/models", &[from], "").await;
    assert_eq!(answer.error(), "401 missing_api_key");
    assert!(answer.body.contains("`api_keys`"), "{}", answer.body);
    assert_eq!(open.send("GET /v1/models", &[], "").await.status, 200);
    let named = open.send("GET /v1/models", &["origin: https://evil.example"], "").await;
    assert!(named.body.contains("allowed_origins"), "{}", named.body);
    let nameless = open.send("GET /v1/models", &["origin: null"], "").await;
    assert!(nameless.status == 403 && !nameless.body.contains("allowed_origins"), "{}", nameless.body);
}

#[tokio::test]
async fn a_request_that_a_browser_marks_as_foreign_is_refused() {
    let server = start().await;
    let cross = ["sec-fetch-site: cross-site", "sec-fetch-mode: no-cors"];
    assert_eq!(server.send("GET /v1/models", &cross, "").await.error(), "403 origin_not_allowed");
    assert_eq!(server.send("GET /", &cross, "").await.status, 200, "a link to the landing page");
    assert_eq!(server.send("GET /v1/models", &["sec-fetch-site: same-origin"], "").await.status, 200);
}

#[tokio::test]
async fn a_form_post_is_refused() {
    let server = start().await;
    for kind in
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx", ""]
    {
        let header = format!("content-type: {kind}");
        let answer = server.send("POST /v1/chat/completions", &[&header], &chat_body("good", "")).await;
        assert_eq!(answer.error(), "415 unsupported_media_type", "{kind}");
        let secret = format!("authorization: Bearer {SECRET}");
        let answer = server.send("POST /exo/v1/shutdown", &[&header, &secret], "").await;
        assert_eq!(answer.error(), "415 unsupported_media_type", "{kind}");
    }
    assert_eq!(server.send("POST /v1/completions", &[], "{}").await.error(), "415 unsupported_media_type");
    let zipped = server.send("POST /v1/completions", &[JSON, "content-encoding: gzip"], "{}").await;
    assert_eq!(zipped.error(), "415 unsupported_media_type");
    let charset = "content-type: Application/JSON; charset=utf-8";
    let answer = server.send("POST /v1/chat/completions", &[charset], &chat_body("good", "")).await;
    assert_eq!(answer.status, 200);
    assert!(server.fake.calls.lock().unwrap().is_empty());
}

#[tokio::test]
async fn curls_own_type_and_none_pass_on_ollamas_paths_where_nothing_tells_of_a_browser() {
    let server = start().await;
    let (curl, body) =
        ("content-type: application/x-www-form-urlencoded", r#"{"model":"good","prompt":"Hi"}"#);
    assert_eq!(server.send("POST /api/generate", &[curl], body).await.status, 200);
    assert_eq!(server.send("POST /api/generate", &[], body).await.status, 200, "as litellm sends it");
    let own = format!("origin: http://{}", server.address);
    for mark in
        [own.as_str(), "sec-fetch-site: same-origin", "sec-fetch-mode: no-cors", "referer: http://a.example/"]
    {
        let answer = server.send("POST /api/generate", &[curl, mark], body).await;
        assert_eq!(answer.status, 415, "{mark}: {}", answer.body);
        let answer = server.send("POST /api/generate", &[mark], body).await;
        assert_eq!(answer.status, 415, "{mark} and no type: {}", answer.body);
    }
    let foreign = server.send("POST /api/generate", &[curl, "origin: http://a.example"], body).await;
    assert_eq!(foreign.status, 403, "{}", foreign.body);
    for kind in ["text/plain", "multipart/form-data", ""] {
        let header = format!("content-type: {kind}");
        assert_eq!(server.send("POST /api/generate", &[&header], body).await.status, 415, "{kind}");
    }
    let elsewhere = server.send("POST /v1/completions", &[curl], body).await;
    assert_eq!(elsewhere.error(), "415 unsupported_media_type", "on these paths alone");
}

#[tokio::test]
async fn administration_needs_the_local_secret() {
    let server = start().await;
    let nearly = &SECRET[..SECRET.len() - 1];
    let wrong = [
        "authorization: Bearer wrong".to_owned(),
        format!("authorization: Bearer {nearly}"),
        format!("authorization: Bearer {SECRET}x"),
        "authorization: Bearer ".to_owned(),
        format!("authorization: Basic {SECRET}"),
        format!("authorization: {SECRET}"),
        format!("x-authorization: Bearer {SECRET}"),
    ];
    for header in &wrong {
        let answer = server.send("GET /exo/v1/cluster", &[header], "").await;
        assert_eq!(answer.status, 401, "{header}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(
        server.send("GET /exo/v1/cluster?secret=x", &[], "").await.error(),
        "401 missing_local_secret"
    );
    assert_eq!(
        server.send("DELETE /exo/v1/instances/i1a", &[JSON], "").await.error(),
        "401 missing_local_secret"
    );
    assert_eq!(server.post("/exo/v1/shutdown", "").await.error(), "401 missing_local_secret");
    assert!(server.fake.calls.lock().unwrap().is_empty(), "nothing reached the node");
    assert_eq!(server.admin("GET /exo/v1/cluster", "").await.status, 200);
}

#[tokio::test]
async fn no_spelling_of_an_administrative_path_goes_around_the_secret() {
    let server = start().await;
    for path in [
        "//exo/v1/cluster",
        "/exo//v1/cluster",
        "/./exo/v1/cluster",
        "/v1/../exo/v1/cluster",
        "/v1/models/../../exo/v1/cluster",
        "/%65xo/v1/cluster",
        "/EXO/v1/cluster",
        "/exo/v1/cluster/",
        "/exo/v1/cluster%2f",
        "/exo/v1/cluster;x",
    ] {
        let answer = server.get(path).await;
        assert!(matches!(answer.status, 401 | 404), "{path}: {} {}", answer.status, answer.body);
        assert!(!answer.body.contains("self_node"));
    }
}

#[tokio::test]
async fn a_listener_that_others_reach_needs_a_key() {
    let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
    let facade = std::sync::Arc::new(common::Fake::default());
    let refused =
        exo_server::serve(listener, None, None, facade.clone(), ServerOptions::new(SECRET), async {}).await;
    assert!(matches!(refused, Err(ServeError::NoApiKey { .. })));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let far = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
    let (near, options) =
        (tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap(), ServerOptions::new(SECRET));
    let refused = exo_server::serve(near, Some(far), None, facade.clone(), options, async {}).await;
    assert!(matches!(refused, Err(ServeError::SecondNotLocal { .. })));
    let refused = exo_server::serve(listener, None, None, facade, ServerOptions::new(""), async {}).await;
    assert!(matches!(refused, Err(ServeError::NoLocalSecret)));
}

#[tokio::test]
async fn a_key_that_is_taken_away_lets_nobody_in_and_the_last_one_opens_nothing() {
    let key = |key, name: &str| (ApiKey::from_key(key), Some(name.to_owned()));
    let keys = ApiKeys::default();
    keys.replace(vec![key("sesame", "anna"), key("sesame2", "ben")]);
    let server = start_with("127.0.0.1:0", ServerOptions { api_keys: keys.clone(), ..quick() }).await;
    let models = async |key: &str| {
        let header = format!("authorization: Bearer {key}");
        server.send("GET /v1/models", &[&header], "").await.status
    };
    assert_eq!((models("sesame").await, models("sesame2").await), (200, 200));
    let asked = ["authorization: Bearer sesame", JSON];
    assert_eq!(server.send("POST /v1/chat/completions", &asked, &chat_body("good", "")).await.status, 200);
    keys.replace(vec![key("sesame2", "ben"), key("sesame3", "carla")]);
    assert_eq!((models("sesame").await, models("sesame2").await, models("sesame3").await), (401, 200, 200));
    keys.replace(Vec::new());
    assert_eq!(models("sesame2").await, 401);
    assert_eq!(server.get("/v1/models").await.error(), "401 missing_api_key");
    let recent = server.admin("GET /exo/v1/requests/recent", "").await;
    assert!(
        recent.body.contains("\"principal\":\"anna\""),
        "whose request it was stays known: {}",
        recent.body
    );
}

#[tokio::test]
async fn on_such_a_listener_the_api_opens_to_keys_only() {
    let keys =
        vec![ApiKey::from_key("other"), ApiKey::from_hash(&ApiKey::from_key("sesame").to_hash()).unwrap()];
    let mut server = start_with("0.0.0.0:0", ServerOptions { api_keys: keys.into(), ..quick() }).await;
    server.address.set_ip("127.0.0.1".parse().unwrap());
    for path in ["/v1/models", "/v1/models/good"] {
        assert_eq!(server.get(path).await.error(), "401 missing_api_key");
    }
    assert_eq!(server.chat("good", "").await.error(), "401 missing_api_key");
    assert_eq!(server.complete("good", "").await.error(), "401 missing_api_key");
    let wrong = server.send("GET /v1/models", &["authorization: Bearer sesam"], "").await;
    assert_eq!(wrong.error(), "401 invalid_api_key");
    let hash = ApiKey::from_key("sesame").to_hash();
    let stolen = server.send("GET /v1/models", &[&format!("authorization: Bearer {hash}")], "").await;
    assert_eq!(stolen.error(), "401 invalid_api_key", "the stored hash is no key");
    let right = ["authorization: Bearer sesame", JSON];
    let answer = server.send("POST /v1/chat/completions", &right, &chat_body("good", "")).await;
    assert_eq!(answer.status, 200);
    let principal = server.fake.last.lock().unwrap().as_ref().unwrap().principal;
    assert_ne!(principal, Principal::LOCAL, "another user's cache is not shared");
    assert_eq!(server.get("/health").await.status, 200);
    // The key of the API is no key to the cluster.
    assert_eq!(server.send("GET /exo/v1/cluster", &right, "").await.error(), "401 invalid_local_secret");
}

#[tokio::test]
async fn without_a_key_a_server_says_how_it_is_and_nothing_of_cluster_models_and_requests() {
    let api_keys = ApiKeys::default();
    api_keys.replace(vec![(ApiKey::from_key("sesame"), None)]);
    let server = start_with("127.0.0.1:0", ServerOptions { api_keys, ..quick() }).await;
    let health = server.get("/health").await.json();
    let mut said: Vec<&str> = health.as_object().unwrap().keys().map(String::as_str).collect();
    said.sort_unstable();
    assert_eq!(said, ["status", "uptime_s", "version"]);
    // The same text whatever the node is, and a page whose scripts have to ask.
    assert_eq!(server.get("/openapi.json").await.body, exo_api::openapi::to_json());
    let page = server.get("/").await;
    assert!(page.status == 200 && !page.body.contains(&common::cluster().self_node), "{}", page.body);
    for path in ["/v1/models", "/api/tags", "/exo/v1/cluster", "/exo/v1/requests", "/metrics"] {
        assert_eq!(server.get(path).await.status, 401, "{path}");
    }
}

#[tokio::test]
async fn a_body_of_100_mb_is_refused_and_the_client_sees_why() {
    let server = start().await;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {}\r\n{JSON}\r\ncontent-length: {}\r\n\r\n",
        server.address,
        100 << 20
    );
    let mut bytes = head.into_bytes();
    bytes.resize(bytes.len() + (100 << 20), b' ');
    let began = Instant::now();
    // Most clients send everything before they read: a reset on the way would hide the answer from them.
    let mut client = TcpStream::connect(server.address).await.unwrap();
    client.write_all(&bytes).await.expect("the server takes the body, if only to throw it away");
    let mut answer = [0; 2048];
    let read = client.read(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]);
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("body_too_large"), "{answer}");
    assert!(began.elapsed() < Duration::from_secs(8));
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test]
async fn a_body_that_hides_its_size_is_cut_off_at_the_bound() {
    let options = ServerOptions { body_bytes_max: 1000, ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let mut text = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {}\r\n{JSON}\r\ntransfer-encoding: chunked\r\n\r\n",
        server.address
    );
    for _ in 0..20 {
        text += &format!("64\r\n{}\r\n", " ".repeat(100));
    }
    assert_eq!(server.raw((text + "0\r\n\r\n").as_bytes()).await.error(), "413 body_too_large");
    // Who asks before sending is not told to send.
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {}\r\n{JSON}\r\nexpect: 100-continue\r\ncontent-length: 5000\r\n\r\n",
        server.address
    );
    assert_eq!(server.raw(head.as_bytes()).await.error(), "413 body_too_large");
}

#[tokio::test]
async fn bodies_are_bounded_in_sum_with_the_documents_they_become() {
    let options = ServerOptions { bodies_bytes_max: 300_000, ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let body =
        |values: usize| format!(r#"{{"model": "echo", "prompt": "x", "stop": [{}1]}}"#, "1,".repeat(values));
    let alone = server.post("/v1/completions", &body(3_000)).await;
    assert_eq!(alone.error(), "413 body_too_large", "6 kB that would take 440");
    // One that is still sending holds what it has sent.
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {}\r\n{JSON}\r\ncontent-length: 201000\r\n\r\n",
        server.address
    );
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(head.as_bytes()).await.unwrap();
    slow.write_all(" ".repeat(200_000).as_bytes()).await.unwrap();
    let small = r#"{"model": "echo", "prompt": "x"}"#;
    let large = format!("{small}{}", " ".repeat(70_000));
    let mut refusals = 0;
    for _ in 0..200 {
        let answer = server.post("/v1/completions", &large).await;
        if answer.status == 503 {
            assert_eq!(answer.error(), "503 too_many_bytes");
            refusals += 1;
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(refusals, 1, "the other's bytes count");
    let beside = server.post("/v1/completions", small).await;
    assert_ne!(beside.status, 503, "what large ones cannot take: {}", beside.body);
    drop(slow);
    for _ in 0..200 {
        if server.post("/v1/completions", &large).await.status != 503 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("what it held is not given back");
}

#[tokio::test]
async fn who_asks_for_a_session_takes_no_room_of_those_with_a_key() {
    let api_keys = vec![ApiKey::from_key("sesame")].into();
    let options = ServerOptions { bodies_bytes_max: 300_000, api_keys, ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let head = format!("POST /exo/v1/session HTTP/1.1\r\nhost: {}\r\n{JSON}\r\n", server.address);
    let many = format!("transfer-encoding: chunked\r\n\r\n15f90\r\n{}\r\n", " ".repeat(90_000));
    let mut strangers = Vec::new();
    for _ in 0..2 {
        let mut stranger = TcpStream::connect(server.address).await.unwrap();
        stranger.write_all(format!("{head}{many}").as_bytes()).await.unwrap();
        let mut answer = [0; 2048];
        let read = tokio::time::timeout(Duration::from_secs(5), stranger.read(&mut answer)).await;
        let read = read.expect("an answer before the end of the body").unwrap();
        let answer = String::from_utf8_lossy(&answer[..read]);
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("body_too_large"), "{answer}");
        strangers.push(stranger);
    }
    let large = format!(r#"{{"model": "echo", "prompt": "x"}}{}"#, " ".repeat(70_000));
    let key = ["authorization: Bearer sesame", JSON];
    let answer = server.send("POST /v1/completions", &key, &large).await;
    assert_ne!(answer.status, 503, "{}", answer.body);
    // A document of many parts becomes none.
    let deep = server.post("/exo/v1/session", &"[".repeat(4000)).await;
    assert_eq!(deep.error(), "400 invalid_value");
    assert_eq!(server.post("/exo/v1/session", "{").await.error(), "400 invalid_json");
}

#[tokio::test]
async fn a_document_with_too_many_parts_is_refused_while_it_comes() {
    let server = start().await;
    let body = |part: &str, count: usize| {
        format!(r#"{{"model": "echo", "messages": [{}0]}}"#, format!("{part},").repeat(count))
    };
    let empty = r#"{"role":"user","content":""}"#;
    for (part, count) in [(empty, 280_000), ("{}", 70_000), ("0", 1_100_000)] {
        let answer = server.post("/v1/chat/completions", &body(part, count)).await;
        assert_eq!(answer.error(), "413 body_too_large", "{count} x {part}");
    }
    // What never ends is answered all the same: nobody waits for its last byte.
    let mut client = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\n{JSON}\r\ncontent-length: 8000000\r\n\r\n",
        server.address
    );
    client.write_all((head + &"[".repeat(121)).as_bytes()).await.unwrap();
    let mut answer = [0; 2048];
    let read = tokio::time::timeout(Duration::from_secs(5), client.read(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]);
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("120 arrays and objects"), "{answer}");
}

#[tokio::test]
async fn what_is_no_json_is_refused_with_its_place() {
    let server = start().await;
    let answer = server.post("/v1/completions", "{\"model\":\n \"m\" \"prompt\"}").await;
    assert_eq!(answer.error(), "400 invalid_json");
    assert!(answer.body.contains("line 2 column 6"), "{}", answer.body);
    assert_eq!(server.post("/v1/completions", "").await.error(), "400 invalid_json");
    let large = server.post("/v1/completions", r#"{"temperature": 1e400}"#).await;
    assert_eq!(large.error(), "400 number_out_of_range");
    assert!(large.body.contains("at line 1 column"), "{}", large.body);
    assert_eq!(server.post("/v1/completions", &"[".repeat(100_000)).await.error(), "400 invalid_json");
    let mut bytes =
        format!("POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{JSON}\r\ncontent-length: 12\r\n\r\n")
            .into_bytes();
    bytes.extend(b"{\"model\":\n\"\xff");
    let answer = server.raw(&bytes).await;
    assert_eq!(answer.error(), "400 invalid_utf8");
    assert!(answer.body.contains("line 2 column 2"), "{}", answer.body);
}

#[tokio::test]
async fn a_header_that_dribbles_in_is_cut_off() {
    let options = ServerOptions { header_timeout: Duration::from_millis(200), ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    let began = Instant::now();
    let closed = async {
        loop {
            let mut byte = [0; 64];
            if slow.write_all(b"x").await.is_err() {
                return;
            }
            let read = tokio::time::timeout(Duration::from_millis(50), slow.read(&mut byte)).await;
            if matches!(read, Ok(Ok(0) | Err(_))) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(3), closed).await.expect("the connection is closed");
    assert!(began.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let options = ServerOptions { header_timeout: Duration::from_millis(200), ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(3), idle.read_to_end(&mut answer)).await;
    assert!(closed.is_ok(), "kept open after its answer");
    assert!(answer.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn a_body_that_dribbles_in_is_cut_off() {
    let options = ServerOptions { body_timeout: Duration::from_millis(200), ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let head =
        format!("POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n{JSON}\r\ncontent-length: 50\r\n\r\n{{");
    let answer = server.raw(head.as_bytes()).await;
    assert_eq!(answer.error(), "408 body_too_slow");
}

#[tokio::test]
async fn too_many_connections_are_told_so() {
    let options = ServerOptions { connections_max: 2, ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let held = [
        TcpStream::connect(server.address).await.unwrap(),
        TcpStream::connect(server.address).await.unwrap(),
    ];
    tokio::time::sleep(Duration::from_millis(50)).await;
    let answer = server.get("/health").await;
    assert_eq!(answer.error(), "503 too_many_connections");
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert!(answer.header("content-security-policy").is_some_and(|policy| policy.contains("sandbox")));
    drop(held);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.get("/health").await.status, 200);
}

/// Sends a request over a connection that stays open and reads the status of its answer.
async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), path: &str, key: &str) -> String {
    let text = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{key}\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let read = tokio::time::timeout(Duration::from_secs(3), stream.read(&mut answer)).await;
    let read = read.expect("an answer").unwrap();
    String::from_utf8_lossy(&answer[..read]).lines().next().unwrap_or_default().to_owned()
}

const KEY: &str = "authorization: Bearer sesame\r\n";

#[tokio::test]
async fn connections_without_a_key_keep_no_key_holder_out() {
    let options =
        ServerOptions { connections_max: 8, api_keys: vec![ApiKey::from_key("sesame")].into(), ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let mut holder = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(ask(&mut holder, "/v1/models", KEY).await, "HTTP/1.1 200 OK");
    let mut flood = Vec::new();
    for _ in 0..40 {
        let mut keyless = TcpStream::connect(server.address).await.unwrap();
        keyless.write_all(b"GET /v1/models HTTP/1.1\r\n").await.unwrap();
        flood.push(keyless);
    }
    assert_eq!(ask(&mut holder, "/v1/models", KEY).await, "HTTP/1.1 200 OK", "it keeps its connection");
    let mut others = Vec::new();
    for number in 0..7 {
        let mut other = TcpStream::connect(server.address).await.unwrap();
        assert_eq!(ask(&mut other, "/v1/models", KEY).await, "HTTP/1.1 200 OK", "holder {number} gets in");
        others.push(other);
    }
    // All seats are those of keys now: nobody loses one, and who comes is told so.
    assert_eq!(server.get("/health").await.error(), "503 too_many_connections");
    assert_eq!(ask(&mut holder, "/v1/models", KEY).await, "HTTP/1.1 200 OK");
    others.truncate(3);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.get("/health").await.status, 200, "their seats are free again");
    let mut byte = [0; 1];
    let closed = tokio::time::timeout(Duration::from_secs(1), flood[0].read(&mut byte)).await;
    assert!(matches!(closed, Ok(Ok(0) | Err(_))), "the oldest without a key was closed");
}

#[tokio::test]
async fn a_wrong_key_keeps_no_seat() {
    let options =
        ServerOptions { connections_max: 4, api_keys: vec![ApiKey::from_key("sesame")].into(), ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let mut guesses = Vec::new();
    for _ in 0..8 {
        let mut guess = TcpStream::connect(server.address).await.unwrap();
        let answer = ask(&mut guess, "/v1/models", "authorization: Bearer sesam\r\n").await;
        assert_eq!(answer, "HTTP/1.1 401 Unauthorized");
        guesses.push(guess);
    }
    let mut holder = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(ask(&mut holder, "/v1/models", KEY).await, "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn the_owners_channel_has_connections_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (local, path) = exo_local_channel::LocalListener::open(folder.path()).unwrap();
    let options = ServerOptions { connections_max: 1, local_connections_max: 3, ..quick() };
    let server = start_both("127.0.0.1:0", Some(local), options).await;
    let _held = TcpStream::connect(server.address).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.get("/health").await.error(), "503 too_many_connections");
    let mut commands = Vec::new();
    for _ in 0..3 {
        let mut command = exo_local_channel::connect(&path).await.unwrap();
        assert_eq!(ask(&mut command, "/exo/v1/cluster", "").await, "HTTP/1.1 200 OK");
        commands.push(command);
    }
    let mut fourth = exo_local_channel::connect(&path).await.unwrap();
    assert_eq!(ask(&mut fourth, "/exo/v1/cluster", "").await, "HTTP/1.1 503 Service Unavailable");
}

#[tokio::test]
async fn what_clients_send_keeps_no_command_out() {
    let folder = tempfile::tempdir().unwrap();
    let (local, path) = exo_local_channel::LocalListener::open(folder.path()).unwrap();
    let options = ServerOptions { bodies_bytes_max: 100_000, ..quick() };
    let server = start_both("127.0.0.1:0", Some(local), options).await;
    // Each is small, so that they take all the room there is.
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n{JSON}\r\ncontent-length: 60000\r\n\r\n"
    );
    let mut slow = Vec::new();
    for bytes in [50_000, 48_000] {
        let mut client = TcpStream::connect(server.address).await.unwrap();
        client.write_all((head.clone() + &" ".repeat(bytes)).as_bytes()).await.unwrap();
        slow.push(client);
    }
    let beside = format!(r#"{{"model": "good", "prompt": "x"}}{}"#, " ".repeat(4000));
    let began = Instant::now();
    while server.post("/v1/completions", &beside).await.status != 503 {
        assert!(began.elapsed() < Duration::from_secs(5), "there is room still");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let spaces = " ".repeat(4000);
    for (line, body) in [
        ("POST /exo/v1/plan", format!(r#"{{"model": "good"}}{spaces}"#)),
        ("POST /exo/v1/shutdown", format!("{{}}{spaces}")),
    ] {
        let mut command = exo_local_channel::connect(&path).await.unwrap();
        let head =
            format!("{line} HTTP/1.1\r\nhost: localhost\r\n{JSON}\r\ncontent-length: {}\r\n\r\n", body.len());
        command.write_all((head + &body).as_bytes()).await.unwrap();
        let mut answer = [0; 256];
        let read = tokio::time::timeout(Duration::from_secs(3), command.read(&mut answer)).await;
        let read = read.expect("an answer").unwrap();
        let answer = String::from_utf8_lossy(&answer[..read]);
        assert!(answer.starts_with("HTTP/1.1 20"), "{line}: {answer}");
    }
    drop(slow);
}

#[tokio::test]
async fn a_huge_header_is_refused() {
    let server = start().await;
    let header = format!("x: {}", "y".repeat(200 << 10));
    assert_eq!(server.send("GET /health", &[&header], "").await.status, 431);
    assert_eq!(server.get("/health").await.status, 200);
}
