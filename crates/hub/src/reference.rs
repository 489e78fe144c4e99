//! What a person types to name a model that may not be here.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::errors::quoted;
use crate::{HubError, ReferenceProblem, names};

/// Longer texts are no reference.
const TEXT_BYTES_MAX: usize = 2000;
const REVISION_BYTES_MAX: usize = 128;
const QUANTISATION_BYTES_MAX: usize = 64;
const HOST_BYTES_MAX: usize = 255;
/// Where Ollama keeps models without a namespace.
const LIBRARY: &str = "library/";
const DIGEST: &str = "sha256:";
const DOCKER_HOST: &str = "registry-1.docker.io";
/// Hosts that all mean the hub itself.
const HUB_HOSTS: [&str; 4] = ["hf.co", "huggingface.co", "www.huggingface.co", "hub"];

/// What a text means. Parsing looks at no disk: `org/repo` may be a path too, and whoever asks looks there
/// first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reference {
    /// A repository of the hub.
    Hub(HubReference),
    /// A model of Ollama's registry or of another one.
    Registry(RegistryReference),
    /// One file at an address.
    Url(String),
    /// A path on this machine.
    Path(PathBuf),
}

/// A repository of the hub, and what of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HubReference {
    /// `org/repo`.
    pub repo: String,
    /// A part of the names of GGUF files, for example `Q4_K_M`.
    pub quantisation: Option<String>,
    /// Branch, tag or commit; `None` is `main`.
    pub revision: Option<String>,
    /// One file by its path.
    pub file: Option<String>,
    /// Whether the text says by itself that it means the hub, as `hf.co/…` does and `org/repo` does not.
    pub is_explicit: bool,
}

/// A model of a registry that speaks OCI's protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegistryReference {
    /// The registry; `None` is Ollama's.
    pub host: Option<String>,
    /// For example `library/qwen3`.
    pub name: String,
    /// A tag, or a digest of a manifest.
    pub tag: String,
}

impl RegistryReference {
    /// What a file of it is called: `qwen3-8b`.
    pub(crate) fn file_stem(&self) -> String {
        let base = self.name.rsplit('/').next().unwrap_or(&self.name);
        match self.tag.as_str() {
            "latest" => base.to_owned(),
            tag => format!("{base}-{}", tag.replace(':', "-")),
        }
    }

    /// One name for a folder of all that comes from it.
    pub(crate) fn folder_name(&self, host: &str) -> String {
        format!("{host}/{}", self.name).replace(['/', ':'], "_")
    }
}

impl fmt::Display for RegistryReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.tag.starts_with(DIGEST) { '@' } else { ':' };
        match (&self.host, self.name.strip_prefix(LIBRARY)) {
            (Some(host), _) => write!(f, "oci://{host}/{}{separator}{}", self.name, self.tag),
            (None, Some(name)) if separator == ':' => write!(f, "{name}:{}", self.tag),
            (None, _) => write!(f, "ollama://{}{separator}{}", self.name, self.tag),
        }
    }
}

impl HubReference {
    /// The revision that is asked for.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// Whether it leaves open which model of the repository is meant.
    pub fn names_no_type(&self) -> bool {
        self.quantisation.is_none() && self.file.is_none()
    }
}

impl fmt::Display for HubReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            // The only form that names a file. A branch may have slashes.
            let revision = self.revision().replace('/', "%2F");
            return write!(f, "https://hf.co/{}/resolve/{revision}/{file}", self.repo);
        }
        write!(f, "hf.co/{}", self.repo)?;
        if let Some(quantisation) = &self.quantisation {
            write!(f, ":{quantisation}")?;
        }
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        Ok(())
    }
}

