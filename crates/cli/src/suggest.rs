//! Which name was meant by one that is none.

/// The known name that is nearest, if it is so near that it may have been meant: one that differs in a third
/// of its characters is another.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = |known: &str| {
        let most = (known.len() / 3).max(1);
        (known.len().abs_diff(name.len()) <= most).then(|| distance(name, known)).filter(|far| *far <= most)
    };
    known.filter_map(|known| Some((near(known)?, known))).min().map(|(_, known)| known)
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
