//! Variables of the environment that look like settings and are none: a misspelt one would do nothing, and
//! nobody would hear of it.

use crate::config::{JOIN_TOKEN_VARIABLE, KEYS, PREFIX};
use crate::stop::STOP_WITH_STDIN;
use crate::ui;

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
        match meant(name, &known) {
            Some(meant) => format!("{shown} is not a setting of exo; did you mean {meant}?"),
            None => format!("{shown} is not a setting of exo, and does nothing: `exo config` lists them"),
        }
    };
    unknown.iter().map(text).collect()
}

/// The known name that is nearest, if it is so near that it may have been meant: one that differs in a third
/// of its characters is another.
fn meant<'a>(name: &str, known: &'a [String]) -> Option<&'a String> {
    let near = |known: &&String| {
        let most = ((known.len() - PREFIX.len()) / 3).max(1);
        (known.len().abs_diff(name.len()) <= most).then(|| distance(name, known)).filter(|far| *far <= most)
    };
    known.iter().filter_map(|known| Some((near(&known)?, known))).min().map(|(_, known)| known)
}

/// Characters to add, leave out or change to make one name of the other (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    // Of the characters of `from` so far: how far they are from each beginning of `to`.
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, a) in from.bytes().enumerate() {
        let mut before = std::mem::replace(&mut row[0], at + 1);
        for (to_at, b) in to.bytes().enumerate() {
            let changed = before + usize::from(a != b);
            before = row[to_at + 1];
            row[to_at + 1] = changed.min(before + 1).min(row[to_at] + 1);
        }
    }
    row[to.len()]
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

    #[test]
    fn a_distance_counts_characters_added_left_out_and_changed() {
        let cases = [
            ("", "abc", 3),
            ("abc", "abc", 0),
            ("abc", "abd", 1),
            ("abc", "bc", 1),
            ("kitten", "sitting", 3),
        ];
        for (from, to, far) in cases {
            assert_eq!((distance(from, to), distance(to, from)), (far, far), "{from} {to}");
        }
    }
}
