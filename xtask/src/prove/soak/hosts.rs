//! The machines, and what happens to them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::json;

use super::disks::SmallDisk;
use super::faults::Kind;
use crate::child::{self, Running};
use crate::cluster;
use crate::http::Server;
use crate::lan::Lan;
use crate::system::{self, Told};
use crate::wait::wait_for;

const START_MAX: Duration = Duration::from_secs(30);
const ANSWER_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// Of the cluster that the model is placed on.
const STAGES: usize = 3;
/// What the demo model was made for: the longest question and its answer fit.
const CONTEXT_TOKENS: u32 = 512;
/// Machines that something may happen to at once.
const STRUCK_MAX: usize = 2;
/// So long a machine has, after what happened to it, before an error there counts.
const GRACE: Duration = Duration::from_secs(5);

/// All machines of the run.
pub struct Hosts {
    lan: Arc<Lan>,
    exo: PathBuf,
    memory_mib: Option<u64>,
    folder: PathBuf,
    /// One for each machine, where such can be had. They go before the folder does.
    disks: Vec<SmallDisk>,
    /// What cannot happen here, and why.
    impossible: Vec<(Kind, String)>,
    /// Removes the folder with the value.
    _temporary: Option<tempfile::TempDir>,
    hosts: Vec<Host>,
    began: Instant,
}

struct Host {
    running: Option<Running>,
    struck: Option<Struck>,
    /// A command that is under way for it.
    command: Option<Running>,
    /// When the last blow's grace is over, in milliseconds of the run; for ever while it lasts.
    spared_from_ms: Arc<AtomicU64>,
}

/// What is happening to a machine.
struct Struck {
    kind: Kind,
    until: Instant,
    /// The other one of a pair.
    other: Option<usize>,
}

/// How a client sees its machine.
#[derive(Clone)]
pub struct Door {
    pub folder: PathBuf,
    lan: Arc<Lan>,
    at: usize,
    began: Instant,
    spared_from_ms: Arc<AtomicU64>,
}

impl Door {
    /// The node's API, where it has said.
    pub fn server(&self) -> Option<Server> {
        let network = Some(self.lan.host(self.at).to_owned());
        cluster::published(&self.folder).map(|server| Server { network, ..server })
    }

    /// Whether something happened to the machine since then, or its grace was not over.
    pub fn was_struck_since(&self, then: Instant) -> bool {
        let then = u64::try_from((then - self.began).as_millis()).unwrap_or(u64::MAX);
        self.spared_from_ms.load(Ordering::Relaxed) > then
    }
}

impl Hosts {
    /// Starts the machines and waits until all see each other.
    pub fn start(
        exo: PathBuf,
        count: usize,
        memory_mib: Option<u64>,
        keep: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let temporary = match keep {
            Some(_) => None,
            None => Some(tempfile::Builder::new().prefix("exo-soak-").tempdir().context("no folder")?),
        };
        let folder =
            keep.map_or_else(|| temporary.as_ref().map(|t| t.path().to_owned()), |k| Some(k.to_owned()));
        let folder = folder.context("no folder")?;
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        std::fs::write(folder.join("config.toml"), "").context("cannot write a configuration")?;
        let lan = Arc::new(Lan::new(count)?);
        let mut impossible = Vec::new();
        let disks = small_disks(&folder, count, keep.is_some()).unwrap_or_else(|why| {
            impossible.push((Kind::Disk, format!("{why:#}")));
            Vec::new()
        });
        if let Err(why) = lan.thin(0, true).and_then(|()| lan.thin(0, false)) {
            impossible.push((Kind::Loss, format!("{why:#}")));
        }
        let mut hosts = Self {
            lan,
            exo,
            memory_mib,
            folder,
            disks,
            impossible,
            _temporary: temporary,
            hosts: Vec::new(),
            began: Instant::now(),
        };
        for at in 0..count {
            hosts.hosts.push(Host {
                running: None,
                struck: None,
                command: None,
                spared_from_ms: Arc::default(),
            });
            hosts.run(at)?;
        }
        for at in 0..count {
            let door = hosts.door(at);
            wait_for("seeing all machines", (START_MAX, POLL), || {
                let Some(server) = door.server() else { return Ok(None) };
                let view = server.get("/exo/v1/cluster", ANSWER_MAX)?;
                Ok(cluster::sees(&view, count).then_some(()))
            })?;
        }
        Ok(hosts)
    }

    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// What cannot happen here, and why.
    pub fn impossible(&self) -> &[(Kind, String)] {
        &self.impossible
    }

