//! HTTP: the APIs as OpenAI's, Anthropic's and Ollama's clients speak them, and the administrative routes.
//!
//! Everything a node does for a client passes through [`exo_api::Facade`]; this crate only speaks HTTP. Who
//! may speak to it is in `guard`, what can go wrong in `errors`, and every wait has a bound in
//! [`ServerOptions`]. A client that leaves, stalls or is cut off drops the node's stream, and with it the
//! request.
//!
//! **Architecture invariant:** knows no model, device or peer, and nothing of the node but the facade.
//!
//! Start reading at [`serve`].

#![forbid(unsafe_code)]

mod admin;
mod api_keys;
mod app;
mod backlog;
mod body;
mod bundle;
mod chat;
mod client_memory;
mod completion;
mod compute;
mod connection_slots;
mod dashboard;
mod dialect;
mod encode;
mod entry;
mod errors;
mod generate;
mod guard;
mod kept;
mod listen;
mod live;
mod messages;
mod metrics;
mod models;
mod ollama;
mod openai;
mod options;
mod origins;
mod outlive;
mod requests;
mod responses;
mod resume;
mod resumed;
mod routes;
mod scan;
mod sessions;
mod source;
mod sse;
mod ticket;
mod timed_io;
mod tokens;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use exo_api::Facade;
use exo_local_channel::LocalListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use api_keys::{ApiKey, ApiKeys};
pub use bundle::{Dashboard, has_page};
pub use options::ServerOptions;
pub use origins::{AllowedOrigin, BadOrigin};

/// The listener could not be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A listener that others reach needs a key.
    #[error("{address} is reachable from other machines, so the API needs at least one API key there")]
    NoApiKey {
        /// Where it listens.
        address: SocketAddr,
    },
    /// The second listener is for programs of this machine.
    #[error("{address} is reachable from other machines: the second address of the API must be on loopback")]
    SecondNotLocal {
        /// Where it listens.
        address: SocketAddr,
    },
    /// An empty secret would let everyone in.
    #[error("the local secret is empty")]
    NoLocalSecret,
    /// The listener does not tell its address.
    #[error("the listener has no local address")]
    Address(#[source] std::io::Error),
}

/// Serves HTTP on `listener`, on `second`, which is on loopback, and on `local` for the user whose node this
/// is, until `shutdown` is ready; then lets running requests end for [`ServerOptions::shutdown_grace`], and
/// ends the others with an error that says so. A listener that is not on loopback needs an API key in
/// `options`.
pub async fn serve(
    listener: tokio::net::TcpListener,
    second: Option<tokio::net::TcpListener>,
    local: Option<LocalListener>,
    facade: Arc<dyn Facade>,
    options: ServerOptions,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let address = check(&listener, second.as_ref(), &options)?;
    let (stopping, closing) = (CancellationToken::new(), CancellationToken::new());
    // Also when this future is dropped: answers without an end must not keep their connections.
    let stop_when_dropped = (stopping.clone().drop_guard(), closing.clone().drop_guard());
    let (room, streams) = (client_memory::Room::new(options.bodies_bytes_max), TaskTracker::new());
    let giving_back = client_memory::give_back(room.clone(), options.give_freed_memory_back);
    let app =
        app(facade, options.clone(), address, room, streams.clone(), (stopping.clone(), closing.clone()));
    let stop = async {
        shutdown.await;
        stopping.cancel();
        let at_once = options.shutdown_at_once.clone();
        tokio::select! {
            () = tokio::time::sleep(options.shutdown_grace) => {}
            () = becomes_true(at_once) => {}
        }
        closing.cancel();
        std::future::pending::<Infallible>().await
    };
    let router = routes::router(Arc::new(app));
    let local = async {
        // Connections of its own: whatever others open, the owner's commands get in.
        if let Some(local) = local {
            listen::run(local, router.clone(), options.clone(), stopping.clone()).await;
        }
    };
    let second = async {
        if let Some(second) = second {
            listen::run(second, router.clone(), options.clone(), stopping.clone()).await;
        }
    };
    let served = async {
        tokio::join!(local, second, listen::run(listener, router.clone(), options.clone(), stopping.clone()))
    };
    tokio::select! {
        _ = served => {}
        never = stop => match never {},
        never = giving_back => match never {},
    }
    drop(stop_when_dropped);
    // Their connections are gone, so each of them ends when it is next polled.
    streams.close();
    if tokio::time::timeout(options.shutdown_grace, streams.wait()).await.is_err() {
        tracing::warn!("a streamed answer outlives its connection");
    }
    Ok(())
}

/// Never, where nobody would say so.
async fn becomes_true(said: Option<tokio::sync::watch::Receiver<bool>>) {
    if let Some(mut said) = said
        && said.wait_for(|is_said| *is_said).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// What handlers share, for a listener at `address`.
fn app(
    facade: Arc<dyn Facade>,
    options: ServerOptions,
    address: SocketAddr,
    room: client_memory::Room,
    streams: TaskTracker,
    (stopping, closing): (CancellationToken, CancellationToken),
) -> app::App {
    let sessions = sessions::Sessions::open(options.sessions_path.clone(), options.session_idle_max);
    let sessions = Arc::new(sessions);
    let (events_bytes_max, keep_alive_every) = (options.events_bytes_max, options.keep_alive_every);
    app::App {
        facade,
        guard: guard::Guard::new(address, &options, sessions.clone()),
        room,
        compute: compute::ComputeThreads::default(),
        kept: kept::KeptResponses::new(options.responses_bytes_max),
        sessions,
        live: live::Live::new(streams.clone(), stopping.clone(), events_bytes_max, keep_alive_every),
        outliving: outlive::Outliving::new(options.bodies_bytes_max),
        requests: Arc::default(),
        stopping,
        closing,
        streams,
        options,
    }
}

/// The address of `listener`, if the listeners may be served with these options.
fn check(
    listener: &tokio::net::TcpListener,
    second: Option<&tokio::net::TcpListener>,
    options: &ServerOptions,
) -> Result<SocketAddr, ServeError> {
    let address = listener.local_addr().map_err(ServeError::Address)?;
    if options.local_secret.is_empty() {
        return Err(ServeError::NoLocalSecret);
    }
    if let Some(second) = second {
        let address = second.local_addr().map_err(ServeError::Address)?;
        if !address.ip().to_canonical().is_loopback() {
            return Err(ServeError::SecondNotLocal { address });
        }
    }
    if !address.ip().to_canonical().is_loopback() && !options.api_keys.are_needed() {
        return Err(ServeError::NoApiKey { address });
    }
    Ok(address)
}
