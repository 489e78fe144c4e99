//! A network that a machine is on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address of this machine, with the network that it is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    /// The address.
    pub ip: IpAddr,
    /// Leading bits that the whole network shares.
    pub prefix_len: u8,
}

impl Network {
    /// Whether `ip` is reached from here without a router.
    pub fn leads_to(&self, ip: IpAddr) -> bool {
        let kept = u32::from(self.prefix_len);
        match (ip, self.ip) {
            (IpAddr::V4(v4), _) if v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast() => false,
            (IpAddr::V6(v6), _) if v6.is_unspecified() || v6.is_multicast() => false,
            (IpAddr::V6(v6), own) if v6.is_unicast_link_local() => own.is_ipv6(),
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let mask = u32::MAX.checked_shl(Ipv4Addr::BITS.saturating_sub(kept)).unwrap_or(0);
                u32::from(a) & mask == u32::from(b) & mask
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let mask = u128::MAX.checked_shl(Ipv6Addr::BITS.saturating_sub(kept)).unwrap_or(0);
                u128::from(a) & mask == u128::from(b) & mask
            }
            _ => false,
        }
    }
}
