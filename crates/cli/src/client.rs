//! Talks to a node's API over HTTP, with a bound on every wait.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use exo_node::RunningApi;
use exo_types::printable;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::errors::CommandError;

/// For an answer that needs no model.
const ANSWER_MAX: Duration = Duration::from_secs(55);
/// For a node to say that it is there.
pub const HEALTH_MAX: Duration = Duration::from_secs(3);
/// For the channel to a node to open.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// For a streamed answer to begin: its request may take half a minute to come, and another half until the
/// node has looked at it.
const BEGIN_MAX: Duration = Duration::from_secs(90);
/// From then on the node gives a sign of life every five seconds; more silence than this is a fault.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The same for events of the cluster, where a sign of life comes every second.
const EVENTS_SILENCE_MAX: Duration = Duration::from_secs(20);
/// A snapshot of a thousand nodes is smaller.
const EVENT_BYTES_MAX: usize = 64 << 20;

/// How far a client is that asks for the rest of a stream.
const LAST_EVENT_ID: &str = "last-event-id";

/// Longest text of an answer that is shown. The node's own messages have some hundred characters.
const TEXT_CHARS_MAX: usize = 2000;

/// A running node's API.
#[derive(Clone)]
pub struct Client(RunningApi);

/// What the node refused, in its own words.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// HTTP status.
    pub status: u16,
    /// The stable code, if the answer had one.
    pub code: Option<String>,
    /// To be displayed.
    pub message: String,
}

/// Whether the node knows nothing of the name that it was asked for.
pub fn is_not_found(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| refused.code.as_deref() == Some("not_found"))
}

impl Client {
    /// The node of this process, which has published its API.
    pub fn of(data_dir: &Path) -> Option<Self> {
        exo_node::running_api(data_dir).map(Self)
    }

    /// The node that runs on this data folder, if one answers.
    pub async fn running(data_dir: &Path) -> Option<Self> {
        let client = Self::of(data_dir)?;
        let health = client.get::<Value>("/health");
        let answer = tokio::time::timeout(HEALTH_MAX, health).await;
        matches!(answer, Ok(Ok(_))).then_some(client)
    }

