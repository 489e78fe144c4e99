//! Answers go on, with the same tokens, when a node is killed in their middle, or stands still.
//!
//! Each run is a fresh cluster of three nodes with a model over all of them, or over two and not the one that
//! coordinates. Answers drawn with a seed are asked for once while nothing happens, and once more, and in the
//! middle of that it happens to the node of the first, the middle or the last stage, or to the coordinator.
//! The clients are connected to the other nodes. What happens to the client's own node is in `driver`.

mod driver;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::Verdict;
use super::concurrent::prompt_tokens;
use super::runs::RunOptions;
use super::streams::{Asking, Question, beside, completion, longest_pause, percentile, sorted, undisturbed};
use crate::cluster::{Cluster, Epoch, Instance, placements};
use crate::wait::{rest, wait_for};

const NODES: usize = 3;
/// Tokens of an answer.
const TOKENS: u32 = 300;
/// It happens behind so many of them.
const STRUCK_AFTER: usize = 100;
const CONTEXT: u32 = 512;
/// Clients of a coordinator that is lost.
const STREAMS: u64 = 4;
/// How long streams are watched that nothing happens to, and behind what happens.
const WATCH: Duration = Duration::from_secs(1);
/// From a stop to the others' notice; what takes longer than the bound is waited for, to say how long.
const NOTICE_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
/// For a node that goes on to be seen again, and how long nothing changes then.
const BACK_MAX: Duration = Duration::from_secs(20);
const STAYS: Duration = Duration::from_secs(2);

#[derive(Args)]
#[command(mut_arg("times", |times| times.default_value("50")))]
pub struct Options {
    /// What the node is that it happens to
    #[arg(long, value_delimiter = ',', default_value = "first,middle,last")]
    who: Vec<Who>,
    /// The node stands still for so long instead of being killed
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=600))]
    stop: Option<u64>,
    /// How tokens are drawn; 0 takes the likeliest
    #[arg(long, default_value_t = 1.0)]
    temperature: f64,
    /// A prompt of so many tokens; says what it took beside each pause
    #[arg(long, value_name = "TOKENS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=32768))]
    history: u32,
    #[command(flatten)]
    runs: RunOptions,
}

impl Options {
    fn question(&self, model: &str, seed: u64) -> Value {
        let mut body = completion(model, TOKENS, self.temperature, seed);
        if self.history > 0 {
            body["prompt"] = json!(prompt_tokens(self.history, seed as u32));
        }
        body
    }

    fn stop(&self) -> Option<Duration> {
        self.stop.map(Duration::from_secs)
    }
}

/// Which node it happens to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Who {
    /// That of the first stage.
    First,
    /// That of the middle stage.
    Middle,
    /// That of the last stage.
    Last,
    /// The coordinator, which has no stage, beside four streams.
    Coordinator,
    /// The coordinator, which has a stage, beside four streams.
    CoordinatorStage,
    /// That of the client, which has no stage and does not coordinate.
    Driver,
}

impl Who {
    /// Which stage it has, where that is what it is chosen by.
    fn stage(self) -> Option<usize> {
        match self {
            Self::First => Some(0),
            Self::Middle => Some(1),
            Self::Last => Some(2),
            Self::Coordinator | Self::CoordinatorStage | Self::Driver => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::First => "the first stage",
            Self::Middle => "the middle stage",
            Self::Last => "the last stage",
            Self::Coordinator => "a coordinator without a stage",
            Self::CoordinatorStage => "a coordinator with a stage",
            Self::Driver => "the client's node, with pauses from asking another one on",
        }
    }
}

/// What is held, where it is.
#[derive(Default)]
struct Bounds {
    p50: Option<Duration>,
    p95: Option<Duration>,
    /// Of every pause.
    longest: Option<Duration>,
    /// Of what the longest pause is longer than without a disturbance.
    beyond: Option<Duration>,
    /// Until the others have noticed, or have another coordinator.
    noticed: Option<Duration>,
}

