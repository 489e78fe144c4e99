//! What a step uploads, on its way to the device.

/// What a step uploads, in host memory that is reused from step to step.
#[derive(Debug, Default)]
pub(crate) struct HostBatch {
    /// `[T]`
    pub ids: Vec<u32>,
    /// `[T]`
    pub positions: Vec<u32>,
    /// `[T]`
    pub sequences: Vec<u32>,
    /// `[S, pages_per_sequence]`; columns beyond a sequence's pages are never read.
    pub page_table: Vec<u32>,
    /// Rows to sample after: of each sequence that samples the last that is no draft, and the drafts. Those
    /// whose logits are asked for come first.
    pub rows: Vec<u32>,
    /// Which of the sequences that sample each of `rows` belongs to.
    pub run_of_row: Vec<usize>,
    /// How many of `rows` are asked for their logits.
    pub logit_rows: usize,
    /// `[R, V]`: logits as they come back.
    pub logits: Vec<f32>,
}

impl HostBatch {
    pub(crate) fn clear(&mut self) {
        for list in [&mut self.ids, &mut self.positions, &mut self.sequences, &mut self.rows] {
            list.clear();
        }
        self.page_table.clear();
        self.run_of_row.clear();
    }

    /// Adds rows to sample after, each with its run.
    pub(crate) fn sample(&mut self, rows: impl IntoIterator<Item = (u32, usize)>) {
        for (row, run) in rows {
            self.rows.push(row);
            self.run_of_row.push(run);
        }
    }
}
