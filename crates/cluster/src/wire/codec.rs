//! Bytes of messages: a version byte, then postcard; a step's header has its length in front and rows behind.

use bytes::Bytes;

use super::check::{Check, CheckError};
use super::limits::{CONTROL_BYTES_MAX, DATA_HEADER_BYTES_MAX, ROWS_BYTES_MAX};
use super::{ControlMessage, DataMessage};

/// First byte of every message. Nodes of different versions refuse each other's messages.
pub const WIRE_VERSION: u8 = 39;

/// Bytes that are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum WireError {
    #[error("the message is empty")]
    Empty,
    #[error("the message has version {got}, this node speaks {WIRE_VERSION}")]
    Version { got: u8 },
    #[error("{what} has {len_bytes} bytes, at most {max_bytes} are allowed")]
    TooLong { what: &'static str, len_bytes: usize, max_bytes: usize },
    #[error("the header is announced with {announced_bytes} bytes, {len_bytes} follow")]
    Truncated { announced_bytes: usize, len_bytes: usize },
    #[error("the bytes are not a message, or a list in them is longer than allowed: {0}")]
    Malformed(#[from] postcard::Error),
    #[error("{len_bytes} bytes follow the end of the message")]
    Trailing { len_bytes: usize },
    /// Decoded, but a value is out of bounds.
    #[error(transparent)]
    OutOfBounds(#[from] CheckError),
}

impl ControlMessage {
    /// The bytes to send.
    pub fn encode(&self) -> Vec<u8> {
        let out = vec![WIRE_VERSION];
        postcard::to_extend(self, out).expect("messages hold only types postcard can write")
    }

    /// The message in `bytes`, every count and length within bounds.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let body = versioned(bytes, "the control message", CONTROL_BYTES_MAX)?;
        let (message, rest) = postcard::take_from_bytes::<Self>(body)?;
        none_left(rest)?;
        message.check()?;
        Ok(message)
    }
}

impl DataMessage {
    /// The bytes to send, in one piece.
    pub fn encode(&self) -> Vec<u8> {
        let (mut out, rows) = self.encode_parts();
        out.extend_from_slice(&rows);
        out
    }

    /// The bytes to send, in two pieces: nothing of a step's rows is copied.
    pub fn encode_parts(&self) -> (Vec<u8>, Bytes) {
        // The header's length is known only afterwards: its place is kept free.
        let out = vec![WIRE_VERSION, 0, 0, 0, 0];
        let mut out = postcard::to_extend(self, out).expect("messages hold only types postcard can write");
        let header_len = u32::try_from(out.len() - 5).expect("headers are far below 4 GiB");
        out[1..5].copy_from_slice(&header_len.to_le_bytes());
        match self {
            Self::Step(step) => (out, step.rows.clone()),
            _ => (out, Bytes::new()),
        }
    }

    /// The message in a copy of `bytes`. As [`DataMessage::decode_frame`].
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        Self::decode_frame(&Bytes::copy_from_slice(bytes))
    }

    /// The message in `frame`, every count and length within bounds. A step's rows stay where they are.
    pub fn decode_frame(frame: &Bytes) -> Result<Self, WireError> {
        let body = versioned(frame, "the data message", 5 + DATA_HEADER_BYTES_MAX + ROWS_BYTES_MAX)?;
        let Some((length, body)) = body.split_first_chunk::<4>() else {
            return Err(WireError::Truncated { announced_bytes: 4, len_bytes: body.len() });
        };
        let announced_bytes = u32::from_le_bytes(*length) as usize;
        if announced_bytes > DATA_HEADER_BYTES_MAX {
            let (what, max_bytes) = ("the header", DATA_HEADER_BYTES_MAX);
            return Err(WireError::TooLong { what, len_bytes: announced_bytes, max_bytes });
        }
        let Some((header, rows)) = body.split_at_checked(announced_bytes) else {
            return Err(WireError::Truncated { announced_bytes, len_bytes: body.len() });
        };
        let (mut message, rest) = postcard::take_from_bytes::<Self>(header)?;
        none_left(rest)?;
        match &mut message {
            Self::Step(step) => step.rows = frame.slice_ref(rows),
            _ => none_left(rows)?,
        }
        message.check()?;
        Ok(message)
    }
}

fn versioned<'a>(bytes: &'a [u8], what: &'static str, max_bytes: usize) -> Result<&'a [u8], WireError> {
    let (&got, body) = bytes.split_first().ok_or(WireError::Empty)?;
    match (got, bytes.len()) {
        (_, len_bytes) if len_bytes > max_bytes => Err(WireError::TooLong { what, len_bytes, max_bytes }),
        (WIRE_VERSION, _) => Ok(body),
        (got, _) => Err(WireError::Version { got }),
    }
}

fn none_left(rest: &[u8]) -> Result<(), WireError> {
    if rest.is_empty() { Ok(()) } else { Err(WireError::Trailing { len_bytes: rest.len() }) }
}
