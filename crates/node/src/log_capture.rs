//! The last log lines of this process, kept in memory for `exo logs` and for other members that ask.
//!
//! Kept is what says what the node does: of exo's own parts everything from *debug* on, of libraries
//! warnings, and more of what is raised, but for [what may have secrets in it](is_free_of_secrets). Prompts
//! and answers are in no line of any level. A layer of the process's subscriber writes here
//! ([`LogCapture::layer`]); who starts a node installs it. Of lines that one peer causes so many are taken
//! and the rest is counted, here and, where [a filter](LogCapture::shown_lines) is installed, where it is
//! shown.

use std::fmt;
use std::fmt::Write as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_api::{
    AdminError, ClusterView, LOG_LINES_MAX, LOG_RAISED_S, LogLevel, LogLineView, LogQuery, LogsView,
    SilentNodeView,
};
use exo_stdx::{Mutex, unix_ms};
use exo_telemetry::{LogFilter, LogLine, LogRing};
use exo_transport::Endpoint;
use exo_types::{clean_name, printable};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::FilterExt;
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::registry::LookupSpan;

use crate::bulk::{Fetcher, LOG_ANSWER_BYTES_MAX, LogAsk, MemberError};
use crate::peer_lines::{LeftOut, PeerLines};
use exo_accelerators::chain;

/// Bytes of lines that are kept.
const RING_BYTES_MAX: usize = 10 << 20;
/// Lines that one peer may cause, from *debug* on: at once, and a minute behind that. Each of its requests is
/// one.
const KEPT_OF_PEER: (u32, u32) = (6000, 3000);
/// The same of what is shown, from *info* on.
const SHOWN_OF_PEER: (u32, u32) = (240, 120);
/// Between two lines about what was left out.
const LEFT_OUT_TOLD_EVERY: Duration = Duration::from_secs(60);
/// Targets whose level is raised at once.
const RAISED_MAX: usize = 8;
/// Longest name of a target that may be raised, and of text in a question.
const NAME_BYTES_MAX: usize = 200;
/// Hexadecimal digits of a request's id, and of its beginning, by which sequences are named.
const REQUEST_DIGITS: [usize; 2] = [32, 8];
/// For one member to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Members that are asked at once.
const ASKED_AT_ONCE: usize = 16;
/// Most lines of an answer unless more are asked for.
const LIMIT: u32 = 200;

/// Where the lines are. A value like others: clones are the same.
#[derive(Clone, Debug)]
pub struct LogCapture(Arc<LogCaptureInner>);

#[derive(Debug)]
struct LogCaptureInner {
    ring: Mutex<LogRing>,
    raised: Mutex<Vec<Raised>>,
    kept_of_peers: PeerLines,
    shown_of_peers: PeerLines,
    is_left_out: Arc<Notify>,
}

/// More is kept of these targets for a while.
#[derive(Clone, Debug)]
struct Raised {
    target: String,
    level: LevelFilter,
    until: Instant,
}

impl Default for LogCapture {
    fn default() -> Self {
        let (ring, raised) = (Mutex::new(LogRing::new(RING_BYTES_MAX)), Mutex::default());
        let is_left_out = Arc::<Notify>::default();
        let kept_of_peers = PeerLines::new(Level::DEBUG, KEPT_OF_PEER, is_left_out.clone());
        let shown_of_peers = PeerLines::new(Level::INFO, SHOWN_OF_PEER, is_left_out.clone());
        Self(Arc::new(LogCaptureInner { ring, raised, kept_of_peers, shown_of_peers, is_left_out }))
    }
}

/// One line of the answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct LogAnswerLine {
    number: u64,
    at_unix_ms: u64,
    level: u8,
    target: String,
    request: Option<String>,
    text: String,
}

/// The answer: the number of the last line there is, and lines.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LogAnswer {
    last: u64,
    lines: Vec<LogAnswerLine>,
}

