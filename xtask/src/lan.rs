//! Machines on a network of their own: a network namespace each, on one bridge, or on wires that take their
//! time.

use std::process::Command;
use std::sync::{Mutex, Once, PoisonError};

use anyhow::Context;

use crate::run;
use crate::signals;
use crate::system::Tap;
use crate::wire::{self, Wire};

/// What there is at present: namespaces outlive the process that made them.
static NAMES: Mutex<Vec<Names>> = Mutex::new(Vec::new());
/// What a slow line carries at once, whatever its rate: as much as a card hands over in one go.
const BURST: &str = "256kb";
/// For how long packets wait at a slow line before they are lost.
const QUEUE_MAX: &str = "160ms";
/// A line that carries less than an answer needs now and then, behind a queue of a few packets: the others
/// are lost.
const THIN: &str = "tbf rate 500kbit burst 4kb latency 10ms";

/// Machines and what is between them, gone with the value, or when a signal ends this process.
pub struct Lan {
    names: Names,
}

#[derive(Clone, PartialEq)]
struct Names {
    bridge: String,
    hosts: Vec<String>,
}

impl Lan {
    /// `count` machines on a bridge; needs root.
    pub fn new(count: usize) -> anyhow::Result<Self> {
        let lan = Self::bare(count)?;
        ip(&["link", "add", &lan.names.bridge, "type", "bridge"])?;
        ip(&["link", "set", &lan.names.bridge, "up"])?;
        for at in 0..count {
            let (host, port, inside) = (lan.host(at), lan.port(at), lan.card(at));
            ip(&["link", "add", &port, "type", "veth", "peer", "name", &inside])?;
            ip(&["link", "set", &port, "master", &lan.names.bridge])?;
            ip(&["link", "set", &port, "up"])?;
            ip(&["link", "set", &inside, "netns", host])?;
            lan.switch_on(at)?;
        }
        Ok(lan)
    }

    /// `count` machines whose frames take their time to each other; needs root.
    pub fn with_wires(count: usize, wire: Wire) -> anyhow::Result<Self> {
        let lan = Self::bare(count)?;
        let cards = (0..count).map(|at| Tap::new(lan.host(at), &lan.card(at)));
        wire::connect(cards.collect::<anyhow::Result<_>>()?, wire)?;
        (0..count).try_for_each(|at| lan.switch_on(at))?;
        Ok(lan)
    }

    /// Machines without cables.
    fn bare(count: usize) -> anyhow::Result<Self> {
        // Names of interfaces have 15 characters at most.
        let tag = std::process::id() % 1_000_000;
        let hosts = (0..count).map(|at| format!("exs{tag}-{at}")).collect();
        let lan = Self { names: Names { bridge: format!("exs{tag}"), hosts } };
        remove_when_signalled();
        names().push(lan.names.clone());
        let root = "network namespaces need root on Linux, and `ip`";
        lan.names.hosts.iter().try_for_each(|host| ip(&["netns", "add", host]).context(root))?;
        Ok(lan)
    }

    /// Gives a machine its address.
    fn switch_on(&self, at: usize) -> anyhow::Result<()> {
        let (host, inside) = (self.host(at), self.card(at));
        let address = format!("{}/24", self.address(at));
        ip(&["-n", host, "address", "add", &address, "dev", &inside])?;
        ip(&["-n", host, "link", "set", &inside, "up"])?;
        ip(&["-n", host, "link", "set", "lo", "up"])
    }

    /// The namespace of a machine.
    pub fn host(&self, at: usize) -> &str {
        &self.names.hosts[at]
    }

    /// Where the others reach it.
    pub fn address(&self, at: usize) -> String {
        format!("10.78.{}.{}", std::process::id() % 250, at + 1)
    }

    /// A program on a machine.
    pub fn command(&self, at: usize, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.host(at)]).arg(program);
        command
    }

    /// Pulls the machine's cable, or puts it back.
    pub fn cable(&self, at: usize, is_in: bool) -> anyhow::Result<()> {
        ip(&["link", "set", &self.port(at), if is_in { "up" } else { "down" }])
    }

    /// From now on a machine sends no more than so many bits a second, as behind a home's line; needs `tc`.
    pub fn slow(&self, at: usize, bits_per_s: u64) -> anyhow::Result<()> {
        let rule = format!("tbf rate {bits_per_s}bit burst {BURST} latency {QUEUE_MAX}");
        let command = format!("netns exec {} tc qdisc add dev {} root {rule}", self.host(at), self.card(at));
        ip(&command.split(' ').collect::<Vec<_>>())
    }

    /// Puts a machine behind a line that loses packets, or takes that line away; needs `tc`.
    pub fn thin(&self, at: usize, is_thin: bool) -> anyhow::Result<()> {
        let (host, card) = (self.host(at), self.card(at));
        let command = match is_thin {
            true => format!("netns exec {host} tc qdisc add dev {card} root {THIN}"),
            false => format!("netns exec {host} tc qdisc del dev {card} root"),
        };
        ip(&command.split(' ').collect::<Vec<_>>())
    }

    /// Keeps two machines from each other, and from no third, or lets them talk again.
    pub fn pair(&self, pair: [usize; 2], may_talk: bool) -> anyhow::Result<()> {
        let isolated = if may_talk { "off" } else { "on" };
        pair.iter().try_for_each(|&at| {
            run::output("bridge", &["link", "set", "dev", &self.port(at), "isolated", isolated]).map(drop)
        })
    }

    /// The machine's network card, as it sees it.
    fn card(&self, at: usize) -> String {
        self.names.card(at)
    }

    fn port(&self, at: usize) -> String {
        format!("{}-o{at}", self.names.bridge)
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        self.names.remove();
        names().retain(|names| *names != self.names);
    }
}

impl Names {
    fn card(&self, at: usize) -> String {
        format!("{}-i{at}", self.bridge)
    }

    /// May be called again.
    fn remove(&self) {
        for (at, host) in self.hosts.iter().enumerate() {
            end_all_in(host);
            // A card that is open here would keep a namespace that has lost its name.
            let _ = ip(&["-n", host, "link", "delete", &self.card(at)]);
            let _ = ip(&["netns", "delete", host]);
        }
        let _ = ip(&["link", "delete", &self.bridge]);
    }
}

/// A process that stands still would keep a namespace that has lost its name.
fn end_all_in(host: &str) {
    let Ok(listed) = run::output("ip", &["netns", "pids", host]) else { return };
    for id in listed.split_whitespace() {
        let _ = run::output("kill", &["-9", id]);
    }
}

fn names() -> std::sync::MutexGuard<'static, Vec<Names>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ctrl-C and SIGTERM end this process, and what there is goes first.
fn remove_when_signalled() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| signals::before_end(|| names().iter().for_each(Names::remove)));
}

fn ip(args: &[&str]) -> anyhow::Result<()> {
    run::output("ip", args).map(drop)
}
