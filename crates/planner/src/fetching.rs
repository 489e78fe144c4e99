//! What fetching the model's file counts for in the choice of a plan.
//!
//! Whoever asks for a model waits until its weights are where the plan wants them, and a plan that is better
//! by a little may want them on the far side of a slow line. So the time of fetching is counted in the first
//! answers: as much of each as there are of them, up to a minute; all of what is beyond in the first alone.
//!
//! The search adds up costs of layers, and a fetch is over when the slowest node has its part. So it is asked
//! more than once, with a fetch that counts for nothing, for its share, and for all of it, and the best of
//! what it finds is taken.

use crate::cost::{Case, Costs};
use crate::memory::Sizes;
use crate::search::BestLayout;
use crate::{FasterPlan, Objective, PlanRequest, domains};

/// People wait so long for weights where that pays later.
const WAIT_NS_MAX: u64 = 60_000_000_000;
/// The searches that count a fetch may do this part of the first one's work.
const WORK_SHARE: u64 = 4;

/// A plan that takes so much less time is told: no move is made for less.
const TOLD_PERCENT: u64 = 10;

/// The plan that is chosen, and the faster one that was not for what it fetches.
pub(crate) struct ChosenPlan {
    pub(crate) outcome: BestLayout,
    pub(crate) faster: Option<FasterPlan>,
}

impl ChosenPlan {
    fn of(outcome: BestLayout) -> Self {
        Self { outcome, faster: None }
    }
}

/// The best plan on the usable devices, as [`domains::best`], with what it fetches counted as the request
/// wants it.
pub(crate) fn best(request: &PlanRequest, sizes: &Sizes<'_>, usable: &[usize]) -> Option<ChosenPlan> {
    let counts = |fetch_answers: Option<u32>, work_max: u64| {
        domains::best(&PlanRequest { fetch_answers, work_max, ..request.clone() }, sizes, usable)
    };
    let Some(answers) = request.fetch_answers else {
        return domains::best(request, sizes, usable).map(ChosenPlan::of);
    };
    let fastest = counts(None, request.work_max)?;
    let costs = Costs::of(request, Case::Expected);
    let fetch = costs.fetch(&fastest.layout);
    if fetch.ns == 0 {
        return Some(ChosenPlan::of(fastest));
    }
    let found = [answers, 1].map(|answers| counts(Some(answers), request.work_max / WORK_SHARE));
    let found: Vec<BestLayout> = found.into_iter().flatten().collect();
    let work = found.iter().map(|outcome| outcome.work).sum::<u64>() + fastest.work;
    let total_ns = |outcome: &BestLayout| {
        let answer_ns = match request.objective {
            Objective::Throughput => outcome.objective_ns.saturating_mul(costs.answer()),
            Objective::Latency | Objective::Spread { .. } => outcome.objective_ns,
        };
        answer_ns.saturating_add(counted_ns(costs.fetch(&outcome.layout).ns, answers))
    };
    let best = found.into_iter().min_by_key(&total_ns).filter(|best| total_ns(best) < total_ns(&fastest));
    let Some(best) = best else { return Some(ChosenPlan::of(BestLayout { work, ..fastest })) };
    // What counts a fetch may have found what the first search had no work left for.
    let faster = FasterPlan {
        objective_ns: fastest.objective_ns,
        fetch_bytes: fetch.bytes,
        fetch_ns: fetch.ns,
        is_fetch_estimated: fetch.is_estimated,
    };
    let is_told = |faster: &FasterPlan| {
        let less_ns = u128::from(best.objective_ns.saturating_sub(faster.objective_ns));
        less_ns * 100 >= u128::from(best.objective_ns) * u128::from(TOLD_PERCENT)
    };
    let faster = Some(faster).filter(is_told);
    let lower_bound_ns = fastest.lower_bound_ns.min(best.objective_ns);
    Some(ChosenPlan { outcome: BestLayout { lower_bound_ns, work, ..best }, faster })
}

/// What a fetch adds to each answer.
fn counted_ns(fetch_ns: u64, answers: u32) -> u64 {
    let soon_ns = fetch_ns.min(WAIT_NS_MAX);
    soon_ns / u64::from(answers.max(1)) + (fetch_ns - soon_ns)
}
