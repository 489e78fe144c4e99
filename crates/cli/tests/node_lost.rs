//! The node that answers a client dies: the client gets the rest of its answer from another one.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{
    Answer, Node, SOON, Start, another_model, begin, cluster, colours, exo, flat, good, known, long_answer,
    pieces_of, rest_of, resumed_of, send, stderr, stdout, stream_of, stream_until, text_of, wait_for,
};
use serde_json::{Value, json};

/// Of an answer: the demo model takes a second for them.
const TOKENS: u32 = 1800;
/// From asking another node to the end of the answer: noticing the loss, placing its stage again, and the
/// rest of the tokens.
const GOES_ON_MAX: Duration = Duration::from_secs(10);

/// What is left of a stream whose node was killed, with whole events only.
fn left((mut stream, mut text): (TcpStream, String)) -> String {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    text.push_str(&String::from_utf8_lossy(&rest));
    text
}

/// The value of the head's `exo-resume`.
fn ticket(text: &str) -> String {
    text.lines().find_map(|line| line.strip_prefix("exo-resume: ")).unwrap().trim().to_owned()
}

/// Of whole events: the last id, and all up to its event's end.
fn seen(text: &str) -> (String, &str) {
    let at = text.rfind("\nid: ").unwrap();
    let id = text[at + 5..].lines().next().unwrap().to_owned();
    let end = text[at..].find("\n\n");
    match end {
        Some(end) => (id, &text[..at + end + 2]),
        // The event broke off.
        None => seen(&text[..at]),
    }
}

fn resume(node: &Node, ticket: &str, last: Option<&str>) -> Answer {
    let id = ticket.split('.').next().unwrap();
    get(node, &format!("/v1/requests/{id}"), ticket, last)
}

