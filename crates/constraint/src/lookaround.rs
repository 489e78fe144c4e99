//! Patterns that look ahead, written as patterns that do not.
//!
//! The engine goes through a text once, sign by sign, and cannot look ahead. What a pattern looks at ahead of
//! its first sign holds for the whole text, and so does another pattern beside it. Anything else that looks
//! around is refused, unless it is known what it comes to.

use crate::signs::{branches, signs};

/// Patterns of widespread libraries, and what matches the same texts.
const KNOWN: [(&str, &str); 2] = [
    // An address in Zod 4.0 to 4.5: no point at the beginning, and no two in a row. Domains have neither.
    (
        r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
        r"^(?:[A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
    ),
    // A duration in Zod 4: of its parts one has to be there, and behind `T` one of time.
    (
        r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$",
        concat!(
            r"^P(?:\d+W|(?:\d+Y(?:\d+M)?(?:\d+D)?|\d+M(?:\d+D)?|\d+D)",
            r"(?:T(?:\d+H(?:\d+M)?(?:\d+(?:[.,]\d+)?S)?|\d+M(?:\d+(?:[.,]\d+)?S)?|\d+(?:[.,]\d+)?S))?",
            r"|T(?:\d+H(?:\d+M)?(?:\d+(?:[.,]\d+)?S)?|\d+M(?:\d+(?:[.,]\d+)?S)?|\d+(?:[.,]\d+)?S))$",
        ),
    ),
];

/// A pattern that looks at nothing around, and more of them: a text matches all of these where it matches
/// `pattern`, and nowhere else. `None` where that is not known.
pub(crate) fn written_out(pattern: &str) -> Option<(String, Vec<String>)> {
    if !looks_around(pattern) {
        return Some((pattern.to_owned(), Vec::new()));
    }
    if let Some((_, same)) = KNOWN.iter().find(|(known, _)| *known == pattern) {
        return Some(((*same).to_owned(), Vec::new()));
    }
    let mut rest = pattern.strip_prefix('^').filter(|rest| branches(rest).len() == 1)?;
    let mut beside = Vec::new();
    while let Some((ahead, is_not, behind)) = first_look(rest) {
        beside.push(if is_not { other_beginning(ahead)? } else { beginning(ahead) });
        rest = behind;
    }
    let whole = format!("^{rest}");
    let is_done = !looks_around(&whole) && !beside.iter().any(|pattern| looks_around(pattern));
    is_done.then_some((whole, beside))
}

fn looks_around(pattern: &str) -> bool {
    let looks = ["(?=", "(?!", "(?<=", "(?<!"];
    signs(pattern).any(|(at, sign)| sign == b'(' && looks.iter().any(|look| pattern[at..].starts_with(look)))
}

/// What a pattern looks at ahead of all else, without a `^` of its own, whether that must not be there, and
/// what stands behind.
fn first_look(pattern: &str) -> Option<(&str, bool, &str)> {
    let is_not = pattern.starts_with("(?!");
    if !is_not && !pattern.starts_with("(?=") {
        return None;
    }
    let mut depth = 0_usize;
    let (end, _) = signs(pattern).find(|(_, sign)| {
        match sign {
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ => {}
        }
        depth == 0
    })?;
    let (ahead, behind) = (&pattern["(?=".len()..end], &pattern[end + 1..]);
    let ahead = ahead.strip_prefix('^').unwrap_or(ahead);
    // It may be repeated, or left out; what repeats nothing would repeat the `^` in front of it.
    let is_alone = [ahead, behind].iter().all(|text| !text.starts_with(['*', '+', '?', '{']));
    is_alone.then_some((ahead, is_not, behind))
}

/// The pattern of texts that begin like this.
fn beginning(ahead: &str) -> String {
    match branches(ahead).len() {
        1 => format!("^{ahead}"),
        _ => format!("^(?:{ahead})"),
    }
}

/// The pattern of texts that do not begin with this sign, or are not made of such signs alone.
fn other_beginning(ahead: &str) -> Option<String> {
    match ahead.strip_suffix("*$") {
        Some(class) => other_sign(class),
        None => other_sign(ahead).map(|other| format!(r"^(?:{other}[\s\S]*)?$")),
    }
}

/// The class of all signs but those of one class, or but one that stands for itself.
fn other_sign(sign: &str) -> Option<String> {
    if let Some(class) = sign.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let is_one =
            !class.is_empty() && !class.contains(['[', ']', '\\', '&', '~']) && !class.contains("--");
        return match class.strip_prefix('^') {
            // In front of a class this sign would mean all others.
            Some(others) => (is_one && !others.starts_with('^')).then(|| format!("[{others}]")),
            None => is_one.then(|| format!("[^{class}]")),
        };
    }
    let mut signs = sign.chars();
    match (signs.next()?, signs.next(), signs.next()) {
        (one, None, None) if one.is_ascii_alphanumeric() => Some(format!("[^{one}]")),
        ('\\', Some(one), None) if one.is_ascii_punctuation() => Some(format!(r"[^\{one}]")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str) -> String {
        match written_out(pattern) {
            Some((whole, beside)) => [vec![whole], beside].concat().join("  "),
            None => "no".to_owned(),
        }
    }

    #[test]
    fn what_is_looked_at_ahead_of_all_else_becomes_a_pattern_of_its_own() {
        for (pattern, expected) in [
            (r"^a(b|c)$", r"^a(b|c)$"),
            (r"^(?=.{1,253}\.?$)[a-z.]+$", r"^[a-z.]+$  ^.{1,253}\.?$"),
            (r"^(?=.*[A-Z])(?=.*\d).{8,}$", r"^.{8,}$  ^.*[A-Z]  ^.*\d"),
            (r"^(?=a|(b))c", r"^c  ^(?:a|(b))"),
            (r"^(?=^a)b", "^b  ^a"),
            (r"^(?!\.)[a-z.]+$", r"^[a-z.]+$  ^(?:[^\.][\s\S]*)?$"),
            (r"^(?!0)\d+$", r"^\d+$  ^(?:[^0][\s\S]*)?$"),
            (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", r"^[+-]?0*\d*\.?\d*$  [^-+.]"),
            (r"^(?![^a]*$)b", "^b  [a]"),
            (r"[(?=]\(?=", r"[(?=]\(?="),
        ] {
            assert_eq!(check(pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn what_else_looks_around_is_not_known() {
        for pattern in [
            "(?=x)y",
            "^a(?=b)",
            "^a(?!b)c",
            "(?<=a)b",
            "^(?<!a)b",
            "^(?=a)b|c",
            "^(?=a)?b",
            "^(?=a(?!b))a",
            "^(?=a)b(?=c)c",
            "^(?!ab)",
            r"^(?!\d)a",
            "^(?![a&&b])c",
            "^(?![^^-z])b",
            "^(?![^^a]*$)b",
            "^(?=*a)b",
            "^(?=^{2}a)b",
            "^(?=a",
            "é^(?=a)",
            "^(?=",
        ] {
            assert_eq!(check(pattern), "no", "{pattern}");
        }
    }
}
