//! Models of OCI registries: Ollama's, Docker's and others that speak the distribution protocol. A manifest
//! names layers by digest and size; one of them is a GGUF file.
//!
//! Source: OCI distribution specification 1.1; Docker's token authentication. Media types are those of Ollama
//! and of Docker Model Runner.

use std::collections::BTreeSet;
use std::path::PathBuf;

use exo_types::hex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use ureq::http::Uri;

use crate::client::HubResponse;
use crate::errors::quoted;
use crate::fetch_plan::PlannedFile;
use crate::problems::{AnswerProblem, LAYER_BYTES_MAX, LAYERS_MAX};
use crate::reference::is_hex;
use crate::{
    Cancel, ChosenVariant, Client, FetchPlan, HubError, Licence, ReferenceProblem, RegistryReference,
    RepoFile, Variant, address,
};
use crate::{answers, names, redirect};

/// Layers that are GGUF files.
const MODEL_TYPES: [&str; 3] = [
    "application/vnd.ollama.image.model",
    "application/vnd.docker.ai.gguf.v3",
    "application/vnd.docker.ai.model.file",
];
/// Layers that are texts of licences.
const LICENCE_TYPES: [&str; 2] =
    ["application/vnd.ollama.image.license", "application/vnd.docker.ai.license"];
/// Weights in a private layout, and what changes a model's weights.
const REFUSED: [(&str, &str); 2] = [
    (
        "application/vnd.ollama.image.tensor",
        "its weights are in one layer for each tensor, which only Ollama's own engine reads; take a GGUF repository, as in hf.co/ORG/REPO",
    ),
    ("application/vnd.ollama.image.adapter", "it is an adapter to another model, which exo does not apply"),
];
const ACCEPT: &str =
    "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json";
const LICENCE_BYTES_MAX: u64 = 1 << 20;
/// Of a token for reading: some registries sign kilobytes.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// One layer of a manifest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layer {
    media_type: String,
    sha256: String,
    size: u64,
    title: Option<String>,
}

/// What a challenge asks for: where a token is given out, and for what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Challenge {
    pub(crate) realm: String,
    pub(crate) service: Option<String>,
    pub(crate) scope: Option<String>,
}

/// What a reference to a registry means now.
pub(crate) fn resolve(
    client: &Client,
    reference: &RegistryReference,
    cancel: &Cancel,
) -> Result<FetchPlan, HubError> {
    client.check_online(|| format!("`{reference}`"))?;
    let base = base(client, reference)?;
    let attempt = format!("read the manifest of {reference}");
    let at = |path: String| -> Result<Uri, HubError> {
        let text = format!("{}/v2/{}{path}", base.trim_end_matches('/'), reference.name);
        let refused = || HubError::Reference { text: quoted(&text), reason: ReferenceProblem::NoAddress };
        text.parse().map_err(|_| refused())
    };
    let uri = at(format!("/manifests/{}", reference.tag))?;
    let bytes = client.manifest(&uri, &attempt, &reference.to_string(), cancel)?;
    let layers = check_digest(&bytes, &reference.tag).and_then(|()| parse_manifest(&bytes));
    let layers = layers.map_err(|problem| HubError::Answer {
        host: address::host(&uri),
        attempt: attempt.clone(),
        problem: problem.to_string(),
    })?;
    let none = |reason: &str| HubError::NoModel { repo: reference.to_string(), reason: reason.to_owned() };
    if let Some((_, reason)) = REFUSED.iter().find(|(kind, _)| layers.iter().any(|l| l.media_type == *kind)) {
        return Err(none(reason));
    }
    let models: Vec<&Layer> = layers.iter().filter(|l| is_model(l)).collect();
    let file = |layer: &Layer, name: String| -> Result<PlannedFile, HubError> {
        let (size, sha256) = (layer.size, Some(layer.sha256.clone()));
        let uri = at(format!("/blobs/sha256:{}", layer.sha256))?;
        Ok(PlannedFile { below: names::relative(&name), name, size, sha256, git_id: None, uri })
    };
    let mut files = match models.as_slice() {
        [] => return Err(none("no layer of it is a GGUF file")),
        [only] => vec![file(only, format!("{}.gguf", reference.file_stem()))?],
        several => several
            .iter()
            .map(|layer| {
                match layer.title.as_ref().filter(|t| names::refusal(t).is_none() && t.ends_with(".gguf")) {
                    Some(title) => file(layer, names::file_name(title).to_owned()),
                    None => Err(none("several of its layers are GGUF files, and one has no usable name")),
                }
            })
            .collect::<Result<Vec<_>, _>>()?,
    };
    files.sort_by(|a, b| a.name.cmp(&b.name));
    // Two names that differ in case are one file on many disks.
    let mut seen = BTreeSet::new();
    if !files.iter().all(|file| seen.insert(file.name.to_lowercase())) {
        return Err(none("two of its layers have the same name"));
    }
    let mut licence = Licence::default();
    let text = layers.iter().find(|l| LICENCE_TYPES.contains(&&*l.media_type) && l.size <= LICENCE_BYTES_MAX);
    if let Some(layer) = text {
        let planned = file(layer, "LICENSE".to_owned())?;
        let bytes = client.part(&planned, None, (0, planned.size), cancel)?;
        licence = Licence::of_text(&String::from_utf8_lossy(&bytes));
        files.push(planned);
    }
    let repo_files = files.iter().map(|f| RepoFile {
        path: f.name.clone(),
        size: f.size,
        sha256: f.sha256.clone(),
        git_id: None,
    });
    let variant = Variant {
        label: reference.tag.clone(),
        files: repo_files.filter(|f| f.path.ends_with(".gguf")).collect(),
        is_supported: true,
        problem: None,
    };
    let commit = blake3::hash(&bytes).to_hex()[..40].to_owned();
    let host = address::host(&uri);
    let folder = PathBuf::from(names::REGISTRIES)
        .join(reference.folder_name(&host))
        .join(&commit)
        .join(reference.tag.replace(':', "-"));
    Ok(FetchPlan {
        reference: reference.to_string(),
        repo: format!("{host}/{}", reference.name),
        commit: None,
        choice: ChosenVariant { variant, reason: "the layer that is a GGUF file".to_owned() },
        licence,
        files,
        folder,
    })
}

