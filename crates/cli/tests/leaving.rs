//! Who leaves in the middle of an answer: the client, in any phase and dialect, after which nothing is
//! computed for it; and the node, which says so.
//!
//! The model is all zeros with the built-in one's tokens: what it says is drawn evenly from what may come.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking
#![allow(clippy::print_stdout, reason = "numbers for whoever reads a failure")]
#![allow(clippy::disallowed_methods, reason = "a time in which nothing happens")]

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::{Node, SOON, Start, Zeros, cluster, wait_for};
use serde_json::{Value, json};

const CONTEXT: u32 = 4096;
const LOAD_MAX: Duration = Duration::from_secs(60);
/// Behind what is computed anyway: the step on its way.
const GONE_MAX: Duration = Duration::from_millis(200);
/// A step that reads a prompt while nobody decodes takes so long at most.
const CHUNK_MAX: Duration = Duration::from_secs(1);
/// How often it is tried: answers are drawn, and many end before their client leaves; and machines are busy.
const TRIES: u32 = 40;

/// Tools, and thoughts that the template opens unless it is told not to.
const TEMPLATE: &str = r#"{%- if tools %}<|im_start|>system
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}
{%- for call in m.tool_calls %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% else %}<think>
{% endif %}{% endif %}"#;

const ZEROS: Zeros = Zeros { context: CONTEXT, template: Some(TEMPLATE), ..Zeros::BUSY };

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dialect {
    Chat,
    Completions,
    Messages,
    Responses,
    OllamaChat,
    OllamaGenerate,
    Embeddings,
}

use Dialect::{Chat, Completions, Embeddings, Messages, OllamaChat, OllamaGenerate, Responses};

/// Where an answer is when its client leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Queued,
    Prefill,
    Decode,
    Reasoning,
    Call,
    Constrained,
    /// It is not streamed.
    Whole,
}

