//! What a step of [`DeviceFacts::STEP_ROWS`] rows that a processor was measured with says of its arithmetic.
//!
//! A step of `n` rows takes `T(n) = max(T(1) ⊕ X(n), min(T(1), waits) + X(n))` for its products, where `X` is
//! what the rows behind the first compute and `⊕` the root of squares (see `cost`). Kernels for few rows
//! compute faster or slower than those of a prefill chunk, by type of weights and by processor. So from the
//! measured `T(16)` follows `X(16)`, and the part of a chunk's rate at which these rows are computed.

use exo_types::{DType, DeviceFacts};

/// No kernel for few rows is so many times faster or slower than the one for many: a part beyond is not
/// believed.
const PART: std::ops::RangeInclusive<f64> = 0.1..=10.0;

/// What a processor does with weights of one type, per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProductRates {
    /// Bytes that one row reads.
    pub(crate) read: f64,
    /// Bytes that a chunk waits for beside its arithmetic.
    pub(crate) waits: f64,
    /// Multiply-adds times two of a chunk.
    pub(crate) flops: f64,
}

impl ProductRates {
    /// The part of a chunk's rate at which further rows of a step are computed that passes so many bytes per
    /// second. No step takes less than reading.
    pub(crate) fn part(self, dtype: DType, step_bytes_per_s: f64) -> f64 {
        let (read_s, waits_s) = self.byte_s();
        let step_s = (1.0 / step_bytes_per_s).max(read_s);
        let further_s = ((step_s - read_s) * (step_s + read_s)).sqrt().min(step_s - waits_s);
        (self.of_chunk_s(dtype) / further_s).clamp(*PART.start(), *PART.end())
    }

    /// Bytes per second that a step passes whose further rows are computed at this part of a chunk's rate.
    pub(crate) fn step_bytes_per_s(self, dtype: DType, part: f64) -> f64 {
        let (read_s, waits_s) = self.byte_s();
        let further_s = self.of_chunk_s(dtype) / part;
        1.0 / (read_s * read_s + further_s * further_s).sqrt().max(waits_s + further_s)
    }

    /// Reading a byte, and what a step of several rows waits for it beside computing.
    fn byte_s(self) -> (f64, f64) {
        let read_s = 1.0 / self.read;
        (read_s, read_s.min(1.0 / self.waits))
    }

    /// What further rows compute with a byte, at a chunk's rate.
    fn of_chunk_s(self, dtype: DType) -> f64 {
        let elements_per_byte = dtype.block_elements() as f64 / dtype.block_bytes() as f64;
        f64::from(DeviceFacts::STEP_ROWS - 1) * 2.0 * elements_per_byte / self.flops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_says_what_a_step_passes_and_what_it_passes_says_the_part() {
        for waits in [1e9, 30e9, 1e17] {
            let rates = ProductRates { read: 30e9, waits, flops: 764e9 };
            for part in [0.15, 0.9, 1.0, 1.4, 9.0] {
                let passes = rates.step_bytes_per_s(DType::Q4_K, part);
                assert!(passes <= rates.read, "{waits} {part}: {passes}");
                let again = rates.part(DType::Q4_K, passes);
                assert!((again / part - 1.0).abs() < 1e-6, "{waits} {part}: {again}");
            }
        }
    }

    /// Q8_0 of docs/benchmarks.md on one thread of a Zen 5: 701 GOP/s with 16 rows, 764 with many.
    #[test]
    fn kernels_that_read_while_they_compute_count_as_faster_than_a_chunk() {
        let rates = ProductRates { read: 30e9, waits: 1e17, flops: 764e9 };
        let passes = 701e9 * 34.0 / (16.0 * 64.0);
        let part = rates.part(DType::Q8_0, passes);
        assert!((1.3..1.5).contains(&part), "{part}");
    }

    #[test]
    fn whatever_is_told_the_part_is_one_that_a_processor_could_have() {
        let rates = ProductRates { read: 30e9, waits: 15e9, flops: 764e9 };
        for told in [1e-9, 1.0, 30e9, 31e9, 1e18] {
            assert!(PART.contains(&rates.part(DType::Q8_0, told)), "{told}");
        }
        let part = |flops: f64| ProductRates { flops, ..rates }.part(DType::Q8_0, 31e9);
        assert_eq!([1e-9, 1e18].map(part), [10.0; 2], "faster than reading takes what reading takes");
    }
}