    /// Places the model over three machines; its name.
    pub fn place(&self, file: Option<&Path>) -> anyhow::Result<String> {
        let servers: Option<Vec<Server>> = (0..self.len()).map(|at| self.door(at).server()).collect();
        let servers = servers.context("a machine's node is not there")?;
        let name = cluster::model(servers.iter(), file)?;
        let order =
            json!({ "model": name, "nodes_min": STAGES, "context_tokens": CONTEXT_TOKENS, "slots": 8 });
        cluster::place(&servers[0], &order)?;
        Ok(name)
    }

    pub fn door(&self, at: usize) -> Door {
        Door {
            folder: self.data(at),
            lan: Arc::clone(&self.lan),
            at,
            began: self.began,
            spared_from_ms: Arc::clone(&self.hosts[at].spared_from_ms),
        }
    }

    /// The most that one of the processes holds.
    pub fn held(&self) -> [u64; 3] {
        let of = |host: &Host| host.running.as_ref().and_then(|running| system::held(running.id()).ok());
        let most = |a: [u64; 3], b: [u64; 3]| [a[0].max(b[0]), a[1].max(b[1]), a[2].max(b[2])];
        self.hosts.iter().filter_map(of).fold([0; 3], most)
    }

    /// Machines to which nothing is happening, while there may be more of the others.
    pub fn unharmed(&self) -> Vec<usize> {
        let struck = self.hosts.iter().filter(|host| host.struck.is_some()).count();
        if struck >= STRUCK_MAX {
            return Vec::new();
        }
        (0..self.len()).filter(|&at| self.hosts[at].struck.is_none()).collect()
    }

    /// Something happens to a machine.
    pub fn strike(
        &mut self,
        at: usize,
        kind: Kind,
        lasts: Duration,
        other: Option<usize>,
    ) -> anyhow::Result<()> {
        let seconds = lasts.as_secs();
        eprintln!("{:>5} s: {kind:?} of {} for {seconds} s", self.began.elapsed().as_secs(), name(at));
        for at in [Some(at), other].into_iter().flatten() {
            self.hosts[at].spared_from_ms.store(u64::MAX, Ordering::Relaxed);
        }
        match kind {
            Kind::Kill => {
                if let Some(mut running) = self.hosts[at].running.take() {
                    running.kill()?;
                }
            }
            Kind::End => self.tell(at, Told::End)?,
            Kind::Stop => self.tell(at, Told::Stop)?,
            Kind::Cable => self.lan.cable(at, false)?,
            Kind::Pair => self.lan.pair([at, other.context("a pair has two")?], false)?,
            Kind::Drain => self.drain(at, &[])?,
            Kind::Disk => self.disk(at)?.fill()?,
            Kind::Loss => self.lan.thin(at, true)?,
        }
        let until = Instant::now() + lasts;
        self.hosts[at].struck = Some(Struck { kind, until, other });
        if let Some(other) = other {
            self.hosts[other].struck = Some(Struck { kind, until, other: Some(at) });
        }
        Ok(())
    }

