//! Settings: flags over `EXO_*` environment over the TOML file over defaults, each with where it came from.
//!
//! Every setting passes through text, so one table serves flags, environment, file, `exo config` and the
//! manual.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::{IntErrorKind, ParseIntError};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use etcetera::BaseStrategy;
use exo_backend_cpu::CpuDevice;
use exo_device::CoreList;
use exo_node::LogCapture;
use exo_server::AllowedOrigin;
use exo_store::DiskLimits;
use exo_types::Pooling;

use crate::errors::CommandError;
use crate::named_keys::{self, NamedKey};
use crate::suggest;

/// Longest name of a node, in characters.
const NAME_CHARS_MAX: usize = 64;

/// A token of `exo invite` for a node that starts: it names the cluster that this machine is of.
pub const JOIN_TOKEN_VARIABLE: &str = "EXO_JOIN_TOKEN";

/// The token in the environment, if there is one. One that is empty, for a secret that went missing, is none
/// that lets in, and shuts the door like any other.
pub fn join_token() -> Option<String> {
    Some(std::env::var_os(JOIN_TOKEN_VARIABLE)?.to_string_lossy().into_owned())
}

/// What the variable of a setting begins with.
pub const PREFIX: &str = "EXO_";

/// One setting: its name in the file (the flag is the same with dashes, the variable `EXO_` and capitals).
pub struct Key {
    pub name: &'static str,
    pub default: &'static str,
    pub help: &'static str,
}

impl Key {
    /// What it is called in the environment.
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name.to_uppercase())
    }
}

