//! What a full page holds, as a hash: over its tokens, everything before them, and on whose behalf.

use std::ops::RangeInclusive;

use exo_types::{PageKey, Placement, Principal};

/// Names that one content may have.
const NAMES: u64 = 1 << 20;

/// Two pages with the same hash hold the same keys and values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PageHash([u8; 32]);

impl PageHash {
    /// A name for a page of this content. Pages of other content have other names, whoever gives them: a
    /// stage may still keep some that the scheduler of an earlier placement named.
    pub(crate) fn name(self, serial: u64) -> PageKey {
        PageKey(self.names().start().0 + serial % NAMES)
    }

    /// All names for pages of this content. One of 2^44 other contents has the same.
    pub(crate) fn names(self) -> RangeInclusive<PageKey> {
        let content = self.0.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let first = content - content % NAMES;
        PageKey(first)..=PageKey(first + (NAMES - 1))
    }
}

/// Hashes of the full pages of one sequence. Each is keyed by the one before it, the first by what decides
/// the values: model, type of the cache and principal.
#[derive(Clone, Debug)]
pub(crate) struct PageChain {
    seed: PageHash,
    page_tokens: u32,
    hashes: Vec<PageHash>,
}

impl PageChain {
    /// The full pages of `tokens`.
    pub(crate) fn new(placement: &Placement, principal: Principal, page_tokens: u32, tokens: &[u32]) -> Self {
        let mut seed = blake3::Hasher::new_derive_key("exo kept pages, 2");
        seed.update(&placement.model.0);
        seed.update(placement.kv.to_string().as_bytes());
        seed.update(&page_tokens.to_le_bytes());
        seed.update(&principal.0);
        let seed = PageHash(*seed.finalize().as_bytes());
        let mut chain = Self { seed, page_tokens, hashes: Vec::new() };
        chain.extend(tokens);
        chain
    }

    /// Takes in the pages of `tokens`, the whole sequence, that are full by now.
    pub(crate) fn extend(&mut self, tokens: &[u32]) {
        let page_tokens = self.page_tokens as usize;
        let known = self.hashes.len() * page_tokens;
        for page in tokens.get(known..).unwrap_or_default().chunks_exact(page_tokens) {
            let before = self.hashes.last().unwrap_or(&self.seed);
            let bytes: Vec<u8> = page.iter().flat_map(|token| token.to_le_bytes()).collect();
            let hash = blake3::keyed_hash(&before.0, &bytes);
            self.hashes.push(PageHash(*hash.as_bytes()));
        }
    }

    /// Only the first pages count.
    pub(crate) fn truncate(&mut self, pages: usize) {
        self.hashes.truncate(pages);
    }

    /// The hash of page `index`, if it is full.
    pub(crate) fn get(&self, index: usize) -> Option<PageHash> {
        self.hashes.get(index).copied()
    }

    /// The hash of the page in front of page `index`.
    pub(crate) fn before(&self, index: usize) -> Option<PageHash> {
        self.get(index.checked_sub(1)?)
    }

    /// Tokens of a page.
    pub(crate) fn page_tokens(&self) -> u32 {
        self.page_tokens
    }

    /// Full pages.
    pub(crate) fn len(&self) -> usize {
        self.hashes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::placement;

    fn chain(principal: u8, number: u32, tokens: &[u32]) -> PageChain {
        PageChain::new(&placement(1, number, &[1]), Principal([principal; 16]), 2, tokens)
    }

    #[test]
    fn a_page_is_known_by_its_tokens_and_all_before_them() {
        let a = chain(1, 1, &[1, 2, 3, 4, 5]);
        assert_eq!(a.len(), 2, "the fifth token begins a page");
        let b = chain(1, 1, &[1, 2, 3, 4, 6]);
        assert_eq!(a.hashes, b.hashes);
        let c = chain(1, 1, &[9, 2, 3, 4]);
        assert!(a.hashes[0] != c.hashes[0] && a.hashes[1] != c.hashes[1], "the same tokens, behind others");
    }

    #[test]
    fn principals_share_nothing_and_placements_of_one_model_do() {
        let tokens = [1, 2];
        let own = chain(1, 1, &tokens).hashes[0];
        assert_ne!(own, chain(2, 1, &tokens).hashes[0]);
        assert_eq!(own, chain(1, 2, &tokens).hashes[0]);
        assert_ne!(own.name(1), own.name(2));
        assert!([0, 1, NAMES - 1, NAMES, u64::MAX].iter().all(|&n| own.names().contains(&own.name(n))));
        assert_ne!(own.name(1), chain(2, 1, &tokens).hashes[0].name(1));
    }

    #[test]
    fn a_chain_that_grows_is_the_chain_of_the_whole() {
        let mut grown = chain(1, 1, &[1, 2, 8, 9, 5]);
        grown.truncate(1);
        for len in 1..=7 {
            grown.extend(&[1, 2, 3, 4, 5, 6, 7][..len]);
        }
        assert_eq!(grown.hashes, chain(1, 1, &[1, 2, 3, 4, 5, 6, 7]).hashes);
    }
}
