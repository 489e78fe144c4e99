//! Downloads that are not waited for, and several streams at once.

use std::time::Duration;

use super::{Check, all, exactly, expect, must_panic};
use crate::report::CaseError;
use crate::rig::{DEADLINE, Rig};
use crate::{Alone, Buffer, CancelToken, Device, Op, Program, Recording, RunError, RunShape};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("a download brings what was there when it was queued", downloads_later),
    ("a deadline that passes costs nothing but the wait", deadlines),
    ("queued work outlives the handles of its operands", handles_dropped),
    ("streams in two threads do not disturb each other", two_threads),
    ("more rows than a dimension of a dispatch has workgroups", many_rows),
];

const ONE: RunShape = RunShape { tokens: 1, selected: 0 };
/// Runs of a program, enough for a graphics processor to be still at it when the next call comes.
const RUNS: usize = 50;

/// `x += y` over a row of `width`.
fn sum(device: &dyn Device, x: &Buffer, y: &Buffer, width: usize) -> Result<Box<dyn Program>, CaseError> {
    let add = Op::Add { x: x.clone(), y: y.clone(), width };
    Ok(device.compile(Recording { ops: vec![add] })?)
}

fn downloads_later(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let (x, y) = (exactly(rig, &[1.0, 2.0, 3.0])?, exactly(rig, &[10.0; 3])?);
    let program = sum(rig.device, &x, &y, 3)?;
    let first = rig.stream.download_later(&x, 1, 2)?;
    rig.stream.run(&*program, ONE, &Alone, &CancelToken::default())?;
    let second = rig.stream.download_later(&x, 1, 2)?;
    drop(rig.stream.download_later(&x, 0, 3)?); // given up
    rig.stream.upload_f32(&x, 0, &[0.0; 3])?;
    let mut got = [0.0; 2];
    second.finish(&mut got, DEADLINE)?;
    expect("what was there after the run", &got[..], &[12.0, 13.0])?;
    first.finish(&mut got, DEADLINE)?;
    expect("what was there before the run", &got[..], &[2.0, 3.0])?;
    must_panic("a download past the end", || drop(rig.stream.download_later(&x, 2, 2)))
}

fn deadlines(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let (x, y) = (exactly(rig, &[0.0; 1000])?, exactly(rig, &[1.0; 1000])?);
    let program = sum(rig.device, &x, &y, 1000)?;
    for _ in 0..RUNS {
        rig.stream.run(&*program, ONE, &Alone, &CancelToken::default())?;
    }
    let mut got = vec![0.0; 1000];
    let waits =
        [rig.stream.synchronize(Duration::ZERO), rig.stream.download_f32(&x, 0, &mut got, Duration::ZERO)];
    for wait in waits {
        if !matches!(wait, Ok(()) | Err(RunError::Deadline { .. })) {
            return Err(CaseError::Wrong(format!("a wait without time: {wait:?}")));
        }
    }
    rig.stream.synchronize(DEADLINE)?;
    expect("a sum", &all(rig, &x)?[999], &(RUNS as f32))
}

fn handles_dropped(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let kept = exactly(rig, &[0.0; 1000])?;
    let before = rig.device.memory().live_allocations;
    {
        let (x, y) = (exactly(rig, &[0.0; 1000])?, exactly(rig, &[1.0; 1000])?);
        let program = sum(rig.device, &x, &y, 1000)?;
        for _ in 0..RUNS {
            rig.stream.run(&*program, ONE, &Alone, &CancelToken::default())?;
        }
        rig.stream.copy(&x, &kept, 1000)?;
    }
    // Memory that is given out again at once must not be what the queued work still uses.
    drop(exactly(rig, &[-5.0; 1000])?);
    expect("a sum", &all(rig, &kept)?[999], &(RUNS as f32))?;
    expect("live handles", &rig.device.memory().live_allocations, &before)
}

fn two_threads(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let device = rig.device;
    let work = |step: f32| -> Result<(), CaseError> {
        let mut rig = Rig::new(device)?;
        let (x, y) = (exactly(&mut rig, &[0.0; 300])?, exactly(&mut rig, &[step; 300])?);
        let program = sum(device, &x, &y, 300)?;
        for round in 1..=RUNS {
            rig.stream.run(&*program, ONE, &Alone, &CancelToken::default())?;
            if round % 10 == 0 {
                expect("a sum on the way", &all(&mut rig, &x)?[..], &[step * round as f32; 300])?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| work(3.0));
        let own = work(1.0);
        let other = other.join().unwrap_or_else(|_| Err(CaseError::Wrong("a thread panicked".to_owned())));
        own.and(other)
    })
}

fn many_rows(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let rows = 70_001;
    let (x, y) = (exactly(rig, &vec![1.0; rows])?, exactly(rig, &vec![2.0; rows])?);
    let program = sum(rig.device, &x, &y, 1)?;
    let shape = RunShape { tokens: rows - 1, selected: 0 };
    rig.stream.run(&*program, shape, &Alone, &CancelToken::default())?;
    let sums = all(rig, &x)?;
    let wrong = sums[..rows - 1].iter().position(|sum| *sum != 3.0);
    expect("a row whose sum is not 3", &wrong, &None)?;
    expect("the row past the last", &sums[rows - 1], &1.0)
}
