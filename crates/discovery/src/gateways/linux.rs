use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Of a route in `/proc/net/route`: it leads through a router.
const GATEWAY: u32 = 2;

/// Addresses of routers that this machine has a route through. `root` is where `/proc` is.
pub(crate) fn gateways(root: &Path) -> Vec<IpAddr> {
    let read = |name: &str| std::fs::read_to_string(root.join("proc/net").join(name)).unwrap_or_default();
    let v4 = read("route").lines().filter_map(v4).map(IpAddr::V4).collect::<Vec<_>>();
    let v6 = read("ipv6_route").lines().filter_map(v6).map(IpAddr::V6).collect::<Vec<_>>();
    v4.into_iter().chain(v6).collect()
}

/// Interface, destination, gateway, flags, …: numbers in hexadecimal, addresses as they lie in memory.
fn v4(line: &str) -> Option<Ipv4Addr> {
    let mut fields = line.split_whitespace().skip(2);
    let gateway = u32::from_str_radix(fields.next()?, 16).ok()?;
    let flags = u32::from_str_radix(fields.next()?, 16).ok()?;
    (flags & GATEWAY != 0 && gateway != 0).then(|| Ipv4Addr::from(gateway.to_ne_bytes()))
}

/// Destination, its prefix, source, its prefix, next hop, …: 32 digits for an address.
fn v6(line: &str) -> Option<Ipv6Addr> {
    let gateway = line.split_whitespace().nth(4).filter(|hop| hop.len() == 32)?;
    let gateway = u128::from_str_radix(gateway, 16).ok()?;
    (gateway != 0).then(|| Ipv6Addr::from(gateway))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a machine with two networks, one of them without a router, shows.
    #[cfg(target_endian = "little")]
    #[test]
    fn routers_are_read_and_what_is_on_the_link_is_none() {
        let root = tempfile::tempdir().unwrap();
        let net = root.path().join("proc/net");
        std::fs::create_dir_all(&net).unwrap();
        assert!(gateways(root.path()).is_empty(), "no table");
        std::fs::write(
            net.join("route"),
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
             eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
             eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
             eth1\t0000010A\tFE00010A\t0003\t0\t0\t0\t0000FFFF\t0\t0\t0\nnonsense\n",
        )
        .unwrap();
        let link_local = "fe800000000000000000000000000001";
        let (zero, table) = ("0".repeat(32), net.join("ipv6_route"));
        std::fs::write(
            table,
            format!(
                "{zero} 00 {zero} 00 {link_local} 00000400 00000001 00000000 00000003 eth0\n\
                 fd000000000000000000000000000000 40 {zero} 00 {zero} 00000100 00000001 00000000 00000001 eth0\n"
            ),
        )
        .unwrap();
        let expected = ["192.168.1.1", "10.1.0.254", "fe80::1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        assert_eq!(gateways(root.path()), expected);
    }
}
