//! Reservation of KV pages: counted here, on the first stage, for every stage of the pipeline.

/// Pages of every stage, and how many of them are promised.
#[derive(Clone, Debug)]
pub(super) struct PageBudget {
    stages: Vec<StagePages>,
}

#[derive(Clone, Copy, Debug)]
struct StagePages {
    pages: u32,
    page_tokens: u32,
    reserved: u32,
}

impl StagePages {
    fn needed(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.page_tokens)
    }
}

impl PageBudget {
    /// Panics if a stage has pages without tokens: decoding a report refuses that.
    pub(super) fn new(pages: &[(u32, u32)]) -> Self {
        assert!(pages.iter().all(|&(_, page_tokens)| page_tokens > 0), "a page holds at least one token");
        let stages = pages.iter().map(|&(pages, page_tokens)| StagePages { pages, page_tokens, reserved: 0 });
        Self { stages: stages.collect() }
    }

    /// Whether an empty cache would hold a sequence of that many tokens.
    pub(super) fn could_ever_fit(&self, tokens: u32) -> bool {
        self.stages.iter().all(|s| s.needed(tokens) <= s.pages)
    }

    /// Promises pages for `tokens` on every stage, or on none.
    #[must_use]
    pub(super) fn reserve(&mut self, tokens: u32) -> bool {
        let fits = self.stages.iter().all(|s| s.needed(tokens) <= s.pages - s.reserved);
        if fits {
            self.stages.iter_mut().for_each(|s| s.reserved += s.needed(tokens));
        }
        fits
    }

    /// Takes back what [`PageBudget::reserve`] promised for the same number of tokens.
    pub(super) fn release(&mut self, tokens: u32) {
        self.stages.iter_mut().for_each(|s| s.reserved -= s.needed(tokens));
    }

    /// Reserved and all pages of the stage with the fewest left.
    pub(super) fn fullest(&self) -> (u32, u32) {
        let fullest = self.stages.iter().min_by_key(|s| s.pages - s.reserved);
        fullest.map_or((0, 0), |s| (s.reserved, s.pages))
    }
}
