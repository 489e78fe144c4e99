//! The setting `api_keys`: a list of keys, or a table of names to keys, which a running node reads again when
//! its file changes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use exo_server::{ApiKey, ApiKeys};

use crate::config::{self, Config, Source};
use crate::named_keys::{MAKE_ONE, NamedKey, check};
use crate::{system, ui};

/// A shorter one can be guessed by who tries many.
const CHARS_MIN: usize = 16;
/// How often the file is looked at. Each look wakes this thread and another.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// A file that has changed is looked at once more after this, and taken if it is the same: within the five
/// seconds that the manual names.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Something that makes keys weaker than they could be, and what to do.
pub struct Weakness {
    pub found: String,
    pub next: String,
}

/// What is weak in the keys that are set, and in how they are kept.
pub fn weaknesses(config: &Config) -> Vec<Weakness> {
    let keys = config.api_keys();
    let mut all = Vec::new();
    for (index, NamedKey { key, .. }) in keys.iter().enumerate() {
        let (shown, chars) = (keys[index].shown(index), key.len());
        if chars < CHARS_MIN {
            let found = format!("{shown} of `api_keys` has {chars} characters and can be guessed");
            all.push(Weakness { found, next: MAKE_ONE.to_owned() });
        }
        if keys[..index].iter().any(|before| before.key == *key) {
            let found = format!("{shown} of `api_keys` is there twice");
            all.push(Weakness { found, next: "give each user another one, or take one line out".to_owned() });
        }
    }
    if let Source::File(path) = config.source("api_keys")
        && !keys.is_empty()
        && system::is_open_to_others(path)
    {
        let path = path.display();
        let found = format!("other users of this machine may read the keys in {path}");
        all.push(Weakness { found, next: format!("chmod 600 {path}") });
    }
    all
}

/// Whether a listener at `address` has the keys that it needs: without any it must stay on this machine.
pub fn check_listener(config: &Config, address: SocketAddr) -> anyhow::Result<()> {
    let keys = config.api_keys();
    if !address.ip().is_loopback() && keys.is_empty() {
        bail!("the API would be reachable from other machines at {address}: set `api_keys` for it");
    }
    if config.parse("api_proxied")? && keys.is_empty() {
        bail!(
            "setting `api_proxied` says that a proxy opens the API at {address} to others: set `api_keys` for it"
        );
    }
    Ok(())
}

/// The keys for a listener at `address`.
pub fn for_listener(config: &Config, address: SocketAddr) -> anyhow::Result<ApiKeys> {
    check_listener(config, address)?;
    let keys = config.api_keys();
    if !config.list("allowed_origins").is_empty() && keys.is_empty() {
        tracing::warn!(
            "pages of `allowed_origins` are let in by an API key alone, and `api_keys` has none: none of them is let in"
        );
    }
    for Weakness { found, next } in weaknesses(config) {
        tracing::warn!("{found}: {next}");
    }
    let all = ApiKeys::default();
    all.replace(hashed(keys));
    Ok(all)
}

fn hashed(keys: &[NamedKey]) -> Vec<(ApiKey, Option<String>)> {
    keys.iter().map(|key| (ApiKey::from_key(&key.key), key.name.clone())).collect()
}

/// Reads the keys again when the file that they are from changes. A file that is wrong or gone changes
/// nothing, and nothing is read where the keys are from the environment: that of a process cannot change.
pub async fn follow(path: Option<PathBuf>, keys: ApiKeys, mut current: Vec<NamedKey>) -> Infallible {
    let Some(path) = path else { return std::future::pending().await };
    let mut seen = text_of(path.clone()).await;
    let (mut taken, mut has_changed) = (None, false);
    loop {
        tokio::time::sleep(if has_changed { AGAIN_AFTER } else { LOOK_EVERY }).await;
        let now = text_of(path.clone()).await;
        has_changed = now != seen;
        if has_changed {
            // Perhaps it is in the middle of being written: it counts when it is the same at the next look.
            seen = now;
            continue;
        }
        if taken.as_ref() == Some(&now) {
            continue;
        }
        let new = match &now {
            Ok(text) => read(text, &path).map_err(|error| format!("{error:#}")),
            Err(why) => Err(format!("it cannot be read: {why}")),
        };
        match new {
            Ok(new) if new == current => {}
            Ok(new) => {
                keys.replace(hashed(&new));
                ui::line(changed_text(&new, &path));
                current = new;
            }
            // There were none, and nothing is read: the same as before, whatever the reason.
            Err(error) if current.is_empty() && (taken.is_none() || now.is_err()) => {
                tracing::debug!(error, "there is no configuration file with keys");
            }
            Err(error) => {
                let path = path.display();
                tracing::warn!(
                    "{path} has changed and is not taken, the API's keys are those of before: {error}"
                );
            }
        }
        taken = Some(now);
    }
}

fn read(text: &str, path: &Path) -> anyhow::Result<Vec<NamedKey>> {
    let keys = config::parse_file(text, path)?.api_keys;
    check(&keys, Source::File(path.to_owned()))?;
    Ok(keys)
}

fn changed_text(keys: &[NamedKey], path: &Path) -> String {
    match keys {
        [] => format!("API keys: {} has none any more: nobody is let in by a key", path.display()),
        keys => format!("API keys: {}, read again from {}", summary(keys), path.display()),
    }
}

/// How many there are, and whose.
pub fn summary(keys: &[NamedKey]) -> String {
    let names: Vec<&str> = keys.iter().filter_map(|key| key.name.as_deref()).collect();
    match &names[..] {
        [] => format!("{} set", keys.len()),
        names => format!("{} set: {}", keys.len(), names.join(", ")),
    }
}

/// Its text, or why it cannot be read; where there is none, that.
async fn text_of(path: PathBuf) -> Result<String, String> {
    let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(path));
    read.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named_keys::tests::named;

    #[test]
    fn a_file_that_is_wrong_is_named_with_the_line() {
        let keys = |text: &str| read(text, Path::new("c.toml"));
        assert!(
            keys("slots = 3\n[api_keys]\nanna = \"k1\"\nben = \"k2\"")
                .is_ok_and(|keys| keys == named(&[("anna", "k1"), ("ben", "k2")]))
        );
        assert!(keys("api_keys = [\"a\", \"b\"]").is_ok_and(|keys| keys == named(&[("", "a"), ("", "b")])));
        let error = |text: &str| format!("{:#}", keys(text).err().unwrap());
        let broken = error("slots = 3\n[api_keys]\nanna = \"k1\n");
        assert!(broken.contains("line 3") && !broken.contains("k1"), "{broken}");
        assert!(error("[api_keys]\nanna = 3").contains("`api_keys.anna` must be a text"));
    }
}
