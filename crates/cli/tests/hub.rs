//! Models of a hub as a person gets them: the binary against the mock hub, ended in the middle, and run.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{self, Killed, Node, SOON, Start, exo, finish, good, stderr, stdout, wait_for};
use exo_mock_hub::{Faults, Host, Layer, MockHub, Repository, sha256};
use serde_json::Value;

const CHUNK: u64 = 4 << 20;
/// A pull and a run of the demo model, on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// The demo model, and some bytes behind it: a file of its own, or it would be the one that the binary
/// carries.
fn demo_model() -> Vec<u8> {
    let mut bytes = exo_node::DEMO_MODEL.to_vec();
    bytes.extend([0; 64]);
    bytes
}

/// A hub with the demo model, and a home and a data folder that know nothing.
struct World {
    hub: MockHub,
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let hub = MockHub::start().unwrap();
        let licence = ("LICENSE", b"Apache License".to_vec());
        hub.put("org/demo-GGUF", Repository::new(&[("tiny-Q8_0.gguf", demo_model()), licence]));
        Self { hub, folder: tempfile::tempdir().unwrap() }
    }

    fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn exo(&self, args: &[&str]) -> Command {
        let data_dir = self.data_dir();
        let mut all = args.to_vec();
        all.extend(["--data-dir", data_dir.to_str().unwrap()]);
        let mut command = exo(&all);
        for name in [
            "HF_HOME",
            "HF_HUB_CACHE",
            "XDG_CACHE_HOME",
            "XDG_DATA_HOME",
            "OLLAMA_MODELS",
            "LLAMA_CACHE",
            "MODELS_PATH",
            "HF_HUB_OFFLINE",
        ] {
            command.env_remove(name);
        }
        command.env("HOME", self.folder.path().join("home")).env("HF_ENDPOINT", self.hub.endpoint());
        command.env("EXO_OLLAMA_REGISTRY", self.hub.endpoint());
        command
    }

    /// Runs to the end, which must be a good one.
    fn run(&self, args: &[&str]) -> String {
        let output = finish(&mut self.exo(args), LONG);
        assert!(output.status.success(), "{args:?}: {} {}", stdout(&output), stderr(&output));
        stdout(&output) + &stderr(&output)
    }

    /// Runs to an error.
    fn refused(&self, args: &[&str]) -> String {
        let output = finish(&mut self.exo(args), LONG);
        assert!(!output.status.success(), "{args:?}: {}", stdout(&output));
        stderr(&output)
    }
}

/// Bytes that the maps of a data folder promise.
fn promised(folder: &Path) -> u64 {
    let mut chunks = 0;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            chunks += promised(&path) / CHUNK;
        } else if path.to_string_lossy().ends_with(".part.map") {
            let bytes = std::fs::read(&path).unwrap_or_default();
            let head = bytes.iter().position(|b| *b == b'\n').map_or(bytes.len(), |i| i + 1);
            chunks += ((bytes.len() - head) / 40) as u64;
        }
    }
    chunks * CHUNK
}

