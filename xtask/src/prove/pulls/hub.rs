//! The mock hub with one model, and `exo pull` of it.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use crate::child::{self, Running};
use crate::http::Server;
use crate::lan::Lan;
use crate::rng::Rng;
use crate::wait::wait_for;
use crate::{run, system};

/// To read the model and its digest.
const START_MAX: Duration = Duration::from_secs(60);
const ANSWER_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);
/// What is read of a file at once.
const READ_BYTES: usize = 1 << 20;
/// The model in the binary, whose head says what a model is.
const DEMO: &str = "demo-model/exo-demo-Q8_0.gguf";
/// The file of a model, as the hub has it.
pub const FILE: &str = "pulled-Q8_0.gguf";
/// As the mock hub has it.
pub const REPO: &str = "org/repo";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Builds the mock hub, optimised; where it is.
pub fn build() -> anyhow::Result<PathBuf> {
    run::cargo(&["build", "--release", "--package", "exo-mock-hub"])?;
    let name = format!("exo-mock-hub{}", std::env::consts::EXE_SUFFIX);
    Ok(run::release_binary()?.with_file_name(name))
}

/// A model file in a folder of its own.
pub struct Model {
    pub folder: PathBuf,
    pub bytes: u64,
    sha256: String,
}

impl Model {
    /// The demo model with drawn bytes behind it, so many MiB in all.
    pub fn write(folder: &Path, mib: u64, seed: u64) -> anyhow::Result<Self> {
        let mut bytes = std::fs::read(DEMO).with_context(|| format!("cannot read {DEMO}"))?;
        let (len, mut rng) = (usize::try_from(mib << 20)?, Rng::new(seed));
        bytes.reserve(len.saturating_sub(bytes.len()));
        while bytes.len() < len {
            bytes.extend(rng.draw().to_le_bytes());
        }
        bytes.truncate(len);
        let write =
            || std::fs::create_dir_all(folder).and_then(|()| std::fs::write(folder.join(FILE), &bytes));
        write().with_context(|| format!("cannot write a model to {}", folder.display()))?;
        let sha256 = hex(Sha256::new_with_prefix(&bytes));
        Ok(Self { folder: folder.to_owned(), bytes: bytes.len() as u64, sha256 })
    }

    /// Deletes it.
    pub fn remove(&self) -> anyhow::Result<()> {
        std::fs::remove_dir_all(&self.folder)
            .with_context(|| format!("cannot delete {}", self.folder.display()))
    }

    /// Fails unless what was pulled to a folder is this model.
    pub fn check(&self, target: &PullTarget) -> anyhow::Result<()> {
        let path = target.file();
        let read = || -> std::io::Result<String> {
            let (mut file, mut digest) = (std::fs::File::open(&path)?, Sha256::new());
            let mut buffer = vec![0; READ_BYTES];
            loop {
                match std::io::Read::read(&mut file, &mut buffer)? {
                    0 => return Ok(hex(digest)),
                    len => digest.update(&buffer[..len]),
                }
            }
        };
        let found = read().with_context(|| format!("cannot read {}", path.display()))?;
        if found != self.sha256 {
            bail!("{} has the SHA-256 {found}, the hub's file has {}", path.display(), self.sha256);
        }
        Ok(())
    }
}

fn hex(digest: Sha256) -> String {
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A running mock hub; it ends with the value.
pub struct Hub {
    process: Running,
    server: Server,
}

/// What a hub has sent so far.
pub struct Counts {
    /// Bytes of files.
    pub sent_bytes: u64,
    /// Answers with bytes of files.
    pub data_answers: u64,
}

impl Hub {
    /// Starts with the files of a folder, on a machine of a network or on loopback.
    pub fn start(
        mock_hub: &Path,
        folder: &Path,
        machine: Option<(&Lan, usize)>,
        faults: &[String],
    ) -> anyhow::Result<Self> {
        let (mut command, address) = match machine {
            Some((lan, at)) => (lan.command(at, mock_hub), lan.address(at)),
            None => (Command::new(mock_hub), "127.0.0.1".to_owned()),
        };
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr())?.port();
        command.arg(folder).args(["--until-stdin-ends", "--address", &address]);
        command.args(["--port", &port.to_string()]).args(faults);
        let process = child::start_held(command, &system::cores()?)?;
        let network = machine.map(|(lan, at)| lan.host(at).to_owned());
        let server = Server { address: format!("{address}:{port}").parse()?, secret: String::new(), network };
        let mut hub = Self { process, server };
        wait_for("the start of the mock hub", (START_MAX, POLL), || {
            if let Some((status, said)) = hub.process.has_ended() {
                bail!("the mock hub ended by itself ({status}): {said}");
            }
            Ok(hub.counts().ok().map(drop))
        })?;
        Ok(hub)
    }

    /// What it has sent so far.
    pub fn counts(&self) -> anyhow::Result<Counts> {
        let counts = self.server.get("/mock/counts", ANSWER_MAX)?;
        let number =
            |name: &str| counts[name].as_u64().with_context(|| format!("the mock hub says no {name}"));
        Ok(Counts { sent_bytes: number("sent_bytes")?, data_answers: number("data_answers")? })
    }

    /// Where it is, for `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.server.address)
    }

    /// Where anyone gets the file.
    pub fn file_address(&self) -> String {
        format!("{}/{REPO}/resolve/main/{FILE}", self.endpoint())
    }

    /// `exo pull` of its model, by a command that begins with the program.
    pub fn pull(&self, mut program: Command, target: &PullTarget) -> Command {
        // No proxies, tokens and caches of who runs the proof.
        program.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        program
            .env("HOME", target.folder.join("home"))
            .env("HF_ENDPOINT", self.endpoint())
            .args(["pull", &format!("hf.co/{REPO}"), "--config"])
            .arg(target.folder.join("config.toml"))
            .arg("--data-dir")
            .arg(target.folder.join("data"));
        program
    }
}

/// A folder that a model is pulled to, deleted with the value.
pub struct PullTarget {
    folder: PathBuf,
}

impl PullTarget {
    /// Empty.
    pub fn new(parent: &Path) -> anyhow::Result<Self> {
        let folder = parent.join("pulled");
        let make = || {
            std::fs::create_dir_all(folder.join("home"))?;
            std::fs::write(folder.join("config.toml"), "")
        };
        make().with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// Where the model's file is when it is whole.
    pub fn file(&self) -> PathBuf {
        self.folder.join("data/hub").join(REPO).join(COMMIT).join("Q8_0").join(FILE)
    }
}

impl Drop for PullTarget {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Bytes a second of a program that moves so many, from its start to its end.
pub fn rate(bytes: u64, command: Command, at_most: Duration) -> anyhow::Result<f64> {
    let cores = system::cores()?;
    let began = Instant::now();
    child::output(command, &cores, at_most)?;
    Ok(bytes as f64 / began.elapsed().as_secs_f64())
}
