//! What is measured around `handle`.

use std::collections::BTreeMap;

use exo_machine::{Effect, Input, NodeMachine, Now, Outgoing};

use crate::clock::thread_ns;
use crate::counting::allocated;

/// What the calls of one machine cost.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    /// Whether tokens are being made, or only preparations.
    pub is_on: bool,
    /// Read before each call while on.
    pub cold: Vec<u8>,
    /// Nanoseconds of every call, those while it is off too.
    pub calls_ns: Vec<u32>,
    /// What was fed in each.
    pub calls_of: Vec<&'static str>,
    /// Which calls were made while it was on.
    pub calls_on: Vec<bool>,
    /// While on.
    pub allocations: u64,
    /// While on.
    pub allocated_bytes: u64,
    /// Effects while on.
    pub effects: u64,
    /// Of these, messages on data links.
    pub data_messages: u64,
    /// Steps given to the machine's engines while on.
    pub steps: u64,
}

impl Meter {
    /// Feeds the machine.
    pub fn handle(&mut self, machine: &mut NodeMachine, now: Now, input: Input) -> Vec<Effect> {
        let of = name(&input);
        if self.is_on {
            read(&self.cold);
        }
        let (before, began) = (allocated(), thread_ns());
        let effects = machine.handle(now, input);
        let (ended, after) = (thread_ns(), allocated());
        self.calls_ns.push(u32::try_from(ended - began).unwrap_or(u32::MAX));
        self.calls_of.push(of);
        self.calls_on.push(self.is_on);
        if self.is_on {
            self.allocations += after.0 - before.0;
            self.allocated_bytes += after.1 - before.1;
            self.effects += effects.len() as u64;
            for effect in &effects {
                self.data_messages +=
                    u64::from(matches!(effect, Effect::Send { message: Outgoing::Data(_), .. }));
                self.steps += u64::from(matches!(effect, Effect::Compute { .. }));
            }
        }
        effects
    }

    /// Takes the shorter time of each call: both runs did the same, and what was longer was not the
    /// machine's.
    pub fn shorten(&mut self, other: &Self) -> Result<(), String> {
        if self.calls_of != other.calls_of || self.allocations != other.allocations {
            return Err("two runs of the same case differ".to_owned());
        }
        for (own, other) in self.calls_ns.iter_mut().zip(&other.calls_ns) {
            *own = (*own).min(*other);
        }
        Ok(())
    }

    /// Takes off what looking at the clock takes.
    pub fn subtract(&mut self, ns: u32) {
        self.calls_ns.iter_mut().for_each(|call| *call = call.saturating_sub(ns));
    }

    /// Nanoseconds in all while on.
    pub fn total_ns(&self) -> u64 {
        let on = self.calls_ns.iter().zip(&self.calls_on).filter(|(_, on)| **on);
        on.map(|(ns, _)| u64::from(*ns)).sum()
    }

    /// The longest call of all, in nanoseconds, and what was fed.
    pub fn longest(&self) -> (u32, &'static str) {
        self.calls_ns.iter().copied().zip(self.calls_of.iter().copied()).max().unwrap_or_default()
    }

    /// For each kind of input while on: calls, nanoseconds in all, the longest.
    pub fn by_input(&self) -> BTreeMap<&'static str, (u64, u64, u32)> {
        let mut by_input: BTreeMap<_, (u64, u64, u32)> = BTreeMap::new();
        for ((ns, of), _) in
            self.calls_ns.iter().zip(&self.calls_of).zip(&self.calls_on).filter(|(_, on)| **on)
        {
            let (calls, total, longest) = by_input.entry(*of).or_default();
            (*calls, *total, *longest) = (*calls + 1, *total + u64::from(*ns), (*longest).max(*ns));
        }
        by_input
    }
}

/// What looking at the clock twice takes, in nanoseconds, after so much was read.
pub fn clock_ns(cold: &[u8]) -> u32 {
    let look = |_| {
        read(cold);
        let began = thread_ns();
        thread_ns() - began
    };
    (0..100).map(look).min().map_or(0, |ns| u32::try_from(ns).unwrap_or(0))
}

fn read(bytes: &[u8]) {
    std::hint::black_box(bytes.iter().step_by(64).map(|byte| u64::from(*byte)).sum::<u64>());
}

fn name(input: &Input) -> &'static str {
    match input {
        Input::Timer => "Timer",
        Input::LinkUp { .. } | Input::LinkAccepted { .. } | Input::LinkDown { .. } => "a link",
        Input::Heard { .. } => "Heard",
        Input::Control { .. } => "Control",
        Input::Data { .. } => "Data",
        Input::Persisted { .. } => "Persisted",
        Input::Planned { .. } => "Planned",
        Input::Engine { .. } => "Engine",
        Input::Computed { .. } => "Computed",
        Input::Sampled(_) => "Sampled",
        Input::Start { .. } => "Start",
        _ => "others",
    }
}
