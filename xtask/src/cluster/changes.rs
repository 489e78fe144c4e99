//! What happens to the nodes of a cluster: they are killed, stand still, end, start again, and come.

use std::time::Duration;

use anyhow::{Context, bail};

use super::{Cluster, POLL, STOP_MAX};
use crate::signals::StoppedProcess;
use crate::system::{self, Told};
use crate::wait::wait_for;

/// For a node that hands its layers over before it ends: it waits 30 s for that, and gives itself 8 more.
const LEAVE_MAX: Duration = Duration::from_secs(45);

impl Cluster {
    /// Kills a node.
    pub fn kill(&mut self, at: usize) -> anyhow::Result<()> {
        self.node_mut(at)?.process.kill()
    }

    /// Kills all nodes, as a power cut does.
    pub fn kill_all(&mut self) -> anyhow::Result<()> {
        self.nodes.iter_mut().try_for_each(|node| node.process.kill())
    }

    /// Has a node stand still, until it is thawed or the cluster ends.
    pub fn freeze(&mut self, at: usize) -> anyhow::Result<()> {
        let node = self.node_mut(at)?;
        node.stopped = Some(StoppedProcess::new(node.process.id())?);
        Ok(())
    }

    /// Has it go on.
    pub fn thaw(&mut self, at: usize) -> anyhow::Result<()> {
        drop(self.node_mut(at)?.stopped.take());
        Ok(())
    }

    /// Asks a node to end, and waits until it has handed its layers over and has.
    pub fn leave(&mut self, at: usize) -> anyhow::Result<()> {
        let node = self.node_mut(at)?;
        system::tell(node.process.id(), Told::End)?;
        let (status, said) = wait_for(&format!("the end of {}", node.name), (LEAVE_MAX, POLL), || {
            Ok(node.process.has_ended())
        })?;
        if !status.success() {
            bail!("{} ended with {status}: {said}", node.name);
        }
        Ok(())
    }

    /// From now on every node that starts again listens where it listens now, as on machines whose port is
    /// set: the others find it there.
    pub fn keep_ports(&mut self) -> anyhow::Result<()> {
        for at in 0..self.nodes.len() {
            let address = self.address_of(at)?;
            self.node_mut(at)?.setup.listen = Some(address);
        }
        Ok(())
    }

    /// Starts a node that was killed again, on its folder, and waits for its API.
    pub fn restart(&mut self, at: usize) -> anyhow::Result<()> {
        let api = self.data_dir(at)?.join("api.json");
        let node = self.node_mut(at)?;
        // Its folder and its port are free when it is gone.
        let _ = node.process.wait(STOP_MAX);
        // It would lead to the API of the process that was killed.
        let _ = std::fs::remove_file(api);
        let node = self.node(at)?;
        let process = self.run(at, node.name, &node.setup)?;
        self.node_mut(at)?.process = process;
        self.wait_started(at)
    }

    /// Starts one more node, which knows the node `known`; where it is among the nodes. What they know of
    /// each other is not waited for.
    pub fn grow(&mut self, known: usize) -> anyhow::Result<usize> {
        let (at, peer) = (self.nodes.len(), self.address_of(known)?);
        let flags = self.node(known)?.setup.flags.clone();
        self.spawn(flags, Some(peer))?;
        self.wait_started(at)?;
        Ok(at)
    }

    /// Kills the last node, and deletes its folder: the next that comes has another key.
    pub fn drop_last(&mut self) -> anyhow::Result<()> {
        let last = self.nodes.pop().context("the cluster has no node")?;
        let folder = self.folder.path().join(last.name);
        drop(last);
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot delete {}", folder.display()))
    }
}
