//! The text of a regular expression, as far as its brackets and branches go.

/// What stands between the `|` of a pattern that are in no group.
pub(crate) fn branches(pattern: &str) -> Vec<&str> {
    let (mut found, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, sign) in signs(pattern) {
        match sign {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b'|' if depth == 0 => {
                found.push(&pattern[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&pattern[start..]);
    found
}

/// Whether every bracket of a group has its other one.
pub(crate) fn is_balanced(pattern: &str) -> bool {
    let depth = signs(pattern).try_fold(0_usize, |depth, (_, sign)| match sign {
        b'(' => Some(depth + 1),
        b')' => depth.checked_sub(1),
        _ => Some(depth),
    });
    depth == Some(0)
}

/// Whether it says anywhere where a text begins or ends.
pub(crate) fn has_anchor(pattern: &str) -> bool {
    signs(pattern).any(|(_, sign)| matches!(sign, b'^' | b'$'))
}

/// The signs of a pattern that are neither escaped nor in a class.
pub(crate) fn signs(pattern: &str) -> impl Iterator<Item = (usize, u8)> + '_ {
    let (mut is_escaped, mut in_class) = (false, false);
    pattern.bytes().enumerate().filter(move |(_, byte)| {
        if is_escaped {
            is_escaped = false;
            return false;
        }
        match byte {
            b'\\' => is_escaped = true,
            b'[' => in_class = true,
            b']' => in_class = false,
            _ => return !in_class,
        }
        false
    })
}
