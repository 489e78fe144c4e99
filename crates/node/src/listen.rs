//! Where a node listens for others.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use exo_discovery::Interface;

/// Every address of IPv4 is none on a machine that has only IPv6: then every address is meant, of IPv4 too
/// if one comes.
pub(crate) fn address_to_bind(listen: SocketAddr, interfaces: &[Interface]) -> SocketAddr {
    let outside = interfaces.iter().map(|interface| interface.ip).filter(|ip| !ip.is_loopback());
    let mut outside = outside.peekable();
    let has_only_v6 = outside.peek().is_some() && outside.all(|ip| ip.is_ipv6());
    match listen.ip() == Ipv4Addr::UNSPECIFIED && has_only_v6 {
        true => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), listen.port()),
        false => listen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_ipv4_listens_on_ipv6() {
        let on = |ips: &[&str]| -> Vec<Interface> {
            let interface =
                |ip: &&str| Interface { name: "e".into(), ip: ip.parse().unwrap(), prefix_len: 64 };
            ips.iter().map(interface).collect()
        };
        let every: SocketAddr = "0.0.0.0:7".parse().unwrap();
        assert_eq!(address_to_bind(every, &on(&["127.0.0.1", "::1", "fe80::1"])).to_string(), "[::]:7");
        for here in [&["127.0.0.1", "::1"][..], &["127.0.0.1", "10.0.0.1", "fe80::1"], &[]] {
            assert_eq!(address_to_bind(every, &on(here)), every, "{here:?}");
        }
        let one: SocketAddr = "127.0.0.1:7".parse().unwrap();
        assert_eq!(address_to_bind(one, &on(&["fe80::1"])), one);
    }
}
