//! SwiGlu and Add.

use super::{Case, CaseFacts, pick};
use crate::random::Random;
use crate::report::CaseError;
use crate::rig::Rig;
use crate::{Op, OpKind};

#[derive(Clone, Copy)]
struct Pairs {
    op: OpKind,
    rows: usize,
    width: usize,
    /// Gates of 100 and more: their exponential is no float.
    magnitude: f32,
    in_place: bool,
}

const CASES: &[Pairs] = &[
    Pairs { op: OpKind::SwiGlu, rows: 5, width: 1027, magnitude: 1.0, in_place: false },
    Pairs { op: OpKind::SwiGlu, rows: 3, width: 64, magnitude: 100.0, in_place: true },
    Pairs { op: OpKind::SwiGlu, rows: 40, width: 1000, magnitude: 3.0, in_place: true },
    Pairs { op: OpKind::Add, rows: 5, width: 33, magnitude: 1.0, in_place: true },
    Pairs { op: OpKind::Add, rows: 40, width: 1000, magnitude: 1.0, in_place: true },
];

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    CASES.iter().map(|case| Box::new(*case) as Box<dyn Case>).collect()
}

impl Pairs {
    fn operands(&self) -> (Vec<f32>, Vec<f32>) {
        let (mut a, mut b) = (Random::new(9), Random::new(10));
        (a.normals(self.rows * self.width, self.magnitude), b.normals(self.rows * self.width, 1.0))
    }
}

impl Case for Pairs {
    fn name(&self) -> String {
        let place = if self.in_place { " in place" } else { "" };
        format!("{:?} [{}, {}] magnitude {}{place}", self.op, self.rows, self.width, self.magnitude)
    }

    fn facts(&self) -> CaseFacts {
        CaseFacts { op: self.op, dtype: None, rows: self.rows, nmse_max: 1e-12 }
    }

    fn run(&self, rig: &mut Rig<'_>, rows: &[usize]) -> Result<Vec<f32>, CaseError> {
        let (a, b) = self.operands();
        let a = rig.rows(&pick(&a, self.width, rows), self.width)?;
        let b = rig.rows(&pick(&b, self.width, rows), self.width)?;
        let out = if self.in_place { a.clone() } else { rig.result(rows.len(), self.width)? };
        let op = match self.op {
            OpKind::Add => Op::Add { x: a, y: b, width: self.width },
            _ => Op::SwiGlu { gate: a, up: b, out: out.clone(), width: self.width },
        };
        rig.run(op, rows.len())?;
        rig.read(&out, rows.len(), self.width)
    }

    fn exact(&self) -> Vec<f64> {
        let (a, b) = self.operands();
        let formula = |a: f64, b: f64| match self.op {
            OpKind::Add => a + b,
            _ => a / (1.0 + (-a).exp()) * b,
        };
        a.iter().zip(&b).map(|(a, b)| formula(f64::from(*a), f64::from(*b))).collect()
    }
}
