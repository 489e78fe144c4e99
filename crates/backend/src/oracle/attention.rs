//! Attention over paged sequences.

use super::{Case, CaseFacts, pick};
use crate::kv_values::as_stored;
use crate::random::Random;
use crate::report::CaseError;
use crate::rig::{Rig, SequencePosition};
use crate::{KvDType, KvShape, Op, OpKind};

#[derive(Clone, Copy)]
struct Attention {
    name: &'static str,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    page_tokens: usize,
    window: Option<u32>,
    dtype: KvDType,
    /// Of queries and keys: large ones make scores whose exponentials are no floats.
    magnitude: f32,
    /// Tokens in each of two sequences.
    lengths: [usize; 2],
    /// Sequence and position of each row asked for.
    places: &'static [(usize, usize)],
}

const PLAIN: Attention = Attention {
    name: "",
    heads: 4,
    kv_heads: 4,
    head_dim: 64,
    page_tokens: 16,
    window: None,
    dtype: KvDType::F32,
    magnitude: 1.0,
    lengths: [50, 23],
    // Both sequences, both sides of page boundaries, in no order.
    places: &[(0, 0), (0, 1), (0, 15), (0, 16), (1, 22), (0, 17), (1, 0), (0, 49), (0, 31)],
};

/// Rows one after the other, as in a prompt, then the other sequence's.
const PROMPT: &[(usize, usize)] = &{
    let mut places = [(0, 0); 39];
    let mut i = 0;
    while i < 39 {
        places[i] = if i < 36 { (0, 27 + i) } else { (1, i - 36) };
        i += 1;
    }
    places
};

/// Around multiples of 512 positions.
const LATE: &[(usize, usize)] =
    &[(0, 1099), (0, 510), (0, 511), (0, 512), (0, 513), (1, 39), (0, 1023), (0, 1024), (0, 1)];

/// As many rows, most of them far from their neighbours.
const SCATTERED: &[(usize, usize)] = &{
    let mut places = [(0, 0); 39];
    let mut i = 0;
    while i < 39 {
        places[i] = if i % 5 == 4 { (1, i % 23) } else { (0, i * 29 % 70) };
        i += 1;
    }
    places
};

const CASES: &[Attention] = &[
    Attention { name: "plain", ..PLAIN },
    Attention { name: "four query heads to a key head", heads: 8, kv_heads: 2, ..PLAIN },
    Attention {
        name: "seven query heads to the only key head",
        heads: 7,
        kv_heads: 1,
        head_dim: 128,
        ..PLAIN
    },
    Attention { name: "odd head", heads: 3, kv_heads: 3, head_dim: 21, ..PLAIN },
    Attention { name: "f16", heads: 6, kv_heads: 3, dtype: KvDType::F16, ..PLAIN },
    Attention { name: "f16, odd head", head_dim: 19, dtype: KvDType::F16, ..PLAIN },
    Attention { name: "f16, pages of 32", head_dim: 80, page_tokens: 32, dtype: KvDType::F16, ..PLAIN },
    Attention { name: "f16, five to one", heads: 5, kv_heads: 1, head_dim: 96, dtype: KvDType::F16, ..PLAIN },
    Attention { name: "f16, large scores", magnitude: 30.0, dtype: KvDType::F16, ..PLAIN },
    Attention { name: "q8", heads: 6, kv_heads: 3, dtype: KvDType::Q8, ..PLAIN },
    Attention { name: "q8, odd head", head_dim: 37, page_tokens: 32, dtype: KvDType::Q8, ..PLAIN },
    Attention { name: "q8, four to one", heads: 8, kv_heads: 2, head_dim: 80, dtype: KvDType::Q8, ..PLAIN },
    Attention { name: "q8, window", window: Some(18), page_tokens: 32, dtype: KvDType::Q8, ..PLAIN },
    Attention { name: "window of a page and one", window: Some(17), ..PLAIN },
    Attention { name: "window of a page", window: Some(16), dtype: KvDType::F16, ..PLAIN },
    Attention { name: "window of one", window: Some(1), ..PLAIN },
    Attention { name: "window longer than everything", window: Some(1000), ..PLAIN },
    Attention { name: "pages of one token", page_tokens: 1, head_dim: 32, ..PLAIN },
    Attention { name: "large scores", magnitude: 30.0, ..PLAIN },
    Attention { name: "prompt", heads: 10, kv_heads: 2, dtype: KvDType::F16, ..PROMPTED },
    Attention { name: "prompt, all heads alike", head_dim: 96, ..PROMPTED },
    Attention { name: "prompt, window", heads: 6, kv_heads: 2, window: Some(20), ..PROMPTED },
    Attention { name: "prompt, q8", heads: 7, kv_heads: 1, head_dim: 112, dtype: KvDType::Q8, ..PROMPTED },
    Attention { name: "long heads", heads: 10, kv_heads: 2, head_dim: 160, dtype: KvDType::F16, ..PLAIN },
    Attention {
        name: "scattered, window",
        heads: 6,
        kv_heads: 2,
        window: Some(7),
        places: SCATTERED,
        ..PROMPTED
    },
    Attention { name: "prompt, long heads", heads: 6, kv_heads: 3, head_dim: 256, ..PROMPTED },
    Attention { name: "prompt, long odd heads", head_dim: 131, dtype: KvDType::F16, ..PROMPTED },
    Attention { name: "prompt, long heads, q8", kv_heads: 2, head_dim: 192, dtype: KvDType::Q8, ..PROMPTED },
    Attention { name: "far back", dtype: KvDType::F16, ..FAR },
    Attention { name: "far back, q8", heads: 1, dtype: KvDType::Q8, ..FAR },
    Attention { name: "far back, window", window: Some(600), page_tokens: 64, ..FAR },
    Attention { name: "far back, large scores", magnitude: 30.0, ..FAR },
];

