//! `exo plan` on a described cluster and on a running node, what stands beside a placement, and placing anew.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::time::Duration;

use crate::support::{
    self, Node, Start, Zeros, flat, good, json_of, must_refuse, run, stderr, stdout, wait_for,
};
use serde_json::{Value, json};

const LAB: &str = r#"
[[device]]
node = "desktop"
device = "gpu0"
kind = "discrete_gpu"
memory_gib = 24
read_gb_s = 800

[[device]]
node = "mac"
device = "gpu0"
kind = "integrated_gpu"
memory_gib = 48
read_gb_s = 270

[[device]]
node = "phone"
memory_gib = 6
read_gb_s = 20

[[link]]
from = "desktop"
to = "mac"
rtt_ms = 0.6
mbit_s = 1000
"#;

/// `exo plan` of a 70B model on the cluster above, with these flags.
fn lab(flags: &[&str]) -> std::process::Output {
    described(LAB, flags)
}

/// The same on this cluster.
fn described(cluster: &str, flags: &[&str]) -> std::process::Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lab.toml");
    std::fs::write(&file, cluster).unwrap();
    let cluster = ["plan", "--shape", "llama-70b", "--cluster", file.to_str().unwrap(), "--slots", "1"];
    run(&[&cluster, flags].concat())
}

fn stages(plan: &Value) -> Vec<String> {
    let text = |s: &Value| {
        format!("{} {}..{}", s["node_name"].as_str().unwrap(), s["layers"]["start"], s["layers"]["end"])
    };
    plan["stages"].as_array().unwrap().iter().map(text).collect()
}

#[test]
fn a_shape_is_planned_on_the_cluster_that_runs_and_without_one_on_this_machine() {
    let shape = ["plan", "--shape", "tiny-llama", "--json"];
    let node = Node::start(Start { name: "attic", group: "shapes", ..Start::default() });
    let plan = json_of(node.exo(&shape));
    assert_eq!(stages(&plan), ["attic 0..8"]);
    assert_eq!(plan["model"], "tiny-llama Q4_K_M");
    let folder = tempfile::tempdir().unwrap();
    let here = ["--data-dir", folder.path().to_str().unwrap(), "--backend", "cpu", "--name", "cellar"];
    assert_eq!(stages(&json_of(run(&[&shape[..], &here].concat()))), ["cellar 0..8"]);
}

#[test]
fn a_described_cluster_is_planned_without_a_node_or_a_file() {
    let planned = |flags: &[&str]| -> Value { json_of(lab(&[flags, &["--json"]].concat())) };
    let plan = planned(&[]);
    assert_eq!(plan["stages"].as_array().unwrap().len(), 2, "{plan}");
    assert_eq!(plan["gap_percent"], 0.0);
    let rate = &plan["predicted"]["tokens_per_s"];
    let [low, expected, high] = ["low", "expected", "high"].map(|key| rate[key].as_f64().unwrap());
    // 22.7 GiB at 800 GB/s and 16.9 GiB at 270 GB/s, a hop and back: about 98 ms a token.
    assert!((8.0..12.0).contains(&expected) && low < expected && expected < high, "{rate}");
    assert_eq!(plan, planned(&[]), "the same question has the same answer");
    assert_eq!(stages(&planned(&["--pin", "phone=0..3"]))[0], "phone 0..3");
    assert_eq!(stages(&planned(&["--exclude", "desktop"])), ["mac 0..80"]);
    let text = flat(&stdout(&lab(&[])));
    assert!(text.contains("phone cpu") && text.contains("no layer: adding it costs"), "{text}");
    assert!(text.contains("no plan is faster"), "{text}");
    // What does not go into the context with its answer is cut, and that is told.
    assert!(text.contains("first token of a prompt of 512 after "), "{text}");
    let long = flat(&stdout(&lab(&["--prompt", "8000", "--answer", "192"])));
    assert!(long.contains("first token of a prompt of 4000 after "), "{long}");
    assert!(text.contains("from mac to desktop: a round trip of 0.600 ms (stated)"), "{text}");
}