#[test]
fn a_pull_that_is_killed_again_and_again_loses_at_most_what_was_in_flight() {
    let world = World::new();
    let size = 48 * CHUNK as usize;
    let bytes: Vec<u8> =
        (0..size / 4).flat_map(|i| (i as u32).wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let digest = sha256(&bytes);
    world.hub.put("org/large", Repository::new(&[("large-Q8_0.gguf", bytes)]));
    world.hub.set_faults(Faults { bytes_per_s: Some(12 << 20), ..Faults::default() });
    let mut before = 0;
    for round in 1..=5 {
        let mut command = world.exo(&["pull", "hf.co/org/large"]);
        let child = Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        wait_for("chunks on disk", LONG, || {
            (promised(&world.data_dir()) >= before + 6 * CHUNK).then_some(())
        });
        drop(child); // SIGKILL
        let now = promised(&world.data_dir());
        assert!(now >= before + 6 * CHUNK, "round {round}: {now} after {before}");
        before = now;
    }
    world.hub.set_faults(Faults::default());
    // The file is no model, and only its last step says so: the bytes have been verified by then.
    let text = world.refused(&["pull", "hf.co/org/large"]);
    assert!(text.contains("not a usable model") || text.contains("GGUF"), "{text}");
    let file =
        world.data_dir().join("hub/org/large/0123456789abcdef0123456789abcdef01234567/Q8_0/large-Q8_0.gguf");
    assert_eq!(sha256(&std::fs::read(file).unwrap()), digest);
    // Eight chunks in flight each time, and as much in the sockets between.
    let again = world.hub.sent_bytes() - size as u64;
    println!("{again} bytes came again after five kills, {} a kill", again / 5);
    assert!(again <= 5 * 8 * (CHUNK + (6 << 20)), "{again} bytes came again");
}

#[test]
fn a_model_is_pulled_listed_with_its_source_and_run_and_the_hub_is_asked_once() {
    let world = World::new();
    let text = world.run(&["pull", "hf.co/org/demo-GGUF"]);
    assert!(text.contains("licence apache-2.0") && text.contains("tiny-Q8_0 is ready, verified"), "{text}");
    assert!(text.contains("the only one there is"), "it says why this file: {text}");
    let text = world.run(&["pull", "org/demo-GGUF:Q8_0"]);
    assert!(text.contains("was here already"), "{text}");
    let sent = world.hub.sent_bytes();
    let text = world.run(&["run", "tiny-Q8_0", "What is 17 + 25?", "--temperature", "0"]);
    assert!(text.contains("42"), "{text}");
    assert_eq!(world.hub.sent_bytes(), sent);
}

#[test]
fn a_model_that_exo_does_not_run_is_refused_by_its_head_before_it_is_fetched() {
    let world = World::new();
    let mut bytes = demo_model();
    const KEY: &[u8] = b"general.architecture";
    // Behind the key: the kind of value (4 bytes), its length (8), the text.
    let at = bytes.windows(KEY.len()).position(|w| w == KEY).unwrap() + KEY.len() + 12;
    bytes[at..at + 5].copy_from_slice(b"zzzzz");
    bytes.resize(300 << 20, 0);
    world.hub.put("org/strange", Repository::new(&[("strange-Q8_0.gguf", bytes)]));
    let text = world.refused(&["pull", "hf.co/org/strange"]);
    assert!(text.contains("cannot read what") && text.contains("`zzzzz`; supported are"), "{text}");
    assert!(world.hub.sent_bytes() <= 8 << 20, "{} bytes were read", world.hub.sent_bytes());
    assert_eq!(promised(&world.data_dir()), 0);
}

/// A hub that is gone for a while, as for a machine whose line is.
#[test]
fn a_download_of_a_node_waits_for_a_line_that_is_away_and_goes_on_by_itself() {
    let mut world = World::new();
    large_and_slow(&world, 24, 2 << 20);
    let node = node_of(&world);
    let id = node.post("/exo/v1/pulls", &serde_json::json!({"reference": "hf.co/org/large"})).json()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let some = || (pull_of(&node, &id)?["verified_bytes"].as_u64()? >= 4 * CHUNK).then_some(());
    wait_for("chunks", LONG, some);
    let port = world.hub.endpoint().rsplit(':').next().unwrap().parse().unwrap();
    let gone = std::mem::replace(&mut world.hub, MockHub::start().unwrap());
    drop(gone);
    let waiting = wait_for("a line that is away", 2 * LONG, || {
        let pull = pull_of(&node, &id)?;
        assert_ne!(pull["state"], "failed", "{pull}");
        pull["error"].as_str().is_some_and(|e| e.contains("waits for the line")).then_some(pull)
    });
    assert!(world.run(&["pulls"]).contains("waits for the line"), "{waiting}");
    let before = waiting["verified_bytes"].as_u64().unwrap();
    world.hub = MockHub::start_on(port).unwrap();
    large_and_slow(&world, 24, 64 << 20);
    let more = || {
        let pull = pull_of(&node, &id)?;
        let is_on = pull["verified_bytes"].as_u64()? > before && pull["error"].is_null();
        is_on.then_some(())
    };
    wait_for("more", LONG, more);
    assert!(world.hub.sent_bytes() <= 24 * CHUNK - before + CHUNK, "what was there did not come again");
}

#[test]
fn a_name_of_ollamas_registry_runs_on_a_machine_that_has_nothing() {
    let world = World::new();
    let licence = Layer::new("application/vnd.ollama.image.license", b"MIT License");
    let layers = [Layer::new("application/vnd.ollama.image.model", &demo_model()), licence];
    world.hub.put_layers("library/tiny", "1b", &layers);
    world.hub.set_faults(Faults { registry_token_uses: Some(2), ..Faults::default() });
    let text = world.run(&["run", "tiny:1b", "What is 17 + 25?", "--temperature", "0"]);
    assert!(text.contains("42") && text.contains("licence mit"), "{text}");
    assert!(world.run(&["pull", "tiny:1b"]).contains("tiny-1b is ready, was here already"));
}

#[test]
fn removing_a_model_that_was_fetched_deletes_its_files() {
    let world = World::new();
    let node = Node::alone();
    let data_dir = node.data_dir.to_str().unwrap();
    let with_node = |args: &[&str]| {
        let mut command = exo(&[args, &["--data-dir", data_dir]].concat());
        finish(command.env("HF_ENDPOINT", world.hub.endpoint()).env("HOME", world.folder.path()), LONG)
    };
    assert!(with_node(&["pull", "hf.co/org/demo-GGUF"]).status.success());
    let commit = node.data_dir.join("hub/org/demo-GGUF/0123456789abcdef0123456789abcdef01234567");
    assert!(commit.join("Q8_0/tiny-Q8_0.gguf").is_file());
    assert!(with_node(&["models", "remove", "tiny-Q8_0"]).status.success());
    assert!(!commit.join("Q8_0").exists() && !commit.join("Q8_0.origin.json").exists());
}

#[test]
fn a_running_node_is_told_and_shows_where_a_model_is_from() {
    let world = World::new();
    let node = Node::alone();
    let data_dir = node.data_dir.to_str().unwrap().to_owned();
    let mut pull = exo(&["pull", "hf.co/org/demo-GGUF", "--json", "--data-dir", &data_dir]);
    let output = finish(pull.env("HF_ENDPOINT", world.hub.endpoint()).env("HOME", world.folder.path()), LONG);
    let pulled: Value =
        serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    assert_eq!(pulled["origin"]["repo"], "org/demo-GGUF");
    let listed = finish(&mut exo(&["models", "--json", "--data-dir", &data_dir]), SOON);
    let models: Value = serde_json::from_str(&stdout(&listed)).unwrap();
    let model = models.as_array().unwrap().iter().find(|m| m["name"] == "tiny-Q8_0").unwrap();
    assert_eq!(model["source"], "hf.co/org/demo-GGUF:Q8_0@01234567");
    assert_eq!(model["licence"], "apache-2.0");
}

#[test]
fn a_node_fetches_the_very_file_that_an_address_names() {
    let world = World::new();
    let other = [exo_node::DEMO_MODEL, &[1; 96]].concat();
    let files = [("a-Q8_0.gguf", demo_model()), ("b-Q8_0.gguf", other)];
    world.hub.put("org/two", Repository::new(&files));
    let node = node_of(&world);
    let which = world.refused(&["pull", "hf.co/org/two:Q8_0"]);
    assert!(which.contains("a-Q8_0.gguf") && which.contains("b-Q8_0.gguf"), "{which}");
    for name in ["b-Q8_0", "a-Q8_0"] {
        let address = format!("https://hf.co/org/two/blob/main/{name}.gguf");
        let output = finish(&mut world.exo(&["pull", &address, "--json"]), LONG);
        let pulled: Value = serde_json::from_str(&stdout(&output)).unwrap_or_default();
        assert_eq!(pulled["name"], name, "{}", stderr(&output));
        assert_eq!(pulled["was_here"], false, "{pulled}");
        let shown = format!("https://hf.co/org/two/resolve/main/{name}.gguf");
        assert_eq!(pulled["origin"]["reference"], shown.as_str());
    }
    assert_eq!(
        node.get("/exo/v1/pulls").as_array().unwrap().iter().filter(|p| p["state"] == "done").count(),
        2
    );
}

#[test]
fn show_and_search_fetch_no_weights() {
    let world = World::new();
    let text = world.run(&["show", "hf.co/org/demo-GGUF"]);
    assert!(
        text.contains("Q8_0") && text.contains("fits this machine") && text.contains("licence apache-2.0"),
        "{text}"
    );
    let shown: Value = serde_json::from_str(&world.run(&["show", "hf.co/org/demo-GGUF", "--json"])).unwrap();
    assert_eq!(shown["models"][0]["files"][0]["sha256"], sha256(&demo_model()));
    assert!(world.run(&["search", "demo"]).contains("hf.co/org/demo-GGUF"));
    assert!(world.run(&["search", "nothing", "like", "it"]).contains("has no model for `nothing like it`"));
    let asked = world.hub.seen().len();
    assert!(world.refused(&["search", " "]).contains("name what to look for"));
    assert_eq!(world.hub.seen().len(), asked, "for nothing no hub is asked");
    assert_eq!(world.hub.sent_bytes(), 0);
}

#[test]
fn the_token_is_in_no_output_and_goes_to_no_other_host() {
    let world = World::new();
    let mut gated = Repository::new(&[("tiny-Q8_0.gguf", demo_model())]);
    (gated.is_gated, gated.licence) = (true, Some("llama3.2".to_owned()));
    world.hub.put("org/gated", gated);
    let text = world.refused(&["pull", "hf.co/org/gated"]);
    assert!(
        text.contains("`org/gated` is gated: accept its page at") && text.contains("set HF_TOKEN"),
        "{text}"
    );
    assert!(text.contains("700 million"), "notable terms are shown before anything is fetched: {text}");
    let mut command = world.exo(&["pull", "hf.co/org/gated", "--log", "trace"]);
    let output = good(finish(command.env("HF_TOKEN", world.hub.token()), LONG));
    let (log, token) = (stdout(&output) + &stderr(&output), world.hub.token().as_bytes());
    // A dump of bytes breaks it over two lines.
    for part in token.windows(8).map(|part| std::str::from_utf8(part).unwrap()) {
        assert!(!log.contains(part), "the token is logged: {part}");
    }
    assert!(!log.contains("signature="), "a signed address is logged");
    let seen = world.hub.seen();
    assert!(seen.iter().any(|s| s.host == Host::Hub && s.authorization.is_some()));
    assert!(seen.iter().all(|s| s.host == Host::Hub || s.authorization.is_none()));
}

/// A proxy that leads every host to one address, and notes which hosts were asked for.
fn proxy_to(address: std::net::SocketAddr) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, asked) =
        (format!("http://{}", listener.local_addr().unwrap()), Arc::new(Mutex::new(Vec::new())));
    let noted = asked.clone();
    // Ends with the process of the tests.
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let mut reader = BufReader::new(client.try_clone().unwrap());
            let mut first = String::new();
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|len| len > 2) {
                if first.is_empty() {
                    first.clone_from(&line);
                }
                line.clear();
            }
            noted.lock().unwrap().push(first);
            let Ok(hub) = TcpStream::connect(address) else { continue };
            let (mut out, mut to_hub, mut from_hub) = (client, hub.try_clone().unwrap(), hub);
            let _ = out.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            std::thread::spawn(move || std::io::copy(&mut reader, &mut to_hub));
            std::thread::spawn(move || std::io::copy(&mut from_hub, &mut out));
        }
    });
    (at, asked)
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a time in which nothing is asked")]
fn a_hub_is_reached_through_the_proxy_of_the_environment_and_one_that_is_excepted_is_not() {
    let world = World::new();
    let hub = world.hub.endpoint().strip_prefix("http://").unwrap().parse().unwrap();
    let (proxy, asked) = proxy_to(hub);
    let show = |no_proxy: &str| {
        let mut command = world.exo(&["show", "hf.co/org/demo-GGUF"]);
        // A name that only the proxy knows: RFC 6761.
        command.env("HF_ENDPOINT", "http://hub.invalid").env("HTTPS_PROXY", &proxy);
        command.env("NO_PROXY", no_proxy).env("no_proxy", no_proxy);
        command
    };
    let shown = finish(&mut show("other.invalid"), LONG);
    assert!(shown.status.success() && stdout(&shown).contains("Q8_0"), "{}", stderr(&shown));
    let connects = asked.lock().unwrap().clone();
    assert!(
        !connects.is_empty() && connects.iter().all(|line| line.starts_with("CONNECT hub.invalid:80 ")),
        "{connects:?}"
    );
    // It asks for the name itself, again and again: a second is more than the answer above took.
    let mut excepted = show("hub.invalid");
    let excepted = Killed(excepted.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    std::thread::sleep(Duration::from_secs(1));
    drop(excepted);
    assert_eq!(*asked.lock().unwrap(), connects, "the proxy was asked");
}

#[test]
fn what_another_program_has_is_run_in_place_and_offline_says_what_is_missing() {
    let world = World::new();
    let models = world.folder.path().join("home/.ollama/models");
    let digest = sha256(&demo_model());
    let manifest = models.join("manifests/registry.ollama.ai/library/tiny/1b");
    std::fs::create_dir_all(manifest.parent().unwrap()).unwrap();
    std::fs::create_dir_all(models.join("blobs")).unwrap();
    let layer = format!(
        r#"{{"layers":[{{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:{digest}"}}]}}"#
    );
    std::fs::write(manifest, layer).unwrap();
    std::fs::write(models.join(format!("blobs/sha256-{digest}")), demo_model()).unwrap();
    assert!(world.run(&["models", "--found"]).contains("tiny:1b"));
    let text = world.run(&["run", "tiny:1b", "What is 17 + 25?", "--temperature", "0"]);
    assert!(text.contains("42") && text.contains("is read in place"), "{text}");
    let text = world.run(&["pull", "tiny:1b"]);
    assert!(text.contains("tiny:1b is ready, was here already"), "{text}");
    assert!(world.hub.seen().is_empty(), "nothing was asked");
    assert!(!world.data_dir().join("hub").exists(), "and nothing is copied");
    // One that its program has half is fetched.
    let dangling = models.join("manifests/registry.ollama.ai/library/half/1b");
    std::fs::create_dir_all(dangling.parent().unwrap()).unwrap();
    let layer =
        r#"{"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:"#.to_owned();
    std::fs::write(dangling, layer + &"0".repeat(64) + r#""}]}"#).unwrap();
    world.hub.put_layers(
        "library/half",
        "1b",
        &[Layer::new("application/vnd.ollama.image.model", &demo_model())],
    );
    let text = world.run(&["pull", "half:1b"]);
    assert!(text.contains("but exo cannot use it") && text.contains("half-1b is ready, verified"), "{text}");
    let asked = world.hub.seen().len();
    let output = finish(world.exo(&["pull", "hf.co/org/demo-GGUF"]).env("EXO_OFFLINE", "1"), LONG);
    assert!(stderr(&output).contains("exo is offline (EXO_OFFLINE is set)"), "{}", stderr(&output));
    assert_eq!(world.hub.seen().len(), asked, "nothing was asked");
    let text = world.refused(&["run", "qwen3:8b", "x"]);
    assert!(text.contains("has no qwen3:8b"), "{text}");
}

#[test]
fn names_of_other_programs_that_look_like_a_path_or_a_hubs_run_in_place() {
    let world = World::new();
    let home = world.folder.path().join("home");
    let lm_studio = home.join(".lmstudio/models/pub/Tiny-GGUF/Tiny-Q8_0.gguf");
    std::fs::create_dir_all(lm_studio.parent().unwrap()).unwrap();
    std::fs::write(lm_studio, demo_model()).unwrap();
    let mut other = demo_model();
    other.push(1);
    let (ollama, digest) = (home.join(".ollama/models"), sha256(&other));
    let manifest = ollama.join("manifests/hf.co/org/other-GGUF/Q8_0");
    std::fs::create_dir_all(manifest.parent().unwrap()).unwrap();
    std::fs::create_dir_all(ollama.join("blobs")).unwrap();
    let layer = format!(
        r#"{{"layers":[{{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:{digest}"}}]}}"#
    );
    std::fs::write(manifest, layer).unwrap();
    std::fs::write(ollama.join(format!("blobs/sha256-{digest}")), other).unwrap();
    let listed = world.run(&["models", "--found"]);
    for name in ["pub/Tiny-GGUF/Tiny-Q8_0.gguf", "hf.co/org/other-GGUF:Q8_0"] {
        assert!(listed.contains(name), "{listed}");
        // The second time it is known by that name.
        for _ in 0..2 {
            let text = world.run(&["run", name, "What is 17 + 25?", "--temperature", "0"]);
            assert!(text.contains("42"), "{name}: {text}");
        }
    }
    assert!(world.hub.seen().is_empty(), "nothing was asked");
    let text = world.refused(&["run", "pub/Tiny-GGUF/None-Q8_0.gguf", "x"]);
    assert!(text.contains("cannot find pub/Tiny-GGUF/None-Q8_0.gguf"), "{text}");
}

#[test]
fn partial_downloads_are_pruned() {
    let world = World::new();
    world.hub.put("org/large", Repository::new(&[("large-Q8_0.gguf", vec![7; 8 * CHUNK as usize])]));
    world.hub.set_faults(Faults { bytes_per_s: Some(4 << 20), ..Faults::default() });
    let child = Killed(
        world.exo(&["pull", "org/large"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap(),
    );
    wait_for("chunks on disk", LONG, || (promised(&world.data_dir()) >= CHUNK).then_some(()));
    assert!(world.run(&["prune"]).contains("deleted 0 partial downloads"), "one under way is left alone");
    drop(child);
    assert!(world.run(&["prune"]).contains("deleted 1 partial downloads"));
    assert_eq!(promised(&world.data_dir()), 0);
}

#[test]
fn a_reference_runs_on_a_machine_that_has_nothing_and_then_without_asking_for_a_newer_commit() {
    let world = World::new();
    let ask = ["What is 17 + 25?", "--temperature", "0"];
    let run = |reference: &str| world.run(&[&["run", reference][..], &ask].concat());
    assert!(run("hf.co/org/demo-GGUF").contains("42"));
    let layers = [Layer::new("application/vnd.ollama.image.model", &[demo_model(), vec![0; 32]].concat())];
    world.hub.put_layers("library/tiny", "1b", &layers);
    assert!(run("tiny:1b").contains("42"));
    let newer = [exo_node::DEMO_MODEL, &[1; 96]].concat();
    let newer = Repository { commit: "f".repeat(40), ..Repository::new(&[("tiny-Q8_0.gguf", newer)]) };
    world.hub.put("org/demo-GGUF", newer);
    let seen = world.hub.seen().len();
    for reference in ["hf.co/org/demo-GGUF", "org/demo-GGUF", "tiny:1b"] {
        assert!(run(reference).contains("42"), "{reference}");
    }
    assert_eq!(world.hub.seen().len(), seen, "nothing was asked");
}

/// A node on the world's data folder, whose own environment names the mock hub.
fn node_of(world: &World) -> Node {
    let env = vec![
        ("HF_ENDPOINT", world.hub.endpoint().into()),
        ("HOME", world.folder.path().join("home").into_os_string()),
    ];
    Node::start_in(&world.data_dir(), Start { env, ..Start::alone("pulls", &[]) })
}

fn pull_of(node: &Node, id: &str) -> Option<Value> {
    node.get("/exo/v1/pulls").as_array().unwrap().iter().find(|p| p["id"] == id).cloned()
}

fn wait_for_state(node: &Node, id: &str, state: &str) -> Value {
    wait_for(&format!("download {id} {state}"), LONG, || {
        let pull = pull_of(node, id)?;
        assert!(state == "failed" || pull["state"] != "failed", "{pull}");
        (pull["state"] == state).then_some(pull)
    })
}

fn large_and_slow(world: &World, chunks: usize, bytes_per_s: u64) {
    let large = (0..chunks * CHUNK as usize).map(|i| (i / 7) as u8).collect();
    world.hub.put("org/large", Repository::new(&[("large-Q8_0.gguf", large)]));
    world.hub.set_faults(Faults { bytes_per_s: Some(bytes_per_s), ..Faults::default() });
}

#[test]
fn a_node_fetches_and_shows_how_far_it_is_pauses_goes_on_and_ends_without_losing_anything() {
    let world = World::new();
    large_and_slow(&world, 24, 2 << 20);
    let mut node = node_of(&world);
    let request = serde_json::json!({"reference": "hf.co/org/large", "ranges_max": 4});
    let id = node.post("/exo/v1/pulls", &request).json()["id"].as_str().unwrap().to_owned();
    let (mut seen, mut rates) = (0, 0);
    wait_for("progress", LONG, || {
        let pull = pull_of(&node, &id).unwrap();
        let verified = pull["verified_bytes"].as_u64().unwrap();
        assert!(verified >= seen, "progress ran backwards from {seen}: {pull}");
        rates += u64::from(pull["bytes_per_s"].is_f64() && pull["seconds_left"].is_u64());
        seen = verified;
        (seen >= 4 * CHUNK && rates > 2).then_some(())
    });
    let again = node.post("/exo/v1/pulls", &request).json();
    assert_eq!(again["id"], id.as_str(), "the same reference is one download");
    node.post(&format!("/exo/v1/pulls/{id}/pause"), &serde_json::json!({}));
    let paused = wait_for_state(&node, &id, "paused");
    assert!(
        paused["verified_bytes"].as_u64().unwrap() >= seen && paused["bytes_per_s"].is_null(),
        "{paused}"
    );
    assert_eq!((&paused["source"], &paused["label"]), (&world.hub.endpoint()[7..].into(), &"Q8_0".into()));
    let sent = world.hub.sent_bytes();
    assert!(world.run(&["prune"]).contains("deleted 0 partial downloads"), "one that waits is kept");
    let listed = world.run(&["pulls"]);
    assert!(listed.contains("paused") && listed.contains("hf.co/org/large"), "{listed}");
    assert!(world.hub.sent_bytes() - sent <= 4 * (CHUNK + (6 << 20)), "nothing comes while it is paused");
    world.run(&["pulls", "resume", &id]);
    wait_for("more of it", LONG, || {
        (pull_of(&node, &id)?["verified_bytes"].as_u64()? > seen + 4 * CHUNK).then_some(())
    });
    world.run(&["pulls", "cancel", &id]);
    assert_eq!(pull_of(&node, &id), None);
    let kept = promised(&world.data_dir());
    assert!(kept >= seen + 4 * CHUNK, "{kept} of {seen} stayed");
    // The hub writes into closed connections for a moment yet.
    let (mut sent, mut since) = (world.hub.sent_bytes(), Instant::now());
    wait_for("the hub to stop sending", LONG, || {
        let before = std::mem::replace(&mut sent, world.hub.sent_bytes());
        since = if before == sent { since } else { Instant::now() };
        (since.elapsed() > Duration::from_millis(500)).then_some(())
    });
    world.hub.set_faults(Faults::default());
    // The file is no model: its last step says so, when the bytes have been verified.
    let text = world.refused(&["pull", "hf.co/org/large"]);
    assert!(text.contains("GGUF") || text.contains("not a usable model"), "{text}");
    assert!(world.hub.sent_bytes() - sent <= 24 * CHUNK - kept + CHUNK, "what was there did not come again");
    let failed = node.get("/exo/v1/pulls")[0].clone();
    assert_eq!((&failed["state"], failed["error"].is_string()), (&"failed".into(), true));
    assert_eq!(node.post("/exo/v1/pulls/99/pause", &serde_json::json!({})).code(), "not_found");
    // Nobody asks for it again at the next start.
    wait_for("the list on disk", SOON, || {
        let list = std::fs::read_to_string(world.data_dir().join("hub/pulls.json")).ok()?;
        list.contains(failed["error"].as_str()?.get(..10)?).then_some(())
    });
    node.kill();
    let node = node_of(&world);
    let left = wait_for("the list", SOON, || node.get("/exo/v1/pulls")[0].as_object().cloned());
    assert_eq!((&left["state"], &left["error"]), (&failed["state"], &failed["error"]));
    assert!(left["id"] == failed["id"] && left["id"] != id.as_str(), "its id is its own: {left:?}");
}

#[test]
fn a_hub_that_does_not_answer_is_asked_again_in_sight() {
    let env = vec![("HF_ENDPOINT", "http://127.0.0.1:9".into())];
    let node = Node::start(Start { env, ..Start::alone("unanswered", &[]) });
    let request = serde_json::json!({"reference": "hf.co/org/any"});
    let id = node.post("/exo/v1/pulls", &request).json()["id"].as_str().unwrap().to_owned();
    wait_for("another try", LONG, || {
        let pull = pull_of(&node, &id).unwrap();
        assert_eq!(pull["state"].as_str().filter(|state| *state == "failed"), None, "{pull}");
        pull["error"].as_str().is_some_and(|error| error.contains("no answer yet, try ")).then_some(())
    });
    let listed = stdout(&node.exo(&["pulls"]));
    assert!(listed.contains("try"), "{listed}");
    let mut show = exo(&["show", "hf.co/org/any"]);
    let shown =
        finish(show.env("HF_ENDPOINT", "http://127.0.0.1:9").arg("--data-dir").arg(&node.data_dir), LONG);
    let text = stderr(&shown);
    assert!(!shown.status.success() && text.contains("note: asking the hub: no answer yet, try "), "{text}");
}

#[test]
fn a_download_outlives_its_node_and_is_of_the_commit_that_it_began_with() {
    let world = World::new();
    large_and_slow(&world, 32, 1 << 20);
    // Another file of the same type: the type alone does not say which was chosen.
    let large = (0..32 * CHUNK as usize).map(|i| (i / 7) as u8).collect();
    let files = [("large-Q8_0.gguf", large), ("small-Q8_0.gguf", vec![1; 64])];
    world.hub.put("org/large", Repository::new(&files));
    let mut node = node_of(&world);
    let id = world.run(&["pull", "org/large", "--detach", "--json"]);
    let id: Value = serde_json::from_str(&id).unwrap();
    assert_eq!(id["reference"], "hf.co/org/large");
    wait_for("chunks on disk", LONG, || (promised(&world.data_dir()) >= 3 * CHUNK).then_some(()));
    node.kill();
    let before = promised(&world.data_dir());
    let node = node_of(&world);
    let pull = wait_for("the download", SOON, || node.get("/exo/v1/pulls")[0].as_object().cloned());
    assert_eq!(pull["reference"], "hf.co/org/large");
    let id = pull["id"].as_str().unwrap();
    let on = wait_for("more of it", LONG, || {
        pull_of(&node, id).filter(|p| p["verified_bytes"].as_u64().unwrap() > before + CHUNK)
    });
    assert_eq!(on["commit"], "0123456789abcdef0123456789abcdef01234567");
    let saved = std::fs::read_to_string(world.data_dir().join("hub/pulls.json")).unwrap();
    assert!(saved.contains("org/large") && !saved.contains("token"), "{saved}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_download_that_the_command_began_and_leaves_one_that_another_began() {
    let world = World::new();
    large_and_slow(&world, 40, 512 << 10);
    let node = node_of(&world);
    let said = world.folder.path().join("said");
    // Once the command has said what it fetches it is waiting for Ctrl-C.
    let interrupted = |args: &[&str]| {
        let out = std::fs::File::create(&said).unwrap();
        let mut child = Killed(world.exo(args).stdout(Stdio::null()).stderr(out).spawn().unwrap());
        wait_for("the command to follow", LONG, || {
            std::fs::read_to_string(&said).unwrap().contains("note: licence").then_some(())
        });
        support::send("-INT", child.0.id());
        let status = wait_for("its end", LONG, || child.0.try_wait().unwrap());
        assert_eq!(status.code(), Some(130));
        std::fs::read_to_string(&said).unwrap()
    };
    let text = interrupted(&["pull", "hf.co/org/large"]);
    assert!(text.contains("what came stays"), "{text}");
    assert_eq!(node.get("/exo/v1/pulls"), serde_json::json!([]), "it was its own");
    world.run(&["pull", "hf.co/org/large", "--detach"]);
    let text = interrupted(&["pull", "hf.co/org/large"]);
    assert!(text.contains("the download goes on"), "{text}");
    assert_eq!(node.get("/exo/v1/pulls")[0]["state"], "fetching", "it goes on");
}

#[test]
fn a_token_in_a_request_reaches_the_hub_and_nothing_else() {
    let world = World::new();
    let mut gated = Repository::new(&[("tiny-Q8_0.gguf", demo_model())]);
    gated.is_gated = true;
    world.hub.put("org/gated", gated);
    let node = Node::start_in(&world.data_dir(), Start::alone("tokens", &["--log", "trace"]));
    good(finish(world.exo(&["pull", "hf.co/org/gated"]).env("HF_TOKEN", world.hub.token()), LONG));
    let shown = node.get("/exo/v1/pulls").to_string() + &node.log();
    assert!(!shown.contains(world.hub.token()), "the token is shown");
    let bad = serde_json::json!({"reference": "hf.co/org/gated", "endpoint": "ftp://x"});
    assert_eq!(node.post("/exo/v1/pulls", &bad).code(), "invalid_value");
    let repo = serde_json::json!({"reference": "./a.gguf"});
    assert_eq!(node.post("/exo/v1/pulls", &repo).code(), "invalid_value");
}

#[test]
fn fits_says_in_words_what_these_machines_can_run_and_reads_a_repository_by_its_head() {
    let world = World::new();
    let cluster = world.folder.path().join("cluster.toml");
    let device = |name: &str, gib: u32| {
        format!("[[device]]\nnode = \"{name}\"\nmemory_gib = {gib}\nread_gb_s = 60\ntflops = 1\n")
    };
    let link = "[[link]]\nfrom = \"desktop\"\nto = \"laptop\"\nrtt_ms = 1\nmbit_s = 1000\n";
    std::fs::write(&cluster, device("desktop", 32) + &device("laptop", 8) + link).unwrap();
    let on = ["--cluster", cluster.to_str().unwrap()];
    let text = world.run(&[&["fits"][..], &on].concat());
    assert!(text.contains("2 machines") && text.contains("at least as fast as people read"), "{text}");
    assert!(
        text.contains("qwen3-4b") && text.contains(" words") && text.contains("one more machine"),
        "{text}"
    );
    let text = world.run(&[&["fits", "llama-3.3-70b"][..], &on].concat());
    assert!(text.contains("too large") && text.contains("it would fit with"), "{text}");
    let known: Value =
        serde_json::from_str(&world.run(&[&["fits", "qwen3-8b", "--json"][..], &on].concat())).unwrap();
    let stages = known["models"][0]["best"]["stages"].as_array().unwrap();
    assert!(stages.iter().all(|stage| stage["weight_bytes"].as_u64() > Some(0)), "{known}");
    let text = world.run(&[&["fits", "demo"][..], &on].concat());
    assert!(text.contains("the cluster has it, as Q8_0"), "as `exo plan` knows it: {text}");
    assert!(world.hub.seen().is_empty(), "neither the catalogue nor a model that is here asks anybody");
    let text = world.run(&[&["fits", "hf.co/org/demo-GGUF"][..], &on].concat());
    assert!(text.contains("best as Q8_0") && text.contains("licence apache-2.0"), "{text}");
    assert!(world.hub.sent_bytes() < 1 << 20, "{} bytes for a head", world.hub.sent_bytes());
    assert!(!world.data_dir().join("hub").exists(), "nothing was fetched");
    let node = node_of(&world);
    let all = node.get("/exo/v1/fits");
    assert!(all["models"].as_array().unwrap().len() >= 40);
    let one = node.post("/exo/v1/fits", &serde_json::json!({"reference": "hf.co/org/demo-GGUF"})).json();
    assert_eq!(one["models"][0]["verdict"], "comfortable", "{one}");
    // A model that is here, by its name and by its id, and where it needs more than there is.
    let here = stdout(&node.exo(&["fits", "demo"]));
    assert!(
        here.contains("the cluster has it, as Q8_0") && here.contains("`exo run demo` runs it"),
        "{here}"
    );
    let longer = stdout(&node.exo(&["fits", "demo", "--context", "99999"]));
    assert!(longer.contains("made for at most 512 tokens") && !longer.contains("runs it"), "{longer}");
    let id = node.get("/exo/v1/models")[0]["id"].clone();
    let by_id = node.post("/exo/v1/fits", &serde_json::json!({"reference": id})).json();
    let best = &by_id["models"][0]["best"];
    assert!(best["predicted"]["tokens_per_s"]["expected"].as_f64().unwrap() > 0.0, "{by_id}");
    assert_eq!(
        (&best["download_bytes"], &by_id["models"][0]["name"]),
        (&0.into(), &"demo".into()),
        "{by_id}"
    );
    // The node has no token; the command has.
    let gated = Repository { is_gated: true, ..Repository::new(&[("tiny-Q8_0.gguf", demo_model())]) };
    world.hub.put("org/gated", gated);
    let text = world.refused(&["fits", "hf.co/org/gated"]);
    assert!(text.contains("gated") && !text.contains("invalid"), "{text}");
    let with = finish(world.exo(&["fits", "hf.co/org/gated"]).env("HF_TOKEN", world.hub.token()), LONG);
    assert!(stdout(&with).contains("best as Q8_0"), "{}", stderr(&with));
    let bad = node.post("/exo/v1/fits", &serde_json::json!({"reference": "./x.gguf"}));
    assert_eq!(bad.code(), "invalid_value");
    assert!(
        std::fs::read_dir(world.data_dir().join("outlines")).unwrap().next().is_none(),
        "outlines are thrown away"
    );
}

#[test]
fn a_model_over_several_files_is_pulled_whole_and_runs() {
    let world = World::new();
    let parts = split_demo_model();
    let files: Vec<(&str, Vec<u8>)> =
        parts.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    world.hub.put("org/split", Repository::new(&files));
    let text = world.run(&["run", "hf.co/org/split", "What is 17 + 25?", "--temperature", "0"]);
    assert!(text.contains("42") && text.contains("in 2 files"), "{text}");
    world.hub.put("org/half", Repository::new(&files[..1]));
    let text = world.refused(&["pull", "hf.co/org/half"]);
    assert!(text.contains("part 2 of 2") && text.contains("is not there"), "{text}");
}

/// The demo model as `llama-gguf-split` would cut it.
fn split_demo_model() -> Vec<(String, Vec<u8>)> {
    let bytes = exo_node::DEMO_MODEL;
    let gguf = exo_formats::gguf::Gguf::parse(bytes).unwrap();
    let half = gguf.tensors.len() / 2;
    let part = |index: usize| {
        let mut w = exo_formats::write::GgufWriter::new();
        if index == 0 {
            for (key, value) in gguf.metadata.iter() {
                w.value(key, value, bytes);
            }
        }
        let total = gguf.tensors.len() as u32;
        w.u32("split.no", index as u32).u32("split.count", 2).u32("split.tensors.count", total);
        let tensors = if index == 0 { &gguf.tensors[..half] } else { &gguf.tensors[half..] };
        for t in tensors {
            let stored = bytes[t.range.start as usize..t.range.end as usize].to_vec();
            w.tensor(&t.name, t.dtype, &t.dims, stored);
        }
        (format!("split-Q8_0-{:05}-of-00002.gguf", index + 1), w.to_bytes())
    };
    vec![part(0), part(1)]
}

#[test]
fn a_node_lists_what_other_programs_have_where_its_user_is_at_home() {
    let world = World::new();
    let folder = world.folder.path().join("home/.lmstudio/models/pub/repo");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("m-Q8_0.gguf"), demo_model()).unwrap();
    std::fs::write(folder.join("other.gguf"), "no model").unwrap();
    let found = node_of(&world).get("/exo/v1/found");
    let of = |name: &str| found.as_array().unwrap().iter().find(|found| found["name"] == name).cloned();
    let usable = of("pub/repo/m-Q8_0.gguf").unwrap_or_else(|| panic!("{found}"));
    assert_eq!(usable["bytes"], demo_model().len(), "{usable}");
    assert!(usable["problem"].is_null(), "{usable}");
    let other = of("pub/repo/other.gguf").unwrap_or_else(|| panic!("{found}"));
    assert!(other["problem"].as_str().is_some_and(|why| why.contains("GGUF")), "{other}");
}

#[test]
fn what_fits_on_six_described_devices_is_said_within_five_seconds() {
    let world = World::new();
    let device = |(at, (gib, read, tflops)): (usize, &(u32, u32, u32))| {
        format!("[[device]]\nnode = \"n{at}\"\nmemory_gib = {gib}\nread_gb_s = {read}\ntflops = {tflops}\n")
    };
    let devices = [(80, 2000, 60), (24, 900, 30), (24, 900, 30), (16, 120, 3), (32, 60, 1), (8, 50, 1)];
    let pairs = (0..devices.len()).flat_map(|from| (from + 1..devices.len()).map(move |to| (from, to)));
    let links = pairs.map(|(from, to)| {
        format!("[[link]]\nfrom = \"n{from}\"\nto = \"n{to}\"\nrtt_ms = 0.5\nmbit_s = 1000\n")
    });
    let text: String = devices.iter().enumerate().map(device).chain(links).collect();
    let cluster = world.folder.path().join("cluster.toml");
    std::fs::write(&cluster, text).unwrap();
    // The best of three: other tests run beside this one.
    let (took, text) = (0..3)
        .map(|_| {
            let begun = Instant::now();
            let text = world.run(&["fits", "--json", "--cluster", cluster.to_str().unwrap()]);
            (begun.elapsed(), text)
        })
        .min()
        .unwrap();
    println!("{took:?} for the catalogue on {} devices", devices.len());
    let fits: Value = serde_json::from_str(&text).unwrap();
    assert!(fits["models"].as_array().unwrap().len() >= 40, "{text}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}
