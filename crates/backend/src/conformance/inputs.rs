//! Numbers in buffers that point nowhere: an error with the op and the number, and the device goes on.

use exo_types::DType;

use super::{Check, expect};
use crate::report::CaseError;
use crate::rig::{DEADLINE, Rig, SequencePosition};
use crate::{
    Alone, Buffer, CancelToken, Download, KvDType, KvShape, Op, OpKind, Program, Recording, RunError,
    RunShape,
};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("a token beyond the vocabulary is an error", |rig| {
        embed(rig, 4).and_then(|()| refused(OpKind::Embed, 5, embed(rig, 5)))?;
        refused(OpKind::Embed, u32::MAX.into(), embed(rig, u32::MAX as usize))
    }),
    ("a row beyond the step is an error", |rig| {
        select(rig, 1).and_then(|()| refused(OpKind::SelectRows, 2, select(rig, 2)))
    }),
    ("a position beyond the page table is an error", |rig| {
        for op in [OpKind::KvWrite, OpKind::Attention] {
            paged(rig, op, SequencePosition { sequence: 1, position: 7 }, 2)?;
            refused(op, 8, paged(rig, op, SequencePosition { sequence: 1, position: 8 }, 2))?;
            refused(
                op,
                u32::MAX.into(),
                paged(rig, op, SequencePosition { sequence: 0, position: u32::MAX as usize }, 2),
            )?;
        }
        Ok(())
    }),
    ("a sequence beyond the page table is an error", |rig| {
        for op in [OpKind::KvWrite, OpKind::Attention] {
            refused(op, 2, paged(rig, op, SequencePosition { sequence: 2, position: 0 }, 2))?;
        }
        Ok(())
    }),
    ("a page beyond the cache is an error", |rig| {
        for op in [OpKind::KvWrite, OpKind::Attention] {
            refused(op, 3, paged(rig, op, SequencePosition { sequence: 0, position: 5 }, 3))?;
            refused(
                op,
                u32::MAX.into(),
                paged(rig, op, SequencePosition { sequence: 0, position: 5 }, u32::MAX as usize),
            )?;
        }
        Ok(())
    }),
    ("each of two steps in flight tells of its own bad number", two_in_flight),
    ("a bad number of a step that was given up is told behind it", given_up),
    ("a page number that no row needs may be anything", |rig| {
        paged(rig, OpKind::KvWrite, SequencePosition { sequence: 0, position: 3 }, u32::MAX as usize)?;
        paged(rig, OpKind::Attention, SequencePosition { sequence: 0, position: 3 }, u32::MAX as usize)
    }),
];

fn refused(expected: OpKind, number: u64, result: Result<(), CaseError>) -> Result<(), CaseError> {
    match result {
        Err(CaseError::Run(RunError::OutOfRange { op, value, .. })) if op == expected && value == number => {
            Ok(())
        }
        other => Err(CaseError::Wrong(format!("{expected:?} of {number}: {other:?}"))),
    }
}

/// A good token and `id`, from a vocabulary of five.
fn embed(rig: &mut Rig<'_>, id: usize) -> Result<(), CaseError> {
    let table = rig.matrix(DType::F32, 5, 2, vec![0; 40])?;
    let (ids, out) = (rig.numbers([0, id])?, rig.result(2, 2)?);
    rig.run(Op::Embed { table, ids, out }, 2)
}

/// A program that embeds one token of a vocabulary of five, again and again.
struct Embedding {
    program: Box<dyn Program>,
    ids: Buffer,
    out: Buffer,
}

impl Embedding {
    fn new(rig: &mut Rig<'_>) -> Result<Self, CaseError> {
        let table = rig.matrix(DType::F32, 5, 2, vec![0; 40])?;
        let (ids, out) = (rig.numbers([0])?, rig.result(1, 2)?);
        let ops = vec![Op::Embed { table, ids: ids.clone(), out: out.clone() }];
        Ok(Self { program: rig.device.compile(Recording { ops })?, ids, out })
    }

    /// A step and the way of its result. A device that queues nothing refuses a bad number here.
    fn queue(&self, rig: &mut Rig<'_>, id: u32) -> Result<Box<dyn Download>, RunError> {
        let one = RunShape { tokens: 1, selected: 0 };
        rig.stream.upload_u32(&self.ids, 0, &[id])?;
        rig.stream.run(&*self.program, one, &Alone, &CancelToken::default())?;
        rig.stream.download_later(&self.out, 0, 2)
    }
}

/// The step with token `id` went well, or was refused for it.
fn ended_as(id: u32, step: Result<Box<dyn Download>, RunError>) -> Result<(), CaseError> {
    let ended = step.and_then(|result| result.finish(&mut [0.0; 2], DEADLINE)).map_err(CaseError::from);
    if id < 5 { ended } else { refused(OpKind::Embed, id.into(), ended) }
}

/// Often enough for work that a backend captures and repeats.
fn two_in_flight(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let embedding = Embedding::new(rig)?;
    for [first, second] in [[4, 3], [5, 4], [4, 6], [7, 8], [9, 0], [0, 5], [1, 2]] {
        let steps = (embedding.queue(rig, first), embedding.queue(rig, second));
        ended_as(first, steps.0)?;
        ended_as(second, steps.1)?;
        let steps = (embedding.queue(rig, first), embedding.queue(rig, second));
        ended_as(second, steps.1)?;
        ended_as(first, steps.0)?;
    }
    Ok(())
}

fn given_up(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let embedding = Embedding::new(rig)?;
    for _ in 0..2 {
        let before = embedding.queue(rig, 4);
        let given_up = embedding.queue(rig, 6).map(drop);
        ended_as(4, before)?;
        let told = given_up.and_then(|()| rig.stream.synchronize(DEADLINE));
        refused(OpKind::Embed, 6, told.map_err(CaseError::from))?;
        expect("a wait behind it", &rig.stream.synchronize(DEADLINE), &Ok(()))?;
    }
    Ok(())
}

/// Row `row` of two.
fn select(rig: &mut Rig<'_>, row: usize) -> Result<(), CaseError> {
    let x = rig.rows(&[1.0; 4], 2)?;
    let (rows, out) = (rig.numbers([row])?, rig.result(1, 2)?);
    rig.run_shaped(vec![Op::SelectRows { x, rows, out, width: 2 }], RunShape { tokens: 2, selected: 1 })
}

/// A row at `place`, with two sequences of two pages of four tokens in a cache of three pages. `second` is
/// the second page of sequence 0.
fn paged(rig: &mut Rig<'_>, op: OpKind, place: SequencePosition, second: usize) -> Result<(), CaseError> {
    let shape =
        KvShape { layers: 1, kv_heads: 1, head_dim: 2, page_tokens: 4, pages: 3, dtype: KvDType::F32 };
    let (kv, layer) = (rig.kv(shape)?, 0);
    let batch = rig.batch(&[place], &[vec![0, second], vec![1, 2]])?;
    let q = rig.rows(&[1.0; 2], 2)?;
    let op = match op {
        OpKind::KvWrite => Op::KvWrite { kv, layer, k: q.clone(), v: q, batch },
        _ => {
            let out = rig.result(1, 2)?;
            Op::Attention { q, kv, layer, batch, out, heads: 1, scale: 1.0, window: None }
        }
    };
    rig.run(op, 1)
}