/// Below its help what each setting is called, and what it is where nobody sets it.
macro_rules! settings {
    ($($(#[doc = $help:literal])+ $name:ident = $default:literal;)+) => {
        // Each line of a comment begins with a space.
        &[$(Key {
            name: stringify!($name),
            default: $default,
            help: concat!($($help),+).trim_ascii_start(),
        }),+]
    };
}

/// Every setting. An empty default means "none" or "chosen by exo"; the help says which.
pub const KEYS: &[Key] = settings! {
    /// folder for keys, journal and fetched models (default: XDG data)
    data_dir = "";
    /// name for people (default: the host name)
    name = "";
    /// address of API and dashboard
    api_listen = "127.0.0.1:52415";
    /// second address of the API, on loopback, for programs that look for Ollama: 127.0.0.1:11434 (default:
    /// none)
    ollama_listen = "";
    /// address for other nodes, UDP and TCP; port 0 picks one
    listen = "0.0.0.0:52416";
    /// addresses of nodes to reach, host:port, comma between
    peers = "";
    /// answers go on elsewhere when this node is lost: another one has a copy of each in memory
    resume = "true";
    /// tools of a request that run at their vendor (web search, …) are left out and named in the answer, not
    /// refused
    leave_out_hosted_tools = "false";
    /// find nodes by mDNS
    discovery = "true";
    /// only nodes of the same group find each other
    group = "";
    /// auto: a new cluster lets nodes join for 10 minutes, unless EXO_JOIN_TOKEN is set; closed: never
    trust = "auto";
    /// what computes: auto (cards that give the right answers, else the processor), cpu, an NVIDIA card by
    /// cuda, or a graphics processor by vulkan, metal or dx12 (see `exo devices`)
    backend = "auto";
    /// which graphics processor: a part of its name, or its number with the backend; with auto a name or a
    /// place as in cuda:0 (default: the fastest, or the backend's first)
    device = "";
    /// seconds one step may take on a graphics processor, a quarter more for each token of it; then its
    /// process is ended and started anew
    step_max_s = "25";
    /// processor threads for models (default: the processors this process may use)
    threads = "";
    /// processor cores to keep to, as in 0-3,8, each worker thread to one of them; on Linux (default: all,
    /// and threads move)
    cores = "";
    /// part of the time in which the processor computes for models, 10% to 100%; the rest of it is left to
    /// other programs, evenly (not while weights are packed after a load, nor in the second in which it is
    /// measured; graphics processors are not slowed)
    compute_share = "100%";
    /// use weights straight from the model file instead of copying them to faster memory
    mmap = "false";
    /// instruction set of the processor's kernels: auto, scalar, avx2, avx512, neon
    cpu_isa = "auto";
    /// memory models may take of each device, in MiB (default: what is free less a reserve)
    memory_mib = "";
    /// disk that stays free when models are fetched, in MiB (default: a fiftieth of the disk, 1024 to 16384)
    disk_reserve_mib = "";
    /// disk that fetched models may take together, in MiB; what was not used for longest goes for what is
    /// fetched, if another machine has it (default: no limit)
    disk_quota_mib = "";
    /// what a request loaded is unloaded when none has used it for so many seconds; 0 never does. The
    /// coordinator's counts; what a person placed stays
    unload_idle_s = "1800";
    /// seconds that an answer waits to go on after a machine that computes it was lost, 1 to 3600; then it
    /// ends with what is missing
    stream_pause_max = "120";
    /// context given to a model unless asked otherwise
    context_tokens = "4096";
    /// sequences that may run at once unless asked otherwise
    slots = "4";
    /// tokens whose keys and values a model may hold, over all sequences (default: slots times context)
    cache_tokens = "";
    /// how keys and values are stored unless asked otherwise: f32, f16 or q8
    kv = "f16";
    /// how a model that was made to write text gives vectors to clients that cannot send `pooling`: first,
    /// mean or last (default: they are refused)
    embedding_pooling = "";
    /// how tokens are guessed ahead, which changes speed but no answer: ngram (from the text itself), draft
    /// (by a small model; what naming one asks for) or off
    speculate = "ngram";
    /// small model of the same tokenizer that guesses ahead: name, file or folder (default: none)
    draft = "";
    /// host names the API answers to besides localhost
    allowed_hosts = "";
    /// pages of other sites and of programs with web views that may use the models, each with an API key,
    /// comma between: app://obsidian.md, http://localhost:3000, vscode-webview://*
    allowed_origins = "";
    /// keys for /v1 when api_listen is not loopback, comma between; in the file also a table of names to
    /// keys. A running node reads them again when the file changes
    api_keys = "";
    /// whether a proxy on this machine stands in front of the API: then nothing is administered over HTTP,
    /// the page included, and keys are always needed
    api_proxied = "false";
    /// whether /metrics is readable without an API key or the local secret
    metrics_open = "false";
    /// whether an API key also shows the state of the cluster, to look at, from other machines too
    keys_see_cluster = "false";
    /// what is logged, as in RUST_LOG
    log = "warn";
};

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    Flag,
    Environment(String),
    File(PathBuf),
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A value with its source.
#[derive(Clone, Debug)]
pub struct Value {
    pub text: String,
    pub source: Source,
}

/// All settings, resolved.
#[derive(Clone)]
pub struct Config {
    values: BTreeMap<&'static str, Value>,
    api_keys: Vec<NamedKey>,
    /// The configuration file, which need not be there.
    file: PathBuf,
    /// Why nothing of that file is in these settings.
    file_problem: Option<String>,
    /// Where the log lines of this process are kept, for a node in it.
    pub log: LogCapture,
}

impl Config {
    /// Resolves every key. `flags` holds what was given on the command line; `file` an explicit configuration
    /// file, which then must exist.
    pub fn resolve(
        flags: &BTreeMap<&'static str, String>,
        environment: &dyn Fn(&str) -> Option<String>,
        file: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let path = path_of(file)?;
        let settings = read_file(&path, file.is_some())?;
        Self::resolve_with(flags, environment, path, settings)
    }

    /// The same without the configuration file, which cannot be used: for a command that says why.
    pub fn without_file(
        flags: &BTreeMap<&'static str, String>,
        environment: &dyn Fn(&str) -> Option<String>,
        file: Option<&Path>,
        problem: &anyhow::Error,
    ) -> anyhow::Result<Self> {
        let config = Self::resolve_with(flags, environment, path_of(file)?, FileSettings::default())?;
        Ok(Self { file_problem: Some(format!("{problem:#}")), ..config })
    }

    /// Why the configuration file could not be used, if these settings are without it.
    pub fn file_problem(&self) -> Option<&str> {
        self.file_problem.as_deref()
    }

    fn resolve_with(
        flags: &BTreeMap<&'static str, String>,
        environment: &dyn Fn(&str) -> Option<String>,
        path: PathBuf,
        settings: FileSettings,
    ) -> anyhow::Result<Self> {
        let FileSettings { values: table, api_keys: keys_of_file } = settings;
        let mut values = BTreeMap::new();
        for key in KEYS {
            let variable = key.variable();
            let value = if let Some(text) = flags.get(key.name) {
                Value { text: text.clone(), source: Source::Flag }
            } else if let Some(text) = environment(&variable) {
                Value { text, source: Source::Environment(variable) }
            } else if let Some(text) = table.get(key.name) {
                Value { text: text.clone(), source: Source::File(path.clone()) }
            } else {
                Value { text: default_of(key)?, source: Source::Default }
            };
            values.insert(key.name, value);
        }
        if let Some(folder) = values.get_mut("data_dir") {
            folder.text = with_home(&folder.text)?;
        }
        let mut config = Self {
            values,
            api_keys: keys_of_file,
            file: path,
            file_problem: None,
            log: LogCapture::default(),
        };
        if config.text("data_dir").is_empty() {
            return Err(config.refused("data_dir", "name a folder, or leave it out").into());
        }
        if !matches!(config.source("api_keys"), Source::File(_)) {
            config.api_keys = NamedKey::list(config.text("api_keys"));
        }
        named_keys::check(&config.api_keys, config.source("api_keys"))?;
        Ok(config)
    }

    /// Every key with its value, in the order of [`KEYS`].
    pub fn entries(&self) -> impl Iterator<Item = (&'static Key, &Value)> {
        KEYS.iter().filter_map(|key| self.values.get(key.name).map(|value| (key, value)))
    }

    /// The keys of the API.
    pub fn api_keys(&self) -> &[NamedKey] {
        &self.api_keys
    }

    /// The file in which the keys of the API may change while a node runs; `None` where they come from
    /// elsewhere.
    pub fn api_keys_file(&self) -> Option<&Path> {
        matches!(self.source("api_keys"), Source::File(_) | Source::Default).then_some(&*self.file)
    }

    /// Where a setting came from.
    pub fn source(&self, name: &str) -> &Source {
        &self.value(name).source
    }

    /// The text of a setting. Panics on a name that is not in [`KEYS`]: a bug here, not input.
    pub fn text(&self, name: &str) -> &str {
        &self.value(name).text
    }

    /// A setting as a value; the error says where the text came from.
    pub fn parse<T: FromStr>(&self, name: &str) -> anyhow::Result<T>
    where
        T::Err: fmt::Display + 'static,
    {
        self.text(name).trim().parse::<T>().map_err(|error| self.refused(name, reason_of(&error)).into())
    }

    /// A setting that counts what there is at least one of.
    pub fn count(&self, name: &str) -> anyhow::Result<u32> {
        match self.parse::<u32>(name)? {
            0 => Err(self.refused(name, "it must be 1 or more").into()),
            count => Ok(count),
        }
    }

    /// What is wrong with a setting, with its value and where that came from.
    fn refused(&self, name: &str, error: impl fmt::Display) -> CommandError {
        let Value { text, source } = self.value(name);
        CommandError::BadSetting {
            name: name.to_owned(),
            value: text.clone(),
            from: source.to_string(),
            reason: error.to_string(),
            code: None,
        }
    }

    /// Keeps this thread, and all that it starts, to the cores that are set.
    pub fn confine(&self) -> anyhow::Result<()> {
        let Some(cores) = self.cores()? else { return Ok(()) };
        cores.confine().map_err(|error| {
            let mut refused = self.refused("cores", &error);
            if let CommandError::BadSetting { code, .. } = &mut refused {
                *code = Some(error.code());
            }
            refused.into()
        })
    }

    /// A setting that was given on the command line.
    pub fn flag<T: FromStr>(&self, name: &str) -> anyhow::Result<Option<T>>
    where
        T::Err: fmt::Display + 'static,
    {
        let given = self.value(name).source == Source::Flag;
        given.then(|| self.parse(name)).transpose()
    }

    /// A setting that lists several values with commas between.
    pub fn list(&self, name: &str) -> Vec<String> {
        self.text(name).split(',').map(str::trim).filter(|t| !t.is_empty()).map(str::to_owned).collect()
    }

    /// Pages of other sites that may use the models.
    pub fn allowed_origins(&self) -> anyhow::Result<Vec<AllowedOrigin>> {
        let origin = |text: &String| {
            text.parse().map_err(|bad| self.refused("allowed_origins", format!("{text:?}: {bad}")).into())
        };
        self.list("allowed_origins").iter().map(origin).collect()
    }

    /// What the node is called.
    pub fn name(&self) -> anyhow::Result<String> {
        let name = exo_types::clean_name(self.text("name"), NAME_CHARS_MAX);
        if name.is_empty() {
            let reason = "a name needs a character that can be seen; leave it out to use the host name";
            return Err(self.refused("name", reason).into());
        }
        Ok(name)
    }

    /// Addresses of nodes to reach. Ids belong to one `exo join`, where they are checked.
    pub fn peers(&self) -> anyhow::Result<Vec<String>> {
        let peers = self.list("peers");
        let is_address = |peer: &String| {
            let parts = peer.rsplit_once(':').filter(|(host, _)| !host.is_empty() && !host.contains('@'));
            parts.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0))
        };
        match peers.iter().find(|peer| !is_address(peer)) {
            Some(peer) => {
                let reason = format!(
                    "`{peer}` is not an address; write HOST:PORT, such as 192.168.1.20:52416 or desk.local:52416"
                );
                Err(self.refused("peers", reason).into())
            }
            None => Ok(peers),
        }
    }

    /// The setting `device`, if it is given where `backend` is, or where it overrules that: of a
    /// configuration file that names a card, `--backend cpu` means no word.
    pub fn device_beside_backend(&self) -> Option<&Value> {
        let strength = |value: &Value| match value.source {
            Source::Flag => 3,
            Source::Environment(_) => 2,
            Source::File(_) => 1,
            Source::Default => 0,
        };
        let device = self.value("device");
        (!device.text.is_empty() && strength(device) >= strength(self.value("backend"))).then_some(device)
    }

    /// Whether nobody has set a setting.
    pub fn is_default(&self, name: &str) -> bool {
        self.value(name).source == Source::Default
    }

    /// Processor threads, if set.
    pub fn threads(&self) -> anyhow::Result<Option<usize>> {
        if self.text("threads").trim().is_empty() {
            return Ok(None);
        }
        let threads = self.parse::<usize>("threads")?;
        if !(1..=CpuDevice::THREADS_MAX).contains(&threads) {
            let (max, cores) = (CpuDevice::THREADS_MAX, exo_device::cores());
            let reason = format!("give 1 to {max}, or leave it out to use all {cores}");
            return Err(self.refused("threads", reason).into());
        }
        Ok(Some(threads))
    }

    /// Whether a new cluster lets no node join.
    pub fn trust_closed(&self) -> anyhow::Result<bool> {
        match self.text("trust") {
            "auto" => Ok(false),
            "closed" => Ok(true),
            _ => Err(self.refused("trust", "it must be `auto` or `closed`").into()),
        }
    }

    /// Memory that models may take of each device, if set.
    pub fn memory_max_bytes(&self) -> anyhow::Result<Option<u64>> {
        self.mebibytes("memory_mib", 1)
    }

    /// What fetched models may take of the disk.
    pub fn disk_limits(&self) -> anyhow::Result<DiskLimits> {
        let reserve_bytes = self.mebibytes("disk_reserve_mib", 0)?;
        Ok(DiskLimits { reserve_bytes, quota_bytes: self.mebibytes("disk_quota_mib", 1)? })
    }

    /// After how long what a request loaded is unloaded, if it is.
    pub fn unload_idle_after(&self) -> anyhow::Result<Option<Duration>> {
        let seconds: u32 = self.parse("unload_idle_s")?;
        Ok((seconds > 0).then(|| Duration::from_secs(seconds.into())))
    }

    /// How long an interrupted answer may stand still.
    pub fn stream_pause_max(&self) -> anyhow::Result<Duration> {
        const NAME: &str = "stream_pause_max";
        let seconds: u64 = self.parse(NAME)?;
        match seconds {
            1..=3600 => Ok(Duration::from_secs(seconds)),
            _ => Err(self.refused(NAME, "it must be from 1 to 3600 seconds").into()),
        }
    }

    /// How rows become one vector where neither request nor model says it, if it is set.
    pub fn embedding_pooling(&self) -> anyhow::Result<Option<Pooling>> {
        const NAME: &str = "embedding_pooling";
        let text = self.text(NAME).trim();
        if text.is_empty() {
            return Ok(None);
        }
        let found = Pooling::ALL.into_iter().find(|pooling| pooling.name() == text);
        found.map(Some).ok_or_else(|| self.refused(NAME, "it is `first`, `mean` or `last`").into())
    }

    /// A setting in MiB as bytes, if it is set.
    fn mebibytes(&self, name: &str, least: u64) -> anyhow::Result<Option<u64>> {
        const MIB_MAX: u64 = u64::MAX >> 20;
        if self.text(name).trim().is_empty() {
            return Ok(None);
        }
        let what = "it is a whole number of MiB, as in 8192";
        match self.text(name).trim().parse().map_err(|_| self.refused(name, what))? {
            mib if (least..=MIB_MAX).contains(&mib) => Ok(Some(mib << 20)),
            _ => Err(self.refused(name, format!("it must be from {least} to {MIB_MAX}")).into()),
        }
    }

    /// The processor cores to keep to, if set.
    pub fn cores(&self) -> anyhow::Result<Option<CoreList>> {
        Ok(if self.text("cores").trim().is_empty() { None } else { Some(self.parse("cores")?) })
    }

    /// The data folder.
    pub fn data_dir(&self) -> PathBuf {
        PathBuf::from(self.text("data_dir"))
    }

    /// The API's address.
    pub fn api_listen(&self) -> anyhow::Result<SocketAddr> {
        self.address("api_listen", "127.0.0.1:52415")
    }

    /// The address for other nodes.
    pub fn listen(&self) -> anyhow::Result<SocketAddr> {
        self.address("listen", "0.0.0.0:52416")
    }

    fn address(&self, name: &str, example: &str) -> anyhow::Result<SocketAddr> {
        let what = format!("it is an IP address and a port, as in {example}");
        self.text(name).trim().parse().map_err(|_| self.refused(name, what).into())
    }

    /// The API's second address, if set.
    pub fn ollama_listen(&self) -> anyhow::Result<Option<SocketAddr>> {
        if self.text("ollama_listen").trim().is_empty() {
            return Ok(None);
        }
        let address = self.address("ollama_listen", "127.0.0.1:11434")?;
        if !address.ip().to_canonical().is_loopback() {
            return Err(self
                .refused("ollama_listen", "it must be on loopback, as 127.0.0.1:11434 is")
                .into());
        }
        Ok(Some(address))
    }

    fn value(&self, name: &str) -> &Value {
        self.values.get(name).unwrap_or_else(|| panic!("`{name}` is not a setting"))
    }
}

