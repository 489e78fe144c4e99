//! The packed types as Rust types, so that a kernel written once is compiled for each; and where their blocks
//! lie.

use std::marker::PhantomData;

use exo_types::DType;

use crate::packed::{Group, Layout, Line};

/// How the words of a block are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Quants {
    Bytes,
    Nibbles,
    /// Nibbles and a line of fifth bits.
    Fives,
    /// Nibbles and two lines of pairs of bits.
    Sixes,
}

/// What stands in the lines of scales.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scales {
    /// A half per block.
    Halves,
    /// A second line with the minima.
    HalvesAndMinima,
    /// Bytes to be multiplied by the halves of the head.
    Bytes,
    /// Signed bytes, two of a block, beside the half of the head.
    SignedPairs,
}

/// A packed type, for the compiler.
pub(super) trait PackedType {
    const DTYPE: DType;
    const QUANTS: Quants;
    const SCALES: Scales;
    const LAYOUT: Layout = match Layout::of(Self::DTYPE) {
        Some(layout) => layout,
        None => panic!("the type is not packed"),
    };
    const HAS_MINIMUM: bool = matches!(Self::SCALES, Scales::HalvesAndMinima | Scales::Bytes);
}

macro_rules! stored {
    ($($name:ident $quants:ident $scales:ident;)*) => {$(
        #[allow(non_camel_case_types, reason = "the name of the type")]
        pub(super) struct $name;

        impl PackedType for $name {
            const DTYPE: DType = DType::$name;
            const QUANTS: Quants = Quants::$quants;
            const SCALES: Scales = Scales::$scales;
        }
    )*};
}

stored! {
    Q8_0 Bytes Halves;
    Q4_0 Nibbles Halves;
    Q4_1 Nibbles HalvesAndMinima;
    Q5_0 Fives Halves;
    Q5_1 Fives HalvesAndMinima;
    Q4_K Nibbles Bytes;
    Q5_K Fives Bytes;
    Q6_K Sixes SignedPairs;
}

/// The kernel that was compiled for a packed type, as a function pointer. Panics for types that are not
/// packed.
macro_rules! for_type {
    ($dtype:expr, $kernel:ident) => {{
        use exo_types::DType;

        use $crate::products::packed_types;
        match $dtype {
            DType::Q8_0 => $kernel::<packed_types::Q8_0>,
            DType::Q4_0 => $kernel::<packed_types::Q4_0>,
            DType::Q4_1 => $kernel::<packed_types::Q4_1>,
            DType::Q5_0 => $kernel::<packed_types::Q5_0>,
            DType::Q5_1 => $kernel::<packed_types::Q5_1>,
            DType::Q4_K => $kernel::<packed_types::Q4_K>,
            DType::Q5_K => $kernel::<packed_types::Q5_K>,
            DType::Q6_K => $kernel::<packed_types::Q6_K>,
            other => panic!("{other} is not packed"),
        }
    }};
}
pub(super) use for_type;

/// Where a block lies.
#[derive(Clone, Copy)]
pub(super) struct BlockAddress {
    pub(super) head: *const Line,
    /// The first line of the scales of its step.
    pub(super) scales: *const Line,
    pub(super) quants: *const Line,
    /// Which of the two blocks of a step it is.
    pub(super) side: usize,
}

/// The blocks of a group in order.
pub(super) struct Walk<K> {
    line: *const Line,
    head: *const Line,
    scales: *const Line,
    at: usize,
    _type: PhantomData<K>,
}

impl<K: PackedType> Walk<K> {
    pub(super) fn new(weights: &Group<'_>) -> Self {
        let line = weights.lines.as_ptr();
        Self { line, head: line, scales: line, at: 0, _type: PhantomData }
    }

    /// The next block.
    ///
    /// # Safety
    /// Called at most once for each block of the group.
    #[inline(always)]
    pub(super) unsafe fn next(&mut self) -> BlockAddress {
        let side = self.at % 2;
        // SAFETY: these are the lines before the next block, as `Layout` has them.
        unsafe {
            if K::LAYOUT.head > 0 && self.at.is_multiple_of(8) {
                self.head = self.line;
                self.line = self.line.add(K::LAYOUT.head);
            }
            if side == 0 {
                self.scales = self.line;
                self.line = self.line.add(K::LAYOUT.scales);
            }
            let quants = self.line;
            self.line = self.line.add(K::LAYOUT.block);
            self.at += 1;
            BlockAddress { head: self.head, scales: self.scales, quants, side }
        }
    }
}