impl Bounds {
    fn of(who: Who, stop: Option<Duration>) -> Self {
        let ms = |ms| Some(Duration::from_millis(ms));
        if who == Who::Driver {
            return Self { longest: ms(5000), ..Self::default() };
        }
        let noticed = match stop {
            None if who.stage().is_some() => None,
            None => ms(3000),
            // Who goes on earlier need not be missed.
            Some(stop) => ms(5000).filter(|noticed| stop > *noticed),
        };
        match (who, stop) {
            (Who::Coordinator, _) => Self { beyond: ms(200), noticed, ..Self::default() },
            (_, None) => Self { p50: ms(1500), p95: ms(3000), noticed, ..Self::default() },
            (_, Some(_)) => Self { p95: ms(7000), noticed, ..Self::default() },
        }
    }
}

/// What came of one run.
struct Outcome {
    /// The longest since it happened, over all streams; of a client that asks another node from then on.
    pause: Duration,
    /// By how much the longest one is longer than without a disturbance, where there was a time without.
    beyond: Duration,
    noticed: Option<Duration>,
    /// Shards that the others loaded: of what was lost, and of anything else.
    loads: [usize; 2],
}

/// Strikes nodes, and says how long answers stood still.
pub fn prove(exo: &Path, options: &Options) -> anyhow::Result<Vec<Verdict>> {
    if options.stop.is_some() && options.who.contains(&Who::Driver) {
        bail!("`--who driver` has no `--stop`: a client whose node stands still keeps its connection");
    }
    let run = |cluster: &mut Cluster, who: Who, seed: u64| match who {
        Who::Driver => driver::strike(cluster, options, seed),
        _ => strike(cluster, options, who, seed),
    };
    let verdict = |who: Who, times: u32, outcomes: &[Outcome]| {
        let mut bounds = Bounds::of(who, options.stop());
        if options.history > 0 {
            // The lost layers compute it: what that takes stands beside each run.
            (bounds.p50, bounds.p95) = (None, None);
        }
        verdict(who, options.stop(), &bounds, times, outcomes)
    };
    options.runs.verdicts(exo, &options.who, |_| NODES, run, verdict)
}

fn verdict(who: Who, stop: Option<Duration>, bounds: &Bounds, times: u32, outcomes: &[Outcome]) -> Verdict {
    let pauses = sorted(outcomes.iter().map(|outcome| outcome.pause));
    let beyond = sorted(outcomes.iter().map(|outcome| outcome.beyond));
    let noticed = sorted(outcomes.iter().map(|outcome| outcome.noticed.unwrap_or(NOTICE_MAX)));
    let (p50, p95) = (percentile(&pauses, 50), percentile(&pauses, 95));
    let is_within = |found: Duration, bound: Option<Duration>| bound.is_none_or(|bound| found <= bound);
    // A killed stage goes on where somebody loads its layers.
    let has_loads = stop.is_some() || who.stage().is_none() || outcomes.iter().all(|o| o.loads[0] > 0);
    let [of_the_lost, others] = [0, 1].map(|kind| outcomes.iter().map(|o| o.loads[kind]).sum::<usize>());
    let what = stop.map_or("kills".to_owned(), |stop| format!("stops for {} s", stop.as_secs()));
    let mut line = format!(
        "{what} of {}: {} of {times} runs go on with the same tokens; pause {}{} (p50), {}{} (p95), {}{} (max); the others loaded \
         what was lost {of_the_lost} times, anything else {others} times (bound 0)",
        who.name(),
        outcomes.len(),
        ms(p50),
        bound_of(bounds.p50),
        ms(p95),
        bound_of(bounds.p95),
        ms(percentile(&pauses, 100)),
        bound_of(bounds.longest),
    );
    if bounds.beyond.is_some() {
        let (longest, bound) = (ms(percentile(&beyond, 100)), bound_of(bounds.beyond));
        line += &format!("; at most {longest}{bound} longer than without a disturbance");
    }
    if bounds.noticed.is_some() {
        let (middle, longest) = (percentile(&noticed, 50), percentile(&noticed, 100));
        let bound = bound_of(bounds.noticed);
        line += &format!("; noticed after {} (p50), {}{bound} (max)", ms(middle), ms(longest));
    }
    Verdict {
        line,
        is_kept: outcomes.len() == times as usize
            && is_within(p50, bounds.p50)
            && is_within(p95, bounds.p95)
            && is_within(percentile(&pauses, 100), bounds.longest)
            && is_within(percentile(&beyond, 100), bounds.beyond)
            && is_within(percentile(&noticed, 100), bounds.noticed)
            && has_loads
            && others == 0,
    }
}

