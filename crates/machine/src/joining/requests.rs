//! Strangers that asked while the window was shut, to be displayed. Keys cost nothing, so who makes many must
//! neither fill a person's terminal nor push off the list whom that person has seen on it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use exo_types::{NodeId, Time};

/// Requests shown at once.
const REQUESTS_MAX: usize = 16;
/// Of these, kept because a person was told of them.
const TOLD_MAX: usize = 8;
/// And how long.
const TOLD_LASTS: Duration = Duration::from_secs(600);
/// Who asks is shown for so long behind its last time. It asks again after 15 s while it runs.
const SHOWN_FOR: Duration = Duration::from_secs(60);
/// And for so long once it is said that it has a cluster by now: it would ask again before.
const MOVED_SHOWN_FOR: Duration = Duration::from_secs(20);
/// How long a stranger is not shown that a person has refused.
const REFUSED_LASTS: Duration = Duration::from_secs(3600);
/// Refused ones that are remembered: a person refuses each, so there are few.
const REFUSED_MAX: usize = 64;
/// Notices in a row.
const NOTICES: u32 = 4;
/// After them, one in so much time; none while lines say how many more asked.
const NOTICE_EVERY: Duration = Duration::from_secs(60);
/// From the first of whom no one was told to the line that says how many.
const SUMMARY_AFTER: Duration = Duration::from_secs(5);
/// Between two such lines.
const SUMMARY_EVERY: Duration = Duration::from_secs(60);

/// A stranger that asked to join while the window was shut.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// What it says it is called.
    pub name: String,
    /// Where it listens.
    pub listen: SocketAddr,
    /// What both sides showed when it last asked.
    pub words: String,
    last_asked: Time,
    /// When a person was told of it.
    told: Option<Time>,
    /// Whether it was alone in a new cluster of its own when it was last seen.
    was_fresh: bool,
    /// Since it last asked it was said in its name that it is so no more.
    has_moved: bool,
}

impl Request {
    /// Who wants to come in asks again before.
    fn until(&self) -> Time {
        self.last_asked + if self.has_moved { MOVED_SHOWN_FOR } else { SHOWN_FOR }
    }
}

#[cfg(test)]
impl Request {
    /// A request as the view may see it.
    pub(crate) fn new(name: &str, listen: SocketAddr) -> Self {
        let (name, words) = (name.to_owned(), "acorn actor album amber".to_owned());
        let (last_asked, told, was_fresh, has_moved) = (Time::ZERO, None, false, false);
        Self { name, listen, words, last_asked, told, was_fresh, has_moved }
    }
}

/// What is said of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestNotice {
    /// It was there before.
    Known,
    /// It is new, and a person is told.
    Told,
    /// It is new, and one of many.
    Counted,
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    all: BTreeMap<NodeId, Request>,
    /// Whom a person has refused, and when.
    refused: BTreeMap<NodeId, Time>,
    /// Notices given of the last few, before those that time has given back.
    notices: u32,
    notices_since: Time,
    /// Requests of which no one was told.
    unreported: u32,
    summary_at: Time,
}

impl Requests {
    pub(super) fn all(&self) -> &BTreeMap<NodeId, Request> {
        &self.all
    }

    pub(super) fn get(&self, node: NodeId) -> Option<&Request> {
        self.all.get(&node)
    }

    pub(super) fn remove(&mut self, node: NodeId) -> bool {
        self.all.remove(&node).is_some()
    }

    /// A person refuses it.
    pub(super) fn refuse(&mut self, now: Time, node: NodeId) {
        self.all.remove(&node);
        self.refused.retain(|_, at| now.since(*at) < REFUSED_LASTS);
        if self.refused.len() >= REFUSED_MAX {
            let oldest = self.refused.iter().min_by_key(|(_, at)| **at).map(|(node, _)| *node);
            if let Some(oldest) = oldest {
                tracing::trace!(peer = %oldest, max = REFUSED_MAX, "a refusal is forgotten before its hour");
                self.refused.remove(&oldest);
            }
        }
        self.refused.insert(node, now);
    }

