//! An in-memory stream of bytes with a real stream's ends: finished in order, or broken off.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::frame::RawSend;

/// Bytes on their way before the writer has to wait.
const CAPACITY_BYTES: usize = 64 << 10;

#[derive(Default)]
struct State {
    bytes: VecDeque<u8>,
    finished: bool,
    broken: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// One direction of a connection; cheap to clone for whoever may break it.
#[derive(Clone, Default)]
pub(crate) struct Pipe(Arc<Mutex<State>>);

/// Its writing end.
pub(crate) struct PipeWriter(Pipe);
/// Its reading end.
pub(crate) struct PipeReader(Pipe);

impl Pipe {
    pub(crate) fn ends(&self) -> (PipeWriter, PipeReader) {
        (PipeWriter(self.clone()), PipeReader(self.clone()))
    }

    /// Breaks it off: what is on its way is lost, both ends see an error.
    pub(crate) fn sever(&self) {
        let mut state = self.lock();
        state.broken = true;
        state.bytes.clear();
        state.wake();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wake(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }

    fn check(&self) -> io::Result<()> {
        if self.broken { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

impl RawSend for PipeWriter {
    fn abort(&mut self) {
        self.0.sever();
    }
}

impl Drop for PipeWriter {
    /// Dropped without `shutdown`: the reader must not take it for an end in order.
    fn drop(&mut self) {
        if !self.0.lock().finished {
            self.0.sever();
        }
    }
}

impl Drop for PipeReader {
    /// Nobody will read: the writer must not wait for room.
    fn drop(&mut self) {
        if !self.0.lock().finished {
            self.0.sever();
        }
    }
}

impl AsyncWrite for PipeWriter {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.0.lock();
        state.check()?;
        if state.finished {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = CAPACITY_BYTES.saturating_sub(state.bytes.len()).min(buf.len());
        if room == 0 && !buf.is_empty() {
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.bytes.extend(&buf[..room]);
        state.wake();
        Poll::Ready(Ok(room))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.lock().check())
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        state.check()?;
        state.finished = true;
        state.wake();
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for PipeReader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.lock();
        state.check()?;
        if state.bytes.is_empty() && !state.finished {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let n = buf.remaining().min(state.bytes.len());
        let (front, back) = state.bytes.as_slices();
        let first = n.min(front.len());
        buf.put_slice(&front[..first]);
        buf.put_slice(&back[..n - first]);
        state.bytes.drain(..n);
        state.wake();
        Poll::Ready(Ok(()))
    }
}

/// Both directions of one end. Dropping it breaks off what was not finished.
pub(crate) struct PipeDuplex {
    pub(crate) writer: PipeWriter,
    pub(crate) reader: PipeReader,
}

impl PipeDuplex {
    pub(crate) fn into_halves(self) -> (PipeWriter, PipeReader) {
        (self.writer, self.reader)
    }
}

impl AsyncRead for PipeDuplex {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(cx, buf)
    }
}

impl AsyncWrite for PipeDuplex {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(cx)
    }
}
