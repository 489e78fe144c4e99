//! The page that people keep open: its files, as `cargo xtask web` has made them, and the headers that keep
//! what is hostile in it from doing harm.
//!
//! A build without them serves one page by hand that says how to get them. The files hold no secret and are
//! open to whoever reaches the port; what they show comes through the API, with a session.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST,
    REFERRER_POLICY, VARY, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::response::{IntoResponse, Response};

use crate::app::App;
use crate::backlog::OneCopy;
use crate::bundle::Dashboard;
use crate::errors::ApiError;
use crate::openai;

/// No script and no style but the page's own files; no other origin for anything; in no frame; and where the
/// browser knows Trusted Types, markup is made by the framework's own policy alone.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
                           connect-src 'self'; manifest-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; \
                           frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types svelte-trusted-html";
/// A page that has nothing but text and a style.
const LANDING_POLICY: &str =
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Of every answer that is no page: nothing in it runs.
pub const ANSWER_POLICY: &str = "default-src 'none'; frame-ancestors 'none'; sandbox";
const NOTHING: &str = "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), microphone=(), payment=(), usb=()";

/// Names with a hash of what is in them never change.
const FOR_GOOD: &str = "public, max-age=31536000, immutable";
/// Asked for again each time.
const NOW: &str = "no-cache";

/// `GET /`: the page, or what stands in for it.
pub async fn page(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, ApiError> {
    // A browser of today says so before it knows the policy.
    let into = headers.get("sec-fetch-dest").map(HeaderValue::as_bytes);
    if matches!(into, Some(b"iframe" | b"frame" | b"embed" | b"object" | b"fencedframe")) {
        return Err(ApiError::forbidden("framed", "this page is shown in no frame"));
    }
    let bundled = file(app.options.dashboard, "index.html", &headers);
    let (mut response, policy) = match bundled {
        Some(page) => (page, PAGE_POLICY),
        None => {
            let text = landing(&headers, app.options.api_keys.are_needed());
            (typed("html", text.into_bytes().into()), LANDING_POLICY)
        }
    };
    let head = response.headers_mut();
    head.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    head.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    head.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    head.insert("permissions-policy", HeaderValue::from_static(NOTHING));
    // What is on the disk next time may be another one.
    head.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The page by hand, for the address that it was opened at.
fn landing(headers: &HeaderMap, needs_key: bool) -> String {
    const KEY: &str = "\n  -H \"Authorization: Bearer $EXO_API_KEY\" \\";
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    // The guard has looked at it; what stands in a page by hand has no sign that means something there.
    let is_plain = |host: &&str| host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:[]".contains(&b));
    let address = host.filter(is_plain).unwrap_or("localhost:52415");
    let text = include_str!("landing.html").replace("{{address}}", address);
    text.replace("{{key}}", if needs_key { KEY } else { "" })
}

/// `GET /landing.css`: of the page by hand.
pub async fn landing_style() -> Response {
    typed("css", include_bytes!("landing.css").as_slice().into())
}

/// What has no route: a file of the page, or nothing.
pub async fn fallback(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let name = request.uri().path().strip_prefix('/').unwrap_or_default();
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD) && name != "index.html";
    let found = if is_read { file(app.options.dashboard, name, request.headers()) } else { None };
    let Some(mut response) = found else { return Err(openai::not_found(&request)) };
    let lasts = if name.starts_with("assets/") { FOR_GOOD } else { NOW };
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(lasts));
    Ok(response)
}

/// The file, compressed where the client takes that and there is such a one.
fn file(dashboard: Dashboard, name: &str, headers: &HeaderMap) -> Option<Response> {
    let (_, extension) = name.rsplit_once('.')?;
    if !is_plain(name) || content_type(extension).is_none() {
        return None;
    }
    let zipped = if takes_gzip(headers) { dashboard(&format!("{name}.gz")) } else { None };
    let is_zipped = zipped.is_some();
    let mut response = typed(extension, zipped.or_else(|| dashboard(name))?);
    let head = response.headers_mut();
    head.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if is_zipped {
        head.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Some(response)
}

/// Of the names that a bundler gives: no way out of the folder, and nothing hidden.
fn is_plain(name: &str) -> bool {
    name.split('/').all(|part| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.~".contains(&b))
    })
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_meant = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        is_meant && !parts.any(|weight| matches!(weight, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

fn typed(extension: &str, bytes: Cow<'static, [u8]>) -> Response {
    let mut response = match bytes {
        Cow::Borrowed(bytes) => (Extension(OneCopy), bytes).into_response(),
        Cow::Owned(bytes) => bytes.into_response(),
    };
    let kind = content_type(extension).unwrap_or("application/octet-stream");
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

/// What a bundle is made of. A file of another kind is not served.
fn content_type(extension: &str) -> Option<&'static str> {
    Some(match extension {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "txt" | "md" => "text/plain; charset=utf-8",
        "webmanifest" => "application/manifest+json",
        _ => return None,
    })
}

/// On every answer: whoever opens one alone in a tab gets nothing that runs.
pub fn set_defaults(headers: &mut HeaderMap) {
    headers.entry(REFERRER_POLICY).or_insert(HeaderValue::from_static("no-referrer"));
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(ANSWER_POLICY));
    let resources = HeaderName::from_static("cross-origin-resource-policy");
    headers.insert(resources, HeaderValue::from_static("same-origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_the_folder() {
        for name in ["index.html", "assets/main-B_1x.js", "favicon.svg", "a/b.c.js"] {
            assert!(is_plain(name), "{name}");
        }
        for name in
            ["../x.js", "assets/../x.js", "/etc/x.js", ".gitignore", "a//b.js", "a\\b.js", "%2e.js", ""]
        {
            assert!(!is_plain(name), "{name}");
        }
    }

    #[test]
    fn gzip_is_for_those_who_take_it() {
        let takes = |value: &'static str| {
            takes_gzip(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))]))
        };
        assert!(takes("br, gzip;q=0.5") && takes("GZIP") && takes("deflate,gzip"));
        assert!(!takes("br") && !takes("gzip;q=0") && !takes("gzip; q=0.0") && !takes("x-gzip-y"));
        assert!(!takes_gzip(&HeaderMap::new()));
    }
}
