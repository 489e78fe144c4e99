//! Where the lines of a node's log go: standard error, written by a thread of its own.
//!
//! A terminal that is held (Ctrl-S, a selection in a console of Windows) and a pipe that no one reads take
//! nothing, for as long as they please. Who logs must not wait for them: the task that sends the heartbeats
//! logs as well, and a node that sends none is lost.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use exo_stdx::Mutex;

/// Lines that may wait to be written. Those beyond are counted and left out.
const WAITING_MAX: usize = 1024;

/// Writes lines without waiting. Clones write to the same place.
#[derive(Clone)]
pub struct LogWriter(Arc<Queue>);

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
        if waiting.lines.len() < WAITING_MAX {
            waiting.lines.push_back(line.to_vec());
        } else {
            waiting.left_out += 1;
        }
        self.0.changed.notify_all();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Waiting {
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
        waiting.lines.pop_front().unwrap_or_else(|| {
            let count = std::mem::take(&mut waiting.left_out);
            format!("{count} lines of the log were left out: they were not taken in time\n").into_bytes()
        })
    }
}

#[cfg(test)]
mod tests {
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
}
