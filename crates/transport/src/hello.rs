//! The first frame on every channel: which protocol versions we speak and what the channel is for.

use std::time::Duration;

use crate::errors::{FrameError, SendError};
use crate::frame::{FrameReader, FrameWriter};
use crate::protocols::Protocols;

/// Kind of the hello frame; every other kind belongs to the layer above.
pub const KIND_HELLO: u8 = 0;
/// Largest hello read: the five bytes of today and room for versions to come, which old nodes skip.
pub(crate) const HELLO_BYTES_MAX: u32 = 64;

/// The frame's content: `min` u16, `max` u16 (little end first), `purpose` u8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    pub(crate) protocols: Protocols,
    pub(crate) purpose: u8,
}

/// No agreement.
#[derive(Debug)]
pub(crate) enum HelloError {
    Version { theirs: Protocols },
    Closed,
    Malformed(String),
}

impl Hello {
    fn encode(self) -> [u8; 5] {
        let ([a, b], [c, d]) = (self.protocols.min.to_le_bytes(), self.protocols.max.to_le_bytes());
        [a, b, c, d, self.purpose]
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, d, purpose] = *bytes.first_chunk()?;
        let protocols = Protocols { min: u16::from_le_bytes([a, b]), max: u16::from_le_bytes([c, d]) };
        (protocols.min <= protocols.max).then_some(Self { protocols, purpose })
    }
}

impl From<FrameError> for HelloError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Closed { .. } => Self::Closed,
            other => Self::Malformed(other.to_string()),
        }
    }
}

impl From<SendError> for HelloError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Closed => Self::Closed,
            other => Self::Malformed(other.to_string()),
        }
    }
}

/// Greets and waits for the answer: the dialling side. Returns the agreed version.
pub(crate) async fn greet(
    writer: &mut FrameWriter,
    reader: &mut FrameReader,
    ours: Hello,
) -> Result<u16, HelloError> {
    // Whoever refuses says why and hangs up, perhaps before our greeting is out: listen even if that failed.
    let sent = writer.send(KIND_HELLO, &[&ours.encode()]).await;
    let theirs = receive(reader, None).await?.protocols;
    let version = ours.protocols.common(theirs).ok_or(HelloError::Version { theirs })?;
    sent?;
    Ok(version)
}

/// Waits for the greeting and answers: the accepting side. A version that does not fit is answered too, so
/// that the dialler can name it. Returns the agreed version and the purpose.
pub(crate) async fn answer(
    writer: &mut FrameWriter,
    reader: &mut FrameReader,
    ours: Protocols,
    within: Duration,
) -> Result<(u16, u8), HelloError> {
    let theirs = receive(reader, Some(within)).await?;
    writer.send(KIND_HELLO, &[&Hello { protocols: ours, purpose: theirs.purpose }.encode()]).await?;
    match ours.common(theirs.protocols) {
        Some(version) => Ok((version, theirs.purpose)),
        None => {
            let _ = writer.finish().await;
            Err(HelloError::Version { theirs: theirs.protocols })
        }
    }
}

async fn receive(reader: &mut FrameReader, within: Option<Duration>) -> Result<Hello, HelloError> {
    let frame = reader.next(within).await?;
    if frame.kind != KIND_HELLO {
        return Err(HelloError::Malformed(format!("the first frame has kind {}, not a hello", frame.kind)));
    }
    Hello::decode(&frame.payload)
        .ok_or_else(|| HelloError::Malformed("a hello that does not decode".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_taken_and_disjoint_ranges_have_none() {
        let range = |min, max| Protocols { min, max };
        assert_eq!(range(1, 3).common(range(2, 5)), Some(3));
        assert_eq!(range(2, 2).common(range(1, 9)), Some(2));
        assert_eq!(range(1, 2).common(range(3, 4)), None);
    }

    #[test]
    fn a_longer_hello_of_a_later_version_still_decodes() {
        let hello = Hello { protocols: Protocols { min: 1, max: 9 }, purpose: 4 };
        let mut bytes = hello.encode().to_vec();
        bytes.extend_from_slice(b"later");
        assert_eq!(Hello::decode(&bytes), Some(hello));
        assert_eq!(Hello::decode(&bytes[..4]), None);
        assert_eq!(Hello::decode(&[2, 0, 1, 0, 0]), None, "a backwards range");
    }
}
