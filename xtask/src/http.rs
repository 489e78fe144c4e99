//! Plain HTTP to a server of this machine: one request, one connection, whole answers or line by line, with a
//! deadline.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::system;

/// An answer is a few numbers and some text.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// A server of this machine.
#[derive(Clone)]
pub struct Server {
    pub address: SocketAddr,
    /// What a node wants to see before it takes orders; empty for `llama-server`.
    pub secret: String,
    /// The network namespace that it listens in, unless it is this one.
    pub network: Option<String>,
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

    /// Gives an order whose answer says nothing but that it is carried out; `null` is no document.
    pub fn order(&self, method: &str, path: &str, body: &Value, at_most: Duration) -> anyhow::Result<()> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.answered(method, path, &body, at_most).map(|_| ())
    }

    /// Asks for a text.
    pub fn text(&self, path: &str, at_most: Duration) -> anyhow::Result<String> {
        let body = self.answered("GET", path, "", at_most)?;
        String::from_utf8(body).with_context(|| format!("{path}: the answer is no text"))
    }

    /// Opens a stream of events, whose head and bytes are read as they come. `at_most` bounds each silence.
    pub fn events(&self, path: &str, at_most: Duration) -> anyhow::Result<TcpStream> {
        self.send(("GET", path, ""), "", at_most)
    }

    fn exchange(&self, method: &str, path: &str, body: &str, at_most: Duration) -> anyhow::Result<Value> {
        let body = self.answered(method, path, body, at_most)?;
        serde_json::from_slice(&body).with_context(|| format!("{method} {path}: the answer is not JSON"))
    }

    /// The body of a good answer. `at_most` bounds the connection and each silence of the server, which
    /// answers all at once.
    fn answered(&self, method: &str, path: &str, body: &str, at_most: Duration) -> anyhow::Result<Vec<u8>> {
        let attempt = || format!("{method} http://{}{path}", self.address);
        let stream = self.send((method, path, ""), body, at_most).with_context(attempt)?;
        let mut bytes = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes).with_context(attempt)?;
        let (status, body) = parse(&bytes).with_context(attempt)?;
        if !(200..300).contains(&status) {
            let text: String = String::from_utf8_lossy(body).chars().take(300).collect();
            bail!("{}: status {status}: {text}", attempt());
        }
        Ok(body.to_vec())
    }

    /// Sends a document and hands on each line of the answer as it comes, headers first, until `each` has
    /// seen enough. `at_most` bounds each silence of the server, and all of it together.
    pub fn lines(
        &self,
        path: &str,
        body: &Value,
        at_most: Duration,
        each: impl FnMut(&str) -> anyhow::Result<ControlFlow<()>>,
    ) -> anyhow::Result<()> {
        self.lines_of(("POST", path, ""), &body.to_string(), at_most, each)
    }

    /// The same where nothing is sent but headers, each of which ends its line.
    pub fn lines_with(
        &self,
        path: &str,
        headers: &str,
        at_most: Duration,
        each: impl FnMut(&str) -> anyhow::Result<ControlFlow<()>>,
    ) -> anyhow::Result<()> {
        self.lines_of(("GET", path, headers), "", at_most, each)
    }

    fn lines_of(
        &self,
        head: (&str, &str, &str),
        body: &str,
        at_most: Duration,
        mut each: impl FnMut(&str) -> anyhow::Result<ControlFlow<()>>,
    ) -> anyhow::Result<()> {
        let attempt = || format!("{} http://{}{}", head.0, self.address, head.1);
        let began = Instant::now();
        let stream = self.send(head, body, at_most).with_context(attempt)?;
        let mut lines = BufReader::new(stream.take(ANSWER_BYTES_MAX)).lines();
        let status =
            lines.next().with_context(|| format!("{}: no answer", attempt()))?.with_context(attempt)?;
        if status.split(' ').nth(1) != Some("200") {
            let rest: String = lines.map_while(Result::ok).take(20).collect::<Vec<_>>().join(" ");
            bail!("{}: {status}: {}", attempt(), rest.chars().take(600).collect::<String>());
        }
        for line in lines {
            if each(&line.with_context(attempt)?).with_context(attempt)?.is_break() {
                return Ok(());
            }
            if began.elapsed() > at_most {
                bail!("{}: the answer went on for more than {} s", attempt(), at_most.as_secs());
            }
        }
        Ok(())
    }

    /// A connection with the request on its way. In HTTP/1.0 the answer's body comes as it is, without
    /// lengths between its pieces. Each of the headers ends its line.
    fn send(
        &self,
        (method, path, headers): (&str, &str, &str),
        body: &str,
        at_most: Duration,
    ) -> anyhow::Result<TcpStream> {
        let mut stream = self.connect(at_most)?;
        stream.set_read_timeout(Some(at_most))?;
        stream.set_write_timeout(Some(at_most))?;
        stream.set_nodelay(true)?;
        let request = format!(
            "{method} {path} HTTP/1.0\r\n{headers}Host: {}\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            self.secret,
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        Ok(stream)
    }

    /// A socket belongs to the network that it was made in, whoever uses it.
    fn connect(&self, at_most: Duration) -> anyhow::Result<TcpStream> {
        let Some(network) = &self.network else {
            return Ok(TcpStream::connect_timeout(&self.address, at_most)?);
        };
        system::on_own_thread(|| {
            system::enter_network(network)?;
            Ok(TcpStream::connect_timeout(&self.address, at_most)?)
        })
    }
}

