//! Nodes as processes, and the ways to talk to them. The only test code that knows the command line and the
//! API.

// Each test file uses its part; helpers of tests fail by panicking.
#![allow(dead_code, clippy::unwrap_used, clippy::print_stdout)]
#![allow(clippy::disallowed_methods, reason = "waits between two looks at another process")]

#[cfg(target_os = "linux")]
pub mod lan;
mod zeros;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use self::zeros::{CONTROL, Zeros, zeros, zeros_of};

pub const EXO: &str = env!("CARGO_BIN_EXE_exo");
/// For what takes a second on an idle machine.
pub const SOON: Duration = Duration::from_secs(20);

/// Waits until `ready` gives a value; a panic says what was waited for.
#[track_caller]
pub fn wait_for<T>(what: &str, at_most: Duration, mut ready: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(began.elapsed() < at_most, "{what}: not within {at_most:?}");
        std::thread::sleep(Duration::from_millis(25));
    }
}

/// `exo` with a clean environment: neither settings nor files of whoever runs the tests. It computes on the
/// processor unless a flag says otherwise, so that tests are the same on machines with cards.
pub fn exo(args: &[&str]) -> Command {
    clean(Command::new(EXO), args)
}

/// `exo` in the place of a shell that has limited itself.
fn limited(data_bytes: u64) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -d {} && exec \"$@\"", data_bytes >> 10), "sh", EXO]);
    shell
}

fn clean(mut command: Command, args: &[&str]) -> Command {
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("EXO_")) {
        command.env_remove(name);
    }
    command
        .args(args)
        .env("EXO_BACKEND", "cpu")
        .env("EXO_CONFIG", empty_config())
        .env("EXO_DISK_RESERVE_MIB", "0")
        .env("NO_PROXY", "*")
        .stdin(Stdio::null());
    command
}

/// A configuration file without settings.
fn empty_config() -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("empty.toml");
    if !path.exists() {
        std::fs::write(&path, "").unwrap();
    }
    path
}

/// Runs a command to its end, which must come within `at_most`.
pub fn finish(command: &mut Command, at_most: Duration) -> Output {
    let what = format!("{command:?}");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let read = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = from.read_to_end(&mut bytes);
            bytes
        })
    };
    let (stdout, stderr) = (read(Box::new(stdout)), read(Box::new(stderr)));
    let mut child = Killed(child);
    let status = wait_for(&what, at_most, || child.0.try_wait().unwrap());
    Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// Runs `exo` to its end.
pub fn run(args: &[&str]) -> Output {
    finish(&mut exo(args), SOON)
}

/// A line of a shell at a terminal of its own, recorded by `script`. What it prints ends lines with a
/// carriage return.
pub fn at_terminal(line: &str) -> Command {
    let mut script = Command::new("script");
    script.args(["-qec", line, "/dev/null"]).stdin(Stdio::null());
    for (name, value) in exo(&[]).get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    script
}

/// What came of a command that must have ended well. A panic names the line that asked.
#[track_caller]
pub fn good(output: Output) -> Output {
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    output
}

/// The document that it printed.
#[track_caller]
pub fn json_of(output: Output) -> Value {
    serde_json::from_slice(&good(output).stdout).unwrap()
}

