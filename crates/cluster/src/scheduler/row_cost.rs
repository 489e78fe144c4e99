//! What a row of a step costs, learned from the steps that come back: whether a draft is worth one, and how
//! many rows a step may have before who waits for one of them waits for long.
//!
//! A decode step takes `base + rows · row`: reading the weights, and computing on them. On a device bound by
//! bandwidth a further row is almost free, on one bound by arithmetic it costs as much as the first. Nothing
//! of this is asked of the device: it is a line through the times of recent steps of different numbers of
//! rows.

use std::time::Duration;

/// Rows of drafts in one step at most: their logits cost memory and passes over the head.
const DRAFTS_IN_STEP_MAX: u32 = 32;
/// What a step says fades by this much with each that follows: the last 64 or so count.
const FADE: f64 = 1.0 - 1.0 / 64.0;
/// Share of a step of one row that another costs, until that is measured.
const ROW_AT_FIRST: f64 = 0.15;
/// Variance of rows below which there is no line: less than one draft among the steps that count.
const VARIANCE_MIN: f64 = 0.01;
/// A step that takes this many times the usual tells of the machine, not of its rows.
const OUTLIER: f64 = 3.0;
/// Steps without a draft, after which a row is taken to be as cheap as at first: kernels, batch or machine
/// changed.
const ASK_AGAIN_AFTER: u32 = 128;
/// A draft less likely than this is not sent however cheap a row seems.
const CHANCE_MIN: f64 = 0.05;
/// A step of several principals takes at most this many times as long as one in which each has as many rows
/// as the one that has fewest. With requests that come and go beside it, who runs one sequence waits less
/// than twice as long beside many of another principal as beside one.
const BESIDE_EQUAL_MAX: f64 = 1.5;

/// Times of recent decode steps.
#[derive(Clone, Debug)]
pub(super) struct RowCost {
    /// Faded sums over steps: 1, rows, rows², seconds, rows · seconds.
    sums: [f64; 5],
    row: f64,
    /// Whether steps have differed enough to tell.
    is_row_measured: bool,
    /// Steps since one had drafts.
    without_drafts: u32,
}

impl RowCost {
    pub(super) fn new() -> Self {
        Self { sums: [0.0; 5], row: ROW_AT_FIRST, is_row_measured: false, without_drafts: 0 }
    }

    /// A step of `rows` decoded tokens, `drafts` of them guessed, took `time`.
    pub(super) fn learn(&mut self, rows: u32, drafts: u32, time: Duration) {
        self.without_drafts = if drafts > 0 { 0 } else { self.without_drafts.saturating_add(1) };
        let (rows, mut seconds) = (f64::from(rows), time.as_secs_f64());
        let [weight, _, _, sum, _] = self.sums;
        if weight > 4.0 {
            seconds = seconds.min(OUTLIER * sum / weight);
        }
        let step = [1.0, rows, rows * rows, seconds, rows * seconds];
        for (sum, new) in self.sums.iter_mut().zip(step) {
            *sum = *sum * FADE + new;
        }
        if let Some(row) = self.fit() {
            (self.row, self.is_row_measured) = (row, true);
        }
    }

    /// What the drafts of a step with `decodes` sequences may cost.
    pub(super) fn budget(&self, decodes: usize) -> DraftBudget {
        let ask = self.without_drafts >= ASK_AGAIN_AFTER;
        DraftBudget::new(if ask { self.row.min(ROW_AT_FIRST) } else { self.row }, decodes)
    }

    /// Rows that a step may have in which all principals together have `equal` if each has as many as the one
    /// that has fewest. Until a row is measured, all that there are: steps of always as few would never
    /// differ.
    pub(super) fn rows_beside(&self, equal: usize) -> usize {
        if !self.is_row_measured {
            return usize::MAX;
        }
        let time = 1.0 + self.row * (equal.max(1) - 1) as f64;
        // Infinitely many of rows that cost nothing.
        equal.saturating_add(((BESIDE_EQUAL_MAX - 1.0) * time / self.row) as usize)
    }

    /// Seconds of a step of one row; `None` before the first.
    pub(super) fn step_seconds(&self) -> Option<f64> {
        let [weight, rows, _, seconds, _] = self.sums;
        (weight > 0.0).then(|| seconds / (weight + self.row * (rows - weight)))
    }

    /// Share of a one-row step that a further row costs, if the steps differ enough to tell.
    fn fit(&self) -> Option<f64> {
        let [weight, rows, rows2, seconds, rows_seconds] = self.sums;
        let (mean_rows, mean_seconds) = (rows / weight, seconds / weight);
        let variance = rows2 / weight - mean_rows * mean_rows;
        if variance < VARIANCE_MIN {
            return None;
        }
        let row = (rows_seconds / weight - mean_rows * mean_seconds) / variance;
        let one = mean_seconds + row * (1.0 - mean_rows);
        match row {
            _ if mean_seconds <= 0.0 => None,
            row if row <= 0.0 => Some(0.0),
            row if one <= row => Some(1.0),
            row => Some(row / one),
        }
    }
}

/// Weighs the drafts of one step: each must raise the tokens per second that the step is expected to give.
#[derive(Clone, Debug)]
pub(super) struct DraftBudget {
    /// Share of a one-row step that a further row costs.
    row: f64,
    /// In one-row steps.
    time: f64,
    /// Tokens expected of it.
    tokens: f64,
    left: u32,
}

