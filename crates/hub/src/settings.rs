//! What the environment says: which hub, the token for it, offline or not.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::http::Uri;

use crate::token::{NO_TOKEN, TOKEN_BYTES_MAX, Token, no_token};
use crate::{HubError, address, login};

const ENDPOINT: &str = "https://huggingface.co";
const OLLAMA_REGISTRY: &str = "https://registry.ollama.ai";
/// A range that gives no byte for so long is asked for again.
const STALL: Duration = Duration::from_secs(5);

/// How a hub is asked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The hub, or a mirror of it.
    pub endpoint: Uri,
    /// Ollama's registry, or a mirror of it.
    pub ollama_registry: Uri,
    /// For gated and private repositories.
    pub token: Option<Token>,
    /// Why nothing is fetched, if nothing is.
    pub offline: Option<&'static str>,
    /// Through which proxy; hosts of this machine are reached without.
    pub proxy: Option<ureq::Proxy>,
    /// How long a range may give no byte.
    pub stall: Duration,
}

impl Settings {
    /// For this hub, without token and proxy.
    pub fn of(endpoint: &str) -> Result<Self, HubError> {
        Ok(Self {
            endpoint: parse_endpoint("the hub's address", endpoint)?,
            ollama_registry: parse_endpoint("the address of Ollama's registry", OLLAMA_REGISTRY)?,
            token: None,
            offline: None,
            proxy: None,
            stall: STALL,
        })
    }