/// What a command says that must not end well, on one line, with these words in it.
#[track_caller]
pub fn must_refuse(output: Output, words: &str) -> String {
    let said = flat(&stderr(&output));
    assert!(!output.status.success() && said.contains(words), "no `{words}`: {}{said}", stdout(&output));
    said
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What is printed for people, on one line: where its lines end is the terminal's matter.
pub fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A process that does not outlive the test.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node as a process of its own.
pub struct Node {
    pub data_dir: PathBuf,
    pub address: String,
    pub secret: String,
    process: Killed,
    lines: Arc<Mutex<Vec<String>>>,
    _folder: Option<tempfile::TempDir>,
}

/// What a node is started with.
#[derive(Default, Clone)]
pub struct Start<'a> {
    pub name: &'a str,
    /// Nodes of the same group find each other; others of this machine do not disturb.
    pub group: &'a str,
    pub flags: Vec<String>,
    /// A folder to show as the devices of the PCI bus, as [`on_bus`] does.
    pub bus: Option<PathBuf>,
    /// Of its environment.
    pub env: Vec<(&'static str, OsString)>,
    /// A name of `ip netns`, to run in.
    pub namespace: Option<String>,
    /// What the process may have of memory of its own, by `ulimit -d`.
    pub data_limit_bytes: Option<u64>,
}

impl<'a> Start<'a> {
    /// Of a node called `solo` that looks for nobody, with these flags besides.
    pub fn alone(group: &'a str, flags: &[&str]) -> Self {
        let flags = ["--no-discovery"].iter().chain(flags).map(|flag| (*flag).to_owned()).collect();
        Self { name: "solo", group, flags, ..Self::default() }
    }
}

impl Node {
    /// A node on loopback that looks for nobody.
    pub fn alone() -> Self {
        Self::start(Start::alone("alone", &[]))
    }

    pub fn start(start: Start<'_>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut node = Self::start_in(&folder.path().join("data"), start);
        node._folder = Some(folder);
        node
    }

    /// Starts on a data folder and waits until the API answers.
    pub fn start_in(data_dir: &Path, start: Start<'_>) -> Self {
        let mut node = Self::spawn(data_dir, &start);
        let published = data_dir.join("api.json");
        let address = wait_for("the node's API", SOON, || {
            node.assert_running();
            let file: Value = serde_json::from_slice(&std::fs::read(&published).ok()?).ok()?;
            // A node that was killed left its own file behind.
            (file["pid"] == node.pid()).then(|| file["address"].as_str().map(str::to_owned))?
        });
        node.address = address;
        node.secret = std::fs::read_to_string(data_dir.join("api-secret")).unwrap().trim().to_owned();
        if start.namespace.is_none() {
            wait_for("the node's view of itself", SOON, || node.devices().map(|_| ()));
        }
        node
    }

    fn spawn(data_dir: &Path, start: &Start<'_>) -> Self {
        let program = match (&start.namespace, &start.bus) {
            (None, None) => match start.data_limit_bytes {
                Some(bytes) => limited(bytes),
                None => Command::new(EXO),
            },
            (None, Some(bus)) => with_bus(bus, EXO),
            (Some(namespace), _) => {
                let mut ip = Command::new("ip");
                ip.args(["netns", "exec", namespace, EXO]);
                ip
            }
        };
        let listen = if start.namespace.is_some() { "0.0.0.0:0" } else { "127.0.0.1:0" };
        let data = data_dir.to_str().unwrap();
        let args = [
            "start",
            "--data-dir",
            data,
            "--name",
            start.name,
            "--api-listen",
            "127.0.0.1:0",
            "--listen",
            listen,
        ];
        let mut command = clean(program, &args);
        command.args(&start.flags).envs(start.env.iter().cloned());
        command.env("EXO_GROUP", format!("{}-{}", start.group, std::process::id()));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        gather(child.stdout.take().unwrap(), &lines);
        gather(child.stderr.take().unwrap(), &lines);
        Self {
            data_dir: data_dir.to_owned(),
            address: String::new(),
            secret: String::new(),
            process: Killed(child),
            lines,
            _folder: None,
        }
    }

    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// All it printed so far.
    pub fn log(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    pub fn assert_running(&mut self) {
        if let Some(status) = self.process.0.try_wait().unwrap() {
            panic!("the node ended: {status}\n{}", self.log());
        }
    }

    /// Kills it as `kill -9` does.
    pub fn kill(&mut self) {
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
    }

    /// Sends a signal and gives the exit status.
    pub fn signal(&mut self, name: &str) -> std::process::ExitStatus {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
        self.ended_within(SOON)
    }

    /// Waits for its end and gives the exit status.
    pub fn ended_within(&mut self, within: Duration) -> std::process::ExitStatus {
        wait_for("the node's end", within, || self.process.0.try_wait().unwrap())
    }

    /// `exo` with this node's data folder.
    pub fn exo(&self, args: &[&str]) -> Output {
        finish(exo(args).arg("--data-dir").arg(&self.data_dir), SOON)
    }

    pub fn get(&self, path: &str) -> Value {
        let answer = self.call("GET", path, None);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, Some(body.to_string()))
    }

    /// A request as plain as `curl` sends it.
    pub fn call(&self, method: &str, path: &str, body: Option<String>) -> Answer {
        let mut stream = self.send(method, path, body);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap_or_else(|e| panic!("{path}: {e}\n{}", self.log()));
        Answer::parse(&bytes)
    }

    /// Sends a request whose answer is read as it comes.
    pub fn send(&self, method: &str, path: &str, body: Option<String>) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(100))).unwrap();
        let body = body.unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            self.secret,
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// The devices this node sees in itself, once it does.
    fn devices(&self) -> Option<Value> {
        let view = self.get("/exo/v1/cluster");
        let node = view["nodes"].as_array()?.iter().find(|n| n["is_self"] == true)?.clone();
        node["devices"].as_array().is_some_and(|d| !d.is_empty()).then(|| node["devices"].clone())
    }

    /// Names of the nodes it sees alive.
    pub fn sees(&self) -> Vec<String> {
        let view = self.get("/exo/v1/cluster");
        let nodes = view["nodes"].as_array().unwrap().iter();
        let alive = nodes.filter(|n| n["status"] == "alive" && !n["devices"].as_array().unwrap().is_empty());
        alive.map(|n| n["name"].as_str().unwrap().to_owned()).collect()
    }

    /// One instance, if it is there.
    pub fn instance(&self, id: &str) -> Option<Value> {
        let view = self.get("/exo/v1/cluster");
        view["instances"].as_array().unwrap().iter().find(|i| i["id"] == id).cloned()
    }

    /// Places a model over at least so many nodes and waits until it serves.
    #[track_caller]
    pub fn place(&self, model: &str, nodes: u32) -> Value {
        self.place_as(&json!({"model": model, "nodes_min": nodes}), SOON)
    }

    /// Places a model as it is asked for, and waits so long at most until it serves.
    #[track_caller]
    pub fn place_as(&self, wanted: &Value, at_most: Duration) -> Value {
        let placed = self.post("/exo/v1/instances", wanted).good().json();
        let id = placed["id"].as_str().unwrap();
        wait_for("the instance to serve", at_most, || {
            let instance = self.instance(id)?;
            assert!(instance["state"]["kind"] != "failed", "{instance:#}");
            (instance["state"]["kind"] == "ready").then_some(instance)
        })
    }

    /// Makes a model known by this name, whose file this writes in the folder.
    fn add(&self, folder: &Path, name: &str, write: impl FnOnce(&Path)) {
        let path = folder.join(format!("{name}.gguf"));
        write(&path);
        self.post("/exo/v1/models", &json!({"path": path, "name": name})).good();
    }

    /// A model of zeros.
    pub fn add_zeros(&self, folder: &Path, name: &str, model: &Zeros) {
        self.add(folder, name, |path| zeros(path, model));
    }

    /// The built-in model with another chat template.
    pub fn add_with_template(&self, folder: &Path, name: &str, template: &str) {
        self.add(folder, name, |path| with_template(path, template));
    }

    /// Waits until all weights of an instance are packed in memory: before that it is slower.
    pub fn wait_settled(&self, id: &str) {
        wait_for("the weights to be packed", Duration::from_secs(120), || {
            let instance = self.instance(id)?;
            let packed =
                |stage: &Value| stage["weight_bytes_held"] != 0 && stage["weight_bytes_waiting"] == 0;
            instance["stages"].as_array()?.iter().all(packed).then_some(())
        });
    }

    /// A chat answer, greedy.
    pub fn ask(&self, model: &str, prompt: &str) -> Answer {
        let messages = json!([{"role": "user", "content": prompt}]);
        self.post("/v1/chat/completions", &json!({"model": model, "messages": messages, "temperature": 0}))
    }
}

