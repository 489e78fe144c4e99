//! The networks this machine is on, and whether multicast works there.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use exo_types::Network;
use socket2::{Domain, Protocol, Socket, Type};

use crate::{shared_port, wireless};

/// The group of mDNS.
const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 251);
const MDNS_PORT: u16 = 5353;
/// A datagram to oneself arrives in microseconds where it arrives at all.
const PROBE_WAIT: Duration = Duration::from_millis(100);
/// Of others, which may come to the same port, before the wait is over.
const PROBE_DATAGRAMS_MAX: usize = 256;

/// One address of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// The system's name, like `eth0`.
    pub name: String,
    /// The address.
    pub ip: IpAddr,
    /// Leading bits that the whole network shares.
    pub prefix_len: u8,
}

/// What was learned of one address on starting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InterfaceReach {
    /// The address.
    pub interface: Interface,
    /// Whether a multicast datagram sent there came back to us. `false` may be a firewall or an interface
    /// without multicast; IPv6 is not probed and says `false`.
    pub multicast: bool,
}

/// All addresses of interfaces that are up.
pub fn local_interfaces() -> io::Result<Vec<Interface>> {
    Ok(addresses_up()?.into_iter().map(Interface::from).collect())
}

pub(crate) fn addresses_up() -> io::Result<Vec<if_addrs::Interface>> {
    let mut addresses = if_addrs::get_if_addrs()?;
    addresses.retain(if_addrs::Interface::is_oper_up);
    Ok(addresses)
}

impl Interface {
    /// The network that its address is of.
    pub fn network(&self) -> Network {
        Network { ip: self.ip, prefix_len: self.prefix_len }
    }

    /// Whether it is a radio, as the system whose files are below `root` tells; `None` where it does not.
    pub fn is_wireless(&self, root: &Path) -> Option<bool> {
        wireless::is_wireless(root, &self.name)
    }

    /// Whether it leads to other machines, and multicast there can be probed.
    pub fn is_probed_beyond(&self) -> bool {
        self.ip.is_ipv4() && !self.ip.is_loopback()
    }
}

impl From<if_addrs::Interface> for Interface {
    fn from(address: if_addrs::Interface) -> Self {
        let prefix_len = match &address.addr {
            if_addrs::IfAddr::V4(v4) => v4.prefixlen,
            if_addrs::IfAddr::V6(v6) => v6.prefixlen,
        };
        Self { ip: address.ip(), name: address.name, prefix_len }
    }
}

/// Whether `ip` is reached without a router from one of `interfaces`.
pub fn is_on_link(ip: IpAddr, interfaces: &[Interface]) -> bool {
    interfaces.iter().any(|interface| interface.network().leads_to(ip))
}

/// An IPv4 address of this machine that is routable from anywhere.
pub(crate) fn public_address(interfaces: &[Interface]) -> Option<Ipv4Addr> {
    interfaces.iter().find_map(|interface| match interface.ip {
        IpAddr::V4(v4) if is_public(v4) => Some(v4),
        _ => None,
    })
}

/// By the registry of special-purpose addresses (RFC 6890 and its updates).
fn is_public(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let is_shared = a == 100 && b & 0xc0 == 64; // carriers' NAT, 100.64.0.0/10
    let is_special = (a, b, c) == (192, 0, 0) || (a == 198 && b & 0xfe == 18) || a == 0 || a >= 224;
    let is_local = ip.is_private() || ip.is_loopback() || ip.is_link_local();
    !(is_local || ip.is_documentation() || is_shared || is_special)
}

/// Whether a peer that dials this address of the machine reaches a node that listens on `listen`.
pub(crate) fn answers_at(listen: IpAddr, ip: IpAddr) -> bool {
    match listen {
        IpAddr::V4(listen) if listen.is_unspecified() => ip.is_ipv4(),
        IpAddr::V6(listen) if listen.is_unspecified() => true,
        listen => listen == ip,
    }
}

/// Whether multicast that is sent from the addresses of a node which listens on `listen` comes back on any
/// network that leads to other machines; `None` where there is none that can be probed. A bridge of virtual
/// machines or a VPN says nothing beside a device. Takes 0.1 s per address where it does not.
pub fn is_multicast_heard(listen: IpAddr) -> Option<bool> {
    let mut beyond = local_interfaces().ok()?;
    beyond.retain(|interface| interface.is_probed_beyond() && answers_at(listen, interface.ip));
    keep_devices(&mut beyond, Path::new("/"));
    is_any_heard(&probe_multicast(&beyond))
}

