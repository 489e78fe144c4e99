//! Passes over a whole vocabulary.
//!
//! Every token takes some of them, over 150,000 numbers, on the thread that computes the step. So they look
//! at several numbers at once, and in plain 32-bit arithmetic, which gives the same bits on every machine;
//! the exponential of the system's library does not.

/// Numbers that are looked at side by side: a vector of f32 on any processor.
const LANES: usize = 8;
/// Numbers that are looked at before it is asked whether one of them is odd.
const BLOCK: usize = 4096;
/// Below it an exponential is 2e-38 and less, soon no normal number any more.
const EXP_MIN: f32 = -87.0;

/// Where the first is that is infinite or no number.
pub(crate) fn first_not_finite(values: &[f32]) -> Option<usize> {
    let is_odd = |block: &[f32]| block.iter().fold(0, |odd, value| odd | u32::from(!value.is_finite())) != 0;
    let start = BLOCK * values.chunks(BLOCK).position(is_odd)?;
    let within = values.get(start..)?.iter().position(|value| !value.is_finite());
    within.map(|at| start + at)
}

/// Of finite numbers; the least that there is where there are none.
pub(crate) fn greatest(values: &[f32]) -> f32 {
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::MIN; LANES];
    for chunk in whole {
        lanes = std::array::from_fn(|lane| greater(lanes[lane], chunk[lane]));
    }
    lanes.iter().chain(rest).fold(f32::MIN, |one, other| greater(one, *other))
}

/// The greater of two finite numbers.
pub(crate) fn greater(one: f32, other: f32) -> f32 {
    if other > one { other } else { one }
}

/// The greatest of finite logits; the lowest id among equals.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    let best = greatest(logits);
    logits.iter().position(|logit| *logit == best).unwrap_or_default() as u32
}

/// `Σ exp(logit - max)`, where `max` is the greatest of them.
pub(crate) fn sum_of_exponentials(logits: &[f32], max: f32) -> f64 {
    let (whole, rest) = logits.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in whole {
        sums = std::array::from_fn(|lane| sums[lane] + f64::from(exp(chunk[lane] - max)));
    }
    sums.iter().sum::<f64>() + rest.iter().map(|logit| f64::from(exp(logit - max))).sum::<f64>()
}

/// Puts `exp((logit - max) / temperature)` in the place of each logit, and gives their sum. `max` is the
/// greatest of them.
pub(crate) fn weigh(logits: &mut [f32], max: f32, temperature: f32) -> f64 {
    logits.iter_mut().for_each(|logit| *logit = weight((*logit - max) / temperature));
    let (whole, rest) = logits.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in whole {
        sums = std::array::from_fn(|lane| sums[lane] + f64::from(chunk[lane]));
    }
    sums.iter().sum::<f64>() + rest.iter().map(|weight| f64::from(*weight)).sum::<f64>()
}

/// `e^x` of a number that is not above 0, within 3e-7 of it. No draw comes to what is below [`EXP_MIN`].
pub(crate) fn weight(x: f32) -> f32 {
    let e = exp(x);
    if x < EXP_MIN { 0.0 } else { e }
}

/// `e^x` of a number that is not above 0, within 3e-7 of it; of one below [`EXP_MIN`] what it is of that.
///
/// `x = n·ln 2 + r` with `|r| ≤ ln 2 / 2`, `e^r` by its series up to `r^7 / 7!`, and `2^n` by its bits.
fn exp(x: f32) -> f32 {
    // Added to a small number it leaves the nearest whole number in the lowest bits.
    const ROUND: f32 = (3 << 22) as f32;
    // The first has few bits, so that its product with `n` is exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = if x < EXP_MIN { EXP_MIN } else { x };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (x - n * LN_2[0]) - n * LN_2[1];
    let high = ((1.0 / 5040.0 * r + 1.0 / 720.0) * r + 1.0 / 120.0) * r + 1.0 / 24.0;
    let power = (((high * r + 1.0 / 6.0) * r + 0.5) * r + 1.0) * r + 1.0;
    power * f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0f32.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many numbers that differ, none above 5.3.
    fn values(len: usize) -> Vec<f32> {
        (0..len as u32).map(|i| (i * 37 % 101) as f32 / 7.0 - 9.0).collect()
    }

    #[test]
    fn exponentials_are_those_of_the_library() {
        for at in 0..=87_000 {
            let x = at as f32 / -1000.0;
            let expected = f64::from(x).exp();
            assert!((f64::from(exp(x)) / expected - 1.0).abs() < 3e-7, "{x}: {} {expected}", exp(x));
        }
        assert!(exp(0.0) == 1.0 && exp(f32::MIN) > 0.0 && exp(f32::MIN) < 1e-37);
        assert!(weight(-87.0) > 0.0 && weight(-87.1) == 0.0 && weight(f32::NEG_INFINITY) == 0.0);
    }

    /// Of every length, so that each lane and the rest behind them count once.
    #[test]
    fn sums_are_of_all_exponentials() {
        let values = values(100);
        for len in 1..=values.len() {
            let logits = &values[..len];
            let max = greatest(logits);
            assert_eq!(max, logits.iter().copied().fold(f32::MIN, f32::max), "{len}");
            let expected = |temperature: f64| -> f64 {
                logits.iter().map(|l| ((f64::from(*l) - f64::from(max)) / temperature).exp()).sum()
            };
            assert!((sum_of_exponentials(logits, max) / expected(1.0) - 1.0).abs() < 1e-6, "{len}");
            let mut weights = logits.to_vec();
            assert!(
                (weigh(&mut weights, max, 0.7) / expected(f64::from(0.7f32)) - 1.0).abs() < 3e-6,
                "{len}"
            );
            assert!(weights.iter().all(|w| (0.0..=1.0).contains(w)) && weights.contains(&1.0), "{len}");
        }
    }

    #[test]
    fn the_first_of_equals_is_the_greatest_wherever_it_is() {
        for at in 0..100 {
            let mut values = values(100);
            (values[at], values[99]) = (9.0, 9.0);
            assert_eq!(argmax(&values), at as u32);
        }
        assert_eq!((argmax(&[-0.0, 0.0]), argmax(&[0.0, -0.0]), argmax(&[f32::MIN; 9])), (0, 0, 0));
    }

    #[test]
    fn the_first_odd_number_is_found_in_whichever_block() {
        let mut values = vec![1.0; 2 * BLOCK + 3];
        assert_eq!(first_not_finite(&values), None);
        for at in [2 * BLOCK + 2, 2 * BLOCK, BLOCK + 1, BLOCK - 1, 0] {
            for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                values[at] = odd;
                assert_eq!(first_not_finite(&values), Some(at));
            }
        }
    }
}
