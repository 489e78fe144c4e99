//! Scales for a group of elements: the search that every quantiser here shares.
//!
//! A group is approximated by `s · q` or `s · q - m` with whole `q` of few values. For given `q` the best `s`
//! (and `m`) follow from weighted least squares, for given `s` the best `q` from rounding; neither is found
//! without the other. So a number of scales about the obvious one (the one that maps the largest element to
//! the last `q`) is rounded with and fitted to, and the best of those is improved by turns until it stands
//! still.
//!
//! Everything is plain f32 arithmetic in loops of fixed length, which the compiler turns into vector
//! instructions.

/// The whole numbers a quant may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels {
    pub(crate) min: f32,
    pub(crate) max: f32,
}

/// `x ≈ scale · q - min`, `min` at least 0.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Affine {
    pub(crate) scale: f32,
    pub(crate) min: f32,
}

/// Turns of rounding and fitting after the search; nearly every group stands still after two.
const TURNS_MAX: usize = 4;

/// To the nearest whole number, halves to even, for magnitudes below 2^22: one addition that pushes the
/// fraction out of the mantissa. `f32::round` is a call on a plain x86-64.
#[inline(always)]
pub(crate) fn round(x: f32) -> f32 {
    const PUSH: f32 = 12_582_912.0;
    (x + PUSH) - PUSH
}

/// Not `f32::clamp`: this is one instruction each.
#[inline(always)]
fn clamp(x: f32, levels: Levels) -> f32 {
    let x = if x < levels.min { levels.min } else { x };
    if x > levels.max { levels.max } else { x }
}

/// The quant nearest to `x · inverse`.
#[inline(always)]
pub(crate) fn quant(x: f32, inverse: f32, levels: Levels) -> f32 {
    round(clamp(x * inverse, levels))
}

/// `1 / x`, 0 for 0: quants of a group without a scale are 0.
#[inline(always)]
pub(crate) fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// How much each element's squared error counts: the root mean square of the group plus the element's own
/// magnitude. Large weights carry more of a product than their share of the error, but small ones are many.
#[inline(always)]
pub(crate) fn weights<const N: usize>(x: &[f32; N]) -> [f32; N] {
    let mean = x.iter().map(|x| x * x).sum::<f32>() / N as f32;
    let rms = mean.sqrt();
    x.map(|x| rms + x.abs())
}

/// The scale of `x ≈ s · q`. `steps` scales on either side of the obvious ones are tried, `stride` levels
/// apart.
#[inline(always)]
pub(crate) fn symmetric<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    levels: Levels,
    steps: i32,
    stride: f32,
) -> f32 {
    let largest = x.iter().fold(0.0f32, |best, x| if x.abs() > best.abs() { *x } else { best });
    if largest == 0.0 {
        return 0.0;
    }
    // The error is Σwx² - (Σwxq)²/Σwq² for the best scale, Σwxq/Σwq².
    let (mut best_gain, mut best) = (0.0, 0.0);
    for end in [levels.min, levels.max] {
        for step in -steps..=steps {
            let (xq, qq) = products(x, w, (end + stride * step as f32) / largest, levels);
            if qq > 0.0 && xq * xq / qq > best_gain {
                (best_gain, best) = (xq * xq / qq, xq / qq);
            }
        }
    }
    for _ in 0..TURNS_MAX {
        let (xq, qq) = products(x, w, inverse(best), levels);
        if !(qq > 0.0 && xq * xq / qq > best_gain) {
            break;
        }
        (best_gain, best) = (xq * xq / qq, xq / qq);
    }
    best
}

/// `(Σwxq, Σwq²)` for the quants that `inverse` gives.
#[inline(always)]
fn products<const N: usize>(x: &[f32; N], w: &[f32; N], inverse: f32, levels: Levels) -> (f32, f32) {
    let (mut xq, mut qq) = ([0.0f32; 4], [0.0f32; 4]);
    for i in (0..N).step_by(4) {
        for l in 0..4 {
            let q = quant(x[i + l], inverse, levels);
            xq[l] += w[i + l] * x[i + l] * q;
            qq[l] += w[i + l] * q * q;
        }
    }
    (sum(xq), sum(qq))
}

