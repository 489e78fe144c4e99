//! The network: ports, multicast, peers that were named.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use super::Check;
use crate::api_keys;
use crate::config::Config;

/// How long a named peer has to take a connection.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// The port of the API and the one for other nodes.
pub(super) fn ports(config: &Config, in_use_by_us: bool) -> Vec<Check> {
    vec![api_port(config, in_use_by_us), cluster_port(config, in_use_by_us)]
}

fn api_port(config: &Config, in_use_by_us: bool) -> Check {
    const NAME: &str = "API port";
    let address = match config.api_listen() {
        Ok(address) => address,
        Err(error) => return bad_setting(NAME, &error),
    };
    if in_use_by_us {
        return Check::ok(NAME, format!("{address}, see `node` for where the API is"));
    }
    let is_proxied: bool = match config.parse("api_proxied") {
        Ok(is_proxied) => is_proxied,
        Err(error) => return bad_setting(NAME, &error),
    };
    if is_proxied && config.api_keys().is_empty() {
        let found = "`api_proxied` says that a proxy opens the API to others, and `api_keys` is not set";
        return Check::broken(NAME, found)
            .next("set `api_keys` in the configuration file, or EXO_API_KEYS, or leave `api_proxied` out");
    }
    let check = match TcpListener::bind(address) {
        Ok(_) => Check::ok(NAME, format!("{address} is free")),
        Err(error) => {
            return Check::broken(NAME, format!("{address} cannot be opened: {error}"))
                .next("end the program that has it, or give --api-listen another port");
        }
    };
    if !address.ip().is_loopback() && config.api_keys().is_empty() {
        return Check::broken(NAME, format!("{address} is open to other machines and `api_keys` is not set"))
            .next("set `api_keys` in the configuration file, or EXO_API_KEYS, or listen on 127.0.0.1");
    }
    check
}

fn bad_setting(name: &'static str, error: &anyhow::Error) -> Check {
    Check::broken(name, format!("{error:#}")).next("`exo config` shows where the value is from")
}

/// Whether the keys of the API are good ones, and kept where nobody else reads them.
pub(super) fn api_keys(config: &Config) -> Vec<Check> {
    const NAME: &str = "API keys";
    if config.api_keys().is_empty() {
        return Vec::new();
    }
    let weak: Vec<Check> = api_keys::weaknesses(config)
        .into_iter()
        .map(|weakness| Check::warning(NAME, weakness.found).next(weakness.next))
        .collect();
    match weak.is_empty() {
        true => vec![Check::ok(NAME, api_keys::summary(config.api_keys()))],
        false => weak,
    }
}

/// Whether the pages of other sites that are named can be let in.
pub(super) fn allowed_origins(config: &Config) -> Option<Check> {
    const NAME: &str = "pages of other sites";
    match config.allowed_origins() {
        Err(error) => {
            let broken = Check::broken(NAME, format!("{error:#}"));
            Some(broken.next("write it as browsers send it, as in app://obsidian.md, or leave it out"))
        }
        Ok(origins) if origins.is_empty() => None,
        Ok(_) if config.api_keys().is_empty() => {
            let found = "`allowed_origins` names pages, and `api_keys` has no key by which one is let in";
            Some(Check::warning(NAME, found).next("set `api_keys`, and give the page's program one of them"))
        }
        Ok(origins) => {
            Some(Check::ok(NAME, format!("{} in `allowed_origins`, let in by an API key", origins.len())))
        }
    }
}

fn cluster_port(config: &Config, in_use_by_us: bool) -> Check {
    const NAME: &str = "cluster port";
    let address: SocketAddr = match config.listen() {
        Ok(address) => address,
        Err(error) => return bad_setting(NAME, &error),
    };
    if in_use_by_us {
        return Check::ok(NAME, format!("{address}, in use by the running node"));
    }
    let tcp = TcpListener::bind(address).map(|_| ());
    let udp = UdpSocket::bind(address).map(|_| ());
    match (tcp, udp) {
        (Ok(()), Ok(())) => Check::ok(NAME, format!("{address} is free, TCP and UDP")),
        (Err(error), _) | (_, Err(error)) if error.kind() == std::io::ErrorKind::AddrInUse => Check::note(
            NAME,
            format!("{address} is taken; a node picks another port, which peers learn by mDNS"),
        )
        .next("give --listen a free port if you name this machine with --peer elsewhere"),
        (Err(error), _) | (_, Err(error)) => {
            Check::broken(NAME, format!("{address} cannot be opened: {error}"))
                .next("give --listen another address")
        }
    }
}

/// Whether other nodes can be found by themselves.
pub(super) async fn multicast(config: &Config) -> Vec<Check> {
    const NAME: &str = "finding nodes";
    if !config.parse("discovery").unwrap_or(true) {
        return vec![
            Check::note(NAME, "mDNS is off by the setting `discovery`")
                .next("name peers with --peer HOST:PORT"),
        ];
    }
    let probed = tokio::task::spawn_blocking(exo_discovery::probe).await;
    let reach = match probed {
        Ok(Ok(reach)) => reach,
        Ok(Err(error)) => {
            return vec![Check::warning(NAME, format!("cannot list the network interfaces: {error}"))];
        }
        Err(error) => return vec![Check::warning(NAME, format!("the probe failed: {error}"))],
    };
    let beyond: Vec<_> = reach.iter().filter(|r| r.interface.is_probed_beyond()).collect();
    let name = |r: &&exo_discovery::InterfaceReach| format!("{} ({})", r.interface.name, r.interface.ip);
    let works: Vec<_> = beyond.iter().filter(|r| r.multicast).map(name).collect();
    let fails: Vec<_> = beyond.iter().filter(|r| !r.multicast).map(name).collect();
    let mut checks = Vec::new();
    if works.is_empty() {
        let found = "multicast works on no network: nodes of other machines are not found by themselves";
        checks.push(
            Check::warning(NAME, found).next("allow UDP port 5353, or name peers with --peer HOST:PORT"),
        );
    } else {
        let found = format!("multicast leaves and comes back on {}", works.join(", "));
        checks.push(Check::ok(NAME, found));
    }
    if !fails.is_empty() && !works.is_empty() {
        checks.push(Check::note(NAME, format!("no multicast on {}", fails.join(", "))));
    }
    checks
}

/// Whether the peers of the settings take a connection.
pub(super) async fn peers(config: &Config) -> Vec<Check> {
    let mut checks = Vec::new();
    for peer in config.list("peers") {
        checks.push(match tokio::time::timeout(CONNECT_MAX, tokio::net::TcpStream::connect(&peer)).await {
            Ok(Ok(_)) => Check::ok("peer", format!("{peer} takes connections")),
            Ok(Err(error)) => unreachable_peer(&peer, &error.to_string()),
            Err(_) => unreachable_peer(&peer, &format!("no answer within {} s", CONNECT_MAX.as_secs())),
        });
    }
    checks
}

fn unreachable_peer(peer: &str, why: &str) -> Check {
    Check::warning("peer", format!("{peer} cannot be reached: {why}"))
        .next("check that exo runs there and that a firewall lets its port pass, TCP and UDP")
}
