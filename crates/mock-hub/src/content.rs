//! Bytes of files: whole or a range, with the faults of a line.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::answer::{self, Headers};
use crate::request::Request;
use crate::{File, State, api, lock};

/// Longer than any client waits.
const STALL: Duration = Duration::from_secs(25);
/// Between two bytes: slow, and not so slow that it is given up for that alone.
const CRAWL: Duration = Duration::from_micros(100);

/// A request at a signed address: `/org/repo/path?signature=N.0`.
pub(crate) fn answer_signed(request: &Request, state: &State, out: &mut impl Write) -> io::Result<bool> {
    let signature =
        request.query("signature").and_then(|s| s.split('.').next()).and_then(|s| s.parse::<u64>().ok());
    let uses_max = lock(&state.faults).signature_uses;
    let uses = lock(&state.seen).iter().filter(|s| s.target == request.target).count() as u64;
    if signature.is_none_or(|s| s >= state.signatures.load(Ordering::Relaxed))
        || uses_max.is_some_and(|max| uses > max)
    {
        return answer::write(out, "403 Forbidden", &[], b"<Error><Code>AccessDenied</Code></Error>");
    }
    let parts: Vec<&str> = request.path().trim_start_matches('/').splitn(3, '/').collect();
    let [org, name, path] = parts.as_slice() else {
        return answer::write(out, "404 Not Found", &[], b"");
    };
    let repositories = lock(&state.repositories).clone();
    match repositories.get(&format!("{org}/{name}")).and_then(|r| r.files.get(&api::decoded(path))) {
        Some(file) => answer(request, file, &[], state, out),
        None => answer::write(out, "404 Not Found", &[], b""),
    }
}

/// The file, or the range that was asked for.
pub(crate) fn answer(
    request: &Request,
    file: &File,
    more: Headers<'_>,
    state: &State,
    out: &mut impl Write,
) -> io::Result<bool> {
    let number = state.data_answers.fetch_add(1, Ordering::Relaxed) + 1;
    if let Some((status, headers)) = refusal(state) {
        return answer::write(out, status, &headers, b"");
    }
    let faults = lock(&state.faults).clone();
    if faults.html_for_file {
        return answer::write(out, "200 OK", &[], b"<html>Please sign in</html>");
    }
    let size = file.bytes.len() as u64;
    let range = request.range(size).filter(|_| !faults.whole_for_range);
    let (start, end) = range.unwrap_or((0, size));
    let start_said = start + faults.shifted_range;
    let mut headers = more.to_vec();
    let tag =
        if faults.changing_etag { format!("\"{number}\"") } else { format!("\"{}\"", &file.sha256[..32]) };
    headers.extend([("etag", tag), ("accept-ranges", "bytes".to_owned())]);
    if range.is_some() {
        let (last, total) = (end - 1 + faults.shifted_range, size + faults.larger_total);
        headers.push(("content-range", format!("bytes {start_said}-{last}/{total}")));
    }
    // Not copied: in tests of rates this is the peer.
    let mut bytes = Cow::Borrowed(&file.bytes[start as usize..end as usize]);
    if let Some(at) = faults.wrong_byte_at.filter(|at| (start..end).contains(at)) {
        bytes.to_mut()[(at - start) as usize] ^= 1;
    }
    if let Some(length) = faults.range_length.filter(|_| range.is_some()) {
        bytes.to_mut().resize(length, 0);
    }
    answer::head(
        out,
        if range.is_some() { "206 Partial Content" } else { "200 OK" },
        &headers,
        bytes.len() as u64,
    )?;
    if let Some(every) = faults.drip_every {
        answer::drip(out, &bytes, every)?;
        return Ok(true);
    }
    let is_nth = |every: u64| every > 0 && number.is_multiple_of(every);
    let is_cut = [faults.break_every, faults.stall_every, faults.crawl_every].into_iter().any(is_nth);
    let mut sent = if is_cut { bytes.len() / 2 } else { bytes.len() };
    answer::write_slowly(out, &bytes[..sent], faults.bytes_per_s, &state.sent_bytes, &state.stop)?;
    if is_nth(faults.crawl_every) {
        answer::drip(out, &bytes[sent..], CRAWL)?;
        sent = bytes.len();
    }
    out.write_all(&vec![b'x'; faults.surplus])?;
    if is_nth(faults.stall_every) {
        answer::wait_until(Instant::now() + STALL);
    }
    Ok(sent == bytes.len())
}

/// What stands in for bytes while the hub is limited or unavailable. Each such answer counts down.
fn refusal(state: &State) -> Option<(&'static str, Vec<(&'static str, String)>)> {
    let mut faults = lock(&state.faults);
    if let Some((left, after)) = faults.limited.as_mut().filter(|(left, _)| *left > 0) {
        *left -= 1;
        return Some(("429 Too Many Requests", vec![("retry-after", after.clone())]));
    }
    let is_unavailable = faults.unavailable > 0;
    faults.unavailable -= u64::from(is_unavailable);
    let after = faults.unavailable_after.clone().map(|after| ("retry-after", after));
    is_unavailable.then(|| ("503 Service Unavailable", after.into_iter().collect()))
}