/// The configuration file exo looks for: `exo/config.toml` in the XDG configuration folder.
pub fn default_file() -> anyhow::Result<PathBuf> {
    Ok(strategy()?.config_dir().join("exo").join("config.toml"))
}

/// The configuration file: the one that was named, or where it is looked for.
fn path_of(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    named.map_or_else(default_file, |path| Ok(path.to_owned()))
}

fn strategy() -> anyhow::Result<impl BaseStrategy> {
    etcetera::choose_base_strategy()
        .context("no home folder is known; set HOME, or give --data-dir and --config")
}

/// A path with the home folder for a `~` at its start: in a file, in a service's variable and in
/// `--data-dir=~/exo` no shell puts it there.
fn with_home(path: &str) -> anyhow::Result<String> {
    match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with(std::path::is_separator) => {
            Ok(format!("{}{rest}", strategy()?.home_dir().display()))
        }
        _ => Ok(path.to_owned()),
    }
}

/// Why a text is no value. The standard library's words for whole numbers name neither number nor range.
fn reason_of<E: fmt::Display + 'static>(error: &E) -> String {
    let of_number = (error as &dyn Any).downcast_ref::<ParseIntError>();
    match of_number.map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow) => "it is too large a number".to_owned(),
        Some(_) => "it must be a whole number, and not below zero".to_owned(),
        None => error.to_string(),
    }
}

