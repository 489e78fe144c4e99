//! A registry by OCI's protocol on the hub's host: manifests, blobs behind redirects, and the token dance.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::json;

use crate::request::Request;
use crate::{File, Repository, State, answer, lock, sha256};

/// Blobs lie in a repository of this name, so that the other host serves them as it serves files.
const BLOBS: &str = "registry/blobs";

/// One layer of a model.
#[derive(Clone, Debug)]
pub struct Layer {
    /// What it is.
    pub media_type: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Layer {
    /// A layer of this type.
    pub fn new(media_type: &str, bytes: &[u8]) -> Self {
        Self { media_type: media_type.to_owned(), bytes: bytes.to_vec() }
    }
}

pub(crate) fn put(state: &State, name: &str, tag: &str, layers: &[Layer]) {
    let listed: Vec<_> = layers
        .iter()
        .map(|l| json!({"mediaType": l.media_type, "digest": format!("sha256:{}", sha256(&l.bytes)), "size": l.bytes.len()}))
        .collect();
    let manifest = json!({"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json", "layers": listed});
    lock(&state.manifests).insert(format!("{name}:{tag}"), manifest.to_string().into_bytes());
    let mut repositories = lock(&state.repositories);
    let blobs = repositories.entry(BLOBS.to_owned()).or_insert_with(|| Repository::new(&[]));
    for layer in layers {
        let digest = sha256(&layer.bytes);
        let file = File { bytes: Arc::new(layer.bytes.clone()), is_lfs: true, sha256: digest.clone() };
        blobs.files.insert(digest, file);
    }
}

/// `/token?service=…&scope=…`: a token that is good for as many requests as the switch says.
pub(crate) fn give_token(request: &Request, state: &State, out: &mut impl Write) -> io::Result<bool> {
    let uses = lock(&state.faults).registry_token_uses.unwrap_or(u64::MAX);
    if request.query("service") != Some("mock") || request.query("scope").is_none() {
        return answer::write(out, "400 Bad Request", &[], b"{}");
    }
    let mut tokens = lock(&state.registry_tokens);
    tokens.push(uses);
    let token = format!("registry-token-{}", tokens.len() - 1);
    answer::write(out, "200 OK", &[], json!({"token": token, "expires_in": 60}).to_string().as_bytes())
}

/// `NAME/manifests/TAG` and `NAME/blobs/sha256:DIGEST`.
pub(crate) fn answer(request: &Request, rest: &str, state: &State, out: &mut impl Write) -> io::Result<bool> {
    let found = rest.rsplit_once("/manifests/").map(|(name, tag)| (name, "manifests", tag));
    let found = found.or_else(|| rest.rsplit_once("/blobs/").map(|(name, digest)| (name, "blobs", digest)));
    let Some((name, what, which)) = found else {
        return answer::write(out, "404 Not Found", &[], b"{}");
    };
    if !is_allowed(request, state) {
        let realm = lock(&state.faults).registry_realm.clone();
        let realm = realm.unwrap_or_else(|| format!("http://{}/token", state.hub));
        let challenge = format!("Bearer realm=\"{realm}\",service=\"mock\",scope=\"repository:{name}:pull\"");
        return answer::write(out, "401 Unauthorized", &[("www-authenticate", challenge)], b"{}");
    }
    if what == "manifests" {
        let manifest = lock(&state.manifests).get(&format!("{name}:{which}")).cloned();
        return match manifest {
            Some(manifest) if request.header("accept").is_some_and(|a| a.contains("manifest.v2+json")) => {
                answer::write(out, "200 OK", &[], &manifest)
            }
            Some(_) => answer::write(out, "406 Not Acceptable", &[], b"{}"),
            None => {
                answer::write(out, "404 Not Found", &[], b"{\"errors\":[{\"code\":\"MANIFEST_UNKNOWN\"}]}")
            }
        };
    }
    let digest = which.trim_start_matches("sha256:");
    let is_there = lock(&state.repositories).get(BLOBS).is_some_and(|r| r.files.contains_key(digest));
    if !is_there {
        return answer::write(out, "404 Not Found", &[], b"{}");
    }
    let signature = state.signatures.fetch_add(1, Ordering::Relaxed);
    let location = format!("http://{}/{BLOBS}/{digest}?signature={signature}.0", state.cdn);
    answer::write(out, "307 Temporary Redirect", &[("location", location)], b"")
}

/// Whether nothing is asked for, or a token that is still good. Each use counts.
fn is_allowed(request: &Request, state: &State) -> bool {
    if lock(&state.faults).registry_token_uses.is_none() {
        return true;
    }
    let number = request.header("authorization").and_then(|a| a.strip_prefix("Bearer registry-token-"));
    let mut tokens = lock(&state.registry_tokens);
    let left = number.and_then(|n| n.parse::<usize>().ok()).and_then(|n| tokens.get_mut(n));
    match left {
        Some(left) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    }
}
