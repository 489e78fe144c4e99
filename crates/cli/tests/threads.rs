//! How a node uses the processor: as many threads as it was told, and none while nobody asks anything.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking
#![allow(clippy::disallowed_methods, reason = "a pause in which nothing happens is what is measured")]

use std::time::{Duration, Instant};

use crate::support::{Node, Start, flat, known, run, stderr, stdout};

/// How often an idle node wakes up, in a second.
#[cfg(target_os = "linux")]
const WAKES_PER_S_MAX: f64 = 60.0;

fn alone(flags: &[&str]) -> Node {
    Node::start(Start::alone("threads", flags))
}

fn assert_answers(node: &Node) {
    let (prompt, answer) = known().remove(0);
    let got = node.ask("demo", &prompt);
    assert_eq!(got.text(), answer, "{}", node.log());
}

#[test]
fn no_threads_at_all_is_refused_before_anything_starts() {
    for command in ["start", "run demo hello", "demo", "bench demo"] {
        let words: Vec<_> = command.split(' ').chain(["--threads", "0"]).collect();
        let output = run(&words);
        let text = stderr(&output);
        assert!(
            !output.status.success() && text.contains('0') && text.contains("threads"),
            "{command}: {text}"
        );
    }
    let text = stderr(&run(&["start", "--threads", "0"]));
    assert!(text.contains("setting `threads` is `0` (from flag): give 1 to 1024"), "{text}");
}

#[test]
fn more_threads_than_processors_answer_the_same_and_are_warned_of() {
    let many = 4 * std::thread::available_parallelism().unwrap().get();
    let node = alone(&["--threads", &many.to_string(), "--log", "off"]);
    assert_answers(&node);
    let warning = format!("{many} threads on ");
    // Nothing is logged: this is what the start prints.
    assert!(node.log().contains(&warning), "{}", node.log());
    let status = node.exo(&["status"]);
    assert!(flat(&stdout(&status)).contains(&warning), "{status:?}");
}

#[test]
fn a_node_with_a_fifth_of_the_time_says_so_measures_so_and_answers_the_same() {
    let device = |node: &Node| node.get("/exo/v1/cluster")["nodes"][0]["devices"][0].clone();
    let rates = |device: &serde_json::Value| {
        ["read_bytes_per_s", "flops_per_s"]
            .map(|rate| device[rate].as_f64().unwrap_or_else(|| panic!("{device}")))
    };
    let layer_s = |device: &serde_json::Value| {
        device["layer_rates"]["layer_s"].as_f64().unwrap_or_else(|| panic!("{device}"))
    };
    let whole = device(&alone(&["--threads", "1"]));
    let (whole, layer_of_whole_s) = (rates(&whole), layer_s(&whole));
    let node = alone(&["--threads", "1", "--compute-share", "20%"]);
    assert_answers(&node);
    let part = device(&node);
    assert!(part["support_reason"].as_str().unwrap().contains("computes 20% of the time"), "{part}");
    let layer_of_part_s = layer_s(&part);
    // Another program that took half of the core from the first measurement alone would not hide it.
    assert!(
        layer_of_part_s > 1.7 * layer_of_whole_s,
        "{layer_of_part_s} s with a fifth of the time, {layer_of_whole_s} s with all of it"
    );
    for (whole, part) in whole.into_iter().zip(rates(&part)) {
        assert!(part < 0.6 * whole, "{part} with a fifth of the time, {whole} with all of it");
    }
    for wrong in ["5%", "much"] {
        let text = stderr(&run(&["start", "--compute-share", wrong]));
        assert!(text.contains(wrong) && text.contains("a share of the time is 10% to 100%"), "{text}");
    }
}

#[test]
fn weights_in_their_file_give_the_same_answer() {
    assert_answers(&alone(&["--mmap"]));
}

/// `key` of each thread of a process, beside its name.
#[cfg(target_os = "linux")]
fn of_threads(pid: u32, key: &str) -> Vec<(String, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok());
    let field = |status: &str, key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.unwrap().trim().to_owned()
    };
    statuses.map(|status| (field(&status, "Name"), field(&status, key))).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn a_node_keeps_to_its_cores_and_each_worker_to_one() {
    // Not what /proc says of us: that may name cores that are not there.
    let cores = exo_device::CoreList::allowed().unwrap();
    let ours = cores.to_string();
    // Three workers beside the caller: on two cores they come round to the first again.
    let node = alone(&["--cores", &ours, "--threads", "4"]);
    assert_answers(&node);
    for (name, allowed) in of_threads(node.pid(), "Cpus_allowed_list") {
        let worker = name.strip_prefix("exo-cpu-").map(|seat| seat.parse::<usize>().unwrap());
        let numbers = cores.numbers();
        let want = worker.map_or(ours.clone(), |seat| numbers[seat % numbers.len()].to_string());
        assert_eq!(allowed, want, "thread {name}");
    }
    let first = cores.numbers()[0].to_string();
    let node = alone(&["--cores", &first]);
    assert_answers(&node);
    assert!(of_threads(node.pid(), "Cpus_allowed_list").iter().all(|(_, allowed)| *allowed == first));
    // As many threads as cores it was given.
    assert!(!of_threads(node.pid(), "Name").iter().any(|(name, _)| name.starts_with("exo-cpu-")));
}