impl Reference {
    /// The whole of it, for comparing and for asking again: an address with its query, which may hold a
    /// secret. Display is for people.
    pub fn whole(&self) -> String {
        match self {
            Self::Url(url) => url.clone(),
            Self::Hub(_) | Self::Registry(_) | Self::Path(_) => self.to_string(),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub(hub) => hub.fmt(f),
            Self::Registry(registry) => registry.fmt(f),
            Self::Url(url) => f.write_str(&crate::address::without_query(url)),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for Reference {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        parse(text.trim()).map_err(|reason| HubError::Reference { text: quoted(text), reason })
    }
}

fn parse(text: &str) -> Result<Reference, ReferenceProblem> {
    if text.is_empty() || text.len() > TEXT_BYTES_MAX {
        return Err(ReferenceProblem::Length { bytes: text.len(), bytes_max: TEXT_BYTES_MAX });
    }
    if let Some(rest) = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")) {
        return parse_url(text, rest);
    }
    for (prefix, host) in [("ollama://", None), ("docker://", Some(DOCKER_HOST))] {
        if let Some(rest) = text.strip_prefix(prefix) {
            return parse_registry(host, rest).map(Reference::Registry);
        }
    }
    if let Some(rest) = text.strip_prefix("oci://") {
        let (host, name) = rest.split_once('/').ok_or(ReferenceProblem::NoRegistryName)?;
        return parse_registry(Some(host), name).map(Reference::Registry);
    }
    let host = text.split('/').next().unwrap_or_default();
    if HUB_HOSTS.contains(&host) {
        return parse_repo(text[host.len()..].trim_start_matches('/'), true).map(Reference::Hub);
    }
    if looks_like_path(text) {
        return Ok(Reference::Path(PathBuf::from(text)));
    }
    if text.contains("://") {
        return Err(ReferenceProblem::NoForm);
    }
    if text.matches('/').count() == 1 {
        return parse_repo(text, false).map(Reference::Hub);
    }
    if text.contains(':') {
        return parse_registry(None, text).map(Reference::Registry);
    }
    Err(ReferenceProblem::NoForm)
}

/// What can be nothing but a path: it begins like one, or has the ending of a file of weights.
fn looks_like_path(text: &str) -> bool {
    let is_drive = text.as_bytes().get(1) == Some(&b':') && text.as_bytes()[0].is_ascii_alphabetic();
    let begins = text.starts_with(['/', '.', '~', '\\']) || text.contains('\\') || is_drive;
    begins || text.ends_with('/') || [".gguf", ".safetensors", ".json"].iter().any(|e| text.ends_with(e))
}

fn parse_url(text: &str, rest: &str) -> Result<Reference, ReferenceProblem> {
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if text.starts_with("https://") && HUB_HOSTS.contains(&host) {
        return parse_repo_url(path).map(Reference::Hub);
    }
    if host.is_empty() || host.contains('@') {
        return Err(ReferenceProblem::AddressHost);
    }
    let file = names::file_name(path.split(['?', '#']).next().unwrap_or_default());
    if !file.ends_with(".gguf") {
        return Err(ReferenceProblem::AddressFile);
    }
    if let Some(refusal) = names::refusal(file) {
        return Err(ReferenceProblem::File(refusal));
    }
    Ok(Reference::Url(text.to_owned()))
}

/// `org/repo`, or `org/repo/resolve/REVISION/FILE` and the same with `blob` and `tree`, as browsers show
/// them.
fn parse_repo_url(path: &str) -> Result<HubReference, ReferenceProblem> {
    let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let parts: Vec<&str> = path.splitn(5, '/').collect();
    let [org, repo, rest @ ..] = parts.as_slice() else {
        return parse_repo(path, true);
    };
    let mut hub = parse_repo(&format!("{org}/{repo}"), true)?;
    let revision_of = |text: &str| checked_revision(&text.replace("%2F", "/").replace("%2f", "/"));
    match rest {
        [] => {}
        ["tree" | "blob" | "resolve", revision] => hub.revision = Some(revision_of(revision)?),
        ["blob" | "resolve", revision, file] => {
            hub.revision = Some(revision_of(revision)?);
            if let Some(refusal) = names::refusal(file) {
                return Err(ReferenceProblem::File(refusal));
            }
            hub.file = Some((*file).to_owned());
        }
        _ => return Err(ReferenceProblem::OtherPage),
    }
    Ok(hub)
}

fn parse_repo(text: &str, is_explicit: bool) -> Result<HubReference, ReferenceProblem> {
    let (text, revision) = match text.split_once('@') {
        Some((text, revision)) => (text, Some(checked_revision(revision)?)),
        None => (text, None),
    };
    let (name, quantisation) = match text.split_once(':') {
        Some((name, quantisation)) => (name, Some(checked_quantisation(quantisation)?)),
        None => (text, None),
    };
    let parts: Vec<&str> = name.split('/').collect();
    let [org, repo] = parts.as_slice() else {
        return Err(ReferenceProblem::RepositoryParts { parts: parts.len() });
    };
    if let Some(refusal) = [org, repo].into_iter().find_map(|part| names::repo_part_refusal(part)) {
        return Err(ReferenceProblem::Repository { name: quoted(name), refusal });
    }
    Ok(HubReference { repo: name.to_owned(), quantisation, revision, file: None, is_explicit })
}

/// `NAME`, `NAME:TAG` or `NAME@sha256:…`, for Ollama without a namespace too.
fn parse_registry(host: Option<&str>, text: &str) -> Result<RegistryReference, ReferenceProblem> {
    if let Some(host) = host {
        let is_name = host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.:".contains(&b));
        let is_host = host.contains(['.', ':']) || host == "localhost";
        if !is_name || !is_host || host.len() > HOST_BYTES_MAX || host.starts_with(['.', ':']) {
            return Err(ReferenceProblem::RegistryHost(quoted(host)));
        }
    }
    let (name, tag) = match (text.split_once('@'), text.rsplit_once(':')) {
        (Some((name, digest)), _) => (name, checked_digest(digest)?),
        (None, Some((name, tag))) => (name, checked_tag(tag)?),
        (None, None) => (text, "latest".to_owned()),
    };
    let is_part = |part: &str| {
        let begins = part.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        begins && part.len() <= 96 && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    if name.len() > REVISION_BYTES_MAX || !name.split('/').all(is_part) || name.contains("..") {
        return Err(ReferenceProblem::RegistryName(quoted(name)));
    }
    let name = match (host, name.contains('/')) {
        (None, false) => format!("{LIBRARY}{name}"),
        _ => name.to_owned(),
    };
    Ok(RegistryReference { host: host.map(str::to_ascii_lowercase), name, tag })
}

fn checked_tag(tag: &str) -> Result<String, ReferenceProblem> {
    let begins = tag.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    let allowed = tag.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    match begins && allowed && tag.len() <= REVISION_BYTES_MAX && !tag.contains("..") && !tag.ends_with('.') {
        true => Ok(tag.to_owned()),
        false => Err(ReferenceProblem::Tag(quoted(tag))),
    }
}

fn checked_digest(digest: &str) -> Result<String, ReferenceProblem> {
    match digest.strip_prefix(DIGEST).is_some_and(|hex| is_hex(hex, 64)) {
        true => Ok(digest.to_owned()),
        false => Err(ReferenceProblem::Digest(quoted(digest))),
    }
}

/// Branches may have slashes in their names; nothing in one may lead elsewhere in an address.
fn checked_revision(text: &str) -> Result<String, ReferenceProblem> {
    let allowed = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b));
    if text.is_empty()
        || text.len() > REVISION_BYTES_MAX
        || !allowed
        || text.split('/').any(|p| p.starts_with('.') || p.is_empty())
    {
        return Err(ReferenceProblem::Revision(quoted(text)));
    }
    Ok(text.to_owned())
}