impl LogCapture {
    /// What writes here.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        Writer(self.clone()).with_filter(KeptLines(self.clone()).and(self.0.kept_of_peers.clone()))
    }

    /// Lets through what is to be shown of lines that peers cause.
    pub fn shown_lines<S>(&self) -> impl Filter<S> + Send + Sync + use<S> {
        self.0.shown_of_peers.clone()
    }

    /// Tells what was left out, a minute after the first of it, until the node has ended.
    pub(crate) async fn report_left_out(self, mut ended: watch::Receiver<bool>) {
        let mut has_ended = pin!(async move {
            let _ = ended.wait_for(|ended| *ended).await;
        });
        loop {
            tokio::select! {
                () = self.0.is_left_out.notified() => {}
                () = &mut has_ended => break,
            }
            tokio::select! {
                () = tokio::time::sleep(LEFT_OUT_TOLD_EVERY) => {}
                () = &mut has_ended => break,
            }
            self.tell_left_out();
        }
        self.tell_left_out();
    }

    fn tell_left_out(&self) {
        for (log, of_peers) in [("shown", &self.0.shown_of_peers), ("kept", &self.0.kept_of_peers)] {
            let Some(LeftOut { lines, targets, peers }) = of_peers.take_left_out() else { continue };
            tracing::warn!(log, lines, targets, peers, "too many lines of single peers: these were left out");
        }
    }

    /// Keeps more of a target for ten minutes.
    pub fn raise(&self, target: &str, level: LogLevel) -> Result<(), AdminError> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.' | '-');
        if target.is_empty() || target.len() > NAME_BYTES_MAX || !target.chars().all(is_name) {
            return Err(AdminError::invalid("target", "a target is a name like `exo_cluster::scheduler`"));
        }
        let until = Instant::now() + Duration::from_secs(LOG_RAISED_S);
        {
            let mut raised = self.0.raised.lock();
            raised.retain(|other| other.target != target && other.until > Instant::now());
            if raised.len() >= RAISED_MAX {
                let message = format!("the levels of {RAISED_MAX} targets are raised already");
                return Err(AdminError::Conflict { message });
            }
            raised.push(Raised { target: target.to_owned(), level: filter_of(level), until });
        }
        tracing::callsite::rebuild_interest_cache();
        let capture = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(LOG_RAISED_S)).await;
            capture.0.raised.lock().retain(|raised| raised.until > Instant::now());
            tracing::callsite::rebuild_interest_cache();
        });
        Ok(())
    }

    /// The answer to another node.
    pub fn answer(&self, ask: &LogAsk) -> LogAnswer {
        let filter = LogFilter {
            level: ask.level.and_then(level_of_number),
            target: ask.target.clone(),
            request: ask.request.clone(),
            after: ask.after,
            limit: ask.limit.min(LOG_LINES_MAX) as usize,
        };
        let (lines, last, after) = {
            let ring = self.0.ring.lock();
            // Who has read further than there is has read an earlier run of this node.
            let after = if filter.after > ring.last() { 0 } else { filter.after };
            (ring.lines(&LogFilter { after, ..filter.clone() }), ring.last(), after)
        };
        let mut bytes = 0;
        let fits = |line: &LogLine| {
            bytes += line.text.len() + line.target.len() + 64;
            bytes <= LOG_ANSWER_BYTES_MAX
        };
        if after > 0 {
            // Who follows gets the rest with the next answer.
            let all = lines.len();
            let lines: Vec<LogAnswerLine> = lines.into_iter().take_while(fits).map(told).collect();
            let is_all = lines.len() == all && all < filter.limit;
            let last = if is_all { last } else { lines.last().map_or(last, |line| line.number) };
            return LogAnswer { last, lines };
        }
        // The last ones count, as with every limit.
        let mut lines: Vec<LogAnswerLine> = lines.into_iter().rev().take_while(fits).map(told).collect();
        lines.reverse();
        LogAnswer { last, lines }
    }

    fn keeps(&self, about: &Metadata<'_>) -> bool {
        let target = about.target();
        let is_own = target.starts_with("exo") || target.starts_with("events::");
        let usual = if is_own { LevelFilter::DEBUG } else { LevelFilter::WARN };
        let raised = self.0.raised.lock();
        let of_target = raised.iter().filter(|raised| target.starts_with(raised.target.as_str()));
        is_free_of_secrets(about)
            && *about.level() <= of_target.map(|raised| raised.level).fold(usual, LevelFilter::max)
    }
}