/// Several nodes that found each other.
pub fn cluster(group: &str, names: &[&str]) -> Vec<Node> {
    cluster_with(group, names, &[])
}

/// The same, each started with these flags.
pub fn cluster_with(group: &str, names: &[&str], flags: &[&str]) -> Vec<Node> {
    let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let start = |name: &&str| Node::start(Start { name, group, flags: flags.clone(), ..Start::default() });
    let nodes: Vec<_> = names.iter().map(start).collect();
    wait_united(&nodes, SOON);
    nodes
}

/// Waits until each of these nodes sees all of them, so long at most for each.
#[track_caller]
pub fn wait_united<'a>(nodes: impl IntoIterator<Item = &'a Node>, at_most: Duration) {
    let nodes: Vec<&Node> = nodes.into_iter().collect();
    for node in &nodes {
        let sees_all = || (node.sees().len() == nodes.len()).then_some(());
        wait_for("one cluster", at_most, sees_all);
    }
}

pub fn gather(stream: impl Read + Send + 'static, lines: &Arc<Mutex<Vec<String>>>) {
    let lines = lines.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            lines.lock().unwrap().push(line);
        }
    });
}

/// An HTTP answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Status line and headers.
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        let body = if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            unchunk(body)
        } else {
            body.to_owned()
        };
        Self { status, head: head.to_ascii_lowercase(), body }
    }

    /// The answer, which must be a good one.
    #[track_caller]
    pub fn good(self) -> Self {
        assert_eq!(self.status, 200, "{}", self.body);
        self
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The text of a chat answer.
    pub fn text(&self) -> String {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    }

    /// The stable code of a refusal.
    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// A request with more in it, or with other values.
pub fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn unchunk(body: &str) -> String {
    let mut out = String::new();
    let mut rest = body;
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 || size > after.len() {
            break;
        }
        out.push_str(&after[..size]);
        rest = after[size..].trim_start_matches("\r\n");
    }
    out
}