/// Status and body of a whole answer.
fn parse(answer: &[u8]) -> anyhow::Result<(u16, &[u8])> {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").context("the answer has no head")?;
    let head = String::from_utf8_lossy(&answer[..end]);
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).context("the answer has no status")?;
    Ok((status, &answer[end + 4..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_status_and_what_follows_its_head() {
        assert_eq!(parse(b"HTTP/1.0 503 No\r\nA: b\r\n\r\n{}").unwrap(), (503, &b"{}"[..]));
        assert!(parse(b"HTTP/1.0 200").is_err(), "it broke off");
    }

    /// A server that answers one request with this text.
    fn answering(text: &'static str) -> Server {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The request is read to its end: closing before that would reset the connection.
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
        });
        Server { address, secret: String::new(), network: None }
    }

    #[test]
    fn lines_come_one_by_one_until_enough_are_seen() {
        let server = answering("HTTP/1.0 200 OK\r\nA: b\r\n\r\ndata: 1\n\ndata: 2\n\ndata: 3\n\n");
        let mut seen = Vec::new();
        let each = |line: &str| {
            seen.push(line.to_owned());
            Ok(if line == "data: 2" { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        server.lines("/", &Value::Null, Duration::from_secs(10), each).unwrap();
        assert_eq!(seen, ["A: b", "", "data: 1", "", "data: 2"]);
    }

    #[test]
    fn an_order_is_carried_out_where_the_answer_says_so_without_a_document() {
        let at_most = Duration::from_secs(10);
        let order = |server: Server| server.order("DELETE", "/", &Value::Null, at_most);
        order(answering("HTTP/1.0 204 No Content\r\n\r\n")).unwrap();
        let error = order(answering("HTTP/1.0 409 Conflict\r\n\r\nno")).unwrap_err().to_string();
        assert!(error.contains("status 409: no"), "{error}");
    }

    #[test]
    fn a_refused_stream_says_why() {
        let server = answering("HTTP/1.0 429 Too Many Requests\r\n\r\n{\"error\": \"full\"}");
        let none = |_: &str| -> anyhow::Result<_> { panic!("there is no line") };
        let error = server.lines("/", &Value::Null, Duration::from_secs(10), none).unwrap_err().to_string();
        assert!(error.contains("429") && error.contains("full"), "{error}");
    }
}