/// Whose lines may be logged below `info`: ours, and those of libraries that see neither tokens nor prompts.
/// Others dump what goes over the line to a hub (`ureq`), each key that is typed (`rustyline`), or each
/// letter of a prompt (`tokenizers`).
const DETAILED: [&str; 5] = ["exo", "events::", "quinn", "wgpu", "naga"];

/// Whether a line may be logged, whatever filters and raised levels say.
pub fn is_free_of_secrets(line: &Metadata<'_>) -> bool {
    *line.level() <= Level::INFO || DETAILED.iter().any(|start| line.target().starts_with(start))
}

fn told(line: LogLine) -> LogAnswerLine {
    LogAnswerLine {
        number: line.number,
        at_unix_ms: line.at_unix_ms,
        level: line.level as u8,
        target: line.target.to_owned(),
        request: line.request,
        text: line.text,
    }
}

fn level_of_number(number: u8) -> Option<LogLevel> {
    use LogLevel::{Debug, Error, Info, Trace, Warn};
    [Trace, Debug, Info, Warn, Error].into_iter().find(|level| *level as u8 == number)
}

fn filter_of(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Trace => LevelFilter::TRACE,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
    }
}

fn level_of(level: Level) -> LogLevel {
    match level {
        Level::TRACE => LogLevel::Trace,
        Level::DEBUG => LogLevel::Debug,
        Level::INFO => LogLevel::Info,
        Level::WARN => LogLevel::Warn,
        Level::ERROR => LogLevel::Error,
    }
}

/// Which lines are kept. What is not is decided once for each place in the program, so that it costs nothing
/// there.
struct KeptLines(LogCapture);

impl<S> Filter<S> for KeptLines {
    fn enabled(&self, about: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.0.keeps(about)
    }

    fn callsite_enabled(&self, about: &'static Metadata<'static>) -> Interest {
        if self.0.keeps(about) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let raised = self.0.0.raised.lock();
        Some(raised.iter().map(|raised| raised.level).fold(LevelFilter::DEBUG, LevelFilter::max))
    }
}

struct Writer(LogCapture);

impl<S: Subscriber> Layer<S> for Writer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let about = event.metadata();
        let mut line = Line::default();
        event.record(&mut line);
        let Line { mut text, fields, request } = line;
        text.push_str(&fields);
        self.0.0.ring.lock().push(unix_ms(), level_of(*about.level()), about.target(), request, &text);
    }
}

/// The message, and behind it the fields.
#[derive(Default)]
struct Line {
    text: String,
    fields: String,
    request: Option<String>,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.text, "{value:?}");
            return;
        }
        let from = self.fields.len();
        let _ = write!(self.fields, " {}={value:?}", field.name());
        if matches!(field.name(), "request" | "id" | "sequence") && self.request.is_none() {
            let value = self.fields[from..].split_once('=').map_or("", |(_, value)| value.trim_matches('"'));
            self.request = request_of(value);
        }
    }
}

/// The request that a field names: a sequence begins with its request.
fn request_of(value: &str) -> Option<String> {
    let digits: String = value.chars().take_while(char::is_ascii_hexdigit).collect();
    REQUEST_DIGITS.contains(&digits.len()).then_some(digits)
}

