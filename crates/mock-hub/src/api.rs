//! The hub's host: describing repositories, listing files, searching, and files that redirect.

use std::io::{self, Write};
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::answer::{self, Headers};
use crate::request::Request;
use crate::{File, Repository, State, content, git_id, lock, registry};

/// What no hub has: the mock's own counts, for who runs it as a process.
const COUNTS: &str = "/mock/counts";
/// Entries of a page of the list of files.
const PAGE: usize = 50;

pub(crate) fn answer(request: &Request, state: &State, out: &mut impl Write) -> io::Result<bool> {
    let faults = lock(&state.faults).clone();
    if request.header("authorization").is_some()
        && faults.token_refused_after.is_some_and(|n| state.requests.load(Ordering::Relaxed) > n)
    {
        return refuse(out, "401 Unauthorized", "", "Invalid credentials in Authorization header");
    }
    let path = request.path().to_owned();
    if path == COUNTS {
        return counts(state, out);
    }
    if path == "/token" {
        return registry::give_token(request, state, out);
    }
    if let Some(rest) = path.strip_prefix("/v2/") {
        return registry::answer(request, rest, state, out);
    }
    if let Some(rest) = path.strip_prefix("/api/models/") {
        return describe(request, rest, state, out);
    }
    if path == "/api/models" {
        return search(request, state, out);
    }
    let parts: Vec<&str> = path.trim_start_matches('/').splitn(5, '/').collect();
    match parts.as_slice() {
        [org, name, "resolve", revision, file] => {
            resolve(request, &format!("{org}/{name}"), revision, &decoded(file), state, out)
        }
        _ => refuse(out, "404 Not Found", "", "Sorry, we can't find the page you are looking for."),
    }
}

fn counts(state: &State, out: &mut impl Write) -> io::Result<bool> {
    let counts = json!({
        "sent_bytes": state.sent_bytes.load(Ordering::Relaxed),
        "data_answers": state.data_answers.load(Ordering::Relaxed),
    });
    answer::write(out, "200 OK", &[], counts.to_string().as_bytes())
}

fn refuse(out: &mut impl Write, status: &str, code: &str, message: &str) -> io::Result<bool> {
    let headers = [("x-error-code", code.to_owned()), ("x-error-message", message.to_owned())];
    let headers = if code.is_empty() { &headers[1..] } else { &headers[..] };
    answer::write(out, status, headers, json!({"error": message}).to_string().as_bytes())
}

fn document(state: &State, out: &mut impl Write, headers: Headers<'_>, value: &Value) -> io::Result<bool> {
    let faults = lock(&state.faults).clone();
    if faults.html_for_json {
        return answer::write(
            out,
            "200 OK",
            &[("content-type", "text/html".to_owned())],
            b"<!doctype html><title>Maintenance</title>",
        );
    }
    let mut headers = headers.to_vec();
    headers.push(("content-type", "application/json".to_owned()));
    if faults.gzip {
        headers.push(("content-encoding", "gzip".to_owned()));
    }
    let mut text = value.to_string();
    if faults.long_document > text.len() {
        text.push_str(&" ".repeat(faults.long_document - text.len()));
    }
    if let Some(every) = faults.drip_every {
        answer::head(out, "200 OK", &headers, text.len() as u64)?;
        answer::drip(out, text.as_bytes(), every)?;
        return Ok(true);
    }
    answer::write(out, "200 OK", &headers, text.as_bytes())
}

/// The repository, or what the hub answers instead of it.
fn find(
    request: &Request,
    name: &str,
    state: &State,
    needs_consent: bool,
) -> Result<Repository, (&'static str, &'static str, &'static str)> {
    let found = lock(&state.repositories).get(name).cloned();
    let found = found.ok_or(("401 Unauthorized", "RepoNotFound", "Invalid username or password."))?;
    let is_allowed = request.header("authorization") == Some(&format!("Bearer {}", state.token));
    match needs_consent && found.is_gated && !is_allowed {
        true => Err((
            "401 Unauthorized",
            "GatedRepo",
            "Access to this model is restricted. You must be authenticated to access it.",
        )),
        false => Ok(found),
    }
}

fn has_revision(repository: &Repository, revision: &str) -> bool {
    revision == "main" || revision == repository.commit || repository.revisions.iter().any(|r| r == revision)
}

