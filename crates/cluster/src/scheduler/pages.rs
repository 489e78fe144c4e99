//! Pages of keys and values, counted on the first stage for every stage of the pipeline.
//!
//! A sequence is admitted with a [`Claim`] on all pages it can come to need, so a running sequence never runs
//! out of them; pages that it begins with, because they are kept from others, count once however many use
//! them. Pages that nobody uses stay kept until a step needs the room: claims are promises, and a promise
//! evicts nothing.
//!
//! Three numbers hold it together: `filled + kept <= total` at every step, by eviction;
//! `promised + kept in use <= total`, by admission; `filled <= promised`. So there is always something to
//! evict.
//!
//! A stage that was loaded anew has none of the kept pages: it *lacks* them. They are found like others, and
//! the sequence that finds them has them rebuilt there before it goes on.

use std::collections::BTreeSet;

use exo_types::{PageKey, Placement, Principal};

use super::kept_pages::KeptPages;
use crate::page_chain::{PageChain, PageHash};
use crate::wire::StagePages;

/// Pages of the pipeline.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    page_tokens: u32,
    /// Of the stage with the fewest.
    total: u32,
    /// Pages that running sequences may come to fill, beside kept ones.
    promised: u32,
    /// Of those, pages that positions were sent to.
    filled: u32,
    kept: KeptPages,
    /// Of those, pages that some stages lack.
    lacking: BTreeSet<PageKey>,
    /// Content of pages that a running sequence is about to compute or to rebuild.
    coming: BTreeSet<PageHash>,
}

/// What a sequence needs to be admitted.
#[derive(Clone, Debug)]
pub(super) struct Need {
    chain: PageChain,
    /// Pages of the longest it can become.
    pages_max: u32,
    /// Leading pages it may begin with: the last token is always computed, its logits are wanted.
    reusable: usize,
}

/// Pages of a running sequence.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    need: Need,
    /// Pages that positions were sent to, those it began with included.
    reached: u32,
    /// Kept pages that it began with or filled.
    used: Vec<PageKey>,
    /// Pages it began with.
    begun_with: usize,
    /// Of those, so many, the first, are in the cache of every stage.
    complete: usize,
    /// Of its full pages, so many are kept, by it or by another.
    settled: usize,
    /// Up to this page its content was announced as coming.
    announced: usize,
}

impl Need {
    /// The same of a sequence whose every position is to be computed.
    pub(super) fn without_kept(self) -> Self {
        Self { reusable: 0, ..self }
    }
}

impl Claim {
    /// Names of the pages it begins with.
    pub(super) fn cached(&self) -> &[PageKey] {
        &self.used[..self.begun_with]
    }

    /// Tokens in the pages it begins with.
    pub(super) fn cached_tokens(&self) -> u32 {
        self.begun_with as u32 * self.need.chain.page_tokens()
    }

    /// Tokens in those of them that no stage lacks, up to the first that one does.
    pub(super) fn complete_tokens(&self) -> u32 {
        self.complete as u32 * self.need.chain.page_tokens()
    }

    fn own_promised(&self) -> u32 {
        self.need.pages_max - self.used.len() as u32
    }

    fn own_filled(&self) -> u32 {
        self.reached - self.used.len() as u32
    }

    /// Content it announced and has neither rebuilt nor computed.
    fn coming(&self) -> impl Iterator<Item = PageHash> {
        let rebuilt = if self.announced > 0 { self.complete..self.begun_with } else { 0..0 };
        rebuilt.chain(self.settled..self.announced).filter_map(|index| self.need.chain.get(index))
    }
}

impl Pages {
    /// Empty pages. Panics if a page holds no token: decoding a report refuses that.
    pub(super) fn new(total: u32, page_tokens: u32) -> Self {
        assert!(page_tokens > 0, "a page holds at least one token");
        let (kept, lacking, coming) = (KeptPages::default(), BTreeSet::new(), BTreeSet::new());
        Self { page_tokens, total, promised: 0, filled: 0, kept, lacking, coming }
    }

    /// Whether they are pages of such a cache.
    pub(super) fn are_of(&self, cache: StagePages) -> bool {
        (self.total, self.page_tokens) == (cache.pages, cache.page_tokens)
    }

