//! Gives out the fixed-size pages of the key-value cache and remembers on whose behalf each was last written.
//!
//! Pages are numbers; their memory is the device's. A page that goes from one principal to another is
//! reported as dirty, and the engine overwrites it before the new owner's first token. A full page may be
//! *kept* under a name: it outlives its sequence, and further sequences of its principal may hold it too.
//! Whoever holds a page counts; it is free when no one does.

use std::collections::{BTreeMap, BTreeSet};

use exo_types::{PageKey, Principal};

use crate::StepError;

/// A page as [`PagePool::take`] hands it out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TakenPage {
    /// Its number within the cache.
    pub page: u32,
    /// Whether another principal's keys and values are still in it.
    pub must_clear: bool,
}

/// Why a kept page is not handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// No page is kept under this name.
    Unknown,
    /// It holds another principal's keys and values.
    Foreign,
}

/// Which pages are free, who holds the others, and who wrote each last.
#[derive(Debug)]
pub(crate) struct PagePool {
    /// Free pages; the last one is given out next.
    free: Vec<u32>,
    /// Per page: its last owner since it was cleared.
    owner: Vec<Option<Principal>>,
    /// Per page: sequences that hold it, and one more while it is kept.
    holders: Vec<u32>,
    kept: BTreeMap<PageKey, u32>,
}

impl PagePool {
    /// A pool of `pages` clean, free pages.
    pub fn new(pages: u32) -> Self {
        Self {
            free: (0..pages).rev().collect(),
            owner: vec![None; pages as usize],
            holders: vec![0; pages as usize],
            kept: BTreeMap::new(),
        }
    }

    /// Pages that can be taken now.
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Pages kept under a name.
    pub fn kept_count(&self) -> usize {
        self.kept.len()
    }

    /// Whether `page` has one holder only, who may overwrite it.
    pub fn is_exclusive(&self, page: u32) -> bool {
        self.holders[page as usize] == 1
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
        self.holders[at] = 1;
        TakenPage { page, must_clear: self.owner[at].is_some_and(|o| o != principal) }
    }

    /// Records that `page` now holds `principal`'s data (and, if it was dirty, that it has been cleared).
    pub fn own(&mut self, page: u32, principal: Principal) {
        self.owner[page as usize] = Some(principal);
    }

    /// Takes one holder off each page; one that has none left is free. Its owner stays noted until somebody
    /// else needs it.
    pub fn give_back(&mut self, pages: impl IntoIterator<Item = u32>) {
        for page in pages {
            let holders = &mut self.holders[page as usize];
            assert!(*holders > 0, "page {page} was given back by nobody who held it");
            *holders -= 1;
            if *holders == 0 {
                self.free.push(page);
            }
        }
    }

    /// Whether a page is kept under this name.
    pub fn is_kept(&self, key: PageKey) -> bool {
        self.kept.contains_key(&key)
    }

    /// Keeps a held page under a new name.
    pub fn keep(&mut self, page: u32, key: PageKey) {
        assert!(self.holders[page as usize] > 0, "page {page} is kept, but nobody filled it");
        let before = self.kept.insert(key, page);
        assert!(before.is_none(), "{key} names two pages");
        self.holders[page as usize] += 1;
    }

    /// One more holder for each kept page, or for none.
    pub fn share(&mut self, keys: &[PageKey], principal: Principal) -> Result<Vec<u32>, (PageKey, Refused)> {
        let find = |key: &PageKey| {
            let page = *self.kept.get(key).ok_or((*key, Refused::Unknown))?;
            let is_own = self.owner[page as usize] == Some(principal);
            if is_own { Ok(page) } else { Err((*key, Refused::Foreign)) }
        };
        let pages: Vec<u32> = keys.iter().map(find).collect::<Result<_, _>>()?;
        for &page in &pages {
            self.holders[page as usize] += 1;
        }
        Ok(pages)
    }

    /// Keeps the page no longer; it is free once its sequences are closed. Says whether there was one.
    pub fn forget(&mut self, key: PageKey) -> bool {
        let page = self.kept.remove(&key);
        self.give_back(page);
        page.is_some()
    }