impl Dialect {
    fn path(self) -> &'static str {
        match self {
            Chat => "/v1/chat/completions",
            Completions => "/v1/completions",
            Messages => "/v1/messages",
            Responses => "/v1/responses",
            OllamaChat => "/api/chat",
            OllamaGenerate => "/api/generate",
            Embeddings => "/v1/embeddings",
        }
    }

    fn phases(self) -> Vec<Phase> {
        use Phase::{Call, Constrained, Decode, Prefill, Queued, Reasoning, Whole};
        match self {
            Chat | Messages | Responses | OllamaChat => {
                vec![Queued, Prefill, Decode, Reasoning, Call, Constrained, Whole]
            }
            OllamaGenerate => vec![Queued, Prefill, Decode, Reasoning, Constrained, Whole],
            Completions => vec![Queued, Prefill, Decode, Whole],
            Embeddings => vec![Queued, Whole],
        }
    }

    /// A request that comes into this phase and stays there for a while.
    fn body(self, phase: Phase, prompt: &str) -> Value {
        let mut body = self.plain(phase == Phase::Reasoning, prompt);
        body["model"] = json!("zeros");
        if self != Embeddings {
            body["stream"] = json!(phase != Phase::Whole);
        }
        // Such a value takes hundreds of tokens, whatever they are.
        let long = json!({"type": "array", "items": {"type": "boolean"}, "minItems": 400, "maxItems": 400});
        let object = json!({"type": "object", "properties": {"a": long}, "required": ["a"], "additionalProperties": false});
        match (phase, self) {
            (Phase::Call, _) => self.calls(&object, &mut body),
            (Phase::Constrained | Phase::Reasoning | Phase::Whole, Chat) => {
                body["response_format"] =
                    json!({"type": "json_schema", "json_schema": {"name": "n", "schema": object}});
            }
            (Phase::Constrained | Phase::Reasoning | Phase::Whole, Messages) => {
                body["output_config"] = json!({"format": {"type": "json_schema", "schema": object}});
            }
            (Phase::Constrained | Phase::Reasoning | Phase::Whole, Responses) => {
                body["text"] = json!({"format": {"type": "json_schema", "name": "n", "schema": object}});
            }
            (Phase::Constrained | Phase::Reasoning | Phase::Whole, OllamaChat | OllamaGenerate) => {
                body["format"] = object;
            }
            _ => {}
        }
        body
    }

    fn plain(self, thinks: bool, prompt: &str) -> Value {
        let messages = json!([{"role": "user", "content": prompt}]);
        match self {
            Chat if thinks => json!({"messages": messages}),
            Chat => json!({"messages": messages, "reasoning_effort": "none"}),
            Completions => json!({"prompt": prompt, "max_tokens": 1000, "ignore_eos": true}),
            Messages if thinks => {
                json!({"messages": messages, "max_tokens": 1000, "thinking": {"type": "enabled", "budget_tokens": 900}})
            }
            Messages => json!({"messages": messages, "max_tokens": 1000}),
            Responses if thinks => json!({"input": prompt}),
            Responses => json!({"input": prompt, "reasoning": {"effort": "none"}}),
            OllamaChat => json!({"messages": messages, "think": thinks}),
            OllamaGenerate => json!({"prompt": prompt, "think": thinks}),
            Embeddings => json!({"input": vec![prompt; 40], "pooling": "mean"}),
        }
    }

    fn calls(self, parameters: &Value, body: &mut Value) {
        let function = json!({"name": "f", "parameters": parameters});
        body["tools"] = match self {
            Messages => json!([{"name": "f", "strict": true, "input_schema": parameters}]),
            Responses => {
                json!([{"type": "function", "name": "f", "strict": true, "parameters": parameters}])
            }
            _ => json!([{"type": "function", "function": function}]),
        };
        match self {
            Messages => body["tool_choice"] = json!({"type": "any"}),
            Chat | Responses => body["tool_choice"] = json!("required"),
            // It has no word for it: the prompt would have to say it.
            _ => {}
        }
    }

    /// What shows that the phase has begun.
    fn sign(self, phase: Phase) -> &'static str {
        match (phase, self) {
            (Phase::Reasoning, Chat) => r#""reasoning_content":""#,
            (Phase::Reasoning, Messages) => r#""thinking_delta""#,
            (Phase::Reasoning, Responses) => "event: response.reasoning_text.delta",
            (Phase::Reasoning, _) => r#""thinking":""#,
            (Phase::Call, Chat) => r#""arguments":""#,
            (Phase::Call, Messages) => r#""input_json_delta""#,
            (Phase::Call, Responses) => "event: response.function_call_arguments.delta",
            (_, Chat | OllamaChat) => r#""content":""#,
            (_, Messages) => r#""text_delta""#,
            (_, Responses) => "event: response.output_text.delta",
            (_, OllamaGenerate) => r#""response":""#,
            (_, Completions | Embeddings) => r#""text":""#,
        }
    }

    /// The answer in this phase; `None` if it has ended before.
    fn begin(self, node: &Node, phase: Phase, number: u32) -> Option<TcpStream> {
        // None begins as another: nothing of it is kept.
        let words = if matches!(phase, Phase::Prefill) {
            1200
        } else if self == Embeddings {
            300
        } else {
            6
        };
        let prompt = format!("{number} {phase:?} {}", "the fox sleeps ".repeat(words / 3));
        let mut stream = node.send("POST", self.path(), Some(self.body(phase, &prompt).to_string()));
        if phase == Phase::Queued {
            return Some(stream);
        }
        if phase == Phase::Whole {
            wait_for("the request at work", SOON, || (requests(node) > 0).then_some(()));
            std::thread::sleep(Duration::from_millis(150));
            return (requests(node) > 0).then_some(stream);
        }
        let mut text = String::new();
        let is_there = |text: &str| match phase {
            Phase::Prefill => text.contains("\r\n\r\n"),
            _ => text.matches(self.sign(phase)).count() >= 5,
        };
        while !is_there(&text) {
            let mut bytes = [0; 4096];
            let n = stream.read(&mut bytes).unwrap();
            text.push_str(&String::from_utf8_lossy(&bytes[..n]));
            let ends = [r#""done":true"#, "[DONE]", "message_stop", "response.completed", "\r\n0\r\n\r\n"];
            if n == 0 || ends.iter().any(|end| text.contains(end)) {
                assert!(text.starts_with("HTTP/1.1 200"), "{self:?} {phase:?}: {text}");
                return None;
            }
        }
        Some(stream)
    }
}