impl DraftBudget {
    /// Of a step in which `decodes` sequences get a token without drafts.
    pub(super) fn new(row: f64, decodes: usize) -> Self {
        let decodes = decodes.max(1) as f64;
        Self { row, time: 1.0 + row * (decodes - 1.0), tokens: decodes, left: DRAFTS_IN_STEP_MAX }
    }

    /// Whether a draft that is right with probability `chance` is worth its row; then it is counted.
    pub(super) fn take(&mut self, chance: f64) -> bool {
        self.take_made(chance, 0.0)
    }

    /// The same of a draft that has to be made first, which takes `making` one-row steps.
    pub(super) fn take_made(&mut self, chance: f64, making: f64) -> bool {
        let cost = self.row + making;
        // (tokens + chance) / (time + cost) > tokens / time
        let worth = chance >= CHANCE_MIN && chance * self.time > cost * self.tokens;
        if !worth || self.left == 0 {
            return false;
        }
        self.tokens += chance;
        self.time += cost;
        self.left -= 1;
        true
    }
}

#[cfg(test)]
impl RowCost {
    /// Where a further row costs this share of a step of one.
    pub(super) fn of_row(row: f64) -> Self {
        Self { row, is_row_measured: true, ..Self::new() }
    }
}

#[cfg(test)]
impl DraftBudget {
    /// Rows cost nothing.
    pub(super) fn free() -> Self {
        Self::new(0.0, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share learned from steps of these rows, when a step takes `base + rows · row` milliseconds, give
    /// or take.
    fn measured(base: f64, row: f64, rows: &[u32]) -> f64 {
        let mut cost = RowCost::new();
        for i in 0..200 {
            let rows = rows[i % rows.len()];
            let noise = 1.0 + 0.2 * ((i * 7919 % 13) as f64 / 6.0 - 1.0);
            let hiccup = if i % 50 == 49 { 20.0 } else { 1.0 };
            let ms = (base + f64::from(rows) * row) * noise * hiccup;
            cost.learn(rows, rows - 1, Duration::from_secs_f64(ms / 1e3));
        }
        cost.row
    }

    #[test]
    fn the_cost_of_a_row_is_learned_from_step_times() {
        let close = |got: f64, want: f64| assert!((got - want).abs() < 0.06, "{got} instead of {want}");
        close(measured(30.0, 1.0, &[1, 5, 3]), 1.0 / 31.0);
        close(measured(10.0, 10.0, &[1, 5, 3]), 0.5);
        close(measured(0.1, 10.0, &[1, 5, 3]), 0.99);
        close(measured(10.0, 10.0, &[1]), ROW_AT_FIRST);
    }

    #[test]
    fn time_that_stands_still_teaches_nothing() {
        let mut cost = RowCost::new();
        (0..50).for_each(|i| cost.learn(1 + i % 4, i % 4, Duration::ZERO));
        assert_eq!(cost.row, ROW_AT_FIRST);
    }

    #[test]
    fn a_draft_is_taken_if_it_raises_the_rate() {
        let taken = |row, decodes, chance: f64| {
            let mut budget = DraftBudget::new(row, decodes);
            (1..=16).take_while(|&i| budget.take(chance.powi(i))).count()
        };
        assert_eq!(taken(0.15, 1, 0.1), 0, "seldom right");
        assert_eq!(taken(1.0, 1, 0.99), 0, "a row costs as much as a step");
        assert!(taken(0.15, 1, 0.9) >= 5);
        assert!(taken(0.15, 1, 0.9) > taken(0.3, 1, 0.9));
        assert!(taken(0.15, 8, 0.6) < taken(0.15, 1, 0.6), "a full batch is bound by arithmetic");
    }

    #[test]
    fn rows_beside_equals_lengthen_a_step_by_half_at_most() {
        let rows = |row, equal| RowCost::of_row(row).rows_beside(equal);
        assert_eq!([rows(1.0, 2), rows(1.0, 4), rows(1.0, 8)], [3, 6, 12], "arithmetic alone");
        assert_eq!(rows(0.5, 2), 3);
        assert_eq!(rows(0.25, 2), 4, "a step of 1.75 for one of 1.25");
        assert_eq!(rows(0.01, 2), 52, "bandwidth alone");
        assert_eq!(rows(0.0, 1), usize::MAX);
        let mut cost = RowCost::new();
        let step = |cost: &mut RowCost, rows: u32| cost.learn(rows, 0, Duration::from_millis(rows.into()));
        (0..9).for_each(|_| step(&mut cost, 2));
        assert_eq!(cost.rows_beside(2), usize::MAX, "all steps were alike");
        step(&mut cost, 3);
        assert_eq!(cost.rows_beside(2), 3, "each row takes a millisecond");
    }

    #[test]
    fn the_cost_is_asked_again_after_a_while() {
        let mut cost = RowCost::new();
        for i in 0..=100 {
            let drafts = i % 3;
            cost.learn(1 + drafts, drafts, Duration::from_millis(10 + 10 * u64::from(drafts)));
        }
        assert!(!cost.budget(1).take(0.8), "a row costs a step");
        for i in 0..ASK_AGAIN_AFTER {
            assert!(!cost.budget(1).take(0.8), "not after {i} steps");
            cost.learn(1, 0, Duration::from_millis(10));
        }
        assert!(cost.budget(1).take(0.8));
    }
}