/// The model alone on each device, without those that the plan uses, and with the one that it leaves out.
#[test]
fn other_plans_stand_beside_the_plan_with_their_times_or_the_bytes_that_are_missing() {
    let plan = json_of(lab(&["--json"]));
    let other = |kind: &str, node: &str| -> Value {
        let all = plan["alternatives"].as_array().unwrap();
        let found = all.iter().find(|other| other["kind"] == kind && other["node_name"] == node);
        found.unwrap_or_else(|| panic!("{kind} {node}: {plan}")).clone()
    };
    assert_eq!(plan["alternatives"].as_array().unwrap().len(), 6, "{plan}");
    let excluded = json_of(lab(&["--json", "--exclude", "desktop"]));
    let pinned = json_of(lab(&["--json", "--pin", "phone"]));
    for (found, asked) in [
        (other("with", "phone"), &pinned),
        (other("without", "desktop"), &excluded),
        (other("alone", "mac"), &excluded),
    ] {
        let found = &found["plan"];
        assert_eq!(stages(found), stages(asked), "{found}");
        assert_eq!(found["predicted"], asked["predicted"], "{found}");
        assert_eq!(found["objective_ms"], asked["objective_ms"], "{found}");
        assert!(found["objective_ms"].as_f64() >= plan["objective_ms"].as_f64(), "{found}");
    }
    for (kind, node) in [("alone", "desktop"), ("alone", "phone"), ("without", "mac")] {
        let none = other(kind, node);
        let missing = none["missing_bytes"].as_u64().unwrap();
        assert!(none["plan"].is_null() && missing > 10 << 30, "{none}");
    }
    let text = stdout(&lab(&[]));
    for said in ["alone on mac/gpu0", "without desktop/gpu0", "with phone/cpu", "impossible:"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    // What a pin forbids is shown, and that it does.
    let alone = stdout(&lab(&["--pin", "phone"]));
    assert!(alone.contains("alone on mac/gpu0, not as asked"), "{alone}");
}

/// Planned times are whole nanoseconds, so that every machine says the same. `plan/lab.json` was written by
/// this command on x86-64 Linux; a change of formulas writes it anew, with `EXO_WRITE_GOLDEN=1`.
#[test]
fn the_plan_of_a_described_cluster_is_the_committed_one_byte_by_byte() {
    let output = good(lab(&["--json"]));
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plan/lab.json");
    if std::env::var_os("EXO_WRITE_GOLDEN").is_some() {
        std::fs::write(&golden, &output.stdout).unwrap();
    }
    assert_eq!(stdout(&output), std::fs::read_to_string(golden).unwrap());
}

#[test]
fn a_described_device_without_kernels_for_a_type_gets_no_layer() {
    let without = |devices: &[&str]| {
        let lacks = |text: String, name: &&str| {
            let device = format!("node = \"{name}\"\n");
            text.replace(&device, &format!("{device}unsupported_types = [\"Q4_K\"]\n"))
        };
        // A link names the node, too, but no line of it begins so.
        devices.iter().fold(LAB.to_owned(), lacks)
    };
    let plan = json_of(described(&without(&["desktop"]), &["--json"]));
    assert_eq!(stages(&plan), ["mac 0..80"]);
    let reason = plan["devices"][0]["reason"].as_str().unwrap();
    assert_eq!(reason, "it cannot run Q4_K weights, which layers 0 to 79 need");
    let pinned = stderr(&described(&without(&["desktop"]), &["--pin", "desktop"]));
    assert!(pinned.contains("the pin of desktop gpu0 cannot be met: it cannot run Q4_K weights"), "{pinned}");
    let none = stderr(&described(&without(&["desktop", "mac", "phone"]), &[]));
    assert!(none.contains("no device can run the types of weights that the model has"), "{none}");
    assert!(none.contains("phone cpu: it cannot run Q4_K weights, which layers 0 to 79 need"), "{none}");
    let other = described(&without(&["desktop", "mac", "phone"]), &["--type", "q8_0", "--context", "512"]);
    assert!(other.status.success(), "they run another type: {}", stderr(&other));
}

/// A link that the file does not have is one of which nothing is known, and the plan says so.
#[test]
fn a_described_link_counts_both_ways_and_without_one_its_numbers_are_estimated() {
    let link = LAB.find("[[link]]").unwrap();
    let back = LAB[link..].replace("from = \"desktop\"", "from = \"mac\"");
    let back = back.replace("to = \"mac\"", "to = \"desktop\"");
    let both = described(&format!("{LAB}{back}"), &["--json"]);
    let one_way = json_of(described(LAB, &["--json"]));
    let other_way = described(&format!("{}{back}", &LAB[..link]), &["--json"]);
    for plan in [json_of(both), json_of(other_way)] {
        for of in ["stages", "predicted", "objective_ms", "links"] {
            assert_eq!(plan[of], one_way[of], "{of}");
        }
    }
    let none = json_of(described(&LAB[..link], &["--json", "--exclude", "phone", "--nodes", "2"]));
    let links = none["links"].as_array().unwrap();
    assert_eq!(links.len(), 2, "{none}");
    assert!(links.iter().all(|link| link["rtt_ms"]["source"] == "estimated"), "{none}");
    let hop = |plan: &Value| plan["predicted"]["hop_ms"]["expected"].as_f64().unwrap();
    assert!(hop(&none) > hop(&one_way), "a link of which nothing is known is taken for a slow one");
}

/// The file is named, and what is wrong in it.
#[test]
fn a_file_that_describes_no_cluster_is_refused_by_name() {
    for (wrong, said) in [
        (LAB.replace("memory_gib = 6", "memory_gib = 0"), "memory_gib of phone cpu is 0: it must be above 0"),
        (LAB.replace("memory_gib = 6", "memory_gib = -6"), "memory_gib of phone cpu is -6"),
        (LAB.replace("memory_gib = 6", "memory = 6"), "unknown field `memory`"),
        (LAB.replace("to = \"mac\"", "to = \"attic\""), "no device is of a node `attic`"),
        (LAB.replace("\"mac\"", "\"desktop\""), "desktop gpu0 is there twice"),
    ] {
        let output = described(&wrong, &[]);
        let refused = flat(&stderr(&output));
        assert!(!output.status.success() && stdout(&output).is_empty(), "{refused}");
        assert!(refused.contains("lab.toml describes no cluster"), "{refused}");
        assert!(refused.contains(said), "{said}: {refused}");
    }
}

#[test]
fn memory_that_described_devices_share_is_filled_once() {
    let pc = |name: &str, domain: &str| {
        format!("[[device]]\nnode = \"{name}\"\nmemory_gib = 30\nread_gb_s = 20\n{domain}\n")
    };
    let domain = "memory_domain = { name = \"pc\", free_gib = 30 }";
    let apart = json_of(described(&[pc("a", ""), pc("b", "")].concat(), &["--json"]));
    assert_eq!(apart["stages"].as_array().unwrap().len(), 2, "{apart}");
    let shared = stderr(&described(&[pc("a", domain), pc("b", domain)].concat(), &[]));
    assert!(shared.contains("usable of 30.0 GiB free") && shared.contains("are missing"), "{shared}");
    let half = stderr(&described(&pc("a", "memory_domain = { name = \"pc\", free_gib = 0 }"), &[]));
    assert!(half.contains("free_gib of the memory domain of a cpu is 0: it must be above 0"), "{half}");
}

#[test]
fn what_cannot_be_planned_is_said_with_its_reason() {
    let refused = |flags: &[&str]| must_refuse(lab(flags), "");
    assert!(refused(&["--pin", "laptop"]).contains("there is no device `laptop`"));
    assert!(refused(&["--pin", "phone=x"]).contains("names no layers"));
    assert!(refused(&["--pin", "phone=60"]).contains("the pin of phone cpu cannot be met"));
    let everything = refused(&["--exclude", "phone", "--exclude", "mac", "--exclude", "desktop"]);
    assert!(everything.contains("no device can be used"), "{everything}");
    assert!(refused(&["--streams", "0"]).contains("streams must not be 0"));
    // `lab` has one slot.
    assert!(refused(&["--streams", "2"]).contains("2 streams do not run in 1 slots"));
    // Each change that is named is one that helps.
    let q8 = refused(&["--type", "q8_0", "--context", "30000"]);
    assert!(
        q8.contains("it fits as Q6_K") && lab(&["--type", "q6_k", "--context", "30000"]).status.success(),
        "{q8}"
    );
    assert!(refused(&["--nodes", "0"]).contains("0 is not in 1.."), "{}", refused(&["--nodes", "0"]));
    let nothing = refused(&["--context", "0"]);
    assert!(nothing.contains("a context of 0 tokens holds no prompt"), "{nothing}");
    let untrained = refused(&["--context", "131073"]);
    assert!(
        untrained.contains("made for a context of 131072 tokens, and 131073 are asked for"),
        "{untrained}"
    );
    let long = refused(&["--context", "131072"]);
    assert!(
        long.contains("--kv q8") && lab(&["--context", "131072", "--kv", "q8"]).status.success(),
        "{long}"
    );
    let type_f32 = refused(&["--type", "f32"]);
    assert!(type_f32.contains("are missing") && type_f32.contains("it fits with"), "{type_f32}");
}

/// What is refused for lack of memory, by `exo plan` and by `exo place` alike.
fn refused_by_both(node: &Node, model: &str, flags: &[&str]) -> String {
    let [plan, place] =
        ["plan", "place"].map(|command| must_refuse(node.exo(&[&[command, model], flags].concat()), ""));
    assert!(plan.contains("are missing") && place.contains("are missing"), "{plan}\n{place}");
    let changes = |said: &str| {
        said.split("; ")
            .filter(|s| s.starts_with("it fits as") || s.contains("--kv"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(changes(&plan), changes(&place));
    plan
}

#[test]
fn a_running_node_names_the_cache_with_which_a_model_would_fit() {
    let node = Node::start(Start::alone("smaller", &["--memory-mib=130"]));
    // 154 MiB, most of it cache.
    let wide = ["--cache-tokens", "20000"];
    let said = refused_by_both(&node, "demo", &wide);
    assert!(
        said.contains("it fits with keys and values as q8 (--kv q8)") && !said.contains("it fits as"),
        "{said}"
    );
    good(node.exo(&[&["plan", "demo", "--kv", "q8"], &wide[..]].concat()));
}

/// A described cluster has its nodes' names: their ids are made from these.
fn without_ids(stages: &Value) -> Vec<Value> {
    let mut stages = stages.as_array().unwrap().clone();
    for stage in &mut stages {
        assert!(stage.as_object_mut().unwrap().remove("node").is_some(), "{stage}");
    }
    stages
}

#[test]
fn a_running_node_plans_without_loading_and_shows_predicted_beside_measured() {
    let node = Node::alone();
    // What would have to be fetched is told so.
    let unknown = node.exo(&["plan", "hf.co/org/nothing:Q4_K_M"]);
    let said = stderr(&unknown);
    assert!(!unknown.status.success() && said.contains("`exo plan` fetches nothing"), "{said}");
    assert!(said.contains("`exo fits`"), "{said}");
    let plan = json_of(node.exo(&["plan", "demo", "--json"]));
    assert_eq!(plan["stages"].as_array().unwrap().len(), 1, "{plan}");
    assert_eq!(node.get("/exo/v1/instances"), serde_json::json!([]), "nothing is placed");

    let id = node.place("demo", 1)["id"].as_str().unwrap().to_owned();
    let instance = node.instance(&id).unwrap();
    assert_eq!(instance["predicted"]["tokens_per_s"], plan["predicted"]["tokens_per_s"], "{instance}");
    assert_eq!(node.ask("demo", "one two three").status, 200);
    let status = flat(&stdout(&node.exo(&["status"])));
    assert!(status.contains("predicted for one stream"), "{status}");

    let file = tempfile::tempdir().unwrap();
    let file = file.path().join("here.toml");
    good(node.exo(&["plan", "--save-cluster", file.to_str().unwrap()]));
    let again = json_of(node.exo(&["plan", "demo", "--cluster", file.to_str().unwrap(), "--json"]));
    assert_eq!(without_ids(&again["stages"]), without_ids(&plan["stages"]));
    for of in ["prompt_tokens", "streams"] {
        assert_eq!(again["predicted"][of], plan["predicted"][of], "{of}");
    }
    // Rates go through decimal units: the last digits may differ, and nothing else.
    for (of, part) in ["ttft_ms", "tokens_per_s", "hop_ms", "total_tokens_per_s"]
        .into_iter()
        .flat_map(|of| ["low", "expected", "high"].map(|part| (of, part)))
    {
        let [live, saved] = [&plan, &again].map(|plan| plan["predicted"][of][part].as_f64().unwrap());
        assert!((live - saved).abs() <= 1e-6 * live.abs(), "{of} {part}: {live} live, {saved} saved");
    }
}

#[test]
fn a_saved_cluster_of_two_nodes_of_one_machine_has_its_memory_once_and_the_plan_of_the_live_one() {
    let flags = ["--memory-mib=130".to_owned()].to_vec();
    let start = |name| Node::start(Start { name, group: "saved", flags: flags.clone(), ..Start::default() });
    let nodes = [start("one"), start("two")];
    support::wait_for("both directions of the link", Duration::from_secs(30), || {
        let links = nodes[0].get("/exo/v1/cluster")["links"].as_array().unwrap().clone();
        let is_measured = |l: &Value| l["bytes_per_s"].is_number() && l["rtt_samples"].as_u64() > Some(1);
        (links.len() == 2 && links.iter().all(is_measured)).then_some(())
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("here.toml");
    let file = file.to_str().unwrap();
    // 154 MiB, most of it cache: neither holds it alone.
    let wide = ["plan", "demo", "--cache-tokens", "20000", "--json"];
    // The round trip is measured every second: between two plans it may have changed.
    let text = support::wait_for("a saved cluster as fast as the live one", Duration::from_secs(60), || {
        let live = json_of(nodes[0].exo(&wide));
        good(nodes[0].exo(&["plan", "--save-cluster", file]));
        let saved = json_of(nodes[0].exo(&[&wide[..], &["--cluster", file]].concat()));
        assert_eq!(live["stages"].as_array().unwrap().len(), 2, "{live}");
        assert_eq!(without_ids(&saved["stages"]), without_ids(&live["stages"]));
        let rate = |plan: &Value| plan["predicted"]["tokens_per_s"]["expected"].as_f64().unwrap();
        let is_alike = (rate(&live) / rate(&saved) - 1.0).abs() < 0.25;
        is_alike.then(|| std::fs::read_to_string(file).unwrap())
    });
    let domains: Vec<&str> = text.lines().filter(|line| line.starts_with("name = ")).collect();
    assert!(domains.len() == 2 && domains[0] == domains[1], "one memory: {text}");
    // With less of that memory than both may take, a plan counts it once.
    let little = text.lines().map(|line| match line.starts_with("free_gib = ") {
        true => "free_gib = 0.13",
        false => line,
    });
    std::fs::write(file, little.collect::<Vec<_>>().join("\n")).unwrap();
    let refused = nodes[0].exo(&[&wide[..], &["--cluster", file]].concat());
    assert!(stderr(&refused).contains("are missing"), "{}", stderr(&refused));
}

/// From the start of the command to its end, the node asked in between.
#[cfg(target_os = "linux")]
#[test]
fn a_plan_of_a_model_of_a_gigabyte_takes_less_than_half_a_second_and_reads_no_weight() {
    let node = Node::alone();
    let folder = tempfile::tempdir().unwrap();
    let large = Zeros { context: 2048, layers: 8, hidden: 2048, ffn: 8192, heads: 16, ..Zeros::SMALL };
    node.add_zeros(folder.path(), "large", &large);
    let bytes = std::fs::metadata(folder.path().join("large.gguf")).unwrap().len();
    assert!(bytes > 1_000_000_000, "{bytes}");
    let read =
        || support::counted(node.pid(), "io", "rchar") + support::counted(node.pid(), "io", "read_bytes");
    // What is mapped is read without a call, and then stays in this count.
    let mapped = || support::counted(node.pid(), "status", "RssFile") << 10;
    let before = (read(), mapped());
    let plan = || {
        let began = std::time::Instant::now();
        good(node.exo(&["plan", "large", "--json"]));
        began.elapsed()
    };
    // Others may have the machine for a while; a plan that reads 1 GB never takes so little.
    let times: Vec<Duration> = (0..5).map(|_| plan()).collect();
    let (read, mapped) = (read() - before.0, mapped().saturating_sub(before.1));
    println!("{times:?}, {read} bytes read, {mapped} mapped");
    assert!(times.iter().min().unwrap() < &Duration::from_millis(500), "{times:?}");
    assert!(read < bytes / 20 && mapped < bytes / 20, "{read} bytes read, {mapped} mapped, of {bytes}");
}

#[test]
fn a_second_placement_with_other_numbers_is_an_error_with_the_difference_or_replaces() {
    let node = Node::alone();
    let id = node.place("demo", 1)["id"].as_str().unwrap().to_owned();
    let same = node.exo(&["place", "demo"]);
    assert!(same.status.success() && stdout(&same).contains(&id), "{}", stderr(&same));
    let other = node.exo(&["place", "demo", "--slots", "2", "--context", "64"]);
    let said = stderr(&other);
    assert!(!other.status.success(), "{}", stdout(&other));
    assert!(said.contains("slots and not 2") && said.contains("tokens and not 64"), "{said}");
    let many = stderr(&node.exo(&["place", "demo", "--nodes", "2"]));
    assert!(many.contains("with 1 device and not at least 2"), "{many}");
    for command in ["place", "plan"] {
        must_refuse(node.exo(&[command, "demo", "--nodes", "0"]), "0 is not in 1..");
        must_refuse(
            node.exo(&[command, "demo", "--context", "4096"]),
            "context of 512 tokens, and 4096 are asked for",
        );
    }
    let nothing = node.post("/exo/v1/plan", &json!({"model": "demo", "context_tokens": 0}));
    let said = "a context of 0 tokens holds no prompt; ask for 1 or more";
    assert!(nothing.status == 400 && nothing.body.contains(said), "{}", nothing.body);
    let none = node.post("/exo/v1/plan", &json!({"model": "demo", "nodes_min": 0}));
    assert!(none.status == 400 && none.body.contains("nodes_min must not be 0"), "{}", none.body);
    let anew = good(node.exo(&["place", "demo", "--slots", "2", "--context", "64", "--replace"]));
    let said = flat(&stdout(&anew));
    assert!(
        said.contains("layers 0..8") && said.contains("predicted for one stream"),
        "the plan is shown: {said}"
    );
    assert!(
        said.contains("context 64 · 2 slots") && !stderr(&anew).contains("nothing was replaced"),
        "{said}"
    );
    let same = node.exo(&["place", "demo", "--slots", "2", "--replace"]);
    assert!(same.status.success() && stderr(&same).contains("nothing was replaced"), "{}", stderr(&same));
    let instances = node.get("/exo/v1/instances");
    assert_eq!(instances.as_array().unwrap().len(), 1, "{instances}");
    assert_eq!((&instances[0]["slots"], &instances[0]["context_tokens"]), (&2.into(), &64.into()));
}

#[test]
fn pins_and_exclusions_of_a_placement_are_kept_shown_and_checked() {
    let nodes = support::cluster("pinned", &["one", "two"]);
    let refused = |flags: &[&str]| must_refuse(nodes[0].exo(&[&["place", "demo"], flags].concat()), "");
    let everything = refused(&["--exclude", "one", "--exclude", "two"]);
    assert!(everything.contains("no device can be used") && everything.contains("as asked"), "{everything}");
    let many = refused(&["--pin", "one=5", "--pin", "two=5"]);
    assert!(many.contains("the pins ask for 10 layers, the model has 8: pin fewer"), "{many}");
    let both = refused(&["--pin", "one", "--exclude", "one"]);
    assert!(both.contains("the pin of one") && both.contains("as asked"), "{both}");
    let large = refused(&["--pin", "one=8", "--slots", "512", "--cache-tokens", "60000000"]);
    assert!(large.contains("GiB and has") && large.contains("layers at most: pin fewer"), "{large}");
    assert!(refused(&["--streams", "2"]).contains("--objective"));
    assert!(refused(&["--objective", "throughput", "--nodes", "2"]).contains("leave one out"));

    let placed = nodes[0].exo(&["place", "demo", "--pin", "two=3", "--exclude", "one/nothing"]);
    assert!(stderr(&placed).contains("there is no device `one/nothing`"), "{}", stderr(&placed));
    let placed = good(nodes[0].exo(&["place", "demo", "--pin", "two=3"]));
    let said = flat(&stdout(&placed));
    assert!(said.contains("no plan is faster") && said.contains("pinned two/cpu=3"), "{said}");
    let layers = |instance: &Value| -> Vec<(String, u64)> {
        let stage = |s: &Value| {
            let count = s["layers"]["end"].as_u64().unwrap() - s["layers"]["start"].as_u64().unwrap();
            (s["node_name"].as_str().unwrap().to_owned(), count)
        };
        instance["stages"].as_array().unwrap().iter().map(stage).collect()
    };
    let instances = nodes[1].get("/exo/v1/instances");
    assert!(layers(&instances[0]).contains(&("two".to_owned(), 3)), "{instances}");
    assert!(nodes[1].exo(&["place", "demo", "--pin", "two=3"]).status.success(), "the same again");
    let other = refused(&["--pin", "two=4"]);
    assert!(other.contains("with the pin two/cpu=3 and not the pin two/cpu=4"), "{other}");
    // What is there is not unloaded for what cannot be.
    assert!(refused(&["--pin", "two=9", "--replace"]).contains("9 of 8 layers"));
    assert_eq!(nodes[0].get("/exo/v1/instances").as_array().unwrap().len(), 1);
    good(nodes[0].exo(&["place", "demo", "--exclude", "two", "--replace"]));
    assert_eq!(layers(&nodes[0].get("/exo/v1/instances")[0]), [("one".to_owned(), 8)]);
    // What is replaced is placed as it is asked for now.
    good(nodes[0].exo(&["place", "demo", "--replace"]));
    let instances = nodes[0].get("/exo/v1/instances");
    assert!(instances[0]["exclude"].is_null(), "{instances}");

    let throughput = ["--objective", "throughput", "--streams", "4"];
    let other = refused(&throughput);
    assert!(other.contains("the objective latency and not the throughput of 4 streams"), "{other}");
    let anew = nodes[0].exo(&[&["place", "demo", "--replace"], &throughput[..]].concat());
    assert!(flat(&stdout(&anew)).contains("placed for the throughput of 4 streams"), "{}", stderr(&anew));
    // Other streams are another objective as well, and more than slots cannot be; none named are as many as
    // there are slots.
    let two = ["--objective", "throughput", "--streams", "2"];
    assert!(refused(&two).contains("and not the throughput of 2 streams"));
    let many = refused(&["--objective", "throughput", "--streams", "32", "--slots", "4"]);
    assert!(many.contains("32 streams do not run in 4 slots"), "{many}");
    let one = nodes[0].exo(&[&["place", "demo", "--replace"], &two[..]].concat());
    assert!(flat(&stdout(&one)).contains("placed for the throughput of 2 streams"), "{}", stderr(&one));
    assert!(refused(&two[..2]).contains("streams and not the throughput of"));
}

#[test]
fn the_bandwidth_of_links_is_measured_once_nodes_have_met_and_plans_use_it() {
    let nodes = support::cluster("measured", &["one", "two"]);
    let links = support::wait_for("both directions", Duration::from_secs(30), || {
        let links = nodes[0].get("/exo/v1/cluster")["links"].as_array().unwrap().clone();
        let is_measured = |l: &Value| l["bytes_per_s"].is_number() && l["rtt_samples"].as_u64() > Some(1);
        // The control channel is QUIC, which counts its packets.
        let is_counted = |l: &Value| l["loss"]["packets"].as_u64() > Some(0);
        (links.len() == 2 && links.iter().all(|l| is_measured(l) && is_counted(l))).then_some(links)
    });
    for link in &links {
        let lost = link["loss"]["share"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&lost), "{link}");
        let rate = link["bytes_per_s"].as_f64().unwrap();
        // Loopback: from a slow machine to a fast one.
        assert!((1e6..1e11).contains(&rate), "{link}");
        assert_eq!(link["bandwidth_samples"], 1, "one burst: {link}");
        assert!(link["bandwidth_age_s"].is_number() && link["jitter_ms"].is_number(), "{link}");
    }
    // The other node has it from the reports of a second later.
    let shown = support::wait_for("the same at the other node", support::SOON, || {
        let shown = stdout(&nodes[1].exo(&["status", "--links"]));
        (shown.contains("bandwidth") && !shown.contains("not yet")).then_some(shown)
    });
    assert!(shown.contains("once") && shown.contains("lost"), "{shown}");
    let json: Value = serde_json::from_str(&stdout(&nodes[1].exo(&["status", "--links", "--json"]))).unwrap();
    assert_eq!(json.as_array().map(Vec::len), Some(2), "{json}");
    let file = tempfile::tempdir().unwrap();
    let file = file.path().join("here.toml");
    assert!(nodes[0].exo(&["plan", "--save-cluster", file.to_str().unwrap()]).status.success());
    let saved = std::fs::read_to_string(&file).unwrap();
    assert!(saved.contains("mbit_s"), "{saved}");
}

/// One thread, nothing guessed ahead.
fn calibrated(data_dir: &std::path::Path) -> Node {
    Node::start_in(data_dir, Start::alone("calibrated", &["--threads", "1", "--speculate", "off"]))
}

/// The last answer, as a whole and beside what the same would be expected to take.
fn check_last_alone(node: &Node, id: &str, measured: f64) {
    // A report may have been made while it was answered; the next one tells all of it.
    let alone = wait_for("the last answer as a whole", support::SOON, || {
        let alone = node.instance(id)?["measured_alone"].clone();
        (alone["prompt_tokens"] == 300 && alone["answer_tokens"] == 63).then_some(alone)
    });
    let token_ms = alone["token"]["measured_ms"].as_f64().unwrap();
    assert!((0.5..2.0).contains(&(token_ms * measured / 1e3)), "{alone} beside {measured} tokens/s");
    let first = |what: &str| alone["first_token"][what].as_f64().unwrap();
    assert!(first("measured_ms") > token_ms && first("predicted_ms") > 0.0, "{alone}");
    let status = flat(&stdout(&node.exo(&["status"])));
    assert!(status.contains("last answer alone: first token of a prompt of 300 after"), "{status}");
}

#[test]
fn a_device_that_is_slower_than_believed_gets_a_nearer_second_prediction_and_a_restart_forgets_it() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    let mut node = calibrated(&data_dir);
    node.kill();
    // As if it had been measured in a better moment.
    let registry = data_dir.join("gpu_registry.json");
    let mut kept: Value = serde_json::from_slice(&std::fs::read(&registry).unwrap()).unwrap();
    let raised = raise(&mut kept, 8.0);
    assert!(raised >= 6, "{kept}");
    std::fs::write(&registry, kept.to_string()).unwrap();

    let mut node = calibrated(&data_dir);
    node.add_zeros(folder.path(), "zeros", &Zeros { context: 2048, layers: 2, ..Zeros::BUSY });
    let id = node.place("zeros", 1)["id"].as_str().unwrap().to_owned();
    node.wait_settled(&id);
    let corrections =
        |node: &Node| node.get("/exo/v1/cluster")["nodes"][0]["devices"][0]["corrections"].clone();
    let predicted = |node: &Node| {
        let instance = node.instance(&id).unwrap();
        let expected = |what: &str| instance["predicted"][what]["expected"].as_f64().unwrap();
        (expected("tokens_per_s"), expected("ttft_ms"))
    };
    assert_eq!(corrections(&node), json!({"decode": null, "prefill": null}));
    let believed = predicted(&node);
    for round in 0..4 {
        // No page of it is kept from the one before.
        let prompt: Vec<u32> = (0..300).map(|n| 40 + (n + round) % 60).collect();
        let body = json!({"model": "zeros", "prompt": prompt, "max_tokens": 64, "temperature": 0, "ignore_eos": true});
        node.post("/v1/completions", &body).good();
    }
    let learned = wait_for("what was learned", support::SOON, || {
        let learned = corrections(&node);
        (learned["decode"]["percent"].is_u64() && learned["prefill"]["percent"].is_u64()).then_some(learned)
    });
    let factor = |phase: &str| learned[phase]["percent"].as_u64().unwrap();
    assert!(factor("decode") < 90 && factor("prefill") < 90, "{learned}");
    let measured = node.instance(&id).unwrap()["measured_tokens_per_s"].as_f64().unwrap();
    check_last_alone(&node, &id, measured);
    let corrected = predicted(&node);
    let off = |tokens_per_s: f64| (tokens_per_s / measured).ln().abs();
    assert!(off(corrected.0) < off(believed.0), "{believed:?} {corrected:?} {measured}");
    assert!(corrected.1 > believed.1, "{believed:?} {corrected:?}");
    let text = format!("decode corrected to {} %", factor("decode"));
    for words in [&["status"][..], &["plan", "zeros"]] {
        let shown = flat(&stdout(&node.exo(words)));
        assert!(shown.contains(&text), "{words:?}: {shown}");
    }
    node.kill();
    assert_eq!(corrections(&calibrated(&data_dir)), json!({"decode": null, "prefill": null}));
}

/// Of a model as `exo plan --json` shows them, on the only device.
fn rates(node: &Node, model: &str) -> Value {
    let plan = json_of(node.exo(&["plan", model, "--json"]));
    plan["devices"][0]["rates"].clone()
}

#[test]
fn a_type_of_weights_is_measured_when_it_is_first_loaded_and_plans_say_before_that_it_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    let mut node = calibrated(&data_dir);
    // 40 MiB of F16 and some bytes of F32, which no plan mentions.
    node.add_zeros(folder.path(), "zeros", &Zeros { context: 256, layers: 2, hidden: 1024, ..Zeros::BUSY });
    let types = |node: &Node| node.get("/exo/v1/cluster")["nodes"][0]["devices"][0]["rates_by_type"].clone();
    assert_eq!(types(&node), json!([]), "nobody has loaded any");
    let before = rates(&node, "zeros");
    assert_eq!(before.as_array().map(Vec::len), Some(1), "{before}");
    assert_eq!((&before[0]["dtype"], &before[0]["source"]), (&"F16".into(), &"taken from Q8_0".into()));
    let shown = flat(&stdout(&node.exo(&["plan", "zeros"])));
    assert!(shown.contains("(taken from Q8_0: measured when a model with enough of it"), "{shown}");

    let id = node.place("zeros", 1)["id"].as_str().unwrap().to_owned();
    node.wait_settled(&id);
    let measured = types(&node);
    assert_eq!(measured[0]["dtype"], "F16");
    let passes = measured[0]["measured"]["samples"].as_u64();
    let is_new = measured[0]["measured"]["age_s"].as_u64().is_some_and(|age_s| age_s <= 60);
    assert!(passes > Some(0) && is_new, "{measured}");
    let general = node.get("/exo/v1/cluster")["nodes"][0]["devices"][0]["rates_measured"].clone();
    assert!(general["samples"].as_u64() > Some(0) && general["age_s"].as_u64().is_some(), "{general}");
    let after = rates(&node, "zeros");
    assert_eq!(after[0]["source"], "measured", "{after}");
    assert_eq!(after[0]["samples"].as_u64(), passes, "{after}");
    assert_eq!(after[0]["read_bytes_per_s"], measured[0]["read_bytes_per_s"], "one number everywhere");
    for words in [&["status"][..], &["plan", "zeros"], &["devices", "--backend", "cpu", "--threads", "1"]] {
        let shown = flat(&stdout(&node.exo(words)));
        assert!(shown.contains("F16: ") && !shown.contains("taken from"), "{words:?}: {shown}");
        let says_when = shown.contains(" ago)") || shown.contains(", just now)");
        assert!(words[0] == "plan" || says_when, "how often and when: {words:?}: {shown}");
    }
    let saved = folder.path().join("here.toml");
    assert!(node.exo(&["plan", "--save-cluster", saved.to_str().unwrap()]).status.success());
    let text = std::fs::read_to_string(&saved).unwrap();
    let of_layer = ["prefill_read_gb_s", "attention_tflops", "gactivations_s", "layer_us"];
    for field in of_layer.into_iter().chain(["read_16_rows_gb_s"]) {
        assert!(text.contains(&format!("\n{field} = ")), "measured and written: {text}");
    }
    check_kv_rates(&node, &text);
    let described = json_of(node.exo(&["plan", "zeros", "--cluster", saved.to_str().unwrap(), "--json"]));
    assert_eq!(described["devices"][0]["rates"][0]["source"], "measured", "{described}");
    // It is kept, and nothing is measured again.
    node.kill();
    let node = calibrated(&data_dir);
    let kept = types(&node);
    let fields = ["dtype", "read_bytes_per_s", "flops_per_s", "read_16_rows_bytes_per_s"];
    assert_eq!(fields.map(|field| &kept[0][field]), fields.map(|field| &measured[0][field]), "{kept}");
    let [before, now] = [&measured, &kept].map(|types| &types[0]["measured"]);
    assert_eq!(before["samples"], now["samples"]);
    assert!(before["age_s"].as_u64() <= now["age_s"].as_u64(), "{before} {now}");
}

/// Types of keys and values, each with a rate.
const KV_TYPES: [&str; 3] = ["f32", "f16", "q8"];

/// They are measured, and written to the file of a cluster.
fn check_kv_rates(node: &Node, saved: &str) {
    let layer = node.get("/exo/v1/cluster")["nodes"][0]["devices"][0]["layer_rates"].clone();
    let measured = &layer["kv_read_bytes_per_s"];
    let (_, written) = saved.split_once("kv_gb_s_by_type").unwrap_or_else(|| panic!("{saved}"));
    for of in KV_TYPES {
        assert!(measured[of].as_f64() > Some(0.0), "{measured}");
        assert!(written.contains(&format!("{of} = ")), "{saved}");
    }
}

/// Every rate of the file so many times as high, and every time as short; how many there are.
fn raise(value: &mut Value, times: f64) -> usize {
    match value {
        Value::Object(fields) => fields
            .iter_mut()
            .map(|(name, value)| match (value.as_f64(), name.as_str()) {
                (Some(seconds), "layer_s") => {
                    *value = (seconds / times).into();
                    1
                }
                (Some(rate), name) if name.ends_with("_per_s") || KV_TYPES.contains(&name) => {
                    *value = (rate * times).into();
                    1
                }
                _ => raise(value, times),
            })
            .sum(),
        Value::Array(values) => values.iter_mut().map(|value| raise(value, times)).sum(),
        _ => 0,
    }
}
