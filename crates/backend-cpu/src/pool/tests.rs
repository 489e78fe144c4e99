#![allow(clippy::disallowed_methods, reason = "a sleep at a chosen moment, on no executor")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::*;

/// Fewer in an interpreter, which takes a thousand times as long.
const fn rounds(all: u64) -> u64 {
    if cfg!(miri) { all.div_ceil(100) } else { all }
}

/// Runs `pieces` pieces and checks that each ran exactly once.
fn check(pool: &Pool, pieces: usize) {
    let runs: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
    pool.turn().run(pieces, &|i| {
        runs[i].fetch_add(1, Ordering::Relaxed);
    });
    let wrong = runs.iter().position(|n| n.load(Ordering::Relaxed) != 1);
    assert_eq!(wrong, None, "of {pieces} pieces on {pool:?}");
}

#[test]
fn every_piece_runs_once_for_any_number_of_pieces_and_threads() {
    for threads in [1, 2, 3, 8] {
        let pool = Pool::new(threads, None).unwrap();
        for pieces in (0..70).chain([1000, 4097]).step_by(if cfg!(miri) { 9 } else { 1 }) {
            check(&pool, pieces);
        }
    }
}

#[test]
fn results_are_there_when_a_job_returns_and_inputs_when_it_starts() {
    let pool = Pool::new(3, None).unwrap();
    let (turn, mut numbers) = (pool.turn(), vec![0u64; 999]);
    for round in 1..=rounds(2000) {
        turn.chunks_mut(&mut numbers, 10, |i, chunk| {
            for n in chunk.iter_mut() {
                assert_eq!(*n, (round - 1) * (i as u64 + 1), "what another thread wrote a round ago");
                *n += i as u64 + 1;
            }
        });
    }
    assert!(numbers.iter().enumerate().all(|(at, n)| *n == rounds(2000) * (at as u64 / 10 + 1)));
}

/// Pauses around the point where workers fall asleep: each job meets them in another state.
#[test]
fn jobs_that_come_while_workers_fall_asleep_are_done() {
    let pool = Pool::new(3, None).unwrap();
    for round in 0..rounds(400) {
        check(&pool, 3 + (round % 5) as usize);
        let until = Instant::now() + Duration::from_micros(30 + round % 60);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
}

#[test]
fn threads_that_sleep_are_not_waited_for_but_woken() {
    let pool = Pool::new(2, None).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    let seen = Mutex::new(std::collections::BTreeSet::new());
    let start = Instant::now();
    while seen.lock().unwrap().len() < 2 {
        assert!(cfg!(miri) || start.elapsed() < Duration::from_secs(20), "the worker never came");
        pool.turn().run(4, &|_| {
            seen.lock().unwrap().insert(format!("{:?}", std::thread::current().id()));
            std::thread::sleep(Duration::from_millis(1));
        });
    }
}

#[test]
fn a_panic_in_a_piece_reaches_the_caller_and_the_pool_goes_on() {
    for threads in [1, 2, 4] {
        let pool = Pool::new(threads, None).unwrap();
        for bad in (0..40).step_by(if cfg!(miri) { 13 } else { 1 }) {
            let ran = AtomicUsize::new(0);
            let caught = guarded(|| {
                pool.turn().run(40, &|i| {
                    ran.fetch_add(1, Ordering::Relaxed);
                    assert!(i != bad, "piece {i}");
                });
            });
            let panic = caught.unwrap_err();
            assert_eq!(panic.downcast_ref::<String>(), Some(&format!("piece {bad}")));
            assert!(threads == 1 || ran.load(Ordering::Relaxed) == 40, "pieces were lost");
            check(&pool, 10);
        }
    }
}

#[test]
fn a_piece_that_asks_for_a_pool_is_refused_at_once() {
    let (pool, other) = (Pool::new(2, None).unwrap(), Pool::new(2, None).unwrap());
    for asked in [&pool, &other] {
        let caught = guarded(|| pool.turn().run(8, &|_| drop(asked.turn())));
        let panic = caught.unwrap_err();
        let text = panic.downcast_ref::<&str>().unwrap();
        assert!(text.contains("asked for a pool"), "{text}");
    }
    check(&pool, 10);
}

#[test]
fn callers_take_turns() {
    let pool = Pool::new(3, None).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..rounds(500)).for_each(|i| check(&pool, i as usize % 9)));
        }
    });
}

#[test]
fn pools_come_and_go_awake_or_asleep() {
    for round in 0..rounds(200) {
        let pool = Pool::new(4, None).unwrap();
        if round % 2 == 0 {
            check(&pool, 16);
        }
        if round % 20 == 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Six pools of two threads each on whatever cores there are: more watchers than cores, and everybody gets
/// on.
#[test]
fn many_pools_on_the_same_cores_all_make_progress() {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let pool = Pool::new(2, None).unwrap();
                (0..rounds(2000)).for_each(|i| check(&pool, 2 + i as usize % 7));
            });
        }
    });
    assert!(cfg!(miri) || start.elapsed() < Duration::from_secs(30), "took {:?}", start.elapsed());
}
