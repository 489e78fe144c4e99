//! Which name was meant by one that is none.

/// The known name that is nearest, if it is so near that it may have been meant: one that differs in a third
/// of its characters is another.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |known: &'a str| (strsim::levenshtein(name, known), known);
    let is_near = |(distance, known): &(usize, &str)| *distance <= (known.len() / 3).max(1);
    known.map(distance).filter(is_near).min().map(|(_, known)| known)
}
