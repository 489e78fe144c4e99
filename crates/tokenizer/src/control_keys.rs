//! By what control tokens are recognised before they are looked for.

use std::collections::BTreeSet;

/// By what control tokens are recognised before they are looked for.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    chars: BTreeSet<char>,
    /// A control token is looked for in normalised text, where other signs may have become a key.
    normalized: bool,
}

impl Keys {
    /// From the control tokens' texts, and whether any is looked for in normalised text.
    pub(crate) fn of<'t>(texts: impl Iterator<Item = &'t str>, normalized: bool) -> Self {
        let key = |text: &str| text.chars().find(|c| is_sign(*c)).or_else(|| text.chars().next());
        Self { chars: texts.filter_map(key).collect(), normalized }
    }

    pub(crate) fn has(&self, c: char) -> bool {
        let may_become = || self.normalized && !c.is_ascii() && is_sign(c);
        self.chars.contains(&c) || may_become()
    }
}

fn is_sign(c: char) -> bool {
    !c.is_alphanumeric() && !c.is_whitespace()
}
