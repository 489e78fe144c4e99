//! Embed and SelectRows: rows by number.

use exo_types::DType;

use super::{Case, CaseFacts, blocks, pick};
use crate::random::Random;
use crate::report::CaseError;
use crate::rig::Rig;
use crate::{Op, OpKind, RunShape};

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    let tables = DType::ALL.into_iter().map(|dtype| {
        let cols = if dtype.is_quantised() { 512 } else { 77 };
        Box::new(Embed { dtype, vocab: 19, cols, ids: vec![0, 18, 3, 3, 7] }) as Box<dyn Case>
    });
    tables
        .chain([Box::new(Select { tokens: 9, width: 33, rows: vec![8, 0, 4, 4] }) as Box<dyn Case>])
        .collect()
}

/// A token twice, the first and the last of the vocabulary.
struct Embed {
    dtype: DType,
    vocab: usize,
    cols: usize,
    ids: Vec<usize>,
}

impl Embed {
    fn table(&self) -> Vec<u8> {
        blocks::random(&mut Random::new(1), self.dtype, self.vocab * self.cols)
    }
}

impl Case for Embed {
    fn name(&self) -> String {
        format!("embed {}[{}, {}]", self.dtype, self.vocab, self.cols)
    }

    fn facts(&self) -> CaseFacts {
        // Two or three f32 roundings: this is where a decoder that is wrong in one bit shows.
        let nmse_max = 1e-13;
        CaseFacts { op: OpKind::Embed, dtype: Some(self.dtype), rows: self.ids.len(), nmse_max }
    }

    fn run(&self, rig: &mut Rig<'_>, rows: &[usize]) -> Result<Vec<f32>, CaseError> {
        let table = rig.matrix(self.dtype, self.vocab, self.cols, self.table())?;
        let ids = rig.numbers(rows.iter().map(|r| self.ids[*r]))?;
        let out = rig.result(rows.len(), self.cols)?;
        rig.run(Op::Embed { table, ids, out: out.clone() }, rows.len())?;
        rig.read(&out, rows.len(), self.cols)
    }

    fn exact(&self) -> Vec<f64> {
        let table = blocks::decode(self.dtype, &self.table());
        self.ids.iter().flat_map(|id| &table[id * self.cols..(id + 1) * self.cols]).copied().collect()
    }
}

struct Select {
    tokens: usize,
    width: usize,
    rows: Vec<usize>,
}

impl Select {
    fn x(&self) -> Vec<f32> {
        Random::new(2).normals(self.tokens * self.width, 1.0)
    }
}

impl Case for Select {
    fn name(&self) -> String {
        format!("select rows {:?} of [{}, {}]", self.rows, self.tokens, self.width)
    }

    fn facts(&self) -> CaseFacts {
        CaseFacts { op: OpKind::SelectRows, dtype: None, rows: self.rows.len(), nmse_max: 0.0 }
    }

    fn run(&self, rig: &mut Rig<'_>, rows: &[usize]) -> Result<Vec<f32>, CaseError> {
        let x = rig.rows(&self.x(), self.width)?;
        let numbers = rig.numbers(rows.iter().map(|r| self.rows[*r]))?;
        let out = rig.result(rows.len(), self.width)?;
        let op = Op::SelectRows { x, rows: numbers, out: out.clone(), width: self.width };
        rig.run_shaped(vec![op], RunShape { tokens: self.tokens, selected: rows.len() })?;
        rig.read(&out, rows.len(), self.width)
    }

    fn exact(&self) -> Vec<f64> {
        pick(&self.x(), self.width, &self.rows).into_iter().map(f64::from).collect()
    }
}
