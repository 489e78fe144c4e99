//! SHA-256 that stops between two chunks and goes on elsewhere: how the digest of a file is computed that no
//! node has whole.

use serde::{Deserialize, Serialize};
use sha2::block_api::compress256;

const BLOCK_BYTES: usize = 64;
const START: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// The digest of the bytes so far, of which there are whole blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sha256State {
    words: [u32; 8],
    bytes: u64,
}

impl Default for Sha256State {
    fn default() -> Self {
        Self { words: START, bytes: 0 }
    }
}

impl Sha256State {
    /// How many bytes it is of.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Absorbs whole 64-byte blocks; a shorter tail goes to [`Sha256State::finish`]. Panics otherwise.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        assert!(rest.is_empty(), "{} bytes are no whole blocks", bytes.len());
        compress256(&mut self.words, blocks);
        self.bytes = self.bytes.wrapping_add(bytes.len() as u64);
    }

    /// The digest, with the last bytes.
    pub(crate) fn finish(mut self, last: &[u8]) -> [u8; 32] {
        let (blocks, rest) = last.as_chunks::<BLOCK_BYTES>();
        compress256(&mut self.words, blocks);
        let bits = self.bytes.wrapping_add(last.len() as u64).wrapping_mul(8);
        let mut end = rest.to_vec();
        end.push(0x80);
        end.resize((end.len() + 8).next_multiple_of(BLOCK_BYTES) - 8, 0);
        end.extend(bits.to_be_bytes());
        compress256(&mut self.words, end.as_chunks::<BLOCK_BYTES>().0);
        let mut digest = [0; 32];
        for (out, word) in digest.as_chunks_mut::<4>().0.iter_mut().zip(self.words) {
            *out = word.to_be_bytes();
        }
        digest
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn in_pieces_it_is_the_digest_of_the_whole() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        for len in [0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 1000] {
            for split in [0, 64, 128] {
                let Some((first, last)) = bytes[..len].split_at_checked(split) else { continue };
                let mut state = Sha256State::default();
                state.update(first);
                let again: Sha256State = postcard::from_bytes(&postcard::to_stdvec(&state).unwrap()).unwrap();
                assert_eq!(
                    again.finish(last)[..],
                    Sha256::digest(&bytes[..len])[..],
                    "{len} bytes at {split}"
                );
            }
        }
    }
}
