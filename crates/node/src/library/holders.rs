//! Manifests and chunks from members that have a model: a manifest from one holder after the other, chunks
//! from a few at once, in rounds. What was wrong with one, a link that blinks or a busy disk, may have
//! passed a moment later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_accelerators::chain;
use exo_machine::Holder;
use exo_store::{ChunkRef, Manifest, PartialModel};
use exo_transport::Endpoint;
use exo_types::{ModelId, NodeId};

use crate::bulk::{AskedOf, ChunkShare, FetchError, FetchProgress, Fetcher, Givers};
use crate::bulk::{ProgressSender, RefusedChunks, SharedChunks, progress_channel};
use crate::library_error::LibraryError;
use crate::obtain::Received;

/// How often a holder is asked at most.
const ROUNDS_MAX: u32 = 3;
/// Between the first two rounds; four times that before the third.
const ROUNDS_APART: Duration = Duration::from_millis(250);
/// From then on no round begins: whoever waits hears why, and a load is tried again by its worker.
const ROUNDS_WITHIN: Duration = Duration::from_secs(10);

/// The manifest of a model.
pub(super) async fn manifest(
    endpoint: &Endpoint,
    id: ModelId,
    holders: &[Holder],
) -> Result<Manifest, LibraryError> {
    let mut rounds = Rounds::new(holders);
    loop {
        let round = rounds.begin().await;
        if round.is_empty() {
            return Err(rounds.error(format!("model {id}")));
        }
        for holder in round {
            let fetched = async {
                let mut fetcher = Fetcher::dial(endpoint, holder.node, &holder.addresses).await?;
                fetcher.manifest(id).await
            };
            match fetched.await {
                Ok(manifest) => return Ok(manifest),
                Err(error) => {
                    error.report();
                    rounds.note(holder, &error);
                }
            }
        }
    }
}

/// Those of some chunks that are not here, from a few holders at once, the nearest first: what one holder
/// could not give, the others are asked for.
pub(super) async fn chunks(
    endpoint: &Endpoint,
    partial: &Arc<PartialModel>,
    chunks: &[ChunkRef],
    holders: &[Holder],
    progress: &mut (dyn FnMut(FetchProgress) + Send),
    received: Received<'_>,
) -> Result<(), LibraryError> {
    let (sender, receiver) = progress_channel(partial, missing(partial, chunks));
    let fetched = in_rounds(endpoint, partial, chunks, holders, &sender, received);
    receiver.until(fetched, progress).await
}

fn missing(partial: &PartialModel, chunks: &[ChunkRef]) -> Vec<ChunkRef> {
    chunks.iter().copied().filter(|chunk| !partial.has_chunk(*chunk)).collect()
}

/// Asks holders until all chunks are here, or none is left to be asked.
async fn in_rounds(
    endpoint: &Endpoint,
    partial: &Arc<PartialModel>,
    chunks: &[ChunkRef],
    holders: &[Holder],
    progress: &ProgressSender,
    received: Received<'_>,
) -> Result<(), LibraryError> {
    let mut rounds = Rounds::new(holders);
    while !missing(partial, chunks).is_empty() {
        let round = rounds.begin().await;
        if round.is_empty() {
            return Err(rounds.error(partial.manifest().name.clone()));
        }
        let mut sources: Vec<Source<'_>> =
            round.into_iter().map(|holder| Source { holder, refused: RefusedChunks::default() }).collect();
        loop {
            let shared = SharedChunks::new(&missing(partial, chunks));
            let asks: Vec<_> = sources
                .into_iter()
                .map(|source| source.take(endpoint, partial, shared.share(), progress, received))
                .collect();
            sources = Vec::new();
            let mut givers = Givers::new(&shared, asks);
            while let Some((source, taken)) = givers.next().await {
                match taken {
                    Ok(()) => sources.push(source),
                    Err(error @ FetchError::Disk { .. }) => return Err(LibraryError::Kept(Box::new(error))),
                    Err(error) => {
                        error.report();
                        rounds.note(source.holder, &error);
                    }
                }
            }
            if !shared.came_back() {
                break;
            }
        }
        // What they refuse now, they may give in the next round.
        for source in &sources {
            if let Some(error) = source.refused.last() {
                rounds.note(source.holder, error);
            }
        }
    }
    Ok(())
}

/// A holder that is asked in one round.
struct Source<'a> {
    holder: &'a Holder,
    refused: RefusedChunks,
}