/// The lines of this node, which is called `name`, and of those that are reached.
pub async fn lines_of_all(
    (own, name): (&LogCapture, &str),
    endpoint: &Endpoint,
    view: &ClusterView,
    query: LogQuery,
) -> Result<LogsView, AdminError> {
    let limit = query.limit.unwrap_or(LIMIT);
    if limit == 0 || limit > LOG_LINES_MAX {
        let message = format!("`limit` is {limit}, and an answer has 1 to {LOG_LINES_MAX} lines");
        return Err(AdminError::invalid("limit", message));
    }
    let cursor = Cursor::parse(query.after.as_deref().unwrap_or_default());
    let is_wanted = |id: &str, name: &str| query.node.as_ref().is_none_or(|node| node == id || node == name);
    let nodes: Vec<_> = view.nodes.iter().filter(|node| is_wanted(&node.id, &node.name)).collect();
    // One that was removed is not in its own view of the cluster.
    let is_out = !view.nodes.iter().any(|node| node.is_self) && is_wanted(&view.self_node, name);
    if let (Some(wanted), true) = (&query.node, nodes.is_empty() && !is_out) {
        return Err(AdminError::NotFound { what: "node", name: wanted.clone() });
    }
    let text = |text: Option<String>| text.map(|text| text.chars().take(NAME_BYTES_MAX).collect());
    let (target, request): (Option<String>, Option<String>) = (text(query.target), text(query.request));
    let ask_behind = |id: &str| LogAsk {
        level: query.level.map(|level| level as u8),
        target: target.clone(),
        request: request.clone(),
        after: cursor.of(id),
        limit,
    };
    let mut asks = Vec::new();
    for node in nodes {
        let ask = ask_behind(&node.id);
        asks.push(async move {
            let told = if node.is_self { Ok(own.answer(&ask)) } else { asked(endpoint, node, ask).await };
            ((node.id.as_str(), node.name.as_str()), told)
        });
    }
    // Each in a bounded time, a few at once.
    let mut answers: Vec<_> = futures_util::stream::iter(asks).buffered(ASKED_AT_ONCE).collect().await;
    if is_out {
        answers.push(((view.self_node.as_str(), name), Ok(own.answer(&ask_behind(&view.self_node)))));
    }
    Ok(gather(answers, limit, cursor))
}

/// What a node answered, by its id and its name.
type NodeAnswer<'a> = ((&'a str, &'a str), Result<LogAnswer, MemberError>);

/// One answer of the lines of all.
fn gather(answers: Vec<NodeAnswer<'_>>, limit: u32, mut cursor: Cursor) -> LogsView {
    let mut out = LogsView::default();
    let is_following = !cursor.0.is_empty();
    for ((id, name), told) in answers {
        let (id, name) = (id.to_owned(), name.to_owned());
        match told {
            Ok(told) => {
                cursor.set(&id, told.last);
                out.lines.extend(told.lines.into_iter().map(|line| LogLineView {
                    node: id.clone(),
                    name: name.clone(),
                    number: line.number,
                    at_unix_ms: line.at_unix_ms,
                    level: level_of_number(line.level).unwrap_or(LogLevel::Info),
                    target: clean_name(&line.target, NAME_BYTES_MAX),
                    request: line.request.as_deref().and_then(request_of),
                    text: printable(&line.text, 2000),
                }));
            }
            Err(error) => {
                let reason = printable(&chain(&error), 300);
                out.silent.push(SilentNodeView { node: id, name, reason });
            }
        }
    }
    out.lines.sort_by_key(|line| line.at_unix_ms);
    let limit = out.lines.len().min(limit as usize);
    if is_following {
        // What is too much for one answer comes with the next.
        for line in out.lines.drain(limit..) {
            cursor.set(&line.node, cursor.of(&line.node).min(line.number.saturating_sub(1)));
        }
    } else {
        let too_many = out.lines.len() - limit;
        out.lines.drain(..too_many);
    }
    out.next = cursor.to_string();
    out
}

async fn asked(endpoint: &Endpoint, node: &exo_api::NodeView, ask: LogAsk) -> Result<LogAnswer, MemberError> {
    let answer = async {
        let mut fetcher = Fetcher::dial_member(endpoint, node).await?;
        let told: LogAnswer = postcard::from_bytes(&fetcher.logs(ask).await?)?;
        match told.lines.len() {
            lines if lines > LOG_LINES_MAX as usize => Err(MemberError::TooManyLines { lines }),
            _ => Ok(told),
        }
    };
    let late = |_| MemberError::Late { seconds: ANSWER_MAX.as_secs() };
    tokio::time::timeout(ANSWER_MAX, answer).await.map_err(late)?
}

/// How far each node's lines were read: `ID:NUMBER`, comma between.
#[derive(Debug, Default)]
struct Cursor(std::collections::BTreeMap<String, u64>);

impl Cursor {
    fn parse(text: &str) -> Self {
        let part = |part: &str| {
            let (id, number) = part.split_once(':')?;
            Some((id.to_owned(), number.parse().ok()?))
        };
        Self(text.split(',').filter_map(part).take(exo_cluster::wire::limits::MEMBERS_MAX).collect())
    }

