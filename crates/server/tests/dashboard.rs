//! The page's files: what they are sent with, and what is not sent.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::borrow::Cow;

use crate::common::{Server, quick, start_with};
use exo_server::{ApiKey, ServerOptions};

/// A bundle of a few files.
fn bundle(name: &str) -> Option<Cow<'static, [u8]>> {
    let text: &[u8] = match name {
        "index.html" => b"<!doctype html><script type=module src=/assets/i-1a.js></script>",
        "assets/i-1a.js" => b"let plain;",
        "assets/i-1a.js.gz" => b"\x1f\x8bzipped",
        "icon.svg" => b"<svg/>",
        ".stamp" | "assets/.hidden.js" | "secret.exe" => b"not for anybody",
        _ => return None,
    };
    Some(Cow::Borrowed(text))
}

async fn with(dashboard: exo_server::Dashboard) -> Server {
    start_with("127.0.0.1:0", ServerOptions { dashboard, ..quick() }).await
}

#[tokio::test]
async fn the_page_runs_its_own_scripts_alone_and_stands_in_no_frame() {
    let server = with(bundle).await;
    let page = server.get("/").await;
    assert_eq!((page.status, page.header("cache-control")), (200, Some("no-store")));
    let policy = page.header("content-security-policy").unwrap();
    let rule = |name: &str| {
        let rules = policy.split(';').map(str::trim);
        rules.into_iter().find_map(|rule| rule.strip_prefix(name)).unwrap_or("").trim().to_owned()
    };
    assert_eq!((rule("default-src"), rule("script-src")), ("'none'".to_owned(), "'self'".to_owned()));
    assert_eq!((rule("style-src"), rule("frame-ancestors")), ("'self'".to_owned(), "'none'".to_owned()));
    assert_eq!(rule("require-trusted-types-for"), "'script'");
    assert!(!policy.contains("unsafe") && !policy.contains("http:") && !policy.contains('*'), "{policy}");
    assert_eq!(page.header("x-frame-options"), Some("DENY"));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
    assert_eq!(page.header("cross-origin-opener-policy"), Some("same-origin"));
    for frame in ["iframe", "frame", "object", "embed"] {
        let framed = server.send("GET /", &[&format!("sec-fetch-dest: {frame}")], "").await;
        assert_eq!(framed.error(), "403 framed", "{frame}");
    }
    assert_eq!(server.send("GET /", &["sec-fetch-dest: document"], "").await.status, 200);
}

#[tokio::test]
async fn files_with_a_hash_in_their_name_are_kept_for_a_year_and_come_compressed() {
    let server = with(bundle).await;
    let plain = server.get("/assets/i-1a.js").await;
    assert_eq!((plain.status, plain.body.as_str()), (200, "let plain;"));
    assert_eq!(plain.header("cache-control"), Some("public, max-age=31536000, immutable"));
    assert_eq!(plain.header("content-type"), Some("text/javascript; charset=utf-8"));
    assert_eq!((plain.header("content-encoding"), plain.header("vary")), (None, Some("accept-encoding")));
    let zipped = server.send("GET /assets/i-1a.js", &["accept-encoding: br, gzip"], "").await;
    assert_eq!(zipped.header("content-encoding"), Some("gzip"));
    assert_eq!(zipped.header("content-type"), plain.header("content-type"));
    let icon = server.get("/icon.svg").await;
    assert_eq!((icon.status, icon.header("cache-control")), (200, Some("no-cache")));
    assert_eq!(
        icon.header("content-security-policy"),
        Some("default-src 'none'; frame-ancestors 'none'; sandbox")
    );
    let head = server.send("HEAD /assets/i-1a.js", &[], "").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[tokio::test]
async fn an_answer_of_the_api_that_is_opened_as_a_page_runs_nothing() {
    let server = with(bundle).await;
    let answers = [
        server.get("/health").await,
        server.get("/openapi.json").await,
        server.get("/metrics").await,
        server.get("/v1/models").await,
        server.get("/exo/v1/cluster").await,
        server.get("/no/such/route").await,
        server.post("/v1/chat/completions", "{").await,
        server.post("/api/chat", "{").await,
        server.get("/assets/i-1a.js").await,
    ];
    for answer in answers {
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(
            policy.contains("default-src 'none'") && policy.contains("sandbox"),
            "{policy}: {}",
            answer.body
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{}", answer.body);
    }
}

#[tokio::test]
async fn nothing_but_the_bundle_is_served_and_no_other_path_is_the_page() {
    let server = with(bundle).await;
    for path in [
        "/index.html",
        "/.stamp",
        "/assets/.hidden.js",
        "/secret.exe",
        "/assets/../icon.svg",
        "/assets/%2e%2e/icon.svg",
        "//icon.svg/",
        "/cluster",
        "/assets/none.js",
        "/assets/i-1a.js.gz",
    ] {
        assert_eq!(server.get(path).await.error(), "404 no_such_route", "{path}");
    }
    assert_eq!(server.post("/icon.svg", "{}").await.error(), "404 no_such_route");
    // Another site may neither read nor run them.
    let foreign = ["sec-fetch-site: cross-site", "sec-fetch-dest: script"];
    assert_eq!(server.send("GET /assets/i-1a.js", &foreign, "").await.error(), "403 origin_not_allowed");
}

#[tokio::test]
async fn where_keys_are_needed_the_page_by_hand_shows_a_line_with_one() {
    let api_keys = vec![ApiKey::from_key("sesame")].into();
    let server = start_with("127.0.0.1:0", ServerOptions { dashboard: |_| None, api_keys, ..quick() }).await;
    let page = server.get("/").await;
    assert_eq!(page.status, 200, "it holds no secret");
    assert!(
        page.body.contains("-H \"Authorization: Bearer $EXO_API_KEY\" \\\n  -H 'Content-Type"),
        "{}",
        page.body
    );
}

#[tokio::test]
async fn without_a_bundle_one_page_says_how_to_get_it() {
    let server = with(|_| None).await;
    let page = server.get("/").await;
    assert_eq!(page.status, 200);
    assert!(page.body.contains("cargo xtask web") && page.body.contains("/v1/models"));
    assert!(page.body.contains(&format!("curl http://{}/v1/", server.address)), "{}", page.body);
    assert!(!page.body.contains("Bearer") && !page.body.contains("{{"), "{}", page.body);
    let policy = page.header("content-security-policy").unwrap();
    assert!(
        policy.starts_with("default-src 'none'; style-src 'self'") && !policy.contains("unsafe"),
        "{policy}"
    );
    for part in ["<script", "<style", "style=", "src=", "https://"] {
        assert!(!page.body.contains(part), "{part}");
    }
    let style = server.get("/landing.css").await;
    assert_eq!((style.status, style.header("content-type")), (200, Some("text/css; charset=utf-8")));
}

/// A file as large as that of a page is.
static LARGE: [u8; 400_000] = [b' '; 400_000];

#[tokio::test]
async fn what_is_one_copy_for_all_takes_no_room_of_answers_whoever_leaves_it_unread() {
    let dashboard = |name: &str| (name == "large.js").then_some(Cow::Borrowed(LARGE.as_slice()));
    // Of room for 256 KiB answers have half.
    let options = ServerOptions { dashboard, bodies_bytes_max: 256 << 10, ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let large = server.get("/large.js").await;
    assert_eq!((large.status, large.body.len()), (200, LARGE.len()), "{}", large.headers);
    let description = server.get("/openapi.json").await;
    assert_eq!(description.status, 200, "{}", description.body);
    assert!(description.body.len() > 256 << 10);
}
