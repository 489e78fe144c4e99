//! Keys of the API with the names of their holders, as settings have them.

use std::collections::BTreeMap;
use std::fmt::Display;

use anyhow::bail;

/// A name stands in tables.
const NAME_CHARS_MAX: usize = 32;
/// How a good key is made.
pub const MAKE_ONE: &str = "make one with `openssl rand -hex 24`";

/// A key of the API, and what its holder is called.
#[derive(Clone, PartialEq, Eq)]
pub struct NamedKey {
    pub name: Option<String>,
    pub key: String,
}

impl NamedKey {
    /// From keys with commas between.
    pub fn list(text: &str) -> Vec<Self> {
        let keys = text.split(',').map(str::trim).filter(|key| !key.is_empty());
        keys.map(|key| Self { name: None, key: key.to_owned() }).collect()
    }

    /// From a table of the configuration file.
    pub fn table(table: &toml::Table) -> anyhow::Result<Vec<Self>> {
        let key = |(name, value): (&String, &toml::Value)| match value {
            toml::Value::String(key) => Ok(Self { name: Some(name.clone()), key: key.trim().to_owned() }),
            _ => bail!("`api_keys.{name}` must be a text: the key of who is called `{name}`"),
        };
        table.iter().map(key).collect()
    }

    /// What it is called where it must not be shown.
    pub fn shown(&self, index: usize) -> String {
        self.name.as_ref().map_or_else(|| format!("key {}", index + 1), |name| format!("the key of `{name}`"))
    }
}

/// Refuses keys that no client can send, and names that say nothing or the wrong thing.
pub fn check(keys: &[NamedKey], from: impl Display) -> anyhow::Result<()> {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    for (index, NamedKey { name, key }) in keys.iter().enumerate() {
        let shown = keys[index].shown(index);
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!(
                "setting `api_keys` (from {from}): {shown} must be letters, digits and signs of ASCII without spaces; {MAKE_ONE}"
            );
        }
        let Some(name) = name else { continue };
        if name.is_empty() || *name != exo_types::clean_name(name, NAME_CHARS_MAX) || name == "local" {
            bail!(
                "setting `api_keys` (from {from}): `{name}` cannot name a key: a name has 1 to {NAME_CHARS_MAX} characters that can be seen, and \
                 `local` is who uses the API of this machine without one"
            );
        }
        if let Some(other) = names.insert(key, name) {
            bail!(
                "setting `api_keys` (from {from}): `{other}` and `{name}` have the same key, and nobody could tell who asks; {MAKE_ONE}"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn named(keys: &[(&str, &str)]) -> Vec<NamedKey> {
        let key = |(name, key): &(&str, &str)| NamedKey {
            name: (!name.is_empty()).then(|| (*name).to_owned()),
            key: (*key).to_owned(),
        };
        keys.iter().map(key).collect()
    }

    #[test]
    fn keys_that_cannot_be_sent_and_names_that_mislead_are_refused_without_being_shown() {
        let refused = |keys: &[(&str, &str)]| {
            let error = check(&named(keys), "default").unwrap_err().to_string();
            assert!(!error.contains("sesame"), "{error}");
            error
        };
        assert!(refused(&[("anna", "open sesame")]).contains("the key of `anna`"));
        assert!(refused(&[("", "ok"), ("", "sesamé")]).contains("key 2"));
        assert!(refused(&[("anna", "")]).contains("openssl rand"));
        assert!(refused(&[("local", "sesame")]).contains("`local` is"));
        assert!(refused(&[("\u{200b}", "sesame")]).contains("cannot name a key"));
        assert!(refused(&[("anna", "sesame"), ("ben", "sesame")]).contains("`anna` and `ben`"));
        check(&named(&[("", "sesame"), ("", "sesame")]), "default").unwrap();
    }
}
