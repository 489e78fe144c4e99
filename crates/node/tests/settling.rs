//! A node answers while the weights of its model are still packed behind, and tells so.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::time::{Duration, Instant};

use crate::support::{TestNode, answer, place, request, spawn_as, until};
use exo_backend_cpu::Packing;

const PROMPTS: [&str; 2] = ["What is 17 + 25?", "Tell me a story about a fox."];

async fn texts(node: &TestNode) -> Vec<String> {
    let mut texts = Vec::new();
    for prompt in PROMPTS {
        texts.push(answer(node, request(prompt)).await.unwrap());
    }
    texts
}

/// Bytes of weights held, and of these on their way to memory.
async fn waiting(node: &TestNode) -> (u64, u64) {
    let view = node.facade.cluster().await.unwrap();
    let stage = &view.instances[0].stages[0];
    (stage.weight_bytes_held, stage.weight_bytes_waiting)
}

async fn packing(packing: Packing) -> TestNode {
    let node = spawn_as("settling", &[], |config| config.packing = packing).await;
    place(&node, 1).await;
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_answers_before_all_is_packed_with_the_text_of_one_that_packs_first() {
    let first = packing(Packing::AtOnce).await;
    let want = texts(&first).await;
    let (held, left) = waiting(&first).await;
    assert!(held > 4_000_000 && left == 0, "{left} of {held} bytes wait where nothing should");
    first.node.shutdown().await;

    // After the first weight it rests for longer than this test.
    let behind = packing(Packing::Behind { rest: Duration::from_secs(3600) }).await;
    assert_eq!(texts(&behind).await, want);
    let (all, left) = waiting(&behind).await;
    assert!(all == held && left > held / 2 && left <= held, "{left} of {all} bytes wait");
    let began = Instant::now();
    behind.node.shutdown().await;
    assert!(began.elapsed() < Duration::from_secs(10), "what rests held up the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_settles_and_says_so() {
    let node = packing(Packing::Behind { rest: Duration::from_millis(20) }).await;
    let before = texts(&node).await;
    until(Duration::from_secs(60), "all weights are packed", || async { waiting(&node).await.1 == 0 }).await;
    assert!(waiting(&node).await.0 > 4_000_000);
    assert_eq!(texts(&node).await, before);
    node.node.shutdown().await;
}
