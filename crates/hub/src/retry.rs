//! When an attempt is made again, and how long it waits before.

use std::time::{Duration, SystemTime};

use ureq::http::HeaderMap;

use crate::answers::header;

/// The longest wait that a hub may ask for at once.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);
/// Without a number in the answer.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(30);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Attempts that bring nothing, in a row.
pub(crate) const TRIES_MAX: u32 = 9;

/// How long an answer asks to wait: one that says that there were too many requests (429) always, one that
/// says that the host is overloaded where it says for how long. Either may repeat itself: after several tries
/// it is never asked again at once.
pub(crate) fn asked_wait(status: u16, headers: &HeaderMap, tries: u32) -> Option<Duration> {
    match status {
        429 => Some(retry_after(headers).max(backoff(tries.saturating_sub(1)))),
        502..=504 => Some(said_wait(headers)?.max(backoff(tries.saturating_sub(1)))),
        _ => None,
    }
}

/// How long the hub asks to wait: seconds, until a date, or until its limit begins anew.
pub(crate) fn retry_after(headers: &HeaderMap) -> Duration {
    said_wait(headers).or_else(|| limit_reset(headers)).unwrap_or(RETRY_AFTER_DEFAULT)
}

/// Seconds, or until a date.
fn said_wait(headers: &HeaderMap) -> Option<Duration> {
    let date = |text: &str| httpdate::parse_http_date(text.trim()).ok();
    header(headers, "retry-after").and_then(|text| {
        seconds(text).or_else(|| {
            // By the clock of the host that says so, where it shows that: ours may differ.
            let now = header(headers, "date").and_then(date).unwrap_or_else(SystemTime::now);
            date(text).map(|until| until.duration_since(now).unwrap_or_default())
        })
    })
}

fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    (seconds >= 0.0).then(|| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// Until every limit that is used up begins anew, by `RateLimit: "api";r=0;t=55`. Source:
/// draft-ietf-httpapi-ratelimit-headers-09.
fn limit_reset(headers: &HeaderMap) -> Option<Duration> {
    let limits = header(headers, "ratelimit")?.split(',').filter_map(|limit| {
        let parameter = |name: &str| {
            let mut parameters = limit.split(';').filter_map(|p| p.trim().split_once('='));
            parameters.find(|(n, _)| *n == name)?.1.parse::<u32>().ok()
        };
        let left_s = parameter("t").filter(|_| parameter("r").is_none_or(|left| left == 0))?;
        // Whole seconds, cut: one more is surely behind the end.
        Some(Duration::from_secs(u64::from(left_s) + 1))
    });
    limits.max()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_says_in_seconds_or_by_a_date_of_its_own_clock_how_long_to_wait() {
        let wait = |after: Option<&str>, date: Option<&str>| {
            let mut headers = HeaderMap::new();
            for (name, value) in [("retry-after", after), ("date", date)] {
                value.into_iter().for_each(|value| _ = headers.insert(name, value.parse().unwrap()));
            }
            retry_after(&headers).as_secs()
        };
        let date = Some("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(wait(Some(" 7 "), date), 7);
        assert_eq!(wait(Some("Sun, 06 Nov 1994 08:51:37 GMT"), date), 120);
        assert_eq!(wait(Some("Sun, 06 Nov 1994 08:00:00 GMT"), date), 0, "that is over");
        assert_eq!(wait(Some("Sun, 06 Nov 1994 08:51:37 GMT"), None), 0, "by our clock, too");
        assert_eq!((wait(None, date), wait(Some("soon"), date)), (30, 30));
        assert_eq!((wait(Some("7.9"), date), wait(Some("-5"), date), wait(Some("NaN"), date)), (7, 30, 30));
        assert!(wait(Some("99999999999999999999999"), date) > RETRY_AFTER_MAX.as_secs(), "longer than any");
    }

    #[test]
    fn an_overloaded_host_is_waited_for_where_it_says_for_how_long() {
        let wait = |status, after: Option<&str>, tries| {
            let mut headers = HeaderMap::new();
            after.into_iter().for_each(|after| _ = headers.insert("retry-after", after.parse().unwrap()));
            asked_wait(status, &headers, tries).map(|wait| wait.as_millis())
        };
        assert_eq!([502, 503, 504].map(|status| wait(status, Some("7"), 1)), [Some(7000); 3]);
        assert_eq!(
            (wait(503, None, 1), wait(500, Some("7"), 1), wait(200, Some("7"), 1)),
            (None, None, None)
        );
        assert_eq!((wait(429, None, 1), wait(429, Some("0"), 1)), (Some(30_000), Some(200)));
        assert_eq!((wait(429, Some("0"), 9), wait(429, Some("60"), 9)), (Some(10_000), Some(60_000)));
        assert_eq!((wait(503, Some("0"), 1), wait(503, Some("0"), 9)), (Some(200), Some(10_000)));
    }

    #[test]
    fn without_that_it_is_until_the_limit_begins_anew() {
        let wait = |limit: &str, after: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert("ratelimit", limit.parse().unwrap());
            after.into_iter().for_each(|after| _ = headers.insert("retry-after", after.parse().unwrap()));
            retry_after(&headers).as_secs()
        };
        assert_eq!(wait("\"api\";r=0;t=55", None), 56);
        assert_eq!(wait("\"api\";r=0;t=55", Some("7")), 7);
        assert_eq!(wait("\"burst\";r=0;t=9, \"day\"; r=0; t=200, \"pages\";r=3;t=400", None), 201);
        for none in ["\"api\";r=12;t=55", "\"api\";r=0", "\"api\";r=0;t=-1", "t", ""] {
            assert_eq!(wait(none, None), 30, "{none}");
        }
    }
}
