//! Copies, order of work, cancellation and exchange.

use std::sync::Mutex;

use super::{Check, all, exactly, expect, must_panic};
use crate::report::CaseError;
use crate::rig::{DEADLINE, Rig};
use crate::{
    Alone, Buffer, CancelToken, Element, Exchange, ExchangeError, Op, Program, Recording, RunError, RunShape,
};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("uploads and downloads at odd offsets", odd_offsets),
    ("an upload that does not fit is refused", upload_too_long),
    ("a copy takes the first elements and no more", copies),
    ("work is done in the order it was queued", ordered),
    ("a run without rows changes nothing", no_rows),
    ("more rows than the buffers hold are refused", too_many_rows),
    ("a cancelled run stops before the next layer", cancelled),
    ("an exchange sees the rows of the step and its sum goes on", exchanged),
    ("an exchange that fails ends the run", exchange_fails),
];

const ONE: RunShape = RunShape { tokens: 1, selected: 0 };

fn odd_offsets(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let buffer = exactly(rig, &[0.0; 11])?;
    rig.stream.upload_f32(&buffer, 3, &[1.0, 2.0, 3.0])?;
    rig.stream.upload_f32(&buffer, 10, &[9.0])?;
    rig.stream.upload_f32(&buffer, 11, &[])?;
    expect("the buffer", &all(rig, &buffer)?[..], &[0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 9.0])?;
    let mut part = [0.0; 2];
    rig.stream.download_f32(&buffer, 5, &mut part, DEADLINE)?;
    expect("two elements from the fifth on", &part[..], &[3.0, 0.0])?;
    let (mut seen, mut room) = (Vec::new(), vec![7.0]);
    rig.stream.show_f32(&buffer, 4..6, &mut room, DEADLINE, &mut |part| seen.extend_from_slice(part))?;
    expect("two elements that are shown", &seen[..], &[2.0, 3.0])
}

fn upload_too_long(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let buffer = exactly(rig, &[5.0; 4])?;
    let numbers = rig.device.buffer(Element::U32, 4)?;
    must_panic("an upload past the end", || drop(rig.stream.upload_f32(&buffer, 2, &[0.0; 3])))?;
    must_panic("an upload from past the end", || {
        drop(rig.stream.upload_f32(&buffer, usize::MAX, &[0.0; 2]))
    })?;
    must_panic("f32 in a buffer of u32", || drop(rig.stream.upload_f32(&numbers, 0, &[0.0])))?;
    must_panic("u32 in a buffer of f32", || drop(rig.stream.upload_u32(&buffer, 0, &[0])))?;
    expect("the buffer", &all(rig, &buffer)?[..], &[5.0; 4])
}

fn copies(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let (from, to) = (exactly(rig, &[1.0, 2.0, 3.0, 4.0, 5.0])?, exactly(rig, &[0.0; 4])?);
    rig.stream.copy(&from, &to, 3)?;
    expect("the copy", &all(rig, &to)?[..], &[1.0, 2.0, 3.0, 0.0])?;
    rig.stream.copy(&from, &from, 5)?;
    expect("a buffer copied to itself", &all(rig, &from)?[..], &[1.0, 2.0, 3.0, 4.0, 5.0])?;
    // Numbers are only seen through an op that uses them.
    let (numbers, copied) = (rig.numbers([2, 0])?, rig.device.buffer(Element::U32, 2)?);
    rig.stream.copy(&numbers, &copied, 2)?;
    let out = rig.result(2, 1)?;
    let select = Op::SelectRows { x: from.clone(), rows: copied, out: out.clone(), width: 1 };
    rig.run_shaped(vec![select], RunShape { tokens: 5, selected: 2 })?;
    expect("rows selected by copied numbers", &rig.read(&out, 2, 1)?[..], &[3.0, 1.0])?;
    must_panic("a copy past the end", || drop(rig.stream.copy(&from, &to, 5)))
}

/// `x += y`, twice.
fn sum(rig: &Rig<'_>, x: &Buffer, y: &Buffer) -> Result<Box<dyn Program>, CaseError> {
    let add = || Op::Add { x: x.clone(), y: y.clone(), width: 1 };
    Ok(rig.device.compile(Recording { ops: vec![add(), add()] })?)
}

fn ordered(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let (x, y, kept) = (exactly(rig, &[0.0])?, exactly(rig, &[1.0])?, exactly(rig, &[0.0])?);
    let (program, cancel) = (sum(rig, &x, &y)?, CancelToken::default());
    for _ in 0..100 {
        rig.stream.run(&*program, ONE, &Alone, &cancel)?; // x = 2
        rig.stream.copy(&x, &kept, 1)?;
        rig.stream.upload_f32(&y, 0, &[10.0])?;
        rig.stream.run(&*program, ONE, &Alone, &cancel)?; // x = 22
        rig.stream.copy(&kept, &y, 1)?; // y = 2
        rig.stream.run(&*program, ONE, &Alone, &cancel)?; // x = 26
        expect("the last sum", &all(rig, &x)?[..], &[26.0])?;
        rig.stream.upload_f32(&x, 0, &[0.0])?;
        rig.stream.upload_f32(&y, 0, &[1.0])?;
    }
    Ok(())
}

