//! What a model may be used for, as far as its repository says.

use serde::{Deserialize, Serialize};
use serde_json::Value;

const NAME_CHARS_MAX: usize = 80;
const LINK_CHARS_MAX: usize = 200;

/// Licences with terms that a person should know before using a model, by the beginning of the hub's name for
/// them.
const NOTABLE: &[(&str, &str)] = &[
    (
        "llama",
        "Meta's community licence: an acceptable use policy, a notice in products, and above 700 million monthly users a licence of Meta's",
    ),
    (
        "gemma",
        "Google's terms for Gemma: a list of prohibited uses, which whoever you give the model to must accept too",
    ),
    ("cc-by-nc", "not for commercial use"),
    ("qwen-research", "for research only, not for commercial use"),
    ("tongyi-qianwen", "Alibaba's licence: above 100 million monthly users a licence of Alibaba's"),
    ("mnpl", "Mistral's non-production licence: for research and testing, not for production"),
    ("mrl", "Mistral's research licence: not for commercial use"),
    ("deepseek", "DeepSeek's model licence: a list of prohibited uses"),
    ("openrail", "an OpenRAIL licence: a list of prohibited uses that must be passed on"),
    ("bigscience", "a RAIL licence: a list of prohibited uses that must be passed on"),
    ("creativeml", "a RAIL licence: a list of prohibited uses that must be passed on"),
    ("falcon-llm", "TII's Falcon licence: an acceptable use policy"),
    ("agpl", "whoever offers a changed version over a network must offer its source"),
];
/// Licences that ask for no more than to keep their notice.
const PLAIN: &str = "\
    apache-2.0 mit bsd bsd-2-clause bsd-3-clause isc cc0-1.0 unlicense cc-by-4.0 bsl-1.0 zlib 0bsd";

/// How texts of licences begin, in small letters.
const TEXTS: &[(&str, &str)] = &[
    ("apache license", "apache-2.0"),
    ("mit license", "mit"),
    ("llama 3.3 community", "llama3.3"),
    ("llama 3.2 community", "llama3.2"),
    ("llama 3.1 community", "llama3.1"),
    ("llama 3 community", "llama3"),
    ("gemma terms of use", "gemma"),
    ("deepseek license", "deepseek"),
    ("mistral ai non-production", "mnpl"),
    ("mistral ai research", "mrl"),
    ("qwen research license", "qwen-research"),
    ("tongyi qianwen", "tongyi-qianwen"),
];

/// A licence by the hub's name for it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Licence {
    /// For example `apache-2.0`, `llama3.2`, or the name that the repository gives.
    pub name: Option<String>,
    /// Where its text stands, if the repository says.
    pub link: Option<String>,
}

impl Licence {
    /// By the text itself, where nobody gives it a name: those that models come with, else its first line.
    pub(crate) fn of_text(text: &str) -> Self {
        let start: String = text.chars().take(2000).collect::<String>().to_lowercase();
        let known = TEXTS.iter().find(|(part, _)| start.contains(part)).map(|(_, name)| (*name).to_owned());
        let first = || text.lines().map(str::trim).find(|line| !line.is_empty());
        let name = known.or_else(|| first().map(|line| exo_types::printable(line, NAME_CHARS_MAX)));
        Self { name, link: None }
    }

    /// From a repository's description: its card, else its tags.
    pub(crate) fn of(info: &Value) -> Self {
        let card = info.get("cardData");
        let text = |key: &str, chars_max: usize| {
            let value = card.and_then(|c| c.get(key));
            let value = value.and_then(|v| v.as_str().or_else(|| v.as_array()?.first()?.as_str()));
            value.map(|v| exo_types::printable(v.trim(), chars_max)).filter(|v| !v.is_empty())
        };
        let tags = info.get("tags").and_then(Value::as_array).into_iter().flatten();
        let tag = tags.filter_map(Value::as_str).find_map(|t| t.strip_prefix("license:"));
        let named =
            text("license", NAME_CHARS_MAX).or_else(|| tag.map(|t| exo_types::printable(t, NAME_CHARS_MAX)));
        // `other` says that the name stands elsewhere.
        let name = match named.as_deref() {
            Some("other") => text("license_name", NAME_CHARS_MAX).or(named),
            _ => named,
        };
        Self { name, link: text("license_link", LINK_CHARS_MAX) }
    }

    /// One line that a person should see before a first download: terms that are more than to keep a notice.
    pub fn notable_terms(&self) -> Option<String> {
        let Some(name) = &self.name else {
            return Some(
                "none named: ask the owner of the repository before you use the model for more than a trial"
                    .to_owned(),
            );
        };
        let lower = name.to_ascii_lowercase();
        if PLAIN.split(' ').any(|plain| plain == lower) {
            return None;
        }
        let known = NOTABLE
            .iter()
            .find(|(start, _)| lower.starts_with(start) || lower.contains(&format!("-{start}")));
        let terms = known.map_or(
            "exo does not know this licence: read it before you use the model for more than a trial",
            |(_, terms)| terms,
        );
        let link = self.link.as_ref().map(|l| format!(" ({l})")).unwrap_or_default();
        Some(format!("{name}: {terms}{link}"))
    }

    /// Its name, or that there is none.
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or("none named")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(info: &str) -> String {
        let licence = Licence::of(&serde_json::from_str(info).unwrap());
        format!(
            "{}: {}",
            licence.label(),
            licence.notable_terms().unwrap_or_else(|| "nothing notable".to_owned())
        )
    }

    #[test]
    fn notable_terms_are_said_and_plain_licences_are_not() {
        assert_eq!(check(r#"{"cardData":{"license":"apache-2.0"}}"#), "apache-2.0: nothing notable");
        assert_eq!(check(r#"{"tags":["license:mit"]}"#), "mit: nothing notable");
        assert!(check(r#"{"cardData":{"license":["llama3.2"]}}"#).contains("700 million"));
        assert!(check(r#"{"cardData":{"license":"other","license_name":"qwen-research","license_link":"https://x"}}"#).contains("for research only, not for commercial use (https://x)"));
        assert!(check("{}").contains("none named: ask"));
        assert!(check(r#"{"cardData":{"license":"x\u001b[2J"}}"#).contains("does not know"));
        assert!(!check(r#"{"cardData":{"license":"x\u001b[2J"}}"#).contains('\u{1b}'));
    }
}