/// The prompts whose answers are known.
pub fn known() -> Vec<(String, String)> {
    let text = include_str!("../../../../demo-model/expected.json");
    let value: Value = serde_json::from_str(text).unwrap();
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    value["greedy"].as_array().unwrap().iter().map(|k| (text(&k["prompt"]), text(&k["answer"]))).collect()
}

/// The built-in model's file in the repository.
pub fn demo_gguf() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/exo-demo-Q8_0.gguf")
}

/// Writes the built-in model to `path` as another one: with another name in it.
pub fn another_model(path: &Path) {
    let mut bytes = std::fs::read(demo_gguf()).unwrap();
    let at = bytes.windows(8).position(|w| w == b"exo demo").unwrap();
    bytes[at..at + 8].copy_from_slice(b"exo mine");
    std::fs::write(path, bytes).unwrap();
}

/// Writes the built-in model to `path` with another chat template.
pub fn with_template(path: &Path, template: &str) {
    const OLD: &str = "tokenizer.chat_template";
    let bytes = std::fs::read(demo_gguf()).unwrap();
    // Behind the key: the kind of value (4 bytes), its length (8), the text.
    let length_at = bytes.windows(OLD.len()).position(|w| w == OLD.as_bytes()).unwrap() + OLD.len() + 4;
    let old_len = u64::from_le_bytes(bytes[length_at..length_at + 8].try_into().unwrap()) as usize;
    // What is behind moves by whole units of alignment, so that it stays aligned; a comment fills them.
    let (least, unit) = (template.len() + 4, 32);
    let len = old_len + (least - old_len.min(least)).next_multiple_of(unit);
    let new = format!("{template}{{#{}#}}", "-".repeat(len - least));
    let (before, behind) = (&bytes[..length_at], &bytes[length_at + 8 + old_len..]);
    std::fs::write(path, [before, &(len as u64).to_le_bytes(), new.as_bytes(), behind].concat()).unwrap();
}

/// As Qwen's: tools in the system's turn, calls in tags, each printed as this says, results in a turn of the
/// user.
macro_rules! tool_template {
    ($call:literal) => {
        concat!(
            r#"{%- if tools %}<|im_start|>system
Tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}
{%- for call in m.tool_calls %}{{ '\n' if not loop.first or m.content else '' }}<tool_call>
"#,
            $call,
            r#"
</tool_call>{% endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"#
        )
    };
}
pub(crate) use tool_template;

