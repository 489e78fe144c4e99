//! The few headers of an answer that decide whether its bytes are taken.

use ureq::http::HeaderMap;

/// Start, end (inclusive) and whole size of a `Content-Range`.
pub(crate) fn content_range(text: &str) -> Option<(u64, u64, u64)> {
    let rest = text.trim().strip_prefix("bytes ")?;
    let (range, size) = rest.split_once('/')?;
    let (start, end) = range.split_once('-')?;
    let number = |t: &str| t.trim().parse::<u64>().ok();
    let (start, end, size) = (number(start)?, number(end)?, number(size)?);
    (start <= end && end < size).then_some((start, end, size))
}

/// The next page of a list, from a `Link` header.
pub(crate) fn next_link(text: &str) -> Option<String> {
    text.split(',').find_map(|part| {
        let (address, attributes) = part.trim().strip_prefix('<')?.split_once('>')?;
        let is_next = attributes.split(';').any(|a| a.trim().replace('"', "") == "rel=next");
        is_next.then(|| address.to_owned())
    })
}

/// A header as text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// An entity tag without quotes and the mark of weakness.
pub(crate) fn etag(text: &str) -> &str {
    let text = text.trim();
    text.strip_prefix("W/").unwrap_or(text).trim_matches('"')
}

/// Whether a body is what it seems. We ask for no encoding, so whatever comes with one is not what was asked
/// for.
pub(crate) fn is_encoded(headers: &HeaderMap) -> bool {
    header(headers, "content-encoding")
        .is_some_and(|e| !e.trim().is_empty() && !e.trim().eq_ignore_ascii_case("identity"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_range_that_can_be_is_one() {
        assert_eq!(content_range("bytes 0-9/10"), Some((0, 9, 10)));
        for bad in [
            "bytes 0-10/10",
            "bytes 5-4/10",
            "bytes */10",
            "bytes 0-9/*",
            "0-9/10",
            "bytes 0-18446744073709551616/9",
            "",
        ] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_next_page_is_found_among_links() {
        let header = "<https://h/a?p=1>; rel=\"prev\", <https://h/a?cursor=x>; rel=\"next\"";
        assert_eq!(next_link(header).as_deref(), Some("https://h/a?cursor=x"));
        assert_eq!(next_link("<https://h/a>; rel=\"last\""), None);
        assert_eq!(etag("W/\"abc\""), "abc");
    }
}
