//! What happens to the nodes of a cluster: they are killed, stand still, end, and come.

use std::time::Duration;

use anyhow::bail;

use super::{Cluster, POLL};
use crate::prove::signals::StoppedProcess;
use crate::prove::wait_for;
use crate::system::{self, Told};

/// For a node that hands its layers over before it ends: it waits 30 s for that, and gives itself 8 more.
const LEAVE_MAX: Duration = Duration::from_secs(45);

impl Cluster {
    /// Kills a node.
    pub fn kill(&mut self, at: usize) -> anyhow::Result<()> {
        self.node_mut(at)?.process.kill()
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

    /// Starts one more node, which knows the node `known`; where it is among the nodes. What they know of
    /// each other is not waited for.
    pub fn grow(&mut self, known: usize) -> anyhow::Result<usize> {
        let (at, peer) = (self.nodes.len(), self.address_of(known)?);
        let flags = self.node(known)?.setup.flags.clone();
        self.spawn(flags, Some(peer))?;
        self.wait_started(at)?;
        Ok(at)
    }
}