/// Leaves out what is not, or not above, a device of this machine, where the system whose files are below
/// `root` tells of such devices.
fn keep_devices(interfaces: &mut Vec<Interface>, root: &Path) {
    let shown = root.join("sys/class/net");
    let is_device = |interface: &Interface| {
        // A second address may have a name of its own: `eth0:1`.
        let name = interface.name.split(':').next().unwrap_or_default();
        let of = shown.join(name);
        let parts = std::fs::read_dir(&of).into_iter().flatten().flatten();
        // Of a bridge, a bond or a VLAN.
        let mut lower = parts.filter(|part| part.file_name().to_string_lossy().starts_with("lower_"));
        of.join("device").exists() || lower.any(|part| part.path().join("device").exists())
    };
    if interfaces.iter().any(is_device) {
        interfaces.retain(is_device);
    }
}

fn is_any_heard(reach: &[InterfaceReach]) -> Option<bool> {
    (!reach.is_empty()).then(|| reach.iter().any(|reach| reach.multicast))
}

/// Looks on which of this machine's addresses multicast works, without announcing anything. Takes 0.1 s per
/// address where it does not.
pub fn probe() -> io::Result<Vec<InterfaceReach>> {
    Ok(probe_multicast(&local_interfaces()?))
}

/// Sends a multicast datagram out of each address and looks whether it comes back. Takes 0.1 s per address
/// where it does not.
pub(crate) fn probe_multicast(interfaces: &[Interface]) -> Vec<InterfaceReach> {
    let probe = |interface: &Interface| {
        let outcome = match interface.ip {
            IpAddr::V4(ip) => echoes_multicast(ip),
            IpAddr::V6(_) => Ok(false),
        };
        let multicast = outcome.unwrap_or_else(|error| {
            tracing::debug!(interface = interface.name, ip = %interface.ip, %error, "no multicast");
            false
        });
        InterfaceReach { interface: interface.clone(), multicast }
    };
    interfaces.iter().map(probe).collect()
}

/// Over the port of mDNS, as discovery does: a firewall may let that through and nothing else.
fn echoes_multicast(ip: Ipv4Addr) -> io::Result<bool> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    shared_port::share(&socket)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, MDNS_PORT)).into())?;
    socket.set_multicast_if_v4(&ip)?;
    socket.set_multicast_loop_v4(true)?;
    socket.set_multicast_ttl_v4(1)?;
    socket.join_multicast_v4(&GROUP, &ip)?;
    let socket = UdpSocket::from(socket);
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let query = query_for_nobody(since_epoch.as_nanos() as u64);
    socket.send_to(&query, SocketAddr::from((GROUP, MDNS_PORT)))?;
    hears(&socket, &query, SocketAddr::from((ip, MDNS_PORT)))
}

/// An mDNS query for a name that no one has: whoever hears it is silent.
fn query_for_nobody(number: u64) -> Vec<u8> {
    let name = format!("exo-probe-{number:016x}");
    let mut query = vec![0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]; // one question
    for label in [name.as_str(), "local"] {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 16, 0, 1]); // its texts, in the class of the internet
    query
}

