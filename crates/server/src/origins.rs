//! Pages of other sites that may use the models, and what their browsers are told.
//!
//! A page of a site that a person has named may send requests for text with an API key, which no other page
//! has. It never administers, sees no cluster, and gets nothing without a key on a node that asks nobody else
//! for one: whoever can serve such a page to the user's browser would be let in with it.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, VARY,
};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};

/// Longest origin that is a setting.
const BYTES_MAX: usize = 200;
/// What a page may do with the models' routes.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");
/// Headers of answers that clients read, beside those that every page may.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("exo-resume, request-id, retry-after, x-request-id, x-should-retry");
/// For how many seconds a browser need not ask again.
const MAX_AGE_S: HeaderValue = HeaderValue::from_static("600");
/// What a page wants to send that no form could; browsers name few headers, and this bounds what we repeat.
const REQUEST_HEADERS_BYTES_MAX: usize = 2048;
/// By which a browser asks whether a page of the internet may reach a machine of the local network.
const PRIVATE_NETWORK: [HeaderName; 2] = [
    HeaderName::from_static("access-control-request-private-network"),
    HeaderName::from_static("access-control-allow-private-network"),
];
/// The routes for text: all that a page of another site may use.
const PATHS: [&str; 4] = ["/tokenize", "/detokenize", "/apply-template", "/tokenizer_info"];
const PATHS_BELOW: [&str; 2] = ["/v1/", "/api/"];

/// The origin of a page that may use the models, as browsers write it: `app://obsidian.md`,
/// `http://localhost:3000`, or `vscode-webview://*` where a program makes up a host for each of its views.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllowedOrigin {
    scheme: String,
    /// `None` for every host of a scheme that is no site of the web.
    host: Option<String>,
}

impl AllowedOrigin {
    fn is(&self, origin: &str) -> bool {
        let Some((scheme, host)) = origin.split_once("://") else { return false };
        self.scheme == scheme && self.host.as_deref().is_none_or(|own| own == host)
    }
}

impl fmt::Display for AllowedOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.host.as_deref().unwrap_or("*"))
    }
}

/// Why a text is no origin that can be allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadOrigin {
    /// Every page of the web.
    #[error("`*` would let in every page that this machine's browsers open: name the origins")]
    Everybody,
    /// What sandboxed frames and files send.
    #[error("`null` is what every sandboxed frame sends: name an origin such as app://obsidian.md")]
    Null,
    /// Something is missing or too much.
    #[error(
        "an origin is SCHEME://HOST or SCHEME://HOST:PORT, as in http://localhost:3000 or app://obsidian.md"
    )]
    Form,
    /// It is an address of a page.
    #[error("an origin has no path: leave out the `/` behind the host and what follows")]
    Path,
    /// Hosts of the web are named.
    #[error("`*` stands for a host only with a scheme of a program's own, as in vscode-webview://*")]
    Hosts,
    /// Browsers write hosts in ASCII.
    #[error(
        "browsers send a host with other letters than ASCII as xn--…: write what `location.origin` is in the console of its page"
    )]
    Letters,
    /// Behind the colon is no port.
    #[error("a port is a number up to 65535, as in http://localhost:3000")]
    Port,
    /// It looks like an address and is none, or is written as no browser sends it.
    #[error("browsers send an address in its usual form, as in http://127.0.0.1:3000 or http://[::1]:3000")]
    Address,
}

impl FromStr for AllowedOrigin {
    type Err = BadOrigin;

