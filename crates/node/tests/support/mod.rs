//! Nodes in one process, on loopback, each with its own data folder.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "test support: each binary uses a part, and a failure ends the test"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_api::{
    ChatMessage, Facade, GenerateError, GenerateEvent, GenerateRequest, InstanceState, PlaceRequest, Prompt,
};
use exo_node::{Host, Node, NodeConfig, SystemHost, start};
use exo_types::{Principal, RequestId, SamplingParams};
use futures_util::StreamExt;

/// A node with the folder it lives in.
pub struct TestNode {
    pub node: Node,
    pub facade: Arc<dyn Facade>,
    pub dir: tempfile::TempDir,
}

/// A node's settings in a fresh folder: loopback, any port, no discovery.
pub fn config(name: &str, dir: &tempfile::TempDir, peers: &[String]) -> NodeConfig {
    NodeConfig {
        device: Default::default(),
        worker: None,
        data_dir: dir.path().to_owned(),
        name: name.to_owned(),
        group: String::new(),
        listen: "127.0.0.1:0".parse().unwrap(),
        peers: peers.to_vec(),
        discovery: false,
        is_private: false,
        trust_closed: false,
        has_token: false,
        threads: Some(1),
        cores: None,
        compute_share: Default::default(),
        cpu_isa: None,
        mmap: false,
        packing: exo_backend_cpu::Packing::BEHIND,
        memory_max_bytes: Some(2 << 30),
        disk: exo_store::DiskLimits { reserve_bytes: Some(0), quota_bytes: None },
        unload_idle_after: None,
        stream_pause_max: Duration::from_secs(120),
        context_tokens: 512,
        slots: 4,
        cache_tokens: None,
        kv: Default::default(),
        embedding_pooling: None,
        speculation: exo_node::Speculation::Lookup,
        draft: None,
        log: Default::default(),
        doctor: Default::default(),
    }
}

pub async fn spawn(name: &str, peers: &[String]) -> TestNode {
    spawn_as(name, peers, |_| {}).await
}

/// With settings of its own.
pub async fn spawn_as(name: &str, peers: &[String], change: impl FnOnce(&mut NodeConfig)) -> TestNode {
    spawn_on(Arc::new(SystemHost), name, peers, change).await
}

/// On a machine of its own.
pub async fn spawn_on(
    host: Arc<dyn Host>,
    name: &str,
    peers: &[String],
    change: impl FnOnce(&mut NodeConfig),
) -> TestNode {
    // `RUST_LOG=exo_node=debug cargo test …` shows what the nodes do.
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(name, &dir, peers);
    change(&mut config);
    let node = start(config, host).await.unwrap();
    TestNode { facade: node.facade(), node, dir }
}

/// Nodes that find each other through the first one.
pub async fn cluster(count: usize) -> Vec<TestNode> {
    cluster_on(count, |_| Arc::new(SystemHost)).await
}

/// The same, on the machines that `host` gives them.
pub async fn cluster_on(count: usize, host: impl Fn(usize) -> Arc<dyn Host>) -> Vec<TestNode> {
    let mut nodes = vec![spawn_on(host(0), "node-0", &[], |_| {}).await];
    let address = nodes[0].node.listen_addr().to_string();
    for i in 1..count {
        let peers = std::slice::from_ref(&address);
        nodes.push(spawn_on(host(i), &format!("node-{i}"), peers, |_| {}).await);
    }
    until(Duration::from_secs(20), "every node sees all alive", || {
        let nodes = &nodes;
        async move {
            for n in nodes {
                let view = n.facade.cluster().await.unwrap();
                let alive = view
                    .nodes
                    .iter()
                    .filter(|n| n.status == exo_api::NodeStatus::Alive && !n.devices.is_empty());
                if alive.count() < nodes.len() || view.epoch.is_none() {
                    return false;
                }
            }
            true
        }
    })
    .await;
    nodes
}

/// Waits for a condition with a bound.
pub async fn until<F: Future<Output = bool>>(max: Duration, what: &str, mut check: impl FnMut() -> F) {
    let start = Instant::now();
    while !check().await {
        assert!(start.elapsed() < max, "not within {max:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Places the built-in model and waits until it serves.
pub async fn place(node: &TestNode, nodes_min: u32) -> exo_api::InstanceView {
    let request = PlaceRequest { model: "demo".to_owned(), nodes_min: Some(nodes_min), ..Default::default() };
    let placed = node.facade.place(request).await.unwrap();
    let id = placed.id.clone();
    let mut last = None;
    let start = Instant::now();
    loop {
        let view = node.facade.cluster().await.unwrap();
        if let Some(i) = view.instances.into_iter().find(|i| i.id == id) {
            if i.state == InstanceState::Ready {
                return i;
            }
            last = Some(i);
        }
        assert!(start.elapsed() < Duration::from_secs(30), "not ready: {last:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub fn request(prompt: &str) -> GenerateRequest {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    GenerateRequest {
        endpoint: exo_api::Endpoint::Chat,
        resumable: None,
        request: RequestId(u128::from(std::process::id()) << 64 | u128::from(n)),
        model: "demo".to_owned(),
        prompts: vec![Prompt::Chat {
            messages: vec![ChatMessage {
                role: "user".to_owned(),
                content: prompt.to_owned(),
                ..Default::default()
            }],
        }],
        choices: 1,
        sampling: SamplingParams::greedy(),
        format: exo_api::AnswerFormat::Text,
        tools: None,
        reasoning: exo_api::Reasoning::Default,
        max_tokens: Some(48),
        context_tokens_min: None,
        stop: Vec::new(),
        ignore_eos: false,
        echo: false,
        truncates: false,
        left_out_tools: Vec::new(),
        principal: Principal::LOCAL,
        queue_wait_max: Duration::from_secs(60),
    }
}

/// The whole answer, or how it failed.
pub async fn answer(node: &TestNode, request: GenerateRequest) -> Result<String, GenerateError> {
    let mut stream = node.facade.generate(request).await?;
    let mut text = String::new();
    loop {
        let next =
            tokio::time::timeout(Duration::from_secs(60), stream.next()).await.expect("a sign of life");
        match next.expect("the stream ends with Done or an error")? {
            GenerateEvent::Delta(delta) => text.push_str(&delta.text),
            GenerateEvent::Done(_) => return Ok(text),
            _ => {}
        }
    }
}
