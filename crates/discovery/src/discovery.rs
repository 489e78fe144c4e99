//! The mDNS side: announce this node, report others.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exo_types::NodeId;
use mdns_sd::{
    IfKind, IfPredicate, Receiver, RecvTimeoutError, ResolvedService, ScopedIp, ServiceDaemon, ServiceEvent,
    ServiceInfo,
};
use tokio::sync::mpsc;

use crate::announcement::{Announced, Announcement, FoundNode, TXT_ID, judge, named_node};
use crate::interfaces::{Interface, answers_at, local_interfaces, probe_multicast};
use crate::remembered::Remembered;

/// The service every node announces.
pub const SERVICE_TYPE: &str = "_exo-gpu._tcp.local.";
/// How often the interfaces are looked at. A cable that was just plugged in, or an address that is still
/// being checked for duplicates when we start, would otherwise cost five seconds.
const NETWORK_CHECK_S: u32 = 1;
/// How long the goodbye may take.
const GOODBYE_MAX: Duration = Duration::from_millis(500);
/// Reports that wait to be taken.
const QUEUE_MAX: usize = 64;
/// Records and timers that the library may hold. It keeps whatever anybody announces for as long as the
/// announcement says, and looks at all of it for every packet: with some thousands of names it hears no one
/// any more. A network of 256 nodes has some 5,000.
const CACHED_MAX: i64 = 8_192;
/// By how much fewer may be too many: two machines that one host floods would else begin anew in step, and
/// one of them hear nothing but what the other says while it does.
const CACHED_SPREAD: i64 = 2_048;
/// How often they are counted, at least.
const COUNT_EVERY: Duration = Duration::from_secs(2);
/// They are counted after so many events, too: some two for each name.
const COUNT_AFTER: u32 = 256;
/// Between two lines that say that there were too many.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// What to announce, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// This node.
    pub node: NodeId,
    /// What it listens on. Only addresses that answer there are announced: all of this machine's for
    /// `[::]`, its IPv4 addresses for `0.0.0.0`, else the one.
    pub listen: SocketAddr,
    /// What to say of it: short keys and values, 128 bytes together. `id` is taken.
    pub txt: BTreeMap<String, String>,
}

/// Discovery could not start. The caller goes on without: peers are then given by address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum DiscoveryError {
    #[error("multicast does not work on {tried}; give peers with --peer HOST:PORT")]
    NoMulticast { tried: String },
    /// The list of interfaces is not to be had.
    #[error("cannot list the network interfaces")]
    Interfaces(#[source] io::Error),
    #[error("cannot start mDNS: {0}")]
    Daemon(String),
    #[error("cannot announce this node: {0}")]
    Announcement(String),
}

/// What this node says of itself was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot change what is announced: {0}")]
pub struct UpdateError(String);

/// A running announcement and search. Dropping it says goodbye without waiting for it to be sent.
pub struct Discovery {
    running: Arc<Mutex<Running>>,
}

/// The library's daemon, and what it was started with.
struct Running {
    daemon: ServiceDaemon,
    options: Options,
    is_stopped: bool,
}

impl Discovery {
    /// Announces this node and reports others until dropped. May block for 0.1 s per interface without
    /// multicast.
    ///
    /// An error says why no one will be found; `Ok` says that multicast leaves and reaches this machine, not
    /// that the network carries it.
    pub fn start(options: Options) -> Result<(Self, mpsc::Receiver<FoundNode>), DiscoveryError> {
        let reach = probe_multicast(&usable(&options)?);
        if !reach.iter().any(|r| r.multicast) {
            let tried: Vec<_> =
                reach.iter().map(|r| format!("{} ({})", r.interface.name, r.interface.ip)).collect();
            let tried = if tried.is_empty() { "any interface".to_owned() } else { tried.join(", ") };
            return Err(DiscoveryError::NoMulticast { tried });
        }
        let (me, info) = (options.node, service_info(&options).map_err(DiscoveryError::Announcement)?);
        let daemon_error = |e: mdns_sd::Error| DiscoveryError::Daemon(e.to_string());
        let (daemon, events) = start_daemon(&options, info).map_err(daemon_error)?;
        let running = Arc::new(Mutex::new(Running { daemon, options, is_stopped: false }));
        let this = Self { running: running.clone() };
        let (reports, found) = mpsc::channel(QUEUE_MAX);
        std::thread::Builder::new()
            .name("exo-mdns-found".to_owned())
            .spawn(move || report(me, &running, events, &reports))
            .map_err(|e| DiscoveryError::Daemon(e.to_string()))?;
        Ok((this, found))
    }

