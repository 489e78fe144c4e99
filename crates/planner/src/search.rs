//! The plan that is best by the objective, with a bound that no plan can go below.
//!
//! Each objective is asked of [`least_sum`] as a few questions about sums under a limit on the slowest stage:
//!
//! - *latency* costs `sum + (chunks - 1) · slowest`, for all numbers of stages with as many chunks. With one
//!   chunk that is one question. With more, whoever wants to beat the plan found must have a slowest stage
//!   below its own: the range below is halved until its bounds exclude it.
//! - *throughput* costs `max(micro-batches · slowest, sum)`, for each number of stages. The least cost is
//!   found by halving: a cost is possible if there is a plan with its sum at most that and its slowest stage
//!   at most that by the micro-batches.
//!
//! The first answer comes from the same search with few labels a level (greedy by bound, [`GREEDY_WIDTH`]),
//! and makes most of the rest unnecessary.

use std::ops::RangeInclusive;

use exo_types::LayerRange;

use crate::bound::Bound;
use crate::cost::{Case, Costs};
use crate::kernels::Runnable;
use crate::labels::{LeastSum, Limits, least_sum};
use crate::memory::Sizes;
use crate::problem::{self, Phase, Problem, TICKS, tables};
use crate::{NoAlternative, Objective, PlanRequest, fit, score};

/// Devices that one search considers: sets of them are bits of one number.
pub(crate) const CANDIDATES_MAX: usize = 128;
/// Sets of more devices are not searched to the end by any budget, and a part of it finds what all of it
/// does.
const SEARCHED_WHOLE_MAX: usize = 32;
/// Labels a level of the first, greedy search.
const GREEDY_WIDTH: usize = 4;

/// What was found of one kind for one device.
pub(crate) type Outcome = Result<BestLayout, NoAlternative>;

/// The best layout found, by index into the request's devices.
#[derive(Clone, Debug)]
pub(crate) struct BestLayout {
    pub(crate) layout: Vec<(usize, LayerRange)>,
    pub(crate) objective_ns: u64,
    pub(crate) lower_bound_ns: u64,
    pub(crate) work: u64,
}

impl BestLayout {
    /// Whether nothing is better; else the search was cut short.
    pub(crate) fn is_proven(&self) -> bool {
        self.lower_bound_ns >= self.objective_ns
    }
}

/// Work of a search among the usable devices. A unit of work on many devices touches more memory, and takes
/// as much longer.
pub(crate) fn work_max(request: &PlanRequest, usable: &[usize]) -> u64 {
    let is_large = usable.len() > SEARCHED_WHOLE_MAX;
    if is_large { request.work_max / 4 } else { request.work_max }
}

/// The best plan on the usable devices, with at most about so much work. `None` if there is none, or none was
/// found: see [`crate::fit`].
pub(crate) fn best(
    request: &PlanRequest,
    sizes: &Sizes<'_>,
    usable: &[usize],
    work_max: u64,
) -> Option<BestLayout> {
    let costs = Costs::of(request, Case::Expected);
    let candidates = candidates(request, sizes, usable, &costs);
    let mut search =
        Search { request, costs: &costs, sizes, candidates, best: None, lower: i64::MAX, work: 0, work_max };
    let all = search.stage_counts();
    match request.objective {
        Objective::Latency | Objective::Spread { .. } => search.latency(all),
        Objective::Throughput => search.throughput(all),
    }
    if search.best.is_none() {
        search.take_any(usable);
    }
    let (objective, layout) = search.best.take()?;
    let objective_ns = costs.objective_ns(&layout);
    let everywhere = if search.candidates.len() < usable.len() {
        whole_cluster_bound(request, &costs, sizes, usable)
    } else {
        i64::MAX
    };
    let lower = objective.min(search.lower).min(everywhere).max(0) / TICKS;
    Some(BestLayout {
        layout,
        objective_ns,
        lower_bound_ns: objective_ns.min(lower as u64),
        work: search.work,
    })
}

/// Usable devices in the order of their scores, those with the file first among equals; pinned ones always.
/// If the best by score cannot hold the model together, the rest goes by memory. Of too many those come last
/// that do not run all layers.
fn candidates(request: &PlanRequest, sizes: &Sizes<'_>, usable: &[usize], costs: &Costs<'_>) -> Vec<usize> {
    let scores = score::scores(request, sizes, costs);
    let is_pinned = |d: usize| {
        let device = &request.devices[d];
        request.pins.iter().any(|p| p.node == device.node && p.device == device.device.id)
    };
    let holds_file = |d: usize| request.holders.contains(&request.devices[d].node);
    let free = |d: usize| request.devices[d].device.memory_free_bytes;
    let mut devices = usable.to_vec();
    devices.sort_by_key(|&d| (!is_pinned(d), std::cmp::Reverse((scores[d].total, holds_file(d))), d));
    if devices.len() > CANDIDATES_MAX {
        let room = devices[..CANDIDATES_MAX].iter().map(|&d| free(d).saturating_sub(sizes.workspace()));
        let enough =
            room.fold(0u64, u64::saturating_add) / 2 > sizes.model_bytes(crate::memory::WeightForm::Packed);
        if !enough {
            devices.sort_by_key(|&d| (!is_pinned(d), std::cmp::Reverse(free(d)), d));
        }
        let is_partial = |d: usize| !Runnable::of(request, &request.devices[d]).is_all();
        devices.sort_by_cached_key(|&d| (!is_pinned(d), is_partial(d)));
        devices.truncate(CANDIDATES_MAX);
    }
    devices
}