/// What is named by a digest is that, whoever sends it.
fn check_digest(manifest: &[u8], tag: &str) -> Result<(), AnswerProblem> {
    let Some(expected) = tag.strip_prefix("sha256:") else { return Ok(()) };
    let found = hex(&Sha256::digest(manifest));
    match found.eq_ignore_ascii_case(expected) {
        true => Ok(()),
        false => Err(AnswerProblem::ManifestDigest { found, expected: expected.to_owned() }),
    }
}

fn base(client: &Client, reference: &RegistryReference) -> Result<String, HubError> {
    let Some(host) = &reference.host else { return Ok(client.settings().ollama_registry.to_string()) };
    let https: Uri = format!("https://{host}").parse().map_err(|_| HubError::Reference {
        text: quoted(host),
        reason: ReferenceProblem::RegistryHost(quoted(host)),
    })?;
    // As Docker does: a registry of this machine has no certificate.
    Ok(if address::is_loopback(&https) { format!("http://{host}") } else { format!("https://{host}") })
}

fn is_model(layer: &Layer) -> bool {
    let is_titled = layer.title.as_ref().is_some_and(|t| t.ends_with(".gguf"));
    MODEL_TYPES.contains(&&*layer.media_type) || is_titled
}

/// The layers of a manifest.
pub(crate) fn parse_manifest(bytes: &[u8]) -> Result<Vec<Layer>, AnswerProblem> {
    let value: Value = serde_json::from_slice(bytes).map_err(AnswerProblem::Json)?;
    let layers = value.get("layers").and_then(Value::as_array).ok_or_else(|| {
        match value.get("manifests").is_some() {
            true => AnswerProblem::IndexOfManifests,
            false => AnswerProblem::NoKey("layers"),
        }
    })?;
    if layers.len() > LAYERS_MAX {
        return Err(AnswerProblem::TooManyLayers(layers.len()));
    }
    layers.iter().map(parse_layer).collect()
}

fn parse_layer(value: &Value) -> Result<Layer, AnswerProblem> {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let digest = text("digest").ok_or(AnswerProblem::NoDigest)?;
    let sha256 = digest.strip_prefix("sha256:").filter(|hex| is_hex(hex, 64));
    let sha256 = sha256.ok_or_else(|| AnswerProblem::LayerDigest(quoted(digest)))?;
    let size = value
        .get("size")
        .and_then(Value::as_u64)
        .ok_or_else(|| AnswerProblem::NoLayerSize(sha256.to_owned()))?;
    if size > LAYER_BYTES_MAX {
        return Err(AnswerProblem::LayerTooLarge { sha256: sha256.to_owned(), size });
    }
    let title = value
        .get("annotations")
        .and_then(|a| a.get("org.opencontainers.image.title").or(a.get("org.cncf.model.filepath"))?.as_str());
    Ok(Layer {
        media_type: text("mediaType").unwrap_or_default().to_owned(),
        sha256: sha256.to_ascii_lowercase(),
        size,
        title: title.map(str::to_owned),
    })
}

/// `Bearer realm="…",service="…",scope="…"`
pub(crate) fn parse_challenge(text: &str) -> Option<Challenge> {
    let (scheme, mut rest) = text.trim().split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service, mut scope) = (None, None, None);
    while let Some((name, behind)) = rest.split_once('=') {
        let (value, next) = match behind.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => behind.split_once(',').unwrap_or((behind, "")),
        };
        match name.trim().trim_start_matches(',').trim() {
            "realm" => realm = Some(value.to_owned()),
            "service" => service = Some(value.to_owned()),
            "scope" => scope = Some(value.to_owned()),
            _ => {}
        }
        rest = next.trim_start_matches([',', ' ']);
    }
    Some(Challenge { realm: realm?, service, scope })
}