fn ms(duration: Duration) -> String {
    format!("{} ms", duration.as_millis())
}

fn bound_of(bound: Option<Duration>) -> String {
    bound.map_or(String::new(), |bound| format!(", bound {}", ms(bound)))
}

fn strike(cluster: &mut Cluster, options: &Options, who: Who, seed: u64) -> anyhow::Result<Outcome> {
    let model = cluster.model(options.runs.model.as_deref())?;
    cluster.wait_united()?;
    let coordinator = cluster.coordinator(0)?;
    let instance = place(cluster, &model, (who == Who::Coordinator).then_some(coordinator), options.history)?;
    let stages = cluster.stages_of(&instance)?;
    let victim = match who.stage() {
        Some(stage) => *stages.get(stage).context("the model is on too few stages")?,
        None => coordinator,
    };
    // Those behind it, in the order in which a token passes them.
    let from = stages.iter().position(|at| *at == victim).unwrap_or_default();
    let others: Vec<usize> =
        stages[from..].iter().chain(&stages[..from]).copied().filter(|at| *at != victim).collect();
    let by = *others.first().context("no other node has a stage")?;
    let (streams, asking) = match who.stage() {
        Some(_) => (1, Asking::Once),
        // An election takes longer than an answer of a small model.
        None => (STREAMS, Asking::UntilOver),
    };
    let servers = others.iter().map(|at| &cluster.nodes()[*at].server);
    let seeds = (0..streams).map(|number| seed.wrapping_mul(STREAMS).wrapping_add(number));
    let bodies = seeds.map(|seed| options.question(&model, seed));
    let questions = Question::several(servers, bodies)?;
    let lost = cluster.layers_of(&instance, victim)?;
    let loaded = loads(cluster, &others)?;
    let undisturbed = match asking {
        Asking::Once => Duration::ZERO,
        Asking::UntilOver => undisturbed(&questions, WATCH)?,
    };

    let blow = Blow { victim, by, instance: &instance, who, stop: options.stop() };
    let (times, (struck, noticed)) = beside(&questions, asking, STRUCK_AFTER, || blow.fall(cluster))?;
    if !times.iter().all(|times| times.goes_on_after(struck)) {
        bail!("an answer was over before it happened: nothing of it had to go on");
    }
    let loads = new_loads(&loaded, &loads(cluster, &others)?, lost.as_deref());
    let pause = times.iter().map(|times| times.longest_pause_since(struck)).max().unwrap_or_default();
    let beyond = longest_pause(&times).saturating_sub(undisturbed);
    if options.history > 0 {
        let (first_after, lost) = (questions.first().map(|q| q.first_after), lost.unwrap_or_default());
        eprintln!(
            "seed {seed}: first token after {} of {} tokens; lost were the layers {lost}; the next token came after {}",
            ms(first_after.unwrap_or_default()),
            options.history,
            ms(pause)
        );
    }
    Ok(Outcome { pause, beyond, noticed, loads })
}

/// The layers that each of these nodes has begun to load so far.
fn loads(cluster: &Cluster, nodes: &[usize]) -> anyhow::Result<Vec<Vec<String>>> {
    nodes.iter().map(|at| cluster.loads(*at)).collect()
}

/// How many loads came since: of what was lost, and of anything else.
fn new_loads(before: &[Vec<String>], after: &[Vec<String>], lost: Option<&str>) -> [usize; 2] {
    let new = before.iter().zip(after).flat_map(|(before, after)| after.iter().skip(before.len()));
    let is_lost = |layers: &&String| lost.is_some_and(|lost| lies_in(layers, lost));
    let (of_the_lost, others): (Vec<_>, Vec<_>) = new.partition(is_lost);
    [of_the_lost.len(), others.len()]
}