fn get(node: &Node, path: &str, ticket: &str, last: Option<&str>) -> Answer {
    let mut stream = TcpStream::connect(&node.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let last = last.map(|last| format!("Last-Event-ID: {last}\r\n")).unwrap_or_default();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nConnection: close\r\nexo-resume: {ticket}\r\n{last}\r\n",
        node.address, node.secret
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(&bytes)
}

#[test]
fn an_answer_goes_on_at_another_node_when_its_own_is_killed() {
    let mut nodes = cluster("moved", &["one", "two", "three"]);
    nodes[0].place("demo", 3);
    let expected = long_answer(&nodes[1], TOKENS);
    for driver in [2, 1] {
        let stream = stream_until(&nodes[driver], TOKENS, 100);
        nodes[driver].kill();
        let text = left(stream);
        let (ticket, (last, had)) = (ticket(&text), seen(&text));
        let asked = Instant::now();
        let rest = resume(&nodes[0], &ticket, Some(&last));
        let took = asked.elapsed();
        assert_eq!(rest.status, 200, "{}\n{}", rest.body, nodes[0].log());
        assert_eq!(text_of(had) + &text_of(&rest.body), expected, "not a token more, less or other");
        assert!(rest.body.contains("[DONE]") && !resumed_of(&rest.body).is_empty(), "{}", rest.body);
        assert!(took < GOES_ON_MAX, "{took:?}");
        assert!(rest.head.contains("exo-resume: "), "{}", rest.head);
        wait_for("the copies to go", Duration::from_secs(5), || {
            let over = resume(&nodes[0], &ticket, None);
            (over.status == 404).then(|| assert_eq!(over.code(), "request_not_found"))
        });
    }
}

/// Asks for an answer that outlives its reader, and leaves when it has begun; the head's `exo-resume`.
fn begin_kept(node: &Node, body: &Value) -> String {
    let (body, mut text) = (body.to_string(), String::new());
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nexo-keep: true\r\n\r\n",
        node.address,
        node.secret,
        body.len()
    );
    let mut stream = TcpStream::connect(&node.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all((head + &body).as_bytes()).unwrap();
    while !text.contains("\nid: ") {
        let mut bytes = [0; 512];
        let n = stream.read(&mut bytes).unwrap();
        assert!(n > 0, "{text}\n{}", node.log());
        text.push_str(&String::from_utf8_lossy(&bytes[..n]));
    }
    ticket(&text)
}

/// Whoever asked to have an answer kept reads it later, when its node may be gone.
#[test]
#[allow(clippy::disallowed_methods)] // no executor here
fn a_kept_answer_that_was_computed_is_there_whole_when_its_node_is_killed() {
    let mut nodes = cluster("kept", &["one", "two", "three"]);
    nodes[0].place("demo", 2);
    let body = json!({"model": "demo", "prompt": "Once", "max_tokens": 200, "ignore_eos": true, "temperature": 1.0,
        "stream": true});
    let ticket = begin_kept(&nodes[2], &body);
    let computed = resume(&nodes[2], &ticket, None);
    assert!(computed.status == 200 && computed.body.contains("[DONE]"), "{}", computed.body);
    // Long enough for a copy that ends with the computing to be gone.
    std::thread::sleep(Duration::from_secs(1));
    nodes[2].kill();
    let whole = resume(&nodes[1], &ticket, None);
    assert_eq!(whole.status, 200, "{}\n{}", whole.body, nodes[1].log());
    assert_eq!(text_of(&whole.body), text_of(&computed.body), "not a token more, less or other");
    assert!(whole.body.contains("[DONE]"), "{}", whole.body);
}

#[test]
fn a_message_goes_on_at_another_node_when_its_own_is_killed() {
    let mut nodes = cluster("message", &["one", "two", "three"]);
    nodes[0].place("demo", 2);
    // It has no seed, and the likeliest tokens are the same ones each time.
    let mut body = json!({"model": "demo", "max_tokens": 1200, "temperature": 0, "messages": [{"role": "user", "content": "Colours?"}],
        "output_config": {"format": {"type": "json_schema", "schema": colours()}}});
    let undisturbed = nodes[0].post("/v1/messages", &body).good();
    let expected = undisturbed.json()["content"][0]["text"].as_str().unwrap().to_owned();
    body["stream"] = true.into();
    let stream = begin(&nodes[2], "/v1/messages", &body, 40);
    nodes[2].kill();
    let text = left(stream);
    let (ticket, (last, had)) = (ticket(&text), seen(&text));
    assert!(!text.contains("message_stop"), "it had ended");
    let rest = resume(&nodes[1], &ticket, Some(&last));
    assert_eq!(rest.status, 200, "{}\n{}", rest.body, nodes[1].log());
    let of = |events: &str| pieces_of(events, "/delta/text");
    assert_eq!(of(had) + &of(&rest.body), expected, "not a token more, less or other");
    assert!(rest.body.contains("event: message_stop\n"), "{}", rest.body);
}

/// The objects in the lines of a stream: of events, or of lines that are JSON alone. Whole ones only.
fn objects(text: &str) -> Vec<Value> {
    let lines = text.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    lines.filter(|line| line.starts_with('{')).filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The tokens whose probabilities are at this place of all objects.
fn scored(objects: &[Value], pointer: &str) -> Vec<String> {
    let scores = objects.iter().filter_map(|object| object.pointer(pointer)?.as_array());
    scores.flatten().map(|score| score["token"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_response_goes_on_at_another_node_with_what_its_own_kept_for_it() {
    let mut nodes = cluster("response", &["one", "two", "three"]);
    nodes[0].place("demo", 2);
    let first = json!({"model": "demo", "input": "Hello!", "max_output_tokens": 16, "temperature": 0});
    let first = nodes[2].post("/v1/responses", &first).good();
    let format = json!({"type": "json_schema", "name": "colours", "schema": colours()});
    let mut body = json!({"model": "demo", "input": "Colours?", "previous_response_id": first.json()["id"], "temperature": 0,
        "text": {"format": format}, "include": ["message.output_text.logprobs"]});
    let undisturbed = nodes[2].post("/v1/responses", &body).good();
    let expected = undisturbed.json();
    let part = &expected["output"][0]["content"][0];
    body["stream"] = true.into();
    let stream = begin(&nodes[2], "/v1/responses", &body, 40);
    nodes[2].kill();
    let text = left(stream);
    assert!(!text.contains("response.completed"), "it had ended");
    let (ticket, (last, had)) = (ticket(&text), seen(&text));
    let response = format!("resp_{}", ticket.split('.').next().unwrap());
    // As OpenAI's clients ask for the rest.
    let path = format!("/v1/responses/{response}?stream=true&starting_after={last}");
    let rest = get(&nodes[1], &path, &ticket, None);
    assert_eq!(rest.status, 200, "{}\n{}", rest.body, nodes[1].log());
    let mut all = objects(had);
    all.extend(objects(&rest.body));
    for (number, event) in all.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "no event twice, and none is missing");
    }
    let texts = all.iter().filter(|event| event["type"] == "response.output_text.delta");
    let texts: Vec<Value> = texts.cloned().collect();
    let said: String = texts.iter().map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(said, part["text"], "not a token more, less or other");
    assert_eq!(scored(&texts, "/logprobs"), scored(std::slice::from_ref(part), "/logprobs"));
    let end = all.last().unwrap();
    assert_eq!((&end["type"], &end["response"]["id"]), (&json!("response.completed"), &json!(response)));
    assert_eq!(end["response"]["output"][0]["content"][0], *part);
    let used = |response: &Value| {
        let usage = &response["usage"];
        [usage["input_tokens"].clone(), usage["output_tokens"].clone()]
    };
    assert_eq!(used(&end["response"]), used(&expected), "what both nodes made counts once");
    assert!(end["response"]["exo"]["resumed"].is_array(), "{end}");
    // The node that went on keeps it, with what the lost one had kept.
    let more = |input: Value| json!({"model": "demo", "input": input, "max_output_tokens": 16});
    let mut next = more("And?".into());
    next["previous_response_id"] = response.into();
    let turn = |role: &str, content: &Value| json!({"role": role, "content": content});
    let said = &first.json()["output"][0]["content"][0]["text"];
    let spelt_out = more(json!([
        turn("user", &json!("Hello!")),
        turn("assistant", said),
        turn("user", &json!("Colours?")),
        turn("assistant", &part["text"]),
        turn("user", &json!("And?")),
    ]));
    let [next, spelt_out] = [next, spelt_out].map(|body| nodes[1].post("/v1/responses", &body));
    assert_eq!((next.status, spelt_out.status), (200, 200), "{}{}", next.body, spelt_out.body);
    assert_eq!(used(&next.json())[0], used(&spelt_out.json())[0], "the same conversation");
}

#[test]
fn lines_of_ollama_go_on_at_another_node_and_so_does_a_whole_answer() {
    let mut nodes = cluster("lines", &["one", "two", "three"]);
    nodes[0].place("demo", 3);
    for (driver, path, pointer) in [(2, "/api/chat", "/message/content"), (1, "/api/generate", "/response")] {
        let mut body = json!({"model": "demo", "format": colours(), "logprobs": true, "stream": false,
            "options": {"temperature": 0, "num_predict": 1200}});
        match path {
            "/api/chat" => body["messages"] = json!([{"role": "user", "content": "Colours?"}]),
            _ => body["prompt"] = "Colours?".into(),
        }
        let undisturbed = nodes[0].post(path, &body).good();
        let expected = undisturbed.json();
        body["stream"] = true.into();
        let mut stream = nodes[driver].send("POST", path, Some(body.to_string()));
        let mut text = String::new();
        while text.matches("exo_id").count() < 40 {
            let mut bytes = [0; 512];
            let n = stream.read(&mut bytes).unwrap();
            assert!(n > 0, "{text}\n{}", nodes[driver].log());
            text.push_str(&String::from_utf8_lossy(&bytes[..n]));
        }
        nodes[driver].kill();
        let text = left((stream, text));
        assert!(!text.contains(r#""done":true"#), "it had ended");
        let ticket = ticket(&text);
        let mut all = objects(&text);
        match driver {
            2 => {
                let last = all.iter().filter_map(|line| line["exo_id"].as_u64()).next_back().unwrap();
                let rest = resume(&nodes[0], &ticket, Some(&last.to_string()));
                assert_eq!(rest.status, 200, "{}\n{}", rest.body, nodes[0].log());
                all.extend(objects(&rest.body));
                let ids: Vec<u64> = all.iter().filter_map(|line| line["exo_id"].as_u64()).collect();
                assert!(ids.is_sorted_by(|one, next| one < next), "no line twice: {ids:?}");
            }
            _ => {
                let id = ticket.split('.').next().unwrap();
                let whole = get(&nodes[0], &format!("/v1/requests/{id}?stream=false"), &ticket, None);
                assert_eq!(whole.status, 200, "{}\n{}", whole.body, nodes[0].log());
                all = vec![whole.json()];
            }
        }
        let said: String = all.iter().filter_map(|line| line.pointer(pointer)?.as_str()).collect();
        assert_eq!(
            said,
            expected.pointer(pointer).unwrap().as_str().unwrap(),
            "{path}: not a token more, less or other"
        );
        assert_eq!(scored(&all, "/logprobs"), scored(std::slice::from_ref(&expected), "/logprobs"), "{path}");
        let end = all.last().unwrap();
        for field in ["done", "done_reason", "prompt_eval_count", "eval_count"] {
            assert_eq!(end[field], expected[field], "{path} {field}");
        }
        assert!(end["exo"]["resumed"].is_array(), "{end}");
    }
}

/// A lid that is closed on the node that the client talks to: for two seconds, and until the others have
/// given it up and placed its stage elsewhere. The connection of the client stands all the while.
#[test]
fn an_answer_goes_on_when_its_own_node_stands_still_and_moves_again() {
    const NAMES: [&str; 3] = ["one", "two", "three"];
    let nodes = cluster("still", &NAMES);
    let instance = nodes[0].place("demo", 2);
    let of_stage =
        |index: usize| NAMES.iter().position(|name| instance["stages"][index]["node_name"] == *name);
    let (first, last) = (of_stage(0).unwrap(), of_stage(1).unwrap());
    let beside = 3 - first - last;
    let expected = long_answer(&nodes[beside], TOKENS);
    for (driver, until_lost) in [(beside, false), (first, false), (beside, true), (first, true), (last, true)]
    {
        let (own, other) = (&nodes[driver], &nodes[(driver + 1) % 3]);
        let stream = stream_until(own, TOKENS, 100);
        send("-STOP", own.pid());
        let stopped = Instant::now();
        wait_for("the others to give it up", GOES_ON_MAX, || match until_lost {
            false => (stopped.elapsed() > Duration::from_secs(2)).then_some(()),
            true => (other.sees().len() == 2).then_some(()),
        });
        send("-CONT", own.pid());
        let moved = Instant::now();
        let events = rest_of(stream);
        let took = moved.elapsed();
        assert_eq!(text_of(&events), expected, "not a token more, less or other: {driver} {until_lost}");
        assert!(took < GOES_ON_MAX, "{took:?}: {driver} {until_lost}\n{}", own.log());
        wait_for("all three again", SOON, || nodes.iter().all(|node| node.sees().len() == 3).then_some(()));
    }
}

#[test]
fn an_answer_that_goes_on_has_the_same_ids_and_choices() {
    let mut nodes = cluster("choices", &["one", "two", "three"]);
    nodes[0].place("demo", 2);
    let body = json!({
        "model": "demo", "n": 2, "max_tokens": 900, "ignore_eos": true, "temperature": 1.0, "stream": true,
        "messages": [{"role": "user", "content": "Tell me a story."}],
    });
    let stream = begin(&nodes[2], "/v1/chat/completions", &body, 100);
    nodes[2].kill();
    let text = left(stream);
    let (ticket, (_, had)) = (ticket(&text), seen(&text));
    let id = ticket.split('.').next().unwrap();
    let refused = resume(&nodes[1], &format!("{id}.{:032}", 0), None);
    assert_eq!((refused.status, refused.code().as_str()), (404, "request_not_found"));
    let whole = resume(&nodes[1], &ticket, None).good();
    // The seed was drawn by the node that died.
    let chunks = |text: &str| -> Vec<serde_json::Value> {
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| data.starts_with('{')).map(|data| serde_json::from_str(data).unwrap()).collect()
    };
    let of_choice = |chunks: &[serde_json::Value], index: u64| -> String {
        let choices = chunks.iter().filter_map(|chunk| chunk["choices"].get(0));
        let own = choices.filter(|choice| choice["index"] == index);
        own.map(|choice| choice["delta"]["content"].as_str().unwrap_or_default()).collect()
    };
    let (had, whole) = (chunks(had), chunks(&whole.body));
    for index in [0, 1] {
        let (first, all) = (of_choice(&had, index), of_choice(&whole, index));
        assert!(!first.is_empty() && first.len() < all.len() && all.starts_with(&first), "{first}\n{all}");
    }
    let head = |chunk: &serde_json::Value| (chunk["id"].clone(), chunk["created"].clone());
    assert!(had.iter().chain(&whole).all(|chunk| head(chunk) == head(&had[0])), "one answer, one id");
}

#[test]
fn the_command_that_shows_an_answer_shows_the_rest_when_its_node_is_started_again() {
    let start = |name: &'static str, flags: &[&str]| Start {
        name,
        group: "run-goes-on",
        flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        ..Start::default()
    };
    // Slow enough to be killed in the middle of it.
    let holder = Node::start(start("one", &["--compute-share", "10%"]));
    let folder = tempfile::tempdir().unwrap();
    let mut own = Node::start_in(folder.path(), start("two", &[]));
    wait_for("one cluster", GOES_ON_MAX, || (own.sees().len() == 2).then_some(()));
    holder.post("/exo/v1/instances", &json!({"model": "demo", "pins": ["one"]})).good();
    let (prompt, answer) = known().into_iter().max_by_key(|(_, answer)| answer.len()).unwrap();
    let mut command = exo(&["run", "demo", &prompt, "--temperature", "0", "--data-dir"]);
    let mut run = command.arg(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut shown = [0; 40];
    run.stdout.as_mut().unwrap().read_exact(&mut shown).unwrap();
    own.kill();
    let own = Node::start_in(folder.path(), start("two", &[]));
    let rest = run.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&shown).into_owned() + &stdout(&rest);
    assert!(rest.status.success(), "{text}{}\n{}", stderr(&rest), own.log());
    assert_eq!(text.trim_end(), answer, "not a token more, less or other");
    assert!(stderr(&rest).contains("the answer goes on when it is back"), "{}", stderr(&rest));
}

/// The only member that has a model's file is gone: who waits is told by names what for and what to do, and
/// goes on once it is back.
#[test]
fn who_waits_for_a_file_that_went_with_its_member_is_told_who_had_it() {
    let mut nodes = cluster("holder", &["alpha", "beta"]);
    let path = nodes[0].data_dir.with_file_name("mine.gguf");
    another_model(&path);
    good(nodes[0].exo(&["models", "add", path.to_str().unwrap()]));
    wait_for("beta to hear of the model", SOON, || {
        stdout(&nodes[1].exo(&["models"])).contains("mine").then_some(())
    });
    nodes[1].place("mine", 2);
    let body = json!({"model": "mine", "prompt": "Once", "max_tokens": TOKENS, "ignore_eos": true});
    let (mut stream, mut text) = stream_of(&nodes[1], "/v1/completions", body, 20);
    nodes[0].kill();
    let expected = "no member that is reachable has mine; alpha had it: start exo there again";
    let began = Instant::now();
    while !text.contains(expected) {
        let mut bytes = [0; 512];
        let n = stream.read(&mut bytes).unwrap();
        text.push_str(&String::from_utf8_lossy(&bytes[..n]));
        assert!(n > 0 && began.elapsed() < Duration::from_secs(60), "{text}\n{}", nodes[1].log());
    }
    assert!(text.contains("node alpha "), "{text}");
    let status = flat(&stdout(&nodes[1].exo(&["status"])));
    assert!(status.contains("alpha had it"), "{status}");
    let data_dir = nodes[0].data_dir.clone();
    let _back = Node::start_in(&data_dir, Start { name: "alpha", group: "holder", ..Start::default() });
    let text = left((stream, text));
    assert!(text.contains("[DONE]"), "{text}\n{}", nodes[1].log());
}
