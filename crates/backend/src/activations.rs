//! How a device reads the rows of `x` in a product.

/// What a product computes with: `x` itself, or numbers near it that a device multiplies faster.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Activations {
    /// `x` as it is.
    Exact,
    /// `x` rounded to eight bits in blocks of 32 columns (the last may be shorter), see decision 0010. With `a` the
    /// largest magnitude of a block, its elements become `d · q`:
    ///
    /// `d = a / 127`, `q = round(x · (127 / a))`, ties to even; the two quotients and the product are rounded to f32.
    ///
    /// Where `a < 2^-100` every `d · q` is 0. Where an element is not finite `d` is NaN, and so is the row's result.
    Rounded8,
}

impl Activations {
    /// Columns that share a scale in [`Activations::Rounded8`].
    pub const BLOCK: usize = 32;
    /// Blocks whose largest magnitude is below this become zeros: 2^-100.
    pub const ZERO_BELOW: f32 = f32::from_bits((127 - 100) << 23);
}
