//! Gives out the fixed-size pages of the key-value cache and remembers on whose behalf each was last written.
//!
//! Pages are numbers; their memory is the device's. A page that goes from one principal to another is reported
//! as dirty, and the engine overwrites it before the new owner's first token.

use exo_types::Principal;

use crate::StepError;

/// A page as [`PagePool::take`] hands it out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TakenPage {
    /// Its number within the cache.
    pub page: u32,
    /// Whether another principal's keys and values are still in it.
    pub must_clear: bool,
}

/// Which pages are free, and who wrote each last.
#[derive(Debug)]
pub(crate) struct PagePool {
    /// Free pages; the last one is given out next.
    free: Vec<u32>,
    /// Per page: its last owner since it was cleared.
    owner: Vec<Option<Principal>>,
    taken: Vec<bool>,
}

impl PagePool {
    /// A pool of `pages` clean, free pages.
    pub fn new(pages: u32) -> Self {
        Self {
            free: (0..pages).rev().collect(),
            owner: vec![None; pages as usize],
            taken: vec![false; pages as usize],
        }
    }

    /// Pages that can be taken now.
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Pages in all.
    pub fn total(&self) -> usize {
        self.owner.len()
    }

    /// Takes `count` pages for `principal`, or none at all.
    pub fn take(&mut self, count: usize, principal: Principal) -> Result<Vec<TakenPage>, StepError> {
        let Some(rest) = self.free.len().checked_sub(count) else {
            return Err(StepError::OutOfPages { needed: count, free: self.free.len() });
        };
        let pages = self.free.split_off(rest);
        Ok(pages.into_iter().rev().map(|page| self.hand_out(page, principal)).collect())
    }

    fn hand_out(&mut self, page: u32, principal: Principal) -> TakenPage {
        let at = page as usize;
        self.taken[at] = true;
        TakenPage { page, must_clear: self.owner[at].is_some_and(|o| o != principal) }
    }

    /// Records that `page` now holds `principal`'s data (and, if it was dirty, that it has been cleared).
    pub fn own(&mut self, page: u32, principal: Principal) {
        self.owner[page as usize] = Some(principal);
    }

    /// Returns pages to the pool. Their owner stays noted until somebody else needs them.
    pub fn give_back(&mut self, pages: impl IntoIterator<Item = u32>) {
        for page in pages {
            let was_taken = std::mem::replace(&mut self.taken[page as usize], false);
            assert!(was_taken, "page {page} was given back twice");
            self.free.push(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn who(n: u8) -> Principal {
        Principal([n; 16])
    }

    #[test]
    fn a_refused_request_takes_nothing() {
        let mut pool = PagePool::new(3);
        assert_eq!(pool.take(4, who(1)), Err(StepError::OutOfPages { needed: 4, free: 3 }));
        assert_eq!(pool.free_count(), 3);
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn giving_a_page_back_twice_is_caught() {
        let mut pool = PagePool::new(1);
        pool.give_back([0]);
    }

    proptest! {
        /// Against a naive model: no page has two holders, none is lost, and a page that held another
        /// principal's data is always marked for clearing, one's own or a fresh page never.
        #[test]
        fn pages_are_held_once_and_never_leak_between_principals(
            pages in 1u32..24,
            moves in proptest::collection::vec((0u8..3, 0usize..6, any::<bool>()), 0..80),
        ) {
            let mut pool = PagePool::new(pages);
            let mut held: Vec<(u8, Vec<u32>)> = Vec::new();
            let mut data: BTreeMap<u32, u8> = BTreeMap::new();
            for (principal, count, back) in moves {
                if back && !held.is_empty() {
                    let (_, gone) = held.swap_remove(count % held.len());
                    pool.give_back(gone);
                } else if let Ok(taken) = pool.take(count, who(principal)) {
                    for t in &taken {
                        let foreign = data.get(&t.page).is_some_and(|o| *o != principal);
                        prop_assert_eq!(t.must_clear, foreign);
                        pool.own(t.page, who(principal));
                        data.insert(t.page, principal);
                    }
                    held.push((principal, taken.iter().map(|t| t.page).collect()));
                } else {
                    prop_assert!(count > pool.free_count());
                }
                let in_use: Vec<u32> = held.iter().flat_map(|(_, p)| p.iter().copied()).collect();
                let distinct: BTreeSet<u32> = in_use.iter().copied().collect();
                prop_assert_eq!(distinct.len(), in_use.len());
                prop_assert_eq!(in_use.len() + pool.free_count(), pool.total());
            }
        }
    }
}
