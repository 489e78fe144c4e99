//! Networks that the system marks as public or private: Windows does, by its network categories.

#[cfg(not(windows))]
mod plain;
#[cfg(windows)]
mod windows;

#[cfg(not(windows))]
pub(crate) use plain::{adapter, ask};
#[cfg(windows)]
pub(crate) use windows::{adapter, ask};

/// What the system says of the networks that it knows, by adapter: whether the network is private. An adapter
/// may have several.
pub(crate) type Marks = Vec<(String, bool)>;

/// Whether an adapter's network counts as public: where the system marks networks, each that it does not call
/// private, and each that it says nothing of.
pub(crate) fn is_public(adapter: &str, marks: Option<&[(String, bool)]>) -> bool {
    let Some(marks) = marks else { return false };
    let bare = |adapter: &str| adapter.trim_matches(['{', '}']).to_ascii_lowercase();
    let adapter = bare(adapter);
    let mut own = marks.iter().filter(|(name, _)| bare(name) == adapter).peekable();
    own.peek().is_none() || own.any(|(_, is_private)| !is_private)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_to_be_private_is_public_where_the_system_says() {
        let marks = [("{A-1}", true), ("B-2", false), ("C-3", true), ("C-3", false)];
        let marks = marks.map(|(adapter, is_private)| (adapter.to_owned(), is_private));
        let is_public = |adapter| is_public(adapter, Some(&marks));
        assert!(!is_public("a-1") && !is_public("{A-1}"), "written in either way");
        assert!(is_public("{B-2}"));
        assert!(is_public("{C-3}"), "on two networks at once");
        assert!(is_public("{D-4}"), "not known to the system");
        assert!(super::is_public("{A-1}", Some(&[])), "the system does not answer");
        assert!(!super::is_public("{B-2}", None), "no such marks on this system");
    }
}