    fn of(&self, id: &str) -> u64 {
        self.0.get(id).copied().unwrap_or(0)
    }

    fn set(&mut self, id: &str, number: u64) {
        self.0.insert(id.to_owned(), number);
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (id, number)) in self.0.iter().enumerate() {
            write!(f, "{}{id}:{number}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use exo_types::NodeId;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    const ALL: LogAsk = LogAsk { level: None, target: None, request: None, after: 0, limit: 100 };

    fn texts(capture: &LogCapture) -> Vec<String> {
        capture.answer(&ALL).lines.into_iter().map(|line| line.text).collect()
    }

    #[tokio::test]
    async fn debug_lines_of_exo_are_kept_warnings_of_others_and_more_of_what_is_raised() {
        let capture = LogCapture::default();
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(capture.layer()));
        let say = || {
            tracing::debug!(target: "exo_server::app", id = "ab".repeat(16), "a request");
            tracing::trace!(target: "exo_cluster::stage", step = 3, "a step");
            tracing::info!(target: "quinn", "a packet");
            tracing::warn!(target: "quinn", "a lost packet");
        };
        say();
        assert_eq!(texts(&capture).len(), 2, "{:?}", texts(&capture));
        capture.raise("exo_cluster", LogLevel::Trace).unwrap();
        say();
        let texts = texts(&capture);
        assert!(texts.contains(&"a step step=3".to_owned()), "{texts:?}");
        let request = capture.answer(&LogAsk { request: Some("ab".repeat(16)), ..ALL });
        assert_eq!((request.lines.len(), request.last), (2, 5));
        let numbers = |after| -> Vec<u64> {
            capture.answer(&LogAsk { after, ..ALL }).lines.iter().map(|line| line.number).collect()
        };
        // Behind the last line there is nothing, and behind a later one another run's.
        assert_eq!((numbers(3), numbers(5), numbers(6).len()), (vec![4, 5], vec![], 5));
        let next = capture.answer(&LogAsk { after: 1, limit: 2, ..ALL });
        assert_eq!((next.lines[0].number, next.lines.len(), next.last), (2, 2, 3), "none is left out");
        for wrong in ["", "a b", &"x".repeat(300)] {
            assert!(
                matches!(capture.raise(wrong, LogLevel::Trace), Err(AdminError::Invalid { .. })),
                "{wrong}"
            );
        }
        for number in 0..RAISED_MAX {
            let raised = capture.raise(&format!("t{number}"), LogLevel::Trace);
            assert_eq!(raised.is_ok(), number < RAISED_MAX - 1, "{number}");
        }
    }

    /// Counts lines from *info* on.
    struct Shown(Arc<AtomicU64>);

    impl<S: Subscriber> Layer<S> for Shown {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(u64::from(*event.metadata().level() <= Level::INFO), Ordering::Relaxed);
        }
    }