const PROMPTED: Attention = Attention { page_tokens: 32, lengths: [70, 23], places: PROMPT, ..PLAIN };
const FAR: Attention = Attention {
    heads: 2,
    kv_heads: 1,
    head_dim: 16,
    page_tokens: 32,
    lengths: [1100, 40],
    places: LATE,
    ..PLAIN
};

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    CASES.iter().map(|case| Box::new(*case) as Box<dyn Case>).collect()
}

impl Attention {
    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    fn q(&self) -> Vec<f32> {
        Random::new(13).normals(self.places.len() * self.heads * self.head_dim, self.magnitude)
    }

    /// Keys and values `[tokens, K, D]` of a sequence, such that the cache holds them exactly: what is
    /// measured is attention, not the rounding of a write.
    fn history(&self, sequence: usize) -> (Vec<f32>, Vec<f32>) {
        let mut random = Random::new(14 + sequence as u64);
        let count = self.lengths[sequence] * self.kv_width();
        let (keys, values) = (random.normals(count, self.magnitude), random.normals(count, 1.0));
        let stored = |values: Vec<f32>| as_stored(self.dtype, self.head_dim, &values);
        (stored(keys), stored(values))
    }

    /// Pages in no order, none shared, with one left over.
    fn table(&self) -> (Vec<Vec<usize>>, usize) {
        let columns = self.lengths[0].div_ceil(self.page_tokens);
        let pages = 2 * columns + 1;
        let mut numbers: Vec<usize> = (0..pages).collect();
        let mut random = Random::new(20);
        for i in (1..pages).rev() {
            numbers.swap(i, random.below(i + 1));
        }
        (numbers.chunks_exact(columns).take(2).map(<[usize]>::to_vec).collect(), pages)
    }

    fn exact_head(&self, row: usize, head: usize, (keys, values): &(Vec<f32>, Vec<f32>), out: &mut Vec<f64>) {
        let d = self.head_dim;
        let position = self.places[row].1;
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window as usize));
        let kv_head = head * self.kv_heads / self.heads;
        let at = |p: usize| p * self.kv_width() + kv_head * d;
        let q = self.q()[(row * self.heads + head) * d..][..d].to_vec();
        let score = |p: usize| -> f64 {
            let products = q.iter().zip(&keys[at(p)..][..d]).map(|(q, k)| f64::from(*q) * f64::from(*k));
            products.sum::<f64>() * f64::from(self.scale())
        };
        let scores: Vec<f64> = (first..=position).map(score).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        for i in 0..d {
            let terms = weights.iter().zip(first..).map(|(w, p)| w * f64::from(values[at(p) + i]));
            out.push(terms.sum::<f64>() / total);
        }
    }
}

impl Case for Attention {
    fn name(&self) -> String {
        format!("attention {} / {} heads of {}: {}", self.heads, self.kv_heads, self.head_dim, self.name)
    }

    fn facts(&self) -> CaseFacts {
        // A score of 1000 is rounded to 6e-5, and so is the weight that its exponential becomes.
        let nmse_max = if self.magnitude > 1.0 { 1e-7 } else { 1e-11 };
        CaseFacts { op: OpKind::Attention, dtype: None, rows: self.places.len(), nmse_max }
    }

    fn run(&self, rig: &mut Rig<'_>, rows: &[usize]) -> Result<Vec<f32>, CaseError> {
        let (table, pages) = self.table();
        let (kv_heads, head_dim, page_tokens) = (self.kv_heads, self.head_dim, self.page_tokens);
        let shape = KvShape { layers: 2, kv_heads, head_dim, page_tokens, pages, dtype: self.dtype };
        let (kv, layer) = (rig.kv(shape)?, 1);
        for (sequence, length) in self.lengths.into_iter().enumerate() {
            let (k, v) = self.history(sequence);
            let places: Vec<SequencePosition> =
                (0..length).map(|position| SequencePosition { sequence, position }).collect();
            let (k, v) = (rig.rows(&k, self.kv_width())?, rig.rows(&v, self.kv_width())?);
            let batch = rig.batch(&places, &table)?;
            rig.run(Op::KvWrite { kv: kv.clone(), layer, k, v, batch }, length)?;
        }
        let width = self.heads * self.head_dim;
        let at = |r: &usize| SequencePosition { sequence: self.places[*r].0, position: self.places[*r].1 };
        let batch = rig.batch(&rows.iter().map(at).collect::<Vec<_>>(), &table)?;
        let q = rig.rows(&pick(&self.q(), width, rows), width)?;
        let out = rig.result(rows.len(), width)?;
        let (heads, scale, window) = (self.heads, self.scale(), self.window);
        rig.run(Op::Attention { q, kv, layer, batch, out: out.clone(), heads, scale, window }, rows.len())?;
        rig.read(&out, rows.len(), width)
    }

    fn exact(&self) -> Vec<f64> {
        let histories = [self.history(0), self.history(1)];
        let mut out = Vec::new();
        for (row, (sequence, _)) in self.places.iter().enumerate() {
            for head in 0..self.heads {
                self.exact_head(row, head, &histories[*sequence], &mut out);
            }
        }
        out
    }
}
