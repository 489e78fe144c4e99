//! Shards on graphics processors compute in processes of their own: what becomes of a node whose worker is
//! killed, hangs, or is left behind. On the software Vulkan device, so that every machine can check it.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::time::{Duration, Instant};

use crate::support::{
    Node, SOON, Start, answers, comes_back, exo, finish, flat, is_alive, long_answer, rest_of, send, skip,
    stdout, stream, stream_until, text_of, wait_for, with, worker, workers_of,
};
use serde_json::{Value, json};

/// Of an answer that outlasts what happens to its worker: a graphics card that is a program takes tens of
/// milliseconds for each.
const TOKENS: u32 = 120;
/// What the loss of a worker adds to an answer: another one is started, its driver compiles, and the history
/// is read again. The answer itself takes as long as the machine takes for its tokens.
const LOSS_MAX: Duration = Duration::from_secs(10);
/// What a node is told to wait for a step of a worker that hangs.
const STEP_MAX: Duration = Duration::from_secs(6);
/// For a worker to end when its node has.
const LEFT_MAX: Duration = Duration::from_secs(5);

/// A node that computes through Vulkan, if this machine can.
fn vulkan(test: &str, flags: &[&str]) -> Option<Node> {
    let devices = finish(&mut exo(&["devices", "--json"]), Duration::from_secs(60));
    let devices: Vec<Value> = serde_json::from_str(&stdout(&devices)).unwrap();
    if !devices.iter().any(|d| d["backends"].to_string().contains("vulkan:")) {
        skip(test, "no usable Vulkan device (Debian: mesa-vulkan-drivers)");
        return None;
    }
    Some(Node::start(Start::alone(test, &[&["--backend", "vulkan"], flags].concat())))
}

#[test]
fn an_answer_goes_on_when_its_worker_is_killed() {
    let Some(mut node) = vulkan("worker-killed", &[]) else { return };
    let instance = node.place("demo", 1);
    assert!(instance["stages"][0]["device"].as_str().unwrap().starts_with("vulkan-"), "{instance:#}");
    let began = Instant::now();
    let expected = long_answer(&node, TOKENS);
    let undisturbed = began.elapsed();
    let (first, stream) = (worker(&node), stream_until(&node, TOKENS, 3));
    send("-KILL", first);
    let killed = Instant::now();
    let events = rest_of(stream);
    let took = killed.elapsed();
    assert!(
        took < undisturbed + LOSS_MAX,
        "the answer ended after {took:?}, an undisturbed one after {undisturbed:?}"
    );
    assert_eq!(text_of(&events), expected, "{}", node.log());
    let again = comes_back(&node, &instance["placement"]);
    assert!(again["stages"][0]["device"].as_str().unwrap().starts_with("vulkan-"), "{again:#}");
    answers(&node);
    node.assert_running();
    assert_ne!(worker(&node), first);
}

#[test]
fn a_worker_has_no_socket_its_node_no_driver_and_neither_an_unloaded_model_nor_a_node_that_ends_leaves_one() {
    let Some(mut node) = vulkan("worker-files", &[]) else { return };
    node.place("demo", 1);
    let pid = worker(&node);
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let targets: Vec<_> = files.filter_map(|f| std::fs::read_link(f.path()).ok()).collect();
    assert!(!targets.is_empty());
    assert!(targets.iter().all(|t| !t.to_string_lossy().starts_with("socket:")), "{targets:?}");
    let mapped = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    assert!(mapped(pid).contains("libvulkan"), "the worker computes through it");
    assert!(!mapped(node.pid()).contains("libvulkan"), "only workers load a driver");

    assert!(node.exo(&["unload", "demo"]).status.success());
    wait_for("the worker's end", LEFT_MAX, || (!is_alive(pid)).then_some(()));

    node.place("demo", 1);
    let (pid, _stream) = (worker(&node), stream(&node));
    assert!(node.signal("-INT").success(), "{}", node.log());
    assert!(!is_alive(pid), "the node ended before its worker");
}

#[test]
fn a_node_that_is_killed_leaves_no_worker() {
    let Some(mut node) = vulkan("worker-orphan", &[]) else { return };
    node.place("demo", 1);
    let (pid, stream) = (worker(&node), stream(&node));
    node.kill();
    drop(stream);
    wait_for("the worker's end", LEFT_MAX, || (!is_alive(pid)).then_some(()));
}

