//! Rope, both styles.

use super::{Case, CaseFacts, pick};
use crate::random::Random;
use crate::report::CaseError;
use crate::rig::Rig;
use crate::{Op, OpKind, RopeStyle};

struct Rope {
    style: RopeStyle,
    heads: usize,
    head_dim: usize,
    /// Elements that turn; the rest of a head stays.
    rotary: usize,
}

/// The first, the ordinary, and one so late that the angle's own rounding counts.
const POSITIONS: [usize; 6] = [0, 1, 2, 77, 4095, 100_003];

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    let mut cases: Vec<Box<dyn Case>> = Vec::new();
    for style in [RopeStyle::Halves, RopeStyle::Interleaved] {
        for (heads, head_dim, rotary) in [(1, 64, 64), (3, 128, 128), (5, 80, 32), (2, 6, 2)] {
            cases.push(Box::new(Rope { style, heads, head_dim, rotary }));
        }
    }
    cases
}

impl Rope {
    fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    fn x(&self) -> Vec<f32> {
        Random::new(8).normals(POSITIONS.len() * self.width(), 1.0)
    }

    fn frequencies(&self) -> Vec<f32> {
        (0..self.rotary / 2).map(|i| 10_000f32.powf(-2.0 * i as f32 / self.rotary as f32)).collect()
    }

    /// The pair of elements that frequency `i` turns.
    fn pair(&self, i: usize) -> (usize, usize) {
        match self.style {
            RopeStyle::Halves => (i, i + self.rotary / 2),
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
        }
    }
}

impl Case for Rope {
    fn name(&self) -> String {
        format!("rope {:?} {} x {}, {} turn", self.style, self.heads, self.head_dim, self.rotary)
    }

    fn facts(&self) -> CaseFacts {
        CaseFacts { op: OpKind::Rope, dtype: None, rows: POSITIONS.len(), nmse_max: 1e-12 }
    }

    fn run(&self, rig: &mut Rig<'_>, rows: &[usize]) -> Result<Vec<f32>, CaseError> {
        let x = rig.rows(&pick(&self.x(), self.width(), rows), self.width())?;
        let positions = rig.numbers(rows.iter().map(|r| POSITIONS[*r]))?;
        let frequencies = rig.vector(&self.frequencies())?;
        let (heads, head_dim, style) = (self.heads, self.head_dim, self.style);
        rig.run(Op::Rope { x: x.clone(), positions, frequencies, heads, head_dim, style }, rows.len())?;
        rig.read(&x, rows.len(), self.width())
    }

    fn exact(&self) -> Vec<f64> {
        let mut x: Vec<f64> = self.x().into_iter().map(f64::from).collect();
        for (row, position) in x.chunks_mut(self.width()).zip(POSITIONS) {
            for head in row.chunks_mut(self.head_dim) {
                for (i, frequency) in self.frequencies().into_iter().enumerate() {
                    let angle = f64::from(position as f32 * frequency);
                    let (a, b) = self.pair(i);
                    (head[a], head[b]) = (
                        head[a] * angle.cos() - head[b] * angle.sin(),
                        head[a] * angle.sin() + head[b] * angle.cos(),
                    );
                }
            }
        }
        x
    }
}