    #[test]
    fn of_lines_that_a_member_causes_without_end_some_are_logged_and_the_others_counted_by_target() {
        let (capture, shown) = (LogCapture::default(), Arc::new(AtomicU64::new(0)));
        let lines = Shown(shown.clone()).with_filter(capture.shown_lines());
        let subscriber = tracing_subscriber::registry().with(lines).with(capture.layer());
        let _guard = tracing::subscriber::set_default(subscriber);
        let say = |peer: NodeId| {
            tracing::warn!(target: "events::log", %peer, "entries that cannot be");
            tracing::debug!(target: "exo_machine::backups", %peer, "no room");
        };
        (0..5000).for_each(|_| say(NodeId([1; 32])));
        say(NodeId([2; 32]));
        tracing::warn!(target: "exo_node::ballast", "the disk is full");
        let (kept_of_others, other) = (texts(&capture).into_iter().rev().take(3), NodeId([2; 32]));
        let kept_of_others: Vec<String> = kept_of_others.collect();
        let [debug, warning] =
            ["no room", "entries that cannot be"].map(|text| format!("{text} peer={other}"));
        let expected = ["the disk is full".to_owned(), debug, warning];
        assert_eq!(kept_of_others, expected, "neither others nor the node itself lose a line");
        let logged = [shown.load(Ordering::Relaxed), capture.0.ring.lock().last()];
        // Of the one member, and a little more on a slow machine.
        let of_member = [logged[0] - 2, logged[1] - 3];
        assert!((240..1000).contains(&of_member[0]) && (6000..9000).contains(&of_member[1]), "{of_member:?}");
        capture.tell_left_out();
        let told = texts(&capture).split_off(98);
        let left_out = |line: &str| -> u64 {
            line.split_once(" lines=").unwrap().1.split(' ').next().unwrap().parse().unwrap()
        };
        assert_eq!(left_out(&told[0]), 5000 - of_member[0], "each line is logged or counted: {told:?}");
        assert_eq!(left_out(&told[1]), 10_000 - of_member[1], "{told:?}");
        assert!(
            told[0].contains(r#"log="shown""#) && told[0].contains(r#"targets="events::log "#),
            "{told:?}"
        );
        let targets = ["events::log ", "exo_machine::backups "];
        assert!(targets.iter().all(|target| told[1].contains(target)), "{told:?}");
        let last = capture.0.ring.lock().last();
        capture.tell_left_out();
        assert_eq!(capture.0.ring.lock().last(), last, "nothing was left out since");
    }

    #[tokio::test]
    async fn what_was_left_out_is_told_when_the_node_ends_at_the_latest() {
        let capture = LogCapture::default();
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(capture.layer()));
        let (end, ended) = watch::channel(false);
        let reports = capture.clone().report_left_out(ended);
        let flood = async {
            let peer = NodeId([1; 32]);
            (0..20_000).for_each(|_| tracing::info!(target: "exo_machine::trust", %peer, "refused"));
            end.send(true).unwrap();
        };
        tokio::join!(reports, flood);
        let last = texts(&capture).pop().unwrap();
        assert!(last.starts_with("too many lines") && last.contains("exo_machine::trust "), "{last}");
    }

    #[tokio::test]
    async fn no_raised_level_keeps_what_libraries_that_see_secrets_say_below_info() {
        let capture = LogCapture::default();
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(capture.layer()));
        for target in ["ureq", "quinn"] {
            capture.raise(target, LogLevel::Trace).unwrap();
        }
        tracing::trace!(target: "ureq_proto::util", "a dump");
        tracing::info!(target: "ureq::run", "a request");
        tracing::trace!(target: "quinn::connection", "a packet");
        assert_eq!(texts(&capture), ["a request", "a packet"]);
    }

    #[test]
    fn lines_of_many_nodes_come_in_order_and_a_cursor_leads_on() {
        let line = |number: u64, at_unix_ms: u64| LogAnswerLine {
            number,
            at_unix_ms,
            level: LogLevel::Info as u8,
            target: "t\x1b".to_owned(),
            request: Some("not hex".to_owned()),
            text: format!("line {number}\nforged"),
        };
        let answers = || {
            vec![
                (("aaaaaaaa", "a"), Ok(LogAnswer { last: 9, lines: vec![line(8, 10), line(9, 30)] })),
                (("bbbbbbbb", "b"), Ok(LogAnswer { last: 4, lines: vec![line(4, 20)] })),
                (("cccccccc", "c"), Err(MemberError::Gone)),
            ]
        };
        let view = gather(answers(), 2, Cursor::parse("nonsense,x:y"));
        let shown: Vec<_> = view.lines.iter().map(|line| (line.name.as_str(), line.number)).collect();
        assert_eq!(shown, [("b", 4), ("a", 9)], "the last two, by time");
        assert!(view.lines.iter().all(|l| !l.text.contains('\n') && l.request.is_none() && l.target == "t"));
        assert_eq!(view.next, "aaaaaaaa:9,bbbbbbbb:4");
        assert_eq!(view.silent[0].reason, "it is not there");
        // Who follows misses none: what is too much comes with the next answer.
        let view = gather(answers(), 2, Cursor::parse("aaaaaaaa:7,cccccccc:7"));
        let shown: Vec<_> = view.lines.iter().map(|line| (line.name.as_str(), line.number)).collect();
        assert_eq!(shown, [("a", 8), ("b", 4)]);
        assert_eq!(view.next, "aaaaaaaa:8,bbbbbbbb:4,cccccccc:7");
    }
}
