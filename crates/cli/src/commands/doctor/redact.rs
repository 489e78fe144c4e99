//! What a report must not tell is replaced: secrets, keys, and the names and addresses of people, machines
//! and networks.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::Context;
use regex::{Captures, Regex};
use serde_json::Value;

const SECRET: &str = "[secret]";

/// Words that are known, and what stands for each of them.
#[derive(Debug, Default)]
pub(super) struct Redactions {
    words: BTreeMap<String, String>,
}

impl Redactions {
    /// A word that names something. Shorter than two characters it tells nothing, and would be found
    /// everywhere.
    pub(super) fn add(&mut self, word: &str, stands: &str) {
        let word = word.trim();
        if word.chars().count() >= 2 {
            self.words.entry(word.to_lowercase()).or_insert_with(|| stands.to_owned());
        }
    }

    pub(super) fn secret(&mut self, word: &str) {
        self.add(word, SECRET);
    }
}

/// Replaces what is known and what looks like an address, a key or a folder of a person. The same text is
/// replaced by the same word throughout a report, so that its parts can still be put together.
#[derive(Debug)]
pub(super) struct Redactor {
    known: Option<(Regex, BTreeMap<String, String>)>,
    shapes: Vec<(Regex, Shape)>,
    /// What was replaced by a number, by its kind.
    numbered: BTreeMap<&'static str, BTreeMap<String, usize>>,
    /// How often something was replaced.
    pub(super) count: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    Secret,
    Login,
    Host,
    Home,
    Mail,
    Mac,
    Ipv6,
    Ipv4,
    Id,
}

