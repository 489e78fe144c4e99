//! Text that came from elsewhere, made fit for a terminal, a list of names or a command line.
//!
//! Names, reasons, device descriptions and answers of models are data. A terminal obeys control characters,
//! and a reader is misled by characters that turn text around or that no one sees; neither gets through here.

use std::borrow::Cow;

/// Stands for a character that must not be shown as it is.
const REPLACED: char = '\u{FFFD}';
/// Longer names exist on no common file system.
const FILE_NAME_BYTES_MAX: usize = 200;
/// Names Windows keeps for devices, with any extension.
const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "com", "lpt"];

/// Whether a terminal, or the order of the text around it, obeys this character: C0 and C1 controls, delete,
/// line and paragraph separators, bidirectional embeddings, overrides and isolates, interlinear annotation.
pub fn is_terminal_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{206F}' | '\u{FFF9}'..='\u{FFFB}')
}

/// Whether no one sees this character: Unicode's ignorable and filler characters. Two names that look the
/// same must not differ by them.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{AD}' | '\u{34F}' | '\u{61C}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}' | '\u{180B}'..='\u{180F}'
        | '\u{200B}'..='\u{200F}' | '\u{2060}'..='\u{2065}' | '\u{2800}' | '\u{3164}' | '\u{FE00}'..='\u{FE0F}'
        | '\u{FEFF}' | '\u{FFA0}' | '\u{FFF0}'..='\u{FFF8}' | '\u{1BCA0}'..='\u{1BCA3}' | '\u{1D173}'..='\u{1D17A}'
        | '\u{E0000}'..='\u{E0FFF}')
}

/// One line that can be shown: what a terminal obeys or no one sees becomes U+FFFD, ends of lines and tabs
/// become spaces. A text of more than `chars_max` characters is cut, and says by how much.
pub fn printable(text: &str, chars_max: usize) -> String {
    let shown = |c: char| match c {
        '\n' | '\r' | '\t' => ' ',
        c if is_terminal_control(c) || is_invisible(c) => REPLACED,
        c => c,
    };
    let mut line: String = text.chars().take(chars_max).map(shown).collect();
    let more = text.chars().skip(chars_max).count();
    if more > 0 {
        line.push_str(&format!("… [{more} more characters]"));
    }
    line
}

/// Lines that can be shown: as they are, but what a terminal obeys becomes U+FFFD. Ends of lines and tabs
/// stay; so does what scripts and emoji need between letters. Carriage returns are left out: before the end
/// of a line they are half of that end, alone they would write over the line. Each character is judged alone,
/// so a text may come in pieces.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    let is_refused = |c: char| is_terminal_control(c) && !matches!(c, '\n' | '\t');
    if !text.contains(is_refused) {
        return Cow::Borrowed(text);
    }
    let kept = text.chars().filter(|c| *c != '\r');
    Cow::Owned(kept.map(|c| if is_refused(c) { REPLACED } else { c }).collect())
}

/// A name that somebody gave, fit to be kept: without what a terminal obeys or no one sees, without space
/// around it, and at most `chars_max` characters, of which the last is `…` if it was cut. May be empty.
pub fn clean_name(name: &str, chars_max: usize) -> String {
    let kept = |c: &char| !is_terminal_control(*c) && !is_invisible(*c);
    let kept: String = name.chars().filter(kept).take(chars_max + 1).collect();
    let kept = kept.trim();
    if kept.chars().count() <= chars_max {
        return kept.to_owned();
    }
    kept.chars().take(chars_max.saturating_sub(1)).chain(['…']).collect()
}