fn load(node: &Node, what: &str) -> u64 {
    node.get("/exo/v1/cluster")["instances"][0]["load"][what].as_u64().unwrap_or_default()
}

fn requests(node: &Node) -> usize {
    node.get("/exo/v1/requests").as_array().unwrap().len()
}

/// A node that serves the model in so many slots.
fn node(slots: u32) -> (Node, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(Start::alone("leaving", &["--speculate", "off"]));
    node.add_zeros(folder.path(), "zeros", &ZEROS);
    let instance = node.place_as(&json!({"model": "zeros", "slots": slots}), LOAD_MAX);
    node.wait_settled(instance["id"].as_str().unwrap());
    (node, folder)
}

/// A token of the next in the queue: it needs the only slot.
fn next(node: &Node) -> Instant {
    node.post(
        "/v1/completions",
        &json!({"model": "zeros", "prompt": "x", "max_tokens": 1, "ignore_eos": true}),
    )
    .good();
    Instant::now()
}

/// How long after a client left the only slot was another's, less what that one takes by itself; `None` if
/// the answer had ended.
fn freed_after(node: &Node, dialect: Dialect, phase: Phase, number: u32) -> Option<Duration> {
    let own = (0..3).map(|_| {
        let began = Instant::now();
        next(node) - began
    });
    let own = own.min().unwrap();
    let client = dialect.begin(node, phase, number)?;
    std::thread::scope(|scope| {
        let next = scope.spawn(|| next(node));
        std::thread::sleep(Duration::from_millis(60));
        let left = Instant::now();
        drop(client);
        next.join().unwrap().checked_duration_since(left).map(|took| took.saturating_sub(own))
    })
}

/// How long after a client left the queue its request was in nobody's list.
fn unqueued_after(node: &Node, dialect: Dialect, number: u32) -> Option<Duration> {
    let blocker = Chat.begin(node, Phase::Constrained, number)?;
    let client = dialect.begin(node, Phase::Queued, number)?;
    wait_for("the request in the queue", SOON, || (requests(node) >= 2).then_some(()));
    let left = Instant::now();
    drop(client);
    wait_for("the request out of the queue", SOON, || (requests(node) == 1).then_some(()));
    let took = left.elapsed();
    drop(blocker);
    wait_for("the blocker to be gone", SOON, || (requests(node) == 0).then_some(()));
    Some(took)
}

fn check(dialect: Dialect) {
    let (node, _folder) = node(1);
    let mut numbers = 0..;
    for phase in dialect.phases() {
        let bound = match (phase, dialect) {
            (Phase::Prefill, _) | (_, Embeddings) => GONE_MAX + CHUNK_MAX,
            _ => GONE_MAX,
        };
        let mut tries = (0..TRIES).map(|_| {
            let number = numbers.next().unwrap();
            match phase {
                Phase::Queued => unqueued_after(&node, dialect, number),
                _ => freed_after(&node, dialect, phase, number),
            }
        });
        let mut seen = Vec::new();
        let is_soon = tries.any(|took| {
            seen.push(took);
            took.is_some_and(|took| took <= bound)
        });
        println!("{dialect:?} {phase:?}: {seen:?}");
        assert!(is_soon, "{dialect:?} {phase:?}: {seen:?} of {bound:?}");
        let used = ["running", "waiting", "pages_used"];
        wait_for("all to be given back", SOON, || {
            used.iter().all(|what| load(&node, what) == 0).then_some(())
        });
        assert_eq!(requests(&node), 0, "{dialect:?} {phase:?}");
    }
}

