//! All nodes are killed at once while models are placed and unloaded and a member is put out, and start again
//! one by one: what was acknowledged is there, and the cluster serves.
//!
//! The rounds are of one cluster of three nodes, so that each also meets what the rounds before have left.
//! The member is a fourth node with another key in each round, let in just before; in every second round it
//! stays. What a power cut does to disks is the simulator's.

mod acknowledged;
mod orders;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};

use self::acknowledged::{Acknowledged, Counts, Subject};
use self::orders::there;
use super::Verdict;
use super::streams::{ask, completion, percentile, sorted, spread};
use crate::cluster::Cluster;
use crate::rng::Rng;
use crate::wait::{rest, wait_for};

const NODES: usize = 3;
const TOKENS: u32 = 100;
const CONTEXT: u32 = 512;
/// From the last start to the answer of every node.
const SERVES_MAX: Duration = Duration::from_secs(15);
/// A late one is waited for, to say how late it was.
const LATE_MAX: Duration = Duration::from_secs(60);
/// For all nodes to say what is right.
const AGREE_MAX: Duration = Duration::from_secs(20);
/// For a node that comes to ask: who was refused asks again after 15 s.
const ASK_MAX: Duration = Duration::from_secs(60);
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// How long orders are given before the nodes are killed, in milliseconds.
const ORDERS_MS: std::ops::Range<usize> = 50..2000;
/// From one start to the next, in milliseconds; in slow rounds always the longer time.
const APART_MS: usize = 10_000;
const SLOW_APART: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// The model in the binary, which is placed and unloaded under another name.
const MODEL_FILE: &str = "demo-model/exo-demo-Q8_0.gguf";

#[derive(Args)]
pub struct Options {
    /// How many with starts up to 10 s apart
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(0..=1000))]
    rounds: u32,
    /// How many more with starts 60 s apart
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    slow: u32,
    /// The seed of the first round; each has the next
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the rounds.
pub fn prove(exo: &Path, options: &Options) -> anyhow::Result<Verdict> {
    let (mut serving, mut counts) = (Vec::new(), Counts::default());
    let mut standing = None;
    for number in 0..options.rounds + options.slow {
        let apart = (number >= options.rounds).then_some(SLOW_APART);
        let seed = options.seed.wrapping_add(u64::from(number));
        let mut blackouts = match standing.take() {
            Some(blackouts) => blackouts,
            None => Blackouts::start(exo)?,
        };
        match blackouts.round(seed, apart) {
            Ok(took) => {
                eprintln!("round {} (seed {seed}): serves after {} ms", number + 1, took.as_millis());
                serving.push(took);
                standing = Some(blackouts);
            }
            Err(error) => {
                counts.add(blackouts.acknowledged.counts());
                eprintln!("round {} (seed {seed}): {error:#}{}", number + 1, blackouts.cluster.last_words());
            }
        }
    }
    if let Some(blackouts) = standing {
        counts.add(blackouts.acknowledged.counts());
        blackouts.cluster.last_words();
    }
    Ok(verdict(options, &sorted(serving), counts))
}

fn verdict(options: &Options, serving: &[Duration], counts: Counts) -> Verdict {
    let rounds = options.rounds + options.slow;
    Verdict {
        line: format!(
            "blackout: {} of {rounds} rounds ({} of them slow, seeds from {}) forget nothing; every node answers {} after the last start \
             (bound {} ms); acknowledged: {} placements, {} unloads, {} admissions, {} removals; \
             {} orders had no answer",
            serving.len(),
            options.slow,
            options.seed,
            spread(serving),
            SERVES_MAX.as_millis(),
            counts.placements,
            counts.unloads,
            counts.admissions,
            counts.removals,
            counts.unanswered,
        ),
        is_kept: serving.len() == rounds as usize
            && percentile(serving, 100) <= SERVES_MAX
            && counts.has_all(),
    }
}

/// A cluster that goes through it, and what it has acknowledged.
struct Blackouts {
    cluster: Cluster,
    acknowledged: Acknowledged,
    /// What every node is asked, and answers.
    request: Value,
    answer: String,
    /// The model that is placed and unloaded.
    model: String,
    /// The fourth node, by its id.
    guest: Option<String>,
}

impl Blackouts {
    fn start(exo: &Path) -> anyhow::Result<Self> {
        let mut cluster = Cluster::start(exo, NODES, &[])?;
        let acknowledged = Acknowledged::default();
        let request = completion("demo", TOKENS, 1.0, 1);
        match prepare(&mut cluster, &acknowledged, &request) {
            Ok((answer, model)) => Ok(Self { cluster, acknowledged, request, answer, model, guest: None }),
            Err(error) => bail!("{error:#}{}", cluster.last_words()),
        }
    }

