//! ArgMax: places, of which none may be wrong by one.

use super::{Case, CaseFacts, pick};
use crate::random::Random;
use crate::report::CaseError;
use crate::rig::Rig;
use crate::{Op, OpKind, RunShape};

/// What the rows are made of.
#[derive(Clone, Copy, Debug)]
enum Values {
    Normals,
    /// A few values each many times, and 0 and -0 the greatest of them.
    Ties,
    /// Too small for arithmetic that takes them for 0.
    Subnormals,
    /// In each row but the first, one of NaN, infinity and their negatives, and another behind it.
    NotFinite,
}

#[derive(Clone, Copy)]
struct ArgMax {
    rows: usize,
    width: usize,
    values: Values,
}

const CASES: &[ArgMax] = &[
    ArgMax { rows: 5, width: 1027, values: Values::Normals },
    ArgMax { rows: 3, width: 1, values: Values::Normals },
    ArgMax { rows: 4, width: 40_000, values: Values::Normals },
    ArgMax { rows: 9, width: 5000, values: Values::Ties },
    ArgMax { rows: 4, width: 300, values: Values::Subnormals },
    ArgMax { rows: 5, width: 9001, values: Values::NotFinite },
];

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    CASES.iter().map(|case| Box::new(*case) as Box<dyn Case>).collect()
}

impl ArgMax {
    fn x(&self) -> Vec<f32> {
        let mut x = Random::new(11).normals(self.rows * self.width, 1.0);
        match self.values {
            Values::Normals => {}
            Values::Ties => x.iter_mut().for_each(|x| {
                *x = if x.abs() > 2.5 { 0.0f32.copysign(*x) } else { -1.0 - (x.abs() * 2.0).floor() };
            }),
            Values::Subnormals => x.iter_mut().for_each(|x| *x *= 1e-40),
            Values::NotFinite => {
                let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN];
                for (i, row) in x.chunks_exact_mut(self.width).enumerate().skip(1) {
                    let at = i * 4099 % self.width;
                    row[at] = odd[i % 4];
                    row[(at + 700).min(self.width - 1)] = odd[(i + 1) % 4];
                }
            }
        }
        x
    }
}

impl Case for ArgMax {
    fn name(&self) -> String {
        format!("arg max [{}, {}] of {:?}", self.rows, self.width, self.values)
    }

    fn facts(&self) -> CaseFacts {
        CaseFacts { op: OpKind::ArgMax, dtype: None, rows: self.rows, nmse_max: 0.0 }
    }

    fn run(&self, rig: &mut Rig<'_>, rows: &[usize]) -> Result<Vec<f32>, CaseError> {
        let x = rig.rows(&pick(&self.x(), self.width, rows), self.width)?;
        let out = rig.result(rows.len(), 1)?;
        let op = Op::ArgMax { x, out: out.clone(), width: self.width };
        rig.run_shaped(vec![op], RunShape { tokens: 1, selected: rows.len() })?;
        rig.read(&out, rows.len(), 1)
    }

    fn exact(&self) -> Vec<f64> {
        self.x().chunks_exact(self.width).map(place_of_greatest).collect()
    }
}

fn place_of_greatest(row: &[f32]) -> f64 {
    if let Some(odd) = row.iter().position(|x| !x.is_finite()) {
        return -1.0 - odd as f64;
    }
    let better = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
    (0..row.len()).fold(0, better) as f64
}