const SHAPES: &[(Shape, &str)] = &[
    (Shape::Login, r"://[^/\s@]+@"),
    (Shape::Host, r"(?:://|\[secret\]@)[A-Za-z0-9][A-Za-z0-9.-]*[A-Za-z0-9]"),
    (
        Shape::Secret,
        r"\b(?:sk|hf|gh[a-z]|xox[a-z]|glpat)[-_][A-Za-z0-9_-]{6,}|\bAKIA[0-9A-Z]{12,}|(?i:\bbearer)\s+\S+",
    ),
    // People name disks, with spaces.
    (Shape::Home, r#"(?:/media|/run/media|/Users|/Volumes)/[^/"':,\n]+/"#),
    (Shape::Home, r#"[A-Za-z]:\\{1,2}Users\\{1,2}[^\\"':,]+"#),
    (Shape::Home, r#"\\{2,4}[A-Za-z0-9][A-Za-z0-9._-]*\\{1,2}[^\\"':,\n]+"#),
    (Shape::Home, r#"(?:/home|/Users|/media|/run/media|/mnt|/Volumes)/[^/\s"':,]+"#),
    (Shape::Mail, r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+"),
    (Shape::Mac, r"\b(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}\b"),
    (Shape::Ipv6, r"\b{start-half}[0-9A-Fa-f:]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*\b{end-half}(?:%\w+)?"),
    (Shape::Ipv4, r"\b\d{1,3}(?:\.\d{1,3}){3}\b"),
    (Shape::Id, r"\b[A-Za-z0-9]{32,}={0,2}|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"),
];

impl Redactor {
    pub(super) fn new(known: Redactions) -> anyhow::Result<Self> {
        let mut words: Vec<&String> = known.words.keys().collect();
        // Of two that begin alike the longer is meant.
        words.sort_by_key(|word| std::cmp::Reverse(word.len()));
        let any = words.iter().map(|word| regex::escape(word)).collect::<Vec<_>>().join("|");
        let known = match words.is_empty() {
            true => None,
            false => Some((pattern(&format!(r"(?i)\b{{start-half}}(?:{any})\b{{end-half}}"))?, known.words)),
        };
        let shapes = SHAPES.iter().map(|&(shape, text)| Ok((pattern(text)?, shape)));
        let shapes = shapes.collect::<anyhow::Result<_>>()?;
        Ok(Self { known, shapes, numbered: BTreeMap::new(), count: 0 })
    }

    /// A text without what it must not tell.
    pub(super) fn text(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        if let Some((pattern, words)) = &self.known {
            let count = &mut self.count;
            let replaced = pattern.replace_all(&text, |found: &Captures<'_>| {
                *count += 1;
                words.get(&found[0].to_lowercase()).map_or(SECRET, String::as_str)
            });
            text = replaced.into_owned();
        }
        let shapes = std::mem::take(&mut self.shapes);
        for (pattern, shape) in &shapes {
            text =
                pattern.replace_all(&text, |found: &Captures<'_>| self.shape(*shape, &found[0])).into_owned();
        }
        self.shapes = shapes;
        text
    }

    /// The same for every text of a document, keys of its maps too.
    pub(super) fn value(&mut self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => {
                fields.into_iter().map(|(key, value)| (self.text(&key), self.value(value))).collect()
            }
            plain @ (Value::Null | Value::Bool(_) | Value::Number(_)) => plain,
        }
    }

    fn shape(&mut self, shape: Shape, found: &str) -> String {
        let replaced = match shape {
            Shape::Secret => SECRET.to_owned(),
            Shape::Login => format!("://{SECRET}@"),
            Shape::Host => {
                let (front, host) = found.split_at(found.rfind(['/', '@']).map_or(0, |at| at + 1));
                let is_told =
                    host == "localhost" || host == "huggingface.co" || host.parse::<Ipv4Addr>().is_ok();
                if is_told || host.starts_with("host-") || host.starts_with("node-") {
                    return found.to_owned();
                }
                front.to_owned() + &self.numbered("site", host)
            }
            Shape::Home => if found.ends_with('/') { "~/" } else { "~" }.to_owned(),
            Shape::Mail => self.numbered("mail", found),
            Shape::Mac => self.numbered("mac", found),
            Shape::Ipv6 => return self.ipv6(found),
            Shape::Ipv4 => match found.parse::<Ipv4Addr>() {
                Ok(address) if !address.is_loopback() && !address.is_unspecified() => {
                    self.numbered("address", found)
                }
                Ok(_) | Err(_) => return found.to_owned(),
            },
            Shape::Id => self.numbered("id", found),
        };
        self.count += 1;
        replaced
    }

    /// What only looks like an address, as a time of day does, stays.
    fn ipv6(&mut self, found: &str) -> String {
        // `::` at an end is part of an address, one `:` is not.
        let (front, end) = (found.trim_start_matches(':'), found.trim_end_matches(['.', ':']));
        let candidates = [found, end, front, front.trim_end_matches(['.', ':'])];
        let is_address = |text: &&&str| {
            let (address, _) = text.split_once('%').unwrap_or((text, ""));
            let parsed = address.parse::<Ipv6Addr>();
            parsed.is_ok_and(|address| !address.is_loopback() && !address.is_unspecified())
        };
        let Some(address) = candidates.iter().find(is_address).map(|text| (*text).to_owned()) else {
            return found.to_owned();
        };
        self.count += 1;
        let number = self.numbered("address", &address);
        found.replacen(&address, &number, 1)
    }

    fn numbered(&mut self, kind: &'static str, found: &str) -> String {
        let numbered = self.numbered.entry(kind).or_default();
        let next = 1 + numbered.len();
        let number = *numbered.entry(found.to_lowercase()).or_insert(next);
        format!("{kind}-{number}")
    }
}

fn pattern(text: &str) -> anyhow::Result<Regex> {
    let pattern = regex::RegexBuilder::new(text).size_limit(64 << 20).build();
    pattern
        .context("the names of this cluster make no pattern to look for: no report is written without them")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redactor() -> Redactor {
        let mut known = Redactions::default();
        known.add("Anna's (desk)", "node-1");
        known.add("tower", "node-2");
        known.add("abcdefghij23", "node-2");
        known.add("anna", "user");
        known.secret("planted key");
        known.add("x", "nothing so short");
        Redactor::new(known).unwrap()
    }

    #[test]
    fn names_addresses_keys_and_folders_are_replaced_each_by_one_word() {
        let cases = [
            ("tower lost anna's (DESK)", "node-2 lost node-1"),
            ("node abcdefghij23 is Tower", "node node-2 is node-2"),
            ("towers of savanna stay", "towers of savanna stay"),
            ("with planted key in it", "with [secret] in it"),
            ("at 192.168.1.7:52416, then 192.168.1.7", "at address-1:52416, then address-1"),
            ("on 127.0.0.1:52415 and 0.0.0.0", "on 127.0.0.1:52415 and 0.0.0.0"),
            ("[fe80::1%eth0]:52416 and 2001:db8::2: no answer", "[address-2]:52416 and address-3: no answer"),
            ("12:30:45.123Z at ::1", "12:30:45.123Z at ::1"),
            ("exo_cluster::scheduler said so", "exo_cluster::scheduler said so"),
            ("exo_machine::machine exo_node::generate", "exo_machine::machine exo_node::generate"),
            ("events::device exo_transport::accept", "events::device exo_transport::accept"),
            ("addr:2001:db8::1", "addr:address-4"),
            ("at 2001:db8::2.", "at address-3."),
            ("aa:bb:cc:dd:ee:0f", "mac-1"),
            ("/home/bea/models/a.gguf", "~/models/a.gguf"),
            ("/Users/bea/x /mnt/bea/x", "~/x ~/x"),
            ("C:\\Users\\Bea Muster\\x", "~\\x"),
            ("/Volumes/Bea Muster/models on it", "~/models on it"),
            ("\\\\nas-of-bea\\Bea Muster\\x", "~\\x"),
            ("http://bea:word@proxy:3128/ and bea@example.org", "http://[secret]@site-1:3128/ and mail-1"),
            (
                "http://proxy.bea.org:3128 http://localhost:1 http://127.0.0.1:2",
                "http://site-2:3128 http://localhost:1 http://127.0.0.1:2",
            ),
            (
                "hf_abcdefghijk bearer abc sk-1234567 AKIAIOSFODNN7EXAMPLE",
                "[secret] [secret] [secret] [secret]",
            ),
            ("DeepSeek-R1-Distill-Qwen-32B-Q4_K_M stays", "DeepSeek-R1-Distill-Qwen-32B-Q4_K_M stays"),
            ("request 01234567-89ab-cdef-0123-456789abcdef", "request id-1"),
            ("id 0123456789abcdef0123456789abcdef!", "id id-2!"),
            ("0000:01:00.0 is a place of a card", "0000:01:00.0 is a place of a card"),
        ];
        let mut redactor = redactor();
        for (text, expected) in cases {
            assert_eq!(redactor.text(text), expected, "{text}");
        }
        assert_eq!(redactor.count, 28);
    }

    #[test]
    fn documents_keep_their_form() {
        let found =
            redactor().value(json!({"tower": [1, null, true, "anna"], "n": {"name": "Anna's (desk)"}}));
        assert_eq!(found, json!({"node-2": [1, null, true, "user"], "n": {"name": "node-1"}}));
    }

    #[test]
    fn nothing_known_is_no_pattern_for_everything() {
        let mut redactor = Redactor::new(Redactions::default()).unwrap();
        assert_eq!(redactor.text("plain words"), "plain words");
    }
}
