//! Giving out memory, running out of it, and getting it back.

use exo_types::{ByteSource, DType, SourceLost, TensorView};
use std::sync::Arc;

use super::{Check, all, exactly, expect, must_panic};
use crate::report::{CaseError, CaseOutcome};
use crate::rig::Rig;
use crate::{
    AllocError, Device, Element, KvDType, KvShape, Op, Recording, Rows, RunError, RunShape, WeightError,
};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("a buffer starts as zeros", zeroed),
    ("every handle that drops gives its memory back", drops_are_counted),
    ("a clone keeps the memory until it drops too", clones_share),
    ("a program keeps what it uses", programs_hold),
    ("more memory than there is is refused", too_much),
    ("a source that is lost shows", lost_source),
];

/// Larger devices are not filled: it would take long, or the machine down.
const FILL_BYTES_MAX: u64 = 1 << 30;

const SHAPE: KvShape =
    KvShape { layers: 2, kv_heads: 1, head_dim: 8, page_tokens: 4, pages: 3, dtype: KvDType::F32 };

fn zeroed(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let dirty = exactly(rig, &[7.0; 1000])?;
    drop(dirty); // so that memory which is handed on unchanged would show
    let buffer = rig.device.buffer(Element::F32, 1000)?;
    let data = all(rig, &buffer)?;
    expect("a new buffer", &data[..], &[0.0; 1000])
}

fn drops_are_counted(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let before = rig.device.memory();
    let buffer = rig.device.buffer(Element::U32, 100)?;
    let weight = rig.matrix(DType::F16, 4, 8, vec![0; 64])?;
    let kv = rig.device.kv_cache(SHAPE)?;
    let held = rig.device.memory();
    expect("live handles", &(held.live_allocations - before.live_allocations), &3)?;
    let least = 400 + weight.footprint_bytes + SHAPE.total_bytes();
    if held.allocated_bytes - before.allocated_bytes < least {
        return Err(CaseError::Wrong(format!(
            "{held:?} counts less than {least} bytes more than {before:?}"
        )));
    }
    drop((buffer, weight, kv));
    let after = rig.device.memory();
    expect("live handles afterwards", &after.live_allocations, &before.live_allocations)?;
    expect("bytes afterwards", &after.allocated_bytes, &before.allocated_bytes)
}

fn clones_share(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let before = rig.device.memory().live_allocations;
    let buffer = exactly(rig, &[1.0, 2.0])?;
    let clone = buffer.clone();
    drop(buffer);
    expect("a clone's elements", &all(rig, &clone)?[..], &[1.0, 2.0])?;
    expect("live handles", &rig.device.memory().live_allocations, &(before + 1))
}

fn programs_hold(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let before = rig.device.memory().live_allocations;
    let (x, y) = (exactly(rig, &[1.0])?, exactly(rig, &[2.0])?);
    let program = rig.device.compile(Recording { ops: vec![Op::Add { x, y, width: 1 }] })?;
    let shape = RunShape { tokens: 1, selected: 0 };
    rig.stream.run(&*program, shape, &crate::Alone, &crate::CancelToken::default())?;
    rig.stream.synchronize(crate::rig::DEADLINE)?;
    drop(program);
    expect("live handles after the program dropped", &rig.device.memory().live_allocations, &before)
}

fn too_much(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let total = rig.device.memory().total_bytes;
    let before = rig.device.memory().live_allocations;
    for len in [usize::MAX, usize::MAX / 4, (total / 4).saturating_add(1) as usize] {
        match rig.device.buffer(Element::F32, len) {
            Err(AllocError::OutOfMemory { .. }) => {}
            other => return Err(CaseError::Wrong(format!("a buffer of {len} elements: {other:?}"))),
        }
    }
    for pages in [usize::MAX, (total / SHAPE.page_bytes()) as usize] {
        match rig.device.kv_cache(KvShape { pages, ..SHAPE }) {
            Err(AllocError::OutOfMemory { .. }) => {}
            other => return Err(CaseError::Wrong(format!("a cache of {pages} pages: {other:?}"))),
        }
    }
    expect("live handles", &rig.device.memory().live_allocations, &before)
}

/// Bytes that are never the real ones.
struct Lost(Vec<u8>);

impl ByteSource for Lost {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn check(&self) -> Result<(), SourceLost> {
        Err(SourceLost { name: "lost.gguf".to_owned() })
    }
}

