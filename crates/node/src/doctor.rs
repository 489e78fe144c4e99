//! What works on the machines of the cluster and what does not: this node's own checks, and those that other
//! members are asked for.
//!
//! The checks themselves need the settings, so whoever starts a node hands them down ([`Doctor::new`]). Here
//! they are kept from running twice at once, and every wait has a bound.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_api::{
    BoxFuture, CHECKS_MAX, CheckView, ClusterView, DoctorScope, DoctorView, NodeChecksView, NodeView,
    SilentNodeView,
};
use exo_transport::Endpoint;
use exo_types::printable;
use futures_util::StreamExt;
use tokio::sync::Mutex;

use crate::bulk::{Fetcher, MemberError};
use crate::member_checks::TEXT_CHARS_MAX;
use exo_accelerators::chain;

/// For the checks of one machine: asking each driver in a child takes the longest.
const LOOK_MAX: Duration = Duration::from_secs(25);
/// Whoever asks again so soon gets the same: a look starts processes.
const FRESH_MAX: Duration = Duration::from_secs(5);
/// For all members together. A look, the way there, and less than a client of the API waits.
const ANSWER_MAX: Duration = Duration::from_secs(35);
/// Members that are asked at once.
const ASKED_AT_ONCE: usize = 16;

/// The checks of this machine. A value like others: clones are the same.
#[derive(Clone, Default)]
pub struct Doctor(Option<Arc<DoctorInner>>);

struct DoctorInner {
    look: Box<dyn Fn() -> BoxFuture<'static, Vec<CheckView>> + Send + Sync>,
    /// The last look and when it was over. Held while one goes on.
    last: Mutex<Option<(Instant, Vec<CheckView>)>>,
}

/// A machine was not looked over.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    #[error("its node was started without checks")]
    NoChecks,
    #[error("its checks did not end within {} s", LOOK_MAX.as_secs())]
    Late,
}

impl fmt::Debug for Doctor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Doctor").field(&self.0.is_some()).finish()
    }
}

impl Doctor {
    /// Looks by calling `look`, whose future may be dropped at any time.
    pub fn new(look: impl Fn() -> BoxFuture<'static, Vec<CheckView>> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(DoctorInner { look: Box::new(look), last: Mutex::default() })))
    }

    /// Looks over this machine. Who asks while a look goes on waits for it and gets the same.
    pub async fn look(&self) -> Result<Vec<CheckView>, DoctorError> {
        self.look_within(LOOK_MAX).await
    }

    async fn look_within(&self, limit: Duration) -> Result<Vec<CheckView>, DoctorError> {
        let Some(inner) = &self.0 else { return Err(DoctorError::NoChecks) };
        let looked = async {
            let mut last = inner.last.lock().await;
            if let Some((at, checks)) = &*last
                && at.elapsed() < FRESH_MAX
            {
                return checks.clone();
            }
            let mut checks = (inner.look)().await;
            checks.truncate(CHECKS_MAX);
            *last = Some((Instant::now(), checks.clone()));
            checks
        };
        tokio::time::timeout(limit, looked).await.map_err(|_| DoctorError::Late)
    }
}

/// Has this node look over its machine, and every member that is reached unless only this one is asked.
pub async fn checks(own: &Doctor, endpoint: &Endpoint, view: &ClusterView, of: DoctorScope) -> DoctorView {
    let until = tokio::time::Instant::now() + ANSWER_MAX;
    let mut asks = Vec::new();
    for node in view.nodes.iter().filter(|node| node.is_self || of == DoctorScope::Cluster) {
        asks.push(async move {
            let told = match node.is_self {
                true => own.look().await.map_err(|error| error.to_string()),
                false => asked(endpoint, node, until).await.map_err(|error| chain(&error)),
            };
            (node, told)
        });
    }
    let answers: Vec<_> = futures_util::stream::iter(asks).buffered(ASKED_AT_ONCE).collect().await;
    let mut out = DoctorView::default();
    for (node, told) in answers {
        let (node, name) = (node.id.clone(), node.name.clone());
        match told {
            Ok(checks) => out.nodes.push(NodeChecksView { node, name, checks }),
            Err(reason) => {
                out.silent.push(SilentNodeView { node, name, reason: printable(&reason, TEXT_CHARS_MAX) });
            }
        }
    }
    out
}

async fn asked(
    endpoint: &Endpoint,
    node: &NodeView,
    until: tokio::time::Instant,
) -> Result<Vec<CheckView>, MemberError> {
    let answer = async { Ok(Fetcher::dial_member(endpoint, node).await?.checks().await?) };
    let late = |_| MemberError::Late { seconds: ANSWER_MAX.as_secs() };
    tokio::time::timeout_at(until, answer).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Looks that take so long, counted.
    fn doctor(takes: Duration) -> (Doctor, Arc<AtomicUsize>) {
        let looks = Arc::new(AtomicUsize::new(0));
        let counted = looks.clone();
        let doctor = Doctor::new(move || {
            let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
            Box::pin(async move {
                tokio::time::sleep(takes).await;
                vec![CheckView::ok("look", number.to_string())]
            })
        });
        (doctor, looks)
    }

    #[tokio::test]
    async fn who_asks_at_once_shares_one_look_and_one_that_hangs_is_given_up() {
        let (quick, looks) = doctor(Duration::from_millis(50));
        let (one, other) = tokio::join!(quick.look(), quick.look());
        assert_eq!(one.unwrap(), other.unwrap());
        assert_eq!(looks.load(Ordering::SeqCst), 1);
        let (slow, looks) = doctor(LOOK_MAX);
        for number in 1..3 {
            let given_up = slow.look_within(Duration::from_millis(50)).await;
            assert!(matches!(given_up, Err(DoctorError::Late)));
            assert_eq!(looks.load(Ordering::SeqCst), number, "one that was given up holds none up");
        }
        assert!(matches!(Doctor::default().look().await, Err(DoctorError::NoChecks)));
    }
}