/// A bound for plans on any of the devices, beyond the candidates too: as if the best link lay between all of
/// them.
fn whole_cluster_bound(request: &PlanRequest, costs: &Costs<'_>, sizes: &Sizes<'_>, usable: &[usize]) -> i64 {
    let (phase, hop_ns) = match request.objective {
        Objective::Throughput => (Phase::Rows(1), costs.least_hop_ns(1)),
        Objective::Latency | Objective::Spread { .. } => {
            let token = costs.answer().saturating_mul(costs.least_hop_ns(1));
            // More chunks are smaller ones, and those behind the first are not counted here.
            let chunks = costs.chunks(usize::MAX);
            let hop_ns = costs.least_hop_ns(costs.chunk_rows(chunks)).saturating_add(token);
            (Phase::Request { chunks }, hop_ns)
        }
    };
    let tables = tables(costs, sizes, request, usable, phase);
    let starts: Vec<Vec<u32>> = tables.iter().map(|t| t.start_min.clone()).collect();
    let hop = problem::ticks(hop_ns, request);
    // The first stage is entered without a hop.
    Bound::of_tables(&tables, &starts, hop).rest(0, 0, None, &mut 0).map_or(i64::MAX, |rest| rest - hop)
}

struct Search<'a> {
    request: &'a PlanRequest,
    costs: &'a Costs<'a>,
    sizes: &'a Sizes<'a>,
    candidates: Vec<usize>,
    /// Cost in ticks, and the layout by index into the request.
    best: Option<(i64, Vec<(usize, LayerRange)>)>,
    /// No plan on the candidates that was not looked at costs less.
    lower: i64,
    work: u64,
    work_max: u64,
}

/// A range of the slowest stage that is still open: above `over`, up to `slow_max`; plans in it have at least
/// this sum.
struct Open {
    over: i64,
    slow_max: i64,
    sum_min: i64,
}

impl Open {
    const ALL: Self = Self { over: -1, slow_max: i64::MAX, sum_min: 0 };

    /// What the chunks behind the first cost at least.
    fn least_slow(&self, behind: i64) -> i64 {
        (self.over + 1).saturating_mul(behind)
    }
}

