//! What a node computes on where nobody says so: software adapters, broken drivers, NVIDIA cards
//! that are emulated and pass the trial, fail it, are busy, are slow. Every driver that a test does not mean
//! is hidden from it.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::emulated;
use crate::support::{
    self, Answer, CRASHES, HANGS, NO_DRIVER, Node, SOON, Start, Zeros, exo, finish, flat, good, icd, known,
    shared_library, skip, stderr, stdout, wait_for, workers_of, zeros_of,
};
use exo_types::DType;
use serde_json::{Value, json};

/// For a trial on an emulated card, which takes its time.
const TRIAL_MAX: Duration = Duration::from_secs(90);
/// For a start, or a command, that waits for no driver: far less than the 20 s that one which hangs is given.
const NOT_ASKED_MAX: Duration = Duration::from_secs(10);
/// A folder of the system in which no driver is described.
const NOWHERE: &str = "/proc/sys/vm";

/// The environment in which the loader of Vulkan finds the drivers that `vulkan` names and no other interface
/// finds any; `cuda` adds the emulated cards.
fn drivers(vulkan: &Path, cuda: bool) -> Vec<(&'static str, OsString)> {
    let mut env: Vec<(&str, OsString)> = vec![
        ("VK_DRIVER_FILES", vulkan.into()),
        ("VK_ICD_FILENAMES", vulkan.into()),
        ("CUDA_VISIBLE_DEVICES", "".into()),
        ("HIP_VISIBLE_DEVICES", "".into()),
    ];
    if cuda {
        env.push(("LD_LIBRARY_PATH", emulated::library().into()));
        env.push(("EXO_EMULATED_CARDS", "1".into()));
    }
    env
}

/// A processor needs no process of its own, so it may answer with a model as small as the demo model in less
/// time than the fastest card: not one that rests so much.
const SLOW_PROCESSOR: &[&str] = &["--compute-share=10%"];