    /// Whether a person has refused it within the hour.
    pub(super) fn is_refused(&self, now: Time, node: NodeId) -> bool {
        self.refused.get(&node).is_some_and(|at| now.since(*at) < REFUSED_LASTS)
    }

    /// A stranger asks.
    pub(super) fn asked(
        &mut self,
        now: Time,
        node: NodeId,
        name: &str,
        (listen, words): (SocketAddr, &str),
    ) -> RequestNotice {
        if let Some(request) = self.all.get_mut(&node) {
            (request.last_asked, request.words, request.has_moved) = (now, words.to_owned(), false);
            return RequestNotice::Known;
        }
        if self.all.len() >= REQUESTS_MAX {
            self.make_room(now);
        }
        let has_room = self.all.len() < REQUESTS_MAX;
        let is_told = has_room && self.may_tell(now);
        if has_room {
            let (name, words, told) = (name.to_owned(), words.to_owned(), is_told.then_some(now));
            let (last_asked, was_fresh, has_moved) = (now, false, false);
            let request = Request { name, listen, words, last_asked, told, was_fresh, has_moved };
            self.all.insert(node, request);
        } else {
            tracing::trace!(peer = %node, max = REQUESTS_MAX, "no room to show one more who asks to join");
        }
        if is_told {
            return RequestNotice::Told;
        }
        if self.unreported == 0 {
            self.summary_at = self.summary_at.max(now + SUMMARY_AFTER);
        }
        self.unreported = self.unreported.saturating_add(1);
        RequestNotice::Counted
    }

    /// A stranger is seen. One that was fresh and is so no more has a cluster by now, and goes when it does
    /// not ask again: anybody can say so in its name, and only who has its key can ask. Whether that is news.
    pub(super) fn seen(&mut self, node: NodeId, is_fresh: bool) -> bool {
        let Some(request) = self.all.get_mut(&node) else { return false };
        let was_fresh = std::mem::replace(&mut request.was_fresh, is_fresh);
        request.has_moved = !is_fresh && (was_fresh || request.has_moved);
        was_fresh && !is_fresh
    }

    /// Whether one more notice is none too many.
    fn may_tell(&mut self, now: Time) -> bool {
        let are_many = self.unreported > 0 || now < self.summary_at;
        if are_many {
            return false;
        }
        let given_back = now.since(self.notices_since).as_millis() / NOTICE_EVERY.as_millis();
        let used = self.notices.saturating_sub(u32::try_from(given_back).unwrap_or(u32::MAX));
        if used >= NOTICES {
            return false;
        }
        (self.notices, self.notices_since) = (used + 1, now);
        true
    }

    /// The oldest goes of those of which no one was told.
    fn make_room(&mut self, now: Time) {
        let mut told: Vec<(Time, NodeId)> =
            self.all.iter().filter_map(|(node, r)| Some((r.told?, *node))).collect();
        told.retain(|(at, _)| now.since(*at) < TOLD_LASTS);
        told.sort();
        told.truncate(TOLD_MAX);
        let is_kept = |node: &NodeId| told.iter().any(|(_, kept)| kept == node);
        let others = self.all.iter().filter(|(node, _)| !is_kept(node));
        let oldest = others.min_by_key(|(_, request)| request.last_asked).map(|(node, _)| *node);
        if let Some(oldest) = oldest {
            tracing::trace!(peer = %oldest, max = REQUESTS_MAX, "who asked to join makes room for who asks now");
            self.all.remove(&oldest);
        }
    }

    /// How many asked of whom no one was told, once that is to be said.
    pub(super) fn summary(&mut self, now: Time) -> Option<u32> {
        if self.unreported == 0 || now < self.summary_at {
            return None;
        }
        self.summary_at = now + SUMMARY_EVERY;
        Some(std::mem::take(&mut self.unreported))
    }