/// With calls in JSON.
pub const TOOL_TEMPLATE: &str = tool_template!(
    r#"{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}"#
);

/// A node whose model `tools` is the built-in one with a template for tools, which it knows nothing of.
pub fn tools_node() -> (Node, tempfile::TempDir) {
    tools_node_with(TOOL_TEMPLATE)
}

/// The same with another template.
pub fn tools_node_with(template: &str) -> (Node, tempfile::TempDir) {
    let (node, folder) = (Node::alone(), tempfile::tempdir().unwrap());
    node.add_with_template(folder.path(), "tools", template);
    (node, folder)
}

/// `EXO_TEST_PYTHON`, the repository's `.venv`, or the system's.
pub fn python() -> PathBuf {
    let venv = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv/bin/python"));
    match std::env::var_os("EXO_TEST_PYTHON") {
        Some(python) => python.into(),
        None if venv.exists() => venv,
        None => "python3".into(),
    }
}

/// Says that a check could not run, and why; `cargo xtask test` gathers these lines.
pub fn skip(test: &str, why: &str) {
    println!("skipped: {test}: {why}");
    if let Some(path) = std::env::var_os("EXO_TEST_SKIPS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        // In one piece: other tests write their lines at the same time.
        let _ = file.and_then(|mut f| f.write_all(format!("{test}: {why}\n").as_bytes()));
    }
}

/// Whether a process of this number runs.
pub fn is_alive(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie has ended; only its parent has not noticed.
    state.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}

/// What a file of a process below `/proc` counts under this name, in its unit.
pub fn counted(pid: u32, file: &str, of: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(of)).unwrap();
    line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
}

/// Children of a process that are workers.
pub fn workers_of(pid: u32) -> Vec<u32> {
    children_of(pid).into_iter().filter(|child| is_worker(*child)).collect()
}

/// Children of a process.
pub fn children_of(pid: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|p| p.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(|number| is_alive(*number) && parent(*number) == Some(pid)).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

fn is_worker(pid: u32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|b| *b == 0).nth(1) == Some(b"worker")
}

/// The one worker of a node, once it is there.
pub fn worker(node: &Node) -> u32 {
    wait_for("the worker", SOON, || match workers_of(node.pid()).as_slice() {
        [one] => Some(*one),
        _ => None,
    })
}

