//! Answers that outlive their readers: a page is closed or reloaded, and finds its answer again.
//!
//! A client asks for it with `exo-keep: true`, or with an id and a secret that it has drawn
//! (`exo-keep: ID.SECRET`). Then the events of the answer go into a bounded buffer of this node instead of to
//! a connection, and whoever shows the secret reads them, from the start or behind the last that it has had.
//! They are gone ten minutes after the end. The copy of the request in another member's memory lasts for a
//! minute of these, whether or not somebody has read the answer: this node may be lost behind the end as
//! well.
//!
//! Start reading at [`Outliving::keep`].

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use exo_stdx::Mutex;
use exo_types::{Principal, RequestId};
use futures_util::{Stream, stream};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::errors::ApiError;
use crate::resumed::{Positions, Resumed};

/// Answers at once. Beyond them those that ended longest ago go, and where all still run, one more ends with
/// its reader as usual.
const ANSWERS_MAX: usize = 16;
/// Of one principal: there is always place for another one.
const OF_ONE_MAX: usize = ANSWERS_MAX / 2;
/// Of one answer: some 15,000 tokens. Of a longer one its end is kept.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// All of them together take a fourth of what bodies may, at most.
const SHARE_OF_BODIES: usize = 4 * ANSWERS_MAX;
/// What an event takes beside its text.
const EVENT_BYTES: usize = 96;
/// After the end.
const KEPT_FOR: Duration = Duration::from_secs(600);
/// The copy on another member, after the end: as long as it lasts for who reads slowly.
const COPY_KEPT_FOR: Duration = Duration::from_secs(60);
/// Events that are handed to a connection at once.
const BATCH_BYTES: usize = 64 << 10;

/// The copy of a request on another member lasts until this is dropped.
pub type CopyHold = Box<dyn Send>;

/// The answers of one server that outlive their readers.
pub struct Outliving {
    answers: Mutex<Vec<Arc<OutlivingAnswer>>>,
    answer_bytes_max: usize,
}

/// One of them.
pub struct OutlivingAnswer {
    /// In whose words its readers hear what goes wrong.
    endpoint: Resumed,
    request: RequestId,
    /// What its client calls it, which has chosen that before it asked.
    alias: Option<RequestId>,
    principal: Principal,
    proof: [u8; 32],
    bytes_max: usize,
    state: Mutex<State>,
    /// The number of events so far.
    news: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    bytes: usize,
    /// The number of the next event.
    next: u64,
    /// Why there is nothing yet, where the node says so.
    waits_for: Option<String>,
    ended: Option<Instant>,
    /// Of a whole answer, until its copy is to end.
    copy: Option<CopyHold>,
}

struct Event {
    number: u64,
    text: Bytes,
    /// How far the answer is behind it, where its text says so.
    positions: Option<Positions>,
}

impl Outliving {
    /// None yet, on a server whose clients' bodies may take so much.
    pub fn new(bodies_bytes_max: usize) -> Self {
        let answer_bytes_max = ANSWER_BYTES_MAX.min(bodies_bytes_max / SHARE_OF_BODIES);
        Self { answers: Mutex::default(), answer_bytes_max }
    }

    /// Keeps the events of an answer; `None` if there are too many that still run, of this principal or of
    /// all.
    pub fn keep(
        &self,
        endpoint: Resumed,
        request: RequestId,
        alias: Option<RequestId>,
        principal: Principal,
        proof: [u8; 32],
    ) -> Option<Arc<OutlivingAnswer>> {
        let mut all = self.all();
        let of = |principal: Principal| all.iter().filter(|answer| answer.principal == principal).count();
        let is_full = all.len() >= ANSWERS_MAX;
        if of(principal) >= OF_ONE_MAX || is_full {
            // Who has most of them gives place first: oneself, where one has one's share.
            let has_share = of(principal) >= OF_ONE_MAX;
            let may_go = |answer: &&Arc<OutlivingAnswer>| !has_share || answer.principal == principal;
            let ended =
                all.iter().filter(may_go).filter_map(|answer| Some((answer, answer.state.lock().ended?)));
            let (oldest, _) = ended.min_by_key(|(answer, ended)| (Reverse(of(answer.principal)), *ended))?;
            let oldest = oldest.clone();
            all.retain(|answer| !Arc::ptr_eq(answer, &oldest));
            oldest.forget_events();
        }
        let answer = Arc::new(OutlivingAnswer {
            endpoint,
            request,
            alias,
            principal,
            proof,
            bytes_max: self.answer_bytes_max,
            state: Mutex::default(),
            news: watch::Sender::new(0),
        });
        all.push(answer.clone());
        Some(answer)
    }