impl Source<'_> {
    /// Fetches its share of what is missing, but for what it refused in this round.
    async fn take(
        mut self,
        endpoint: &Endpoint,
        partial: &Arc<PartialModel>,
        share: ChunkShare<'_>,
        progress: &ProgressSender,
        received: Received<'_>,
    ) -> (Self, Result<(), FetchError>) {
        if !share.offer(|chunk| !self.refused.has(chunk)) {
            return (self, Ok(()));
        }
        let dialled = tokio::select! {
            biased;
            () = share.over() => return (self, Ok(())),
            dialled = Fetcher::dial(endpoint, self.holder.node, &self.holder.addresses) => dialled,
        };
        let mut fetcher = match dialled {
            Ok(fetcher) => fetcher,
            Err(error) => return (self, Err(error)),
        };
        let note = &mut |chunk, error| self.refused.note(Instant::now(), chunk, error);
        let of = AskedOf::Model(partial.id());
        let taken = fetcher.chunks(partial, &share, of, note, progress).await;
        // What shares this node's line with others says nothing of the path.
        if share.is_alone() {
            received(self.holder.node, fetcher.received());
        }
        (self, taken)
    }
}

/// Who is asked, and what each said.
struct Rounds<'a> {
    began: Instant,
    count: u32,
    next: Vec<&'a Holder>,
    /// The last reason of each holder.
    reasons: Vec<(NodeId, String)>,
}

impl<'a> Rounds<'a> {
    fn new(holders: &'a [Holder]) -> Self {
        Self { began: Instant::now(), count: 0, next: holders.iter().collect(), reasons: Vec::new() }
    }