fn no_rows(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let (x, y) = (exactly(rig, &[1.0])?, exactly(rig, &[1.0])?);
    let program = sum(rig, &x, &y)?;
    let shape = RunShape { tokens: 0, selected: 0 };
    rig.stream.run(&*program, shape, &Alone, &CancelToken::default())?;
    expect("the operand", &all(rig, &x)?[..], &[1.0])
}

fn too_many_rows(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let (x, y) = (exactly(rig, &[1.0; 3])?, exactly(rig, &[1.0; 2])?);
    let program = sum(rig, &x, &y)?;
    let mut run = |tokens| {
        let shape = RunShape { tokens, selected: 0 };
        rig.stream.run(&*program, shape, &Alone, &CancelToken::default())
    };
    run(2)?;
    must_panic("a run of three rows on buffers of two", || drop(run(3)))
}

/// Does something in the middle of a run, and counts what it was handed.
struct Middle<'a> {
    action: &'a (dyn Fn(&mut [f32]) -> Result<(), ExchangeError> + Sync),
    lengths: Mutex<Vec<usize>>,
}

impl<'a> Middle<'a> {
    fn new(action: &'a (dyn Fn(&mut [f32]) -> Result<(), ExchangeError> + Sync)) -> Self {
        Self { action, lengths: Mutex::default() }
    }
}

impl Exchange for Middle<'_> {
    fn is_alone(&self) -> bool {
        false
    }

    fn sum(&self, partial: &mut [f32]) -> Result<(), ExchangeError> {
        self.lengths.lock().expect("no test panics while it holds this").push(partial.len());
        (self.action)(partial)
    }
}

/// Two layers with an exchange at the end of the first; each adds `y` to `x`.
fn two_layers(rig: &Rig<'_>, x: &Buffer, y: &Buffer, width: usize) -> Result<Box<dyn Program>, CaseError> {
    let add = || Op::Add { x: x.clone(), y: y.clone(), width };
    let ops = vec![
        Op::LayerBoundary { layer: 4 },
        add(),
        Op::Exchange { x: x.clone(), width },
        Op::LayerBoundary { layer: 5 },
        add(),
    ];
    Ok(rig.device.compile(Recording { ops })?)
}

fn cancelled(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let (x, y) = (exactly(rig, &[0.0])?, exactly(rig, &[1.0])?);
    let program = two_layers(rig, &x, &y, 1)?;
    let cancel = CancelToken::default();
    let act = |_: &mut [f32]| {
        cancel.cancel();
        Ok(())
    };
    let middle = Middle::new(&act);
    let result = rig.stream.run(&*program, ONE, &middle, &cancel);
    expect("a run cancelled in its first layer", &result, &Err(RunError::Cancelled { layer: 5 }))?;
    expect("the sum after one layer", &all(rig, &x)?[..], &[1.0])?;
    let result = rig.stream.run(&*program, ONE, &Alone, &cancel);
    expect("a run cancelled before it started", &result, &Err(RunError::Cancelled { layer: 4 }))?;
    rig.stream.run(&*program, ONE, &Alone, &CancelToken::default())?;
    expect("the sum after a whole run", &all(rig, &x)?[..], &[3.0])
}

fn exchanged(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let (x, y) = (exactly(rig, &[0.0; 6])?, exactly(rig, &[1.0; 6])?);
    let program = two_layers(rig, &x, &y, 2)?;
    let act = |partial: &mut [f32]| {
        partial.iter_mut().for_each(|x| *x *= 10.0);
        Ok(())
    };
    let middle = Middle::new(&act);
    rig.stream.run(&*program, RunShape { tokens: 2, selected: 0 }, &middle, &CancelToken::default())?;
    expect("two rows of three", &all(rig, &x)?[..], &[11.0, 11.0, 11.0, 11.0, 0.0, 0.0])?;
    let lengths = middle.lengths.lock().expect("no test panics while it holds this").clone();
    expect("elements exchanged", &lengths[..], &[4])
}

fn exchange_fails(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let (x, y) = (exactly(rig, &[0.0])?, exactly(rig, &[1.0])?);
    let program = two_layers(rig, &x, &y, 1)?;
    let error = ExchangeError { reason: "nobody there".to_owned() };
    let act = |_: &mut [f32]| Err(error.clone());
    let result = rig.stream.run(&*program, ONE, &Middle::new(&act), &CancelToken::default());
    expect("the run", &result, &Err(RunError::Exchange(error.clone())))?;
    expect("the sum after one layer", &all(rig, &x)?[..], &[1.0])
}
