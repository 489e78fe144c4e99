//! A named pipe. Its name is drawn at each start, its access list has the node's user and the system only,
//! and a command looks whether the pipe's owner is its own user: any user may make a pipe of any name that is
//! free.

mod security;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::windows::named_pipe::{ClientOptions, NamedPipeClient, NamedPipeServer, ServerOptions};
use tokio::sync::Mutex;

use security::{Descriptor, Sid};

/// Windows says so while every instance of a pipe has a client.
const ERROR_PIPE_BUSY: i32 = 231;
/// Until a busy pipe is tried again.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

pub type ServerStream = NamedPipeServer;

#[derive(Debug)]
pub struct Listener {
    path: PathBuf,
    descriptor: Descriptor,
    /// The instance that the next client gets. There is one at all times, so that no one else can be the
    /// first of this name.
    waiting: Mutex<NamedPipeServer>,
}

impl Listener {
    /// Pipes are in no folder: `api.json` in the data folder, which only its owner reads, has the name.
    pub fn open(_data_dir: &Path) -> io::Result<(Self, PathBuf)> {
        let mut name = [0; 16];
        getrandom::fill(&mut name).map_err(io::Error::other)?;
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = PathBuf::from(format!(r"\\.\pipe\exo-{name}"));
        let listener = Self::at(path.clone(), Descriptor::for_user(&Sid::of_this_process()?)?)?;
        Ok((listener, path))
    }

    fn at(path: PathBuf, descriptor: Descriptor) -> io::Result<Self> {
        let waiting =
            Mutex::new(descriptor.make_pipe(ServerOptions::new().first_pipe_instance(true), &path)?);
        Ok(Self { path, descriptor, waiting })
    }

    /// Whom the access list names, Windows lets in; it lets in no one from another machine.
    pub async fn accept(&self) -> io::Result<NamedPipeServer> {
        let mut waiting = self.waiting.lock().await;
        loop {
            match waiting.connect().await {
                Ok(()) => break,
                // It came and has left again.
                Err(error) => {
                    tracing::debug!(%error, "a connection to the local channel did not come about");
                    waiting.disconnect()?;
                }
            }
        }
        let next = self.descriptor.make_pipe(&ServerOptions::new(), &self.path)?;
        Ok(std::mem::replace(&mut waiting, next))
    }
}

pub async fn connect(path: &Path) -> io::Result<NamedPipeClient> {
    let pipe = loop {
        // By default a client lets the server know who it is, and not act in its name.
        match ClientOptions::new().open(path) {
            Err(error) if error.raw_os_error() == Some(ERROR_PIPE_BUSY) => {
                tokio::time::sleep(BUSY_PAUSE).await
            }
            opened => break opened?,
        }
    };
    let (owner, own) = (security::owner_of(&pipe)?, Sid::of_this_process()?);
    if owner != own {
        let text = format!("it belongs to user {owner}, not to {own}, who runs this command");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(pipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The group of administrators: an owner that is not the user who runs the test.
    const ADMINISTRATORS: &str = "S-1-5-32-544";

    #[tokio::test]
    async fn a_pipe_of_another_owner_is_told_nothing() {
        let path = PathBuf::from(format!(r"\\.\pipe\exo-test-{}", std::process::id()));
        let user = Sid::of_this_process().unwrap();
        let descriptor = Descriptor::from_text(&format!("O:{ADMINISTRATORS}D:P(A;;GA;;;{user})")).unwrap();
        let listener = Listener::at(path.clone(), descriptor).unwrap();
        let (_held, refused) = tokio::join!(listener.accept(), connect(&path));
        let error = refused.expect_err("it was not ours");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains(ADMINISTRATORS), "{error}");
    }
}