fn default_of(key: &Key) -> anyhow::Result<String> {
    match key.name {
        "data_dir" => Ok(strategy()?.data_dir().join("exo").display().to_string()),
        "name" => Ok(sysinfo::System::host_name().unwrap_or_else(|_| "node".to_owned())),
        _ => Ok(key.default.to_owned()),
    }
}

/// What a configuration file says.
#[derive(Default)]
pub struct FileSettings {
    values: BTreeMap<String, String>,
    /// With their names, which `values` has not.
    pub api_keys: Vec<NamedKey>,
}

fn read_file(path: &Path, must_exist: bool) -> anyhow::Result<FileSettings> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse_file(&text, path),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !must_exist => Ok(FileSettings::default()),
        Err(e) => Err(e).with_context(|| format!("cannot read configuration {}", path.display())),
    }
}

/// Takes a configuration file apart.
pub fn parse_file(text: &str, path: &Path) -> anyhow::Result<FileSettings> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        // Its own text shows the line, and in that may be a key.
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let (line, message) = (before.matches('\n').count() + 1, error.message());
        anyhow::anyhow!("configuration {} is not TOML: line {line}: {message}", path.display())
    })?;
    let mut settings = FileSettings::default();
    for (name, value) in table {
        if !KEYS.iter().any(|k| k.name == name) {
            let known: Vec<_> = KEYS.iter().map(|k| k.name).collect();
            let meant = suggest::nearest(&name, known.iter().copied()).map(str::to_owned);
            let (file, known) = (path.display().to_string(), known.join(", "));
            return Err(CommandError::UnknownSetting { file, name, meant, known }.into());
        }
        if let ("api_keys", toml::Value::Table(table)) = (&*name, &value) {
            settings.api_keys =
                NamedKey::table(table).with_context(|| format!("configuration {}", path.display()))?;
            let keys: Vec<&str> = settings.api_keys.iter().map(|key| &*key.key).collect();
            settings.values.insert(name, keys.join(","));
            continue;
        }
        let text = as_text(&value)
            .with_context(|| format!("{}: `{name}` must be a text, number, flag or list", path.display()))?;
        if name == "api_keys" {
            settings.api_keys = NamedKey::list(&text);
        }
        settings.values.insert(name, text);
    }
    Ok(settings)
}