/// To a process that a test started.
pub fn send(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// Ends the connections over TCP between two nodes as a router that forgets them does, each with a reset; how
/// many. The data link is one, and control takes QUIC. `None` where this system lets nobody do that.
pub fn reset_between(a: &Node, b: &Node) -> Option<usize> {
    let found = connections_between(a, b)?;
    for [local, remote] in &found {
        ss(&["-KtnH", "src", local, "dst", remote])?;
    }
    let left = connections_between(a, b)?;
    found.iter().all(|ended| !left.contains(ended)).then_some(found.len())
}

/// Both ends of each TCP connection between two nodes; nothing where no tool lists them.
pub fn connections_between(a: &Node, b: &Node) -> Option<Vec<[String; 2]>> {
    let all = ss(&["-tnpH", "state", "established"])?;
    let of = |node: &Node| {
        let owner = format!("pid={},", node.pid());
        let own = all.lines().filter(move |line| line.contains(&owner));
        own.filter_map(|line| line.split_whitespace().skip(2).take(2).collect::<Vec<_>>().try_into().ok())
            .map(|ends: [&str; 2]| ends.map(str::to_owned))
    };
    let others: Vec<[String; 2]> = of(b).collect();
    Some(of(a).filter(|[local, remote]| others.iter().any(|[l, r]| (l, r) == (remote, local))).collect())
}

fn ss(args: &[&str]) -> Option<String> {
    Some(stdout(&Command::new("ss").args(args).output().ok()?))
}

/// A long answer, drawn with a seed: every token of it depends on all before.
fn long_request(tokens: u32) -> Value {
    json!({"model": "demo", "prompt": "Once", "max_tokens": tokens, "ignore_eos": true, "temperature": 1.0, "seed": 7})
}

/// The schema of forty values: several hundred tokens, each of which the grammar must let through.
pub fn colours() -> Value {
    let items =
        json!({"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 40, "maxItems": 40});
    json!({"type": "object", "properties": {"colours": items}, "required": ["colours"], "additionalProperties": false})
}

/// A long answer that is being streamed, some of it read.
pub fn stream(node: &Node) -> (TcpStream, String) {
    stream_until(node, LONG, 3)
}

/// Tokens of a long answer: the demo model takes half a second for them on a processor.
pub const LONG: u32 = 400;

/// An answer of so many tokens, so many events of it read.
pub fn stream_until(node: &Node, tokens: u32, events: usize) -> (TcpStream, String) {
    stream_of(node, "/v1/completions", long_request(tokens), events)
}

/// An answer to this request, so many events of it read.
pub fn stream_of(node: &Node, path: &str, mut body: Value, events: usize) -> (TcpStream, String) {
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    begin(node, path, &body, events)
}

/// An answer to this request as it is, so many events of it read.
pub fn begin(node: &Node, path: &str, body: &Value, events: usize) -> (TcpStream, String) {
    let mut stream = node.send("POST", path, Some(body.to_string()));
    let mut text = String::new();
    while text.matches("data:").count() < events {
        let mut bytes = [0; 512];
        let n = stream.read(&mut bytes).unwrap();
        assert!(n > 0, "{text}\n{}", node.log());
        text.push_str(&String::from_utf8_lossy(&bytes[..n]));
    }
    (stream, text)
}

/// The whole text of a stream that was begun, whatever happens to those who compute it.
pub fn rest_of((mut stream, mut text): (TcpStream, String)) -> String {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    text.push_str(&String::from_utf8_lossy(&rest));
    assert!(text.contains("[DONE]"), "the answer did not end: {text}");
    text
}

/// The text in the events of a stream.
pub fn text_of(events: &str) -> String {
    pieces_of(events, "/choices/0/text")
}

/// The texts at a place of the events of a stream, put together.
pub fn pieces_of(events: &str, pointer: &str) -> String {
    let data =
        events.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| data.starts_with('{'));
    let chunks = data.map(|data| serde_json::from_str::<Value>(data).unwrap());
    chunks
        .map(|chunk| chunk.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned())
        .collect()
}

/// Where the answer of a stream was interrupted and went on: the number of its tokens each time.
pub fn resumed_of(events: &str) -> Vec<u64> {
    let mut data =
        events.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| data.starts_with('{'));
    let last: Value = serde_json::from_str(data.next_back().unwrap()).unwrap();
    let resumed = last["exo"]["resumed"].as_array().cloned().unwrap_or_default();
    resumed.iter().map(|at| at["after_tokens"].as_u64().unwrap()).collect()
}

/// What [`stream`] asks for, as the node answers it while nothing happens.
pub fn long_answer(node: &Node, tokens: u32) -> String {
    node.post("/v1/completions", &long_request(tokens)).good().json()["choices"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Waits until the model serves in another placement than this one, and gives the instance.
pub fn comes_back(node: &Node, placement: &Value) -> Value {
    wait_for("the model placed again", SOON, || {
        let instance = node.get("/exo/v1/cluster")["instances"][0].clone();
        let is_another = instance["placement"] != *placement;
        (is_another && instance["state"]["kind"] == "ready").then_some(instance)
    })
}

/// Has the model answer a prompt as it is known to.
#[track_caller]
pub fn answers(node: &Node) {
    answers_as(node, "demo");
}

/// Has the model by this name answer as `demo` is known to.
#[track_caller]
pub fn answers_as(node: &Node, model: &str) {
    let (prompt, expected) = &known()[0];
    let answer = node.ask(model, prompt);
    assert_eq!((answer.status, &answer.text()), (200, expected), "{model}: {}\n{}", answer.body, node.log());
}

/// A folder that `on_bus` shows as the devices of the PCI bus.
pub fn bus(folder: &Path) -> PathBuf {
    let bus = folder.join("bus");
    std::fs::create_dir_all(&bus).unwrap();
    bus
}

/// Puts a card of NVIDIA's on a bus, without a driver. It is there as a whole at once.
pub fn plug(bus: &Path, address: &str) {
    let new = bus.with_file_name(format!("new-{address}"));
    std::fs::create_dir_all(&new).unwrap();
    for (file, text) in [("class", "0x030200"), ("vendor", "0x10de"), ("device", "0x2684")] {
        std::fs::write(new.join(file), format!("{text}\n")).unwrap();
    }
    std::fs::rename(new, bus.join(address)).unwrap();
}

/// `exo` on a machine whose PCI bus is the folder, if this system lets us have mounts of our own.
pub fn on_bus(bus: &Path, args: &[&str]) -> Option<Command> {
    has_mounts(bus).then(|| clean(with_bus(bus, EXO), args))
}

/// Whether this system lets us have mounts of our own.
pub fn has_mounts(bus: &Path) -> bool {
    with_bus(bus, "true").output().is_ok_and(|output| output.status.success())
}

/// A program that sees the folder as the devices of the PCI bus, and a folder `misc` beside it as
/// `/usr/share/misc`.
fn with_bus(bus: &Path, program: &str) -> Command {
    let mut unshare = Command::new("unshare");
    let mounts = "mount --bind \"$0\" /sys/bus/pci/devices && \
                  { [ ! -d \"$0/../misc\" ] || mount --bind \"$0/../misc\" /usr/share/misc; } && exec \"$@\"";
    unshare.args(["--mount", "sh", "-c", mounts]);
    unshare.arg(bus).arg(program);
    unshare
}

/// The folder of a library that plays NVIDIA's management library, in which each card tells the same: it is
/// near its limit, and slowed down.
pub fn nvml(folder: &Path) -> PathBuf {
    let library = folder.join("libnvidia-ml.so.1");
    let text = "#include <stdio.h>\nint nvmlInit_v2(void) { return 0; }\nint nvmlShutdown(void) { return 0; }\n\
                int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **card) { *card = card; return 0; }\n\
                int nvmlDeviceGetTemperature(void *card, int sensor, unsigned *out) { *out = 61; return 0; }\n\
                int nvmlDeviceGetPowerUsage(void *card, unsigned *out) { *out = 153000; return 0; }\n\
                int nvmlDeviceGetClockInfo(void *card, int of, unsigned *out) { *out = 1979 + of; return 0; }\n\
                int nvmlDeviceGetUtilizationRates(void *card, unsigned out[2]) { out[0] = 50; out[1] = 7; return 0; }\n\
                int nvmlDeviceGetTemperatureThreshold(void *card, int of, unsigned *out) { *out = of == 3 ? 62 : 90; return 0; }\n\
                int nvmlDeviceGetCurrentClocksThrottleReasons(void *card, unsigned long long *out) { *out = 0x24; return 0; }\n\
                int nvmlDeviceGetUUID(void *card, char *out, unsigned len) { return snprintf(out, len, \"GPU-7\") < 0; }\n";
    assert!(shared_library(&library, text), "cc: install Debian's gcc");
    folder.to_owned()
}

/// Of a driver that ends whoever loads it.
pub const CRASHES: &str = "#include <stdlib.h>\n__attribute__((constructor)) void f(void) { abort(); }\n";
/// Of one that never comes back.
pub const HANGS: &str = "#include <unistd.h>\n__attribute__((constructor)) void f(void) { sleep(600); }\n";
/// Of a library that is no driver.
pub const NO_DRIVER: &str = "int nothing;\n";

/// Builds a library from a text in C; whether this machine can.
pub fn shared_library(path: &Path, text: &str) -> bool {
    let source = path.with_extension("c");
    std::fs::write(&source, text).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(path).arg(&source).output();
    built.is_ok_and(|output| output.status.success())
}

/// A description of a driver of Vulkan whose library is `library`.
pub fn icd(folder: &Path, library: &Path) -> PathBuf {
    let path = folder.join("icd.json");
    let text =
        json!({"file_format_version": "1.0.0", "ICD": {"library_path": library, "api_version": "1.3.0"}});
    std::fs::write(&path, text.to_string()).unwrap();
    path
}
