//! The last lines of a log, in as many bytes as it may take.

use std::collections::VecDeque;

use exo_api::LogLevel;
use exo_types::printable;

/// Characters of one line: longer ones are cut.
const LINE_CHARS_MAX: usize = 2000;
/// What a line takes beside its texts.
const LINE_BYTES: usize = size_of::<LogLine>();

/// One line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogLine {
    /// Counted from 1 on.
    pub number: u64,
    /// In milliseconds since 1970.
    pub at_unix_ms: u64,
    /// How much it matters.
    pub level: LogLevel,
    /// Which part of the program says it.
    pub target: &'static str,
    /// The id of the request that it is about, or its beginning.
    pub request: Option<String>,
    /// What it says, on one line.
    pub text: String,
}

impl LogLine {
    /// Lines about a sequence name the beginning of its request's id.
    fn is_about(&self, request: &str) -> bool {
        let own = self.request.as_deref();
        own.is_some_and(|own| own.starts_with(request) || request.starts_with(own))
    }

    fn bytes(&self) -> usize {
        LINE_BYTES + self.text.capacity() + self.request.as_ref().map_or(0, String::capacity)
    }
}

/// Which lines are wanted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LogFilter {
    /// Of this level and above.
    pub level: Option<LogLevel>,
    /// Of targets that begin so.
    pub target: Option<String>,
    /// Of this request.
    pub request: Option<String>,
    /// Behind this number.
    pub after: u64,
    /// So many, the last ones.
    pub limit: usize,
}

impl LogFilter {
    fn takes(&self, line: &LogLine) -> bool {
        line.number > self.after
            && self.level.is_none_or(|level| line.level >= level)
            && self.target.as_ref().is_none_or(|target| line.target.starts_with(target.as_str()))
            && self.request.as_ref().is_none_or(|request| line.is_about(request))
    }
}

/// The last lines.
#[derive(Debug)]
pub struct LogRing {
    lines: VecDeque<LogLine>,
    bytes: usize,
    bytes_max: usize,
    last: u64,
}

impl LogRing {
    /// Holds so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { lines: VecDeque::new(), bytes: 0, bytes_max, last: 0 }
    }

    /// Adds a line; the oldest ones go. What a terminal would obey is taken out of it.
    pub fn push(
        &mut self,
        at_unix_ms: u64,
        level: LogLevel,
        target: &'static str,
        request: Option<String>,
        text: &str,
    ) {
        self.last += 1;
        let mut text = printable(text, LINE_CHARS_MAX);
        text.shrink_to_fit();
        let line = LogLine { number: self.last, at_unix_ms, level, target, request, text };
        self.bytes += line.bytes();
        self.lines.push_back(line);
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.bytes -= oldest.bytes();
        }
    }

    /// The number of the last line that came.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The lines that the filter takes, oldest first.
    pub fn lines(&self, filter: &LogFilter) -> Vec<LogLine> {
        let newest_first = self.lines.iter().rev().take_while(|line| line.number > filter.after);
        let wanted = newest_first.filter(|line| filter.takes(line)).take(filter.limit);
        let mut lines: Vec<_> = wanted.cloned().collect();
        lines.reverse();
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> LogRing {
        let mut ring = LogRing::new(1 << 20);
        ring.push(1, LogLevel::Debug, "exo_server::app", Some("aa".to_owned()), "request");
        ring.push(2, LogLevel::Warn, "exo_node", None, "a disk\nis slow\x1b[2J");
        ring.push(3, LogLevel::Info, "exo_server::app", Some("bb".to_owned()), "request");
        ring
    }

    fn numbers(filter: LogFilter) -> Vec<u64> {
        ring().lines(&LogFilter { limit: 10, ..filter }).iter().map(|line| line.number).collect()
    }

    #[test]
    fn lines_are_found_by_level_target_request_and_number() {
        assert_eq!(numbers(LogFilter::default()), [1, 2, 3]);
        assert_eq!(numbers(LogFilter { level: Some(LogLevel::Info), ..Default::default() }), [2, 3]);
        assert_eq!(
            numbers(LogFilter { target: Some("exo_server".to_owned()), ..Default::default() }),
            [1, 3]
        );
        for about in ["aa", "aa99", "a"] {
            assert_eq!(numbers(LogFilter { request: Some(about.to_owned()), ..Default::default() }), [1]);
        }
        assert_eq!(numbers(LogFilter { after: 2, ..Default::default() }), [3]);
        let last = ring().lines(&LogFilter { limit: 2, ..Default::default() });
        assert_eq!(last.iter().map(|line| line.number).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn a_line_is_one_line_that_a_terminal_obeys_in_nothing() {
        let lines = ring().lines(&LogFilter { limit: 10, ..Default::default() });
        assert!(!lines[1].text.contains(|c: char| c.is_control()), "{}", lines[1].text);
    }

    #[test]
    fn the_ring_holds_its_bytes_and_no_more() {
        let mut ring = LogRing::new(100_000);
        for _ in 0..10_000 {
            ring.push(1, LogLevel::Info, "t", None, &"x".repeat(5000));
            assert!(ring.bytes() <= 100_000);
        }
        let lines = ring.lines(&LogFilter { limit: usize::MAX, ..Default::default() });
        assert!((40..=50).contains(&lines.len()), "{}", lines.len());
        assert_eq!((lines.last().unwrap().number, ring.last()), (10_000, 10_000));
    }
}
