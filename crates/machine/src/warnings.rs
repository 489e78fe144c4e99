//! What whoever watches the node should know for longer than a line lasts: the last warnings, for
//! `exo status`.

use std::collections::VecDeque;

use exo_types::NodeId;

use crate::NodeMachine;

/// Warnings kept; the oldest goes first.
const KEPT_MAX: usize = 8;
/// Longest text, in characters.
pub(crate) const TEXT_CHARS_MAX: usize = 600;
/// A member repeats at every dial that a key is in two places: said this often, in seconds.
const TWO_PROCESSES_EVERY_S: u64 = 60;

/// What to do with a copy. A node that left its cluster goes back by a code only.
const MAKE_NEW: &str = "end the copy and type `exo leave` there: it becomes a new node and keeps its models. `exo invite` on an admin's \
    node gives the code with which `exo join CODE` brings it in";

/// The last warnings, each with its time.
#[derive(Debug, Default)]
pub(crate) struct Warnings(VecDeque<Warning>);

#[derive(Debug)]
struct Warning {
    /// What it goes with, if that can be over.
    about: Option<String>,
    view: exo_api::WarningView,
}

impl Warnings {
    pub(crate) fn new(at_unix_s: u64, texts: Vec<String>) -> Self {
        let mut warnings = Self::default();
        texts.into_iter().for_each(|text| warnings.push(at_unix_s, None, text));
        warnings
    }

    fn push(&mut self, at_unix_s: u64, about: Option<String>, text: String) {
        let text = exo_types::clean_name(&text, TEXT_CHARS_MAX);
        self.0.retain(|known| known.view.text != text);
        self.0.push_back(Warning { about, view: exo_api::WarningView { at_unix_s, text } });
        if self.0.len() > KEPT_MAX {
            self.0.pop_front();
        }
    }

    /// Whether it was said less than `seconds` ago.
    fn is_recent(&self, text: &str, now_unix_s: u64, seconds: u64) -> bool {
        let same = self.0.iter().find(|known| known.view.text == text);
        same.is_some_and(|known| now_unix_s.saturating_sub(known.view.at_unix_s) < seconds)
    }

    pub(crate) fn views(&self) -> Vec<exo_api::WarningView> {
        self.0.iter().map(|warning| warning.view.clone()).collect()
    }
}

impl NodeMachine {
    /// A warning that stays in the view.
    pub(crate) fn warn(&mut self, text: String) {
        self.warn_about(None, text);
    }

    /// One that stays until [`NodeMachine::warn_no_more`].
    pub(crate) fn warn_about(&mut self, about: Option<String>, text: String) {
        self.warnings.push(self.now.unix_s, about, text.clone());
        self.notice(crate::Notice::Warning(text));
        self.view_changed();
    }

    /// What a warning was about is over.
    pub(crate) fn warn_no_more(&mut self, about: &str) {
        self.warnings.0.retain(|warning| warning.about.as_deref() != Some(about));
        self.view_changed();
    }

    /// Two processes use a member's key.
    pub(crate) fn warn_of_two_processes(&mut self, node: NodeId) {
        let (name, id) = (self.name_of(node), node.to_instance_name());
        self.warn(format!(
            "two processes use the key of {name} ({id}): its data folder or disk was copied. Neither is used until one of them ends; \
             {MAKE_NEW}"
        ));
    }

    /// A member says that another process uses this node's key.
    pub(crate) fn warn_of_another_process(&mut self, by: NodeId) {
        // Without its name, which it could change each time.
        let by = by.to_instance_name();
        let text = format!(
            "another process uses this node's key, says the member {by}: the data folder or disk was copied, and no member uses either; \
             {MAKE_NEW}"
        );
        if !self.warnings.is_recent(&text, self.now.unix_s, TWO_PROCESSES_EVERY_S) {
            self.warn(text);
        }
    }
}
