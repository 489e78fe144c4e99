//! Plain HTTP to a server of this machine: one request, one connection, whole answers, with a deadline.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

/// An answer is a few numbers and some text.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// A server of this machine.
#[derive(Clone)]
pub struct Server {
    pub address: SocketAddr,
    /// What a node wants to see before it takes orders; empty for `llama-server`.
    pub secret: String,
}

impl Server {
    /// Asks for a document.
    pub fn get(&self, path: &str, at_most: Duration) -> anyhow::Result<Value> {
        self.exchange("GET", path, "", at_most)
    }

    /// Sends a document and gives the answer's.
    pub fn post(&self, path: &str, body: &Value, at_most: Duration) -> anyhow::Result<Value> {
        self.exchange("POST", path, &body.to_string(), at_most)
    }

    /// `at_most` bounds the connection and each silence of the server, which answers all at once.
    fn exchange(&self, method: &str, path: &str, body: &str, at_most: Duration) -> anyhow::Result<Value> {
        let to = self.address;
        let attempt = || format!("{method} http://{to}{path}");
        let mut stream = TcpStream::connect_timeout(&to, at_most).with_context(attempt)?;
        stream.set_read_timeout(Some(at_most)).with_context(attempt)?;
        stream.set_write_timeout(Some(at_most)).with_context(attempt)?;
        stream.set_nodelay(true).with_context(attempt)?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.secret,
            body.len()
        );
        stream.write_all(request.as_bytes()).with_context(attempt)?;
        let mut bytes = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes).with_context(attempt)?;
        let (status, body) = parse(&bytes).with_context(attempt)?;
        if status != 200 {
            let text: String = String::from_utf8_lossy(&body).chars().take(300).collect();
            bail!("{}: status {status}: {text}", attempt());
        }
        serde_json::from_slice(&body).with_context(|| format!("{}: the answer is not JSON", attempt()))
    }
}

/// Status and body of a whole answer.
fn parse(bytes: &[u8]) -> anyhow::Result<(u16, Vec<u8>)> {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").context("the answer has no head")?;
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).context("the answer has no status")?;
    let body = &bytes[end + 4..];
    let is_chunked = head.lines().any(|l| l.starts_with("transfer-encoding:") && l.contains("chunked"));
    Ok((status, if is_chunked { unchunk(body)? } else { body.to_vec() }))
}

fn unchunk(mut rest: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|w| w == b"\r\n").context("a chunk has no length")?;
        let digits = std::str::from_utf8(&rest[..end])?.split(';').next().unwrap_or_default().trim();
        let len = usize::from_str_radix(digits, 16).context("a chunk's length is no number")?;
        if len == 0 {
            return Ok(body);
        }
        let data = rest.get(end + 2..).and_then(|r| r.get(..len)).context("a chunk broke off")?;
        body.extend_from_slice(data);
        rest = rest.get(end + 2 + len + 2..).context("a chunk broke off")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_and_chunked_answers_are_read() {
        let plain = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(parse(plain).unwrap(), (200, b"{}".to_vec()));
        let chunked =
            b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
        assert_eq!(parse(chunked).unwrap(), (503, b"abcde".to_vec()));
    }

    #[test]
    fn answers_that_break_off_are_errors() {
        for broken in [&b"HTTP/1.1 200"[..], b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc"]
        {
            assert!(parse(broken).is_err());
        }
    }
}
