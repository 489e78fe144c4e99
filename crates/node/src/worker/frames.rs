//! Frames between a node and its worker: a version byte, the lengths of header and tail, the header in
//! postcard, the tail as it is. Both lengths are checked before anything is read into memory.

use std::io::{self, BufReader, Read, Write};

use bytes::Bytes;
use exo_cluster::wire::limits::ROWS_BYTES_MAX;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// First byte of every frame: a worker of another version of the program is refused.
const VERSION: u8 = 4;
const PREFIX_BYTES: usize = 9;
/// Of the message of a frame: a step may open several long sequences at once, each with all of its tokens.
const HEADER_BYTES_MAX: usize = 64 << 20;
/// Small frames arrive in one read; rows go past the buffer.
const BUFFER_BYTES: usize = 64 << 10;
/// A scratch buffer larger than this is not kept for the next frame.
const SCRATCH_BYTES_KEPT: usize = 256 << 10;

/// Bytes that are no frame.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Between two frames, as at a clean end.
    #[error("the other side ended")]
    Ended,
    /// In the middle of one.
    #[error("the other side ended in the middle of a frame")]
    Truncated,
    #[error("a frame of version {got} came, this program speaks {VERSION}")]
    Version { got: u8 },
    #[error("the {what} of a frame has {len_bytes} bytes, at most {max_bytes} are allowed")]
    TooLong { what: &'static str, len_bytes: usize, max_bytes: usize },
    #[error("the bytes are not a message: {0}")]
    Malformed(#[from] postcard::Error),
    #[error("{len_bytes} bytes follow the message")]
    Trailing { len_bytes: usize },
    #[error("the pipe failed")]
    Io(#[source] io::Error),
}

pub struct FrameWriter<W> {
    out: W,
    scratch: Vec<u8>,
}

impl<W: Write> FrameWriter<W> {
    pub fn new(out: W) -> Self {
        Self { out, scratch: Vec::new() }
    }

    /// Sends a message with bytes behind it. Nothing is written if it is too long.
    pub fn write(&mut self, message: &impl Serialize, tail: &[u8]) -> Result<(), FrameError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.resize(PREFIX_BYTES, 0);
        let mut scratch = postcard::to_extend(message, scratch)?;
        let header = checked("header", scratch.len() - PREFIX_BYTES, HEADER_BYTES_MAX)?;
        let rows = checked("tail", tail.len(), ROWS_BYTES_MAX)?;
        scratch[0] = VERSION;
        scratch[1..5].copy_from_slice(&header.to_le_bytes());
        scratch[5..9].copy_from_slice(&rows.to_le_bytes());
        let sent = self.out.write_all(&scratch).and_then(|()| self.out.write_all(tail));
        let sent = sent.and_then(|()| self.out.flush());
        if scratch.capacity() <= SCRATCH_BYTES_KEPT {
            self.scratch = scratch;
        }
        sent.map_err(FrameError::Io)
    }
}

pub struct FrameReader<R> {
    from: BufReader<R>,
    header: Vec<u8>,
}

impl<R: Read> FrameReader<R> {
    pub fn new(from: R) -> Self {
        Self { from: BufReader::with_capacity(BUFFER_BYTES, from), header: Vec::new() }
    }

    /// The next message and the bytes behind it. Waits until there is one or the other side has ended.
    pub fn read<T: DeserializeOwned>(&mut self) -> Result<(T, Bytes), FrameError> {
        let mut prefix = [0; PREFIX_BYTES];
        let first = loop {
            match self.from.read(&mut prefix[..1]) {
                // A signal to a process with drivers in it is not the other side's end.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read.map_err(FrameError::Io)?,
            }
        };
        if first == 0 {
            return Err(FrameError::Ended);
        }
        if prefix[0] != VERSION {
            return Err(FrameError::Version { got: prefix[0] });
        }
        self.fill(&mut prefix[1..])?;
        let length =
            |at: usize| u32::from_le_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]]);
        let header = checked("header", length(1) as usize, HEADER_BYTES_MAX)? as usize;
        let tail = checked("tail", length(5) as usize, ROWS_BYTES_MAX)? as usize;
        let mut bytes = std::mem::take(&mut self.header);
        bytes.clear();
        bytes.resize(header, 0);
        self.fill(&mut bytes)?;
        let (message, rest) = postcard::take_from_bytes(&bytes)?;
        if !rest.is_empty() {
            return Err(FrameError::Trailing { len_bytes: rest.len() });
        }
        if bytes.capacity() <= SCRATCH_BYTES_KEPT {
            self.header = bytes;
        }
        let mut rows = vec![0; tail];
        self.fill(&mut rows)?;
        Ok((message, rows.into()))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), FrameError> {
        self.from.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => FrameError::Truncated,
            _ => FrameError::Io(error),
        })
    }
}

