//! Makes a failing run smaller while the same invariant breaks: fewer faults, clients and nodes, less time.

use crate::invariants::Failure;
use crate::run::run;
use crate::scenario::{RunSelection, Scenario};

/// A run that breaks an invariant.
#[derive(Clone, PartialEq, Debug)]
pub struct Broken {
    /// The run.
    pub choice: RunSelection,
    /// What it breaks.
    pub failure: Failure,
}

impl Broken {
    /// What a person needs to know, in a few lines.
    pub fn describe(&self) -> String {
        let Failure { invariant, at, text } = &self.failure;
        let (seed, at) = (self.choice.seed, crate::world::seconds(*at));
        format!(
            "seed {seed} breaks `{invariant}` at {at:.3} s: {text}\n    {} [--trace]",
            self.choice.command()
        )
    }
}

/// The smallest run that `attempts` runs find. Breaks the same invariant, perhaps in another way.
pub fn shrink(broken: Broken, attempts: u32) -> Broken {
    let mut search = Search { best: broken, left: attempts };
    search.lists();
    search.nodes();
    search.lists();
    search.time();
    search.best
}

struct Search {
    best: Broken,
    left: u32,
}

impl Search {
    /// Whether a run breaks the same invariant; then it is the best.
    fn attempt(&mut self, choice: RunSelection) -> bool {
        if self.left == 0 || choice == self.best.choice {
            return false;
        }
        self.left -= 1;
        match run(&choice).failure {
            Some(failure) if failure.invariant == self.best.failure.invariant => {
                self.best = Broken { choice, failure };
                true
            }
            _ => false,
        }
    }

    fn lists(&mut self) {
        let scenario = Scenario::new(&self.best.choice);
        let faults = scenario.faults.iter().map(|fault| fault.index).collect();
        self.list(faults, |choice, list| choice.only = Some(list));
        let clients = scenario.clients.iter().map(|client| client.index).collect();
        self.list(clients, |choice, list| choice.clients = Some(list));
    }

    /// Leaves out half, then quarters, and so on down to single ones.
    fn list(&mut self, mut kept: Vec<usize>, set: impl Fn(&mut RunSelection, Vec<usize>)) {
        let mut size = kept.len();
        while size > 0 {
            let mut from = 0;
            while from < kept.len() {
                let mut less = kept.clone();
                less.drain(from..(from + size).min(kept.len()));
                let mut choice = self.best.choice.clone();
                set(&mut choice, less.clone());
                if self.attempt(choice) {
                    kept = less;
                } else {
                    from += size;
                }
            }
            size /= 2;
        }
    }

    fn nodes(&mut self) {
        let now = Scenario::new(&self.best.choice).nodes();
        for nodes in 1..now {
            if self.attempt(RunSelection { nodes: Some(nodes), ..self.best.choice.clone() }) {
                return;
            }
        }
    }

    /// No longer than until it breaks, or half of that, where an end of the run breaks it.
    fn time(&mut self) {
        loop {
            let seconds = self.best.choice.seconds.unwrap_or(crate::scenario::SECONDS);
            let breaks_at = self.best.failure.at.0.div_ceil(1_000_000);
            let less = if breaks_at < seconds { breaks_at } else { seconds / 2 };
            if less == 0 || !self.attempt(RunSelection { seconds: Some(less), ..self.best.choice.clone() }) {
                return;
            }
        }
    }
}