/// Places the model over all nodes, or over all but one.
fn place(
    cluster: &mut Cluster,
    model: &str,
    without: Option<usize>,
    history: u32,
) -> anyhow::Result<Instance> {
    let nodes = NODES - usize::from(without.is_some());
    let exclude: Vec<&str> = without.iter().map(|at| cluster.nodes()[*at].name).collect();
    let order = json!({
        "model": model, "nodes_min": nodes, "context_tokens": CONTEXT + history, "slots": STREAMS, "exclude": exclude,
    });
    let instance = cluster.place_as(0, &order)?;
    cluster.wait_settled(&instance)?;
    Ok(instance)
}

/// What happens to a node.
struct Blow<'a> {
    victim: usize,
    /// Who notices.
    by: usize,
    instance: &'a Instance,
    who: Who,
    /// How long it stands still, unless it is killed.
    stop: Option<Duration>,
}

impl Blow<'_> {
    /// When it happened, and how long it took until another node had noticed, where that is to be seen.
    fn fall(&self, cluster: &mut Cluster) -> anyhow::Result<(Instant, Option<Duration>)> {
        let id = cluster.id_of(self.victim)?;
        let before = cluster.view(self.by)?;
        let struck = Instant::now();
        match self.stop {
            None => cluster.kill(self.victim)?,
            Some(_) => cluster.freeze(self.victim)?,
        }
        let mut noticed = None;
        // Who kills a stage sees it by its stream.
        if self.stop.is_some() || self.who.stage().is_none() {
            let at_most = self.stop.map_or(NOTICE_MAX, |stop| stop.min(NOTICE_MAX));
            while noticed.is_none() && struck.elapsed() < at_most {
                let view = cluster.view(self.by)?;
                noticed = has_noticed(&before, &view, &id, self.who).then(|| struck.elapsed());
                rest(POLL);
            }
        }
        match self.stop {
            None if self.who.stage().is_none() => rest(WATCH),
            None => {}
            Some(stop) => {
                rest(stop.saturating_sub(struck.elapsed()));
                self.thaw(cluster, &id)?;
            }
        }
        Ok((struck, noticed))
    }

    /// Who goes on changes nothing where the others have gone on without it.
    fn thaw(&self, cluster: &mut Cluster, id: &str) -> anyhow::Result<()> {
        let view = cluster.view(self.by)?;
        let is_ready = state_of(&view, self.instance) == Some("ready");
        let (is_missed, before) = (status_of(&view, id) != Some("alive"), placements(&view));
        cluster.thaw(self.victim)?;
        cluster.wait_seen(self.by, NODES, BACK_MAX)?;
        let until = Instant::now() + STAYS;
        wait_for("watching who is back", (BACK_MAX, POLL), || {
            let now = placements(&cluster.view(self.by)?);
            if is_ready && is_missed && now != before {
                bail!("the model was placed anew when the node went on: {before:?} became {now:?}");
            }
            Ok((Instant::now() > until).then_some(()))
        })
    }
}

/// Whether a view shows that the node is missed: it has another coordinator, or the node is not there, or
/// what had a stage on it is placed anew.
fn has_noticed(before: &Value, view: &Value, id: &str, who: Who) -> bool {
    match who.stage() {
        None => Epoch::of(view).is_some_and(|epoch| epoch.coordinator != id),
        Some(_) => status_of(view, id) != Some("alive") || placements(before) != placements(view),
    }
}

fn status_of<'a>(view: &'a Value, id: &str) -> Option<&'a str> {
    view["nodes"].as_array()?.iter().find(|node| node["id"] == id)?["status"].as_str()
}

fn state_of<'a>(view: &'a Value, instance: &Instance) -> Option<&'a str> {
    let instances = view["instances"].as_array()?;
    instances.iter().find(|other| other["id"] == instance.id.as_str())?["state"]["kind"].as_str()
}

/// Whether layers, as `4..6`, are among others.
fn lies_in(layers: &str, others: &str) -> bool {
    let range = |text: &str| {
        let (start, end) = text.split_once("..")?;
        Some((start.parse::<u32>().ok()?, end.parse::<u32>().ok()?))
    };
    let ranges = range(layers).zip(range(others));
    ranges.is_some_and(|(layers, others)| others.0 <= layers.0 && layers.1 <= others.1)
}

#[cfg(test)]
mod tests;