    /// Where the API is.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Fetches a resource.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.call(ANSWER_MAX, Method::GET, path, Bytes::new()).await
    }

    /// Sends a document, gets a document.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> anyhow::Result<T> {
        self.post_within(ANSWER_MAX, path, body).await
    }

    /// The same for what takes its time.
    pub async fn post_within<T: DeserializeOwned>(
        &self,
        limit: Duration,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        self.call(limit, Method::POST, path, serde_json::to_vec(body)?.into()).await
    }

    /// Deletes a resource.
    pub async fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.call::<Value>(ANSWER_MAX, Method::DELETE, path, Bytes::new()).await.map(|_| ())
    }

    /// Starts a streamed answer.
    pub async fn stream(&self, path: &str, body: &impl Serialize) -> anyhow::Result<Events> {
        let body = serde_json::to_vec(body)?.into();
        self.begin(BEGIN_MAX, self.send(Method::POST, path, body, &[])).await
    }

    /// The rest of a streamed answer that broke off.
    pub async fn resume(&self, place: &ResumePoint) -> anyhow::Result<Events> {
        let id = place.ticket.split('.').next().unwrap_or_default();
        let mut headers = vec![("exo-resume", place.ticket.as_str())];
        headers.extend(place.last_id.as_deref().map(|last_id| (LAST_EVENT_ID, last_id)));
        let path = format!("/v1/requests/{id}");
        let sent = self.send(Method::GET, &path, Bytes::new(), &headers);
        let mut events = self.begin(BEGIN_MAX, sent).await?;
        // Until one with an id comes, it is where it was.
        if let Some(new) = &mut events.place {
            new.last_id.clone_from(&place.last_id);
        }
        Ok(events)
    }

    /// Starts a stream of named events, behind the one with this id if that is known.
    pub async fn events(&self, path: &str, last_id: Option<&str>) -> anyhow::Result<Events> {
        let headers: Vec<_> = last_id.map(|last_id| (LAST_EVENT_ID, last_id)).into_iter().collect();
        self.begin(EVENTS_SILENCE_MAX, self.send(Method::GET, path, Bytes::new(), &headers)).await
    }

    async fn begin(
        &self,
        limit: Duration,
        sent: impl Future<Output = anyhow::Result<Response<Incoming>>>,
    ) -> anyhow::Result<Events> {
        let response = tokio::time::timeout(limit, sent).await.map_err(|_| self.silent(limit))??;
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        let ticket = response.headers().get("exo-resume").and_then(|value| value.to_str().ok());
        let place = ticket.map(|ticket| ResumePoint { ticket: ticket.to_owned(), last_id: None });
        Ok(Events { body: response.into_body(), buffer: Vec::new(), place, client: self.clone() })
    }

    async fn call<T: DeserializeOwned>(
        &self,
        limit: Duration,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<T> {
        let answer = async {
            let response = self.send(method, path, body, &[]).await?;
            if !response.status().is_success() {
                return Err(refusal(response).await);
            }
            let bytes = response.into_body().collect().await.context("the answer broke off")?.to_bytes();
            let bytes: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
            serde_json::from_slice(bytes)
                .and_then(|value| serde_json::from_value(all_printable(value)))
                .with_context(|| format!("the answer to {path} is not what exo sends"))
        };
        tokio::time::timeout(limit, answer).await.map_err(|_| self.silent(limit))?
    }

    /// It was asked, and has said nothing for so long.
    fn silent(&self, limit: Duration) -> CommandError {
        CommandError::NoAnswer { address: self.address(), seconds: limit.as_secs() }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        headers: &[(&str, &str)],
    ) -> anyhow::Result<Response<Incoming>> {
        let connect = tokio::time::timeout(CONNECT_MAX, self.connect());
        let mut sender = connect.await.map_err(|_| self.silent(CONNECT_MAX))??;
        let host = format!("localhost:{}", self.address().port());
        let mut request = Request::builder().method(&method).uri(path).header("host", host);
        if method != Method::GET {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = sender.send_request(request.body(Full::new(body))?);
        response.await.with_context(|| format!("the node at {} closed the connection", self.address()))
    }

    /// Over the local channel: whoever holds the node's TCP port after a crash is told nothing.
    async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let path = &self.0.socket;
        let channel = exo_local_channel::connect(path).await;
        let channel = channel.with_context(|| format!("cannot connect to the node at {}", path.display()))?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(channel)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// The same document with every text in it a single bounded line: names, reasons and messages are for people
/// to read, and many are words of other nodes. Ids and numbers stay as they are.
fn all_printable(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(printable(&text, TEXT_CHARS_MAX)),
        Value::Array(items) => items.into_iter().map(all_printable).collect(),
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| (printable(&key, TEXT_CHARS_MAX), all_printable(value)))
            .collect(),
        plain => plain,
    }
}

async fn refusal(response: Response<Incoming>) -> anyhow::Error {
    let status = response.status().as_u16();
    let collected = tokio::time::timeout(Duration::from_secs(5), response.into_body().collect()).await;
    let bytes = collected.ok().and_then(Result::ok).map(|c| c.to_bytes()).unwrap_or_default();
    let error = serde_json::from_slice::<Value>(&bytes).unwrap_or_default();
    let text = |name: &str| error["error"][name].as_str().map(|text| printable(text, TEXT_CHARS_MAX));
    let message = text("message").unwrap_or_else(|| format!("the node answered with status {status}"));
    Refused { status, code: text("code"), message }.into()
}

/// One server-sent event.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// A document.
    Data(Value),
    /// Why there is nothing yet.
    Comment(String),
}

/// How far a streamed answer has come, and the secret with which a node gives the rest of it.
pub struct ResumePoint {
    ticket: String,
    last_id: Option<String>,
}

/// The node, or the connection to it, ended in the middle of a stream.
#[derive(Debug, thiserror::Error)]
#[error("the node broke off the stream{}", .0.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
pub struct BrokeOff(Option<hyper::Error>);

/// A streamed answer. Dropping it cancels the request.
pub struct Events {
    body: Incoming,
    buffer: Vec<u8>,
    /// How far it is, where a node can go on with it.
    pub place: Option<ResumePoint>,
    /// Whose it is.
    client: Client,
}

impl Events {
    /// The next event; `None` after the last one.
    pub async fn next(&mut self) -> anyhow::Result<Option<Event>> {
        loop {
            let Some(block) = self.block(SILENCE_MAX).await? else { return Err(BrokeOff(None).into()) };
            if let (Some(place), Some(id)) = (&mut self.place, &block.id) {
                place.last_id = Some(id.clone());
            }
            if let Some(event) = block.event()? {
                return Ok(event);
            }
        }
    }