fn checked_quantisation(text: &str) -> Result<String, ReferenceProblem> {
    let allowed = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if text.is_empty() || text.len() > QUANTISATION_BYTES_MAX || !allowed {
        return Err(ReferenceProblem::Quantisation(quoted(text)));
    }
    Ok(text.to_owned())
}

pub(crate) fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_are_told_apart_beyond_what_is_shown_of_them() {
        let path = "p".repeat(130);
        let whole = |end: &str| {
            let text = format!("https://hub.example/{path}/{end}");
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.whole(), text);
            assert_eq!(text.parse::<Reference>().unwrap().whole().parse::<Reference>().unwrap(), reference);
            reference.whole()
        };
        assert_ne!(whole("m-Q4_K_M.gguf"), whole("m-Q5_K_M.gguf"));
        assert_ne!(whole("m.gguf?a=1"), whole("m.gguf?a=2"));
    }

    fn check(text: &str) -> String {
        match text.parse::<Reference>() {
            Ok(Reference::Hub(h)) => format!("hub {h} file={:?} explicit={}", h.file, h.is_explicit),
            Ok(Reference::Registry(r)) => format!("registry {r} name={}", r.name),
            Ok(Reference::Url(u)) => format!("url {u}"),
            Ok(Reference::Path(p)) => format!("path {}", p.display()),
            Err(error) => format!("error {error}"),
        }
    }

    #[test]
    fn every_form_of_a_reference_is_understood() {
        let cases = [
            ("hf.co/Qwen/Qwen3-0.6B", "hub hf.co/Qwen/Qwen3-0.6B file=None explicit=true"),
            ("hf.co/a/b-GGUF:Q4_K_M", "hub hf.co/a/b-GGUF:Q4_K_M file=None explicit=true"),
            ("hf.co/a/b:Q8_0@refs/pr/1", "hub hf.co/a/b:Q8_0@refs/pr/1 file=None explicit=true"),
            ("huggingface.co/a/b@main", "hub hf.co/a/b@main file=None explicit=true"),
            ("a/b", "hub hf.co/a/b file=None explicit=false"),
            ("a/b:q4_0", "hub hf.co/a/b:q4_0 file=None explicit=false"),
            ("https://huggingface.co/a/b/tree/main", "hub hf.co/a/b@main file=None explicit=true"),
            (
                "https://huggingface.co/a/b/resolve/main/x/c.gguf?download=true",
                "hub https://hf.co/a/b/resolve/main/x/c.gguf file=Some(\"x/c.gguf\") explicit=true",
            ),
            (
                "https://hf.co/a/b/blob/refs%2Fpr%2F1/c.gguf",
                "hub https://hf.co/a/b/resolve/refs%2Fpr%2F1/c.gguf file=Some(\"c.gguf\") explicit=true",
            ),
            ("https://example.org/x/m.gguf?sig=1", "url https://example.org/x/m.gguf?sig=1"),
            ("qwen3:8b", "registry qwen3:8b name=library/qwen3"),
            ("ollama://me/x", "registry ollama://me/x:latest name=me/x"),
            ("oci://ghcr.io/a/b/c:v1", "registry oci://ghcr.io/a/b/c:v1 name=a/b/c"),
            ("oci://127.0.0.1:5000/x:y", "registry oci://127.0.0.1:5000/x:y name=x"),
            (
                "docker://ai/smollm2:360M-Q4_K_M",
                "registry oci://registry-1.docker.io/ai/smollm2:360M-Q4_K_M name=ai/smollm2",
            ),
            ("./a/b", "path ./a/b"),
            ("models/m.gguf", "path models/m.gguf"),
            ("/a", "path /a"),
            ("C:\\m", "path C:\\m"),
        ];
        for (text, expected) in cases {
            assert_eq!(check(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_reference_says_what_would_be_one() {
        for (text, part) in [
            ("qwen3:.8b", "cannot be a tag"),
            ("oci://registry/x", "cannot be the host of a registry"),
            ("oci://ghcr.io", "oci://HOST/NAME:TAG"),
            ("ollama://a/../b", "cannot be a name of a registry's model"),
            ("oci://ghcr.io/a@sha256:1", "cannot be a digest"),
            ("hf.co/a", "two names; this has 1"),
            ("hf.co/a/b/c", "two names; this has 3"),
            ("hf.co/../b", "not a reference"),
            ("hf.co/a/b@..", "cannot be a revision"),
            ("hf.co/a/b:", "cannot be a quantisation"),
            ("https://example.org/x.bin", "must end in the name of a .gguf file"),
            ("https://u:p@example.org/x.gguf", "no user name"),
            ("https://huggingface.co/a/b/resolve/main/x.py", "only GGUF"),
            ("llama", "expected hf.co/ORG/REPO"),
            ("hf://a/b", "expected hf.co/ORG/REPO"),
            ("file:///m", "expected hf.co/ORG/REPO"),
        ] {
            let found = check(text);
            assert!(found.starts_with("error") && found.contains(part), "{text}: {found}");
        }
    }

    proptest! {
        /// Whatever is typed, no repository has a name that leads out of a folder or is obeyed by a terminal.
        #[test]
        fn no_text_makes_a_repository_with_a_dangerous_name(text in "\\PC{0,60}|(hf.co/)?[a-z./:@\\-]{0,30}|https://hf.co/a/b/(blob|tree|resolve)/[a-z%2F./@:\\-]{0,20}(.gguf)?") {
            if let Ok(Reference::Hub(hub)) = text.parse::<Reference>() {
                let again = hub.to_string().parse::<Reference>();
                let same = matches!(&again, Ok(Reference::Hub(h)) if h.to_string() == hub.to_string() && h.file == hub.file);
                prop_assert!(same, "{} is understood as {:?}", hub, again);
                prop_assert!(hub.repo.split('/').all(|part| names::repo_part_refusal(part).is_none()));
                prop_assert!(!hub.revision().contains(".."));
            }
        }
    }
}
