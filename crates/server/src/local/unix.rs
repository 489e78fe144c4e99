//! A Unix socket: the system says who connects.

use std::io;
use std::sync::Arc;

use tokio::net::{UnixListener, UnixStream};

use crate::guard::Peer;
use crate::listen::Listen;
use crate::options::ServerOptions;
use crate::seats::Seats;

/// Where the user whose node this is connects, and nobody else but root.
pub struct LocalListener(pub UnixListener);

impl Listen for LocalListener {
    type Stream = UnixStream;

    fn seats(options: &ServerOptions) -> Arc<Seats> {
        Seats::new(options.local_connections_max, 0)
    }

    async fn accept(&self) -> io::Result<(UnixStream, Peer)> {
        let own = rustix::process::geteuid().as_raw();
        loop {
            let (stream, _) = self.0.accept().await?;
            match stream.peer_cred() {
                Ok(peer) if peer.uid() == own || peer.uid() == 0 => return Ok((stream, Peer::Owner)),
                Ok(peer) => tracing::warn!(
                    uid = peer.uid(),
                    "another user came to the local channel and is not served"
                ),
                Err(error) => tracing::debug!(%error, "a connection without a name"),
            }
        }
    }
}