/// Whether this datagram comes from there in time, whatever else comes.
fn hears(socket: &UdpSocket, word: &[u8], sender: SocketAddr) -> io::Result<bool> {
    let deadline = Instant::now() + PROBE_WAIT;
    let mut heard = [0; 9000]; // the longest of mDNS
    for _ in 0..PROBE_DATAGRAMS_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv_from(&mut heard) {
            Ok((n, from)) if heard[..n] == *word && from == sender => return Ok(true),
            Ok(_) => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Ok(false);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn interface(text: &str) -> Interface {
        let (ip, prefix) = text.split_once('/').unwrap();
        Interface { name: "eth0".to_owned(), ip: ip.parse().unwrap(), prefix_len: prefix.parse().unwrap() }
    }

    #[test]
    fn only_addresses_of_our_own_networks_are_on_link() {
        let ours = [interface("192.168.1.7/24"), interface("10.0.0.1/32"), interface("fd00::2/64")];
        let on_link = |ip: &str| is_on_link(ip.parse().unwrap(), &ours);
        assert!(on_link("192.168.1.200") && on_link("10.0.0.1") && on_link("fd00::99"));
        assert!(on_link("fe80::1"), "link-local by name");
        assert!(!on_link("192.168.2.7") && !on_link("10.0.0.2") && !on_link("fd00:1::2"));
        assert!(!on_link("8.8.8.8") && !on_link("2001:db8::1"));
        assert!(
            !on_link("0.0.0.0") && !on_link("224.0.0.251") && !on_link("255.255.255.255") && !on_link("::")
        );
    }

    #[test]
    fn no_address_of_a_special_purpose_is_public() {
        let special = "0.0.0.0 10.1.2.3 100.127.0.1 127.0.0.1 169.254.1.1 172.31.0.1 192.0.0.8 192.0.2.2 192.168.0.1 \
                       198.19.0.1 198.51.100.1 203.0.113.1 224.0.0.1 240.0.0.1 255.255.255.255";
        assert!(!special.split_whitespace().any(|ip| is_public(ip.parse().unwrap())));
        let public =
            "1.1.1.1 100.63.0.1 100.128.0.1 172.32.0.1 192.0.1.1 192.169.0.1 198.17.0.1 198.20.0.1 223.1.1.1";
        assert!(public.split_whitespace().all(|ip| is_public(ip.parse().unwrap())));
    }

    #[test]
    fn multicast_is_heard_where_one_network_carries_it_and_unknown_where_none_can_be_probed() {
        let reach = |multicast| InterfaceReach { interface: interface("10.0.0.1/24"), multicast };
        assert_eq!(is_any_heard(&[reach(false), reach(true)]), Some(true));
        assert_eq!(is_any_heard(&[reach(false), reach(false)]), Some(false));
        assert_eq!(is_any_heard(&[]), None);
        let is_probed = |text| interface(text).is_probed_beyond();
        assert!(is_probed("10.0.0.1/24") && !is_probed("127.0.0.1/8") && !is_probed("fd00::2/64"));
        assert_eq!(is_multicast_heard([127, 0, 0, 1].into()), None, "a node that only this machine reaches");
    }

    #[test]
    fn virtual_interfaces_say_nothing_beside_devices() {
        let root = tempfile::tempdir().unwrap();
        let shown = root.path().join("sys/class/net");
        for folder in ["eth0/device", "br0/lower_eth0/device", "docker0/lower_veth1", "wg0"] {
            std::fs::create_dir_all(shown.join(folder)).unwrap();
        }
        let kept = |names: &[&str]| {
            let named = |name: &&str| Interface { name: (*name).to_owned(), ..interface("10.0.0.1/24") };
            let mut interfaces: Vec<Interface> = names.iter().map(named).collect();
            keep_devices(&mut interfaces, root.path());
            interfaces.into_iter().map(|interface| interface.name).collect::<Vec<_>>()
        };
        assert_eq!(kept(&["docker0", "eth0", "eth0:1", "wg0"]), ["eth0", "eth0:1"]);
        assert_eq!(kept(&["br0", "docker0"]), ["br0"]);
        assert_eq!(kept(&["docker0", "wg0"]), ["docker0", "wg0"], "there is no device, as in a container");
    }

    #[test]
    fn a_probe_hears_its_own_datagram_and_ends_in_its_time_whatever_others_send() {
        let own = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let there = own.local_addr().unwrap();
        own.send_to(b"word", there).unwrap();
        assert!(hears(&own, b"word", there).unwrap());
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while began.elapsed() < PROBE_WAIT * 10 {
                    other.send_to(b"word", there).unwrap();
                    std::thread::park_timeout(PROBE_WAIT / 10);
                }
            });
            assert!(!hears(&own, b"word", there).unwrap(), "of another sender");
            assert!(began.elapsed() < PROBE_WAIT * 8, "{:?}", began.elapsed());
        });
    }

    #[test]
    fn a_probe_is_a_query_that_a_reader_of_dns_understands() {
        let query = query_for_nobody(0x2a);
        assert_eq!(query.len(), 12 + 1 + 26 + 1 + 5 + 5);
        assert_eq!(query[12..39], *b"\x1aexo-probe-000000000000002a");
        assert_eq!(query[39..], *b"\x05local\0\0\x10\0\x01");
    }

    #[test]
    fn a_node_answers_at_the_addresses_that_it_listens_on() {
        let at = |listen: &str, ip: &str| answers_at(listen.parse().unwrap(), ip.parse().unwrap());
        assert!(at("::", "10.0.0.1") && at("::", "fd00::2") && at("0.0.0.0", "10.0.0.1"));
        assert!(at("10.0.0.1", "10.0.0.1") && !at("10.0.0.1", "10.0.0.2") && !at("0.0.0.0", "fd00::2"));
    }

    #[test]
    fn this_machine_has_a_loopback_address() {
        assert!(local_interfaces().unwrap().iter().any(|i| i.ip.is_loopback()));
    }

    proptest! {
        /// Any prefix length, sensible or not, gives an answer.
        #[test]
        fn no_prefix_length_panics(a: [u8; 4], b: [u8; 4], c: [u8; 16], prefix_len: u8) {
            let v4 = Interface { name: String::new(), ip: a.into(), prefix_len };
            let v6 = Interface { name: String::new(), ip: c.into(), prefix_len };
            is_on_link(IpAddr::from(b), &[v4, v6.clone()]);
            is_on_link(IpAddr::from(c), &[v6]);
        }
    }
}
