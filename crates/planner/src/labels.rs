//! The plan with the least sum whose slowest stage stays below a limit: branch and bound over ordered sets of
//! devices.
//!
//! A *label* is a set of devices with the first and the last of them named. For every number of layers it has
//! the least sum with which these devices, in some order, hold so many from the start. Two orders with the
//! same set, first and last device differ in nothing that is still to come, so the cheaper one represents
//! both; a label is extended by each device that is not in it, in one pass over the layers. A cell whose sum
//! and bound of the rest reach the best known plan is dropped. When a level has more labels than the work
//! that is left allows, those with the least bound stay, and what the others could have reached is the lower
//! bound of the answer.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use exo_types::LayerRange;

use crate::bound::Bound;
use crate::problem::Problem;

const NONE: i64 = i64::MAX;

/// Of what plans the least is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// No stage and no wire may take more nanoseconds.
    pub(crate) slow_max: i64,
    /// The sum must be below.
    pub(crate) sum_below: i64,
    /// Number of stages.
    pub(crate) stages: RangeInclusive<usize>,
    /// Labels of a level at most, however much work is left.
    pub(crate) width_max: usize,
}

/// The answer.
#[derive(Clone, Debug)]
pub(crate) struct LeastSum {
    /// Sum and layout, by position in the problem's tables; `None` if none was found within the limits.
    pub(crate) found: Option<(i64, Vec<(usize, LayerRange)>)>,
    /// No plan within the limits has a lower sum. [`i64::MAX`]: there is none at all.
    pub(crate) lower: i64,
}

struct Label {
    set: u128,
    first: usize,
    last: usize,
    /// Least sum for each number of layers.
    row: Vec<i64>,
    /// How it was reached: the label before, and the first layer of the last stage.
    from: Vec<(u32, u32)>,
    /// Least bound of a plan that begins like this.
    bound: i64,
}

/// A finished plan: its last stage, and the label before (`None`: it is the only one).
struct Best {
    sum: i64,
    parent: Option<usize>,
    device: usize,
    start: usize,
}

struct Search<'a> {
    problem: &'a Problem,
    limits: Limits,
    bound: Bound,
    /// For each device and end the least start by the limit on the slowest.
    slow_starts: Vec<Vec<u32>>,
    labels: Vec<Label>,
    best: Option<Best>,
    dropped: i64,
}

/// Finds it with at most about `work_max` more work than `work`.
pub(crate) fn least_sum(problem: &Problem, limits: Limits, work: &mut u64, work_max: u64) -> LeastSum {
    let slow_starts: Vec<Vec<u32>> = problem.tables.iter().map(|t| t.slow_starts(limits.slow_max)).collect();
    let starts: Vec<Vec<u32>> = problem
        .tables
        .iter()
        .zip(&slow_starts)
        .map(|(t, slow)| t.start_min.iter().zip(slow).map(|(a, b)| *a.max(b)).collect())
        .collect();
    *work += (problem.tables.len() * problem.layers) as u64;
    let bound = Bound::of(problem, &starts);
    let mut search =
        Search { problem, limits, bound, slow_starts, labels: Vec::new(), best: None, dropped: NONE };
    let stages_max = *search.limits.stages.end().min(&problem.tables.len().min(problem.layers));
    let mut level = search.first_level(work);
    for stages in 2..=stages_max {
        let left = work_max.saturating_sub(*work) / (stages_max + 1 - stages) as u64;
        let each = (problem.tables.len() * problem.layers * 2).max(1) as u64;
        let width = ((left / each).max(1) as usize).min(search.limits.width_max);
        level = search.next_level(level, stages, width, work);
        if level.is_empty() {
            break;
        }
    }
    search.answer()
}

