//! Real nodes in one process: one answers alone, three answer together, one is lost.

use std::time::{Duration, Instant};

use crate::support::{answer, cluster, place, request, spawn, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_alone_answers_with_the_model_it_carries() {
    let start = Instant::now();
    let node = spawn("solo", &[]).await;
    assert!(start.elapsed() < Duration::from_secs(5), "ready after {:?}", start.elapsed());
    let text = answer(&node, request("What is 17 + 25?")).await.unwrap();
    assert!(!text.is_empty());
    node.node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_nodes_give_the_text_of_one_and_each_holds_its_share() {
    let solo = spawn("solo", &[]).await;
    let prompts = ["What is 17 + 25?", "Put 9, 3, 7 in order.", "Tell me a story about a fox."];
    let mut alone = Vec::new();
    for prompt in prompts {
        alone.push(answer(&solo, request(prompt)).await.unwrap());
    }
    solo.node.shutdown().await;

    let nodes = cluster(3).await;
    let instance = place(&nodes[1], 3).await;
    assert_eq!(instance.stages.len(), 3);
    for (prompt, expected) in prompts.iter().zip(&alone) {
        // Asked at a node that is not the first stage too.
        for node in [&nodes[0], &nodes[2]] {
            assert_eq!(&answer(node, request(prompt)).await.unwrap(), expected, "{prompt}");
        }
    }
    until(Duration::from_secs(5), "every stage reports what it holds", || async {
        let view = nodes[0].facade.cluster().await.unwrap();
        view.instances
            .iter()
            .flat_map(|i| &i.stages)
            .all(|s| s.weight_bytes_held > 0 && s.time_share.is_some())
    })
    .await;
    let view = nodes[0].facade.cluster().await.unwrap();
    for stage in &view.instances[0].stages {
        // Norms become f32 and the rope table is held by each stage: a few KiB beside the stored bytes.
        assert!(stage.weight_bytes_held <= stage.weight_bytes + (16 << 10), "{stage:?}");
    }
    for node in nodes {
        node.node.shutdown().await;
    }
}
