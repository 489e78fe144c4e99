//! A request as it came, and what is remembered of it.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

const LINES_MAX: usize = 100;

/// Which of the two hosts was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Host {
    /// The hub itself.
    Hub,
    /// The one that it redirects to.
    Cdn,
}

/// A request that came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceivedRequest {
    /// Who was asked.
    pub host: Host,
    /// Path and query.
    pub target: String,
    /// Its `Range`.
    pub range: Option<String>,
    /// Its `Authorization`.
    pub authorization: Option<String>,
}

pub(crate) struct Request {
    pub(crate) target: String,
    pub(crate) headers: BTreeMap<String, String>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    pub(crate) fn query(&self, key: &str) -> Option<&str> {
        let query = self.target.split_once('?')?.1;
        query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
    }

    pub(crate) fn seen(&self, host: Host) -> ReceivedRequest {
        let header = |name: &str| self.header(name).map(str::to_owned);
        ReceivedRequest {
            host,
            target: self.target.clone(),
            range: header("range"),
            authorization: header("authorization"),
        }
    }

    /// Start and end (exclusive) of the bytes asked for, within a file of this size.
    pub(crate) fn range(&self, size: u64) -> Option<(u64, u64)> {
        let (start, end) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let (start, end) =
            (start.parse::<u64>().ok()?, end.parse::<u64>().map_or(size, |e| e.saturating_add(1)));
        (start < end.min(size)).then_some((start, end.min(size)))
    }
}

/// The next request of a connection; `None` at its end.
pub(crate) fn read(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let target = line.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    for _ in 0..LINES_MAX {
        line.clear();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    Ok(Some(Request { target, headers }))
}
