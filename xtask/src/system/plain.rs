use anyhow::bail;

use super::Told;

/// Debian's tool is for Linux.
pub fn can_apt() -> bool {
    false
}

/// As many as there are, by number.
pub fn cores() -> anyhow::Result<Vec<usize>> {
    Ok((0..std::thread::available_parallelism()?.get()).collect())
}

/// Programs run wherever the system puts them.
pub fn pin_this_thread(_cores: &[usize]) -> anyhow::Result<()> {
    Ok(())
}

/// Unknown: nothing is touched.
pub fn free_memory() -> u64 {
    0
}

/// Network namespaces are for Linux.
pub fn enter_network(name: &str) -> anyhow::Result<()> {
    bail!("this system has no network namespace {name}")
}

/// Network cards that are not there are for Linux.
pub struct Tap(std::convert::Infallible);

impl Tap {
    /// Not done here.
    pub fn new(network: &str, name: &str) -> anyhow::Result<Self> {
        bail!("this system has no network card {name} in {network}")
    }

    /// Never called.
    pub fn receive(&self, _frame: &mut [u8]) -> std::io::Result<usize> {
        match self.0 {}
    }

    /// Never called.
    pub fn send(&self, _frame: &[u8]) -> std::io::Result<usize> {
        match self.0 {}
    }
}

/// Not done here.
pub fn tell(id: u32, what: Told) -> anyhow::Result<()> {
    bail!("{what:?} is not sent to {id} on this system")
}

/// Not known here.
pub fn held(id: u32) -> anyhow::Result<[u64; 3]> {
    bail!("what process {id} holds is not known on this system")
}

/// Not known here.
pub fn processor_seconds(id: u32) -> anyhow::Result<f64> {
    bail!("how long process {id} has computed is not known on this system")
}
