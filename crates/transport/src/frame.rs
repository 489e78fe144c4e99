//! Frames: a length, a version, a kind, and that many bytes.
//!
//! | bytes | field   | type             |
//! |-------|---------|------------------|
//! | 0..4  | length  | u32, little end first; of the payload alone |
//! | 4     | version | u8, [`FRAME_VERSION`] |
//! | 5     | kind    | u8, the upper layer's; 0 is the hello |
//! | 6..   | payload |                  |

mod reader;
mod writer;

use bytes::Bytes;

use crate::errors::FrameError;

pub use reader::FrameReader;
pub use writer::FrameWriter;
pub(crate) use writer::RawSend;

/// The framing this crate writes and reads.
pub const FRAME_VERSION: u8 = 1;
/// Bytes before a payload.
pub(crate) const HEADER_BYTES: usize = 6;

/// One message of the layer above.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// What it is, by the upper layer's table.
    pub kind: u8,
    /// Its bytes.
    pub payload: Bytes,
}

/// How large a payload may be, on sending and on receiving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameLimits {
    /// Largest payload in bytes.
    pub payload_bytes_max: u32,
}

impl FrameLimits {
    /// Commands and reports: 1 MiB.
    pub const CONTROL: Self = Self { payload_bytes_max: 1 << 20 };
}

/// A checked header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: u8,
    pub(crate) len: usize,
}

impl Header {
    pub(crate) fn encode(kind: u8, len: u32) -> [u8; HEADER_BYTES] {
        let [a, b, c, d] = len.to_le_bytes();
        [a, b, c, d, FRAME_VERSION, kind]
    }

    pub(crate) fn decode(bytes: [u8; HEADER_BYTES], limits: FrameLimits) -> Result<Self, FrameError> {
        let [a, b, c, d, version, kind] = bytes;
        if version != FRAME_VERSION {
            return Err(FrameError::Version { found: version, known: FRAME_VERSION });
        }
        let (announced_bytes, max_bytes) = (u32::from_le_bytes([a, b, c, d]), limits.payload_bytes_max);
        if announced_bytes > max_bytes {
            return Err(FrameError::TooLarge { kind, announced_bytes, max_bytes });
        }
        Ok(Self { kind, len: announced_bytes as usize })
    }
}
