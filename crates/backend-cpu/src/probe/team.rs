//! Threads that start together, each on a processor of its own.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

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

    /// Whether to go on for another round: one member's clock decides for all, so that nobody waits alone.
    pub fn go_on(&self, began: Instant, time: Duration) -> bool {
        if self.start.wait().is_leader() {
            self.stop.store(began.elapsed() >= time, Ordering::Relaxed);
        }
        self.start.wait();
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Runs `work` on `threads` threads, but not on more than there are processors for: more do not go faster together,
/// they only wait for each other.
pub(super) fn run<T: Send>(threads: usize, work: impl Fn(&Member<'_>) -> T + Sync) -> Vec<T> {
    let cores = allowed_cores();
    let count = threads.clamp(1, exo_device::cores());
    let (start, stop) = (Barrier::new(count), AtomicBool::new(false));
    thread::scope(|scope| {
        let spawn = |index: usize| {
            let (work, core) = (&work, cores.get(index).copied());
            let member = Member { index, count, start: &start, stop: &stop };
            scope.spawn(move || {
                if let Some(core) = core {
                    pin_to(core);
                }
                work(&member)
            })
        };
        let team: Vec<_> = (0..count).map(spawn).collect();
        team.into_iter().map(|member| member.join().expect("measuring loops do not panic")).collect()
    })
}

/// Processors this thread may run on, in the system's numbering. Empty where the system does not say.
#[cfg(target_os = "linux")]
fn allowed_cores() -> Vec<usize> {
    // SAFETY: a cpu_set_t is plain bits; the call fills at most the size it is told.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
            return Vec::new();
        }
        set
    };
    // SAFETY: CPU_ISSET reads one bit of the set, and the index is below its size.
    (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
}

#[cfg(not(target_os = "linux"))]
fn allowed_cores() -> Vec<usize> {
    Vec::new()
}

/// Keeps this thread on one processor. A refusal leaves it where the system likes, which costs precision only.
#[cfg(target_os = "linux")]
fn pin_to(core: usize) {
    // SAFETY: a cpu_set_t is plain bits, `core` came from such a set, and the call only reads.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

#[cfg(not(target_os = "linux"))]
fn pin_to(_core: usize) {}