fn as_text(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(s) => Some(s.clone()),
        toml::Value::Integer(i) => Some(i.to_string()),
        toml::Value::Boolean(b) => Some(b.to_string()),
        toml::Value::Array(list) => {
            let texts: Option<Vec<_>> = list.iter().map(as_text).collect();
            Some(texts?.join(","))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(flags: &[(&'static str, &str)], env: &[(&str, &str)], file: &str) -> anyhow::Result<Config> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("config.toml");
        std::fs::write(&path, file)?;
        let flags = flags.iter().map(|(k, v)| (*k, (*v).to_owned())).collect();
        let env: BTreeMap<_, _> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Config::resolve(&flags, &|name| env.get(name).cloned(), Some(&path))
    }

    #[test]
    fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
        let file = "name = \"file\"\nthreads = 3\npeers = [\"a:1\", \"b:2\"]\n";
        let config = resolve(&[("name", "flag")], &[("EXO_NAME", "env"), ("EXO_SLOTS", "9")], file).unwrap();
        assert_eq!(config.text("name"), "flag");
        assert_eq!(config.value("name").source, Source::Flag);
        assert_eq!(config.parse::<u32>("slots").unwrap(), 9);
        assert_eq!(config.value("slots").source, Source::Environment("EXO_SLOTS".to_owned()));
        assert_eq!(config.list("peers"), ["a:1", "b:2"]);
        assert!(matches!(config.value("threads").source, Source::File(_)));
        assert_eq!(config.value("trust").source, Source::Default);
    }

    #[test]
    fn a_name_can_be_seen_and_a_peer_has_a_port() {
        let name = |text: &str| resolve(&[("name", text)], &[], "").unwrap().name();
        assert_eq!(name(" desk ").unwrap(), "desk");
        assert!(name("\u{200b} ").unwrap_err().to_string().contains("leave it out"));
        let peers = |text: &str| resolve(&[("peers", text)], &[], "").unwrap().peers();
        assert_eq!(peers("desk.local:1, [::1]:2").unwrap(), ["desk.local:1", "[::1]:2"]);
        for wrong in ["bogus", "desk:", ":5", "desk:0", "desk:65536", "a:1,b", "id@desk:5"] {
            assert!(peers(wrong).unwrap_err().to_string().contains("HOST:PORT"), "{wrong}");
        }
        let listen = resolve(&[("listen", "52416")], &[], "").unwrap().listen();
        assert!(listen.unwrap_err().to_string().contains("as in 0.0.0.0:52416"));
    }

    #[test]
    fn a_misspelt_setting_is_named() {
        let error = resolve(&[], &[], "thread = 3").err().unwrap().to_string();
        let meant = "`thread` is not a setting; did you mean `threads`? There are: data_dir, ";
        assert!(error.contains(meant), "{error}");
        let error = resolve(&[], &[], "colour = 3").err().unwrap().to_string();
        assert!(error.contains("`colour` is not a setting; there are: data_dir, "), "{error}");
    }

    #[test]
    fn threads_are_a_number_from_one_or_not_set() {
        let threads = |text: &str| resolve(&[("threads", text)], &[], "").unwrap().threads();
        assert_eq!(resolve(&[], &[], "").unwrap().threads().unwrap(), None);
        assert_eq!(threads("3").unwrap(), Some(3));
        let error = threads("0").unwrap_err().to_string();
        assert!(error.contains("`threads` is `0` (from flag)") && error.contains("1 to 1024"), "{error}");
        let error = threads("100000").unwrap_err().to_string();
        assert!(error.contains("`threads` is `100000` (from flag): give 1 to 1024"), "{error}");
        let error = threads("-1").unwrap_err().to_string();
        assert!(error.contains("`-1`") && error.contains("a whole number"), "{error}");
    }

    #[test]
    fn a_wrong_trust_says_where_it_came_from() {
        let trust = |text| resolve(&[], &[("EXO_TRUST", text)], "").unwrap().trust_closed();
        assert!(trust("closed").unwrap() && !trust("auto").unwrap());
        let error = trust("open").unwrap_err().to_string();
        assert!(error.contains("`trust` is `open` (from environment EXO_TRUST): it must be"), "{error}");
    }

    #[test]
    fn there_is_at_least_one_slot_and_one_token_of_context() {
        let count = |name, text: &str| resolve(&[(name, text)], &[], "").unwrap().count(name);
        assert_eq!(count("slots", "3").unwrap(), 3);
        for (name, wrong, why) in [
            ("slots", "0", "1 or more"),
            ("context_tokens", "0", "1 or more"),
            ("slots", "5000000000", "too large"),
        ] {
            let error = count(name, wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("`{name}` is `{wrong}`")) && error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_data_folder_below_the_home_folder_may_begin_with_a_tilde() {
        let folder = |text: &str| Ok::<_, anyhow::Error>(resolve(&[("data_dir", text)], &[], "")?.data_dir());
        let home = strategy().unwrap().home_dir().to_owned();
        assert_eq!(folder("~/exo").unwrap(), home.join("exo"));
        assert_eq!(resolve(&[], &[], "data_dir = \"~\"").unwrap().data_dir(), home);
        for plain in ["~exo", "./~/exo", "exo"] {
            assert_eq!(folder(plain).unwrap(), Path::new(plain));
        }
        assert!(folder("").unwrap_err().to_string().contains("leave it out"));
    }

    #[test]
    fn memory_is_a_number_of_mebibytes_or_not_set() {
        let memory = |text: &str| resolve(&[("memory_mib", text)], &[], "").unwrap().memory_max_bytes();
        assert_eq!((memory("").unwrap(), memory("3").unwrap()), (None, Some(3 << 20)));
        for nonsense in ["0", "17592186044416", "-1", "1 GiB"] {
            let error = memory(nonsense).unwrap_err().to_string();
            assert!(error.contains(&format!("`memory_mib` is `{nonsense}` (from flag)")), "{error}");
        }
    }

    #[test]
    fn an_interrupted_answer_waits_two_minutes_or_as_long_as_is_set() {
        let pause = |text: &str| resolve(&[("stream_pause_max", text)], &[], "").unwrap().stream_pause_max();
        let of_nobody = resolve(&[], &[], "").unwrap().stream_pause_max().unwrap();
        assert_eq!(of_nobody, exo_cluster::PAUSE_MAX);
        assert_eq!(pause("3600").unwrap(), Duration::from_secs(3600));
        for wrong in ["0", "3601"] {
            let error = pause(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("`stream_pause_max` is `{wrong}` (from flag)")), "{error}");
            assert!(error.contains("from 1 to 3600"), "{error}");
        }
        assert!(pause("2 min").is_err());
    }

    #[test]
    fn vectors_are_made_in_one_of_three_ways_or_as_nobody_says() {
        let pooling =
            |text: &str| resolve(&[("embedding_pooling", text)], &[], "").unwrap().embedding_pooling();
        assert_eq!((pooling("").unwrap(), pooling(" mean ").unwrap()), (None, Some(Pooling::Mean)));
        let error = pooling("cls").unwrap_err().to_string();
        assert!(
            error.contains("`embedding_pooling` is `cls` (from flag)") && error.contains("`last`"),
            "{error}"
        );
    }

    #[test]
    fn a_disk_has_a_reserve_of_its_own_and_no_quota_unless_they_are_set() {
        let limits = |flags: &[(&'static str, &str)]| resolve(flags, &[], "").unwrap().disk_limits();
        assert_eq!(limits(&[]).unwrap(), DiskLimits::default());
        let set = limits(&[("disk_reserve_mib", "0"), ("disk_quota_mib", "2")]).unwrap();
        assert_eq!(set, DiskLimits { reserve_bytes: Some(0), quota_bytes: Some(2 << 20) });
        let error = limits(&[("disk_quota_mib", "0")]).unwrap_err().to_string();
        assert!(error.contains("`disk_quota_mib` is `0` (from flag): it must be from 1"), "{error}");
    }

    #[test]
    fn a_device_that_was_named_for_another_backend_is_none_of_this_one() {
        let device = |flags: &[(&'static str, &str)], file: &str| {
            let config = resolve(flags, &[("EXO_BACKEND", "cpu")], file).unwrap();
            config.device_beside_backend().map(|device| device.text.clone())
        };
        assert_eq!(device(&[("device", "0")], ""), Some("0".to_owned()));
        assert_eq!(device(&[], "device = \"RTX\"\nbackend = \"cuda\""), None);
        assert_eq!(device(&[("backend", "vulkan"), ("device", "1")], ""), Some("1".to_owned()));
    }

    #[test]
    fn a_value_of_the_wrong_kind_says_where_it_came_from() {
        let config = resolve(&[], &[("EXO_THREADS", "many")], "").unwrap();
        let error = config.parse::<usize>("threads").unwrap_err().to_string();
        assert!(error.contains("many") && error.contains("EXO_THREADS"), "{error}");
    }
}
