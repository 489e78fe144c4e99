//! RmsNorm.

use super::{Case, CaseFacts, pick};
use crate::random::Random;
use crate::report::CaseError;
use crate::rig::Rig;
use crate::{Op, OpKind, Rows, RunShape};

#[derive(Clone, Copy)]
struct RmsNorm {
    name: &'static str,
    rows: usize,
    groups: usize,
    width: usize,
    magnitude: f32,
    eps: f32,
    in_place: bool,
    of: Rows,
}

const PLAIN: RmsNorm = RmsNorm {
    name: "",
    rows: 3,
    groups: 1,
    width: 64,
    magnitude: 1.0,
    eps: 1e-5,
    in_place: false,
    of: Rows::Tokens,
};

const CASES: &[RmsNorm] = &[
    RmsNorm { name: "odd width", rows: 33, width: 1027, ..PLAIN },
    // Rows so small that eps is the larger term: without this line a kernel that drops eps passes.
    RmsNorm { name: "tiny rows", magnitude: 1e-3, ..PLAIN },
    RmsNorm { name: "large rows", width: 2048, magnitude: 300.0, eps: 1e-6, ..PLAIN },
    RmsNorm { name: "heads of a query", groups: 5, width: 128, ..PLAIN },
    RmsNorm { name: "heads in place", groups: 4, width: 24, in_place: true, ..PLAIN },
    RmsNorm { name: "one element", width: 1, ..PLAIN },
    RmsNorm { name: "selected rows", rows: 4, width: 96, in_place: true, of: Rows::Selected, ..PLAIN },
];

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    CASES.iter().map(|case| Box::new(*case) as Box<dyn Case>).collect()
}

impl RmsNorm {
    fn x(&self) -> Vec<f32> {
        Random::new(3).normals(self.rows * self.groups * self.width, self.magnitude)
    }

    fn weight(&self) -> Vec<f32> {
        Random::new(4).normals(self.width, 1.0)
    }
}

impl Case for RmsNorm {
    fn name(&self) -> String {
        format!("rms norm [{}, {}, {}] {}", self.rows, self.groups, self.width, self.name)
    }

    fn facts(&self) -> CaseFacts {
        CaseFacts { op: OpKind::RmsNorm, dtype: None, rows: self.rows, nmse_max: 1e-11 }
    }

    fn run(&self, rig: &mut Rig<'_>, rows: &[usize]) -> Result<Vec<f32>, CaseError> {
        let width = self.groups * self.width;
        let x = rig.rows(&pick(&self.x(), width, rows), width)?;
        let weight = rig.vector(&self.weight())?;
        let out = if self.in_place { x.clone() } else { rig.result(rows.len(), width)? };
        let op =
            Op::RmsNorm { x, weight, out: out.clone(), eps: self.eps, groups: self.groups, rows: self.of };
        let shape = match self.of {
            Rows::Tokens => RunShape { tokens: rows.len(), selected: 0 },
            Rows::Selected => RunShape { tokens: 0, selected: rows.len() },
        };
        rig.run_shaped(vec![op], shape)?;
        rig.read(&out, rows.len(), width)
    }

    fn exact(&self) -> Vec<f64> {
        let (x, weight) = (self.x(), self.weight());
        let row = |row: &[f32]| -> Vec<f64> {
            let squares: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
            let scale = 1.0 / (squares / row.len() as f64 + f64::from(self.eps)).sqrt();
            row.iter().zip(&weight).map(|(x, w)| f64::from(*x) * scale * f64::from(*w)).collect()
        };
        x.chunks(self.width).flat_map(row).collect()
    }
}