    /// The answer to a request of this id or alias, for who has the secret of this hash.
    pub fn find(&self, name: RequestId, proof: &[u8; 32]) -> Option<Arc<OutlivingAnswer>> {
        let is_meant = |answer: &&Arc<OutlivingAnswer>| {
            // blake3's own comparison takes the same time wherever they differ.
            (answer.request == name || answer.alias == Some(name))
                && blake3::Hash::from(answer.proof) == blake3::Hash::from(*proof)
        };
        // The last of those that a client has called the same.
        self.all().iter().rfind(is_meant).cloned()
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<OutlivingAnswer>>> {
        let mut all = self.answers.lock();
        all.retain(|answer| {
            let ended = answer.state.lock().ended;
            let ended_for = ended.map_or(Duration::ZERO, |ended| ended.elapsed());
            if ended_for >= COPY_KEPT_FOR {
                answer.end_copy();
            }
            if ended_for >= KEPT_FOR {
                answer.forget_events();
            }
            ended_for < KEPT_FOR
        });
        all
    }

    /// Forgets an answer that has ended when its time is over, and its copy before that. Until then only the
    /// list holds it: one that makes place is gone at once.
    pub async fn forget_later(&self, answer: Arc<OutlivingAnswer>) {
        drop(answer);
        for time in [COPY_KEPT_FOR, KEPT_FOR.saturating_sub(COPY_KEPT_FOR)] {
            tokio::time::sleep(time).await;
            drop(self.all());
        }
    }
}

impl OutlivingAnswer {
    /// The endpoint that it was asked of.
    pub fn endpoint(&self) -> Resumed {
        self.endpoint
    }

    /// The request as the node knows it.
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// Keeps an event, and forgets the first ones of a long answer.
    pub fn push(&self, text: String, positions: Option<Positions>) {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.bytes += text.len() + EVENT_BYTES;
        state.events.push_back(Event { number, text: text.into(), positions });
        while state.bytes > self.bytes_max && state.events.len() > 1 {
            if let Some(first) = state.events.pop_front() {
                state.bytes -= first.text.len() + EVENT_BYTES;
            }
        }
        drop(state);
        self.news.send_modify(|events| *events += 1);
    }

    /// Sets the reason why nothing comes; readers are told with the next keep-alive.
    pub fn set_wait_reason(&self, reason: Option<&str>) {
        self.state.lock().waits_for = reason.map(str::to_owned);
    }

    /// Nothing comes any more.
    pub fn end(&self) {
        self.state.lock().ended = Some(Instant::now());
        self.news.send_modify(|events| *events += 1);
    }

    /// Lets the copy of its request on another member last for a while behind the end, which comes next.
    pub fn hold_copy(&self, copy: CopyHold) {
        self.state.lock().copy = Some(copy);
    }

    fn end_copy(&self) {
        let copy = self.state.lock().copy.take();
        drop(copy);
    }

    /// Frees what it takes, here and on another member: readers that are still at it, however slowly, hold
    /// the answer itself.
    fn forget_events(&self) {
        self.end_copy();
        let mut state = self.state.lock();
        (state.events, state.bytes) = (VecDeque::new(), 0);
    }

    /// The events behind these positions, and a sign of life while there are none.
    pub fn read(
        self: &Arc<Self>,
        after: &Positions,
        keep_alive_every: Duration,
    ) -> Result<impl Stream<Item = Bytes> + Send + 'static + use<>, ApiError> {
        let state = self.state.lock();
        let first = state.events.front().map_or(state.next, |event| event.number);
        let is_had = |event: &&Event| event.positions.as_ref().is_some_and(|at| after.reach(at));
        let had = state.events.iter().rev().find(is_had);
        let next = match had {
            Some(event) => event.number + 1,
            None if first == 0 => 0,
            None => {
                let message = "the answer is so long that what you ask for is not kept any more";
                return Err(ApiError::invalid(StatusCode::GONE, "too_far_behind", message));
            }
        };
        drop(state);
        let reader = Reader {
            answer: self.clone(),
            news: self.news.subscribe(),
            next,
            keep_alive_every,
            is_cut_off: false,
        };
        Ok(stream::unfold(reader, |mut reader| async move {
            let bytes = reader.next().await?;
            Some((bytes, reader))
        }))
    }
}

