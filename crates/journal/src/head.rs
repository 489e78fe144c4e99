//! How a head is kept in the file: the number of entries in little-endian, then the hash.

use exo_types::LogHead;

pub(crate) const HEAD_BYTES: usize = 40;

pub(crate) fn encode_head(head: LogHead) -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    bytes[..8].copy_from_slice(&head.index.to_le_bytes());
    bytes[8..].copy_from_slice(&head.hash);
    bytes
}

pub(crate) fn decode_head(bytes: &[u8]) -> Option<LogHead> {
    let (index, hash) = bytes.split_first_chunk()?;
    Some(LogHead { index: u64::from_le_bytes(*index), hash: hash.try_into().ok()? })
}
