//! Threads that start together, each on a processor of its own.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use exo_device::CoreList;

/// What a member of a team knows of it.
pub(super) struct Member<'a> {
    /// From 0.
    pub index: usize,
    /// Members in all.
    pub count: usize,
    start: &'a Barrier,
    stop: &'a AtomicBool,
}

impl Member<'_> {
    /// Waits until every member has come this far.
    pub fn line_up(&self) {
        self.start.wait();
    }

    /// Whether to go on for another round: one member's clock decides for all, so that no one waits alone.
    pub fn go_on(&self, began: Instant, time: Duration) -> bool {
        if self.start.wait().is_leader() {
            self.stop.store(began.elapsed() >= time, Ordering::Relaxed);
        }
        self.start.wait();
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Runs `work` on `threads` threads, but not on more than there are processors for: more do not go faster
/// together, they only wait for each other.
pub(super) fn run<T: Send>(threads: usize, work: impl Fn(&Member<'_>) -> T + Sync) -> Vec<T> {
    // Not told, or refused: the threads run where the system likes, which costs precision only.
    let cores = CoreList::allowed().ok();
    let count = threads.clamp(1, exo_device::cores());
    let (start, stop) = (Barrier::new(count), AtomicBool::new(false));
    thread::scope(|scope| {
        let spawn = |index: usize| {
            let (work, cores) = (&work, &cores);
            let member = Member { index, count, start: &start, stop: &stop };
            scope.spawn(move || {
                let _refused = cores.as_ref().map(|cores| cores.pin(index));
                work(&member)
            })
        };
        let team: Vec<_> = (0..count).map(spawn).collect();
        team.into_iter().map(|member| member.join().expect("measuring loops do not panic")).collect()
    })
}