/// One connection that reads an answer.
struct Reader {
    answer: Arc<OutlivingAnswer>,
    news: watch::Receiver<u64>,
    next: u64,
    keep_alive_every: Duration,
    is_cut_off: bool,
}

impl Reader {
    async fn next(&mut self) -> Option<Bytes> {
        let silent = Instant::now() + self.keep_alive_every;
        while !self.is_cut_off {
            // Before the look, so that nothing that comes after it is missed.
            self.news.mark_unchanged();
            let (bytes, has_ended) = self.look();
            if !bytes.is_empty() {
                return Some(bytes);
            }
            if has_ended {
                return None;
            }
            tokio::select! {
                _ = self.news.changed() => {}
                () = tokio::time::sleep_until(silent) => {
                    let mut out = String::new();
                    self.answer.endpoint.keep_alive(self.answer.state.lock().waits_for.as_deref(), &mut out);
                    return Some(out.into());
                }
            }
        }
        None
    }

    /// What this reader has not had, and whether nothing follows.
    fn look(&mut self) -> (Bytes, bool) {
        let answer = self.answer.clone();
        let state = answer.state.lock();
        if state.events.front().map_or(state.next, |first| first.number) > self.next {
            self.is_cut_off = true;
            let message = match state.events.is_empty() {
                false => "the client did not take its answer; read it again from the last event that came",
                true => "the client did not take its answer, which is not kept any more; ask anew",
            };
            let error = ApiError::invalid(StatusCode::REQUEST_TIMEOUT, "slow_reader", message);
            let mut out = String::new();
            answer.endpoint.fail(&error, answer.request, &mut out);
            return (out.into(), true);
        }
        let (mut batch, next) = (BytesMut::new(), self.next);
        // Numbers have no gaps.
        let had = state.events.front().map_or(0, |first| next.saturating_sub(first.number));
        for event in state.events.iter().skip(usize::try_from(had).unwrap_or(usize::MAX)) {
            if !batch.is_empty() && batch.len() + event.text.len() > BATCH_BYTES {
                break;
            }
            batch.extend_from_slice(&event.text);
            self.next = event.number + 1;
        }
        (batch.freeze(), state.ended.is_some())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    const ID: RequestId = RequestId(7);
    const PROOF: [u8; 32] = [1; 32];
    const CHAT: Resumed = Resumed::Chat;

    fn at(text: &str) -> Positions {
        Positions::parse(text).expect("positions")
    }

    fn answer(events: u32) -> (Outliving, Arc<OutlivingAnswer>) {
        let all = Outliving::new(usize::MAX);
        let answer = all.keep(CHAT, ID, None, Principal::LOCAL, PROOF).expect("room");
        answer.push("start;".to_owned(), None);
        for n in 1..=events {
            answer.push(format!("{n};"), Some(at(&format!("0:{n}"))));
        }
        (all, answer)
    }

    async fn rest(answer: &Arc<OutlivingAnswer>, after: &str) -> String {
        let after = if after.is_empty() { Positions::default() } else { at(after) };
        let parts: Vec<Bytes> =
            answer.read(&after, Duration::from_secs(9)).expect("a stream").collect().await;
        String::from_utf8(parts.concat()).expect("text")
    }

    #[tokio::test]
    async fn a_reader_begins_at_the_start_or_behind_what_it_has_had() {
        let (all, answer) = answer(3);
        answer.push("usage;".to_owned(), None);
        answer.end();
        assert_eq!(rest(&answer, "").await, "start;1;2;3;usage;");
        assert_eq!(rest(&answer, "0:2").await, "3;usage;");
        assert_eq!(rest(&answer, "0:3").await, "usage;");
        assert_eq!(rest(&answer, "0:0").await, "start;1;2;3;usage;");
        assert!(all.find(ID, &PROOF).is_some() && all.find(ID, &[2; 32]).is_none());
        assert!(all.find(RequestId(8), &PROOF).is_none());
    }

    #[tokio::test]
    async fn a_reader_hears_why_nothing_comes_and_then_what_comes() {
        let (_all, answer) = answer(0);
        let mut stream =
            Box::pin(answer.read(&Positions::default(), Duration::from_millis(5)).expect("a stream"));
        assert_eq!(stream.next().await.expect("events"), "start;");
        answer.set_wait_reason(Some("loading 3 %"));
        assert_eq!(stream.next().await.expect("a sign of life"), ": loading 3 %\n");
        answer.push("1;".to_owned(), Some(at("0:1")));
        assert_eq!(stream.next().await.expect("an event"), "1;");
        answer.end();
        assert!(stream.next().await.is_none());
    }

    #[tokio::test]
    async fn of_a_long_answer_the_end_is_kept_and_who_is_too_far_behind_hears_it() {
        let (_all, answer) = answer(1);
        let mut slow =
            Box::pin(answer.read(&Positions::default(), Duration::from_secs(9)).expect("a stream"));
        for n in 2..=100 {
            answer.push("x".repeat(64 << 10), Some(at(&format!("0:{n}"))));
        }
        assert!(answer.state.lock().bytes <= ANSWER_BYTES_MAX);
        let told = slow.next().await.expect("an error");
        assert!(String::from_utf8_lossy(&told).contains("slow_reader"));
        assert!(slow.next().await.is_none());
        let error = answer.read(&at("0:5"), Duration::from_secs(9)).err().expect("too far behind");
        assert_eq!((error.status, error.code), (StatusCode::GONE, "too_far_behind"));
        answer.end();
        assert_eq!(rest(&answer, "0:99").await.len(), 64 << 10);
    }

    #[tokio::test]
    async fn readers_of_messages_hear_their_own_dialect() {
        let all = Outliving::new(usize::MAX);
        let answer = all.keep(Resumed::Messages, ID, None, Principal::LOCAL, PROOF).expect("room");
        answer.push("start;".to_owned(), None);
        let mut slow =
            Box::pin(answer.read(&Positions::default(), Duration::from_millis(5)).expect("a stream"));
        assert_eq!(slow.next().await.expect("events"), "start;");
        let alive = slow.next().await.expect("a sign of life");
        assert_eq!(alive, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
        for n in 1..=100 {
            answer.push("x".repeat(64 << 10), Some(at(&format!("0:{n}"))));
        }
        let told = slow.next().await.expect("an error");
        let told = String::from_utf8_lossy(&told);
        assert!(told.starts_with("event: error\ndata: {\"type\":\"error\","), "{told}");
        assert!(told.contains("slow_reader") && told.contains(&ID.to_string()), "{told}");
    }

    #[test]
    fn ended_answers_make_place_and_go_after_ten_minutes() {
        let all = Outliving::new(usize::MAX);
        let (anna, ben) = (Principal([1; 16]), Principal([2; 16]));
        let keep = |n: u128, principal| all.keep(CHAT, RequestId(n), None, principal, PROOF);
        let annas: Vec<_> = (0..8).map(|n| keep(n, anna).expect("room")).collect();
        assert!(keep(8, anna).is_none(), "she has her share, and all of it runs");
        let bens: Vec<_> = (10..18).map(|n| keep(n, ben).expect("room")).collect();
        assert!(keep(20, Principal([3; 16])).is_none(), "all still run");
        annas[3].end();
        bens[2].end();
        assert!(keep(8, anna).is_some(), "in the place of one of hers");
        assert!(all.find(RequestId(3), &PROOF).is_none() && all.find(RequestId(12), &PROOF).is_some());
        assert!(keep(20, Principal([3; 16])).is_some());
        assert!(all.find(RequestId(12), &PROOF).is_none());
        annas[4].state.lock().ended = Instant::now().checked_sub(KEPT_FOR);
        assert!(all.find(RequestId(4), &PROOF).is_none() && all.find(RequestId(5), &PROOF).is_some());
    }

    #[tokio::test]
    async fn an_answer_that_made_place_takes_no_memory() {
        let all = Outliving::new(usize::MAX);
        let keep = |n: u128| all.keep(CHAT, RequestId(n), None, Principal::LOCAL, PROOF).expect("room");
        let answers: Vec<_> = (0..OF_ONE_MAX as u128).map(keep).collect();
        let first = Arc::downgrade(&answers[0]);
        answers.iter().for_each(|answer| answer.end());
        let mut forgotten: Vec<_> =
            answers.into_iter().map(|answer| Box::pin(all.forget_later(answer))).collect();
        for forgotten in &mut forgotten {
            assert!(futures_util::poll!(forgotten).is_pending());
        }
        assert!(first.upgrade().is_some(), "it is kept for who comes back");
        keep(99);
        assert!(first.upgrade().is_none(), "and is gone when it makes place");
    }

    #[tokio::test]
    async fn an_answer_that_made_place_takes_no_memory_for_its_slow_readers_either() {
        let all = Outliving::new(usize::MAX);
        let keep = |n: u128| all.keep(CHAT, RequestId(n), None, Principal::LOCAL, PROOF).expect("room");
        let answers: Vec<_> = (0..OF_ONE_MAX as u128).map(keep).collect();
        let read = |answer: &Arc<OutlivingAnswer>| {
            Box::pin(answer.read(&Positions::default(), Duration::from_secs(9)).expect("a stream"))
        };
        (0..3).for_each(|_| answers[0].push("x".repeat(BATCH_BYTES), None));
        let (mut slow, mut done) = (read(&answers[0]), read(&answers[0]));
        assert_eq!(slow.next().await.expect("events").len(), BATCH_BYTES);
        for _ in 0..3 {
            assert_eq!(done.next().await.expect("events").len(), BATCH_BYTES);
        }
        answers.iter().for_each(|answer| answer.end());
        keep(99);
        assert!(answers[0].state.lock().events.is_empty() && answers[0].state.lock().bytes == 0);
        let told = slow.next().await.expect("an error");
        let told = String::from_utf8_lossy(&told);
        assert!(told.contains("slow_reader") && told.contains("not kept any more"), "{told}");
        assert!(slow.next().await.is_none());
        assert!(done.next().await.is_none(), "who has had all of it hears its end");
        // One whose time is over frees its memory as well.
        answers[1].push("x".to_owned(), None);
        answers[1].state.lock().ended = Instant::now().checked_sub(KEPT_FOR);
        drop(all.all());
        assert_eq!(answers[1].state.lock().bytes, 0);
    }

    #[test]
    fn the_copy_of_a_kept_answer_lasts_for_a_minute_behind_its_end_and_no_longer_than_the_answer() {
        let all = Outliving::new(usize::MAX);
        let keep = |n: u128| all.keep(CHAT, RequestId(n), None, Principal::LOCAL, PROOF).expect("room");
        let answers: Vec<_> = (0..OF_ONE_MAX as u128).map(keep).collect();
        let copies: Vec<Arc<()>> = answers.iter().map(|_| Arc::default()).collect();
        for (answer, copy) in answers.iter().zip(&copies) {
            answer.hold_copy(Box::new(copy.clone()));
            answer.end();
        }
        let is_held = |n: usize| Arc::strong_count(&copies[n]) == 2;
        let ended_before = |n: usize, time| answers[n].state.lock().ended = Instant::now().checked_sub(time);
        ended_before(1, COPY_KEPT_FOR / 2);
        ended_before(2, COPY_KEPT_FOR);
        drop(all.all());
        assert!(is_held(0) && is_held(1) && !is_held(2));
        assert!(all.find(RequestId(2), &PROOF).is_some(), "the node itself keeps it for longer");
        // One that makes place: the one that ended first.
        keep(99);
        assert!(all.find(RequestId(2), &PROOF).is_none() && is_held(1));
        keep(100);
        assert!(all.find(RequestId(1), &PROOF).is_none() && !is_held(1) && is_held(0));
    }

    #[test]
    fn a_small_machine_keeps_less_of_each() {
        let all = Outliving::new(32 << 20);
        let answer = all.keep(CHAT, ID, None, Principal::LOCAL, PROOF).expect("room");
        (0..100).for_each(|_| answer.push("x".repeat(64 << 10), None));
        assert!(answer.state.lock().bytes <= 512 << 10);
    }
}
