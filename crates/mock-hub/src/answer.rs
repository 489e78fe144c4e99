//! Writing answers.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is written at once where the line has a speed.
const PIECE_BYTES: usize = 64 << 10;

pub(crate) type Headers<'a> = &'a [(&'a str, String)];

/// An answer with a body; whether the connection may stay.
pub(crate) fn write(
    out: &mut impl Write,
    status: &str,
    headers: Headers<'_>,
    body: &[u8],
) -> io::Result<bool> {
    head(out, status, headers, body.len() as u64)?;
    out.write_all(body)?;
    Ok(true)
}

/// The head of an answer.
pub(crate) fn head(out: &mut impl Write, status: &str, headers: Headers<'_>, length: u64) -> io::Result<()> {
    let mut text = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    out.write_all(text.as_bytes())
}

/// Bytes one by one, so long apart.
pub(crate) fn drip(out: &mut impl Write, bytes: &[u8], every: Duration) -> io::Result<()> {
    for byte in bytes {
        out.write_all(&[*byte])?;
        wait_until(Instant::now() + every);
    }
    Ok(())
}

/// Bytes at no more than this speed, counted as they go, until the hub is gone.
pub(crate) fn write_slowly(
    out: &mut impl Write,
    bytes: &[u8],
    bytes_per_s: Option<u64>,
    count: &AtomicU64,
    is_gone: &AtomicBool,
) -> io::Result<()> {
    let (begun, mut sent) = (Instant::now(), 0);
    for piece in bytes.chunks(PIECE_BYTES) {
        if is_gone.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        out.write_all(piece)?;
        sent += piece.len();
        count.fetch_add(piece.len() as u64, Ordering::Relaxed);
        if let Some(rate) = bytes_per_s {
            wait_until(begun + Duration::from_secs_f64(sent as f64 / rate.max(1) as f64));
        }
    }
    Ok(())
}

/// Blocks this thread, which serves one connection and nothing else.
pub(crate) fn wait_until(time: Instant) {
    loop {
        let left = time.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::park_timeout(left);
    }
}
