//! Which of many tools the engine refuses, found with a counted number of compilations.

use serde_json::Value;

use crate::{Body, CallShape, Calls, Compiler, Layout, TemplatePiece, Thought};

/// Grammars that are compiled for one list of tools. One bad tool among 512 takes 19.
const TRIALS_MAX: u32 = 48;
/// Schemas of texts of all tools together that are tried alone.
const PATTERNS_MAX: usize = 64;

/// A search over one list of tools.
pub struct ToolSearch<'a> {
    compiler: &'a Compiler,
    trials: u32,
    patterns: usize,
}

impl<'a> ToolSearch<'a> {
    /// Nothing was tried yet.
    pub fn new(compiler: &'a Compiler) -> Self {
        Self { compiler, trials: 0, patterns: 0 }
    }

    /// Places of the calls that may be refused, of a list that is: its halves are compiled, and halves of
    /// those that are refused. When too many were compiled, all that are left.
    pub fn suspects(&mut self, calls: &[&CallShape]) -> Vec<usize> {
        let mut found = Vec::new();
        self.halve(calls, 0, &mut found);
        found
    }

    fn halve(&mut self, calls: &[&CallShape], at: usize, found: &mut Vec<usize>) {
        if let [_] = calls {
            found.push(at);
            return;
        }
        let (first, second) = calls.split_at(calls.len() / 2);
        for (half, at) in [(first, at), (second, at + first.len())] {
            if half.is_empty() || self.is_taken(half) {
                continue;
            }
            self.halve(half, at, found);
        }
    }

    /// Whether all of these are; not known when too many were tried.
    fn is_taken(&mut self, calls: &[&CallShape]) -> bool {
        self.trials += u32::from(self.trials <= TRIALS_MAX);
        self.trials <= TRIALS_MAX && self.compiler.constrain(alone(calls)).is_ok()
    }

    /// Why the engine refuses a call of this tool, if it does.
    pub fn refusal(&mut self, call: &CallShape) -> Option<String> {
        self.trials += 1;
        // What was left out of one tool is tried again: as many more as it took to find them.
        if self.trials > 2 * TRIALS_MAX {
            return Some(format!("more than {TRIALS_MAX} grammars were tried to find what is refused"));
        }
        self.compiler.constrain(alone(&[call])).err().map(|error| error.to_string())
    }

    /// Why a schema of texts is refused, if it is. Of very many only the first are tried.
    pub fn try_texts(&mut self, schema: &Value) -> Result<(), String> {
        self.patterns += 1;
        if self.patterns > PATTERNS_MAX { Ok(()) } else { self.compiler.try_texts(schema) }
    }
}

impl Compiler {
    /// Why a schema of texts cannot be enforced, if it cannot.
    pub fn try_texts(&self, schema: &Value) -> Result<(), String> {
        let body = Body::Json(schema.clone());
        let layout = Layout { thought: Thought::No, answer_open: Vec::new(), spelled: Vec::new(), body };
        self.constrain(layout.grammar()).map(drop).map_err(|e| e.to_string())
    }
}

/// The grammar of one call of one of these.
fn alone(tools: &[&CallShape]) -> String {
    let calls = Calls {
        begin: vec![TemplatePiece::Text("call ".to_owned())],
        other_begin: None,
        between: Vec::new(),
        end: Vec::new(),
        tools: tools.iter().map(|call| (*call).clone()).collect(),
        is_parallel: false,
        is_required: true,
        answer: None,
    };
    Layout { thought: Thought::No, answer_open: Vec::new(), spelled: Vec::new(), body: Body::Calls(calls) }
        .grammar()
}