/// `org/name/revision/REV` and `org/name/tree/REV`.
fn describe(request: &Request, rest: &str, state: &State, out: &mut impl Write) -> io::Result<bool> {
    let parts: Vec<&str> = rest.splitn(4, '/').collect();
    let [org, name, what, revision] = parts.as_slice() else {
        return refuse(out, "404 Not Found", "", "no such route");
    };
    let repository = match find(request, &format!("{org}/{name}"), state, false) {
        Ok(repository) => repository,
        Err((status, code, message)) => return refuse(out, status, code, message),
    };
    if let Some(to) = &repository.moved_to {
        let to = format!("/api/models/{to}/{what}/{revision}");
        return answer::write(out, "307 Temporary Redirect", &[("location", to)], b"");
    }
    if !has_revision(&repository, &decoded(revision)) {
        return refuse(out, "404 Not Found", "RevisionNotFound", "Invalid rev id");
    }
    match *what {
        "revision" => {
            let mut info = json!({
                "id": format!("{org}/{name}"), "sha": repository.commit, "private": false,
                "gated": if repository.is_gated { json!("manual") } else { json!(false) },
                "tags": ["gguf"], "siblings": repository.files.keys().map(|f| json!({"rfilename": f})).collect::<Vec<_>>(),
            });
            if let Some(licence) = &repository.licence {
                info["cardData"] = json!({"license": licence});
            }
            document(state, out, &[], &info)
        }
        "tree" => tree(request, &repository, state, out),
        _ => refuse(out, "404 Not Found", "", "no such route"),
    }
}

fn tree(request: &Request, repository: &Repository, state: &State, out: &mut impl Write) -> io::Result<bool> {
    let from: usize = request.query("cursor").and_then(|c| c.parse().ok()).unwrap_or(0);
    let endless = lock(&state.faults).endless_tree;
    let entries: Vec<Value> = if endless {
        (0..1000)
            .map(|i| json!({"type": "file", "path": format!("f-{}-{i}.json", from), "size": 1, "oid": "0"}))
            .collect()
    } else {
        repository.files.iter().skip(from).take(PAGE).map(|(path, file)| entry(path, file)).collect()
    };
    let next = from + PAGE;
    let mut headers = Vec::new();
    if endless || next < repository.files.len() {
        let link =
            format!("<http://{}{}?recursive=true&cursor={next}>; rel=\"next\"", state.hub, request.path());
        headers.push(("link", link));
    }
    document(state, out, &headers, &Value::Array(entries))
}

fn entry(path: &str, file: &File) -> Value {
    let size = file.bytes.len();
    match file.is_lfs {
        true => json!({"type": "file", "path": path, "size": size, "oid": "0".repeat(40),
                       "lfs": {"oid": file.sha256.clone(), "size": size, "pointerSize": 134}}),
        false => json!({"type": "file", "path": path, "size": size, "oid": git_id(&file.bytes)}),
    }
}

fn search(request: &Request, state: &State, out: &mut impl Write) -> io::Result<bool> {
    let wanted = decoded(request.query("search").unwrap_or_default()).to_lowercase();
    let repositories = lock(&state.repositories).clone();
    let found: Vec<Value> = repositories
        .iter()
        .filter(|(name, _)| name.to_lowercase().contains(&wanted))
        .map(|(name, r)| json!({"id": name, "downloads": 7, "likes": 1, "tags": ["gguf"], "gated": r.is_gated}))
        .collect();
    document(state, out, &[], &Value::Array(found))
}

fn resolve(
    request: &Request,
    name: &str,
    revision: &str,
    path: &str,
    state: &State,
    out: &mut impl Write,
) -> io::Result<bool> {
    let repository = match find(request, name, state, true) {
        Ok(repository) => repository,
        Err((status, code, message)) => return refuse(out, status, code, message),
    };
    if !has_revision(&repository, revision) {
        return refuse(out, "404 Not Found", "RevisionNotFound", "Invalid rev id");
    }
    let Some(file) = repository.files.get(path) else {
        return refuse(out, "404 Not Found", "EntryNotFound", "Entry not found");
    };
    let faults = lock(&state.faults).clone();
    let digest = faults.other_digest.clone().unwrap_or_else(|| file.sha256.clone());
    let mut headers = vec![
        ("x-repo-commit", faults.other_commit.clone().unwrap_or_else(|| repository.commit.clone())),
        ("x-linked-size", file.bytes.len().to_string()),
        ("x-linked-etag", format!("\"{digest}\"")),
    ];
    if faults.redirect_loop {
        headers.push(("location", request.target.clone()));
        return answer::write(out, "302 Found", &headers, b"");
    }
    if let Some(to) = &faults.redirect_to {
        headers.push(("location", to.clone()));
        return answer::write(out, "302 Found", &headers, b"");
    }
    if !file.is_lfs {
        return content::answer(request, file, &[headers[0].clone()], state, out);
    }
    let signature = state.signatures.fetch_add(1, Ordering::Relaxed);
    let path = encoded(path);
    headers.push(("location", format!("http://{}/{name}/{path}?signature={signature}.0", state.cdn)));
    answer::write(out, "302 Found", &headers, b"")
}

/// As it stands in an address.
fn encoded(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let byte = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    path.bytes().map(byte).collect()
}

/// `%2F` and its like.
pub(crate) fn decoded(text: &str) -> String {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, behind)) = rest.split_first() {
        let hex = || u8::from_str_radix(std::str::from_utf8(behind.get(..2)?).ok()?, 16).ok();
        match hex().filter(|_| *first == b'%') {
            Some(byte) => {
                out.push(byte);
                rest = &behind[2..];
            }
            None => {
                out.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