impl Search<'_> {
    fn below(&self) -> i64 {
        self.best.as_ref().map_or(self.limits.sum_below, |best| best.sum)
    }

    fn may_end(&self, set: u128, stages: usize) -> bool {
        self.limits.stages.contains(&stages) && self.problem.pinned & !set == 0
    }

    fn twin_is_missing(&self, device: usize, set: u128) -> bool {
        self.problem.twin_before[device].is_some_and(|twin| set & 1 << twin == 0)
    }

    fn first_level(&mut self, work: &mut u64) -> Vec<usize> {
        let layers = self.problem.layers;
        let mut labels = Vec::new();
        for device in 0..self.problem.tables.len() {
            if self.twin_is_missing(device, 0) {
                continue;
            }
            let (table, set) = (&self.problem.tables[device], 1u128 << device);
            let mut row = vec![NONE; layers + 1];
            for (end, cell) in row.iter_mut().enumerate().skip(1) {
                if !table.starts(end, self.slow_starts[device][end]).contains(&0) {
                    continue;
                }
                let sum = table.stage_sum(0, end);
                if end < layers {
                    *cell = sum;
                } else if sum < self.below() && self.may_end(set, 1) {
                    self.best = Some(Best { sum, parent: None, device, start: 0 });
                }
            }
            labels.push(Label {
                set,
                first: device,
                last: device,
                row,
                from: vec![(u32::MAX, 0); layers + 1],
                bound: NONE,
            });
        }
        self.keep(labels, usize::MAX, work)
    }

    fn next_level(&mut self, level: Vec<usize>, stages: usize, width: usize, work: &mut u64) -> Vec<usize> {
        let layers = self.problem.layers;
        let mut index: BTreeMap<(u128, usize, usize), usize> = BTreeMap::new();
        let mut next: Vec<Label> = Vec::new();
        for at in level {
            let (set, first, last) = (self.labels[at].set, self.labels[at].first, self.labels[at].last);
            let row = std::mem::take(&mut self.labels[at].row);
            for device in 0..self.problem.tables.len() {
                let is_open = set & 1 << device == 0 && !self.twin_is_missing(device, set);
                if !is_open || self.problem.arc(last, device).slow > self.limits.slow_max {
                    continue;
                }
                *work += layers as u64;
                let key = (set | 1 << device, first, device);
                let to = *index.entry(key).or_insert_with(|| {
                    let (row, from) = (vec![NONE; layers + 1], vec![(u32::MAX, 0); layers + 1]);
                    next.push(Label { set: key.0, first, last: device, row, from, bound: NONE });
                    next.len() - 1
                });
                self.extend(at, &row, &mut next[to], stages);
            }
        }
        if stages == *self.limits.stages.end() {
            return Vec::new();
        }
        self.keep(next, width, work)
    }

    /// All ways to go on from the label `at` with the last device of `to`.
    fn extend(&mut self, at: usize, row: &[i64], to: &mut Label, stages: usize) {
        let (problem, layers) = (self.problem, self.problem.layers);
        let (table, hop) = (&problem.tables[to.last], problem.arc(self.labels[at].last, to.last).sum);
        let ends_here = self.may_end(to.set, stages);
        // Starts that no later start beats, cheapest first: the ends of the windows only grow. Of equals the
        // latest.
        let mut starts: VecDeque<(usize, i64)> = VecDeque::new();
        for end in 1..=layers {
            if row[end - 1] != NONE {
                let cost = row[end - 1] - table.sum[end - 1];
                while starts.back().is_some_and(|(_, before)| *before >= cost) {
                    starts.pop_back();
                }
                starts.push_back((end - 1, cost));
            }
            let window = table.starts(end, self.slow_starts[to.last][end]);
            let best = if table.pin.is_some_and(|pin| pin != crate::PinLayers::Any) {
                let open = window.filter(|&start| row[start] != NONE);
                open.map(|start| (start, row[start] - table.sum[start])).min_by_key(|(_, cost)| *cost)
            } else {
                while starts.front().is_some_and(|(start, _)| *start < window.start) {
                    starts.pop_front();
                }
                starts.front().copied()
            };
            let Some((start, _)) = best else { continue };
            let sum = row[start] + hop + table.stage_sum(start, end);
            if end < layers {
                if sum < to.row[end] {
                    to.row[end] = sum;
                    to.from[end] = (at as u32, start as u32);
                }
            } else if ends_here {
                let sum = sum + problem.arc(to.last, to.first).back;
                if sum < self.below() {
                    self.best = Some(Best { sum, parent: Some(at), device: to.last, start });
                }
            }
        }
    }

    /// Drops what cannot become better than the best, then all but the `width` most promising.
    fn keep(&mut self, mut labels: Vec<Label>, width: usize, work: &mut u64) -> Vec<usize> {
        let below = self.below();
        for label in &mut labels {
            for layer in 1..self.problem.layers {
                let sum = label.row[layer];
                if sum == NONE {
                    continue;
                }
                let rest = self.bound.rest(label.set, layer, Some(label.first), work);
                match rest.map(|rest| sum.saturating_add(rest)) {
                    Some(bound) if bound < below => label.bound = label.bound.min(bound),
                    _ => label.row[layer] = NONE,
                }
            }
        }
        labels.retain(|label| label.bound != NONE);
        if labels.len() > width {
            labels.sort_by_key(|label| (label.bound, label.set, label.first, label.last));
            self.dropped = self.dropped.min(labels[width].bound);
            labels.truncate(width);
        }
        let from = self.labels.len();
        self.labels.append(&mut labels);
        (from..self.labels.len()).collect()
    }

    fn answer(self) -> LeastSum {
        let Some(best) = &self.best else { return LeastSum { found: None, lower: self.dropped } };
        let mut layout = Vec::new();
        let (mut end, mut stage) = (self.problem.layers, (best.parent, best.device, best.start));
        loop {
            let (parent, device, start) = stage;
            layout.push((device, LayerRange::new(start as u32, end as u32)));
            let Some(parent) = parent else { break };
            let label = &self.labels[parent];
            let (before, from) = label.from[start];
            stage = ((before != u32::MAX).then_some(before as usize), label.last, from as usize);
            end = start;
        }
        layout.reverse();
        LeastSum { lower: best.sum.min(self.dropped), found: Some((best.sum, layout)) }
    }
}
