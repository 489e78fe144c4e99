//! Which chunks of a file, as a bit for each: what members tell each other of a file that both fetch.

use crate::chunk_map::chunk_count;

/// A bit for each chunk of a file, the lowest of a byte first.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ChunkBits {
    bytes: Vec<u8>,
}

impl ChunkBits {
    /// Those of the chunks of a file of that size for which `has` says so.
    pub fn of_size(size: u64, has: impl Fn(u32) -> bool) -> Self {
        Self::of(chunk_count(size), has)
    }

    /// Those of so many chunks for which `has` says so.
    pub(crate) fn of(count: u32, has: impl Fn(u32) -> bool) -> Self {
        let mut bytes = vec![0u8; count.div_ceil(8) as usize];
        for (byte, first) in bytes.iter_mut().zip((0..count).step_by(8)) {
            for bit in 0..8u32.min(count - first) {
                *byte |= u8::from(has(first + bit)) << bit;
            }
        }
        Self { bytes }
    }

    /// What another says of a file of that size; `None` if it is as long as that of no such file.
    pub fn from_bytes(bytes: Vec<u8>, size: u64) -> Option<Self> {
        (bytes.len() as u64 == Self::encoded_len(size)).then_some(Self { bytes })
    }

    /// How many bytes it takes for a file of that size.
    pub fn encoded_len(size: u64) -> u64 {
        u64::from(chunk_count(size).div_ceil(8))
    }

    /// For [`ChunkBits::from_bytes`].
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Whether there is any.
    pub fn has_any(&self) -> bool {
        self.bytes.iter().any(|byte| *byte != 0)
    }

    /// Whether the chunk is one of them.
    pub fn has(&self, index: u32) -> bool {
        self.bytes.get(index as usize / 8).is_some_and(|byte| (byte >> (index % 8)) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk_map::CHUNK_BYTES;

    #[test]
    fn bits_travel_as_bytes_and_those_of_another_size_are_refused() {
        let size = 11 * CHUNK_BYTES;
        let bits = ChunkBits::of(11, |index| index % 3 == 0);
        let bytes = bits.clone().into_bytes();
        assert_eq!(bytes, [0b0100_1001, 0b10]);
        assert_eq!(ChunkBits::from_bytes(bytes.clone(), size), Some(bits.clone()));
        assert_eq!(ChunkBits::from_bytes(bytes, 17 * CHUNK_BYTES), None);
        assert_eq!((0..99).filter(|index| bits.has(*index)).collect::<Vec<_>>(), [0, 3, 6, 9]);
    }
}
