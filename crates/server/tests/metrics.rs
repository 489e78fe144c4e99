//! `/metrics` through a real listener: who may read it, in which format, and of whom.

use std::time::Duration;

use crate::common::{self, SECRET, start, telemetry};
use exo_types::NodeId;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

fn key() -> String {
    format!("authorization: Bearer {SECRET}")
}

#[tokio::test]
async fn metrics_need_a_key_or_the_secret_also_on_loopback() {
    let server = start().await;
    *server.fake.telemetry.lock().unwrap() = telemetry();
    for path in ["/metrics", "/metrics?scope=cluster", "/metrics/targets"] {
        assert_eq!(server.get(path).await.error(), "401 missing_api_key", "{path}");
        let wrong = server.send(&format!("GET {path}"), &["authorization: Bearer guess"], "").await;
        assert_eq!(wrong.error(), "401 invalid_api_key", "{path}");
        let right = server.send(&format!("GET {path}"), &[&key()], "").await;
        assert_eq!(right.status, 200, "{path}: {}", right.body);
    }
}

#[tokio::test]
async fn a_setting_opens_metrics_and_nothing_else() {
    let options = exo_server::ServerOptions { metrics_open: true, ..common::quick() };
    let server = common::start_with("127.0.0.1:0", options).await;
    assert_eq!(server.get("/metrics").await.status, 200);
    assert_eq!(server.get("/exo/v1/telemetry").await.error(), "401 missing_local_secret");
}

/// It asks again and again and reads nothing: what fills the sockets is the system's, and then it has until
/// the bound of a write.
#[tokio::test]
async fn a_scraper_that_never_reads_is_cut_off_and_its_seat_is_free_again() {
    let options = exo_server::ServerOptions {
        metrics_open: true,
        connections_max: 1,
        write_timeout: Duration::from_millis(300),
        // Not what ends it here.
        header_timeout: Duration::from_secs(120),
        ..common::quick()
    };
    let server = common::start_with("127.0.0.1:0", options).await;
    *server.fake.telemetry.lock().unwrap() = telemetry();
    let mut scraper = TcpStream::connect(server.address).await.unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {}\r\n\r\n", server.address);
    let mut asked = 0;
    let asking = async {
        while scraper.write_all(request.as_bytes()).await.is_ok() {
            asked += 1;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), asking).await.expect("it is not served for ever");
    assert!(asked > 100, "it is served while the sockets take it: {asked}");
    assert_eq!(server.get("/metrics").await.status, 200, "who reads is served, on the only seat");
}

#[tokio::test]
async fn the_format_is_the_one_that_the_scraper_names() {
    let server = start().await;
    *server.fake.telemetry.lock().unwrap() = telemetry();
    let plain = server.send("GET /metrics", &[&key()], "").await;
    assert!(plain.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    assert!(plain.body.contains("# TYPE exo_transfer_received_bytes_total counter\n"), "{}", plain.body);
    assert!(plain.body.contains("exo_transfer_received_bytes_total 7\n") && !plain.body.contains("# EOF"));
    let accept = "accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
    let open = server.send("GET /metrics", &[&key(), accept], "").await;
    assert!(open.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    assert!(open.body.contains("# TYPE exo_transfer_received_bytes counter\n"), "{}", open.body);
    assert!(open.body.ends_with("# EOF\n"));
}

#[tokio::test]
async fn a_node_of_the_cluster_is_asked_for_by_its_id_and_each_is_a_target() {
    let server = start().await;
    *server.fake.telemetry.lock().unwrap() = telemetry();
    let id = NodeId([1; 32]).to_full();
    let get = async |path: String| server.send(&format!("GET {path}"), &[&key()], "").await;
    let one = get(format!("/metrics?node={id}")).await;
    assert!(one.body.contains("exo_node_up 1.0\n"), "{}", one.body);
    let all = get("/metrics?scope=cluster".to_owned()).await;
    assert!(all.body.contains("exo_node_up{node=\"a\"} 1.0\n"), "{}", all.body);
    assert_eq!(get("/metrics?node=stranger".to_owned()).await.error(), "404 not_found");
    for wrong in ["scope=all", "nodes=a", &format!("scope=cluster&node={id}")] {
        assert_eq!(get(format!("/metrics?{wrong}")).await.error(), "400 invalid_value", "{wrong}");
    }
    let targets = get("/metrics/targets".to_owned()).await.json();
    let labels = &targets[0]["labels"];
    assert_eq!(
        (labels["__param_node"].as_str(), labels["instance"].as_str()),
        (Some(id.as_str()), Some("a"))
    );
    assert!(targets[0]["targets"][0].as_str().unwrap().contains(':'), "{targets}");
}
