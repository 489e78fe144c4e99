//! `cargo xtask screenshots`: the pictures of `docs/dashboard.md`, from three real nodes in the system's
//! Chromium.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::cluster::Cluster;
use crate::{run, setup, web};

/// Where they are kept.
const PICTURES: &str = "docs/pictures";
/// Each, so that the repository stays small.
const PICTURE_BYTES_MAX: u64 = 150_000;
/// The model that the program carries, and how much of it a conversation may fill.
const MODEL: &str = "demo";
const CONTEXT_TOKENS: u32 = 2048;

#[derive(clap::Args)]
pub struct ScreenshotsArgs {
    /// A program that is built already
    #[arg(long)]
    exo: Option<PathBuf>,
}

/// Starts the nodes, places the model over all of them, and has the page looked at.
pub fn run(args: &ScreenshotsArgs) -> anyhow::Result<()> {
    web::run(false)?;
    let exo = setup::exo_binary(args.exo.as_deref())?;
    let mut cluster = Cluster::start(&exo, 3, &[])?;
    let taken = take(&exo, &mut cluster);
    match taken {
        Ok(()) => cluster.stop()?,
        Err(error) => return Err(error.context(cluster.last_words())),
    }
    check_sizes(Path::new(PICTURES))
}

fn take(exo: &Path, cluster: &mut Cluster) -> anyhow::Result<()> {
    let instance = cluster.place(0, MODEL, CONTEXT_TOKENS)?;
    cluster.wait_settled(&instance)?;
    let mut open = Command::new(exo);
    open.args(["open", "--print", "--data-dir"]).arg(cluster.data_dir(0)?);
    let printed = open.output().with_context(|| format!("cannot start {}", exo.display()))?;
    if !printed.status.success() {
        bail!("`exo open` failed: {}", String::from_utf8_lossy(&printed.stderr));
    }
    let link = String::from_utf8(printed.stdout).context("`exo open` printed no text")?;
    let script = format!("{}/e2e/screenshots.mjs", web::SOURCES);
    run::command("node", &[&script, link.trim(), PICTURES, MODEL])
}

fn check_sizes(folder: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let bytes = entry.metadata()?.len();
        eprintln!("{}: {bytes} bytes", entry.path().display());
        if bytes > PICTURE_BYTES_MAX {
            bail!("{} has {bytes} bytes, more than {PICTURE_BYTES_MAX}", entry.path().display());
        }
    }
    Ok(())
}
