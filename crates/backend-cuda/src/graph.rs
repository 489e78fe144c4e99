//! Steps that come again: captured once as a CUDA graph, then launched as one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use exo_backend::RunShape;

use crate::queue::Captured;

/// Most rows of a step that is worth capturing: decode. Starting the kernels of a long prefill costs nothing
/// beside running them.
const TOKENS_MAX: usize = 64;
/// Most graphs a program keeps; past that its steps are started kernel by kernel.
const GRAPHS_MAX: usize = 32;

/// What to do with a step.
pub(crate) enum LaunchMode<'a> {
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
    known: HashMap<(usize, usize), GraphState>,
}

/// What is known of a shape that came.
#[derive(Debug)]
enum GraphState {
    /// It came once.
    Once,
    /// The driver could not capture it: not tried again.
    Refused,
    Captured(Captured),
}

impl Graphs {
    /// A shape is captured when it comes a second time: many come only once.
    pub(crate) fn plan(&mut self, shape: RunShape) -> LaunchMode<'_> {
        let key = (shape.tokens, shape.selected);
        if shape.tokens > TOKENS_MAX || (self.known.len() >= GRAPHS_MAX && !self.known.contains_key(&key)) {
            return LaunchMode::Plain;
        }
        match self.known.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(GraphState::Once);
                LaunchMode::Plain
            }
            Entry::Occupied(entry) => match entry.into_mut() {
                GraphState::Once => LaunchMode::Capture,
                GraphState::Refused => LaunchMode::Plain,
                GraphState::Captured(captured) => LaunchMode::Replay(captured),
            },
        }
    }

    pub(crate) fn keep(&mut self, shape: RunShape, captured: Captured) {
        self.known.insert((shape.tokens, shape.selected), GraphState::Captured(captured));
    }

    pub(crate) fn refuse(&mut self, shape: RunShape) {
        self.known.insert((shape.tokens, shape.selected), GraphState::Refused);
    }
}
