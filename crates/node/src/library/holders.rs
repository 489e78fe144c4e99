//! Manifests and chunks from members that have a model: one holder after the other, in rounds. What was wrong
//! with one, a link that blinks or a disk that is busy, may have passed a moment later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_accelerators::chain;
use exo_machine::Holder;
use exo_store::{ChunkRef, Manifest, PartialModel};
use exo_transport::Endpoint;
use exo_types::{ModelId, NodeId};

use crate::bulk::{ChunkSource, FetchError, FetchProgress, Fetcher, RefusedChunks};
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

/// Those of some chunks that are not here: what one holder could not give, the next is asked for.
pub(super) async fn chunks(
    endpoint: &Endpoint,
    partial: &Arc<PartialModel>,
    chunks: &[ChunkRef],
    holders: &[Holder],
    progress: &mut (dyn FnMut(FetchProgress) + Send),
    received: Received<'_>,
) -> Result<(), LibraryError> {
    let mut rounds = Rounds::new(holders);
    loop {
        let round = rounds.begin().await;
        if round.is_empty() {
            return Err(rounds.error(partial.manifest().name.clone()));
        }
        for holder in round {
            let mut refused = RefusedChunks::default();
            let fetched = async {
                let missing: Vec<_> = chunks.iter().copied().filter(|c| !partial.has_chunk(*c)).collect();
                let mut fetcher = Fetcher::dial(endpoint, holder.node, &holder.addresses).await?;
                let fetched =
                    fetcher.chunks(partial, &missing, ChunkSource::Disk, &mut refused, progress).await;
                received(holder.node, fetcher.received());
                fetched
            };
            match fetched.await {
                // The next holder is asked for what this one did not give.
                Ok(()) => match refused.last() {
                    Some(error) => rounds.note(holder, error),
                    None => return Ok(()),
                },
                Err(error @ FetchError::Disk { .. }) => return Err(LibraryError::Kept(Box::new(error))),
                Err(error) => {
                    error.report();
                    rounds.note(holder, &error);
                }
            }
        }
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

    /// Whom to ask now, after a wait between two rounds. Nobody: it is given up.
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

    use exo_store::Store;

    use super::*;
    use crate::bulk::testing::FakeMember;
    use crate::bulk::{Ask, KIND_BYTES, KIND_REFUSED};

    /// What comes of the demo model from one holder that answers its first `busy` questions for chunks with
    /// an error, and then rightly, or with other bytes; and how often it was asked for one.
    async fn fetched(busy: u32, is_right: bool) -> (Result<(), LibraryError>, u32) {
        let folder = tempfile::tempdir().unwrap();
        let (from, _) = Store::open(&folder.path().join("from")).unwrap();
        let (to, _) = Store::open(&folder.path().join("to")).unwrap();
        let id = from.add_builtin("demo.gguf", crate::DEMO_MODEL).unwrap().id;
        let manifest = from.manifest(id).unwrap();
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
        let holders = [Holder { node: member.node, addresses: vec![member.address] }];
        assert_eq!(super::manifest(&member.own, id, &holders).await.unwrap().root(), id);
        let partial = to.prepare(&manifest).unwrap();
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
}