    /// Takes out who is a member by now, maybe by another's word, and who has not asked for long. Whether
    /// there was one.
    pub(super) fn forget(&mut self, now: Time, is_member: impl Fn(NodeId) -> bool) -> bool {
        let before = self.all.len();
        self.all.retain(|node, request| !is_member(*node) && now < request.until());
        self.all.len() < before
    }

    /// When something is to be said or forgotten.
    pub(super) fn deadline(&self) -> Option<Time> {
        let said = (self.unreported > 0).then_some(self.summary_at);
        self.all.values().map(Request::until).chain(said).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(requests: &mut Requests, now_s: u64, number: u32) -> RequestNotice {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_be_bytes());
        let listen = SocketAddr::from(([10, 0, 0, 1], 4000));
        requests.asked(Time::from_millis(1000 * now_s), NodeId(key), "name", (listen, "words"))
    }

    #[test]
    fn who_is_a_member_by_now_or_asks_no_more_is_not_shown() {
        let mut requests = Requests::default();
        asked(&mut requests, 0, 1);
        asked(&mut requests, 1, 2);
        let first = *requests.all().keys().next().unwrap();
        let at = |seconds: u64| Time::from_millis(1000 * seconds);
        assert!(!requests.forget(at(2), |_| false));
        assert!(requests.forget(at(3), |node| node == first));
        assert_eq!(requests.all().len(), 1);
        assert_eq!(requests.deadline(), Some(at(61)));
        asked(&mut requests, 60, 2);
        assert!(!requests.forget(at(61), |_| false), "it has asked again");
        assert!(requests.forget(at(120), |_| false) && requests.all().is_empty());
    }

    #[test]
    fn many_keys_make_one_line_a_minute_and_push_off_nobody_whom_a_person_was_told_of() {
        let mut requests = Requests::default();
        assert_eq!(asked(&mut requests, 0, 1), RequestNotice::Told);
        assert_eq!(asked(&mut requests, 1, 1), RequestNotice::Known);
        let (mut lines, mut counted, mut told) = (0, 0, 0);
        for second in 2..302 {
            for number in 0..50 {
                told += u32::from(
                    asked(&mut requests, second, 1000 * second as u32 + number) == RequestNotice::Told,
                );
            }
            if let Some(count) = requests.summary(Time::from_millis(1000 * second)) {
                (lines, counted) = (lines + 1, counted + count);
            }
        }
        assert!((4..=6).contains(&lines) && counted > 10_000, "{lines} lines for {counted}");
        assert_eq!(told, 3, "beside the first");
        assert!(
            requests.all().keys().any(|node| node.0[..4] == 1_u32.to_be_bytes()),
            "the first is still there"
        );
        assert_eq!(requests.all().len(), REQUESTS_MAX);
    }

    #[test]
    fn keys_that_ask_one_after_the_other_make_one_line_a_minute_as_well() {
        let (mut requests, mut told, mut lines) = (Requests::default(), 0, 0);
        for second in 0..600 {
            let is_told =
                second % 5 == 0 && asked(&mut requests, second, second as u32) == RequestNotice::Told;
            let is_summed_up = requests.summary(Time::from_millis(1000 * second)).is_some();
            (told, lines) = (told + u32::from(is_told), lines + u32::from(is_summed_up));
        }
        assert!(told == 4 && lines <= 10, "{told} notices and {lines} lines in ten minutes");
    }

    #[test]
    fn who_asks_when_nobody_else_does_is_told_of_at_once() {
        let mut requests = Requests::default();
        for number in 0..20 {
            assert_eq!(asked(&mut requests, 61 * u64::from(number), number), RequestNotice::Told, "{number}");
        }
        assert_eq!(requests.unreported, 0, "no line says how many more");
        // Behind a flood that is over, too.
        for number in 20..40 {
            asked(&mut requests, 2000, number);
        }
        assert!(requests.summary(Time::from_millis(2_005_000)).is_some());
        assert_eq!(asked(&mut requests, 2066, 40), RequestNotice::Told);
    }
}
