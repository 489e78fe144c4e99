//! How what is larger than a binding is split: weights by rows, a layer's keys and values by heads.

use std::ops::Range;

/// Runs of `count` rows or heads, of `each_bytes` each, that fit a binding of `bytes_max`. A single one
/// always makes a run, which is then refused.
pub(crate) fn runs(count: usize, each_bytes: u64, bytes_max: u64) -> Vec<Range<usize>> {
    let each = usize::try_from(bytes_max / each_bytes.max(1)).unwrap_or(usize::MAX).clamp(1, count.max(1));
    (0..count).step_by(each).map(|first| first..(first + each).min(count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_go_together_as_far_as_a_binding_holds_them() {
        assert_eq!(runs(8, 100, 800).len(), 1);
        assert_eq!(runs(8, 100, 399), [0..3, 3..6, 6..8]);
        assert_eq!(runs(2, 100, 99), [0..1, 1..2], "the device refuses it, with the bytes of one");
        assert_eq!(runs(3, 0, 0), [0..1, 1..2, 2..3]);
    }
}
