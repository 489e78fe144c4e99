//! How a device reads the rows of `x` in a product.

/// What a product computes with: its operands, or numbers near them that a device multiplies faster.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Activations {
    /// `x` as it is.
    Exact,
    /// `x` rounded to eight bits in blocks of 32 columns (the last may be shorter), see decision 0010. With
    /// `a` the largest magnitude of a block, its elements become `d · q`:
    ///
    /// `d = a / 127`, `q = round(x · (127 / a))`, ties to even; the two quotients and the product are rounded
    /// to f32.
    ///
    /// Where `a < 2^-100` every `d · q` is 0. Where an element is not finite `d` is NaN, and so is the row's
    /// result.
    Rounded8,
    /// `x` rounded to sixteen bits: as [`Self::Rounded8`] with 32767 for 127. Weights are rounded too, in
    /// blocks of 32 columns of a row, to whole numbers of a power of two, magnitudes to the nearest and
    /// halves up. That is the smallest power u of at least 2^-119 for which the block's magnitudes (added in
    /// f32, in any order) come to at most 65504 u and the largest is below 16384 u; see decision 0021.
    ///
    /// Where an element is not finite, or a weight's magnitude is 2^120 or more, the result is NaN.
    Rounded16,
    /// `x` rounded to halves, whose products with halves tensor cores make exactly. With `e` such that the
    /// largest magnitude of a row is at least `2^e` and below `2^(e+1)`, its elements become `h · 2^(e-13)`,
    /// `h = half(x · 2^(13-e))`, ties to even; rows below `2^-113` take `2^126` for `2^(13-e)`. Where an
    /// element is not finite, neither is the row's result.
    RoundedHalf,
}

impl Activations {
    /// Columns that share a scale in [`Activations::Rounded8`] and [`Activations::Rounded16`].
    pub const BLOCK: usize = 32;
    /// Blocks whose largest magnitude is below this become zeros: 2^-100.
    pub const ZERO_BELOW: f32 = f32::from_bits((127 - 100) << 23);

    /// The most normalised mean square error that this may cost a product of normally distributed numbers:
    /// three to six times what it does cost.
    pub const fn nmse_max(self) -> f64 {
        match self {
            Self::Exact => 0.0,
            Self::Rounded8 => 1e-4,
            Self::Rounded16 => 1e-8,
            Self::RoundedHalf => 2e-7,
        }
    }
}