    /// Ends what has lasted long enough, or all of it; whether nothing is left.
    pub fn heal(&mut self, all: bool) -> anyhow::Result<bool> {
        for at in 0..self.len() {
            self.check_alive(at)?;
            let is_over = |struck: &Struck| all || struck.until <= Instant::now();
            let Some(Struck { kind, other, .. }) = self.hosts[at].struck.take_if(|s| is_over(s)) else {
                continue;
            };
            match kind {
                Kind::Kill => self.run(at)?,
                Kind::End => {
                    // It hands its layers over first.
                    let running = self.hosts[at].running.as_mut();
                    if running.is_some_and(|running| running.has_ended().is_none()) {
                        self.hosts[at].struck = Some(Struck { kind, until: Instant::now(), other });
                        continue;
                    }
                    self.run(at)?;
                }
                Kind::Stop => self.tell(at, Told::Continue)?,
                Kind::Cable => self.lan.cable(at, true)?,
                Kind::Pair => self.lan.pair([at, other.context("a pair has two")?], true)?,
                Kind::Drain => self.drain(at, &["--undo"])?,
                Kind::Disk => self.disk(at)?.free()?,
                Kind::Loss => self.lan.thin(at, false)?,
            }
            let spared = self.began.elapsed() + GRACE;
            let spared = u64::try_from(spared.as_millis()).unwrap_or(u64::MAX);
            self.hosts[at].spared_from_ms.store(spared, Ordering::Relaxed);
        }
        Ok(self.hosts.iter().all(|host| host.struck.is_none()))
    }

    /// A process that nobody ended must run.
    fn check_alive(&mut self, at: usize) -> anyhow::Result<()> {
        let host = &mut self.hosts[at];
        let may_end = host.struck.as_ref().is_some_and(|struck| struck.kind == Kind::End);
        match host.running.as_mut().and_then(Running::has_ended) {
            Some((status, _)) if !may_end => {
                let log = self.folder.join(format!("{}.log", name(at)));
                let log = std::fs::read_to_string(log).unwrap_or_default();
                let last: Vec<_> = log.lines().rev().take(5).collect();
                bail!("{} ended by itself ({status}): {}", name(at), last.join("; "))
            }
            _ => Ok(()),
        }
    }

    fn disk(&self, at: usize) -> anyhow::Result<&SmallDisk> {
        self.disks.get(at).context("no disk that could be filled")
    }

    fn data(&self, at: usize) -> PathBuf {
        self.folder.join(name(at))
    }

    fn run(&mut self, at: usize) -> anyhow::Result<()> {
        let log = self.folder.join(format!("{}.log", name(at)));
        let _ = std::fs::remove_file(self.data(at).join("api.json"));
        // Its log goes to a file, so that a failure can be read afterwards.
        let mut command = self.lan.command(at, Path::new("sh"));
        command.args(["-c", "exec \"$@\" 2>>\"$EXO_SOAK_LOG\"", "sh"]).arg(&self.exo);
        for (variable, _) in std::env::vars_os().filter(|(v, _)| v.to_string_lossy().starts_with("EXO_")) {
            command.env_remove(variable);
        }
        command
            .args(["start", "--name", name(at), "--api-listen", "127.0.0.1:0", "--listen", "0.0.0.0:0"])
            .args(["--backend", "cpu", "--threads", "1", "--config"])
            .arg(self.folder.join("config.toml"))
            .arg("--data-dir")
            .arg(self.data(at))
            .args(self.memory_mib.map(|mib| format!("--memory-mib={mib}")))
            .env("EXO_STOP_WITH_STDIN", "1")
            .env("EXO_SOAK_LOG", log);
        self.hosts[at].running = Some(child::start_held(command, &system::cores()?)?);
        Ok(())
    }

    fn tell(&self, at: usize, what: Told) -> anyhow::Result<()> {
        match &self.hosts[at].running {
            Some(running) => system::tell(running.id(), what),
            None => Ok(()),
        }
    }

    /// `exo drain` of a machine, on itself. It ends when it has, or with the next.
    fn drain(&mut self, at: usize, more: &[&str]) -> anyhow::Result<()> {
        let mut command = self.lan.command(at, &self.exo);
        command.args(["drain", name(at)]).args(more).arg("--config").arg(self.folder.join("config.toml"));
        command.arg("--data-dir").arg(self.data(at));
        self.hosts[at].command = Some(child::start(command, &system::cores()?)?);
        Ok(())
    }
}

/// A small disk below each machine's folder.
fn small_disks(folder: &Path, count: usize, is_kept: bool) -> anyhow::Result<Vec<SmallDisk>> {
    if is_kept {
        bail!("folders that stay are on no disk that goes");
    }
    (0..count).map(|at| SmallDisk::new(&folder.join(name(at)))).collect()
}

fn name(at: usize) -> &'static str {
    ["anna", "ben", "carla", "dan", "emma", "finn", "gina", "hans"][at]
}
