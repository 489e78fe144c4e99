//! MatMul, for every stored type.

use exo_types::DType;
use half::f16;

use super::{Case, CaseFacts, blocks, pick};
use crate::random::Random;
use crate::report::CaseError;
use crate::rig::Rig;
use crate::{Activations, Device, Op, OpKind, Rows, RunShape};

struct MatMul {
    dtype: DType,
    rows: usize,
    n: usize,
    k: usize,
    bias: bool,
    of: Rows,
}

/// Rows, outputs, inputs, bias. Types of 32 elements to a block need K to be a multiple of 32, K-quants
/// of 256.
const FLOATS: &[(usize, usize, usize, bool)] = &[
    (1, 1, 1, false),
    (3, 5, 17, true),
    (9, 33, 1027, false),
    (21, 70, 64, true),
    (2, 300, 256, false),
    (101, 27, 1040, true),
    (130, 130, 70, false),
];
const BLOCKS_OF_32: &[(usize, usize, usize, bool)] = &[
    (3, 5, 32, true),
    (9, 33, 1056, false),
    (18, 130, 64, true),
    (1, 5, 2080, false),
    (70, 70, 1056, false),
];
const BLOCKS_OF_256: &[(usize, usize, usize, bool)] =
    &[(3, 5, 256, true), (9, 33, 1280, false), (18, 70, 512, true), (70, 70, 768, false)];

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    let mut cases: Vec<Box<dyn Case>> = Vec::new();
    for dtype in DType::ALL {
        let shapes = match dtype.block_elements() {
            1 => FLOATS,
            32 => BLOCKS_OF_32,
            _ => BLOCKS_OF_256,
        };
        for (rows, n, k, bias) in shapes.iter().copied() {
            cases.push(Box::new(MatMul { dtype, rows, n, k, bias, of: Rows::Tokens }));
        }
    }
    // The output head works on the selected rows.
    cases.push(Box::new(MatMul {
        dtype: DType::F16,
        rows: 4,
        n: 65,
        k: 96,
        bias: false,
        of: Rows::Selected,
    }));
    cases
}

impl MatMul {
    fn x(&self) -> Vec<f32> {
        Random::new(5).normals(self.rows * self.k, 1.0)
    }

    fn weight(&self) -> Vec<u8> {
        blocks::random(&mut Random::new(6), self.dtype, self.n * self.k)
    }

    fn bias(&self) -> Option<Vec<f32>> {
        self.bias.then(|| Random::new(7).normals(self.n, 3.0))
    }

    fn decoded_weight(&self) -> Vec<f64> {
        blocks::decode(self.dtype, &self.weight())
    }

    /// The formula on these activations and weights.
    fn products(&self, x: &[f64], weight: &[f64]) -> Vec<f64> {
        let bias = self.bias();
        let product = |t: usize, n: usize| -> f64 {
            let (x, w) = (&x[t * self.k..][..self.k], &weight[n * self.k..][..self.k]);
            let sum: f64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
            sum + bias.as_ref().map_or(0.0, |bias| f64::from(bias[n]))
        };
        (0..self.rows).flat_map(|t| (0..self.n).map(move |n| (t, n))).map(|(t, n)| product(t, n)).collect()
    }
}

impl Case for MatMul {
    fn name(&self) -> String {
        let bias = if self.bias { " with bias" } else { "" };
        format!("matmul {}[{}, {}] by {} {:?}{bias}", self.dtype, self.n, self.k, self.rows, self.of)
    }

    fn facts(&self) -> CaseFacts {
        // Sums of f32 products in any order, on values that are exactly the stored ones.
        let nmse_max = 1e-11;
        CaseFacts { op: OpKind::MatMul, dtype: Some(self.dtype), rows: self.rows, nmse_max }
    }

    fn run(&self, rig: &mut Rig<'_>, rows: &[usize]) -> Result<Vec<f32>, CaseError> {
        let weight = rig.matrix(self.dtype, self.n, self.k, self.weight())?;
        let bias = self.bias().map(|bias| rig.vector(&bias)).transpose()?;
        let x = rig.rows(&pick(&self.x(), self.k, rows), self.k)?;
        let out = rig.result(rows.len(), self.n)?;
        let op = Op::MatMul { weight, bias, x, out: out.clone(), rows: self.of };
        let shape = match self.of {
            Rows::Tokens => RunShape { tokens: rows.len(), selected: 0 },
            Rows::Selected => RunShape { tokens: 0, selected: rows.len() },
        };
        rig.run_shaped(vec![op], shape)?;
        rig.read(&out, rows.len(), self.n)
    }

    fn exact(&self) -> Vec<f64> {
        let x: Vec<f64> = self.x().iter().map(|x| f64::from(*x)).collect();
        self.products(&x, &self.decoded_weight())
    }