/// Either where the tensor is taken in or where it is used.
fn lost_source(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let (name, source) = ("w".to_owned(), Arc::new(Lost(vec![0; 64])));
    let tensor = TensorView { name, dtype: DType::F16, rows: 4, cols: 8, range: 0..64, source };
    let weight = match rig.device.weight(&tensor) {
        Ok(weight) => weight,
        Err(WeightError::SourceLost(_)) => return Ok(()),
        Err(other) => return Err(other.into()),
    };
    let (x, out) = (rig.rows(&[1.0; 8], 8)?, rig.result(1, 4)?);
    match rig.run(Op::MatMul { weight, bias: None, x, out, rows: Rows::Tokens }, 1) {
        Err(CaseError::Run(RunError::SourceLost(_))) => Ok(()),
        other => Err(CaseError::Wrong(format!("the run with the lost source: {other:?}"))),
    }
}

/// Buffers, weights and caches of `other`, where `device` is asked.
pub(super) fn foreign_handles(device: &dyn Device, other: &dyn Device) -> Result<(), CaseError> {
    let (mut rig, mut foreign) = (Rig::new(device)?, Rig::new(other)?);
    let (x, theirs) = (exactly(&mut rig, &[1.0; 4])?, exactly(&mut foreign, &[1.0; 4])?);
    let weight = foreign.vector(&[1.0; 4])?;
    let kv = other.kv_cache(SHAPE)?;
    must_panic("a foreign buffer in an upload", || drop(rig.stream.upload_f32(&theirs, 0, &[1.0])))?;
    must_panic("a foreign buffer in a copy", || drop(rig.stream.copy(&x, &theirs, 1)))?;
    must_panic("a foreign cache in an export", || drop(rig.stream.export_kv(&kv, 0, 0)))?;
    let add = Op::Add { x: x.clone(), y: theirs, width: 4 };
    must_panic("a foreign buffer in a program", || drop(device.compile(Recording { ops: vec![add] })))?;
    let norm = Op::RmsNorm { x: x.clone(), weight, out: x, eps: 0.0, groups: 1, rows: Rows::Tokens };
    must_panic("a foreign weight in a program", || drop(device.compile(Recording { ops: vec![norm] })))
}

/// Fills a small device to the last element.
pub(super) fn exact_fit(device: &dyn Device) -> CaseOutcome {
    let before = device.memory();
    let free = before.total_bytes.saturating_sub(before.allocated_bytes);
    if before.total_bytes > FILL_BYTES_MAX {
        return CaseOutcome::Skipped { why: format!("{} bytes are too many to fill", before.total_bytes) };
    }
    let attempt = || -> Result<(), CaseError> {
        let whole = device.buffer(Element::F32, (free / 4) as usize)?;
        match device.buffer(Element::F32, 1) {
            Err(AllocError::OutOfMemory { needed_bytes: 4, free_bytes, .. }) => {
                expect("bytes free", &free_bytes, &(free % 4))?
            }
            other => return Err(CaseError::Wrong(format!("one element more: {other:?}"))),
        }
        drop(whole);
        drop(device.buffer(Element::F32, 1)?);
        expect("live handles", &device.memory().live_allocations, &before.live_allocations)
    };
    attempt().into()
}

/// Takes all memory in pieces and gives every second back: what is free then can be had in one.
pub(super) fn in_pieces(device: &dyn Device) -> CaseOutcome {
    let before = device.memory();
    if before.total_bytes > FILL_BYTES_MAX {
        return CaseOutcome::Skipped { why: format!("{} bytes are too many to fill", before.total_bytes) };
    }
    let attempt = || -> Result<(), CaseError> {
        let free = before.total_bytes.saturating_sub(before.allocated_bytes);
        let each = (free / 64 / 4) as usize;
        let taken: Vec<_> = (0..64).map(|_| device.buffer(Element::F32, each)).collect::<Result<_, _>>()?;
        let (kept, given_back): (Vec<_>, Vec<_>) =
            taken.into_iter().enumerate().partition(|(i, _)| i % 2 == 0);
        drop(given_back);
        let whole = device.buffer(Element::F32, 32 * each)?;
        expect("live handles", &device.memory().live_allocations, &(before.live_allocations + 33))?;
        // Both are real: what is written to one is not in the other.
        let mut rig = Rig::new(device)?;
        rig.stream.upload_f32(&whole, 32 * each - 1, &[7.0])?;
        let mut got = [1.0];
        rig.stream.download_f32(&kept[31].1, each - 1, &mut got, crate::rig::DEADLINE)?;
        expect("the last element of a kept piece", &got[0], &0.0)?;
        rig.stream.download_f32(&whole, 32 * each - 1, &mut got, crate::rig::DEADLINE)?;
        expect("the last element of the large one", &got[0], &7.0)
    };
    attempt().into()
}
