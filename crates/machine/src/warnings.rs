//! What whoever watches the node should know for longer than a line lasts: the last warnings, for `exo status`.

use std::collections::VecDeque;

/// Warnings kept; the oldest goes first.
const KEPT_MAX: usize = 8;

/// The last warnings, each with its time.
#[derive(Debug, Default)]
pub(crate) struct Warnings(VecDeque<exo_api::WarningView>);

impl Warnings {
    pub(crate) fn new(at_unix_s: u64, texts: Vec<String>) -> Self {
        let mut warnings = Self::default();
        texts.into_iter().for_each(|text| warnings.push(at_unix_s, text));
        warnings
    }

    pub(crate) fn push(&mut self, at_unix_s: u64, text: String) {
        let text = exo_types::clean_name(&text, 600);
        self.0.retain(|known| known.text != text);
        self.0.push_back(exo_api::WarningView { at_unix_s, text });
        if self.0.len() > KEPT_MAX {
            self.0.pop_front();
        }
    }

    pub(crate) fn views(&self) -> Vec<exo_api::WarningView> {
        self.0.iter().cloned().collect()
    }
}