    /// How long after the last start every node answered.
    fn round(&mut self, seed: u64, apart: Option<Duration>) -> anyhow::Result<Duration> {
        let mut rng = Rng::new(seed);
        let admin = self.admin()?;
        self.put_guest_out(admin)?;
        let guest = self.hear_guest(admin)?;
        self.guest = Some(guest.clone());
        self.let_in(admin, &guest)?;
        // In every second round it is to be a member afterwards, in the others none.
        let is_put_out = seed.is_multiple_of(2);
        self.order_and_kill(&mut rng, admin, is_put_out.then_some(&*guest))?;
        let started = self.start_again(&mut rng, apart)?;
        let took = self.wait_serving(started)?;
        self.check()?;
        Ok(took)
    }

    /// The node whose word lets others in.
    fn admin(&self) -> anyhow::Result<usize> {
        let nodes = &self.cluster.nodes()[..NODES];
        let members = nodes[0].server.get("/exo/v1/members", ANSWER_MAX)?;
        let mut admins = members.as_array().into_iter().flatten().filter(|member| member["role"] == "admin");
        let admin = admins.find_map(|admin| nodes.iter().position(|node| admin["name"] == node.name));
        admin.context("no node of the three is an admin")
    }

    /// The guest of the round before goes: its process, its folder, and its membership where it has one.
    fn put_guest_out(&mut self, admin: usize) -> anyhow::Result<()> {
        let Some(guest) = self.guest.take() else { return Ok(()) };
        let (server, member) = (&self.cluster.nodes()[admin].server, Subject::Member(guest.clone()));
        wait_for("putting the fourth node out", (AGREE_MAX, POLL), || {
            if !there(server)?.contains(&member) {
                return Ok(Some(()));
            }
            // Whether it was carried out shows by who is there.
            let _ = orders::remove(server, &guest, &self.acknowledged);
            Ok(None)
        })?;
        self.cluster.drop_last()
    }

    /// Another fourth node comes and asks to be let in; its id.
    fn hear_guest(&mut self, admin: usize) -> anyhow::Result<String> {
        let server = self.cluster.nodes()[admin].server.clone();
        // In their first minutes nodes let in who asks.
        wait_for("a shut door", (AGREE_MAX, POLL), || {
            let is_open = self.cluster.view(admin)?["join_window"]["open"] == true;
            if is_open {
                server.order("DELETE", "/exo/v1/join_window", &Value::Null, ANSWER_MAX)?;
            }
            Ok((!is_open).then_some(()))
        })?;
        let at = self.cluster.grow(admin)?;
        self.cluster.keep_ports()?;
        let guest = self.cluster.id_of(at)?;
        wait_for("the question of the fourth node", (ASK_MAX, POLL), || {
            let view = self.cluster.view(admin)?;
            let mut asks = view["join_requests"].as_array().into_iter().flatten();
            Ok(asks.any(|ask| ask["node"] == guest.as_str()).then_some(()))
        })?;
        Ok(guest)
    }

    /// Lets the fourth node in: what answers is a member on disk, before it asks again and hears of it.
    fn let_in(&self, admin: usize, guest: &str) -> anyhow::Result<()> {
        let server = &self.cluster.nodes()[admin].server;
        server.post("/exo/v1/members", &json!({ "node": guest }), ANSWER_MAX)?;
        self.acknowledged.is_there(Subject::Member(guest.to_owned()));
        Ok(())
    }

    /// Gives orders, one that puts a member out among them, and kills all nodes while some are under way.
    fn order_and_kill(&mut self, rng: &mut Rng, admin: usize, put_out: Option<&str>) -> anyhow::Result<()> {
        let ms = ORDERS_MS.start + rng.below(ORDERS_MS.len());
        let put_out_after = Duration::from_millis(rng.below(ms) as u64);
        let [places, removes] = [rng.below(NODES), admin].map(|at| self.cluster.nodes()[at].server.clone());
        let (model, acknowledged, is_over) = (&self.model, &self.acknowledged, AtomicBool::new(false));
        let cluster = &mut self.cluster;
        std::thread::scope(|scope| {
            scope.spawn(|| orders::place_and_unload(&places, model, acknowledged, &is_over));
            if let Some(guest) = put_out {
                scope.spawn(|| {
                    rest(put_out_after);
                    orders::put_out(&removes, guest, acknowledged, &is_over);
                });
            }
            rest(Duration::from_millis(ms as u64));
            let killed = cluster.kill_all();
            is_over.store(true, Ordering::Relaxed);
            killed
        })
    }