    fn from_str(text: &str) -> Result<Self, BadOrigin> {
        let text = text.trim().to_ascii_lowercase();
        match text.as_str() {
            "*" => return Err(BadOrigin::Everybody),
            "null" => return Err(BadOrigin::Null),
            _ => {}
        }
        let (scheme, host) = text.split_once("://").ok_or(BadOrigin::Form)?;
        let is_of_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        if text.len() > BYTES_MAX
            || !scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            || !scheme.bytes().all(is_of_scheme)
        {
            return Err(BadOrigin::Form);
        }
        if host.contains(['/', '?', '#']) {
            return Err(BadOrigin::Path);
        }
        let scheme = scheme.to_owned();
        let usual_port = match scheme.as_str() {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        if host == "*" {
            let is_own = usual_port.is_none() && !["file", "data", "blob"].contains(&scheme.as_str());
            return if is_own { Ok(Self { scheme, host: None }) } else { Err(BadOrigin::Hosts) };
        }
        Ok(Self { scheme, host: Some(as_sent(host, usual_port)?) })
    }
}

/// Host and port, in lower case, as browsers send them: without the usual port of the scheme, which only
/// those of the web have.
fn as_sent(text: &str, usual_port: Option<u16>) -> Result<String, BadOrigin> {
    if !text.is_ascii() {
        return Err(BadOrigin::Letters);
    }
    if text.contains(['@', '*']) {
        return Err(BadOrigin::Form);
    }
    let host_len = match text.rfind(']') {
        Some(bracket) => bracket + 1,
        None => text.find(':').unwrap_or(text.len()),
    };
    let (host, behind) = text.split_at(host_len);
    let port = match behind {
        "" | ":" => None,
        _ => Some(port_of(behind).ok_or(BadOrigin::Port)?),
    };
    if host.parse::<Authority>().map_or(true, |authority| authority.host() != host) {
        return Err(BadOrigin::Form);
    }
    let host = host_as_sent(host, usual_port.is_some())?;
    Ok(match port.filter(|port| Some(*port) != usual_port) {
        Some(port) => format!("{host}:{port}"),
        None => host,
    })
}

/// The number behind a colon.
fn port_of(text: &str) -> Option<u16> {
    let digits = text.strip_prefix(':')?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

fn host_as_sent(host: &str, is_web: bool) -> Result<String, BadOrigin> {
    if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        let address: Ipv6Addr = inner.parse().map_err(|_| BadOrigin::Address)?;
        let [.., high, low] = address.segments();
        return Ok(match address.to_ipv4_mapped() {
            Some(_) => format!("[::ffff:{high:x}:{low:x}]"),
            None => format!("[{address}]"),
        });
    }
    // To a browser a host of the web whose last part is a number is an address, however it is written.
    let last = host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let is_number = last.starts_with("0x") || (!last.is_empty() && last.bytes().all(|b| b.is_ascii_digit()));
    match is_web && is_number && host.parse::<Ipv4Addr>().is_err() {
        true => Err(BadOrigin::Address),
        false => Ok(host.to_owned()),
    }
}

/// Whether a route is for text, which a page of another site may be let in to.
pub(crate) fn is_for_text(path: &str) -> bool {
    PATHS.contains(&path) || PATHS_BELOW.iter().any(|start| path.starts_with(start))
}

/// Whether these let in the page that sends an origin, in lower case.
pub(crate) fn allows(allowed: &[AllowedOrigin], origin: &str) -> bool {
    allowed.iter().any(|one| one.is(origin))
}

/// Whether a browser asks what a page may send before it sends it.
pub(crate) fn is_preflight(request: &Parts) -> bool {
    request.method == Method::OPTIONS && request.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Tells the browser of a page that was let in that the page may read the answer.
pub(crate) fn share(answer: &mut HeaderMap, origin: HeaderValue) {
    answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    answer.append(VARY, HeaderValue::from_static("origin"));
}

/// What the answer to a preflight has besides. Any header may come: what counts of them is checked then.
pub(crate) fn answer_preflight(answer: &mut HeaderMap, request: &HeaderMap) {
    answer.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    answer.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE_S);
    let wanted = request.get(ACCESS_CONTROL_REQUEST_HEADERS);
    if let Some(wanted) = wanted.filter(|wanted| wanted.len() <= REQUEST_HEADERS_BYTES_MAX) {
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    let [asks, allows] = PRIVATE_NETWORK;
    if request.get(asks).is_some_and(|asks| asks == "true") {
        answer.insert(allows, HeaderValue::from_static("true"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> Result<AllowedOrigin, BadOrigin> {
        text.parse()
    }

    #[test]
    fn an_origin_is_what_browsers_send() {
        for (text, sent) in [
            ("app://obsidian.md", "app://obsidian.md"),
            (" HTTP://LocalHost:3000 ", "http://localhost:3000"),
            ("https://chat.example:443", "https://chat.example"),
            ("http://[::1]:8080", "http://[::1]:8080"),
            ("http://localhost:", "http://localhost"),
            ("http://localhost:080", "http://localhost"),
            ("https://chat.example:80", "https://chat.example:80"),
            ("app://obsidian.md:03000", "app://obsidian.md:3000"),
            ("http://[0:0::0:1]:80", "http://[::1]"),
            ("http://[::FFFF:127.0.0.1]", "http://[::ffff:7f00:1]"),
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("https://XN--Bcher-KVA.example", "https://xn--bcher-kva.example"),
            ("tauri://localhost", "tauri://localhost"),
        ] {
            let allowed = origin(text).unwrap();
            assert_eq!(allowed.to_string(), sent);
            assert!(allowed.is(sent), "{text}");
            for other in
                ["null", "https://evil.example", &format!("{sent}.evil.example"), &format!("{sent}0")]
            {
                assert!(!allowed.is(other), "{text}: {other}");
            }
        }
        let views = origin("vscode-webview://*").unwrap();
        assert!(views.is("vscode-webview://0a1b2c") && !views.is("https://0a1b2c"));
    }

    #[test]
    fn what_lets_in_more_than_a_person_means_or_nobody_is_refused() {
        for (text, why) in [
            ("*", BadOrigin::Everybody),
            ("null", BadOrigin::Null),
            ("localhost:3000", BadOrigin::Form),
            ("http://", BadOrigin::Form),
            ("http://a@b", BadOrigin::Form),
            ("http://a b", BadOrigin::Form),
            ("http://*.example", BadOrigin::Form),
            ("1a://b", BadOrigin::Form),
            ("http://localhost:3000/", BadOrigin::Path),
            ("http://localhost:3000/x:1", BadOrigin::Path),
            ("https://bücher.example", BadOrigin::Letters),
            ("http://localhost:x", BadOrigin::Port),
            ("http://localhost:+80", BadOrigin::Port),
            ("http://localhost:65536", BadOrigin::Port),
            ("http://[::1]x", BadOrigin::Port),
            ("http://:80", BadOrigin::Form),
            ("http://::1", BadOrigin::Port),
            ("http://127.1", BadOrigin::Address),
            ("http://0x7f000001", BadOrigin::Address),
            ("http://[::g]", BadOrigin::Address),
            ("https://*", BadOrigin::Hosts),
            ("file://*", BadOrigin::Hosts),
        ] {
            assert_eq!(origin(text), Err(why), "{text}");
        }
        assert_eq!(origin(&format!("app://{}", "a".repeat(BYTES_MAX))), Err(BadOrigin::Form));
    }

    #[test]
    fn only_routes_for_text_are_shared() {
        for path in ["/v1/chat/completions", "/api/chat", "/tokenize"] {
            assert!(is_for_text(path), "{path}");
        }
        for path in ["/", "/exo/v1/cluster", "/exo/v1/session", "/metrics", "/v1", "/tokenize/x", "/health"] {
            assert!(!is_for_text(path), "{path}");
        }
    }
}
