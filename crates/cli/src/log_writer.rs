//! Where the lines of a node's log go: standard error, written by a thread of its own.
//!
//! A terminal that is held (Ctrl-S, a selection in a console of Windows) and a pipe that no one reads take
//! nothing, for as long as they please. Who logs must not wait for them: the task that sends the heartbeats
//! logs as well, and a node that sends none is lost.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, OnceLock, PoisonError};
use std::time::Duration;

use exo_stdx::Mutex;

/// Lines that may wait to be written. Those beyond are counted and left out.
const WAITING_MAX: usize = 1024;

/// Writes lines without waiting. Clones write to the same place.
#[derive(Clone)]
pub struct LogWriter(Arc<Queue>);

/// Waits, when it is dropped (by a panic, too), until what was logged is written, but no longer than this.
pub struct FlushWhenDropped<'a> {
    /// The log, once there is one.
    pub log: &'a OnceLock<LogWriter>,
    /// So long.
    pub max: Duration,
}

impl Drop for FlushWhenDropped<'_> {
    fn drop(&mut self) {
        if let Some(log) = self.log.get() {
            log.flush_within(self.max);
        }
    }
}

struct Queue {
    to: Mutex<Box<dyn Write + Send>>,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    /// Lines that came while as many as may waited.
    left_out: u64,
    /// A line that was taken out is on its way.
    is_writing: bool,
    /// The thread begins with the first line: most commands log nothing.
    has_thread: bool,
}

impl LogWriter {
    /// Lines go there, in their order.
    pub fn to(to: impl Write + Send + 'static) -> Self {
        let (to, waiting) = (Mutex::new(Box::new(to) as Box<dyn Write + Send>), Mutex::default());
        Self(Arc::new(Queue { to, waiting, changed: Condvar::new() }))
    }

    /// Waits until what was logged is written, but no longer than this.
    pub fn flush_within(&self, max: Duration) {
        let is_left = |waiting: &mut Waiting| waiting.is_writing || waiting.is_any();
        drop(self.0.changed.wait_timeout_while(self.0.waiting.lock(), max, is_left));
    }
}

impl Write for LogWriter {
    /// Takes a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut waiting = self.0.waiting.lock();
        if !waiting.has_thread {
            let (queue, thread) = (self.0.clone(), std::thread::Builder::new().name("log".to_owned()));
            if thread.spawn(move || queue.serve()).is_err() {
                drop(waiting);
                return self.0.to.lock().write(line);
            }
            waiting.has_thread = true;
        }
        waiting.take(line);
        self.0.changed.notify_all();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Waiting {
    /// Takes a line, or counts it. Once one is left out so are those behind it, until half of the room is
    /// free again: what is missing is missing in one place, which says how much that is.
    fn take(&mut self, line: &[u8]) {
        let room = if self.left_out > 0 { WAITING_MAX / 2 } else { WAITING_MAX };
        if self.lines.len() >= room {
            self.left_out += 1;
            return;
        }
        let told = self.told_left_out();
        self.lines.extend(told);
        self.lines.push_back(line.to_vec());
    }

    /// A line that tells how many were left out, if any were.
    fn told_left_out(&mut self) -> Option<Vec<u8>> {
        let count = std::mem::take(&mut self.left_out);
        let text = "lines of the log were left out: they were not taken in time";
        (count > 0).then(|| format!("{count} {text}\n").into_bytes())
    }

    fn is_any(&self) -> bool {
        !self.lines.is_empty() || self.left_out > 0
    }
}

impl Queue {
    /// Writes what comes, as long as the process is there.
    fn serve(&self) {
        loop {
            let line = self.next();
            // Of a closed standard error there is no one to be told.
            let _ = self.to.lock().write_all(&line);
        }
    }

