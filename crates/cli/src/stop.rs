//! When it is time to stop: Ctrl-C, a polite kill, the end of standard input, or a client of the API that
//! asks for it.

use anyhow::Context;
use tokio::sync::watch;

use crate::system::StopSignals;

/// `EXO_STOP_WITH_STDIN=1` ties the life of a process to its parent's pipe.
pub const STOP_WITH_STDIN: &str = "EXO_STOP_WITH_STDIN";

/// Whether this process ends with its standard input.
fn stops_with_stdin() -> bool {
    std::env::var_os(STOP_WITH_STDIN).is_some_and(|value| value == "1")
}

/// Ctrl-C, a polite kill, or, when a parent asked for it, the end of standard input.
pub struct StopSignal {
    signals: StopSignals,
    /// Becomes true at the end of standard input; `None` where that means nothing.
    stdin_ended: Option<watch::Receiver<bool>>,
    /// Becomes true when a client of this process's node asks for its end.
    asked: Option<watch::Receiver<bool>>,
}

impl StopSignal {
    /// Starts to listen.
    pub fn new() -> anyhow::Result<Self> {
        let stdin_ended = if stops_with_stdin() { Some(watch_stdin()?) } else { None };
        Ok(Self { signals: StopSignals::new()?, stdin_ended, asked: None })
    }

    /// The node that this process runs may be asked to end, too.
    pub fn also_when(&mut self, asked: watch::Receiver<bool>) {
        self.asked = Some(asked);
    }

    /// Waits until it is time to stop.
    pub async fn wait(&mut self) {
        self.why().await;
    }

    /// Waits for another Ctrl-C, polite kill or client's ask: once the parent is gone it stays gone.
    pub async fn again(&mut self) {
        tokio::select! {
            _ = self.signals.wait() => {}
            () = becomes_true(self.asked.as_mut()) => self.asked = None,
        }
    }

    /// The same, with the reason. Each client's ask counts once: the next wait is for something else.
    pub async fn why(&mut self) -> Stop {
        tokio::select! {
            is_interrupt = self.signals.wait() => if is_interrupt { Stop::Interrupt } else { Stop::Terminate },
            () = becomes_true(self.stdin_ended.as_mut()) => Stop::Parent,
            () = becomes_true(self.asked.as_mut()) => {
                self.asked = None;
                Stop::Asked
            }
        }
    }
}

/// Why it is time to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Ctrl-C was pressed.
    Interrupt,
    /// A polite kill.
    Terminate,
    /// The parent is gone.
    Parent,
    /// A client of the API asked for it.
    Asked,
}

/// One thread reads to the end: a read cannot be taken back.
fn watch_stdin() -> anyhow::Result<watch::Receiver<bool>> {
    let (tell, told) = watch::channel(false);
    let read = move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = tell.send(true);
    };
    let thread = std::thread::Builder::new().name("stdin".to_owned());
    thread.spawn(read).context("cannot watch for the end of standard input")?;
    Ok(told)
}

/// Never, where there is nothing to wait for.
async fn becomes_true(what: Option<&mut watch::Receiver<bool>>) {
    // Without its sender it stays as it is.
    let is_true = match what {
        Some(what) => what.wait_for(|is| *is).await.is_ok(),
        None => false,
    };
    if !is_true {
        std::future::pending::<()>().await;
    }
}
