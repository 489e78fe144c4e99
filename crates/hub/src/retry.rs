//! When an attempt is made again, and how long it waits before.

use std::time::Duration;

use ureq::http::HeaderMap;

use crate::answers::header;

/// The longest wait that a hub may ask for at once.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);
/// Without a number in the answer.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(30);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Attempts without a single byte between them.
pub(crate) const TRIES_MAX: u32 = 9;

/// How long the hub asks to wait. A date instead of seconds counts as half a minute.
pub(crate) fn retry_after(headers: &HeaderMap) -> Duration {
    let seconds = header(headers, "retry-after").and_then(|text| text.trim().parse::<u64>().ok());
    seconds.map_or(RETRY_AFTER_DEFAULT, Duration::from_secs)
}

/// Doubles from a fifth of a second to ten.
pub(crate) fn backoff(tries: u32) -> Duration {
    Duration::from_millis(200).saturating_mul(1 << tries.min(10)).min(BACKOFF_MAX)
}

/// Whether a failure says that no connection comes about: a name that means nothing, no way there, nobody who
/// accepts. What breaks off or comes slowly is a host's, and so is what its certificate says.
pub(crate) fn is_line_away(error: &ureq::Error) -> bool {
    use std::io::ErrorKind;
    use ureq::{Error, Timeout};
    match error {
        Error::HostNotFound | Error::ConnectionFailed => true,
        Error::Timeout(timeout) => matches!(timeout, Timeout::Resolve | Timeout::Connect),
        Error::Io(error) => matches!(
            error.kind(),
            ErrorKind::ConnectionRefused
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::NetworkDown
                | ErrorKind::AddrNotAvailable
        ),
        _ => false,
    }
}

/// Whether a failure of the connection may be gone at the next attempt.
pub(crate) fn is_passing(error: &ureq::Error) -> bool {
    use ureq::Error;
    !matches!(
        error,
        Error::BadUri(_)
            | Error::Http(_)
            | Error::InvalidProxyUrl
            | Error::Tls(_)
            | Error::Rustls(_)
            | Error::RequireHttpsOnly(_)
    )
}
