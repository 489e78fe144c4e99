//! A disk that takes no byte any more: the commands that an alert names free it, with a node and without one.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::time::Duration;

use crate::support::{another_model, cluster, demo_gguf, exo, finish, flat, good, stderr, stdout, wait_for};
use exo_store::{ChunkRef, Store};

const LONG: Duration = Duration::from_secs(150);

/// Runs in a mount namespace of its own, in which `$DIR` is a small disk.
#[cfg(target_os = "linux")]
const SCRIPT: &str = r#"
mount -t tmpfs -o size=64m none "$DIR"
D="$DIR/data"
start() {
    "$EXO" start --data-dir "$D" --name full --api-listen 127.0.0.1:0 --listen 127.0.0.1:0 --no-discovery >"$LOG" 2>&1 &
    PID=$!
    for i in $(seq 300); do
        "$EXO" models --data-dir "$D" >/dev/null 2>&1 && return
        kill -0 $PID 2>/dev/null || return 0
        sleep 0.1
    done
}
PID=; trap '[ -z "$PID" ] || kill -9 $PID 2>/dev/null || true' EXIT
stop() { kill $PID; wait $PID || true; }
say() { echo "== $1"; }
fill() { cat /dev/zero >>"$D/fill" 2>/dev/null || true; say "free $(stat -f -c %a "$DIR")"; }
start
for name in one two; do "$EXO" pull "hf.co/org/$name" --data-dir "$D" >/dev/null; done
fill
sleep 20
say alerts; "$EXO" alerts --data-dir "$D"
say remove; fill; "$EXO" models remove one-Q8_0 --data-dir "$D"
say "free $(stat -f -c %a "$DIR")"
say models; "$EXO" models --data-dir "$D"
fill
stop
say log; cat "$LOG"
rm "$D/fill"; start; stop; fill
say start; start; cat "$LOG"
sleep 3
say full; "$EXO" alerts --data-dir "$D"; "$EXO" models --data-dir "$D"
"$EXO" run demo "1 2 3" --max-tokens 4 --data-dir "$D" 2>&1
say unload; "$EXO" unload demo --data-dir "$D"
say through; "$EXO" models remove two-Q8_0 --data-dir "$D"; "$EXO" models --data-dir "$D"
stop
say second; cat "$LOG"
rm "$D/fill"; start
"$EXO" pull "hf.co/org/two" --data-dir "$D" >/dev/null
stop
rm "$D/ballast"; fill
say refused; start; cat "$LOG"
say alone; "$EXO" models remove two-Q8_0 --data-dir "$D"
start
say again; "$EXO" models --data-dir "$D"
stop
say end
"#;