impl Search<'_> {
    fn stage_counts(&self) -> RangeInclusive<usize> {
        let least = match self.request.objective {
            Objective::Spread { stages_min } => stages_min.max(1) as usize,
            Objective::Latency | Objective::Throughput => 1,
        };
        least..=self.candidates.len().min(self.request.shape.layers.len())
    }

    fn problem(&self, phase: Phase) -> Problem {
        Problem::of(self.costs, self.sizes, self.request, &self.candidates, phase)
    }

    fn cost_below(&self) -> i64 {
        self.best.as_ref().map_or(i64::MAX, |(cost, _)| *cost)
    }

    fn take(&mut self, cost: i64, layout: &[(usize, LayerRange)]) {
        if cost < self.cost_below() {
            self.best = Some((cost, layout.iter().map(|(d, range)| (self.candidates[*d], *range)).collect()));
        }
    }

    /// One after the other for the numbers of stages that read a prompt in as many chunks.
    fn latency(&mut self, stages: RangeInclusive<usize>) {
        let mut groups: Vec<(u64, RangeInclusive<usize>)> = Vec::new();
        for count in stages {
            let chunks = self.costs.chunks(count);
            match groups.last_mut() {
                Some((same, range)) if *same == chunks => *range = *range.start()..=count,
                _ => groups.push((chunks, count..=count)),
            }
        }
        let problem = |search: &Self, chunks| search.problem(Phase::Request { chunks });
        let work_max = self.work_max;
        // A good plan of any group makes short work of the others.
        for (chunks, stages) in &groups {
            let (problem, behind) = (problem(self, *chunks), (chunks - 1) as i64 * TICKS);
            self.least_latency(&problem, behind, stages, &Open::ALL, GREEDY_WIDTH, work_max);
        }
        for (done, (chunks, stages)) in groups.iter().enumerate() {
            let left = work_max.saturating_sub(self.work) / (groups.len() - done) as u64;
            self.halve_latency(&problem(self, *chunks), *chunks, stages, self.work + left);
        }
    }

    /// The least sum in a range of the slowest stage, with the slowest of what was found.
    fn least_latency(
        &mut self,
        problem: &Problem,
        behind: i64,
        stages: &RangeInclusive<usize>,
        open: &Open,
        width_max: usize,
        work_max: u64,
    ) -> (LeastSum, i64) {
        let sum_below = self.cost_below().saturating_sub(open.least_slow(behind));
        let limits = Limits { slow_max: open.slow_max, sum_below, stages: stages.clone(), width_max };
        let least = least_sum(problem, limits, &mut self.work, work_max);
        let Some((sum, layout)) = &least.found else { return (least, 0) };
        let slowest = problem.slowest(layout);
        self.take(sum.saturating_add(slowest.saturating_mul(behind)), layout);
        (least, slowest)
    }

    fn halve_latency(
        &mut self,
        problem: &Problem,
        chunks: u64,
        stages: &RangeInclusive<usize>,
        work_max: u64,
    ) {
        let behind = (chunks - 1) as i64 * TICKS;
        let mut open = vec![Open::ALL];
        while let Some(range) = open.pop() {
            let least_slow = range.least_slow(behind);
            if range.sum_min.saturating_add(least_slow) >= self.cost_below() {
                continue;
            }
            if self.work >= work_max {
                self.lower = self.lower.min(range.sum_min.saturating_add(least_slow));
                continue;
            }
            let (least, slowest) = self.least_latency(problem, behind, stages, &range, usize::MAX, work_max);
            let found_sum = least.found.as_ref().map_or(i64::MAX, |(sum, _)| *sum);
            if least.lower < found_sum {
                // Some of this range was not looked at.
                self.lower = self.lower.min(least.lower.saturating_add(least_slow));
            }
            // A plan at least as slow as the one found has no lower sum, so no lower cost.
            let slow_max = slowest - 1;
            if least.found.is_none() || behind == 0 || slow_max <= range.over {
                continue;
            }
            let middle = range.over + (slow_max - range.over) / 2;
            open.push(Open { over: range.over, slow_max: middle, sum_min: least.lower });
            open.push(Open { over: middle, slow_max, sum_min: least.lower });
        }
    }

    fn throughput(&mut self, stages: RangeInclusive<usize>) {
        let streams = u64::from(self.request.workload.streams.max(1));
        let apart = (*stages.end()).min(streams as usize);
        let groups: Vec<RangeInclusive<usize>> = (*stages.start()..=apart)
            // With more stages than streams every stream is a micro-batch of its own.
            .map(|count| if count as u64 == streams { count..=*stages.end() } else { count..=count })
            .collect();
        for (done, group) in groups.iter().enumerate() {
            let micro_batches = streams.min(*group.start() as u64);
            let problem = self.problem(Phase::Rows(streams.div_ceil(micro_batches)));
            let left = self.work_max.saturating_sub(self.work) / (groups.len() - done) as u64;
            self.halve(&problem, group, micro_batches as i64 * TICKS, self.work + left);
        }
    }

    /// The least cost with these numbers of stages, between what is certainly too little and the best.
    fn halve(&mut self, problem: &Problem, stages: &RangeInclusive<usize>, per_slow: i64, work_max: u64) {
        let starts: Vec<Vec<u32>> = problem.tables.iter().map(|t| t.start_min.clone()).collect();
        let floor = Bound::of_tables(&problem.tables, &starts, 0).rest(0, 0, None, &mut self.work);
        let Some(mut proven) = floor else { return };
        let mut low = proven;
        let ask = |search: &mut Self, cost: i64, width_max: usize| {
            let (slow_max, sum_below) = (cost / per_slow, cost.saturating_add(1));
            let limits = Limits { slow_max, sum_below, stages: stages.clone(), width_max };
            let least = least_sum(problem, limits, &mut search.work, work_max);
            if let Some((sum, layout)) = &least.found {
                search.take((*sum).max(problem.slowest(layout).saturating_mul(per_slow)), layout);
            }
            least
        };
        // Most numbers of stages cannot beat the best: that is one question.
        let mut cost = self.cost_below().saturating_sub(1);
        ask(self, cost, GREEDY_WIDTH);
        cost = cost.min(self.cost_below().saturating_sub(1));
        while low < self.cost_below() {
            if self.work >= work_max {
                self.lower = self.lower.min(proven);
                return;
            }
            let least = ask(self, cost, usize::MAX);
            if least.found.is_none() {
                low = cost.saturating_add(1);
                if least.lower == i64::MAX {
                    proven = low;
                }
            }
            cost = low + (self.cost_below().saturating_sub(low)) / 2;
            if cost >= self.cost_below() {
                break;
            }
        }
        self.lower = self.lower.min(proven);
    }

    /// A plan by memory alone, where the search by time found none.
    fn take_any(&mut self, usable: &[usize]) {
        let stages_min = *self.stage_counts().start();
        if !self.request.pins.is_empty() {
            return;
        }
        if let Some(layout) = fit::any_layout(self.request, self.sizes, usable, stages_min) {
            let cost = self.costs.objective_ns(&layout).min(1 << 52) as i64 * TICKS;
            self.lower = self.lower.min(0);
            self.best = Some((cost, layout));
        }
    }
}
