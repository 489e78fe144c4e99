//! What another node says of itself, and what of it we believe enough to try.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use exo_types::NodeId;

use crate::interfaces::{Interface, is_on_link};

/// TXT key of the whole node id.
pub(crate) const TXT_ID: &str = "id";
const TXT_ENTRIES_MAX: usize = 16;
const TXT_VALUE_BYTES_MAX: usize = 128;
const ADDRESSES_MAX: usize = 8;

/// How an address was learned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Source {
    /// Announced by multicast on a network we share.
    Mdns,
}

/// A node may be, or may no longer be, at some addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundNode {
    /// Who it says it is; unproven. mDNS always names one.
    pub node: Option<NodeId>,
    /// Where, best first: loopback for a node of this machine, then IPv4, then IPv6. Empty when lost.
    pub addrs: Vec<SocketAddr>,
    /// How this was learned.
    pub source: Source,
    /// What else it says of itself.
    pub txt: BTreeMap<String, String>,
    /// It said goodbye, or its announcement ran out.
    pub lost: bool,
}

/// One address as announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Announced {
    pub(crate) ip: IpAddr,
    /// Index of the interface an IPv6 link-local address belongs to.
    pub(crate) scope: u32,
    /// Heard on the loopback interface, so from this machine.
    pub(crate) on_loopback: bool,
}

/// An announcement, freed of the library it came through.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Announcement {
    pub(crate) instance: String,
    pub(crate) port: u16,
    pub(crate) addresses: Vec<Announced>,
    pub(crate) txt: Vec<(String, String)>,
}

/// The node an announcement names, or why it is none of ours.
pub(crate) fn named_node(announcement: &Announcement) -> Result<NodeId, &'static str> {
    if announcement.txt.len() > TXT_ENTRIES_MAX {
        return Err("too many TXT entries");
    }
    if announcement.txt.iter().any(|(k, v)| k.len() + v.len() > TXT_VALUE_BYTES_MAX) {
        return Err("a TXT entry is too long");
    }
    let id = announcement.txt.iter().find(|(k, _)| k == TXT_ID).ok_or("no id in TXT")?;
    let node: NodeId = id.1.parse().map_err(|_| "the id in TXT is no node id")?;
    if node.to_instance_name() != announcement.instance {
        return Err("the id in TXT is not the one it is named after");
    }
    if announcement.port == 0 {
        return Err("no port");
    }
    Ok(node)
}

/// What is worth dialling.
pub(crate) fn judge(node: NodeId, announcement: Announcement, interfaces: &[Interface]) -> FoundNode {
    let is_ours = |ip: IpAddr| interfaces.iter().any(|i| i.ip == ip && !ip.is_loopback());
    let same_machine = announcement.addresses.iter().any(|a| is_ours(a.ip) || a.on_loopback);
    let mut addrs = Vec::new();
    if same_machine {
        addrs.push(SocketAddr::from((Ipv4Addr::LOCALHOST, announcement.port)));
    }
    // Loopback addresses of other machines lead back to this one: never from a network.
    addrs.extend(
        announcement
            .addresses
            .iter()
            .filter(|a| !a.ip.is_loopback() && is_on_link(a.ip, interfaces))
            .map(|a| with_port(a, announcement.port)),
    );
    addrs.sort_by_key(rank);
    addrs.dedup();
    addrs.truncate(ADDRESSES_MAX);
    let txt = announcement.txt.into_iter().filter(|(k, _)| k != TXT_ID).collect();
    FoundNode { node: Some(node), addrs, source: Source::Mdns, txt, lost: false }
}

fn with_port(address: &Announced, port: u16) -> SocketAddr {
    match address.ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, port, 0, address.scope).into(),
        ip => SocketAddr::new(ip, port),
    }
}

fn rank(addr: &SocketAddr) -> (u8, SocketAddr) {
    let class = match addr.ip() {
        ip if ip.is_loopback() => 0,
        IpAddr::V4(_) => 1,
        IpAddr::V6(v6) if !v6.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 3,
    };
    (class, *addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId([5; 32]);

    fn announcement(ips: &[&str]) -> Announcement {
        let addresses = ips
            .iter()
            .map(|ip| Announced { ip: ip.parse().unwrap(), scope: 4, on_loopback: false })
            .collect();
        let txt = vec![(TXT_ID.to_owned(), NODE.to_full()), ("v".to_owned(), "1".to_owned())];
        Announcement { instance: NODE.to_instance_name(), port: 9000, addresses, txt }
    }

    /// Addresses judged from a machine at 192.168.1.7/24 and fe80::7/64, as text.
    fn check(announcement: Announcement) -> String {
        let interface = |ip: &str, prefix_len| {
            let (name, ip) = ("eth0".to_owned(), ip.parse().unwrap());
            Interface { name, ip, prefix_len }
        };
        let ours = [interface("192.168.1.7", 24), interface("127.0.0.1", 8), interface("fe80::7", 64)];
        let found = judge(NODE, announcement, &ours);
        found.addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_neighbour_is_reached_by_its_on_link_addresses_only() {
        let mixed = announcement(&["fe80::9", "8.8.8.8", "192.168.1.9", "10.1.1.1"]);
        assert_eq!(check(mixed), "192.168.1.9:9000 [fe80::9%4]:9000");
    }

    #[test]
    fn a_node_of_this_machine_is_reached_by_loopback_first() {
        assert_eq!(check(announcement(&["192.168.1.7"])), "127.0.0.1:9000 192.168.1.7:9000");
        let mut local = announcement(&["127.0.0.1"]);
        local.addresses[0].on_loopback = true;
        assert_eq!(check(local), "127.0.0.1:9000");
    }

    #[test]
    fn a_loopback_address_from_the_network_is_not_dialled() {
        assert_eq!(check(announcement(&["127.0.0.1", "::1"])), "");
    }

    #[test]
    fn a_hundred_addresses_become_eight() {
        let many: Vec<_> = (1..=100).map(|i| format!("192.168.1.{}", i + 10)).collect();
        let many = announcement(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(check(many).split(' ').count(), ADDRESSES_MAX);
    }

    #[test]
    fn malformed_announcements_name_nobody() {
        let good = announcement(&["192.168.1.9"]);
        assert_eq!(named_node(&good), Ok(NODE));
        let bad = |change: fn(&mut Announcement)| {
            let mut a = good.clone();
            change(&mut a);
            named_node(&a).unwrap_err()
        };
        assert_eq!(bad(|a| a.txt.clear()), "no id in TXT");
        assert_eq!(bad(|a| a.txt[0].1.push('!')), "the id in TXT is no node id");
        assert_eq!(bad(|a| a.txt[0].1 = "x".repeat(500)), "a TXT entry is too long");
        assert_eq!(
            bad(|a| a.instance = "other".to_owned()),
            "the id in TXT is not the one it is named after"
        );
        assert_eq!(bad(|a| a.port = 0), "no port");
        assert_eq!(bad(|a| a.txt = vec![("k".to_owned(), String::new()); 99]), "too many TXT entries");
    }

    #[test]
    fn the_id_is_not_repeated_among_the_txt_entries() {
        let found = judge(NODE, announcement(&[]), &[]);
        assert_eq!(found.txt, BTreeMap::from([("v".to_owned(), "1".to_owned())]));
    }
}