/// What a script says that may mount, with the program, a folder to mount on and this hub, and that must come
/// to its end; `None` where this system lets no one mount.
#[cfg(target_os = "linux")]
fn on_a_disk_of_its_own(test: &str, script: &str, hub: &exo_mock_hub::MockHub) -> Option<String> {
    let is_possible = std::process::Command::new("unshare").args(["-rm", "true"]).status();
    if !is_possible.is_ok_and(|status| status.success()) {
        crate::support::skip(test, "no mount namespace can be made here");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let own = exo(&[]);
    let mut shell = std::process::Command::new("unshare");
    shell.args(["-rm", "sh", "-eu", "-c", script]);
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.env("EXO", own.get_program()).env("DIR", &disk).env("LOG", folder.path().join("log"));
    shell.env("HF_ENDPOINT", hub.endpoint()).env("HOME", folder.path().join("home"));
    let output = good(finish(&mut shell, LONG));
    let text = stdout(&output) + &stderr(&output);
    assert!(text.contains("== end"), "{text}");
    Some(text)
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_freed_by_what_the_alert_names_with_a_node_and_without_one() {
    const TEST: &str = "a_full_disk_is_freed_by_what_the_alert_names_with_a_node_and_without_one";
    use exo_mock_hub::{MockHub, Repository};
    let hub = MockHub::start().unwrap();
    for (index, name) in ["one", "two"].into_iter().enumerate() {
        let model = [exo_node::DEMO_MODEL, &vec![0; 64 * (index + 1)]].concat();
        hub.put(&format!("org/{name}"), Repository::new(&[(format!("{name}-Q8_0.gguf").as_str(), model)]));
    }
    let Some(text) = on_a_disk_of_its_own(TEST, SCRIPT, &hub) else { return };
    let section = |name: &str| {
        let after = text.split(&format!("== {name}\n")).nth(1).unwrap_or_else(|| panic!("no {name}: {text}"));
        after.split("\n== end").next().unwrap().to_owned()
    };
    let until = |from: &str, to: &str| section(from).split(&format!("== {to}\n")).next().unwrap().to_owned();
    let alerts = flat(&until("alerts", "remove"));
    assert!(alerts.contains("critical") && alerts.contains("both work on a full disk"), "{alerts}");
    let removed = until("remove", "models");
    assert!(removed.contains("forgot one-Q8_0"), "{removed}");
    let free: u64 =
        removed.lines().rev().find_map(|line| line.strip_prefix("== free ")?.parse().ok()).unwrap();
    assert!(free > 1000, "{removed}");
    let models = until("models", "log");
    assert!(models.contains("two-Q8_0") && !models.contains("one-Q8_0"), "{models}");
    // A start on a full disk goes on with what was set aside for it, and says so.
    let started = until("start", "full");
    assert!(started.contains("http://"), "{started}");
    let full = flat(&until("full", "unload"));
    assert!(full.contains("critical") && full.contains("is full"), "{full}");
    assert!(full.contains("two-Q8_0") && full.contains("demo"), "{full}");
    // It answers, and what a request placed is unloaded: the journal is written.
    let unloaded = until("unload", "through");
    assert!(unloaded.contains("unloaded"), "{full}{unloaded}");
    let through = until("through", "second");
    assert!(through.contains("forgot two-Q8_0") && through.matches("two-Q8_0").count() == 1, "{through}");
    let second = until("second", "refused");
    assert_eq!(second.matches("the disk is full: what was set aside").count(), 1, "{second}");
    // What goes on all the time is not said all the time.
    let log = until("log", "start");
    for log in [log, second] {
        assert!(log.matches("cannot be written").count() <= 4, "{log}");
        assert!(!log.contains("the journal was not closed last time"), "{log}");
    }
    // Where something else has taken that, too, a start says what frees the disk without a node.
    let refused = until("refused", "alone");
    assert!(refused.contains("`exo models remove NAME` a model, both without a node too"), "{refused}");
    let alone = until("alone", "again");
    assert!(alone.contains("forgot two-Q8_0"), "{alone}");
    let again = section("again");
    assert!(!again.contains("two-Q8_0") && again.contains("demo"), "{again}");
}

/// A pull to a small disk, in a mount namespace of its own, which something else fills half way.
#[cfg(target_os = "linux")]
const FILLED_SCRIPT: &str = r#"
mount -t tmpfs -o size=64m none "$DIR"
D="$DIR/data"
say() { echo "== $1"; }
"$EXO" pull hf.co/org/large --data-dir "$D" >"$LOG" 2>&1 &
PID=$!
trap 'kill -9 $PID 2>/dev/null || true' EXIT
FREE=$(stat -f -c %a "$DIR")
for i in $(seq 200); do
    [ "$(stat -f -c %a "$DIR")" -lt $((FREE - 2000)) ] && break
    sleep 0.05
done
cat /dev/zero >>"$DIR/fill" 2>/dev/null || true
say pull; wait $PID && say whole
cat "$LOG"
rm "$DIR/fill"
say again; "$EXO" pull hf.co/org/large --data-dir "$D" 2>&1
say end
"#;

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_fills_in_the_middle_of_a_file_ends_the_pull_which_goes_on_when_there_is_room() {
    const TEST: &str =
        "a_disk_that_fills_in_the_middle_of_a_file_ends_the_pull_which_goes_on_when_there_is_room";
    use exo_mock_hub::{Faults, MockHub, Repository};
    let (hub, size) = (MockHub::start().unwrap(), 24 << 20);
    let mut model = exo_node::DEMO_MODEL.to_vec();
    model.resize(size, 0);
    hub.put("org/large", Repository::new(&[("large-Q8_0.gguf", model)]));
    hub.set_faults(Faults { bytes_per_s: Some(4 << 20), ..Faults::default() });
    let Some(text) = on_a_disk_of_its_own(TEST, FILLED_SCRIPT, &hub) else { return };
    let text = flat(&text);
    let (ended, again) = text.split_once("== again").unwrap();
    assert!(!ended.contains("== whole"), "{text}");
    for said in ["cannot write", "large-Q8_0.gguf", "No space left on device", "`exo prune` deletes"] {
        assert!(ended.contains(said), "{said}: {text}");
    }
    assert!(again.contains("is ready, verified"), "{text}");
    let sent = hub.sent_bytes();
    assert!(sent < 2 * size as u64, "what came before counts: {sent} bytes were sent");
}

#[test]
fn prune_deletes_parts_of_a_fetch_that_never_finished_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let (from, data) = (folder.path().join("from"), folder.path().join("data"));
    let (sender, _) = Store::open(&from).unwrap();
    let id = sender.add_path(&demo_gguf(), &mut |_, _| {}).unwrap().id;
    let manifest = sender.manifest(id).unwrap();
    let prune = || {
        let mut command = exo(&["prune", "--data-dir", data.to_str().unwrap()]);
        stdout(&good(finish(&mut command, LONG)))
    };
    let fetch = |chunks: &[ChunkRef], is_finished: bool| {
        let (store, _) = Store::open(&data).unwrap();
        let copy = store.prepare(&manifest).unwrap();
        let head = copy.missing_head();
        copy.note_finished(false);
        for chunk in head.iter().chain(chunks) {
            copy.write_chunk(*chunk, &sender.read_chunk(id, *chunk).unwrap()).unwrap();
        }
        copy.flush().unwrap();
        copy.note_finished(is_finished);
    };
    let held = || Store::open(&data).unwrap().0.list().unwrap().first().map_or(0, |model| model.held_bytes);
    let parts: Vec<ChunkRef> = (40..60).map(|index| ChunkRef { file: 0, index }).collect();
    // What tokenises, without a layer.
    fetch(&[], false);
    let head = held();
    assert!(prune().contains("deleted 0 partial downloads") && held() == head);
    // A shard that was placed here, and may be again.
    fetch(&parts, true);
    let shard = held();
    assert!(shard > head && prune().contains("deleted 0 partial downloads") && held() == shard);
    fetch(&[ChunkRef { file: 0, index: 61 }], false);
    let said = prune();
    assert!(said.contains("deleted 1 partial downloads") && said.contains("MiB"), "{said}");
    assert_eq!(std::fs::read_dir(data.join("models")).unwrap().count(), 0);
}

/// A node that runs keeps the parts of what is placed, finished or not, until it is unloaded.
#[test]
fn prune_through_a_node_keeps_what_is_placed() {
    let nodes = cluster("pruned", &["alpha", "beta"]);
    let path = nodes[0].data_dir.with_file_name("mine.gguf");
    another_model(&path);
    assert!(nodes[0].exo(&["models", "add", path.to_str().unwrap()]).status.success());
    wait_for("beta to hear of the model", LONG, || {
        stdout(&nodes[1].exo(&["models"])).contains("mine").then_some(())
    });
    let placed = nodes[1].place("mine", 2);
    nodes[1].wait_settled(placed["id"].as_str().unwrap());
    let folders = || std::fs::read_dir(nodes[1].data_dir.join("models")).unwrap().flatten();
    let folder = folders().next().expect("beta has layers").path();
    // As a fetch of further layers leaves it that was broken off.
    std::fs::write(folder.join("fetching"), b"").unwrap();
    let prune = || stdout(&nodes[1].exo(&["prune"]));
    let kept = prune();
    assert!(kept.contains("deleted 0 partial downloads") && folder.exists(), "{kept}");
    assert!(nodes[1].exo(&["unload", "mine"]).status.success());
    let pruned = wait_for("the parts to go", LONG, || {
        let said = prune();
        said.contains("deleted 1 partial downloads").then_some(said)
    });
    assert!(!pruned.contains(" 0 B") && !folder.exists(), "{pruned}");
}