    /// Tokens of a page.
    pub(super) fn page_tokens(&self) -> u32 {
        self.page_tokens
    }

    /// Pages of that many tokens.
    pub(super) fn needed(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.page_tokens)
    }

    /// Pages in all.
    pub(super) fn total(&self) -> u32 {
        self.total
    }

    /// Pages that hold positions of running sequences.
    pub(super) fn used(&self) -> u32 {
        self.filled + self.kept.len() - self.kept.idle_len()
    }

    /// Pages promised to running sequences, filled or not.
    pub(super) fn claimed(&self) -> u32 {
        self.promised + self.kept.len() - self.kept.idle_len()
    }

    /// Pages kept for sequences to come, which nobody uses.
    pub(super) fn cached(&self) -> u32 {
        self.kept.idle_len()
    }

    /// What a sequence of `prompt` that can grow to `tokens_max` needs.
    pub(super) fn need(
        &self,
        placement: &Placement,
        principal: Principal,
        prompt: &[u32],
        tokens_max: u32,
    ) -> Need {
        let chain = PageChain::new(placement, principal, self.page_tokens, prompt);
        let reusable = prompt.len().saturating_sub(1) / self.page_tokens as usize;
        Need { chain, pages_max: self.needed(tokens_max), reusable }
    }

    /// Whether there are pages for it, kept ones that nobody uses counted as free.
    pub(super) fn can_claim(&self, need: &Need) -> bool {
        let (mut count, mut idle, mut lacks_any) = (0_u32, 0_u32, false);
        while let Some((key, lacks)) = self.find_next(need, count as usize, lacks_any) {
            count += 1;
            idle += u32::from(self.kept.is_idle(key));
            lacks_any |= lacks;
        }
        self.claimed() + idle + need.pages_max - count <= self.total
    }

    /// The kept page that a sequence may begin with behind `index` others, and whether a stage lacks it.
    /// Behind one that a stage lacks (`lacks_any`) come only such: each stage opens a sequence with the first
    /// pages that it has. What another sequence rebuilds is waited for.
    fn find_next(&self, need: &Need, index: usize, lacks_any: bool) -> Option<(PageKey, bool)> {
        let hash = need.chain.get(index).filter(|_| index < need.reusable)?;
        let key = self.kept.find(hash)?;
        let lacks = self.lacking.contains(&key);
        let is_fit = if lacks { !self.coming.contains(&hash) } else { !lacks_any };
        is_fit.then_some((key, lacks))
    }

    /// Whether there will be when `gone` gives its own back. Kept pages that it could begin with are not
    /// counted.
    pub(super) fn can_claim_without(&self, gone: &Claim, need: &Need) -> bool {
        let idle = gone.used.iter().filter(|key| self.kept.has_one_user(**key)).count() as u32;
        self.claimed() - gone.own_promised() - idle + need.pages_max <= self.total
    }

    /// Promises pages; the caller has asked [`Pages::can_claim`].
    pub(super) fn claim(&mut self, need: Need) -> Claim {
        self.promised += need.pages_max;
        let (used, begun_with, complete, settled, announced) = (Vec::new(), 0, 0, 0, 0);
        let mut claim = Claim { need, reached: 0, used, begun_with, complete, settled, announced };
        self.find_more(&mut claim);
        claim
    }

    /// Before a sequence is opened: lets it begin with every kept page there is by now.
    pub(super) fn find_more(&mut self, claim: &mut Claim) {
        while let Some(key) = claim.cached().get(claim.complete).copied()
            && !self.lacking.contains(&key)
        {
            claim.complete += 1; // another sequence had it rebuilt meanwhile
        }
        while let Some((key, lacks)) =
            self.find_next(&claim.need, claim.begun_with, claim.complete < claim.begun_with)
        {
            let chain = &claim.need.chain;
            let Some(hash) = chain.get(claim.begun_with) else { break };
            self.kept.hold(key, hash, chain.before(claim.begun_with));
            claim.complete += usize::from(!lacks);
            self.promised -= 1;
            claim.used.push(key);
            claim.begun_with += 1;
            claim.reached += 1;
            claim.settled += 1;
        }
    }

    /// Whether the next page it would rebuild or compute is being rebuilt or computed by another sequence:
    /// then waiting is cheaper.
    pub(super) fn is_coming(&self, claim: &Claim) -> bool {
        let is_coming = |index: usize| {
            let hash = claim.need.chain.get(index).filter(|_| index < claim.need.reusable);
            hash.is_some_and(|hash| self.coming.contains(&hash))
        };
        is_coming(claim.begun_with) || claim.complete < claim.begun_with && is_coming(claim.complete)
    }

    /// The sequence is opened: its prompt's pages are on their way.
    pub(super) fn open(&mut self, claim: &mut Claim) {
        claim.announced = claim.need.chain.len();
        self.coming.extend(claim.coming());
    }

    /// Positions up to `end` are sent.
    pub(super) fn reach(&mut self, claim: &mut Claim, end: u32) {
        let pages = self.needed(end);
        if pages > claim.reached {
            debug_assert!(pages <= claim.need.pages_max, "{end} positions are beyond what was claimed");
            self.filled += pages - claim.reached;
            claim.reached = pages;
        }
    }

    /// The first `computed` positions of `tokens`, its sequence so far, are in the cache of every stage.
    /// Gives the pages to keep, with their names.
    pub(super) fn keep(&mut self, claim: &mut Claim, tokens: &[u32], computed: u32) -> Vec<(u32, PageKey)> {
        let full = (computed / self.page_tokens) as usize;
        if full <= claim.settled {
            return Vec::new();
        }
        claim.need.chain.extend(tokens);
        let mut pages = Vec::new();
        for index in claim.settled..full {
            let Some(hash) = claim.need.chain.get(index) else { break };
            self.coming.remove(&hash);
            claim.settled = index + 1;
            // Two sequences may have computed the same at the same time: the second keeps its page for
            // itself.
            // What is computed with a suspect page is of no more worth than that.
            let is_suspect = claim.used.iter().any(|key| self.kept.is_suspect(*key));
            if !is_suspect && self.kept.find(hash).is_none() {
                let key = self.kept.add(hash, claim.need.chain.before(index));
                self.promised -= 1;
                self.filled -= 1;
                claim.used.push(key);
                pages.push((index as u32, key));
            }
        }
        pages
    }

    /// Up to position `end` the stages that lacked them have computed the pages that it began with. Gives
    /// those to be kept there, with their names.
    pub(super) fn rebuilt(&mut self, claim: &mut Claim, end: u32) -> Vec<(u32, PageKey)> {
        let full = ((end / self.page_tokens) as usize).min(claim.begun_with);
        let mut pages = Vec::new();
        for index in claim.complete..full {
            if let Some(hash) = claim.need.chain.get(index) {
                self.coming.remove(&hash);
            }
            self.lacking.remove(&claim.used[index]);
            claim.complete = index + 1;
            pages.push((index as u32, claim.used[index]));
        }
        pages
    }

    /// Some stages lack all that is kept.
    pub(super) fn lack_all(&mut self) {
        self.lacking = self.kept.idle_keys(usize::MAX).into_iter().collect();
    }

    /// Its sequence failed on its device: none of its pages is found any more.
    pub(super) fn suspect(&mut self, claim: &Claim) {
        self.kept.suspect(&claim.used);
    }

    /// Takes everything back; kept pages stay.
    pub(super) fn release(&mut self, claim: &Claim) {
        self.promised -= claim.own_promised();
        self.filled -= claim.own_filled();
        for hash in claim.coming() {
            self.coming.remove(&hash);
        }
        for &key in claim.used.iter().rev() {
            self.kept.release(key);
        }
    }

    /// Names of the pages that are kept when a term ends and no sequence runs, so many at most. Others are
    /// forgotten.
    pub(super) fn outlive_term(&mut self, count_max: usize) -> Vec<PageKey> {
        let keys = self.kept.idle_keys(count_max);
        self.retain(&keys);
        self.lacking.clear();
        keys
    }

    /// Forgets kept pages but these. Whether all that were kept are among them.
    pub(super) fn retain(&mut self, keys: &[PageKey]) -> bool {
        self.kept.retain(&keys.iter().copied().collect())
    }

    /// Keeps pages that a scheduler elsewhere named, as many as there are pages.
    pub(super) fn adopt(&mut self, keys: &[PageKey]) {
        self.kept.adopt(keys.iter().copied().take(self.total as usize));
    }

    /// Names of kept pages that must go before the next step: so that all filled pages have room, and those
    /// that nobody finds again, since a scheduler elsewhere may adopt what the stages keep.
    pub(super) fn evict(&mut self) -> Vec<PageKey> {
        let mut gone = Vec::new();
        while (self.filled + self.kept.len() > self.total || self.kept.has_idle_suspect())
            && let Some(key) = self.kept.evict()
        {
            self.lacking.remove(&key);
            gone.push(key);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::placement;

    const PAGE: u32 = 4;

    /// A sequence as the scheduler moves it.
    struct Seq {
        principal: u8,
        tokens: Vec<u32>,
        claim: Claim,
        opened: bool,
        sent: u32,
        max: u32,
    }

    /// What every stage holds, from the commands alone: who filled each kept page, and with what.
    #[derive(Default)]
    struct Stage {
        kept: std::collections::BTreeMap<PageKey, (u8, Vec<u32>)>,
    }

    fn need(pages: &Pages, principal: u8, tokens: &[u32], max: u32) -> Need {
        pages.need(&placement(1, 1, &[1]), Principal([principal; 16]), tokens, max)
    }

    /// Checks the page counts against what is running.
    fn check(pages: &Pages, running: &[Seq], stage: &Stage) -> Result<(), TestCaseError> {
        let private =
            |s: &Seq| pages.needed(s.sent) - s.claim.used.len().min(pages.needed(s.sent) as usize) as u32;
        let filled: u32 = running.iter().filter(|s| s.opened).map(private).sum();
        prop_assert_eq!(pages.filled, filled);
        prop_assert!(pages.claimed() <= pages.total, "{} of {}", pages.claimed(), pages.total);
        prop_assert!(pages.filled <= pages.promised);
        prop_assert_eq!(pages.kept.len() as usize, stage.kept.len());
        let in_use: BTreeSet<PageKey> = running.iter().flat_map(|s| s.claim.used.iter().copied()).collect();
        prop_assert_eq!(pages.kept.len() - pages.kept.idle_len(), in_use.len() as u32);
        prop_assert!(in_use.iter().all(|key| stage.kept.contains_key(key)), "a page in use was forgotten");
        Ok(())
    }

    /// Sends the next part of a sequence: opens it, computes, keeps. Checks what it begins with.
    fn step(pages: &mut Pages, s: &mut Seq, stage: &mut Stage, count: u32) -> Result<(), TestCaseError> {
        if !s.opened {
            pages.find_more(&mut s.claim);
            if pages.is_coming(&s.claim) {
                return Ok(());
            }
            pages.open(&mut s.claim);
            s.opened = true;
            s.sent = s.claim.cached_tokens();
            prop_assert!((s.sent as usize) < s.tokens.len(), "the last token is computed");
            let begun: Vec<u32> = s.claim.cached().iter().flat_map(|k| stage.kept[k].1.clone()).collect();
            prop_assert_eq!(&begun, &s.tokens[..s.sent as usize], "it begins with its own tokens");
            prop_assert!(s.claim.cached().iter().all(|k| stage.kept[k].0 == s.principal));
        }
        s.sent = (s.sent + count).min(s.max);
        while (s.tokens.len() as u32) < s.sent {
            s.tokens.push(s.tokens.len() as u32 % 3);
        }
        pages.reach(&mut s.claim, s.sent);
        for key in pages.evict() {
            prop_assert!(stage.kept.remove(&key).is_some(), "{} is forgotten once", key);
        }
        prop_assert!(pages.filled + pages.kept.len() <= pages.total, "every filled page has room");
        for (index, key) in pages.keep(&mut s.claim, &s.tokens, s.sent) {
            let page = s.tokens.chunks(PAGE as usize).nth(index as usize).unwrap().to_vec();
            prop_assert!(stage.kept.insert(key, (s.principal, page)).is_none(), "a name is used once");
        }
        Ok(())
    }

    proptest! {
        /// Whatever joins, grows and leaves: counts agree with what is running, no page is both in use and
        /// forgotten, there is room at every step, and a sequence begins with its own principal's pages of
        /// its own tokens.
        #[test]
        fn pages_are_counted_once_and_shared_by_content_and_principal(
            total in 4u32..24,
            moves in proptest::collection::vec((0u8..4, 0u8..2, 1u32..14, 0usize..8), 1..120),
        ) {
            let (mut pages, mut stage) = (Pages::new(total, PAGE), Stage::default());
            let mut running: Vec<Seq> = Vec::new();
            for (what, principal, n, which) in moves {
                match what {
                    0 => {
                        // Few different prompts, so that they meet.
                        let tokens: Vec<u32> = (0..n + 4).map(|t| t % 3 * (which as u32 % 2 + 1)).collect();
                        let max = tokens.len() as u32 + n;
                        let need = need(&pages, principal, &tokens, max);
                        if pages.can_claim(&need) {
                            let claim = pages.claim(need);
                            running.push(Seq { principal, tokens, claim, opened: false, sent: 0, max });
                        }
                    }
                    1 if !running.is_empty() => {
                        let gone = running.swap_remove(which % running.len());
                        pages.release(&gone.claim);
                    }
                    _ if !running.is_empty() => {
                        let index = which % running.len();
                        step(&mut pages, &mut running[index], &mut stage, n)?;
                    }
                    _ => {}
                }
                check(&pages, &running, &stage)?;
            }
            for gone in running.drain(..) {
                pages.release(&gone.claim);
            }
            prop_assert_eq!((pages.promised, pages.filled, pages.used()), (0, 0, 0));
            prop_assert!(pages.coming.is_empty(), "nothing is waited for that nobody computes");
        }
    }

    /// Fills a sequence of `tokens` to its end, keeps its pages and releases it.
    fn run(pages: &mut Pages, principal: u8, tokens: &[u32]) -> u32 {
        let need = need(pages, principal, tokens, tokens.len() as u32);
        assert!(pages.can_claim(&need));
        let mut claim = pages.claim(need);
        pages.open(&mut claim);
        pages.reach(&mut claim, tokens.len() as u32);
        pages.evict();
        pages.keep(&mut claim, tokens, tokens.len() as u32);
        pages.release(&claim);
        claim.cached_tokens()
    }

    #[test]
    fn the_longest_kept_prefix_is_begun_with_but_never_the_last_token() {
        let mut pages = Pages::new(16, PAGE);
        let text: Vec<u32> = (0..12).collect();
        assert_eq!(run(&mut pages, 1, &text), 0);
        assert_eq!(pages.cached(), 3);
        assert_eq!(run(&mut pages, 1, &text), 8, "the last token is in the third page");
        assert_eq!(run(&mut pages, 1, &[&text[..], &[99]].concat()), 12);
        assert_eq!(run(&mut pages, 1, &[&text[..6], &[99; 6]].concat()), 4, "they part in the second page");
        assert_eq!(run(&mut pages, 2, &text), 0, "another principal");
    }

    #[test]
    fn the_least_recently_used_goes_first_and_ends_before_beginnings() {
        let mut pages = Pages::new(6, PAGE);
        let (a, b): (Vec<u32>, Vec<u32>) = ((0..8).collect(), (100..108).collect());
        run(&mut pages, 1, &a);
        run(&mut pages, 1, &b);
        run(&mut pages, 1, &[&a[..], &[7]].concat()); // a is younger than b now
        assert_eq!(pages.cached(), 4);
        run(&mut pages, 1, &[55; 12]); // three pages: one of the four must go
        assert_eq!(pages.cached(), 6);
        let begins_with = |pages: &mut Pages, tokens: &[u32]| {
            let need = need(pages, 1, &[tokens, &[7]].concat(), 9);
            let claim = pages.claim(need);
            pages.release(&claim);
            claim.cached_tokens()
        };
        assert_eq!(begins_with(&mut pages, &b), 4, "the end of b went");
        assert_eq!(begins_with(&mut pages, &a), 8, "nothing of a");
    }

    #[test]
    fn nobody_begins_with_pages_of_a_sequence_that_failed_on_its_device() {
        let mut pages = Pages::new(8, PAGE);
        let text: Vec<u32> = (0..12).collect();
        run(&mut pages, 1, &text);
        run(&mut pages, 1, &[50; 8]);
        let need = need(&pages, 1, &text, 12);
        let claim = pages.claim(need);
        assert_eq!(claim.cached_tokens(), 8);
        // One that runs on keeps nothing more.
        let mut other = pages.claim(self::need(&pages, 1, &[&text[..], &[1, 2, 3, 4, 5]].concat(), 17));
        pages.suspect(&claim);
        pages.release(&claim);
        pages.open(&mut other);
        pages.reach(&mut other, 17);
        assert!(pages.keep(&mut other, &[&text[..], &[1, 2, 3, 4, 5]].concat(), 17).is_empty());
        pages.release(&other);
        assert_eq!(run(&mut pages, 1, &text), 0, "all of it is computed anew");
        assert_eq!(pages.cached(), 2 + 3, "what failed went with the next step");
        assert_eq!(run(&mut pages, 1, &[&text[..], &[99]].concat()), 12, "what was computed anew is kept");
        run(&mut pages, 2, &[7; 12]);
        assert_eq!(pages.cached(), 8);
        assert_eq!(run(&mut pages, 1, &[50; 8]), 4, "nothing else went");
    }

    #[test]
    fn adopted_pages_are_found_by_name_and_none_that_may_have_been_computed_behind_a_suspect_one() {
        let (mut before, text) = (Pages::new(8, PAGE), (0..12).collect::<Vec<u32>>());
        run(&mut before, 1, &text);
        let names = before.outlive_term(9);
        let mut pages = Pages::new(8, PAGE);
        pages.adopt(&names);
        assert_eq!((pages.cached(), run(&mut pages, 2, &text)), (3, 0), "another principal's");
        let claim = pages.claim(need(&pages, 1, &text, 12));
        assert_eq!(claim.cached_tokens(), 8);
        pages.suspect(&claim);
        pages.release(&claim);
        assert_eq!(run(&mut pages, 1, &text), 0);
        let claim = pages.claim(need(&pages, 1, &[&text[..], &[99]].concat(), 13));
        assert_eq!(claim.cached_tokens(), 12);
        assert!(!claim.cached().iter().any(|key| names.contains(key)), "computed anew");
    }

    #[test]
    fn pages_that_a_stage_lacks_are_rebuilt_once_and_then_begun_with_like_others() {
        let mut pages = Pages::new(16, PAGE);
        let text: Vec<u32> = (0..13).collect();
        run(&mut pages, 1, &text);
        pages.lack_all();
        let mut claims = [1, 2].map(|_| pages.claim(need(&pages, 1, &text, 13)));
        let [first, second] = &mut claims;
        assert_eq!((first.cached_tokens(), first.complete_tokens()), (12, 0));
        pages.open(first);
        pages.find_more(second);
        assert!(pages.is_coming(second), "it waits for what the first has rebuilt");
        let names = pages.rebuilt(first, 8);
        assert_eq!(names, [(0, first.used[0]), (1, first.used[1])]);
        pages.find_more(second);
        assert_eq!((second.complete_tokens(), pages.is_coming(second)), (8, true));
        pages.release(first); // given up
        pages.find_more(second);
        assert!(!pages.is_coming(second));
        pages.open(second);
        assert_eq!(pages.rebuilt(second, 12).len(), 1);
        pages.release(second);
        let claim = pages.claim(need(&pages, 1, &text, 13));
        assert_eq!((claim.cached_tokens(), claim.complete_tokens()), (12, 12));
        pages.release(&claim);
        assert!(pages.coming.is_empty() && pages.lacking.is_empty());
    }

    #[test]
    fn a_claim_evicts_nothing_until_it_is_filled() {
        let mut pages = Pages::new(4, PAGE);
        run(&mut pages, 1, &[1; 16]);
        assert_eq!(pages.cached(), 4);
        let need = need(&pages, 1, &[2, 3], 16);
        assert!(pages.can_claim(&need), "kept pages that nobody uses count as free");
        let mut claim = pages.claim(need);
        assert_eq!((pages.cached(), pages.evict().len()), (4, 0));
        pages.open(&mut claim);
        pages.reach(&mut claim, 2);
        assert_eq!((pages.evict().len(), pages.cached()), (1, 3));
        pages.reach(&mut claim, 16);
        assert_eq!((pages.evict().len(), pages.cached()), (3, 0));
    }
}
