//! The vendors' own packages on three nodes: a scenario for each dialect, in Python (beside this file) and
//! JavaScript (`javascript`), each against another node, and then with the last stage killed inside of their
//! answers. Packages of JavaScript are those of the lock file, fetched from the registry when the test runs;
//! those of Python are what is installed.

#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::parallel_calls::place_equals;
use crate::support::{
    self, Killed, Node, SOON, Start, cluster, finish, python, skip, stderr, stdout, wait_for, wait_united,
};
use serde_json::json;

/// For the packages to be fetched.
const INSTALL_MAX: Duration = Duration::from_secs(120);
/// For one scenario on a busy machine.
const SCENARIO_MAX: Duration = Duration::from_secs(90);
/// The oldest release of Node that the packages take.
const NODE_MIN: u32 = 20;
/// What a program ends with whose packages are not installed.
const NOT_INSTALLED: i32 = 77;
/// Answers that `interrupted.py` and `interrupted.mjs` read together.
const ANSWERS: u32 = 9;
const NAMES: [&str; 3] = ["one", "two", "three"];

/// What opens a thought, which the model never closes by itself.
const THINKS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n\
                      <think>\n";

/// Python's programs, and the path behind a node's address that each is given.
const PYTHON: [(&str, &str); 4] = [
    ("openai_tools.py", "/v1"),
    ("openai_responses.py", "/v1"),
    ("anthropic_messages.py", ""),
    ("ollama_package.py", ""),
];
const JAVASCRIPT: [&str; 3] = ["openai.mjs", "anthropic.mjs", "ollama.mjs"];

/// Where the programs are, and those of JavaScript with their packages.
struct Programs {
    python: bool,
    javascript: Option<PathBuf>,
}

impl Programs {
    /// Those that can be had here; of the others the test says why not.
    fn find(test: &str) -> Self {
        let python = Command::new(python()).arg("--version").output().is_ok();
        if !python {
            skip(test, "there is no Python");
        }
        let installed = install().map_err(|why| skip(test, &why));
        Self { python, javascript: installed.ok() }
    }

    /// A program of Python.
    fn python(&self, script: &str, address: &str) -> Option<Command> {
        let path = format!("{}/tests/{script}", env!("CARGO_MANIFEST_DIR"));
        self.python.then(|| program(python(), &[path, address.to_owned()], Path::new(".")))
    }

    fn javascript(&self, script: &str, address: &str) -> Option<Command> {
        let folder = self.javascript.as_ref()?;
        Some(program("node".into(), &[script.to_owned(), address.to_owned()], folder))
    }
}

fn program(name: PathBuf, args: &[String], folder: &Path) -> Command {
    let mut command = Command::new(name);
    // A proxy of the environment must not stand between the two.
    command.args(args).current_dir(folder).env("NO_PROXY", "*").env("no_proxy", "*");
    command
}