    /// The next event that has a name; `None` after the last one.
    pub async fn next_named(&mut self) -> anyhow::Result<Option<Named>> {
        while let Some(block) = self.block(EVENTS_SILENCE_MAX).await? {
            if let Some(named) = block.named()? {
                return Ok(Some(named));
            }
        }
        Ok(None)
    }

    /// Only whole ones count: an id stands behind the data that it is of.
    async fn block(&mut self, silence_max: Duration) -> anyhow::Result<Option<Block>> {
        loop {
            if let Some(block) = next_block(&mut self.buffer) {
                return Ok(Some(block));
            }
            if self.buffer.len() > EVENT_BYTES_MAX {
                bail!("the node sent an event of more than {EVENT_BYTES_MAX} bytes");
            }
            let frame = tokio::time::timeout(silence_max, self.body.frame())
                .await
                .map_err(|_| self.client.silent(silence_max))?;
            let Some(frame) = frame else { return Ok(None) };
            if let Ok(data) = frame.map_err(|why| BrokeOff(Some(why)))?.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }
}

/// A server-sent event with its name.
pub struct Named {
    pub name: String,
    pub id: Option<String>,
    pub data: Value,
}

/// A server-sent event or comment as it came.
#[derive(Debug, Default, PartialEq)]
struct Block {
    name: Option<String>,
    id: Option<String>,
    data: Option<String>,
    comment: Option<String>,
}

impl Block {
    /// As a step of an answer: `Some(None)` is the end mark, `None` says nothing.
    fn event(self) -> anyhow::Result<Option<Option<Event>>> {
        let Some(data) = self.data else { return Ok(self.comment.map(|text| Some(Event::Comment(text)))) };
        if data == "[DONE]" {
            return Ok(Some(None));
        }
        let value: Value = serde_json::from_str(&data).context("the node sent a broken event")?;
        if let Some(message) = value["error"]["message"].as_str() {
            let code = value["error"]["code"].as_str().map(str::to_owned);
            let message = printable(message, TEXT_CHARS_MAX);
            return Err(Refused { status: 200, code, message }.into());
        }
        Ok(Some(Some(Event::Data(value))))
    }