/// The token in an answer of a realm.
pub(crate) fn parse_token(bytes: &[u8]) -> Result<String, AnswerProblem> {
    let value: Value = serde_json::from_slice(bytes).map_err(AnswerProblem::Json)?;
    let token = value.get("token").or(value.get("access_token")).and_then(Value::as_str);
    let token = token.ok_or(AnswerProblem::NoToken)?;
    let fits =
        !token.is_empty() && token.len() <= TOKEN_BYTES_MAX && token.bytes().all(|b| b.is_ascii_graphic());
    if fits { Ok(token.to_owned()) } else { Err(AnswerProblem::BadToken) }
}

impl Client {
    /// A manifest, with a token if the registry asks for one.
    fn manifest(&self, uri: &Uri, attempt: &str, what: &str, cancel: &Cancel) -> Result<Vec<u8>, HubError> {
        let mut challenges = 0;
        loop {
            let answer = self.get_again(uri, None, Some(ACCEPT), attempt, cancel)?;
            let host = address::host(&answer.uri);
            match answer.status {
                200 => return Ok(self.read_document(answer, attempt, cancel)?.bytes),
                401 if challenges < 2 && self.answer_challenge(&answer, cancel)? => challenges += 1,
                401 | 403 => {
                    return Err(HubError::NotFound {
                        host,
                        what: format!("{what} that is read without signing in"),
                    });
                }
                404 => return Err(HubError::NotFound { host, what: what.to_owned() }),
                _ => return Err(self.refusal(answer, attempt, None)),
            }
        }
    }

    /// Gets the token that a 401 of a registry asks for, and keeps it for that registry alone; false if it
    /// asks for none.
    pub(crate) fn answer_challenge(&self, answer: &HubResponse, cancel: &Cancel) -> Result<bool, HubError> {
        let challenge = answers::header(&answer.headers, "www-authenticate").and_then(parse_challenge);
        let Some(Challenge { realm, service, scope }) = challenge else { return Ok(false) };
        // Where a token is given out is the registry's word, like a redirect, and follows the same rules.
        let realm = redirect::target(&answer.uri, &realm, self.is_public(&answer.uri))?;
        let mut query = String::new();
        for (name, value) in [("service", service), ("scope", scope)] {
            if let Some(value) = value {
                let separator = if realm.query().is_none() && query.is_empty() { '?' } else { '&' };
                query.push_str(&format!("{separator}{name}={}", crate::repository::encoded(&value)));
            }
        }
        let attempt = format!("ask for a token for {}", address::host(&answer.uri));
        let uri: Uri = format!("{realm}{query}").parse().map_err(|_| HubError::Answer {
            host: address::host(&answer.uri),
            attempt: attempt.clone(),
            problem: "the address where it gives out tokens is invalid".to_owned(),
        })?;
        let token = self.document(&uri, &attempt, None, cancel)?.parsed(&attempt, parse_token)?;
        self.keep_registry_token(&answer.uri, token);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_says_where_a_token_is_given_out() {
        let check = |text: &str| parse_challenge(text).map(|c| (c.realm, c.service, c.scope));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            check(
                r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull""#
            ),
            Some((
                "https://auth.docker.io/token".to_owned(),
                some("registry.docker.io"),
                some("repository:a/b:pull")
            ))
        );
        assert_eq!(
            check(r#"bearer scope="x,y", realm="https://a/t""#),
            Some(("https://a/t".to_owned(), None, some("x,y")))
        );
        assert_eq!(check(r#"Basic realm="x""#), None);
        assert_eq!(check(r#"Bearer realm="x"#), None);
        assert_eq!(check("Bearer"), None);
    }

    #[test]
    fn a_manifest_that_cannot_be_says_what_is_wrong() {
        let check = |text: &str| {
            parse_manifest(text.as_bytes()).map_or_else(|e| e.to_string(), |l| format!("{} layers", l.len()))
        };
        let digest = "a".repeat(64);
        assert_eq!(check(&format!(r#"{{"layers":[{{"digest":"sha256:{digest}","size":5}}]}}"#)), "1 layers");
        assert!(check("<html>").contains("not JSON"));
        assert!(check("{}").contains("no `layers`"));
        assert!(check(r#"{"manifests":[]}"#).contains("an index of manifests"));
        assert!(check(r#"{"layers":[{"size":5}]}"#).contains("no `digest`"));
        assert!(check(r#"{"layers":[{"digest":"sha256:../../x","size":5}]}"#).contains("expected sha256"));
        assert!(check(&format!(r#"{{"layers":[{{"digest":"sha256:{digest}"}}]}}"#)).contains("no `size`"));
        let large = format!(r#"{{"layers":[{{"digest":"sha256:{digest}","size":99999999999999}}]}}"#);
        assert!(check(&large).contains("at most"));
        assert!(parse_token(br#"{"token":"two words"}"#).is_err() && parse_token(b"{}").is_err());
        assert_eq!(parse_token(br#"{"access_token":"t"}"#).unwrap(), "t");
    }
}