/// JavaScript's programs with their packages, or why these cannot be had here. What was fetched for a lock
/// file stays.
fn install() -> Result<PathBuf, String> {
    // Two tests of one process would empty the folder for each other.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap();
    let version = Command::new("node").arg("--version").output().map_err(|_| "there is no Node")?;
    let version = stdout(&version);
    let major: u32 = version.trim().trim_start_matches('v').split('.').next().unwrap().parse().unwrap_or(0);
    if major < NODE_MIN {
        return Err(format!("Node is {}, the packages want {NODE_MIN}", version.trim()));
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("javascript");
    std::fs::create_dir_all(&folder).unwrap();
    // Of two tests one installs, the other waits.
    let installing = std::fs::File::create(folder.join("lock")).unwrap();
    installing.lock().unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/javascript");
    for file in std::fs::read_dir(&sources).unwrap().flatten() {
        if file.file_type().unwrap().is_file() {
            std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
    }
    let (mark, lock) =
        (folder.join("installed.json"), std::fs::read(sources.join("package-lock.json")).unwrap());
    if std::fs::read(&mark).is_ok_and(|installed| installed == lock) {
        return Ok(folder);
    }
    let mut npm = Command::new("npm");
    npm.args([
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--fetch-retries=1",
        "--fetch-timeout=30000",
    ])
    .current_dir(&folder);
    let installed = finish(&mut npm, INSTALL_MAX);
    match installed.status.success() {
        true => std::fs::write(mark, lock).unwrap(),
        false => return Err(format!("the packages were not fetched: {}", stderr(&installed).trim())),
    }
    Ok(folder)
}

/// Three nodes, and the demo model over them under two names: with a template that prints calls, and with one
/// that opens a thought; and `equals`, which calls as often as not.
fn nodes_with_models(group: &str, folder: &Path) -> Vec<Node> {
    let nodes = cluster(group, &NAMES);
    for (name, template) in [("tools", support::TOOL_TEMPLATE), ("thinks", THINKS)] {
        nodes[0].add_with_template(folder, name, template);
        nodes[0].place(name, 3);
    }
    place_equals(&nodes[0], folder);
    nodes
}

#[test]
fn the_vendors_packages_work_on_three_nodes() {
    const TEST: &str = "the_vendors_packages_work_on_three_nodes";
    let (programs, folder) = (Programs::find(TEST), tempfile::tempdir().unwrap());
    let nodes = nodes_with_models("book", folder.path());
    let mut addresses = nodes.iter().cycle().map(|node| format!("http://{}", node.address));
    let mut next = || addresses.next().unwrap();
    let scripts = PYTHON.iter().map(|(script, path)| (*script, programs.python(script, &(next() + path))));
    let scripts: Vec<_> = scripts.collect();
    let more = JAVASCRIPT.iter().map(|script| (*script, programs.javascript(script, &next())));
    let scripts: Vec<_> = scripts.into_iter().chain(more).collect();
    // All at once: as many clients.
    std::thread::scope(|scope| {
        for (script, command) in scripts {
            let Some(mut command) = command else { continue };
            let nodes = &nodes;
            scope.spawn(move || {
                let output = finish(&mut command, SCENARIO_MAX);
                let text = stdout(&output);
                if output.status.code() == Some(NOT_INSTALLED) {
                    return skip(TEST, text.trim());
                }
                let logs: Vec<String> = nodes.iter().map(Node::log).collect();
                let is_ok = output.status.success() && text.trim_end().ends_with("ok");
                assert!(is_ok, "{script}: {text}\n{}\n{logs:#?}", stderr(&output));
            });
        }
    });
}

/// A program that says how far it is, line by line.
struct Told {
    script: &'static str,
    process: Killed,
    lines: Receiver<String>,
}

impl Told {
    fn start(script: &'static str, mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Killed(command.spawn().unwrap());
        let (said, lines) = channel();
        let out = BufReader::new(process.0.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| said.send(line)));
        Self { script, process, lines }
    }

    /// Waits for this line; false where its packages are not installed.
    fn says(&mut self, expected: &str) -> bool {
        let line = self.lines.recv_timeout(SCENARIO_MAX).unwrap_or_default();
        if line.starts_with("no package") {
            return false;
        }
        let rest = || self.lines.try_iter().collect::<Vec<_>>();
        assert_eq!(line, expected, "{}: {:?}", self.script, rest());
        true
    }

    fn go_on(&mut self) {
        self.process.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

/// Three nodes without drafts: with them, answers are over too soon.
fn nodes_that_guess_nothing(group: &str) -> Vec<Node> {
    let env = vec![("EXO_SPECULATE", "off".into())];
    let start = |name| Node::start(Start { name, group, env: env.clone(), ..Start::default() });
    let nodes = NAMES.map(start);
    wait_united(&nodes, SOON);
    nodes.into()
}

#[test]
fn the_vendors_packages_read_on_when_a_node_is_killed_inside_of_schemas_and_calls() {
    const TEST: &str = "the_vendors_packages_read_on_when_a_node_is_killed_inside_of_schemas_and_calls";
    let programs = Programs::find(TEST);
    let mut nodes = nodes_that_guess_nothing("torn");
    // All answers at once, or some would not have begun when the node is killed.
    let asked = json!({"model": "demo", "nodes_min": 3, "slots": ANSWERS});
    nodes[0].post("/exo/v1/instances", &asked).good();
    let instance = wait_for("the instance to serve", SOON, || {
        let instance = nodes[0].get("/exo/v1/cluster")["instances"][0].clone();
        (instance["state"]["kind"] == "ready").then_some(instance)
    });
    let of_stage = |index: usize| {
        let name = instance["stages"][index]["node_name"].as_str().unwrap();
        NAMES.iter().position(|known| *known == name).unwrap()
    };
    let address = |index: usize| format!("http://{}", nodes[of_stage(index)].address);
    let scripts = [
        ("interrupted.py", programs.python("interrupted.py", &address(0))),
        ("interrupted.mjs", programs.javascript("interrupted.mjs", &address(1))),
    ];
    let scripts = scripts.into_iter().filter_map(|(script, command)| Some(Told::start(script, command?)));
    let mut scripts: Vec<Told> = scripts.collect();
    scripts.retain_mut(|told| {
        let is_there = told.says("ready");
        if !is_there {
            skip(TEST, &format!("{}: a package is not installed", told.script));
        }
        is_there
    });
    if scripts.is_empty() {
        return;
    }
    scripts.iter_mut().for_each(Told::go_on);
    scripts.iter_mut().for_each(|told| _ = told.says("inside"));
    nodes[of_stage(2)].kill();
    for told in &mut scripts {
        told.says("ok");
    }
}
