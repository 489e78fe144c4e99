//! What is near: on this machine, or on a network of it on which others may be let in without a person's
//! word.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use crate::gateways::gateways;
use crate::interfaces::{Interface, addresses_up, is_on_link, public_address};
use crate::marks;

/// This machine's addresses, its routers, and the networks that the system marks as public, as they are now.
#[derive(Clone, Default, Debug)]
pub struct Surroundings {
    interfaces: Vec<Interface>,
    gateways: Vec<IpAddr>,
    /// The system's names of interfaces on networks that it marks as public.
    public: Vec<String>,
}

impl Surroundings {
    /// Asks the system. It may take some milliseconds, on Windows those of another process. `root` is where
    /// `/proc` is on Linux.
    pub fn ask(root: &Path) -> io::Result<Self> {
        let addresses = addresses_up()?;
        let marks = marks::ask();
        let is_public = |address: &&if_addrs::Interface| {
            !address.is_loopback() && marks::is_public(marks::adapter(address), marks.as_deref())
        };
        let mut public: Vec<_> = addresses.iter().filter(is_public).map(|a| a.name.clone()).collect();
        public.dedup();
        let interfaces = addresses.into_iter().map(Interface::from).collect();
        Ok(Self { interfaces, gateways: gateways(root), public })
    }

    /// Whether `ip` is so near that a node there may be let in, or joined, without a person's word: on this
    /// machine, or on a private network of it that the system does not mark as public. While one of its own
    /// IPv4 addresses is routable from anywhere, only this machine is near. A router is not: what comes from
    /// its address may come through it, from anywhere.
    pub fn is_near(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        if ip.is_loopback() || self.interfaces.iter().any(|i| i.ip == ip) {
            return true;
        }
        let is_private = match ip {
            IpAddr::V4(v4) => v4.is_private() || v4.is_link_local(),
            IpAddr::V6(_) => true, // global addresses are normal at home: that it is on-link decides
        };
        // Several interfaces may lead there: an address does not say through which one it came.
        let mut leading =
            self.interfaces.iter().filter(|i| is_on_link(ip, std::slice::from_ref(i))).peekable();
        let is_on_link = leading.peek().is_some();
        let is_router = self.gateways.contains(&ip);
        let is_open = public_address(&self.interfaces).is_none();
        is_private && !is_router && is_open && is_on_link && !leading.any(|i| self.public.contains(&i.name))
    }

    /// An IPv4 address of this machine that is routable from anywhere.
    pub fn public_address(&self) -> Option<Ipv4Addr> {
        public_address(&self.interfaces)
    }

    /// The system's names of interfaces on networks that it marks as public, or does not know where it knows
    /// others.
    pub fn public_networks(&self) -> &[String] {
        &self.public
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interfaces as `NAME ADDRESS/PREFIX`.
    fn at(interfaces: &[&str], public: &[&str]) -> Surroundings {
        let interface = |text: &&str| {
            let (name, address) = text.split_once(' ').unwrap();
            let (ip, prefix) = address.split_once('/').unwrap();
            let (ip, prefix_len) = (ip.parse().unwrap(), prefix.parse().unwrap());
            Interface { name: name.to_owned(), ip, prefix_len }
        };
        let gateways = ["192.168.1.1", "fe80::1", "192.168.1.7"].map(|ip| ip.parse().unwrap()).to_vec();
        let public = public.iter().map(|name| (*name).to_owned()).collect();
        Surroundings { interfaces: interfaces.iter().map(interface).collect(), gateways, public }
    }

    fn is_near(ip: &str, at: &Surroundings) -> bool {
        at.is_near(ip.parse().unwrap())
    }

    const HOME: [&str; 3] = ["eth0 192.168.1.7/24", "eth0 2001:db8::7/64", "tun0 100.64.0.9/10"];

    #[test]
    fn near_is_this_machine_and_its_private_networks_while_no_address_of_it_is_public() {
        let home = at(&HOME, &[]);
        for ip in
            ["127.0.0.1", "::1", "192.168.1.7", "192.168.1.9", "::ffff:192.168.1.9", "fe80::9", "2001:db8::9"]
        {
            assert!(is_near(ip, &home), "{ip}");
        }
        for ip in [
            "192.168.1.1",
            "::ffff:192.168.1.1",
            "fe80::1",
            "192.168.2.9",
            "8.8.8.8",
            "100.64.0.10",
            "2001:db8:1::9",
            "0.0.0.0",
        ] {
            assert!(!is_near(ip, &home), "{ip}");
        }
        let server = at(&["eth0 192.168.1.7/24", "eth1 93.184.215.14/24"], &[]);
        assert!(is_near("127.0.0.1", &server) && is_near("93.184.215.14", &server), "this machine");
        assert!(!is_near("192.168.1.9", &server) && !is_near("93.184.215.15", &server));
        assert_eq!(server.public_address(), Some(Ipv4Addr::new(93, 184, 215, 14)));
    }

    #[test]
    fn a_network_that_the_system_marks_as_public_is_not_near() {
        let cafe = at(&HOME, &["eth0"]);
        for ip in ["192.168.1.9", "fe80::9", "2001:db8::9"] {
            assert!(!is_near(ip, &cafe), "{ip}");
        }
        assert!(is_near("127.0.0.1", &cafe) && is_near("192.168.1.7", &cafe), "this machine");

        // A cable at home beside somebody's wireless network.
        let both =
            at(&["cable 10.0.0.7/24", "cable fe80::7/64", "air 10.0.9.7/24", "air fe80::8/64"], &["air"]);
        assert!(is_near("10.0.0.9", &both) && !is_near("10.0.9.9", &both));
        assert!(!is_near("fe80::9", &both), "it may be on either");
        let alike = at(&["cable 10.0.0.7/24", "air 10.0.0.8/24"], &["air"]);
        assert!(!is_near("10.0.0.9", &alike), "it may be on either");
    }

    #[test]
    fn this_machine_is_near_itself() {
        let here = Surroundings::ask(Path::new("/")).unwrap();
        assert!(is_near("127.0.0.1", &here) && here.interfaces.iter().all(|i| here.is_near(i.ip)));
    }
}
