//! The exponential of every lane.

use super::Simd;

/// e to the power of x, within 2 units in the last place for x from -87.3 to 88; what is smaller or larger
/// counts as these (1.2e-38, 1.7e38), so that no lane is ever infinite or subnormal. What is not a number
/// stays so.
///
/// `x = n·ln2 + r` with `|r| <= ln2/2`, `ln2` in two pieces so that `r` is exact (Cody and Waite), then the
/// Taylor polynomial of degree 7, scaled by `2^n`. Lanes do not see each other: the result hangs on the
/// instruction set only by whether it rounds a multiply-add once.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::V) -> S::V {
    const LN2_HIGH: f32 = 355.0 / 512.0; // nine bits, so that n times it is exact
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let c = |value| simd.splat(value);
    let x = simd.min(c(88.0), simd.max(c(-87.3), x));
    let n = simd.nearest(simd.mul(x, c(std::f32::consts::LOG2_E)));
    let r = simd.mul_add(n, c(-LN2_HIGH), x);
    let r = simd.mul_add(n, c(-LN2_LOW), r);
    let mut p = c(1.0 / 5040.0);
    p = simd.mul_add(p, r, c(1.0 / 720.0));
    p = simd.mul_add(p, r, c(1.0 / 120.0));
    p = simd.mul_add(p, r, c(1.0 / 24.0));
    p = simd.mul_add(p, r, c(1.0 / 6.0));
    p = simd.mul_add(p, r, c(0.5));
    // r² before the sum: 1 + r is rounded last.
    p = simd.add(simd.mul_add(p, simd.mul(r, r), r), c(1.0));
    simd.mul(p, simd.pow2(n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::isa::Level;
    use crate::simd::Kernel;

    struct Exp<'a>(&'a mut [f32]);

    impl Kernel for Exp<'_> {
        type Out = ();

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            for lanes in self.0.chunks_exact_mut(S::LANES) {
                simd.store(exp(simd, simd.load(lanes)), lanes);
            }
        }
    }

    fn on_every_set(x: [f32; 16], mut check: impl FnMut(f32, f32)) {
        for level in Isa::ALL.into_iter().filter_map(Level::detect) {
            let mut got = x;
            level.dispatch(Exp(&mut got));
            x.into_iter().zip(got).for_each(|(x, got)| check(x, got));
        }
    }

    #[test]
    fn it_is_within_two_units_in_the_last_place() {
        let mut worst = 0.0f64;
        for i in -54_560..55_000 {
            let x = std::array::from_fn(|lane| (16 * i + lane as i32) as f32 * 1e-4);
            on_every_set(x, |x, got| {
                let exact = f64::from(x).exp();
                worst = worst.max((f64::from(got) - exact).abs() / (exact * f64::from(f32::EPSILON)));
            });
        }
        assert!(worst < 2.0, "{worst} units");
    }

    #[test]
    fn it_ends_where_floats_end() {
        on_every_set([f32::NEG_INFINITY; 16], |_, got| assert!(got > 1e-38 && got < 1.3e-38));
        on_every_set([-1000.0; 16], |_, got| assert!(got > 1e-38 && got < 1.3e-38));
        on_every_set([f32::INFINITY; 16], |_, got| assert!(got > 1.6e38 && got.is_finite()));
        on_every_set([0.0; 16], |_, got| assert_eq!(got, 1.0));
        on_every_set([f32::NAN; 16], |_, got| assert!(got.is_nan()));
    }
}
