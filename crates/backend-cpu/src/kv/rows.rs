//! Single rows of a cache: the key or the value of one token in one head.

use exo_types::KvDType;

use super::{BLOCK, KvLayout};
use crate::math::{f16, f16_at, f32_at, to_f16};
use crate::simd::{F32Row, Kernel, LANES_MAX, Simd, load_tail};

/// Stores the key and the value `[D]` of one token in one head.
pub(crate) struct WriteRow<'a> {
    pub(crate) layout: &'a KvLayout,
    pub(crate) block: &'a mut [u8],
    /// Position in the block.
    pub(crate) slot: usize,
    pub(crate) key: &'a [f32],
    pub(crate) value: &'a [f32],
}

impl Kernel for WriteRow<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { layout, block, slot, key, value } = self;
        let (keys, values) = block.split_at_mut(layout.values);
        let (keys, key_scales) = keys.split_at_mut(layout.key_scales);
        let (values, value_scales) = values.split_at_mut(layout.value_scales - layout.values);
        write(simd, layout.dtype, key, RowTarget { to: keys, line: Line::Across(slot) }, key_scales, slot);
        let place = RowTarget { to: values, line: Line::Along(slot * layout.width) };
        write(simd, layout.dtype, value, place, value_scales, slot);
    }
}

/// Where the elements of a row go.
struct RowTarget<'a> {
    to: &'a mut [u8],
    line: Line,
}

#[derive(Clone, Copy)]
enum Line {
    /// To this element of each run of [`BLOCK`].
    Across(usize),
    /// One after the other from this element on.
    Along(usize),
}

impl RowTarget<'_> {
    /// Stores neighbouring elements of the row from number `at` on.
    #[inline(always)]
    fn put<const N: usize>(&mut self, at: usize, elements: &[[u8; N]]) {
        let to = self.to.as_chunks_mut::<N>().0;
        match self.line {
            Line::Across(slot) => {
                assert!(slot < BLOCK, "slot {slot} of a block");
                let runs = &mut to.as_chunks_mut::<BLOCK>().0[at..at + elements.len()];
                runs.iter_mut().zip(elements).for_each(|(run, element)| run[slot] = *element);
            }
            Line::Along(first) => {
                to[first + at..first + at + elements.len()].copy_from_slice(elements);
            }
        }
    }
}

#[inline(always)]
fn write<S: Simd>(
    simd: S,
    dtype: KvDType,
    row: &[f32],
    mut to: RowTarget<'_>,
    scales: &mut [u8],
    slot: usize,
) {
    match dtype {
        KvDType::F32 => {
            for (g, group) in row.chunks(KvDType::GROUP).enumerate() {
                let mut elements = [[0; 4]; KvDType::GROUP];
                elements.iter_mut().zip(group).for_each(|(element, value)| *element = value.to_le_bytes());
                to.put(g * KvDType::GROUP, &elements[..group.len()]);
            }
        }
        KvDType::F16 => {
            let mut halves = [0; LANES_MAX];
            let mut first = 0;
            while first + S::LANES <= row.len() {
                simd.store_f16(simd.load(&row[first..]), &mut halves);
                to.put(first, &halves.map(u16::to_le_bytes)[..S::LANES]);
                first += S::LANES;
            }
            if first < row.len() {
                simd.store_f16(load_tail(simd, F32Row(row), first, row.len()), &mut halves);
                to.put(first, &halves.map(u16::to_le_bytes)[..row.len() - first]);
            }
        }
        KvDType::Q8 => {
            for (g, group) in row.chunks(KvDType::GROUP).enumerate() {
                let scale = scale_of(group);
                let at = (g * BLOCK + slot) * 2;
                scales[at..at + 2].copy_from_slice(&scale.to_le_bytes());
                let step = f16(scale);
                let mut quants = [[0]; KvDType::GROUP];
                for (stored, value) in quants.iter_mut().zip(group) {
                    // A float that is not a number becomes 0, and one too large the largest quant.
                    let quant = (value / step).round_ties_even().clamp(-127.0, 127.0);
                    *stored = [if step == 0.0 { 0 } else { quant as i8 as u8 }];
                }
                to.put(g * KvDType::GROUP, &quants[..group.len()]);
            }
        }
    }
}

/// The largest magnitude over 127 as the bits of a half; NaN if anything is not finite.
#[inline(always)]
fn scale_of(group: &[f32]) -> u16 {
    let finite = group.iter().all(|value| value.is_finite());
    let largest = group.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    to_f16(if finite { largest / 127.0 } else { f32::NAN })
}

/// Which half of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Half {
    Keys,
    Values,
}

/// Reads back the row `[D]` of one token in one head that [`WriteRow`] stored.
pub(crate) fn read_row(layout: &KvLayout, block: &[u8], half: Half, slot: usize, row: &mut [f32]) {
    let (elements, scales, first, stride) = match half {
        Half::Keys => (&block[..layout.key_scales], &block[layout.key_scales..], slot, BLOCK),
        Half::Values => (&block[layout.values..], &block[layout.value_scales..], slot * layout.width, 1),
    };
    for (i, out) in row.iter_mut().enumerate() {
        let at = first + i * stride;
        *out = match layout.dtype {
            KvDType::F32 => f32_at(elements, at),
            KvDType::F16 => f16_at(elements, at),
            KvDType::Q8 => f32::from(elements[at] as i8) * f16_at(scales, i / KvDType::GROUP * BLOCK + slot),
        };
    }
}