fn checked(what: &'static str, len_bytes: usize, max_bytes: usize) -> Result<u32, FrameError> {
    let fits = u32::try_from(len_bytes).ok().filter(|_| len_bytes <= max_bytes);
    fits.ok_or(FrameError::TooLong { what, len_bytes, max_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(message: &str, tail: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        FrameWriter::new(&mut out).write(&message.to_owned(), tail).unwrap();
        out
    }

    fn read(bytes: &[u8]) -> Result<(String, Bytes), FrameError> {
        FrameReader::new(bytes).read()
    }

    #[test]
    fn frames_come_back_in_order_with_their_tails() {
        let mut out = Vec::new();
        let mut writer = FrameWriter::new(&mut out);
        let large = vec![7; 3 * BUFFER_BYTES];
        let sent = [("one", vec![]), ("two", large), ("", vec![1, 2])];
        for (message, tail) in &sent {
            writer.write(message, tail).unwrap();
        }
        let mut reader = FrameReader::new(out.as_slice());
        for (message, tail) in sent {
            assert_eq!(reader.read::<String>().unwrap(), (message.to_owned(), Bytes::from(tail)));
        }
        assert!(matches!(reader.read::<String>(), Err(FrameError::Ended)));
    }

    #[test]
    fn a_frame_cut_anywhere_is_told_from_a_clean_end() {
        let whole = frame("hello", &[1, 2, 3]);
        assert_eq!(read(&whole).unwrap(), ("hello".to_owned(), Bytes::from(vec![1, 2, 3])));
        for len in 1..whole.len() {
            assert!(matches!(read(&whole[..len]), Err(FrameError::Truncated)), "{len} bytes");
        }
        assert!(matches!(read(&[]), Err(FrameError::Ended)));
    }

    #[test]
    fn another_version_is_refused_by_its_number() {
        let mut bytes = frame("hello", &[]);
        bytes[0] = VERSION + 1;
        assert!(matches!(read(&bytes), Err(FrameError::Version { got }) if got == VERSION + 1));
    }

    #[test]
    fn announced_lengths_are_refused_before_they_are_believed() {
        for (at, what) in [(1, "header"), (5, "tail")] {
            let mut bytes = frame("hello", &[]);
            bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            match read(&bytes) {
                Err(FrameError::TooLong { what: told, len_bytes, .. }) => {
                    assert_eq!((told, len_bytes), (what, u32::MAX as usize));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn what_is_too_long_is_not_sent_at_all() {
        let mut out = Vec::new();
        let tail = vec![0; ROWS_BYTES_MAX + 1];
        let refused = FrameWriter::new(&mut out).write(&(), &tail);
        assert!(matches!(refused, Err(FrameError::TooLong { what: "tail", .. })));
        assert!(out.is_empty());
    }

    #[test]
    fn a_header_with_more_or_other_bytes_than_a_message_is_refused() {
        let mut longer = frame("hello", &[]);
        longer[1..5].copy_from_slice(&7u32.to_le_bytes());
        longer.push(0);
        assert!(matches!(read(&longer), Err(FrameError::Trailing { len_bytes: 1 })));
        let mut nonsense = frame("hello", &[]);
        nonsense[PREFIX_BYTES] = 0x7f; // a text of 127 bytes, of which five are there
        assert!(matches!(read(&nonsense), Err(FrameError::Malformed(_))));
    }
}