    fn named(self) -> anyhow::Result<Option<Named>> {
        let (Some(name), Some(data)) = (self.name, self.data) else { return Ok(None) };
        let data: Value = serde_json::from_str(&data).context("the node sent a broken event")?;
        Ok(Some(Named { name, id: self.id, data: all_printable(data) }))
    }
}

/// Takes the first complete event or comment off the buffer.
fn next_block(buffer: &mut Vec<u8>) -> Option<Block> {
    let blank = buffer.iter().take_while(|byte| **byte == b'\n').count();
    buffer.drain(..blank);
    // A comment needs no blank line behind it.
    let end: &[u8] = if buffer.starts_with(b":") { b"\n" } else { b"\n\n" };
    let at = buffer.windows(end.len()).position(|bytes| bytes == end)?;
    let bytes: Vec<u8> = buffer.drain(..at + end.len()).collect();
    let text = String::from_utf8_lossy(&bytes);
    let mut block = Block::default();
    for line in text.lines() {
        let Some((field, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        let field = match field {
            "" => &mut block.comment,
            "event" => &mut block.name,
            "id" => &mut block.id,
            "data" => {
                block.data = Some(value.to_owned());
                continue;
            }
            _ => continue,
        };
        *field = Some(printable(value, TEXT_CHARS_MAX));
    }
    Some(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first complete event as a step of an answer.
    fn next_event(buffer: &mut Vec<u8>) -> anyhow::Result<Option<Option<Event>>> {
        next_block(buffer).map_or(Ok(None), Block::event)
    }

    #[test]
    fn events_split_over_packets_count_once_complete() {
        let mut buffer = b": loading 3 %\ndata: {\"a\":1}\nid: 0:1\n\ndata: {\"b\":1}\nid".to_vec();
        assert_eq!(next_event(&mut buffer).unwrap(), Some(Some(Event::Comment("loading 3 %".to_owned()))));
        let block = next_block(&mut buffer).unwrap();
        assert_eq!(block.id.as_deref(), Some("0:1"));
        assert_eq!(block.event().unwrap(), Some(Some(Event::Data(serde_json::json!({"a": 1})))));
        assert_eq!(next_block(&mut buffer), None, "what it says may come again");
        buffer.extend_from_slice(b": 0:2\n\ndata: [DONE]\n\n");
        assert_eq!(next_block(&mut buffer).unwrap().id.as_deref(), Some("0:2"));
        assert_eq!(next_event(&mut buffer).unwrap(), Some(None));
        let mut buffer = b"data: {\"c\":1}\n: a comment inside\n\n".to_vec();
        let event = next_event(&mut buffer).unwrap();
        assert_eq!(event, Some(Some(Event::Data(serde_json::json!({"c": 1})))), "not lost for a comment");
    }

    #[test]
    fn named_events_come_whole_with_their_ids() {
        let mut buffer =
            b": keep-alive\nid: 9f-1\nevent: delta\ndata: {\"a\":\"\\u001b[2J\"}\n\nid: 9f-2\nevent: de"
                .to_vec();
        let mut next = || next_block(&mut buffer).and_then(|block| block.named().unwrap());
        assert!(next().is_none(), "a comment");
        let event = next().unwrap();
        assert_eq!((event.name.as_str(), event.id.as_deref()), ("delta", Some("9f-1")));
        assert_eq!(event.data, serde_json::json!({"a": "\u{FFFD}[2J"}));
        assert!(next().is_none());
        buffer.extend_from_slice(b"lta\ndata: {}\n\n");
        let event = next_block(&mut buffer).unwrap().named().unwrap().unwrap();
        assert_eq!(event.id.as_deref(), Some("9f-2"));
        assert!(next_block(&mut b"event: x\ndata: {\n\n".to_vec()).unwrap().named().is_err());
    }

    #[test]
    fn what_a_node_tells_of_others_is_single_lines_whatever_they_call_themselves() {
        let hostile = "x\n\x1b]0;t\x07\u{202E}".repeat(1000);
        let view =
            serde_json::json!({"nodes": [{"name": hostile, "id": "abcd", "free": 7}], hostile.clone(): null});
        let shown = all_printable(view);
        assert_eq!((&shown["nodes"][0]["id"], &shown["nodes"][0]["free"]), (&"abcd".into(), &7.into()));
        let name = shown["nodes"][0]["name"].as_str().unwrap();
        assert!(name.chars().count() < 2100 && name.ends_with("more characters]"), "{name}");
        assert!(!shown.to_string().contains(exo_types::is_terminal_control));
        assert!(!shown.to_string().contains("\\u") && !shown.to_string().contains("\\n"));
        let mut buffer = [
            b": \x1b[2J\n\n",
            format!("data: {}\n\n", serde_json::json!({"error": {"message": hostile}})).as_bytes(),
        ]
        .concat();
        let comment = next_event(&mut buffer).unwrap();
        assert_eq!(comment, Some(Some(Event::Comment("\u{FFFD}[2J".to_owned()))));
        let error = next_event(&mut buffer).unwrap_err().to_string();
        assert!(!error.contains(exo_types::is_terminal_control), "{error}");
    }

    /// The system takes connections for it, and no one reads what comes over them.
    #[tokio::test]
    #[cfg(unix)]
    async fn a_node_that_is_stopped_under_a_command_is_told_as_silent_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let (_unread, socket) = exo_local_channel::LocalListener::open(folder.path()).unwrap();
        let client = Client(RunningApi { address: ([127, 0, 0, 1], 9).into(), socket });
        let within = Duration::from_millis(50);
        let called = client.call::<Value>(within, Method::GET, "/exo/v1/cluster", Bytes::new()).await;
        let sent = client.send(Method::GET, "/exo/v1/events", Bytes::new(), &[]);
        let begun = client.begin(within, sent).await;
        for error in [called.err().unwrap(), begun.err().unwrap()] {
            let text = format!("{error:#}");
            assert!(text.starts_with("the exo node at 127.0.0.1:9 has not answered within"), "{text}");
            let hint = crate::hint::of(&error);
            assert!(hint.is_some_and(|hint| hint.contains("kill -CONT")), "{text}");
        }
    }

    #[test]
    fn an_error_inside_the_stream_is_an_error() {
        let mut buffer =
            b"data: {\"error\":{\"message\":\"stage lost\",\"code\":\"stage_lost\"}}\n\n".to_vec();
        let error = next_event(&mut buffer).unwrap_err();
        assert_eq!(error.downcast_ref::<Refused>().unwrap().code.as_deref(), Some("stage_lost"));
    }
}
