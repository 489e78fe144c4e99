//! Whether a device keeps the contract's promises about memory, order, streams, cancellation and bad input.
//! For the tests of backends; nothing that is shipped calls it.
//!
//! Some cases provoke panics on purpose and catch them: their messages in the output of a passing test are no
//! failure.
//!
//! Start reading at [`run`].

mod inputs;
mod kv;
mod memory;
mod order;
mod streams;

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::report::{CaseError, CaseOutcome, Report, guarded};
use crate::rig::Rig;
use exo_types::DType;

use crate::{Buffer, Device, Element, Op, OpKind, Support};

type Check = fn(&mut Rig<'_>) -> Result<(), CaseError>;

/// Runs every case on `device`. `other` is another device of the same backend, or the same one opened again:
/// its handles must be refused. A device whose memory is small enough to fill, 1 GiB or less, is filled.
pub fn run(device: &dyn Device, other: &dyn Device) -> Report {
    let mut report = Report::default();
    let checks: Vec<(&str, Check)> =
        [memory::CHECKS, order::CHECKS, streams::CHECKS, kv::CHECKS, inputs::CHECKS]
            .into_iter()
            .flatten()
            .copied()
            .collect();
    for (name, check) in checks {
        let with = |rig: &mut Rig<'_>| check(rig).and_then(|()| still_works(rig));
        report.push(name, guarded(|| Rig::new(device).and_then(|mut rig| with(&mut rig)).into()));
    }
    report.push(
        "handles of another device are refused",
        guarded(|| memory::foreign_handles(device, other).into()),
    );
    report.push("memory in pieces is memory", guarded(|| memory::in_pieces(device)));
    report.push("the last byte can be had and one more cannot", guarded(|| memory::exact_fit(device)));
    report.push(
        "what it says it cannot run is what it does not support",
        guarded(|| reported_types(device).into()),
    );
    let left = device.memory();
    let clean = left.live_allocations == 0 && left.allocated_bytes == 0;
    let what = format!("{left:?} after every handle was dropped");
    report.push(
        "nothing is left at the end",
        if clean { CaseOutcome::Passed } else { CaseOutcome::Failed { what } },
    );
    report
}

/// A planner reads the facts, and loading asks the device.
fn reported_types(device: &dyn Device) -> Result<(), CaseError> {
    let is_missing = |dtype: &DType| {
        let asked = [OpKind::MatMul, OpKind::Embed].map(|op| device.supports_op(op, Some(*dtype)));
        asked.contains(&Support::Unsupported)
    };
    let missing: Vec<DType> = DType::ALL.into_iter().filter(is_missing).collect();
    expect("types that it cannot run", &device.facts().unsupported_types, &missing)
}

/// After whatever happened, a sum is still a sum.
fn still_works(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let x = rig.rows(&[1.0, 2.0], 2)?;
    let y = rig.rows(&[10.0, 20.0], 2)?;
    rig.run(Op::Add { x: x.clone(), y, width: 2 }, 1)?;
    expect("a sum afterwards", &rig.read(&x, 1, 2)?, &[11.0, 22.0])
}

fn expect<A, B>(what: &str, got: &A, expected: &B) -> Result<(), CaseError>
where
    A: PartialEq<B> + Debug + ?Sized,
    B: Debug + ?Sized,
{
    match got == expected {
        true => Ok(()),
        false => Err(CaseError::Wrong(format!("{what}: {got:?}, expected {expected:?}"))),
    }
}

fn must_panic(what: &str, action: impl FnOnce()) -> Result<(), CaseError> {
    match catch_unwind(AssertUnwindSafe(action)) {
        Err(_) => Ok(()),
        Ok(()) => Err(CaseError::Wrong(format!("{what} was accepted"))),
    }
}

/// A buffer of exactly these elements.
fn exactly(rig: &mut Rig<'_>, data: &[f32]) -> Result<Buffer, CaseError> {
    let buffer = rig.device.buffer(Element::F32, data.len())?;
    rig.stream.upload_f32(&buffer, 0, data)?;
    Ok(buffer)
}

fn all(rig: &mut Rig<'_>, buffer: &Buffer) -> Result<Vec<f32>, CaseError> {
    let mut data = vec![0.0; buffer.len];
    rig.stream.download_f32(buffer, 0, &mut data, crate::rig::DEADLINE)?;
    Ok(data)
}