/// Whether a process may choose its cores on this system.
#[cfg(target_os = "linux")]
const CHOOSES_CORES: bool = true;
#[cfg(not(target_os = "linux"))]
const CHOOSES_CORES: bool = false;

#[test]
fn cores_that_are_none_or_not_ours_are_refused_before_anything_starts() {
    for (cores, wanted) in [("x", "no list of cores"), ("1023", "core 1023 is not among those")] {
        let text = stderr(&run(&["start", "--cores", cores]));
        let wanted = if CHOOSES_CORES || cores == "x" { wanted } else { "cannot choose its cores" };
        let setting = format!("setting `cores` is `{cores}` (from flag): ");
        assert!(text.contains(&setting) && text.contains(wanted), "{text}");
    }
    // What computes nothing goes on, so that one can see where the setting comes from.
    assert!(run(&["config", "--cores", "1023"]).status.success());
}

/// Processor time of all its threads so far.
#[cfg(target_os = "linux")]
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name in brackets may hold anything; the 12th and 13th fields after it are ticks of 10 ms.
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(10 * ticks)
}

/// How often threads of the process have waited so far.
#[cfg(target_os = "linux")]
fn times_waited(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // One may end meanwhile.
    let texts = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("status")).ok());
    let waits = texts.map(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.map_or(0, |count| count.trim().parse::<u64>().unwrap())
    });
    waits.sum()
}

/// Processor time of this thread so far.
#[cfg(target_os = "linux")]
fn own_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
}

/// Wakes up twenty times a second for four seconds and reads what a node reads; the processor time of that.
#[cfg(target_os = "linux")]
fn a_little_work() -> Duration {
    let before = own_time();
    for _ in 0..80 {
        std::thread::sleep(Duration::from_millis(50));
        for file in ["/proc/meminfo", "/proc/self/status", "/proc/self/limits"] {
            let text = std::fs::read_to_string(file).unwrap();
            assert!(text.lines().any(|line| line.split_whitespace().nth(1).is_some()));
        }
    }
    own_time() - before
}

#[test]
#[cfg(target_os = "linux")]
fn an_idle_node_with_a_loaded_model_takes_less_than_a_hundredth_of_a_processor() {
    let node = alone(&[]);
    assert_answers(&node);
    std::thread::sleep(Duration::from_secs(1)); // what an answer leaves to tidy up
    // How often it wakes up depends on nobody else, what that takes does: neighbours on the machine only
    // ever add (cold caches, a slower clock), for minutes at times. The best of a few looks is the node's,
    // and where a little work is slow beside it, so is the node. On a quiet machine a hundredth of a
    // processor is three times that work; on machines with neighbours an idle node took more than four
    // times, as its code was cold at each of its wake-ups. A thread that never sleeps takes three hundred.
    let mut shares = Vec::new();
    let is_idle = |(share, little): &(f64, f64)| *share < f64::max(0.01, 8.0 * little);
    while shares.len() < 5 && !shares.iter().any(is_idle) {
        let (began, before) = (Instant::now(), processor_time(node.pid()));
        let waits = times_waited(node.pid());
        let little = a_little_work();
        let share = |time: Duration| time.as_secs_f64() / began.elapsed().as_secs_f64();
        shares.push((share(processor_time(node.pid()) - before), share(little)));
        let per_s = times_waited(node.pid()).saturating_sub(waits) as f64 / began.elapsed().as_secs_f64();
        assert!(per_s < WAKES_PER_S_MAX, "an idle node wakes up {per_s:.0} times a second");
        println!("woke up {per_s:.1} times a second");
    }
    println!("shares of a processor, and of a little work beside it: {shares:.4?}");
    assert!(
        shares.iter().any(is_idle),
        "shares of a processor an idle node takes, and a little work beside it: {shares:.4?}"
    );
}
