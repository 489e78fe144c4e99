use anyhow::Context;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::run;

/// Whether packages can be installed with Debian's tool.
pub fn can_apt() -> bool {
    rustix::process::geteuid().is_root() && run::has("apt-get")
}

/// Processors this process may use.
pub fn cores() -> anyhow::Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("cannot ask which processors may be used")?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

/// Keeps this thread, and what it starts, to some processors.
pub fn pin_this_thread(cores: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    sched_setaffinity(None, &set).with_context(|| format!("cannot pin to cores {cores:?}"))
}

/// Bytes, without what is lent to caches.
pub fn free_memory() -> u64 {
    let info = rustix::system::sysinfo();
    (info.freeram as u64).saturating_mul(u64::from(info.mem_unit))
}
