//! Full pages that outlive their sequences: found by hash, counted by user, forgotten when least recently
//! used.

use std::collections::{BTreeMap, BTreeSet};

use exo_types::PageKey;

use crate::page_chain::PageHash;

/// Which pages the stages keep.
#[derive(Clone, Debug, Default)]
pub(super) struct KeptPages {
    by_hash: BTreeMap<PageHash, PageKey>,
    pages: BTreeMap<PageKey, Page>,
    /// Those that a scheduler elsewhere named and that no sequence has begun with since: they are found by
    /// name.
    adopted: BTreeSet<PageKey>,
    /// Those no running sequence uses, by when that came about.
    idle: BTreeSet<(u64, PageKey)>,
    /// Grows with every page that falls idle.
    clock: u64,
    /// Grows with every page that is added: what was forgotten and is computed again has another name.
    serial: u64,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    /// Unknown of one that is only adopted.
    hash: Option<PageHash>,
    /// Of the page in front of it, which its keys and values were computed with.
    before: Option<PageHash>,
    /// Running sequences that began with it or filled it.
    users: u32,
    idle_since: u64,
    /// A sequence that used it failed on its device: nobody begins with it any more.
    is_suspect: bool,
}

impl KeptPages {
    /// The page with this content. One that is only adopted may have another, which stages would refuse.
    pub(super) fn find(&self, hash: PageHash) -> Option<PageKey> {
        let adopted = || self.adopted.range(hash.names()).next();
        self.by_hash.get(&hash).or_else(adopted).copied()
    }

    /// Keeps pages that a scheduler elsewhere named; there are no others yet.
    pub(super) fn adopt(&mut self, keys: impl Iterator<Item = PageKey>) {
        self.clock += 1;
        let idle_since = self.clock;
        for key in keys {
            let page = Page { hash: None, before: None, users: 0, idle_since, is_suspect: false };
            self.pages.insert(key, page);
            self.adopted.insert(key);
            self.idle.insert((idle_since, key));
        }
    }

    /// Whether no running sequence uses it.
    pub(super) fn is_idle(&self, key: PageKey) -> bool {
        self.pages.get(&key).is_some_and(|page| page.users == 0)
    }

    /// Whether one running sequence uses it and no other.
    pub(super) fn has_one_user(&self, key: PageKey) -> bool {
        self.pages.get(&key).is_some_and(|page| page.users == 1)
    }

    /// One more running sequence uses it, which found it by this content, behind a page of that one.
    pub(super) fn hold(&mut self, key: PageKey, hash: PageHash, before: Option<PageHash>) {
        let page = self.pages.get_mut(&key).expect("only pages that were found are held");
        if self.adopted.remove(&key) {
            (page.hash, page.before) = (Some(hash), before);
            self.by_hash.insert(hash, key);
        }
        if page.users == 0 {
            self.idle.remove(&(page.idle_since, key));
        }
        page.users += 1;
    }

    /// A sequence that used it has ended. Of a sequence's pages the last is released first: it is of no use
    /// without those before it, so it goes first.
    pub(super) fn release(&mut self, key: PageKey) {
        let page = self.pages.get_mut(&key).expect("only held pages are released");
        page.users -= 1;
        if page.users == 0 {
            self.clock += 1;
            // One that nobody finds again goes before all others.
            page.idle_since = if page.is_suspect { 0 } else { self.clock };
            self.idle.insert((page.idle_since, key));
        }
    }

    /// Keeps a page that a running sequence filled. No other page may have this content.
    pub(super) fn add(&mut self, hash: PageHash, before: Option<PageHash>) -> PageKey {
        self.serial = self.serial.wrapping_add(1);
        while self.pages.contains_key(&hash.name(self.serial)) {
            self.serial = self.serial.wrapping_add(1);
        }
        let key = hash.name(self.serial);
        self.pages.insert(key, Page { hash: Some(hash), before, users: 1, idle_since: 0, is_suspect: false });
        let before = self.by_hash.insert(hash, key);
        assert!(before.is_none(), "{key} has the content of another page");
        key
    }

    /// What a running sequence computed with these failed on its device: what they hold may be why, and
    /// whoever begins with them, or with what was computed behind them, would fail as well.
    pub(super) fn suspect(&mut self, keys: &[PageKey]) {
        let mut hashes: Vec<PageHash> = keys.iter().filter_map(|key| self.pages.get(key)?.hash).collect();
        while let Some(hash) = hashes.pop() {
            let Some(key) = self.by_hash.remove(&hash) else { continue };
            self.mark_suspect(key);
            let behind = self.pages.values().filter(|page| page.before == Some(hash));
            hashes.extend(behind.filter_map(|page| page.hash));
        }
        // What these were computed behind is not known.
        std::mem::take(&mut self.adopted).into_iter().for_each(|key| self.mark_suspect(key));
    }

    fn mark_suspect(&mut self, key: PageKey) {
        let Some(page) = self.pages.get_mut(&key) else { return };
        page.is_suspect = true;
        if page.users == 0 {
            self.idle.remove(&(page.idle_since, key));
            page.idle_since = 0;
            self.idle.insert((0, key));
        }
    }

    /// Whether the page that goes first is one that nobody finds again.
    pub(super) fn has_idle_suspect(&self) -> bool {
        self.idle.first().is_some_and(|&(_, key)| self.is_suspect(key))
    }

    /// Whether it is one of these.
    pub(super) fn is_suspect(&self, key: PageKey) -> bool {
        self.pages.get(&key).is_some_and(|page| page.is_suspect)
    }

    /// Forgets the page that has been idle for the longest.
    pub(super) fn evict(&mut self) -> Option<PageKey> {
        let (_, key) = self.idle.pop_first()?;
        let page = self.pages.remove(&key)?;
        self.adopted.remove(&key);
        if let Some(hash) = page.hash.filter(|_| !page.is_suspect) {
            self.by_hash.remove(&hash);
        }
        Some(key)
    }

    /// Forgets all but these, which no running sequence uses. Whether all of those that were kept are among
    /// them.
    pub(super) fn retain(&mut self, keys: &BTreeSet<PageKey>) -> bool {
        let before = self.pages.len();
        self.pages.retain(|key, page| page.users > 0 || keys.contains(key));
        self.by_hash.retain(|_, key| self.pages.contains_key(key));
        self.adopted.retain(|key| self.pages.contains_key(key));
        self.idle.retain(|(_, key)| self.pages.contains_key(key));
        self.pages.len() == before
    }

    /// Names of those no running sequence uses and a next one may, so many at most: the last that were used.
    pub(super) fn idle_keys(&self, count_max: usize) -> Vec<PageKey> {
        let is_good = |key: &PageKey| self.pages.get(key).is_some_and(|page| !page.is_suspect);
        self.idle.iter().rev().map(|&(_, key)| key).filter(is_good).take(count_max).collect()
    }

    /// Pages kept.
    pub(super) fn len(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Pages kept that no running sequence uses.
    pub(super) fn idle_len(&self) -> u32 {
        self.idle.len() as u32
    }
}
