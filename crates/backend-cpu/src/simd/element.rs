//! Stored numbers that a vector can be loaded from.

use super::Simd;

/// A stored number. The types that implement it have no values: they choose a conversion at compile time.
pub(crate) trait Element {
    /// Bytes of one.
    const BYTES: usize;

    /// `LANES` of them, side by side at any address.
    ///
    /// # Safety
    /// `LANES * BYTES` bytes from `from` on can be read.
    unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::V;
}

/// Little-endian f32.
pub(crate) enum F32 {}
/// Little-endian IEEE halves.
pub(crate) enum F16 {}
/// Signed bytes.
pub(crate) enum I8 {}

macro_rules! element {
    ($name:ident, $bytes:literal, $load:ident) => {
        impl Element for $name {
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn load<S: Simd>(simd: S, from: *const u8) -> S::V {
                // SAFETY: the caller's promise.
                simd.$load(unsafe { std::slice::from_raw_parts(from, S::LANES * $bytes) })
            }
        }
    };
}

element!(F32, 4, load_f32_bytes);
element!(F16, 2, load_f16);
element!(I8, 1, load_i8);