    /// Starts all nodes in any order; when the last one was.
    fn start_again(&mut self, rng: &mut Rng, apart: Option<Duration>) -> anyhow::Result<Instant> {
        let mut started = Instant::now();
        for (number, at) in shuffled(self.cluster.nodes().len(), rng).into_iter().enumerate() {
            if number > 0 {
                let drawn = Duration::from_millis(rng.below(APART_MS + 1) as u64);
                let apart = apart.unwrap_or(drawn);
                rest(apart.saturating_sub(started.elapsed()));
            }
            started = Instant::now();
            self.cluster.restart(at)?;
        }
        Ok(started)
    }

    /// Asks each of the three nodes until it answers; how long that took since the last start.
    fn wait_serving(&self, started: Instant) -> anyhow::Result<Duration> {
        for node in &self.cluster.nodes()[..NODES] {
            let what = format!("an answer of {} after the last start", node.name);
            wait_for(&what, (LATE_MAX, POLL), || {
                let Ok(answer) = ask(&node.server, &self.request, LATE_MAX, |_| {}) else { return Ok(None) };
                if answer.text != self.answer {
                    bail!("another text: `{}` instead of `{}`", answer.text, self.answer);
                }
                Ok(Some(()))
            })?;
        }
        Ok(started.elapsed())
    }

    /// Waits until each of the three nodes says what was acknowledged.
    fn check(&self) -> anyhow::Result<()> {
        let mut broken = Vec::new();
        let agreed = wait_for("agreeing on what was acknowledged", (AGREE_MAX, POLL), || {
            broken.clear();
            for node in &self.cluster.nodes()[..NODES] {
                let of_node = self.acknowledged.broken(&there(&node.server)?);
                broken.extend(of_node.into_iter().map(|what| format!("{}: {what}", node.name)));
            }
            Ok(broken.is_empty().then_some(()))
        });
        agreed.with_context(|| broken.join("; "))
    }
}

/// The answer of the model that stays, over all nodes, and the name of the one that is placed and unloaded.
fn prepare(
    cluster: &mut Cluster,
    acknowledged: &Acknowledged,
    request: &Value,
) -> anyhow::Result<(String, String)> {
    cluster.wait_united()?;
    cluster.keep_ports()?;
    let file = cluster.data_dir(0)?.with_file_name("other.gguf");
    write_other_model(&file)?;
    let model = cluster.model(Some(&file))?;
    let instance = cluster.place(0, "demo", CONTEXT)?;
    cluster.wait_settled(&instance)?;
    let server = &cluster.nodes()[0].server;
    let answer = ask(server, request, ANSWER_MAX, |_| {})?.text;
    let begins_with = there(server)?;
    if begins_with.len() != NODES + 1 {
        bail!("there are not {NODES} members and one instance: {begins_with:?}");
    }
    acknowledged.begins_with(begins_with);
    Ok((answer, model))
}

/// The demo model with another name inside, so that it is another model.
fn write_other_model(to: &Path) -> anyhow::Result<()> {
    const NAME: &[u8] = b"exo demo";
    const OTHER: &[u8] = b"exo many";
    let mut bytes = std::fs::read(MODEL_FILE).with_context(|| format!("cannot read {MODEL_FILE}"))?;
    let at = bytes.windows(NAME.len()).position(|window| window == NAME);
    let at = at.with_context(|| format!("{MODEL_FILE} has another name"))?;
    bytes[at..at + OTHER.len()].copy_from_slice(OTHER);
    std::fs::write(to, bytes).with_context(|| format!("cannot write {}", to.display()))
}

fn shuffled(count: usize, rng: &mut Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for at in (1..count).rev() {
        order.swap(at, rng.below(at + 1));
    }
    order
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_order_of_starts_is_drawn_and_a_seed_repeats_it() {
        let orders: BTreeSet<Vec<usize>> = (0..200).map(|seed| shuffled(3, &mut Rng::new(seed))).collect();
        assert_eq!(orders.len(), 6, "{orders:?}");
        assert_eq!(shuffled(4, &mut Rng::new(7)), shuffled(4, &mut Rng::new(7)));
    }

    #[test]
    fn every_round_has_to_forget_nothing_and_to_serve_in_time() {
        let options = Options { rounds: 1, slow: 1, seed: 1 };
        let all = Counts { placements: 1, unloads: 1, admissions: 1, removals: 1, unanswered: 0 };
        let check = |seconds: &[u64], counts| {
            let serving: Vec<_> = seconds.iter().copied().map(Duration::from_secs).collect();
            verdict(&options, &serving, counts).is_kept
        };
        assert!(check(&[1, 15], all));
        assert!(!check(&[1, 16], all), "one late");
        assert!(!check(&[1], all), "one forgot something");
        assert!(!check(&[1, 2], Counts { removals: 0, ..all }), "nobody was put out");
    }
}