#[inline(always)]
fn sum(lanes: [f32; 4]) -> f32 {
    (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
}

/// Scale and minimum of `x ≈ s · q - m` with `q` from 0 to `top`.
#[inline(always)]
pub(crate) fn affine<const N: usize>(x: &[f32; N], w: &[f32; N], top: f32) -> Affine {
    /// Scales on either side of the obvious one, and how many levels they are apart.
    const STEPS: i32 = 10;
    const STRIDE: f32 = 0.125;
    // The format has no negative minimum, so 0 lies within the range.
    let low = x.iter().fold(0.0f32, |low, x| if *x < low { *x } else { low });
    let high = x.iter().fold(f32::MIN, |high, x| if *x > high { *x } else { high });
    if high <= low {
        return Affine { scale: 0.0, min: -low };
    }
    let given = Given::of(x, w);
    let mut best = Affine::default();
    let mut best_gain = f32::MIN;
    for step in -STEPS..=STEPS {
        let inverse = (top + STRIDE * step as f32) / (high - low);
        if let Some((gain, fit)) = given.fit(x, w, inverse, -low, top)
            && gain > best_gain
        {
            (best_gain, best) = (gain, fit);
        }
    }
    for _ in 0..TURNS_MAX {
        let turned = given.fit(x, w, inverse(best.scale), best.min, top);
        let Some((gain, fit)) = turned.filter(|(gain, _)| *gain > best_gain) else { break };
        (best_gain, best) = (gain, fit);
    }
    best
}

/// The sums that do not depend on the quants.
struct Given {
    w: f32,
    wx: f32,
}

impl Given {
    #[inline(always)]
    fn of<const N: usize>(x: &[f32; N], w: &[f32; N]) -> Self {
        let (mut sw, mut swx) = ([0.0f32; 4], [0.0f32; 4]);
        for i in (0..N).step_by(4) {
            for l in 0..4 {
                sw[l] += w[i + l];
                swx[l] += w[i + l] * x[i + l];
            }
        }
        Self { w: sum(sw), wx: sum(swx) }
    }

    /// Rounds `(x + min) · inverse`, then fits: `Σwx²` less the error, and the fit. `None` without a positive
    /// scale.
    #[inline(always)]
    fn fit<const N: usize>(
        &self,
        x: &[f32; N],
        w: &[f32; N],
        inverse: f32,
        min: f32,
        top: f32,
    ) -> Option<(f32, Affine)> {
        let levels = Levels { min: 0.0, max: top };
        let (mut wq, mut wqq, mut wxq) = ([0.0f32; 4], [0.0f32; 4], [0.0f32; 4]);
        for i in (0..N).step_by(4) {
            for l in 0..4 {
                let q = quant(x[i + l] + min, inverse, levels);
                let weighted = w[i + l] * q;
                wq[l] += weighted;
                wqq[l] += weighted * q;
                wxq[l] += weighted * x[i + l];
            }
        }
        let (wq, wqq, wxq) = (sum(wq), sum(wqq), sum(wxq));
        let determinant = self.w * wqq - wq * wq;
        let mut scale = (self.w * wxq - self.wx * wq) / determinant;
        let mut offset = (wqq * self.wx - wq * wxq) / determinant;
        if determinant <= 0.0 || offset > 0.0 {
            (scale, offset) = (wxq / wqq, 0.0);
        }
        // Also turns away what a division by zero gave.
        if !(scale > 0.0 && scale.is_finite() && offset.is_finite()) {
            return None;
        }
        let gain = scale * (2.0 * wxq - scale * wqq - 2.0 * offset * wq)
            + offset * (2.0 * self.wx - offset * self.w);
        Some((gain, Affine { scale, min: -offset }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(x: &[f32], approximation: impl Fn(f32) -> f32) -> f32 {
        x.iter().map(|x| (x - approximation(*x)).powi(2)).sum()
    }

    #[test]
    fn rounding_is_to_the_nearest_with_halves_to_even() {
        for x in [-2.5f32, -1.5, -0.5, 0.0, 0.49, 0.5, 0.51, 1.5, 2.5, 126.7, -32.2] {
            assert_eq!(round(x), x.round_ties_even(), "{x}");
        }
    }

    #[test]
    fn a_group_that_fits_exactly_is_found_exactly() {
        let levels = Levels { min: -8.0, max: 7.0 };
        let x: [f32; 32] = std::array::from_fn(|i| 0.25 * (i as f32 % 16.0 - 8.0));
        assert_eq!(symmetric(&x, &[1.0; 32], levels, 8, 0.1), 0.25);
        let x: [f32; 32] = std::array::from_fn(|i| 0.5 * (i as f32 % 16.0) - 3.0);
        let fit = affine(&x, &weights(&x), 15.0);
        assert!((fit.scale - 0.5).abs() < 1e-5 && (fit.min - 3.0).abs() < 1e-4, "{fit:?}");
    }

    #[test]
    fn the_search_beats_the_obvious_scale() {
        // One large element and many small ones that the obvious scale rounds badly.
        let x: [f32; 32] = std::array::from_fn(|i| if i == 0 { 1.0 } else { 0.07 * (i as f32 * 0.7).sin() });
        let levels = Levels { min: -8.0, max: 7.0 };
        let with = |s: f32| error(&x, |x| s * quant(x, inverse(s), levels));
        let found = symmetric(&x, &[1.0; 32], levels, 8, 0.1);
        assert!(with(found) < 0.95 * with(-1.0 / 8.0), "{} {}", with(found), with(-1.0 / 8.0));
    }

    #[test]
    fn groups_without_a_spread_have_their_own_answer() {
        assert_eq!(symmetric(&[0.0; 16], &[0.0; 16], Levels { min: -32.0, max: 31.0 }, 4, 0.1), 0.0);
        assert_eq!(affine(&[0.0; 32], &[0.0; 32], 15.0), Affine { scale: 0.0, min: 0.0 });
        assert_eq!(affine(&[-2.0; 32], &[4.0; 32], 15.0), Affine { scale: 0.0, min: 2.0 });
        let fit = affine(&[3.0; 32], &[6.0; 32], 15.0);
        let q = quant(3.0, inverse(fit.scale), Levels { min: 0.0, max: 15.0 });
        assert!(fit.min == 0.0 && (fit.scale * q - 3.0).abs() < 1e-5, "{fit:?} {q}");
    }
}
