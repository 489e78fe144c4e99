//! A node that keeps its layers in the next placement loads nothing, and answers as if it had.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

mod support;

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use exo_api::{InstanceState, InstanceView};
use exo_node::{Host, SystemHost};
use exo_types::DeviceFacts;
use support::{TestNode, answer, cluster_on, place, request, until};

/// A machine of which the speed is known: how the layers are cut is no matter of chance.
struct FixedRateHost(f64);

impl Host for FixedRateHost {
    fn mains_power(&self) -> Option<bool> {
        SystemHost.mains_power()
    }

    fn processor(&self) -> DeviceFacts {
        DeviceFacts { read_bytes_per_s: Some(self.0), ..SystemHost.processor() }
    }

    fn platform(&self) -> String {
        SystemHost.platform()
    }

    fn process_bytes(&self) -> Option<u64> {
        SystemHost.process_bytes()
    }
}

/// What all nodes of this process told of their shards.
static TOLD: OnceLock<Arc<Mutex<Vec<u8>>>> = OnceLock::new();

struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn listen() {
    let told = TOLD.get_or_init(Arc::default);
    tracing_subscriber::fmt()
        .with_env_filter("events::shard=info")
        .with_ansi(false)
        .with_writer(|| Lines(told.clone()))
        .init();
}

/// Events of shards with both words.
fn told(what: &str, layers: &str) -> usize {
    let text = String::from_utf8(TOLD.get().unwrap().lock().unwrap().clone()).unwrap();
    let layers = format!("layers={layers}");
    text.lines().filter(|line| line.contains(what) && line.split(' ').any(|word| word == layers)).count()
}

/// Node and layers of each stage.
fn stages(instance: &InstanceView) -> Vec<(String, String)> {
    instance
        .stages
        .iter()
        .map(|s| (s.node_name.clone(), format!("{}..{}", s.layers.start, s.layers.end)))
        .collect()
}

async fn placed_again(node: &TestNode, before: &InstanceView) -> InstanceView {
    let next = |node: &TestNode| {
        let facade = node.facade.clone();
        async move {
            let view = facade.cluster().await.unwrap();
            view.instances.into_iter().find(|i| i.id == before.id && i.placement != before.placement)
        }
    };
    until(Duration::from_secs(30), "the next generation serves", || async {
        next(node).await.is_some_and(|i| i.state == InstanceState::Ready)
    })
    .await;
    next(node).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_that_keeps_its_layers_loads_nothing_and_answers_the_same() {
    listen();
    // Each is so much faster than the next that no measured round trip matters: the first takes all it may,
    // the second the rest.
    let mut nodes = cluster_on(3, |i| Arc::new(FixedRateHost([1e11, 1e10, 1e9][i]))).await;
    let before = place(&nodes[0], 2).await;
    let of =
        |node: &str| stages(&before).into_iter().find(|(name, _)| name == node).map(|(_, layers)| layers);
    let (Some(kept), Some(moved)) = (&of("node-0"), &of("node-1")) else { panic!("{before:?}") };
    assert_eq!((told("loading", kept), told("loading", moved)), (1, 1));
    // Pages of it are kept, under names that the next scheduler gives too.
    let prompts = ["What is 17 + 25?", "Put 9, 3, 7 in order."];
    let mut alone = Vec::new();
    for prompt in prompts {
        alone.push(answer(&nodes[0], request(prompt)).await.unwrap());
    }

    nodes.remove(1).node.shutdown().await;
    let after = placed_again(&nodes[0], &before).await;
    let other = |name: String| if name == "node-1" { "node-2".to_owned() } else { name };
    let expected: Vec<_> = stages(&before).into_iter().map(|(name, layers)| (other(name), layers)).collect();
    assert_eq!(stages(&after), expected);
    for _ in 0..2 {
        for (prompt, expected) in prompts.iter().zip(&alone) {
            assert_eq!(&answer(&nodes[0], request(prompt)).await.unwrap(), expected, "{prompt}");
        }
    }
    assert_eq!(
        (told("loading", kept), told("kept in memory", kept)),
        (1, 1),
        "the part of the first stayed where it was"
    );
    assert_eq!(
        (told("loading", moved), told("kept in memory", moved)),
        (2, 0),
        "the other is on another node"
    );
    for node in nodes {
        node.node.shutdown().await;
    }
}