    /// The next line, once there is one; the one before is written.
    fn next(&self) -> Vec<u8> {
        let mut waiting = self.waiting.lock();
        waiting.is_writing = false;
        self.changed.notify_all();
        let waiting = self.changed.wait_while(waiting, |waiting| !waiting.is_any());
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        waiting.is_writing = true;
        let line = waiting.lines.pop_front();
        line.or_else(|| waiting.told_left_out()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A terminal that takes nothing until it is let go.
    struct Held {
        go: Option<Receiver<()>>,
        taken: Sender<Vec<u8>>,
    }

    impl Write for Held {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            if let Some(go) = self.go.take() {
                go.recv().unwrap();
            }
            self.taken.send(line.to_vec()).unwrap();
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_terminal_that_is_held_keeps_no_one_from_logging_and_says_later_what_it_missed() {
        const COUNT: usize = WAITING_MAX + 10;
        let ((go, held), (taken, told)) = (channel(), channel());
        let log = LogWriter::to(Held { go: Some(held), taken });
        let (mut logs, (done, ended)) = (log.clone(), channel());
        std::thread::spawn(move || {
            (0..COUNT).for_each(|n| logs.write_all(format!("line {n}\n").as_bytes()).unwrap());
            done.send(())
        });
        assert!(ended.recv_timeout(Duration::from_secs(20)).is_ok(), "who logs waits for the terminal");
        log.flush_within(Duration::from_millis(20));
        assert!(told.try_recv().is_err(), "the end of a command waits no longer than it may");
        go.send(()).unwrap();
        log.flush_within(Duration::from_secs(20));
        let text = String::from_utf8(told.try_iter().collect::<Vec<_>>().concat()).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        let left_out = lines.pop().and_then(|last| last.split(' ').next()?.parse::<usize>().ok());
        assert!(lines.iter().enumerate().all(|(n, line)| *line == format!("line {n}")), "{text}");
        assert_eq!(left_out.map(|left_out| left_out + lines.len()), Some(COUNT), "{text}");
    }

    /// A terminal that takes a line for each permission, and all once there are no more of these.
    struct Paced {
        go: Receiver<()>,
        taken: Sender<Vec<u8>>,
    }

    impl Write for Paced {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.go.recv();
            self.taken.send(line.to_vec()).unwrap();
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_says_in_their_place_that_lines_are_missing() {
        let ((go, paced), (taken, told)) = (channel(), channel());
        let log = LogWriter::to(Paced { go: paced, taken });
        let mut logs = log.clone();
        let mut say = |text: String| logs.write_all(format!("{text}\n").as_bytes()).unwrap();
        (0..WAITING_MAX + 10).for_each(|n| say(format!("line {n}")));
        for _ in 0..WAITING_MAX / 2 + 2 {
            go.send(()).unwrap();
            told.recv_timeout(Duration::from_secs(20)).unwrap();
        }
        say("late".to_owned());
        drop(go);
        log.flush_within(Duration::from_secs(20));
        let rest = String::from_utf8(told.try_iter().collect::<Vec<_>>().concat()).unwrap();
        let lines: Vec<&str> = rest.lines().collect();
        let [.., missing, late] = &lines[..] else { panic!("{rest}") };
        assert!(missing.contains(" lines of the log were left out"), "{missing}, then {late}");
        assert_eq!(*late, "late");
    }

    #[test]
    fn what_was_logged_before_a_command_panics_is_written_before_its_process_ends() {
        let ((go, held), (taken, told)) = (channel(), channel());
        let log = OnceLock::from(LogWriter::to(Held { go: Some(held), taken }));
        let (_kept, never) = channel::<()>();
        std::thread::spawn(move || {
            let _ = never.recv_timeout(Duration::from_millis(200)); // the terminal takes its time
            go.send(())
        });
        let ended: std::thread::Result<()> = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let _end = FlushWhenDropped { log: &log, max: Duration::from_secs(20) };
            log.get().unwrap().clone().write_all(b"the last line\n").unwrap();
            panic!("a bug in a command");
        }));
        assert!(ended.is_err());
        assert_eq!(told.try_recv().unwrap(), b"the last line\n");
    }
}