    /// From the variables that the hub's own tools read: `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`,
    /// `HF_HOME`, `HF_HUB_OFFLINE`, and `EXO_OFFLINE`. The proxy is that of `HTTPS_PROXY` and its like. A
    /// token comes from the environment, else from what `exo login hub` keeps in `data_dir`, else from the
    /// file of the hub's own tools.
    pub fn from_env(
        home: &Path,
        data_dir: &Path,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, HubError> {
        let set = |name: &str| env(name).filter(|value| !value.trim().is_empty());
        let endpoint = match set("HF_ENDPOINT") {
            Some(text) => parse_endpoint("HF_ENDPOINT", &text)?,
            None => parse_endpoint("the hub's address", ENDPOINT)?,
        };
        let offline = [("EXO_OFFLINE", "EXO_OFFLINE is set"), ("HF_HUB_OFFLINE", "HF_HUB_OFFLINE is set")]
            .into_iter()
            .find_map(|(name, why)| set(name).filter(|v| is_true(v)).map(|_| why));
        let token = match token_of(&set)? {
            Some(token) => Some(token),
            None => login::kept(data_dir, &endpoint).or_else(|| token_of_tools(home, &set)),
        };
        let ollama_registry = match set("EXO_OLLAMA_REGISTRY") {
            Some(text) => parse_endpoint("EXO_OLLAMA_REGISTRY", &text)?,
            None => parse_endpoint("the address of Ollama's registry", OLLAMA_REGISTRY)?,
        };
        Ok(Self {
            endpoint,
            ollama_registry,
            token,
            offline,
            proxy: ureq::Proxy::try_from_env(),
            stall: STALL,
        })
    }

    /// The same for another hub, or with another token. What the environment has goes to no hub but the one
    /// that it is for.
    pub fn aimed(mut self, endpoint: Option<&str>, token: Option<&str>) -> Result<Self, HubError> {
        if let Some(text) = endpoint {
            let endpoint = parse_endpoint("the hub's address", text)?;
            if address::origin(&endpoint) != address::origin(&self.endpoint) {
                self.token = None;
            }
            self.endpoint = endpoint;
        }
        if let Some(text) = token {
            self.token = Some(Token::new(text).ok_or_else(no_token)?);
        }
        Ok(self)
    }

    /// Keeps a token for this hub in the data folder, in place of the one before.
    pub fn keep_token(&self, data_dir: &Path, text: &str) -> Result<(), HubError> {
        let token = Token::new(text).ok_or_else(no_token)?;
        if !self.carries_token() {
            let reason = format!(
                "`{}` is reached without encryption, and a token goes so to this machine only",
                self.endpoint
            );
            return Err(HubError::Setting { name: "the hub's address".to_owned(), reason });
        }
        login::keep(data_dir, &self.endpoint, &token)
    }

    /// The same with another registry in Ollama's place.
    pub fn with_ollama_registry(mut self, address: &str) -> Result<Self, HubError> {
        self.ollama_registry = parse_endpoint("the address of Ollama's registry", address)?;
        Ok(self)
    }

    /// Whether a request to this address carries the token: to the hub alone, and readable on the way by no
    /// one.
    pub(crate) fn token_for(&self, uri: &Uri) -> Option<&Token> {
        let is_hub =
            address::origin(uri).is_some() && address::origin(uri) == address::origin(&self.endpoint);
        self.token.as_ref().filter(|_| is_hub && self.carries_token())
    }

    /// Whether a token may go to the endpoint at all.
    pub(crate) fn carries_token(&self) -> bool {
        self.endpoint.scheme_str() == Some("https") || address::is_loopback(&self.endpoint)
    }
}

fn is_true(text: &str) -> bool {
    matches!(text.trim().to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
}

fn parse_endpoint(name: &str, text: &str) -> Result<Uri, HubError> {
    let refuse = |reason: &str| HubError::Setting {
        name: name.to_owned(),
        reason: format!("`{}` {reason}", crate::errors::quoted(text)),
    };
    let uri: Uri = text.trim().trim_end_matches('/').parse().map_err(|_| refuse("is not an address"))?;
    let is_web = matches!(uri.scheme_str(), Some("https" | "http"));
    if !is_web || uri.host().is_none_or(str::is_empty) || uri.query().is_some() {
        return Err(refuse("is not an address like https://huggingface.co"));
    }
    if uri.authority().is_some_and(|a| a.as_str().contains('@')) {
        return Err(refuse("has a user name in it"));
    }
    Ok(uri)
}

/// From the environment.
fn token_of(set: &dyn Fn(&str) -> Option<String>) -> Result<Option<Token>, HubError> {
    let found = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"].into_iter().find_map(|name| Some((name, set(name)?)));
    let Some((name, text)) = found else { return Ok(None) };
    let refused = HubError::Setting { name: name.to_owned(), reason: NO_TOKEN.to_owned() };
    Token::new(&text).map(Some).ok_or(refused)
}

/// From the file that the hub's own login writes.
fn token_of_tools(home: &Path, set: &dyn Fn(&str) -> Option<String>) -> Option<Token> {
    let cache =
        || set("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), PathBuf::from).join("huggingface");
    let path = set("HF_TOKEN_PATH")
        .map(PathBuf::from)
        .unwrap_or_else(|| set("HF_HOME").map_or_else(cache, PathBuf::from).join("token"));
    let text = match exo_stdx::read_bounded(&path, TOKEN_BYTES_MAX as u64 + 2) {
        Ok(Some(bytes)) => String::from_utf8(bytes).unwrap_or_default(),
        Ok(None) => return None,
        // Somebody else's file, or a folder: public models need none.
        Err(error) => {
            tracing::debug!(%error, "the hub's token file cannot be read");
            return None;
        }
    };
    Token::new(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(vars: &[(&str, &str)]) -> Result<Settings, HubError> {
        let env = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        Settings::from_env(Path::new("/nowhere"), Path::new("/nowhere"), &env)
    }

    #[test]
    fn a_token_is_for_the_hub_alone_and_is_never_printed() {
        let settings = settings(&[("HF_TOKEN", "hf_secret")]).unwrap();
        let carries = |uri: &str| settings.token_for(&uri.parse().unwrap()).is_some();
        assert!(carries("https://huggingface.co/api/models/a/b") && carries("https://HUGGINGFACE.co:443/"));
        for other in [
            "https://cdn.huggingface.co/x",
            "http://huggingface.co/x",
            "https://huggingface.co:444/",
            "https://evil.org/huggingface.co",
        ] {
            assert!(!carries(other), "{other}");
        }
        assert!(!format!("{settings:?}").contains("secret"));
    }

    #[test]
    fn a_token_goes_over_http_to_this_machine_only() {
        let mirror =
            settings(&[("HF_TOKEN", "hf_secret"), ("HF_ENDPOINT", "http://192.168.1.9:8080/")]).unwrap();
        assert!(mirror.token_for(&mirror.endpoint).is_none());
        let local =
            settings(&[("HF_TOKEN", "hf_secret"), ("HF_ENDPOINT", "http://127.0.0.1:8080/")]).unwrap();
        assert!(local.token_for(&local.endpoint).is_some());
    }

    #[test]
    fn a_token_is_kept_for_a_hub_that_it_may_go_to_and_never_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |endpoint: &str, token: &str| {
            let kept = Settings::of(endpoint).unwrap().keep_token(folder.path(), token);
            kept.unwrap_err().to_string()
        };
        let text = refused("http://192.168.1.9", "hf_x");
        assert!(text.contains("without encryption") && !text.contains("hf_x"), "{text}");
        let text = refused(ENDPOINT, "two\nlines");
        assert!(text.contains("the token") && !text.contains("two"), "{text}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_token_of_the_environment_goes_to_no_hub_that_a_request_names() {
        let own = settings(&[("HF_TOKEN", "hf_secret")]).unwrap();
        let aimed = |endpoint, token| own.clone().aimed(endpoint, token).unwrap().token;
        assert_eq!(aimed(Some("https://mirror.org"), None), None);
        assert_eq!(aimed(Some("https://huggingface.co/"), None), Token::new("hf_secret"));
        assert_eq!(aimed(Some("https://mirror.org"), Some("other")), Token::new("other"));
        assert!(own.clone().aimed(None, Some("two\nlines")).is_err());
        assert!(own.aimed(Some("ftp://x"), None).is_err());
    }

    #[test]
    fn the_variables_of_the_hubs_own_tools_count() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let home = folder.path().display().to_string();
        assert_eq!(settings(&[("HF_HOME", &home)]).unwrap().token, Token::new("hf_file"));
        let data_dir = folder.path().join("data");
        Settings::of(ENDPOINT).unwrap().keep_token(&data_dir, "hf_login").unwrap();
        let token = |vars: &[(&str, &str)]| {
            let env = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
            Settings::from_env(folder.path(), &data_dir, &env).unwrap().token
        };
        assert_eq!(token(&[("HF_HOME", &home)]), Token::new("hf_login"));
        assert_eq!(token(&[("HF_HOME", &home), ("HF_TOKEN", "hf_env")]), Token::new("hf_env"));
        let mirror = ("HF_ENDPOINT", "https://mirror.org");
        assert_eq!(token(&[mirror]), None);
        assert!(settings(&[("HF_HUB_OFFLINE", "1")]).unwrap().offline.is_some());
        assert!(settings(&[("HF_HUB_OFFLINE", "0")]).unwrap().offline.is_none());
        for bad in ["ftp://x", "huggingface.co", "https://u:p@mirror.org", "https://"] {
            let error = settings(&[("HF_ENDPOINT", bad)]).unwrap_err().to_string();
            assert!(error.starts_with("HF_ENDPOINT cannot be used"), "{bad}: {error}");
        }
        assert!(settings(&[("HF_TOKEN", "two\nlines")]).unwrap_err().to_string().starts_with("HF_TOKEN"));
    }
}