    /// Whom to ask now, after a wait between two rounds. No one: it is given up.
    async fn begin(&mut self) -> Vec<&'a Holder> {
        let is_over = self.count >= ROUNDS_MAX || self.began.elapsed() > ROUNDS_WITHIN;
        if self.next.is_empty() || is_over {
            return Vec::new();
        }
        if self.count > 0 {
            tokio::time::sleep(ROUNDS_APART * 4u32.pow(self.count - 1)).await;
        }
        self.count += 1;
        std::mem::take(&mut self.next)
    }

    /// Notes why a holder did not give what it was asked for. It is asked again, but for one that sends
    /// something else: that it believes to be right.
    fn note(&mut self, holder: &'a Holder, error: &FetchError) {
        let reason = chain(error);
        match self.reasons.iter_mut().find(|(node, _)| *node == holder.node) {
            Some((_, before)) => *before = reason,
            None => self.reasons.push((holder.node, reason)),
        }
        let may_pass =
            matches!(error, FetchError::Dial { .. } | FetchError::Broken { .. } | FetchError::Refused { .. });
        if may_pass {
            self.next.push(holder);
        }
    }

    fn error(self, model: String) -> LibraryError {
        if self.reasons.is_empty() {
            return LibraryError::NoHolder { model };
        }
        let reasons: Vec<String> = self.reasons.into_iter().map(|(_, reason)| reason).collect();
        let mut reasons = reasons.join("; ");
        if self.count > 1 {
            let seconds = self.began.elapsed().as_secs_f64();
            reasons.push_str(&format!(" (tried {} times within {seconds:.1} s)", self.count));
        }
        LibraryError::NotFetched { model, reasons }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use exo_stdx::Mutex;

    use super::*;
    use crate::bulk::testing::{FakeAnswer, FakeMember, KIND_SILENT, all_chunks, demo_and_copy};
    use crate::bulk::{Ask, KIND_BYTES, KIND_REFUSED};

    /// What comes of the demo model from one holder that answers its first `busy` questions for chunks with
    /// an error, and then rightly, or with other bytes; and how often it was asked for one.
    async fn fetched(busy: u32, is_right: bool) -> (Result<(), LibraryError>, u32) {
        let folder = tempfile::tempdir().unwrap();
        let (from, partial) = demo_and_copy(folder.path());
        let id = partial.id();
        let asked = Arc::new(AtomicU32::new(0));
        let counted = asked.clone();
        let member = FakeMember::start(move |ask| match ask {
            Ask::Manifest(id) => (KIND_BYTES, from.manifest(id).unwrap().to_bytes()),
            Ask::Chunk { .. } if counted.fetch_add(1, Ordering::SeqCst) < busy => {
                (KIND_REFUSED, b"busy".to_vec())
            }
            Ask::Chunk { model, chunk } => {
                let mut bytes = from.read_chunk(model, chunk).unwrap();
                bytes[0] ^= u8::from(!is_right);
                (KIND_BYTES, bytes)
            }
            _ => (KIND_REFUSED, b"no such question".to_vec()),
        });
        let member = member.await;
        let holders = [member.holder()];
        assert_eq!(super::manifest(&member.own, id, &holders).await.unwrap().root(), id);
        let wanted = [ChunkRef { file: 0, index: 10 }];
        let fetched = super::chunks(&member.own, &partial, &wanted, &holders, &mut |_| {}, &|_, _| {}).await;
        assert_eq!(fetched.is_ok(), partial.has_chunk(wanted[0]));
        (fetched, asked.load(Ordering::SeqCst))
    }

    #[tokio::test]
    async fn a_single_holder_that_fails_once_or_twice_is_asked_again() {
        for busy in [1, 2] {
            let (fetched, asked) = fetched(busy, true).await;
            fetched.unwrap();
            assert_eq!(asked, busy + 1);
        }
    }

    #[tokio::test]
    async fn one_that_goes_on_failing_is_given_up_and_the_error_says_how_often_it_was_asked() {
        let (fetched, asked) = fetched(u32::MAX, true).await;
        let error = fetched.unwrap_err().to_string();
        assert!(error.contains("refused: busy (tried 3 times within "), "{error}");
        assert_eq!(asked, ROUNDS_MAX);
    }

    #[tokio::test]
    async fn one_that_sends_something_else_is_asked_once() {
        let (fetched, asked) = fetched(0, false).await;
        let error = fetched.unwrap_err().to_string();
        assert!(error.contains("something else than asked for") && !error.contains("tried"), "{error}");
        assert_eq!(asked, 1);
    }

    fn right(bytes: Vec<u8>) -> (u8, Vec<u8>) {
        (KIND_BYTES, bytes)
    }

    /// Fetches the demo model from two holders that take a moment for each answer, of which the second makes
    /// something of its own of the bytes. Comes back with what each was asked for, in order of the chunks.
    async fn asked_of_two(second: fn(Vec<u8>) -> (u8, Vec<u8>)) -> [Vec<u32>; 2] {
        let folder = tempfile::tempdir().unwrap();
        let (from, partial) = demo_and_copy(folder.path());
        let (from, asked) = (Arc::new(from), Arc::new(Mutex::new([Vec::new(), Vec::new()])));
        let answer = |number: usize, send: fn(Vec<u8>) -> (u8, Vec<u8>)| -> FakeAnswer {
            let (from, asked) = (from.clone(), asked.clone());
            Box::new(move |ask| {
                let Ask::Chunk { model, chunk } = ask else { return (KIND_REFUSED, b"no chunk".to_vec()) };
                asked.lock()[number].push(chunk.index);
                send(from.read_chunk(model, chunk).unwrap())
            })
        };
        let answers = vec![answer(0, right), answer(1, second)];
        let members = FakeMember::start_all(answers, Duration::from_millis(5)).await;
        let holders: Vec<Holder> = members.iter().map(FakeMember::holder).collect();
        let all = all_chunks(&partial);
        let own = &members[0].own;
        super::chunks(own, &partial, &all, &holders, &mut |_| {}, &|_, _| {}).await.unwrap();
        assert!(all.iter().all(|chunk| partial.has_chunk(*chunk)));
        let mut asked = asked.lock().clone();
        asked.iter_mut().for_each(|of_one| of_one.sort_unstable());
        asked
    }

    fn all() -> Vec<u32> {
        (0..82).collect()
    }

    #[tokio::test]
    async fn two_holders_share_the_chunks_and_each_is_asked_of_one() {
        let asked = asked_of_two(right).await;
        assert!(asked.iter().all(|of_one| !of_one.is_empty()), "{asked:?}");
        let mut of_both = asked.concat();
        of_both.sort_unstable();
        assert_eq!(of_both, all());
    }

    #[tokio::test]
    async fn what_one_holder_sends_wrong_comes_from_the_other() {
        let [first, second] = asked_of_two(|mut bytes| {
            bytes[0] ^= 1;
            (KIND_BYTES, bytes)
        })
        .await;
        assert_eq!(first, all());
        assert!(!second.is_empty() && second.len() < 20, "{second:?}");
    }

    #[tokio::test]
    async fn a_holder_that_stalls_holds_the_other_up_for_seconds_and_loses_what_it_was_asked_for() {
        let begun = Instant::now();
        let [first, second] = asked_of_two(|bytes| (KIND_SILENT, bytes)).await;
        assert_eq!((first, second.len()), (all(), 1));
        assert!(begun.elapsed() < Duration::from_secs(20), "an answer may take 30 s");
    }
}