/// A node that chooses for itself.
fn start(data: &Path, env: &[(&'static str, OsString)], flags: &[&str]) -> Node {
    let flags = [&["--backend", "auto"], flags].concat();
    Node::start_in(data, Start { env: env.to_vec(), ..Start::alone("auto", &flags) })
}

fn devices(node: &Node) -> Vec<Value> {
    node.get("/exo/v1/cluster")["nodes"][0]["devices"].as_array().unwrap().clone()
}

fn ids(node: &Node) -> Vec<String> {
    devices(node).iter().map(|device| device["id"].as_str().unwrap().to_owned()).collect()
}

/// The node's first device: what it prefers.
fn device(node: &Node) -> Value {
    devices(node).swap_remove(0)
}

/// The node's device and why it is that one, after an answer that was right.
fn answers(node: &mut Node) -> (String, String) {
    let device = device(node);
    let id = device["id"].as_str().unwrap().to_owned();
    assert_eq!(node.place("demo", 1)["stages"][0]["device"], id.as_str());
    support::answers(node);
    node.assert_running();
    (id, device["support_reason"].as_str().unwrap().to_owned())
}

/// That a node and `exo devices` say the same of how far a card can be used, and why.
fn assert_same_support(of_node: &Value, row: &Value, class: &str) {
    assert_eq!((&of_node["support"], &row["support"]), (&class.into(), &class.into()), "{of_node}\n{row}");
    let first = |text: &Value| text.as_str().unwrap().split("; ").next().unwrap().to_owned();
    let (node_says, row_says) = (first(&of_node["support_reason"]), first(&row["reason"]));
    assert_eq!(node_says, row_says);
    assert!(!row_says.is_empty(), "{row}");
}

fn command(args: &[&str], data: &Path, env: &[(&'static str, OsString)]) -> Command {
    let mut command = exo(args);
    command.arg("--data-dir").arg(data).envs(env.iter().cloned());
    command
}

/// The description of lavapipe's driver.
fn lavapipe() -> Option<PathBuf> {
    let files = std::fs::read_dir("/usr/share/vulkan/icd.d").ok()?.flatten().map(|file| file.path());
    files.into_iter().find(|file| file.to_string_lossy().contains("lvp_icd"))
}

fn registry_path(data: &Path) -> PathBuf {
    data.join("gpu_registry.json")
}

/// The registry as if four emulated cards had been looked at before: what each can do, and the outcome of its
/// trial.
fn write_registry(data: &Path, rate: f64, failed: Option<&str>) {
    let card = |address: &str| {
        json!({
            "name": "Emulated CUDA card", "vendor": 0x10de, "device": 0, "pci_address": address, "uuid": null,
            "seen_unix_s": 1, "backends": {"cuda": {
                "driver": "CUDA 12.0, compute capability 8.0", "memory_bytes": 1 << 30,
                "calibration_version": exo_device::CALIBRATION_VERSION,
                "read_bytes_per_s": rate, "flops_per_s": rate, "verified_unix_s": 1, "trouble": null,
                "trial": {"version": env!("CARGO_PKG_VERSION"), "at_unix_s": now(), "failed": failed},
            }},
        })
    };
    let addresses = (0..4).map(|n| format!("0000:e{n}:00.0"));
    let devices = addresses.map(|address| (format!("{address} 10de:0000"), card(&address)));
    let all = json!({"version": 1, "devices": devices.collect::<serde_json::Map<_, _>>()});
    std::fs::create_dir_all(data).unwrap();
    std::fs::write(registry_path(data), all.to_string()).unwrap();
}

/// The same, with the first card in quarantine for so long.
fn write_quarantine(data: &Path, left_s: u64) {
    write_registry(data, 1e15, None);
    let mut all: Value = serde_json::from_slice(&std::fs::read(registry_path(data)).unwrap()).unwrap();
    let (since, until) = (now(), now() + left_s);
    let quarantine = json!({"since_unix_s": since, "until_unix_s": until, "reason": "it was lost 4 times"});
    all["devices"]["0000:e0:00.0 10de:0000"]["backends"]["cuda"]["quarantine"] = quarantine;
    std::fs::write(registry_path(data), all.to_string()).unwrap();
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

fn registry_entry(data: &Path) -> Value {
    let all: Value = serde_json::from_slice(&std::fs::read(registry_path(data)).unwrap()).unwrap();
    all["devices"]["0000:e0:00.0 10de:0000"]["backends"]["cuda"].clone()
}

#[test]
fn it_is_the_default_and_flag_variable_and_file_overrule_it() {
    let config = |command: &mut Command| {
        let all: Value = serde_json::from_str(&stdout(&finish(command, SOON))).unwrap();
        all["backend"]["value"].clone()
    };
    let ask = &["config", "--json"];
    assert_eq!(config(exo(ask).env_remove("EXO_BACKEND")), "auto");
    assert_eq!(config(exo(ask).env("EXO_BACKEND", "vulkan")), "vulkan");
    assert_eq!(config(exo(ask).args(["--backend", "metal"]).env("EXO_BACKEND", "vulkan")), "metal");
}

#[test]
fn a_program_that_plays_a_card_is_not_chosen_and_that_is_said_everywhere() {
    let Some(icd) = lavapipe() else {
        return skip("a_program_that_plays_a_card", "lavapipe is not installed");
    };
    let folder = tempfile::tempdir().unwrap();
    let env = drivers(&icd, false);
    let mut node = start(folder.path(), &env, &[]);
    let (id, why) = answers(&mut node);
    assert_eq!(id, "cpu");
    assert!(
        why.contains("chosen because nothing faster can be used; not used: llvmpipe")
            && why.contains("(vulkan:0): it is a software adapter"),
        "{why}"
    );
    assert!(node.log().contains(&why), "said at the start: {}", node.log());
    assert!(!node.log().contains("warning"), "{}", node.log());
    assert!(flat(&stdout(&node.exo(&["status"]))).contains(&why));
    let rows = finish(&mut command(&["devices", "--json"], folder.path(), &env), SOON);
    let rows: Vec<Value> = serde_json::from_str(&stdout(&rows)).unwrap();
    assert_eq!((&rows[0]["chosen"], &rows[1]["chosen"]), (&true.into(), &false.into()), "{rows:?}");
    let reason = rows[1]["reason"].as_str().unwrap();
    drop(node);
    let named = Start { env, ..Start::alone("auto", &["--backend", "vulkan"]) };
    let node = Node::start_in(folder.path(), named);
    assert_same_support(&device(&node), &rows[1], "partial");
    assert!(
        reason.contains("no node takes it by itself; --backend vulkan --device 0 asks for it"),
        "{reason}"
    );
}

#[test]
fn a_model_that_a_card_has_no_kernels_for_is_refused_before_anything_is_loaded() {
    let Some(icd) = lavapipe() else {
        return skip("a_model_that_a_card_has_no_kernels_for", "lavapipe is not installed");
    };
    let folder = tempfile::tempdir().unwrap();
    let start = Start { env: drivers(&icd, false), ..Start::alone("kernels", &["--backend", "vulkan"]) };
    let node = Node::start_in(&folder.path().join("data"), start);
    assert!(device(&node)["unsupported_types"].as_array().unwrap().contains(&"Q2_K".into()));
    for (name, dtype) in [("half", DType::F16), ("two", DType::Q2_K)] {
        let path = folder.path().join(format!("{name}.gguf"));
        zeros_of(&path, &Zeros { layers: 2, hidden: 256, ffn: 512, heads: 8, ..Zeros::SMALL }, dtype);
        node.post("/exo/v1/models", &json!({"path": path, "name": name})).good();
    }
    good(node.exo(&["plan", "half"]));
    for command in ["plan", "place"] {
        let refused = node.exo(&[command, "two"]);
        let said = flat(&stderr(&refused));
        assert!(!refused.status.success(), "{command}: {}", stdout(&refused));
        assert!(said.contains("no device can run the types of weights that the model has"), "{said}");
        assert!(said.contains("it cannot run Q2_K weights, which layers 0 to 1 need"), "{said}");
    }
    assert_eq!(node.get("/exo/v1/instances"), json!([]), "nothing is placed");
}

#[test]
fn without_any_driver_there_is_nothing_to_say() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = start(folder.path(), &drivers(Path::new(NOWHERE), false), &[]);
    let (id, why) = answers(&mut node);
    assert_eq!(id, "cpu");
    let has_card = !exo_device::graphics_cards(Path::new("/")).is_empty();
    assert_eq!(why.contains("no driver shows it"), has_card, "{why}");
    // A busy machine may say that its cache was measured.
    assert_eq!(why.is_empty() || why.contains("last cache"), !has_card, "{why}");
}

#[test]
fn a_driver_whose_description_leads_nowhere_is_a_warning_and_the_processor_answers() {
    if lavapipe().is_none() {
        return skip("a_description_that_leads_nowhere", "no loader of Vulkan");
    }
    let folder = tempfile::tempdir().unwrap();
    let icd = icd(folder.path(), Path::new("/nonexistent/driver.so"));
    let mut node = start(&folder.path().join("data"), &drivers(&icd, false), &[]);
    let (id, why) = answers(&mut node);
    assert_eq!(id, "cpu");
    let told = "names the library /nonexistent/driver.so, which is not there";
    assert!(why.contains("what vulkan would show: ") && why.contains(told), "{why}");
    assert!(node.log().contains(told), "{}", node.log());
}

#[test]
fn a_driver_that_crashes_is_one_warning_and_the_processor_answers() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("driver.so");
    if lavapipe().is_none() || !shared_library(&library, CRASHES) {
        return skip("a_driver_that_crashes_is_one_warning", "no C compiler, or no loader of Vulkan");
    }
    let icd = icd(folder.path(), &library);
    let mut node = start(&folder.path().join("data"), &drivers(&icd, false), &[]);
    let (id, why) = answers(&mut node);
    assert_eq!(id, "cpu");
    assert!(why.contains("what vulkan would show: the vulkan driver ended the process"), "{why}");
    let log = node.log();
    assert_eq!(log.matches("warning:").count(), 1, "{log}");
    assert!(
        log.contains("the vulkan driver ended the process that asked it")
            && log.contains("install that driver again"),
        "{log}"
    );
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn a_card_is_chosen_once_it_has_given_the_known_answer() {
    let (folder, env) = (tempfile::tempdir().unwrap(), drivers(Path::new(NOWHERE), true));
    let data = folder.path();
    // No name, no speed, but an answer: the first look, by a command that ends at once.
    let look = ["run", "demo", "Who are you?", "--max-tokens", "1", "--backend", "auto", "--log", "error"];
    good(finish(&mut command(&look, data, &env), TRIAL_MAX));
    let entry = registry_entry(data);
    assert_eq!((&entry["trial"]["failed"], &entry["trouble"]), (&Value::Null, &Value::Null), "{entry}");
    assert_eq!(entry["trial"]["version"], env!("CARGO_PKG_VERSION"));
    // An emulated card is slower than the processor that plays it.
    let mut node = start(data, &env, &[]);
    let (id, why) = answers(&mut node);
    assert_eq!(id, "cpu");
    assert!(why.contains("Emulated CUDA card (cuda:0): slower than the processor: "), "{why}");
    drop(node);
    // Named, it need not be faster.
    let node = start(data, &env, &["--device", "emulated"]);
    assert!(device(&node)["support_reason"].as_str().unwrap().ends_with("chosen by its name"));
    assert_eq!(device(&node)["id"], "cuda-0");
    // What was placed on the processor follows.
    wait_for("the model on the card", SOON, || {
        let instance = node.get("/exo/v1/cluster")["instances"][0].clone();
        let is_there = instance["stages"][0]["device"] == "cuda-0" && instance["state"]["kind"] == "ready";
        is_there.then_some(())
    });
}

#[test]
fn a_fast_card_is_chosen_answers_as_the_processor_and_gives_way_when_it_cannot_be_used() {
    let (folder, env) = (tempfile::tempdir().unwrap(), drivers(Path::new(NOWHERE), true));
    let data = folder.path().join("data");
    write_registry(&data, 1e15, None);
    let mut node = start(&data, &env, SLOW_PROCESSOR);
    let (id, why) = answers(&mut node);
    assert_eq!(id, "cuda-0", "{why}");
    assert!(why.contains("chosen as the fastest: 1 ms for what takes the processor "), "{why}");
    assert!(node.log().contains(&why), "{}", node.log());
    let rows = finish(&mut command(&["devices", "--json"], &data, &env), SOON);
    let rows: Vec<Value> = serde_json::from_str(&stdout(&rows)).unwrap();
    let card = rows.iter().find(|row| row["pci_address"] == "0000:e0:00.0").unwrap();
    assert_eq!((&rows[0]["chosen"], &card["chosen"]), (&false.into(), &true.into()));
    assert_same_support(&device(&node), card, "experimental");
    let reason = card["reason"].as_str().unwrap();
    assert!(
        reason.contains("a node takes it by itself, as cuda:0")
            && reason.contains("--backend cuda --device 0"),
        "{reason}"
    );
    assert!(node.signal("-INT").success(), "{}", node.log());

    // What is measured without a node is measured on what a node would take.
    let bench = ["bench", "demo", "-p", "0", "-n", "2", "-r", "1", "--json", "--backend", "auto"];
    let bench = finish(&mut command(&bench, &data, &env), TRIAL_MAX);
    assert!(stderr(&bench).contains("note: computes on Emulated CUDA card (cuda"), "{}", stderr(&bench));
    assert!(stdout(&bench).contains("\"backend\": \"cuda"), "{}", stdout(&bench));

    // Somebody else has the card: a warning, and the processor.
    let lock = folder.path().join("lock");
    let taken = File::options().create(true).truncate(false).write(true).open(&lock).unwrap();
    taken.lock().unwrap();
    let busy = [&*env, &[("EXO_EMULATED_EXCLUSIVE", lock.into_os_string())]].concat();
    let mut node = start(&data, &busy, &[]);
    let (id, why) = answers(&mut node);
    assert_eq!(id, "cpu");
    assert!(why.contains("(cuda:0): it could not be opened") && why.contains("UNAVAILABLE"), "{why}");
    assert!(node.log().contains("is not used, the processor is: it could not be opened"), "{}", node.log());
    drop(node);
    let mut named =
        command(&["start", "--no-discovery", "--device", "cuda:0", "--backend", "auto"], &data, &busy);
    let named = finish(named.args(["--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0"]), SOON);
    assert_eq!(named.status.code(), Some(1));
    assert!(stderr(&named).contains("Emulated CUDA card (cuda:0) cannot be used"), "{}", stderr(&named));
    drop(taken);
}

#[test]
fn a_card_in_quarantine_at_the_start_computes_once_that_has_ended_without_another_start() {
    let (folder, env) = (tempfile::tempdir().unwrap(), drivers(Path::new(NOWHERE), true));
    let data = folder.path();
    write_quarantine(data, 3600);
    let node = start(data, &env, SLOW_PROCESSOR);
    assert_eq!(ids(&node), ["cuda-0", "cpu"]);
    let [card, processor] = devices(&node).try_into().unwrap();
    let why = card["support_reason"].as_str().unwrap();
    assert_eq!(card["state"], "quarantined");
    assert!(why.contains("in quarantine for another 1 h") && why.contains("lost 4 times"), "{why}");
    let why = processor["support_reason"].as_str().unwrap().to_owned();
    assert!(!why.contains("quarantine"), "the card says it itself: {why}");
    assert_eq!(node.place("demo", 1)["stages"][0]["device"], "cpu");
    support::answers(&node);

    // Half an hour later, as it were: `--retry` would do it at once.
    write_quarantine(data, 0);
    wait_for("the card to be used", SOON, || (device(&node)["state"] == "usable").then_some(()));
    assert!(node.exo(&["unload", "demo"]).status.success());
    assert_eq!(node.place("demo", 1)["stages"][0]["device"], "cuda-0", "{}", node.log());
    support::answers(&node);
    assert_eq!(ids(&node), ["cuda-0", "cpu"], "for what the card does not hold");
}

/// Asks `node` to have a device of the node `of` tried again.
fn retry(node: &Node, of: &str, device: &str) -> Answer {
    node.call("POST", &format!("/exo/v1/members/{of}/devices/{device}/retry"), None)
}

#[test]
fn a_person_has_a_card_in_quarantine_tried_again_while_the_node_runs() {
    let (folder, env) = (tempfile::tempdir().unwrap(), drivers(Path::new(NOWHERE), true));
    let data = folder.path();
    write_quarantine(data, 3600);
    let node = start(data, &env, SLOW_PROCESSOR);
    assert_eq!(device(&node)["state"], "quarantined");
    let own = node.get("/exo/v1/cluster")["self_node"].as_str().unwrap().to_owned();
    assert_eq!(retry(&node, &own, "cpu").code(), "conflict");
    assert_eq!(retry(&node, &own, "cuda-7").code(), "not_found");
    assert_eq!(retry(&node, &"a".repeat(52), "cuda-0").code(), "not_found");
    assert_eq!(retry(&node, &own, "cuda-0").status, 204);
    wait_for("the card to be used", SOON, || (device(&node)["state"] == "usable").then_some(()));
    let registry = std::fs::read_to_string(registry_path(data)).unwrap();
    assert!(!registry.contains("lost 4 times"), "a restart does not keep it off either: {registry}");
}

#[test]
fn a_card_in_quarantine_is_tried_again_from_another_node() {
    let (folder, env) = (tempfile::tempdir().unwrap(), drivers(Path::new(NOWHERE), true));
    write_quarantine(folder.path(), 3600);
    let (group, flags) = ("retried", vec!["--backend=auto".to_owned()]);
    let start = Start { name: "carded", group, flags, env, ..Start::default() };
    let mut carded = Node::start_in(folder.path(), start.clone());
    let other = Node::start(Start { name: "other", group, ..Start::default() });
    let card = || {
        let view = other.get("/exo/v1/cluster");
        let node = view["nodes"].as_array()?.iter().find(|node| node["name"] == "carded")?.clone();
        let card = node["devices"].as_array()?.iter().find(|device| device["id"] == "cuda-0")?.clone();
        Some((node["id"].as_str()?.to_owned(), card["state"].as_str()?.to_owned()))
    };
    let (of, state) = wait_for("the card at the other node", SOON, card);
    assert_eq!(state, "quarantined");
    carded.kill();
    wait_for("the node to be lost", SOON, || {
        let view = other.get("/exo/v1/cluster");
        let node = view["nodes"].as_array()?.iter().find(|node| node["name"] == "carded")?;
        (node["status"] == "lost").then_some(())
    });
    let gone = retry(&other, &of, "cuda-0");
    assert!(
        gone.status == 503 && gone.body.contains("carded was not asked: it is not there"),
        "{}",
        gone.body
    );

    let _carded = Node::start_in(folder.path(), start);
    wait_for("the node to be back", SOON, || (other.sees().len() == 2).then_some(()));
    assert_eq!(retry(&other, &of, "cpu").code(), "conflict");
    assert_eq!(retry(&other, &of, "cuda-0").status, 204);
    wait_for("the card to be used", SOON, || (card()?.1 == "usable").then_some(()));
}

#[test]
fn every_card_that_may_be_used_is_and_the_processor_takes_what_they_do_not_hold() {
    let (folder, mut env) = (tempfile::tempdir().unwrap(), drivers(Path::new(NOWHERE), true));
    let (data, taken) = (folder.path().join("data"), folder.path().join("taken"));
    env.retain(|(name, _)| *name != "EXO_EMULATED_CARDS"); // two
    env.push(("EXO_EMULATED_TAKEN", taken.clone().into_os_string()));
    write_registry(&data, 1e15, None);
    let mut node = start(&data, &env, SLOW_PROCESSOR);
    assert_eq!(ids(&node), ["cuda-0", "cuda-1", "cpu"]);
    let (id, why) = answers(&mut node);
    assert_eq!(id, "cuda-0");
    assert!(why.contains("with it Emulated CUDA card (cuda:1) (1 ms)"), "{why}");
    let rows = finish(&mut command(&["devices", "--json"], &data, &env), SOON);
    let rows: Vec<Value> = serde_json::from_str(&stdout(&rows)).unwrap();
    let chosen = rows.iter().filter(|row| row["chosen"] == true);
    assert_eq!(chosen.map(|row| row["backends"][0].clone()).collect::<Vec<_>>(), ["cuda:0", "cuda:1"]);
    assert!(node.exo(&["unload", "demo"]).status.success());
    assert!(node.signal("-INT").success(), "{}", node.log());
    // Others have left less on the cards than the model needs, beside the 256 MiB that we leave free.
    std::fs::write(&taken, ((1u64 << 30) - (260 << 20)).to_string()).unwrap();
    let node = start(&data, &env, SLOW_PROCESSOR);
    assert_eq!(ids(&node), ["cuda-0", "cuda-1", "cpu"], "{}", node.log());
    let instance = node.place("demo", 1);
    assert_eq!(instance["stages"][0]["device"], "cpu", "{instance:#}");
    support::answers(&node);
}

/// From the start of a node to its API, so many cards open and verified, and what it logged of each phase of
/// each card.
fn ready(cards: usize) -> (Duration, Vec<String>) {
    let (folder, mut env) = (tempfile::tempdir().unwrap(), drivers(Path::new(NOWHERE), true));
    env.push(("EXO_EMULATED_CARDS", cards.to_string().into()));
    write_registry(folder.path(), 1e15, None);
    let began = Instant::now();
    let node = start(folder.path(), &env, &["--log", "info"]);
    let took = began.elapsed();
    let expected: Vec<String> = (0..cards).map(|n| format!("cuda-{n}")).chain(["cpu".to_owned()]).collect();
    assert_eq!(ids(&node), expected, "{}", node.log());
    assert!(devices(&node).iter().all(|device| device["state"] == "usable"), "{}", node.log());
    let told = |line: &str| Some(line.split_once("events::device: phase=")?.1.replace(['\\', '"'], ""));
    let phases = wait_for("the phases of each card", SOON, || {
        let phases: Vec<String> = node.log().lines().filter_map(told).collect();
        (phases.len() >= 4 * cards).then_some(phases)
    });
    (took, phases)
}

#[test]
#[allow(clippy::print_stdout)] // for docs/benchmarks.md
fn one_known_card_is_ready_in_three_seconds_and_four_in_five() {
    for (cards, at_most) in [(1, Duration::from_secs(3)), (4, Duration::from_secs(5))] {
        // A busy test machine only ever makes it slower.
        let tries: Vec<_> = std::iter::repeat_with(|| ready(cards)).take(3).collect();
        let (took, phases) = tries.into_iter().min().unwrap();
        println!("{cards} emulated cards: ready in {:.2} s\n{}", took.as_secs_f64(), phases.join("\n"));
        for phase in ["drivers listed", "opened", "verified", "measured"] {
            assert_eq!(phases.iter().filter(|line| line.contains(phase)).count(), cards, "{phases:?}");
        }
        assert!(took < at_most, "{cards} cards: {took:?}\n{phases:?}");
    }
}

#[test]
fn exo_devices_opens_the_cards_of_one_driver_at_once() {
    const OPENS: Duration = Duration::from_secs(4);
    let (folder, mut env) = (tempfile::tempdir().unwrap(), drivers(Path::new(NOWHERE), true));
    env.push(("EXO_EMULATED_CARDS", "4".into()));
    env.push(("EXO_EMULATED_OPENS_MS", OPENS.as_millis().to_string().into()));
    write_registry(folder.path(), 1e15, None); // measuring four would take the processor's time
    let began = Instant::now();
    let output = finish(&mut command(&["devices", "--json"], folder.path(), &env), TRIAL_MAX);
    let took = began.elapsed();
    let all: Vec<Value> = serde_json::from_str(&stdout(&output)).unwrap();
    let rows: Vec<&Value> = all.iter().filter(|row| row["vendor"] == "NVIDIA").collect();
    let places: Vec<_> = rows.iter().map(|row| row["backends"][0].clone()).collect();
    assert_eq!(places, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]);
    for row in rows {
        let open_ms = row["times"]["open_ms"].as_f64().unwrap();
        assert!(row["support"] == "experimental" && open_ms >= OPENS.as_millis() as f64, "{row}");
    }
    assert!(took < 3 * OPENS, "one after the other? {took:?}");
}

#[test]
fn a_card_that_computes_wrong_is_left_out_with_what_it_said_until_it_is_asked_again() {
    let (folder, env) = (tempfile::tempdir().unwrap(), drivers(Path::new(NOWHERE), true));
    let data = folder.path();
    let wrong = [&*env, &[("EXO_EMULATED_SKIPS", OsString::from("rope"))]].concat();
    let look = ["run", "demo", "What is 47 + 38?", "--temperature", "0", "--backend", "auto"];
    let first = good(finish(&mut command(&look, data, &wrong), TRIAL_MAX));
    assert_eq!(stdout(&first).trim(), known()[0].1, "the processor answered");
    let failed = registry_entry(data)["trial"]["failed"].as_str().unwrap().to_owned();
    assert!(
        failed.starts_with("it gave another text than the processor: `")
            && failed.contains("` instead of `7 + 8 = 15")
    );
    // That holds without asking again, and shows.
    let node = start(data, &env, &[]);
    let device_now = device(&node);
    let why = device_now["support_reason"].as_str().unwrap();
    assert_eq!(device_now["id"], "cpu");
    assert!(why.contains("Emulated CUDA card (cuda:0): it gave another text than the processor"), "{why}");
    drop(node);
    let retry = finish(&mut command(&["devices", "--retry"], data, &env), TRIAL_MAX);
    let retry_says = stderr(&retry);
    assert!(
        retry_says.contains("the failed trial of Emulated CUDA card (cuda) is forgotten"),
        "{retry_says}"
    );
    assert!(registry_entry(data)["trial"].is_null());
}

#[test]
fn beside_a_card_that_shares_its_memory_the_processor_is_no_device_of_its_own() {
    let (folder, mut env) = (tempfile::tempdir().unwrap(), drivers(Path::new(NOWHERE), true));
    env.retain(|(name, _)| *name != "EXO_EMULATED_CARDS"); // two
    env.push(("EXO_EMULATED_SHARED", "2".into()));
    write_registry(folder.path(), 1e15, None);
    let mut node = start(folder.path(), &env, SLOW_PROCESSOR);
    assert_eq!(ids(&node), ["cuda-0", "cuda-1"], "its memory would count twice");
    node.place("demo", 1);
    support::answers(&node);
    node.assert_running();
}

#[test]
fn a_driver_that_aborts_while_a_shard_loads_is_tried_a_few_times_and_then_the_processor_answers() {
    let (folder, mut env) = (tempfile::tempdir().unwrap(), drivers(Path::new(NOWHERE), true));
    env.push(("EXO_EMULATED_ABORTS", "100000".into())); // no weight fits, what the check takes does
    write_registry(folder.path(), 1e15, None);
    let mut node = start(folder.path(), &env, SLOW_PROCESSOR);
    assert_eq!(ids(&node), ["cuda-0", "cpu"]);
    node.post("/exo/v1/instances", &json!({"model": "demo"})).good();
    wait_for("the model on the processor", SOON * 2, || {
        let instance = node.get("/exo/v1/cluster")["instances"][0].clone();
        (instance["state"]["kind"] == "ready" && instance["stages"][0]["device"] == "cpu").then_some(())
    });
    support::answers(&node);
    let card = wait_for("the quarantine", SOON, || {
        Some(device(&node)).filter(|device| device["state"] == "quarantined")
    });
    let why = card["support_reason"].as_str().unwrap();
    assert!(why.contains("lost 4 times within 10 minutes") && why.contains("signal: 6"), "{why}");
    assert!(why.contains("emulated driver: assertion failed"), "its last words: {why}");
    assert!(!node.log().contains("panicked"), "{}", node.log());
    node.assert_running();

    // A command that opens the card without a node says what happened, too.
    let (data, look) = (folder.path().join("other"), ["bench", "demo", "-p", "0", "-n", "1", "-r", "1"]);
    write_registry(&data, 1e15, None);
    for backend in [&["--backend", "auto"][..], &["--backend", "cuda", "--device", "0"]] {
        let output = finish(command(&look, &data, &env).args(backend), SOON);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(
            told.contains("ended the process that computed on it (signal: 6") && told.contains("hint: "),
            "{told}"
        );
    }
}

#[test]
fn a_card_that_loses_its_work_is_used_again_beside_the_processor() {
    let (folder, env) = (tempfile::tempdir().unwrap(), drivers(Path::new(NOWHERE), true));
    write_registry(folder.path(), 1e15, None);
    let mut node = start(folder.path(), &env, SLOW_PROCESSOR);
    let (id, _) = answers(&mut node);
    assert_eq!((id.as_str(), ids(&node)), ("cuda-0", vec!["cuda-0".to_owned(), "cpu".to_owned()]));
    let placement = node.get("/exo/v1/cluster")["instances"][0]["placement"].clone();
    let worker = workers_of(node.pid())[0].to_string();
    assert!(Command::new("kill").args(["-KILL", &worker]).status().unwrap().success());
    support::comes_back(&node, &placement);
    support::answers(&node);
    wait_for("the card to be used again", SOON, || (device(&node)["state"] == "usable").then_some(()));
    assert_eq!(ids(&node), ["cuda-0", "cpu"]);
    node.assert_running();
}

#[test]
fn two_first_starts_at_once_try_a_card_once() {
    let (folder, mut env) = (tempfile::tempdir().unwrap(), drivers(Path::new(NOWHERE), true));
    // Two at once would get in each other's way.
    env.push(("EXO_EMULATED_EXCLUSIVE", folder.path().join("lock").into_os_string()));
    let data = folder.path().join("data");
    let look = ["bench", "demo", "-p", "0", "-n", "1", "-r", "1", "--backend", "auto"];
    let told: Vec<String> = std::thread::scope(|scope| {
        let look = || {
            let output = good(finish(&mut command(&look, &data, &env), TRIAL_MAX));
            stderr(&output)
        };
        let both = [scope.spawn(look), scope.spawn(look)];
        both.map(|thread| thread.join().unwrap()).into()
    });
    let tried = told.iter().filter(|told| told.contains("(cuda:0) is new here: measured and tried, once"));
    assert_eq!(tried.count(), 1, "{told:?}");
    assert!(told.iter().all(|told| told.contains("slower than the processor")), "both know: {told:?}");
    let entry = registry_entry(&data);
    assert_eq!((&entry["trial"]["failed"], &entry["trouble"]), (&Value::Null, &Value::Null), "{entry}");
}

#[test]
fn a_device_that_nobody_has_is_refused_with_what_there_is() {
    let (folder, env) = (tempfile::tempdir().unwrap(), drivers(Path::new(NOWHERE), true));
    write_registry(folder.path(), 1e15, None);
    let mut voodoo = command(&["start", "--backend", "auto", "--device", "Voodoo"], folder.path(), &env);
    let voodoo = finish(&mut voodoo, SOON);
    assert_eq!(voodoo.status.code(), Some(1));
    let told = stderr(&voodoo);
    assert!(
        told.contains("is called `Voodoo`") && told.contains("there is: Emulated CUDA card (cuda:0)"),
        "{told}"
    );
}

/// What `exo doctor` says of graphics: how it judges it, and what it found.
fn diagnosis(
    data: &Path,
    env: &[(&'static str, OsString)],
    backend: &str,
) -> (Option<i32>, Vec<(String, String)>) {
    let doctor =
        ["doctor", "--json", "--no-discovery", "--api-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    let output = finish(command(&doctor, data, env).args(["--backend", backend]), TRIAL_MAX);
    let all: Vec<Value> =
        serde_json::from_str(&stdout(&output)).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
    let word = |check: &Value, name: &str| check[name].as_str().unwrap().to_owned();
    let graphics = all.iter().filter(|check| check["check"] == "graphics");
    (output.status.code(), graphics.map(|check| (word(check, "verdict"), word(check, "found"))).collect())
}

#[test]
fn the_doctor_knows_the_cards_that_nodes_compute_on_and_the_drivers_that_are_broken() {
    let (folder, env) = (tempfile::tempdir().unwrap(), drivers(Path::new(NOWHERE), true));
    let data = folder.path();
    write_registry(data, 1e15, None);
    let before = std::fs::read(registry_path(data)).unwrap();
    let (code, told) = diagnosis(data, &env, "auto");
    let [(verdict, found)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((code, verdict.as_str()), (Some(0), "ok"));
    assert!(
        found.contains("Emulated CUDA card (cuda:0)") && found.contains("a node takes it by itself"),
        "{found}"
    );
    assert_eq!(std::fs::read(registry_path(data)).unwrap(), before, "a doctor changes nothing");
    let (_, told) = diagnosis(data, &env, "cuda");
    assert!(told[0].0 == "ok" && told[0].1.contains("as the settings ask"), "{told:?}");
    // Nothing shows a card there, and a node that is told to use it does not start.
    let none = drivers(Path::new(NOWHERE), false);
    let (code, told) = diagnosis(data, &none, "vulkan");
    assert!(code == Some(1) && told[0].0 == "broken", "{told:?}");
    assert!(told[0].1.contains("vulkan shows no graphics processor"), "{told:?}");
    let (code, told) = diagnosis(data, &none, "auto");
    assert_eq!((code, told[0].0.as_str()), (Some(0), "note"), "{told:?}");

    let Some(icd) = lavapipe() else {
        return skip("the_doctor_knows_the_cards", "lavapipe is not installed");
    };
    let (_, told) = diagnosis(data, &drivers(&icd, false), "vulkan");
    assert!(told[0].0 == "ok" && told[0].1.contains("llvmpipe"), "{told:?}");
    let (_, told) = diagnosis(data, &drivers(&icd, false), "auto");
    assert!(told[0].0 == "note" && told[0].1.contains("a software adapter"), "{told:?}");
    let nowhere = drivers(Path::new("/nonexistent.json"), false);
    let (code, told) = diagnosis(data, &nowhere, "auto");
    let broken = told.iter().find(|(_, found)| found.contains("VK_DRIVER_FILES names /nonexistent.json"));
    assert!(code == Some(0) && broken.is_some_and(|(verdict, _)| verdict == "warning"), "{told:?}");
    let library = data.join("crashes.so");
    assert!(shared_library(&library, CRASHES));
    let (code, told) = diagnosis(data, &drivers(&support::icd(data, &library), false), "vulkan");
    assert!(code == Some(1) && told[0].0 == "broken", "no node starts: {told:?}");
    assert!(told[0].1.contains("the vulkan driver ended the process that asked it"), "{told:?}");
}

/// The row of a driver that shows nothing.
fn driver_row(rows: &Output, backend: &str) -> Option<Value> {
    let rows: Vec<Value> = serde_json::from_str(&stdout(rows)).unwrap();
    rows.into_iter().find(|row| row["name"] == format!("(driver of {backend})"))
}

#[test]
fn drivers_that_hang_cost_their_bound_once_until_somebody_asks_again() {
    let folder = tempfile::tempdir().unwrap();
    let (cuda, vulkan) = (folder.path().join("libcuda.so.1"), folder.path().join("vulkan.so"));
    if !shared_library(&cuda, HANGS) || !shared_library(&vulkan, HANGS) {
        return skip("drivers_that_hang", "no C compiler");
    }
    let mut env = drivers(&icd(folder.path(), &vulkan), false);
    env.push(("LD_LIBRARY_PATH", folder.path().into()));
    // Without a loader of Vulkan nobody loads its drivers.
    let hang: &[&str] = if lavapipe().is_some() { &["cuda", "vulkan"] } else { &["cuda"] };
    let data = folder.path().join("data");
    let look = ["run", "demo", "Who are you?", "--max-tokens", "1", "--backend", "auto"];
    let first = good(finish(&mut command(&look, &data, &env), TRIAL_MAX));
    for backend in hang {
        let told = format!("the {backend} driver did not answer within 20 s and is not used");
        assert!(stderr(&first).contains(&told), "{}", stderr(&first));
    }
    // The next start waits for none of them, and says so.
    let began = Instant::now();
    let mut node = start(&data, &env, &[]);
    assert!(began.elapsed() < NOT_ASKED_MAX, "{:?}", began.elapsed());
    let (id, why) = answers(&mut node);
    assert_eq!(id, "cpu");
    assert!(!node.log().contains("warning:"), "{}", node.log());
    drop(node);
    let rows = finish(&mut command(&["devices", "--json"], &data, &env), NOT_ASKED_MAX);
    for backend in hang {
        let told = format!("the {backend} driver is in quarantine for another");
        let row = driver_row(&rows, backend).unwrap();
        let reason = row["reason"].as_str().unwrap();
        assert!(why.contains(&told) && reason.starts_with(&told), "{why}\n{row}");
        assert!(reason.contains("it did not answer within 20 s; `exo devices --retry` ends that"), "{row}");
        assert!(row["quarantine"]["until_unix_s"].as_u64().unwrap() > now() + 5 * 3600, "{row}");
    }
    // Asked again, one that works answers at once, and nothing is kept of it.
    assert!(shared_library(&cuda, NO_DRIVER) && shared_library(&vulkan, NO_DRIVER));
    let retry = finish(&mut command(&["devices", "--json", "--retry"], &data, &env), NOT_ASKED_MAX);
    for backend in hang {
        let told = format!("the {backend} driver, which had not answered, is asked again");
        assert!(stderr(&retry).contains(&told), "{}", stderr(&retry));
    }
    let row = driver_row(&retry, "cuda").unwrap();
    assert!(row["reason"].as_str().unwrap().contains("answered with nonsense"), "{row}");
    assert!(driver_row(&retry, "vulkan").is_none(), "{}", stdout(&retry));
    assert!(std::fs::read_to_string(registry_path(&data)).is_ok_and(|all| !all.contains("\"cuda\"")));
}
