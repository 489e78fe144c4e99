//! Which redirects are followed.

use ureq::http::Uri;

use crate::address::{host, is_public, literal, without_query};
use crate::{HubError, address};

/// Real hubs need one or two.
pub(crate) const HOPS_MAX: usize = 5;

/// Where a redirect leads, if it may be followed. `first_is_public` says whether the first host of the chain
/// was one of the internet: such a host may send nobody to a machine of the user's own network.
pub(crate) fn target(from: &Uri, location: &str, first_is_public: bool) -> Result<Uri, HubError> {
    let refuse = |reason: &str| HubError::Redirect {
        from: host(from),
        to: without_query(location),
        reason: reason.to_owned(),
    };
    let joined = join(from, location).ok_or_else(|| refuse("it is not an address"))?;
    let to: Uri = joined.parse().map_err(|_| refuse("it is not an address"))?;
    let scheme = to.scheme_str().unwrap_or_default();
    if scheme != "https" && scheme != "http" {
        return Err(refuse("only http and https are followed"));
    }
    if to.authority().is_none_or(|a| a.as_str().contains('@')) {
        return Err(refuse("it names a user"));
    }
    if from.scheme_str() == Some("https") && scheme == "http" {
        return Err(refuse("it leads from https to http"));
    }
    let is_private = address::is_loopback(&to) || literal(&to).is_some_and(|ip| !is_public(ip));
    if first_is_public && is_private {
        return Err(refuse("a public host may not lead to a private address"));
    }
    Ok(to)
}

/// `location` seen from `from`: whole, or a path on the same host.
fn join(from: &Uri, location: &str) -> Option<String> {
    if location.contains("://") {
        return Some(location.to_owned());
    }
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    if location.starts_with("//") {
        return Some(format!("{scheme}:{location}"));
    }
    if location.starts_with('/') {
        return Some(format!("{scheme}://{authority}{location}"));
    }
    let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
    Some(format!("{scheme}://{authority}{folder}/{location}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(from: &str, location: &str, first_is_public: bool) -> String {
        match target(&from.parse().unwrap(), location, first_is_public) {
            Ok(uri) => uri.to_string(),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn redirects_of_real_hubs_are_followed() {
        assert_eq!(check("https://hub.org/a/b", "https://cdn.org/x?sig=1", true), "https://cdn.org/x?sig=1");
        assert_eq!(
            check("https://hub.org/a/b", "/api/resolve-cache/x", true),
            "https://hub.org/api/resolve-cache/x"
        );
        assert_eq!(check("https://hub.org/a/b", "c", true), "https://hub.org/a/c");
        assert_eq!(check("http://127.0.0.1:1/a", "http://127.0.0.1:2/b", false), "http://127.0.0.1:2/b");
    }

    #[test]
    fn a_redirect_to_http_is_refused_and_its_signature_not_shown() {
        let text = check("https://hub.org/a", "http://cdn.org/x?X-Signature=secret", true);
        assert!(text.contains("leads from https to http") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn a_public_host_leads_nobody_to_a_private_address() {
        for to in [
            "https://127.0.0.1/",
            "https://[::1]/",
            "https://192.168.0.1/",
            "https://169.254.169.254/",
            "https://localhost/",
            "//10.0.0.1/x",
        ] {
            assert!(check("https://hub.org/a", to, true).contains("private address"), "{to}");
        }
        for to in ["ftp://cdn.org/x", "file:///etc/passwd", "https://u@cdn.org/", "https://"] {
            assert!(check("https://hub.org/a", to, true).starts_with("error"), "{to}");
        }
    }
}