    /// Changes what is said of this node, and announces it.
    pub fn update_txt(&mut self, txt: BTreeMap<String, String>) -> Result<(), UpdateError> {
        let mut running = lock(&self.running);
        let options = Options { txt, ..running.options.clone() };
        let info = service_info(&options).map_err(UpdateError)?;
        // Also where the daemon does not take it: the next one starts with it.
        running.options = options;
        running.daemon.register(info).map_err(|e| UpdateError(e.to_string()))
    }

    /// Says goodbye and stops. Blocks for a second at most.
    pub fn shutdown(self) {
        let mut running = lock(&self.running);
        running.is_stopped = true;
        if let Ok(done) = running.daemon.unregister(&full_name(running.options.node)) {
            let _ = done.recv_timeout(GOODBYE_MAX);
        }
        if let Ok(done) = running.daemon.shutdown() {
            let _ = done.recv_timeout(GOODBYE_MAX);
        }
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        let mut running = lock(&self.running);
        if !std::mem::replace(&mut running.is_stopped, true) {
            let _ = running.daemon.unregister(&full_name(running.options.node));
            let _ = running.daemon.shutdown();
        }
    }
}

fn lock(running: &Mutex<Running>) -> MutexGuard<'_, Running> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A daemon that announces this node and looks for others.
fn start_daemon(
    options: &Options,
    info: ServiceInfo,
) -> mdns_sd::Result<(ServiceDaemon, Receiver<ServiceEvent>)> {
    let daemon = ServiceDaemon::new()?;
    daemon.set_ip_check_interval(NETWORK_CHECK_S)?;
    let listen = options.listen.ip();
    let unused = IfPredicate::new(move |interface| !answers_at(listen, interface.ip()));
    daemon.disable_interface(IfKind::Predicate(unused))?;
    let events = daemon.browse(SERVICE_TYPE)?;
    daemon.register(info)?;
    Ok((daemon, events))
}

/// How many records a daemon holds, if it tells in time.
fn cached(daemon: &ServiceDaemon) -> Option<i64> {
    let metrics = daemon.get_metrics().ok().and_then(|metrics| metrics.recv_timeout(GOODBYE_MAX).ok())?;
    let held = metrics.iter().filter(|(what, _)| what.starts_with("cached-") || *what == "timer");
    Some(held.map(|(_, count)| count).sum())
}

/// Another number each time.
fn drawn_cached_max() -> i64 {
    let drawn = RandomState::new().build_hasher().finish() % CACHED_SPREAD.unsigned_abs();
    CACHED_MAX - drawn as i64
}

/// Puts another daemon, which holds nothing, in the place of this one. No one waits for it: the lock is held
/// to swap them only.
fn renew(running: &Mutex<Running>) -> Result<Receiver<ServiceEvent>, String> {
    let (old, options) = {
        let running = lock(running);
        (running.daemon.clone(), running.options.clone())
    };
    // First its goodbye, then the new one's announcement: the other way round the goodbye would be believed.
    if let Ok(done) = old.shutdown() {
        let _ = done.recv_timeout(GOODBYE_MAX);
    }
    let (daemon, events) = start_daemon(&options, service_info(&options)?).map_err(|e| e.to_string())?;
    let mut running = lock(running);
    if running.is_stopped {
        let _ = daemon.shutdown();
    } else if running.options.txt != options.txt {
        daemon.register(service_info(&running.options)?).map_err(|e| e.to_string())?;
    }
    running.daemon = daemon;
    Ok(events)
}

fn full_name(node: NodeId) -> String {
    format!("{}.{SERVICE_TYPE}", node.to_instance_name())
}

fn usable(options: &Options) -> Result<Vec<Interface>, DiscoveryError> {
    let mut all = local_interfaces().map_err(DiscoveryError::Interfaces)?;
    all.retain(|i| answers_at(options.listen.ip(), i.ip));
    Ok(all)
}

fn service_info(options: &Options) -> Result<ServiceInfo, String> {
    let Options { node, listen, txt } = options;
    if let Some((k, v)) = txt.iter().find(|(k, v)| *k == TXT_ID || k.len() + v.len() > 128) {
        return Err(format!("the TXT entry `{k}` ({} bytes) is too long or taken", v.len()));
    }
    let mut properties: Vec<_> = txt.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    properties.push((TXT_ID.to_owned(), node.to_full()));
    let name = node.to_instance_name();
    // A host name of its own: two nodes of one machine must not answer for each other.
    let host = format!("exo-{name}.local.");
    let info = ServiceInfo::new(SERVICE_TYPE, &name, &host, "", listen.port(), &properties[..]);
    let mut info = info.map_err(|e| e.to_string())?.enable_addr_auto();
    // The name is a key: no one else has it, and probing for one costs a second.
    info.set_requires_probe(false);
    Ok(info)
}

