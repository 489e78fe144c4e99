//! Every instruction set against the plain one, bit by bit, on blocks of every kind.

use exo_backend::Activations;
use exo_types::DType;

use super::*;
use crate::activation_block::Block;
use crate::isa::{Isa, Level};
use crate::packed::{BLOCK, LINE, Line, activations as how, group_lines, pack_group};
use crate::rounded::WideBlock;
use crate::simd::Scalar;

struct Random(u32);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }

    /// From -1 to 1.
    fn uniform(&mut self) -> f32 {
        self.next() as f32 / (1 << 23) as f32 - 1.0
    }
}

/// How the blocks of a case look.
#[derive(Clone, Copy, Debug)]
enum Blocks {
    /// Random quants, scales of ordinary size.
    Ordinary,
    /// Random bytes: scales that are huge, tiny, infinite or no number at all.
    AnyBytes,
    /// Every bit of every quant and integer scale set (0xff) or clear: the largest sums there are.
    Constant(u8),
}

fn group(random: &mut Random, dtype: DType, blocks: usize, kind: Blocks) -> Vec<Line> {
    let cols = blocks * BLOCK;
    let size = dtype.block_bytes() as usize;
    let mut bytes: Vec<u8> =
        (0..16 * dtype.bytes_of(cols as u64).unwrap()).map(|_| random.next() as u8).collect();
    if let Blocks::Constant(byte) = kind {
        bytes.fill(byte);
    }
    if !matches!(kind, Blocks::AnyBytes) {
        let halves: &[usize] = match dtype {
            DType::Q6_K => &[208],
            DType::Q8_0 | DType::Q4_0 | DType::Q5_0 => &[0],
            DType::BF16 => &[],
            _ => &[0, 2],
        };
        for block in bytes.chunks_exact_mut(size) {
            for at in halves {
                let scale = half::f16::from_f32(0.02 * random.uniform());
                block[*at..at + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
    }
    if let (DType::BF16, Blocks::Ordinary) = (dtype, kind) {
        bytes.as_chunks_mut().0.iter_mut().for_each(|bytes| {
            // Some far below the others of their block.
            let smaller = 0.5f32.powi(random.next() as i32 % 20);
            *bytes = half::bf16::from_f32(smaller * random.uniform()).to_le_bytes();
        });
    }
    let mut lines = vec![Line([0; LINE]); group_lines(dtype, cols).unwrap()];
    pack_group(dtype, cols, &bytes, &mut lines);
    lines
}

fn activations(random: &mut Random, rows: usize, blocks: usize, kind: Blocks) -> Vec<f32> {
    let mut x: Vec<f32> = (0..rows * blocks * BLOCK).map(|_| random.uniform()).collect();
    match kind {
        Blocks::Constant(_) => {
            x.iter_mut().enumerate().for_each(|(i, x)| *x = if i % 2 < i / 64 { 1.0 } else { -1.0 })
        }
        Blocks::AnyBytes => x.iter_mut().step_by(3).for_each(|x| *x = f32::from_bits(random.next() << 8)),
        Blocks::Ordinary => {}
    }
    x
}

fn bits(sums: &[Sums]) -> Vec<u32> {
    let bits = |sum: &f32| if sum.is_nan() { f32::NAN.to_bits() } else { sum.to_bits() };
    sums.iter().flat_map(|sums| sums.0.iter().map(bits)).collect()
}

fn run(level: Level, weights: &Group<'_>, x: &[f32], rows: usize) -> Vec<u32> {
    match how(weights.dtype) {
        Activations::Rounded16 => run_by::<WideBlock>(level, weights, x, rows),
        _ => run_by::<RoundedBlock>(level, weights, x, rows),
    }
}

fn run_by<B: Block>(level: Level, weights: &Group<'_>, x: &[f32], rows: usize) -> Vec<u32> {
    let mut rounded = vec![B::zeroed(); rows * weights.blocks];
    B::round(level, x, &mut rounded);
    // What was there does not matter.
    let mut sums = vec![Sums([7.0; GROUP_ROWS]); rows];
    B::multiply(level, weights, RoundedRows::new(weights.blocks, &rounded), &mut sums);
    bits(&sums)
}

fn run_two(level: Level, groups: [&Group<'_>; 2], x: &[f32], rows: usize) -> [Vec<u32>; 2] {
    match how(groups[0].dtype) {
        Activations::Rounded16 => run_two_by::<WideBlock>(level, groups, x, rows),
        _ => run_two_by::<RoundedBlock>(level, groups, x, rows),
    }
}

fn run_two_by<B: Block>(level: Level, groups: [&Group<'_>; 2], x: &[f32], rows: usize) -> [Vec<u32>; 2] {
    let blocks = groups[0].blocks;
    let mut rounded = vec![B::zeroed(); rows * blocks];
    B::round(level, x, &mut rounded);
    let [mut first, mut second] = [(); 2].map(|()| vec![Sums([7.0; GROUP_ROWS]); rows]);
    B::multiply_two(level, groups, RoundedRows::new(blocks, &rounded), [&mut first, &mut second]);
    [bits(&first), bits(&second)]
}

fn levels() -> impl Iterator<Item = Level> {
    Isa::ALL.into_iter().filter_map(Level::detect)
}

#[test]
fn every_instruction_set_gives_the_bits_of_the_plain_one() {
    let mut random = Random(1);
    let kinds = [Blocks::Ordinary, Blocks::AnyBytes, Blocks::Constant(0), Blocks::Constant(0xff)];
    for dtype in DType::ALL.into_iter().filter(|dtype| crate::packed::Layout::of(*dtype).is_some()) {
        let widths: &[usize] = match dtype.block_elements() {
            1 | 32 if cfg!(miri) => &[3],
            1 | 32 => &[1, 2, 3, 8, 21],
            _ if cfg!(miri) => &[8],
            _ => &[8, 24],
        };
        let counts: &[usize] = if cfg!(miri) { &[1, 2] } else { &[1, 2, 3, 4, 5, 8, 13, 37, 50] };
        let kinds = if cfg!(miri) { &kinds[..2] } else { &kinds };
        for (blocks, kind) in widths.iter().flat_map(|blocks| kinds.iter().map(|kind| (*blocks, *kind))) {
            let lines = group(&mut random, dtype, blocks, kind);
            let weights = Group::new(dtype, blocks * BLOCK, &lines);
            for rows in counts.iter().copied() {
                let x = activations(&mut random, rows, blocks, kind);
                let want = run(Level::Scalar(Scalar), &weights, &x, rows);
                for level in levels() {
                    let got = run(level, &weights, &x, rows);
                    assert!(got == want, "{level:?} {dtype} of {blocks} blocks, {kind:?}, by {rows} rows");
                    // A row alone is the row in company.
                    let width = blocks * BLOCK;
                    let last = run(level, &weights, &x[(rows - 1) * width..], 1);
                    assert!(
                        last[..] == want[(rows - 1) * GROUP_ROWS..],
                        "{level:?} {dtype} row {rows} alone"
                    );
                }
            }
        }
    }
}

#[test]
fn two_groups_together_are_what_each_is_alone() {
    let mut random = Random(4);
    for dtype in DType::ALL.into_iter().filter(|dtype| crate::packed::Layout::of(*dtype).is_some()) {
        // Fewer blocks than a run of columns has, and more: whole runs and a part of one.
        let widths: &[usize] = match dtype.block_elements() {
            _ if cfg!(miri) => &[8],
            1 | 32 => &[3, 37],
            _ => &[8, 40],
        };
        // Every size of a tile, one tile and several.
        let counts: &[usize] = if cfg!(miri) { &[1, 9] } else { &[1, 3, 4, 5, 6, 7, 8, 9, 13, 16, 32, 43] };
        let kinds = [Blocks::Ordinary, Blocks::AnyBytes, Blocks::Constant(0xff)];
        for (blocks, kind) in widths.iter().flat_map(|blocks| kinds.iter().map(|kind| (*blocks, *kind))) {
            let lines = [(); 2].map(|()| group(&mut random, dtype, blocks, kind));
            let groups = [0, 1].map(|i| Group::new(dtype, blocks * BLOCK, &lines[i]));
            for rows in counts.iter().copied() {
                let x = activations(&mut random, rows, blocks, kind);
                let want = groups.each_ref().map(|group| run(Level::Scalar(Scalar), group, &x, rows));
                for level in levels() {
                    let got = run_two(level, groups.each_ref(), &x, rows);
                    assert!(got == want, "{level:?} {dtype} of {blocks} blocks, {kind:?}, by {rows} rows");
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_rounds_like_the_plain_one() {
    let mut random = Random(2);
    for kind in [Blocks::Ordinary, Blocks::AnyBytes, Blocks::Constant(0xff)] {
        let mut x = activations(&mut random, 3, 41, kind);
        // Ties, the smallest block that is not zero, and one just below it.
        x[..4].copy_from_slice(&[127.0, 1.5, 2.5, -3.5]);
        x[64..96].fill(exo_backend::Activations::ZERO_BELOW);
        x[96..128].fill(exo_backend::Activations::ZERO_BELOW.next_down());
        fn round<B: Block>(level: Level, x: &[f32]) -> Vec<u32> {
            let mut blocks = vec![B::zeroed(); x.len().div_ceil(BLOCK)];
            B::round(level, x, &mut blocks);
            bytemuck::cast_slice(&blocks).to_vec()
        }
        let want = round::<RoundedBlock>(Level::Scalar(Scalar), &x);
        // The last block a part of one.
        let wide = &x[..x.len() - 7];
        let want_wide = round::<WideBlock>(Level::Scalar(Scalar), wide);
        for level in levels() {
            assert!(round::<RoundedBlock>(level, &x) == want, "{level:?} {kind:?}");
            assert!(round::<WideBlock>(level, wide) == want_wide, "{level:?} {kind:?} in sixteen bits");
        }
    }
}

/// Of BF16: as many units as there may be, by activations that are all the largest.
#[test]
fn the_largest_sums_of_units_are_exact() {
    let ordinary: [f32; BLOCK] = std::array::from_fn(|k| if k < 31 { 2048.0 } else { 2016.0 });
    let single: [f32; BLOCK] = std::array::from_fn(|k| if k == 7 { 16320.0 } else { 0.0 });
    // 65504 units in all, and 28 halves that are rounded up: 14 more.
    let halves: [f32; BLOCK] = std::array::from_fn(|k| match k {
        0..4 => 16320.0,
        4..18 => 7.5,
        _ => 8.5,
    });
    assert_eq!(halves.iter().sum::<f32>(), 65504.0);
    for (weights, sum) in [
        (ordinary, 65504.0),
        (single, 16320.0),
        (ordinary.map(|w| -w), -65504.0),
        (halves, 65518.0),
        (halves.map(|w| -w), -65518.0),
    ] {
        let bytes: Vec<u8> = weights.iter().flat_map(|w| half::bf16::from_f32(*w).to_le_bytes()).collect();
        let mut lines = vec![Line([0; LINE]); group_lines(DType::BF16, BLOCK).unwrap()];
        pack_group(DType::BF16, BLOCK, &bytes, &mut lines);
        let group = Group::new(DType::BF16, BLOCK, &lines);
        for level in levels() {
            for rows in [1, 9] {
                let got = run(level, &group, &vec![1.0; rows * BLOCK], rows);
                let got = f64::from(f32::from_bits(got[(rows - 1) * GROUP_ROWS]));
                assert!((got - sum).abs() <= 1e-7 * sum.abs(), "{level:?}: {got} and not {sum}");
            }
        }
    }
}

/// Against sums of f64: what the table says, on the largest numbers there are.
#[test]
fn the_largest_integers_are_exact() {
    for dtype in [DType::Q8_0, DType::Q4_0, DType::Q5_1, DType::Q4_K, DType::Q5_K, DType::Q6_K] {
        for byte in [0, 0xff, 0x80, 0x7f] {
            let mut random = Random(3);
            let lines = group(&mut random, dtype, 8, Blocks::Constant(byte));
            let weights = Group::new(dtype, 256, &lines);
            let x = vec![1.0; 256];
            let mut rounded = vec![bytemuck::Zeroable::zeroed(); 8];
            Level::Scalar(Scalar).round(&x, &mut rounded);
            let mut sums = [Sums([0.0; GROUP_ROWS])];
            Level::Scalar(Scalar).multiply(&weights, RoundedRows::new(8, &rounded), &mut sums);
            for (row, sum) in sums[0].0.iter().enumerate() {
                let mut values = vec![0.0; 256];
                crate::packed::unpack_row(&weights, row, &mut values);
                let exact: f64 = values.iter().map(|v| f64::from(*v)).sum();
                let error = (f64::from(*sum) - exact).abs();
                assert!(error <= 1e-6 * exact.abs().max(1e-3), "{dtype} {byte:#x}: {sum} and not {exact}");
            }
        }
    }
}