    /// Keeps no page any longer but these, as far as it keeps them.
    pub fn forget_all_but(&mut self, keys: &BTreeSet<PageKey>) {
        let (stay, gone) =
            std::mem::take(&mut self.kept).into_iter().partition(|(key, _)| keys.contains(key));
        self.kept = stay;
        self.give_back(BTreeMap::into_values(gone));
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
    #[should_panic(expected = "by nobody who held it")]
    fn giving_a_free_page_back_is_caught() {
        let mut pool = PagePool::new(1);
        pool.give_back([0]);
    }

    #[test]
    fn a_kept_page_outlives_its_sequence_and_is_shared_within_its_principal_only() {
        let (mut pool, key) = (PagePool::new(2), PageKey(7));
        let page = pool.take(1, who(1)).unwrap()[0].page;
        pool.own(page, who(1));
        pool.keep(page, key);
        pool.give_back([page]);
        assert_eq!((pool.free_count(), pool.kept_count()), (1, 1));
        assert_eq!(pool.share(&[key], who(2)), Err((key, Refused::Foreign)));
        assert_eq!(pool.share(&[key, PageKey(8)], who(1)), Err((PageKey(8), Refused::Unknown)));
        assert_eq!(pool.share(&[key], who(1)), Ok(vec![page]), "the refused one took nothing");
        assert!(!pool.is_exclusive(page), "it may not be overwritten");
        assert!(pool.forget(key) && !pool.forget(key));
        assert_eq!(pool.free_count(), 1, "a sequence still reads it");
        pool.give_back([page]);
        assert_eq!(pool.free_count(), 2);
    }

    /// The pool as a reader would write it: who holds which page, what is kept, whose data is where.
    #[derive(Default)]
    struct Naive {
        held: Vec<(u8, Vec<u32>)>,
        kept: BTreeMap<PageKey, u32>,
        data: BTreeMap<u32, u8>,
        keys: u64,
    }

    impl Naive {
        fn pages_in_use(&self) -> BTreeSet<u32> {
            let held = self.held.iter().flat_map(|(_, p)| p.iter().copied());
            held.chain(self.kept.values().copied()).collect()
        }

        fn close(&mut self, pool: &mut PagePool, which: usize) {
            if !self.held.is_empty() {
                let (_, gone) = self.held.swap_remove(which % self.held.len());
                pool.give_back(gone);
            }
        }

        fn take(&mut self, pool: &mut PagePool, principal: u8, count: usize) -> Result<(), TestCaseError> {
            let Ok(taken) = pool.take(count, who(principal)) else {
                prop_assert!(count > pool.free_count());
                return Ok(());
            };
            let in_use = self.pages_in_use();
            for t in &taken {
                prop_assert!(!in_use.contains(&t.page), "page {} is held already", t.page);
                let foreign = self.data.get(&t.page).is_some_and(|o| *o != principal);
                prop_assert_eq!(t.must_clear, foreign);
                pool.own(t.page, who(principal));
                self.data.insert(t.page, principal);
            }
            self.held.push((principal, taken.iter().map(|t| t.page).collect()));
            Ok(())
        }

        fn keep(&mut self, pool: &mut PagePool, which: usize) {
            let Some((_, pages)) = self.held.get(which % self.held.len().max(1)) else { return };
            let named: BTreeSet<u32> = self.kept.values().copied().collect();
            for &page in pages.iter().filter(|p| !named.contains(p)) {
                self.keys += 1;
                pool.keep(page, PageKey(self.keys));
                self.kept.insert(PageKey(self.keys), page);
            }
        }

        fn share(&mut self, pool: &mut PagePool, principal: u8, which: u64) -> Result<(), TestCaseError> {
            let key = PageKey(1 + which % self.keys.max(1));
            let page = self.kept.get(&key).filter(|page| self.data.get(page) == Some(&principal));
            match (pool.share(&[key], who(principal)), page) {
                (Ok(pages), Some(&page)) => {
                    prop_assert_eq!(&pages, &vec![page]);
                    self.held.push((principal, pages));
                }
                (Err(_), None) => {}
                (got, expected) => prop_assert!(false, "{:?} for {:?}", got, expected),
            }
            Ok(())
        }

        fn forget(&mut self, pool: &mut PagePool, which: u64) -> Result<(), TestCaseError> {
            let key = PageKey(1 + which % self.keys.max(1));
            prop_assert_eq!(pool.forget(key), self.kept.remove(&key).is_some());
            Ok(())
        }
    }

    proptest! {
        /// Against a naive model: a page is free or in use, never both and never lost; only its principal
        /// shares it; and a page that held another principal's data is always marked for clearing, one's own
        /// or a fresh page never.
        #[test]
        fn pages_are_free_or_in_use_and_never_leak_between_principals(
            pages in 1u32..24,
            moves in proptest::collection::vec((0u8..5, 0u8..3, 0usize..6), 0..120),
        ) {
            let (mut pool, mut naive) = (PagePool::new(pages), Naive::default());
            for (what, principal, n) in moves {
                match what {
                    0 => naive.close(&mut pool, n),
                    1 => naive.take(&mut pool, principal, n)?,
                    2 => naive.keep(&mut pool, n),
                    3 => naive.share(&mut pool, principal, n as u64)?,
                    _ => naive.forget(&mut pool, n as u64)?,
                }
                let in_use = naive.pages_in_use();
                prop_assert!(pool.free.iter().all(|page| !in_use.contains(page)));
                prop_assert_eq!(in_use.len() + pool.free_count(), pool.total());
                prop_assert_eq!(pool.kept_count(), naive.kept.len());
            }
        }
    }
}