/// Runs until discovery is stopped or no one listens.
fn report(
    me: NodeId,
    running: &Mutex<Running>,
    mut events: Receiver<ServiceEvent>,
    reports: &mpsc::Sender<FoundNode>,
) {
    let (mut known, mut told_at, mut silences) = (Remembered::default(), None, 0);
    let (mut count_at, mut uncounted) = (Instant::now() + COUNT_EVERY, 0);
    let mut cached_max = drawn_cached_max();
    loop {
        let event = events.recv_timeout(count_at.saturating_duration_since(Instant::now()));
        let is_over = matches!(event, Err(RecvTimeoutError::Disconnected));
        uncounted += u32::from(event.is_ok());
        let found = match event {
            Ok(ServiceEvent::ServiceResolved(service)) => resolved(me, &service, &mut known),
            Ok(ServiceEvent::ServiceRemoved(_, full_name)) => known.lose(instance_of(&full_name)),
            Ok(_) | Err(_) => None,
        };
        if let Some(found) = found
            && reports.blocking_send(found).is_err()
        {
            return;
        }
        if !is_over && uncounted < COUNT_AFTER && Instant::now() < count_at {
            continue;
        }
        let daemon = {
            let running = lock(running);
            if running.is_stopped {
                return;
            }
            running.daemon.clone()
        };
        let cached = cached(&daemon);
        // One that is slow to answer has much to do; one that does not answer twice is as good as full.
        silences = if cached.is_none() { silences + 1 } else { 0 };
        if is_over || silences > 1 || cached.is_some_and(|cached| cached > cached_max) {
            silences = 0;
            if told_at.is_none_or(|at: Instant| at.elapsed() >= TELL_EVERY) {
                tracing::warn!(
                    cached,
                    max = cached_max,
                    "a flood of announcements: mDNS forgets all and begins anew"
                );
                told_at = Some(Instant::now());
            }
            cached_max = drawn_cached_max();
            match renew(running) {
                Ok(new) => events = new,
                Err(error) => tracing::warn!(error, "mDNS did not start again"),
            }
        }
        if events.is_disconnected() {
            std::thread::park_timeout(COUNT_EVERY); // it is tried again, and not in a loop
        }
        (count_at, uncounted) = (Instant::now() + COUNT_EVERY, 0);
    }
}

fn resolved(me: NodeId, service: &ResolvedService, known: &mut Remembered) -> Option<FoundNode> {
    let announcement = announcement_of(service);
    let instance = announcement.instance.clone();
    let node = match named_node(&announcement) {
        Ok(node) => node,
        Err(why) => {
            tracing::debug!(instance, why, "announcement ignored");
            return None;
        }
    };
    if node == me {
        return None;
    }
    let interfaces = local_interfaces().unwrap_or_default();
    let found = judge(node, announcement, &interfaces);
    if found.addrs.is_empty() || !known.is_news(&instance, node, &found) {
        return None;
    }
    tracing::debug!(peer = %node, addrs = ?found.addrs, "announcement");
    Some(found)
}

fn announcement_of(service: &ResolvedService) -> Announcement {
    let addresses = service.addresses.iter().map(|scoped| {
        let (ip, scope, on_loopback) = match scoped {
            ScopedIp::V4(v4) => {
                let heard_on = v4.interface_ids();
                let on_loopback =
                    !heard_on.is_empty() && heard_on.iter().all(|id| is_loopback_name(&id.name));
                ((*v4.addr()).into(), 0, on_loopback)
            }
            ScopedIp::V6(v6) => {
                let scope = v6.scope_id();
                ((*v6.addr()).into(), scope.index, is_loopback_name(&scope.name))
            }
            other => (other.to_ip_addr(), 0, false),
        };
        Announced { ip, scope, on_loopback }
    });
    let txt = service.txt_properties.iter().map(|p| (p.key().to_owned(), p.val_str().to_owned()));
    Announcement {
        instance: instance_of(&service.fullname).to_owned(),
        port: service.port,
        addresses: addresses.collect(),
        txt: txt.collect(),
    }
}

fn instance_of(full_name: &str) -> &str {
    full_name.strip_suffix(SERVICE_TYPE).and_then(|name| name.strip_suffix('.')).unwrap_or(full_name)
}

/// Asks the system, because the name differs between systems (`lo`, `lo0`, `Loopback Pseudo-Interface 1`).
fn is_loopback_name(name: &str) -> bool {
    local_interfaces().unwrap_or_default().iter().any(|i| i.name == name && i.ip.is_loopback())
}
