//! The event stream as a reader sees it: whole at first, then in parts, and never more than the server wants
//! to hold.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::time::Duration;

use crate::common::{SECRET, Server, alert, quick, start, start_with};
use exo_api::live::{Change, LiveEvent};
use exo_api::{ClusterView, InstanceState, WarningView};
use exo_server::{ApiKey, ServerOptions};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Reads events one by one off an open connection.
struct Reader {
    stream: TcpStream,
    text: String,
}

#[derive(Debug, PartialEq)]
struct Event {
    id: String,
    name: String,
    data: Value,
}

impl Reader {
    async fn open(server: &Server, token: &str, last: Option<&str>) -> Self {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let last = last.map(|id| format!("last-event-id: {id}\r\n")).unwrap_or_default();
        let head = format!(
            "GET /exo/v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n{last}\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        Self { stream, text: String::new() }
    }

    /// The next event; `None` at the end of the stream. Chunked encoding puts lines between, which are no
    /// fields.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let line = block.lines().find_map(|line| line.strip_prefix(name));
                    line.unwrap_or_default().trim().to_owned()
                };
                let (id, name, data) = (field("id:"), field("event:"), field("data:"));
                self.text = rest.to_owned();
                if !name.is_empty() {
                    return Some(Event { id, name, data: serde_json::from_str(&data).unwrap() });
                }
                continue;
            }
            let mut bytes = vec![0; 64 << 10];
            let read = tokio::time::timeout(Duration::from_secs(5), self.stream.read(&mut bytes)).await;
            match read.expect("a sign of life within 5 s") {
                Ok(0) | Err(_) => return None,
                Ok(read) => self.text.push_str(&String::from_utf8_lossy(&bytes[..read]).replace('\r', "")),
            }
        }
    }

    /// The next event of the cluster, which must have this name. Downloads are told between them.
    async fn named(&mut self, name: &str) -> Event {
        loop {
            let event = self.next().await.expect("an event");
            if event.name != "pulls" {
                assert_eq!(event.name, name, "{event:?}");
                return event;
            }
        }
    }
}

fn warn(server: &Server, text: &str) {
    let warning = WarningView { at_unix_s: 1, text: text.to_owned() };
    server.fake.view.send_modify(|view| view.warnings.push(warning));
}

fn apply(view: &mut ClusterView, event: &Event) {
    for change in event.data["changes"].as_array().unwrap() {
        Change::deserialize(change).unwrap().apply(view);
    }
}

#[tokio::test]
async fn a_reader_gets_all_at_first_and_then_what_changes() {
    let server = start().await;
    let mut reader = Reader::open(&server, SECRET, None).await;
    let first = reader.named("snapshot").await;
    let Ok(LiveEvent::Snapshot(snapshot)) = LiveEvent::deserialize(&first.data) else { panic!("{first:?}") };
    let mut view = snapshot.cluster;
    assert_eq!(view.instances[0].state, InstanceState::Loading { progress: 0.5 });
    let began = std::time::Instant::now();
    server.fake.view.send_modify(|view| view.instances[0].state = InstanceState::Ready);
    let second = reader.named("delta").await;
    assert!(began.elapsed() < Duration::from_millis(500), "a person sees it at once: {:?}", began.elapsed());
    apply(&mut view, &second);
    assert_eq!(view, *server.fake.view.borrow());
    assert_ne!(first.id, second.id);
}