#[test]
fn nothing_is_computed_for_a_client_of_chat_that_left() {
    check(Chat);
}

#[test]
fn nothing_is_computed_for_a_client_of_completions_or_vectors_that_left() {
    check(Completions);
    check(Embeddings);
}

#[test]
fn nothing_is_computed_for_a_client_of_messages_that_left() {
    check(Messages);
}

#[test]
fn nothing_is_computed_for_a_client_of_responses_that_left() {
    check(Responses);
}

#[test]
fn nothing_is_computed_for_a_client_of_ollama_that_left() {
    check(OllamaChat);
    check(OllamaGenerate);
}

/// The rest of a stream, to the end of its connection.
fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn a_node_that_is_told_to_end_says_so_in_every_dialect() {
    let (mut node, _folder) = node(6);
    let all = [Chat, Completions, Messages, Responses, OllamaChat, OllamaGenerate];
    let streams = all.map(|dialect| {
        let phase = if dialect == Completions { Phase::Decode } else { Phase::Constrained };
        let mut body = dialect.body(phase, "The fox");
        if dialect == Completions {
            body["ignore_eos"] = json!(true);
            body["max_tokens"] = json!(4000);
        }
        node.send("POST", dialect.path(), Some(body.to_string()))
    });
    wait_for("all to run", SOON, || (load(&node, "running") == 6).then_some(()));
    assert!(node.signal("-TERM").success());
    for (dialect, stream) in all.into_iter().zip(streams) {
        let text = rest(stream);
        assert!(text.starts_with("HTTP/1.1 200"), "{dialect:?}: {text}");
        let last = &text[text.floor_char_boundary(text.len().saturating_sub(2500))..];
        assert!(text.ends_with("\r\n0\r\n\r\n"), "{dialect:?} was cut: {last}");
        assert!(last.contains("the node is shutting down and has ended the answer"), "{dialect:?}: {last}");
        let is_of_its_dialect = match dialect {
            Chat | Completions => {
                last.contains("event: error\n") && last.contains(r#""code":"shutting_down""#)
            }
            Messages => last.contains("event: error\n") && last.contains(r#""type":"error""#),
            Responses => last.contains("event: response.failed\n"),
            _ => last.contains(r#"{"error":"the node"#) && last.contains(r#""code":"shutting_down""#),
        };
        assert!(is_of_its_dialect, "{dialect:?}: {last}");
    }
}

/// One interrupt gives answers three seconds to end, and a second one none.
const AT_ONCE: Duration = Duration::from_secs(2);

#[test]
fn a_second_interrupt_ends_a_node_at_once_and_its_client_hears_it() {
    let (mut node, _folder) = node(1);
    let body = json!({"model": "zeros", "prompt": "The fox", "max_tokens": 4000, "ignore_eos": true, "stream": true});
    let stream = node.send("POST", "/v1/completions", Some(body.to_string()));
    wait_for("the answer to run", SOON, || (load(&node, "running") == 1).then_some(()));
    crate::support::send("-INT", node.pid());
    wait_for("the node to say that it ends", SOON, || {
        node.log().contains("leaving the cluster").then_some(())
    });
    let began = Instant::now();
    assert!(node.signal("-INT").success());
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    let text = rest(stream);
    assert!(
        text.contains("shutting_down"),
        "{}",
        &text[text.floor_char_boundary(text.len().saturating_sub(500))..]
    );
}

/// What tells a client that its answer is whole.
const WHOLE: [&str; 5] =
    ["[DONE]", "event: message_stop", "event: response.completed", r#""done":true"#, "\r\n0\r\n\r\n"];
/// From the death of a client's node until others compute nothing for it: they notice at once, and show it
/// within a second or two.
const FORGOTTEN_MAX: Duration = Duration::from_secs(6);

/// Three nodes, and a model over the first two.
fn on_two_of_three() -> (Vec<Node>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let nodes = cluster("dies", &["one", "two", "three"]);
    nodes[0].add_zeros(folder.path(), "zeros", &ZEROS);
    let placed = nodes[0]
        .post(
            "/exo/v1/instances",
            &json!({"model": "zeros", "slots": 8, "nodes_min": 2, "exclude": ["three"]}),
        )
        .good();
    let id = placed.json()["id"].as_str().unwrap().to_owned();
    wait_for("the instance to serve", LOAD_MAX, || {
        (nodes[2].instance(&id)?["state"]["kind"] == "ready").then_some(())
    });
    (nodes, folder)
}

/// All that a client sees is the end of its connection, and never a part of an answer as a whole one. What
/// can be gone on with is, for whoever shows the secret; until then nothing is computed for it either.
#[test]
fn of_a_node_that_dies_the_others_compute_nothing_on_and_each_client_sees_that_its_answer_is_no_whole_one() {
    let (mut nodes, _folder) = on_two_of_three();
    let streams = [Chat, Completions, Messages, Responses, OllamaChat, OllamaGenerate];
    let whole = [Chat, Messages, Responses, OllamaChat].map(|dialect| (dialect, Phase::Whole));
    let asked: Vec<_> =
        streams.map(|dialect| (dialect, Phase::Constrained)).into_iter().chain(whole).collect();
    let asked = asked.into_iter().map(|(dialect, phase)| {
        let mut body = dialect.body(phase, &format!("{dialect:?} {phase:?}"));
        if dialect == Completions {
            body["max_tokens"] = json!(2400);
        }
        (dialect, phase, nodes[2].send("POST", dialect.path(), Some(body.to_string())))
    });
    let asked: Vec<_> = asked.collect();
    // Eight run, two wait.
    wait_for("all to be at work", SOON, || {
        let (running, waiting) = (load(&nodes[0], "running"), load(&nodes[0], "waiting"));
        (running == 8 && waiting == 2 && load(&nodes[0], "pages_used") > 0).then_some(())
    });
    nodes[2].kill();
    let killed = Instant::now();
    for node in &nodes[..2] {
        wait_for("all to be given back", FORGOTTEN_MAX, || {
            let used = ["running", "waiting", "pages_used"];
            used.iter().all(|what| load(node, what) == 0).then_some(())
        });
        assert_eq!(requests(node), 0);
    }
    println!("given back after {:?}", killed.elapsed());
    // What members say of themselves comes every two seconds.
    wait_for("all gauges to be at rest", SOON, || {
        let gauges = nodes[0].call("GET", "/metrics?scope=cluster", None).body;
        let is_at_rest = |gauge: &&str| {
            let mut lines = gauges.lines().filter(|line| line.starts_with(*gauge)).peekable();
            lines.peek().is_some() && lines.all(|line| line.ends_with(" 0.0"))
        };
        let all = ["exo_sequences_running{", "exo_sequences_waiting{", "exo_kv_used_ratio{"];
        all.iter().all(is_at_rest).then_some(())
    });
    let mut tickets = Vec::new();
    for (dialect, phase, mut stream) in asked {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        assert!(!WHOLE.iter().any(|sign| text.contains(sign)), "{dialect:?} {phase:?}: {text}");
        let ticket = text.lines().find_map(|line| line.strip_prefix("exo-resume: "));
        // One that waited has no head, nor has one that was to come whole.
        assert!(ticket.is_none() || phase != Phase::Whole, "{dialect:?} {phase:?}: {text}");
        tickets.extend(ticket.map(|ticket| ticket.trim().to_owned()));
    }
    assert!(!tickets.is_empty());
    let node = &nodes[0];
    std::thread::scope(|scope| {
        for ticket in tickets {
            scope.spawn(move || {
                let rest = gone_on_with(node, &ticket, None);
                let is_whole = WHOLE.iter().any(|sign| rest.contains(sign));
                assert!(rest.starts_with("HTTP/1.1 200") && is_whole, "{rest}");
            });
        }
    });
    next(&nodes[1]);
}

/// The rest of an answer of a node that is no more, as this one gives it.
fn gone_on_with(node: &Node, ticket: &str, last: Option<&str>) -> String {
    let request = ticket.split('.').next().unwrap();
    let last = last.map(|last| format!("Last-Event-ID: {last}\r\n")).unwrap_or_default();
    let asked = format!(
        "GET /v1/requests/{request} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nexo-resume: {ticket}\r\n{last}\r\n",
        node.address
    );
    let mut stream = TcpStream::connect(&node.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    std::io::Write::write_all(&mut stream, asked.as_bytes()).unwrap();
    rest(stream)
}

/// `end` ends the client's node in mid-answer; the other goes on with what it was asked.
fn goes_on_elsewhere(group: &str, end: impl FnOnce(&mut Node)) {
    let folder = tempfile::tempdir().unwrap();
    let mut nodes = cluster(group, &["one", "two"]);
    nodes[0].add_zeros(folder.path(), "zeros", &ZEROS);
    let placed = nodes[0].post("/exo/v1/instances", &json!({"model": "zeros", "pins": ["one"]})).good();
    let id = placed.json()["id"].as_str().unwrap().to_owned();
    wait_for("the instance to serve", LOAD_MAX, || {
        (nodes[1].instance(&id)?["state"]["kind"] == "ready").then_some(())
    });
    let body = json!({"model": "zeros", "prompt": "Once", "max_tokens": 3500, "ignore_eos": true, "seed": 3, "stream": true});
    let stream = nodes[1].send("POST", "/v1/completions", Some(body.to_string()));
    wait_for("the answer at work", SOON, || (load(&nodes[1], "running") == 1).then_some(()));
    end(&mut nodes[1]);
    let text = rest(stream);
    let told = text.lines().find(|line| line.contains("shutting_down")).unwrap_or_else(|| panic!("{text}"));
    let ticket = text.lines().find_map(|line| line.strip_prefix("exo-resume: ")).unwrap().trim();
    let request = ticket.split('.').next().unwrap();
    assert!(told.contains(&format!("GET /v1/requests/{request}")), "{told}");
    let last = text.lines().filter_map(|line| line.strip_prefix("id: ")).next_back().unwrap();
    let rest = gone_on_with(&nodes[0], ticket, Some(last));
    let next = rest.lines().find_map(|line| line.strip_prefix("id: 0:")).unwrap_or_else(|| panic!("{rest}"));
    let had: u32 = last.strip_prefix("0:").unwrap().parse().unwrap();
    // A token that is part of a sign, or is no text, makes no event of its own.
    assert!((had + 1..=had + 8).contains(&next.parse::<u32>().unwrap()), "{had} and then {rest}");
    assert!(rest.contains("[DONE]"), "{rest}");
}

#[test]
fn what_a_node_that_ends_says_of_an_answer_comes_true_at_another_member() {
    goes_on_elsewhere("ends-here", |node| assert!(node.signal("-TERM").success()));
}

#[test]
fn it_comes_true_too_where_a_second_interrupt_or_a_client_of_the_api_ends_the_node() {
    goes_on_elsewhere("twice-interrupted", |node| {
        assert!(
            std::process::Command::new("kill")
                .args(["-INT", &node.pid().to_string()])
                .status()
                .unwrap()
                .success()
        );
        assert!(node.signal("-INT").success());
    });
    goes_on_elsewhere("asked-to-end", |node| {
        let asked = node.post("/exo/v1/shutdown", &json!({}));
        assert_eq!(asked.status, 204, "{}", asked.body);
        let ended = node.ended_within(SOON);
        assert!(ended.success(), "{ended}");
    });
}