#[test]
fn a_worker_that_hangs_is_cut_off_within_the_deadline_of_a_step_and_its_answer_goes_on() {
    let step_max = STEP_MAX.as_secs().to_string();
    let Some(mut node) = vulkan("worker-hangs", &["--step-max-s", &step_max]) else { return };
    let instance = node.place("demo", 1);
    let began = Instant::now();
    let expected = long_answer(&node, TOKENS); // the driver has compiled what a step needs
    let undisturbed = began.elapsed();
    let (pid, stream) = (worker(&node), stream_until(&node, TOKENS, 3));
    send("-STOP", pid);
    let stopped = Instant::now();
    let events = rest_of(stream);
    let took = stopped.elapsed();
    assert_eq!(text_of(&events), expected, "{}", node.log());
    assert!(
        took > Duration::from_secs(2) && took < undisturbed + STEP_MAX + LOSS_MAX,
        "the answer ended after {took:?}, an undisturbed one after {undisturbed:?}"
    );
    // The same placement: nothing but a step was lost.
    let again = wait_for("the model ready again", SOON, || {
        let instance = node.get("/exo/v1/cluster")["instances"][0].clone();
        (instance["state"]["kind"] == "ready").then_some(instance)
    });
    assert_eq!(again["placement"], instance["placement"]);
    assert!(!is_alive(pid), "a process that hangs is ended");
    answers(&node);
    node.assert_running();
}

#[test]
fn a_device_lost_again_and_again_is_given_up_with_its_reason_and_the_processor_answers() {
    let Some(mut node) = vulkan("worker-again", &[]) else { return };
    let mut instance = node.place("demo", 1);
    for _ in 0..4 {
        send("-KILL", worker(&node));
        instance = comes_back(&node, &instance["placement"]);
    }
    let devices = wait_for("the device to be given up", SOON, || {
        let devices = node.get("/exo/v1/cluster")["nodes"][0]["devices"].clone();
        (devices.as_array()?.len() == 2).then_some(devices)
    });
    assert_eq!((&devices[0]["support"], &devices[1]["support"]), (&"unsupported".into(), &"full".into()));
    let reason = devices[0]["support_reason"].as_str().unwrap();
    assert!(reason.contains("lost 4 times within 10 minutes") && reason.contains("signal: 9"), "{reason}");
    // Placed there once more perhaps, before the node had given it up.
    let at = || node.get("/exo/v1/cluster")["instances"][0]["stages"][0]["device"].clone();
    wait_for("the model on the processor", SOON, || (at() == "cpu").then_some(()));
    answers(&node);
    assert!(workers_of(node.pid()).is_empty(), "nothing is left on the device");
    let status = flat(&stdout(&node.exo(&["status"])));
    assert!(status.contains("in quarantine for another 6 h"), "{status}");
    node.assert_running();
}

#[test]
fn a_worker_holds_answers_to_schemas_and_calls_to_their_tools() {
    let Some(node) = vulkan("worker-grammars", &[]) else { return };
    let instance = node.place("demo", 1);
    assert!(instance["stages"][0]["device"].as_str().unwrap().starts_with("vulkan-"), "{instance:#}");
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": false});
    let check = |text: &Value| {
        let value: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
        assert!(value["city"] == "Rome" || value["city"] == "Oslo", "{value}");
        assert!((1..=9).contains(&value["days"].as_u64().unwrap()), "{value}");
    };
    // Greedy, logits come back only where the likeliest token is refused; else they all do.
    for temperature in [0, 1] {
        let ask = |more: Value| {
            let body = json!({"model": "demo", "max_tokens": 120, "temperature": temperature, "seed": 3,
                "messages": [{"role": "user", "content": "What is the weather in Rome?"}]});
            node.post("/v1/chat/completions", &with(body, more)).good().json()["choices"][0].clone()
        };
        let format = json!({"type": "json_schema", "json_schema": {"name": "weather", "schema": schema}});
        check(&ask(json!({"response_format": format}))["message"]["content"]);
        let function = json!({"name": "get_weather", "strict": true, "parameters": schema});
        let called =
            ask(json!({"tools": [{"type": "function", "function": function}], "tool_choice": "required",
            "parallel_tool_calls": false}));
        assert_eq!(called["finish_reason"], "tool_calls", "{called}");
        check(&called["message"]["tool_calls"][0]["function"]["arguments"]);
    }
}
