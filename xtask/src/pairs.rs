//! Measurements that stand beside each other. Machines drift: what counts is the ratio of two that are taken
//! one after the other, and the median of many such pairs.

use anyhow::Context;

/// Takes both. Which comes first alternates from round to round, because the first meets the cooler machine.
pub fn in_turns<A, B>(
    round: u32,
    one: impl FnOnce() -> anyhow::Result<A>,
    other: impl FnOnce() -> anyhow::Result<B>,
) -> anyhow::Result<(A, B)> {
    if round.is_multiple_of(2) {
        let one = one()?;
        Ok((one, other()?))
    } else {
        let other = other()?;
        Ok((one()?, other))
    }
}

/// Of what is computed from each pair.
pub fn median_of<P>(pairs: &[P], value: impl Fn(&P) -> f64) -> anyhow::Result<f64> {
    median(pairs.iter().map(value)).context("no pair was measured")
}

/// `None` for no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len();
    (n > 0).then(|| f64::midpoint(values[(n - 1) / 2], values[n / 2]))
}
