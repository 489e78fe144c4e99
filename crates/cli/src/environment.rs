//! Variables of the environment that look like settings and are none: a misspelt one would do nothing, and
//! nobody would hear of it.

use crate::config::{JOIN_TOKEN_VARIABLE, KEYS, PREFIX};
use crate::stop::STOP_WITH_STDIN;
use crate::{suggest, ui};

/// What is read beside settings; the last two are for processes that `exo` starts.
const OTHERS: [&str; 6] =
    ["EXO_CONFIG", JOIN_TOKEN_VARIABLE, "EXO_OFFLINE", "EXO_OLLAMA_REGISTRY", STOP_WITH_STDIN, IN_CHILD];

/// Tells a child that it is one, and whose.
pub const IN_CHILD: &str = "EXO_COMPUTES_IN_CHILD";
/// Longest name that is shown, in characters.
const NAME_CHARS_MAX: usize = 64;

/// Warns of each variable that begins like a setting and is none.
pub fn warn_of_unknown() {
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    unknown(names).iter().for_each(|text| ui::warning(text));
}

/// What there is to say of such names, sorted.
fn unknown(names: impl Iterator<Item = String>) -> Vec<String> {
    let known: Vec<String> = KEYS.iter().map(|key| key.variable()).chain(OTHERS.map(str::to_owned)).collect();
    let mut unknown: Vec<String> =
        names.filter(|name| name.starts_with(PREFIX) && !known.contains(name)).collect();
    unknown.sort_unstable();
    let text = |name: &String| {
        let shown = exo_types::printable(name, NAME_CHARS_MAX);
        match suggest::nearest(bare(name), known.iter().map(|known| bare(known))) {
            Some(meant) => format!("{shown} is not a setting of exo; did you mean {PREFIX}{meant}?"),
            None => format!("{shown} is not a setting of exo, and does nothing: `exo config` lists them"),
        }
    };
    unknown.iter().map(text).collect()
}

/// The name of a variable behind what all begin with.
fn bare(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_none_of_ours_is_named_with_the_one_that_was_meant() {
        let said = |names: &[&str]| unknown(names.iter().map(|name| (*name).to_owned()));
        let known = ["EXO_API_LISTEN", "EXO_JOIN_TOKEN", "EXO_STOP_WITH_STDIN", "PATH", "EXOTIC", "HF_TOKEN"];
        assert_eq!(said(&known), [""; 0]);
        let meant = |wrong: &str, right: &str| {
            assert_eq!(said(&[wrong]), [format!("{wrong} is not a setting of exo; did you mean {right}?")]);
        };
        meant("EXO_API_LISTN", "EXO_API_LISTEN");
        meant("EXO_APILISTEN", "EXO_API_LISTEN");
        meant("EXO_LISTENS", "EXO_LISTEN");
        meant("EXO_API_KEY", "EXO_API_KEYS");
        meant("EXO_JOINTOKEN", "EXO_JOIN_TOKEN");
        meant("EXO_KW", "EXO_KV");
        for other in ["EXO_HOME", "EXO_", "EXO_\u{1F980}", &format!("EXO_{}", "X".repeat(1 << 20))] {
            assert!(said(&[other])[0].ends_with("does nothing: `exo config` lists them"), "{other:.40}");
        }
        let two = said(&["EXO_ZZ", "EXO_LOGS"]);
        assert_eq!(two[0], "EXO_LOGS is not a setting of exo; did you mean EXO_LOG?");
        assert_eq!(two.len(), 2);
    }
}