    fn rounded(&self, device: &dyn Device) -> Option<(Vec<f64>, Activations)> {
        let (x, weight) = (self.x(), self.decoded_weight());
        let to = |largest: f32| -> Vec<f64> {
            x.chunks_exact(self.k).flat_map(|row| rounded_to(largest, row)).collect()
        };
        let how = device.activations(self.dtype);
        let products = match how {
            Activations::Exact => return None,
            Activations::Rounded8 => self.products(&to(127.0), &weight),
            Activations::Rounded16 => {
                let weight: Vec<f64> = weight.chunks_exact(self.k).flat_map(in_units).collect();
                self.products(&to(32767.0), &weight)
            }
            Activations::RoundedHalf => {
                let x: Vec<f64> = x.chunks_exact(self.k).flat_map(to_halves).collect();
                self.products(&x, &weight)
            }
        };
        Some((products, how))
    }
}

/// One row of weights as [`Activations::Rounded16`] says, written apart from every backend's kernel.
fn in_units(row: &[f64]) -> Vec<f64> {
    let block = |block: &[f64]| -> Vec<f64> {
        if block.iter().any(|w| !w.is_finite() || w.abs() >= 2f64.powi(120)) {
            return vec![f64::NAN; block.len()];
        }
        let (sum, largest) = block.iter().fold((0.0, 0.0f64), |(sum, a), w| (sum + w.abs(), a.max(w.abs())));
        let mut unit = 2f64.powi(-119);
        while sum > 65504.0 * unit || largest >= 16384.0 * unit {
            unit *= 2.0;
        }
        block.iter().map(|w| (w / unit).round() * unit).collect()
    };
    row.chunks(Activations::BLOCK).flat_map(block).collect()
}

/// One row as [`Activations::RoundedHalf`] says, written apart from every backend's kernel.
fn to_halves(row: &[f32]) -> Vec<f64> {
    let largest = row.iter().fold(0.0f32, |a, x| a.max(x.abs()));
    let mut step = 2f64.powi(-126);
    while f64::from(largest) * 2f64.powi(-14) >= step {
        step *= 2.0;
    }
    row.iter().map(|x| f16::from_f64(f64::from(*x) / step).to_f64() * step).collect()
}

/// One row as [`Activations::Rounded8`] says, or with another largest number than 127; written apart from
/// every backend's kernel.
fn rounded_to(most: f32, row: &[f32]) -> Vec<f64> {
    let block = |block: &[f32]| -> Vec<f64> {
        let largest = block.iter().fold(0.0f32, |a, x| a.max(x.abs()));
        if block.iter().any(|x| !x.is_finite()) {
            return vec![f64::NAN; block.len()];
        }
        if largest < Activations::ZERO_BELOW {
            return vec![0.0; block.len()];
        }
        let (scale, inverse) = (largest / most, most / largest);
        block.iter().map(|x| f64::from(scale) * f64::from((x * inverse).round_ties_even())).collect()
    };
    row.chunks(Activations::BLOCK).flat_map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_rounded_by_its_largest_magnitude() {
        let mut row = vec![0.0; 34];
        (row[0], row[1], row[2], row[3]) = (-254.0, 3.0, 5.0, 1.9);
        (row[32], row[33]) = (1e-31, 0.0);
        let rounded = rounded_to(127.0, &row);
        // The scale is 2; 1.5 and 2.5 are ties and go to the even number. The second block is too small to
        // matter.
        assert_eq!(rounded[..4], [-254.0, 4.0, 4.0, 2.0]);
        assert_eq!(rounded[32..], [0.0, 0.0]);
        row[7] = f32::INFINITY;
        let rounded = rounded_to(127.0, &row);
        assert!(rounded[..32].iter().all(|x| x.is_nan()) && rounded[32] == 0.0);
    }

    #[test]
    fn a_row_becomes_halves_of_a_power_of_two() {
        // The step is one; eleven bits of 16383 are 16384, and 2^-26 is too small for a half.
        let (small, none) = (2f32.powi(-17), 2f32.powi(-26));
        let halves = to_halves(&[-16383.0, 3.0, 8196.5, small, none]);
        assert_eq!(halves, [-16384.0, 3.0, 8200.0, f64::from(small), 0.0]);
        // Twice as large a row has twice the step.
        assert_eq!(to_halves(&[-32766.0, 6.0, none]), [-32768.0, 6.0, 0.0]);
        assert_eq!(to_halves(&[2f32.powi(-126), 0.0]), [2f64.powi(-126), 0.0]);
    }

    #[test]
    fn weights_are_whole_numbers_of_a_power_of_two() {
        let mut row = vec![0.0; 34];
        (row[0], row[1], row[2], row[3], row[32]) = (16383.0, -2.5, 0.25, 49000.0 - 16383.0, 1e-40);
        // 32617 is above 16384, so the unit is 2.
        assert_eq!(in_units(&row)[..4], [16384.0, -2.0, 0.0, 32618.0]);
        row[3] = 16000.0;
        assert_eq!(in_units(&row)[..4], [16383.0, -3.0, 0.0, 16000.0]);
        assert_eq!(in_units(&row)[32], 0.0);
        row[3] = 2f64.powi(120);
        assert!(in_units(&row)[..32].iter().all(|w| w.is_nan()) && in_units(&row)[32] == 0.0);
    }
}
