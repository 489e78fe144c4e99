use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::Context;
use rustix::process::{Pid, kill_process};
use rustix::thread::{
    CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_getaffinity, sched_setaffinity,
};

use super::{Told, on_own_thread};
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

/// Moves this thread into a network namespace that `ip netns` has made.
pub fn enter_network(name: &str) -> anyhow::Result<()> {
    let path = Path::new("/run/netns").join(name);
    let enter = || -> std::io::Result<()> {
        let namespace = File::open(&path)?;
        Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
    };
    enter().with_context(|| format!("cannot enter {}", path.display()))
}

/// A network card that is not there: what the system sends by it is read here, and what is written here it
/// receives. Gone with the value.
pub struct Tap(tun_rs::SyncDevice);

impl Tap {
    /// In a network namespace.
    pub fn new(network: &str, name: &str) -> anyhow::Result<Self> {
        on_own_thread(|| {
            enter_network(network)?;
            let card = tun_rs::DeviceBuilder::new().name(name).layer(tun_rs::Layer::L2).offload(false);
            card.build_sync().map(Self).with_context(|| format!("no network card {name} in {network}"))
        })
    }

    /// The next frame that the system sends; its length.
    pub fn receive(&self, frame: &mut [u8]) -> std::io::Result<usize> {
        self.0.recv(frame)
    }

    /// Gives the system a frame.
    pub fn send(&self, frame: &[u8]) -> std::io::Result<usize> {
        self.0.send(frame)
    }
}

/// Tells a process of ours something.
pub fn tell(id: u32, what: Told) -> anyhow::Result<()> {
    let signal = match what {
        Told::End => rustix::process::Signal::TERM,
        Told::Stop => rustix::process::Signal::STOP,
        Told::Continue => rustix::process::Signal::CONT,
    };
    let id = i32::try_from(id).ok().and_then(Pid::from_raw).context("no such process")?;
    kill_process(id, signal).with_context(|| format!("cannot send {what:?}"))
}

/// What a process holds: resident bytes, threads, open files.
pub fn held(id: u32) -> anyhow::Result<[u64; 3]> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let number = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default()
    };
    let files = std::fs::read_dir(format!("/proc/{id}/fd"))?.count() as u64;
    Ok([number("VmRSS:") << 10, number("Threads:"), files])
}

/// Processor time of all threads, from Linux's ticks of 10 ms.
pub fn processor_seconds(id: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{id}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    ticks_in(&text)
        .map(|ticks| ticks as f64 / 100.0)
        .with_context(|| format!("{path} is not what Linux writes"))
}

/// User and system ticks: the 14th and 15th field, after a name that may hold anything.
fn ticks_in(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_behind_any_name() {
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 25 17 0 0 20 0";
        assert_eq!(ticks_in(stat), Some(42));
        assert_eq!(ticks_in("7 (x) S 1"), None);
    }
}