/// A text as one word of a suggested command: quoted for a POSIX shell unless it is plain. It is first made
/// [`printable`], so what is shown is what is copied.
pub fn shell_word(text: &str) -> String {
    const WORD_CHARS_MAX: usize = 256;
    let word = printable(text, WORD_CHARS_MAX);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-@%+=:,./".contains(c);
    // A word that begins with a dash would be an option.
    match word.starts_with(|c: char| c != '-' && is_plain(c)) && word.chars().all(is_plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Why a name cannot be one part of a path on every system; `None` if it can. Such names come from peers and
/// hubs.
pub fn file_name_refusal(name: &str) -> Option<&'static str> {
    let stem = name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_number = |rest: &str| rest.len() <= 1 && rest.bytes().all(|b| b.is_ascii_digit());
    match name {
        "" => Some("a part of its name is empty"),
        "." | ".." => Some("its name leads out of its folder"),
        _ if name.len() > FILE_NAME_BYTES_MAX => Some("a part of its name is longer than 200 bytes"),
        _ if name.starts_with('.') => Some("a part of its name starts with a dot"),
        _ if name.ends_with(['.', ' ']) => Some("a part of its name ends with a dot or a space"),
        _ if refused_character(name).is_some() => Some("its name has a character that no file name may have"),
        _ if DEVICES.iter().any(|d| stem.strip_prefix(d).is_some_and(is_number)) => {
            Some("its name is that of a device")
        }
        _ => None,
    }
}

/// The first character of a name that no file name may have, to be displayed.
pub fn refused_character(name: &str) -> Option<String> {
    let refused = name.chars().find(|c| is_terminal_control(*c) || "/\\:*?\"<>|".contains(*c))?;
    Some(match is_terminal_control(refused) {
        true => refused.escape_unicode().to_string(),
        false => refused.to_string(),
    })
}

/// Bytes for people, in the unit that they read.
pub fn size(bytes: u64) -> String {
    in_units(bytes, f64::round)
}

/// The same of what is needed or missing: never less than it is.
pub fn size_up(bytes: u64) -> String {
    in_units(bytes, f64::ceil)
}

fn in_units(bytes: u64, round: fn(f64) -> f64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{:.1} {}", round(value * 10.0) / 10.0, UNITS[unit])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_plain_parts_of_a_path_are_file_names() {
        for good in
            ["model.safetensors", "tiny llama-Q4_0.gguf", "model-00001-of-00002.safetensors", "console.gguf"]
        {
            assert_eq!(file_name_refusal(good), None, "{good}");
        }
        let long = "a".repeat(201);
        let bad = [
            "",
            ".",
            "..",
            "../a",
            "/a",
            "a/b",
            "a\\b",
            "C:a",
            "a\0b",
            "a\nb",
            "a\u{202E}b",
            ".hidden",
            "a.",
            "nul.gguf",
            "COM1",
            &long,
        ];
        for name in bad {
            assert!(file_name_refusal(name).is_some(), "{name:?}");
        }
        assert_eq!(refused_character("my \"best\" model.gguf").as_deref(), Some("\""));
        assert_eq!(refused_character("a\nb").as_deref(), Some("\\u{a}"));
        assert_eq!(refused_character("modèle.gguf"), None);
    }

    #[test]
    fn no_escape_sequence_no_override_and_no_second_line_get_through() {
        let hostile = "a\x1b[2J\x1b]0;title\x07b\u{9b}31mc\r\n\u{202E}evil\u{2066}\u{200B}\u{E0041}\x7f";
        let shown =
            "a\u{FFFD}[2J\u{FFFD}]0;title\u{FFFD}b\u{FFFD}31mc  \u{FFFD}evil\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}";
        assert_eq!(printable(hostile, 100), shown);
        assert_eq!(clean_name(hostile, 100), "a[2J]0;titleb31mcevil");
        assert_eq!(printable("Jürgen's 机器 (2)", 100), "Jürgen's 机器 (2)");
    }

    #[test]
    fn long_text_is_cut_and_says_so() {
        assert_eq!(printable(&"x".repeat(10_000), 5), "xxxxx… [9995 more characters]");
        assert_eq!(clean_name(&"x".repeat(10_000), 5), "xxxx…");
        assert_eq!(clean_name("\u{202E}\x1b \n", 5), "");
    }

    #[test]
    fn lines_keep_their_ends_tabs_and_what_scripts_need() {
        let fine = "a\tb\n👩\u{200D}🚀 می\u{200C}خواهم ❤\u{FE0F}";
        assert_eq!(printable_lines(fine), fine);
        assert_eq!(printable_lines("50%\r100%\r\nred\x1b[0m"), "50%100%\nred\u{FFFD}[0m");
    }

    #[test]
    fn a_word_of_a_command_is_one_word() {
        for (text, word) in [
            ("abc-1.gguf", "abc-1.gguf"),
            ("", "''"),
            ("-rf", "'-rf'"),
            ("a b", "'a b'"),
            ("x; rm -rf ~", "'x; rm -rf ~'"),
            ("it's $(id)", r"'it'\''s $(id)'"),
            ("a\nb`id`", "'a b`id`'"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }

    #[test]
    fn bytes_are_said_in_a_unit_and_what_is_missing_is_not_rounded_away() {
        assert_eq!(
            (size(1023), size(1536), size(5_437_652_992)),
            ("1023 B".into(), "1.5 KiB".into(), "5.1 GiB".into())
        );
        assert_eq!(size_up((1 << 30) + 1), "1.1 GiB");
        assert_eq!(size_up(1 << 30), "1.0 GiB");
    }

    proptest! {
        #[test]
        fn nothing_that_a_terminal_obeys_gets_through_in_any_pieces(text in any::<String>(), at in 0usize..64) {
            let cut = text.char_indices().map(|(i, _)| i).nth(at).unwrap_or(text.len());
            let pieces = [printable_lines(&text[..cut]), printable_lines(&text[cut..])].concat();
            prop_assert_eq!(&pieces, &printable_lines(&text));
            prop_assert!(!pieces.contains(|c| is_terminal_control(c) && c != '\n' && c != '\t'));
            for line in [printable(&text, 40), clean_name(&text, 40), shell_word(&text)] {
                prop_assert!(!line.contains(is_terminal_control) && !line.contains(is_invisible));
                prop_assert!(line.chars().count() <= 40 + 30 || line.starts_with('\''));
            }
        }
    }
}