#[tokio::test]
async fn a_reader_goes_on_behind_its_last_event_or_begins_anew() {
    let server = start().await;
    let mut reader = Reader::open(&server, SECRET, None).await;
    let first = reader.named("snapshot").await;
    warn(&server, "one");
    let second = reader.named("delta").await;
    drop(reader);
    warn(&server, "two");
    let mut again = Reader::open(&server, SECRET, Some(&second.id)).await;
    let third = again.named("delta").await;
    assert_eq!(third.data["changes"][0]["warnings"][1]["text"], "two");
    let mut from_the_first = Reader::open(&server, SECRET, Some(&first.id)).await;
    assert_eq!(from_the_first.named("delta").await, second);
    assert_eq!(from_the_first.named("delta").await, third);
    for strange in ["", "x", "1-1", "ffffffffffffffff-18446744073709551615", &format!("{}0", third.id)] {
        let mut reader = Reader::open(&server, SECRET, Some(strange)).await;
        let event = reader.named("snapshot").await;
        assert_eq!(event.data["cluster"]["warnings"][1]["text"], "two", "{strange}");
    }
}

#[tokio::test]
async fn what_is_kept_is_bounded_and_who_is_behind_it_begins_anew() {
    let options = ServerOptions { events_bytes_max: 50 << 10, ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let mut reader = Reader::open(&server, SECRET, None).await;
    let mut ids = vec![reader.named("snapshot").await.id];
    for number in 0..3 {
        let text = format!("{number}{}", "x".repeat(20 << 10));
        server.fake.view.send_modify(|view| view.warnings = vec![WarningView { at_unix_s: number, text }]);
        ids.push(reader.named("delta").await.id);
    }
    let mut late = Reader::open(&server, SECRET, Some(&ids[0])).await;
    late.named("snapshot").await;
    let mut in_time = Reader::open(&server, SECRET, Some(&ids[2])).await;
    assert_eq!(in_time.named("delta").await.id, ids[3]);
}

#[tokio::test]
async fn a_stream_ends_with_its_session_and_with_the_server() {
    let server = start().await;
    let begun = server.post("/exo/v1/session", &format!(r#"{{"secret":"{SECRET}"}}"#)).await.json();
    let token = begun["token"].as_str().unwrap();
    let mut of_session = Reader::open(&server, token, None).await;
    let mut of_secret = Reader::open(&server, SECRET, None).await;
    of_session.named("snapshot").await;
    of_secret.named("snapshot").await;
    assert_eq!(server.admin("DELETE /exo/v1/sessions", "").await.status, 204);
    assert_eq!(of_session.named("end").await.data["reason"], "signed_out");
    warn(&server, "still here");
    of_secret.named("delta").await;
    server.stop.notify_one();
    assert_eq!(of_secret.named("end").await.data["reason"], "stopping");
}

#[tokio::test]
async fn downloads_are_told_to_the_owner_and_to_nobody_who_may_only_look() {
    let keys = vec![ApiKey::from_key("sesame")];
    let options = ServerOptions { api_keys: keys.into(), keys_see_cluster: true, ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    let mut owner = Reader::open(&server, SECRET, None).await;
    let told = loop {
        let event = owner.next().await.expect("an event");
        if event.name == "pulls" {
            break event.data;
        }
    };
    assert_eq!(told, server.admin("GET /exo/v1/pulls", "").await.json());
    assert_eq!((&told[0]["id"], &told[0]["state"]), (&"7".into(), &"fetching".into()));
    let mut viewer = Reader::open(&server, "sesame", None).await;
    let first = viewer.next().await.map(|event| event.name);
    server.fake.view.send_modify(|view| view.instances.clear());
    let second = viewer.next().await.map(|event| event.name);
    assert_eq!([first, second].map(Option::unwrap), ["snapshot", "delta"]);
}

#[tokio::test]
async fn whoever_may_only_look_hears_nothing_of_who_asks_to_join() {
    let keys = vec![ApiKey::from_key("sesame")];
    let options = ServerOptions { api_keys: keys.into(), keys_see_cluster: true, ..quick() };
    let server = start_with("127.0.0.1:0", options).await;
    warn(&server, "before");
    let asks = |id: &str| exo_api::AlertView { id: id.into(), rule: "join_waiting".into(), ..alert() };
    server.fake.view.send_modify(|view| view.alerts = vec![asks("join_waiting:n"), alert()]);
    let mut reader = Reader::open(&server, "sesame", None).await;
    let first = reader.named("snapshot").await;
    assert_eq!(first.data["cluster"]["warnings"], serde_json::json!([]));
    assert_eq!(first.data["cluster"]["alerts"], serde_json::json!([alert()]));
    let cluster = server.send("GET /exo/v1/cluster", &["authorization: Bearer sesame"], "").await.json();
    assert_eq!(cluster["alerts"], serde_json::json!([alert()]));
    server.fake.view.send_modify(|view| {
        view.alerts = vec![alert(), asks("join_waiting:m")];
        view.join_requests.push(exo_api::JoinRequestView {
            node: "n".into(),
            name: "stranger".into(),
            address: "192.0.2.1:1".into(),
            check_words: "a b c d".into(),
        });
        view.instances.clear();
    });
    let second = reader.named("delta").await;
    assert_eq!(second.data["changes"], serde_json::json!([{"kind": "instance_gone", "id": "i1a"}]));
    // Nor of what this node downloads.
    assert!(tokio::time::timeout(Duration::from_millis(300), reader.next()).await.is_err());
}

#[tokio::test]
async fn an_idle_cluster_of_three_takes_less_than_a_kilobyte_a_second() {
    let server = start_with("127.0.0.1:0", ServerOptions::new(SECRET)).await;
    let busy = |number: u64| {
        let node = |name: &str| {
            serde_json::json!({
                "id": format!("{name}{}", "x".repeat(52)), "name": name, "is_self": name == "a", "role": "admin",
                "status": "alive", "version": "1", "platform": "linux x86_64", "addresses": ["10.0.0.1:52416"],
                "mains_power": true, "process_bytes": 90_000_000 + number * 4096,
                "devices": [{
                    "id": "cpu", "kind": "cpu", "name": "P", "backend": "cpu/avx2", "compute_units": 8,
                    "memory_total_bytes": 16_u64 << 30, "memory_free_bytes": (8_u64 << 30) + (number % 7) * (3 << 20),
                    "memory_domain": {"id": "ram", "free_bytes": (8_u64 << 30) + (number % 7) * (3 << 20)},
                    "read_bytes_per_s": 1e10, "flops_per_s": 1e11, "support": "full", "support_reason": "",
                    "sensors": {"temperature_c": 40.0 + (number % 3) as f32, "utilisation": 0.02, "power_w": 9.0}
                }]
            })
        };
        let names = ["a", "b", "c"];
        let links: Vec<Value> = names
            .iter()
            .flat_map(|from| names.iter().map(move |to| (from, to)))
            .filter(|(from, to)| from != to)
            .map(|(from, to)| {
                serde_json::json!({
                    "from": from, "to": to, "rtt_ms": 0.2 + (number % 5) as f64 / 10.0, "rtt_samples": number,
                    "rtt_age_s": 0.5, "bytes_per_s": 1e8, "bandwidth_samples": 3, "bandwidth_age_s": number,
                    "transport": "tcp"
                })
            })
            .collect();
        let nodes: Vec<Value> = names.iter().map(|name| node(name)).collect();
        (
            serde_json::from_value(Value::Array(nodes)).unwrap(),
            serde_json::from_value(Value::Array(links)).unwrap(),
        )
    };
    let show = |number: u64| {
        server.fake.view.send_modify(|view| {
            (view.nodes, view.links) = busy(number);
            view.instances.clear();
        });
    };
    show(0);
    let mut reader = Reader::open(&server, SECRET, None).await;
    reader.named("snapshot").await;
    let began = tokio::time::Instant::now();
    let mut bytes = 0;
    let mut buffer = vec![0; 64 << 10];
    for number in 1..=80 {
        show(number);
        let until = began + Duration::from_millis(100 * number);
        while let Ok(read) = tokio::time::timeout_at(until, reader.stream.read(&mut buffer)).await {
            bytes += read.unwrap();
        }
    }
    assert!(bytes < 8_000, "{bytes} bytes in eight seconds");
}
