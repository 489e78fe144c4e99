//! `exo worker`: one shard on a graphics processor, for the node whose child this is. Not for people.

use anyhow::Context;
use exo_node::SystemHost;

use crate::system;

/// Serves until standard input ends.
pub fn run() -> anyhow::Result<()> {
    let output = system::own_output().context("cannot use standard output")?;
    exo_node::serve_worker(std::io::stdin(), output, &SystemHost, system::die);
    Ok(())
}
