//! Where a user's commands reach the node of a data folder: a Unix socket, or a named pipe on Windows.
//!
//! No secret crosses it. The node asks the system who connects and serves its own user (and root, or the
//! system itself); a command asks the system whose channel it is before it writes a byte, so that whoever
//! takes the name after a crash learns nothing.

#![deny(unsafe_code)] // allowed in the file that calls Windows

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::io;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncWrite};

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

/// The node's end.
#[derive(Debug)]
pub struct LocalListener(system::Listener);

/// The node's end of one connection.
pub type LocalStream = system::ServerStream;

impl LocalListener {
    /// Opens the channel of the node on `data_dir`; with it comes the path at which commands find it. The
    /// node holds the folder's lock: what lies there was left by one that has ended.
    pub fn open(data_dir: &Path) -> io::Result<(Self, PathBuf)> {
        let (listener, path) = system::Listener::open(data_dir)?;
        Ok((Self(listener), path))
    }

    /// The next connection of the node's user. Others are refused, and the wait goes on. Dropping the future
    /// loses none.
    pub async fn accept(&self) -> io::Result<LocalStream> {
        self.0.accept().await
    }
}

/// Connects to a node of the user who runs this; root reaches that of whoever has the folder. A channel of
/// somebody else is
/// [`io::ErrorKind::PermissionDenied`], and nothing was written to it. The caller bounds the wait.
pub async fn connect(path: &Path) -> io::Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>> {
    system::connect(path).await
}
