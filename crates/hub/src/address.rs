//! Addresses: origins that may be compared, and which machines are on a private network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ureq::http::Uri;

/// Scheme, host and port: a token for one is for no other.
pub(crate) fn origin(uri: &Uri) -> Option<(String, String, u16)> {
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some((scheme, uri.host()?.to_ascii_lowercase(), port))
}

/// Host and, where it is not the usual one, port: how errors name a machine.
pub(crate) fn host(uri: &Uri) -> String {
    let authority = uri.authority().map(|a| a.as_str()).unwrap_or_default();
    crate::errors::quoted(authority.rsplit('@').next().unwrap_or_default())
}

/// An address as it may be shown: what is signed stands in the query.
pub(crate) fn without_query(url: &str) -> String {
    crate::errors::quoted(url.split(['?', '#']).next().unwrap_or_default())
}

/// The address that a host is by itself, as `127.0.0.1` and `[::1]` are.
pub(crate) fn literal(uri: &Uri) -> Option<IpAddr> {
    let host = uri.host()?;
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Whether the host is this machine by its very name.
pub(crate) fn is_loopback(uri: &Uri) -> bool {
    let is_name = uri.host().is_some_and(|h| h.eq_ignore_ascii_case("localhost"));
    is_name || literal(uri).is_some_and(|ip| unmapped(ip).is_loopback())
}

/// Whether an address is one of the internet, and not of this machine, this network or a network's
/// management.
pub(crate) fn is_public(ip: IpAddr) -> bool {
    match unmapped(ip) {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let is_shared = a == 100 && (64..128).contains(&b); // carrier-grade translation
    let is_reserved =
        a == 0 || a >= 240 || (a == 192 && b == 0 && c == 0) || (a == 198 && (18..20).contains(&b));
    !(ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_broadcast()
        || is_shared
        || is_reserved)
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let first = ip.segments()[0];
    // NAT64: an IPv4 address in disguise, and all that there is on a line without IPv4.
    if let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = ip.segments() {
        return is_public_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    }
    let is_translated = first == 0x64 && ip.segments()[1] == 0xff9b; // of a network of its own
    let is_global = first & 0xe000 == 0x2000 && !(first == 0x2001 && ip.segments()[1] == 0xdb8);
    let is_6to4 = first == 0x2002;
    if is_6to4 || is_translated {
        return false;
    }
    is_global
}

/// `::ffff:10.0.0.1` is 10.0.0.1.
fn unmapped(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_told_from_public_ones_in_every_spelling() {
        for public in ["1.1.1.1", "151.101.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::101:101",
            "2002:a00:1::",
            "ff02::1",
            "2001:db8::1",
            "198.18.0.1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
    }

    #[test]
    fn an_origin_has_its_port_and_a_host_no_user() {
        let uri = |t: &str| t.parse::<Uri>().unwrap();
        assert_eq!(origin(&uri("https://Hub.org/x")), origin(&uri("https://hub.org:443/y")));
        assert_ne!(origin(&uri("https://hub.org")), origin(&uri("http://hub.org")));
        assert_ne!(origin(&uri("http://127.0.0.1:1/")), origin(&uri("http://127.0.0.1:2/")));
        assert!(is_loopback(&uri("http://[::1]:80/")) && is_loopback(&uri("http://localhost/")));
        assert!(!is_loopback(&uri("http://localhost.example.org/")));
        assert_eq!(host(&uri("http://u:p@h:1/x")), "h:1");
    }
}
