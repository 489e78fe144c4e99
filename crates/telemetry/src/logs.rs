//! The last lines of a log, in as many bytes as it may take.

use std::collections::VecDeque;

use exo_api::LogLevel;
use exo_types::printable;

/// Characters of one line: longer ones are cut.
const LINE_CHARS_MAX: usize = 2000;
/// Of the bytes, so many are for warnings and errors, whatever else comes.
const WARNINGS_SHARE: usize = 4;
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
    /// Behind this number; 0 for all.
    pub after: u64,
    /// So many: the last ones, or behind a number the first ones, so that who follows misses none.
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
    /// Below warnings.
    usual: Lines,
    /// Warnings and errors, which a night of other lines does not push out.
    warnings: Lines,
    bytes_max: usize,
    last: u64,
}

#[derive(Debug, Default)]
struct Lines {
    lines: VecDeque<LogLine>,
    bytes: usize,
}

impl Lines {
    fn push(&mut self, line: LogLine) {
        self.bytes += line.bytes();
        self.lines.push_back(line);
    }

    fn pop(&mut self) -> bool {
        let oldest = self.lines.pop_front();
        self.bytes -= oldest.as_ref().map_or(0, LogLine::bytes);
        oldest.is_some()
    }

    /// Those that the filter takes, the oldest first.
    fn wanted(&self, filter: &LogFilter) -> Vec<&LogLine> {
        let wanted = |line: &&LogLine| filter.takes(line);
        if filter.after > 0 {
            return self.lines.iter().filter(wanted).take(filter.limit).collect();
        }
        let mut lines: Vec<_> = self.lines.iter().rev().filter(wanted).take(filter.limit).collect();
        lines.reverse();
        lines
    }
}

impl LogRing {
    /// Holds so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { usual: Lines::default(), warnings: Lines::default(), bytes_max, last: 0 }
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
        let lines = if level >= LogLevel::Warn { &mut self.warnings } else { &mut self.usual };
        lines.push(line);
        while self.bytes() > self.bytes_max {
            let is_share_full = self.warnings.bytes > self.bytes_max / WARNINGS_SHARE;
            let from = if is_share_full { &mut self.warnings } else { &mut self.usual };
            if !from.pop() {
                break;
            }
        }
    }

    /// The number of the last line that came.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.usual.bytes + self.warnings.bytes
    }

    /// The lines that the filter takes, oldest first.
    pub fn lines(&self, filter: &LogFilter) -> Vec<LogLine> {
        let mut lines = self.usual.wanted(filter);
        lines.extend(self.warnings.wanted(filter));
        lines.sort_by_key(|line| line.number);
        let too_many = lines.len().saturating_sub(filter.limit);
        let kept = if filter.after > 0 { &lines[..lines.len() - too_many] } else { &lines[too_many..] };
        kept.iter().map(|line| (*line).clone()).collect()
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
        let two = |after| {
            let lines = ring().lines(&LogFilter { limit: 2, after, ..Default::default() });
            lines.iter().map(|line| line.number).collect::<Vec<_>>()
        };
        assert_eq!((two(0), two(1)), (vec![2, 3], vec![2, 3]));
        let first = ring().lines(&LogFilter { limit: 1, after: 1, ..Default::default() });
        assert_eq!(first[0].number, 2, "who follows gets the next, not the last");
    }

    #[test]
    fn a_night_of_other_lines_leaves_the_warnings_and_they_leave_the_others() {
        let mut ring = LogRing::new(100_000);
        let count = |ring: &LogRing, level| {
            let lines = ring.lines(&LogFilter { limit: usize::MAX, ..Default::default() });
            lines.iter().filter(|line| line.level == level).count()
        };
        ring.push(1, LogLevel::Warn, "t", None, "the disk is slow");
        for _ in 0..10_000 {
            ring.push(1, LogLevel::Debug, "t", None, &"x".repeat(500));
        }
        assert_eq!(count(&ring, LogLevel::Warn), 1);
        for _ in 0..10_000 {
            ring.push(1, LogLevel::Warn, "t", None, &"x".repeat(500));
            assert!(ring.bytes() <= 100_000);
        }
        assert!(count(&ring, LogLevel::Debug) > 100, "{}", count(&ring, LogLevel::Debug));
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
