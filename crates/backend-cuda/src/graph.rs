//! Steps that come again: captured once as a CUDA graph, then launched as one.

use std::collections::HashMap;

use exo_backend::RunShape;

use crate::driver::Captured;

/// Most rows of a step that is worth capturing: decode. Starting the kernels of a long prefill costs nothing beside running them.
const TOKENS_MAX: usize = 64;
/// Most graphs a program keeps; past that its steps are started kernel by kernel.
const GRAPHS_MAX: usize = 32;

/// What to do with a step.
pub(crate) enum Plan<'a> {
    /// Start its kernels one by one.
    Plain,
    /// Capture it, and hand it back to [`Graphs::keep`].
    Capture,
    /// Launch what was captured.
    Replay(&'a Captured),
}

/// The graphs of a program, by the rows of a run.
#[derive(Default, Debug)]
pub(crate) struct Graphs {
    /// `None`: was seen once.
    known: HashMap<(usize, usize), Option<Captured>>,
}

impl Graphs {
    /// A shape is captured when it comes a second time: many come only once.
    pub(crate) fn plan(&mut self, shape: RunShape) -> Plan<'_> {
        let key = (shape.tokens, shape.selected);
        if shape.tokens > TOKENS_MAX || (self.known.len() >= GRAPHS_MAX && !self.known.contains_key(&key)) {
            return Plan::Plain;
        }
        let is_known = self.known.contains_key(&key);
        match self.known.entry(key).or_insert(None) {
            Some(captured) => Plan::Replay(captured),
            None if is_known => Plan::Capture,
            None => Plan::Plain,
        }
    }

    pub(crate) fn keep(&mut self, shape: RunShape, captured: Captured) -> &Captured {
        self.known.entry((shape.tokens, shape.selected)).or_insert(None).insert(captured)
    }
}
