//! Whether a model's files still are what they were when it was opened. That is asked for each request, and
//! no task waits for it: it would have one of the few threads on which the loop runs as well, and the disk
//! may be one that does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// For the system to say it, which takes microseconds where the disk answers.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Looks at the files of one model.
pub struct FileLooks {
    is_under_way: Arc<AtomicBool>,
    max: Duration,
}

impl Default for FileLooks {
    fn default() -> Self {
        Self::within(LOOK_MAX)
    }
}

impl FileLooks {
    fn within(max: Duration) -> Self {
        Self { is_under_way: Arc::default(), max }
    }

    /// What `check` finds, on a thread that may wait for the disk. Where that does not answer in time the
    /// files count as unchanged: what was read of them serves on. While a look is under way there is no other
    /// one, since each of them would keep a thread.
    pub async fn are_unchanged(&self, check: impl FnOnce() -> bool + Send + 'static) -> bool {
        if self.is_under_way.swap(true, Ordering::AcqRel) {
            return true;
        }
        let under_way = UnderWay(self.is_under_way.clone());
        let look = tokio::task::spawn_blocking(move || {
            let _under_way = under_way;
            check()
        });
        match tokio::time::timeout(self.max, look).await {
            Ok(looked) => looked.unwrap_or(false),
            Err(_) => {
                let waited_s = self.max.as_secs();
                tracing::warn!(
                    waited_s,
                    "the disk of a model's file does not answer; what was read of it serves on"
                );
                true
            }
        }
    }
}

/// Until this is dropped, by a panic too.
struct UnderWay(Arc<AtomicBool>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn a_disk_that_does_not_answer_holds_up_one_thread_and_no_request() {
        let looks = FileLooks::within(Duration::from_millis(20));
        let (answer, answered) = channel();
        let hung = looks.are_unchanged(move || answered.recv().unwrap());
        let in_time = tokio::time::timeout(Duration::from_secs(20), hung).await;
        assert_eq!(in_time, Ok(true), "what was read serves on");
        let another = looks.are_unchanged(|| panic!("each would take a thread"));
        assert!(another.await);
        answer.send(true).unwrap();
        while looks.is_under_way.load(Ordering::Acquire) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let looks = FileLooks::within(Duration::from_secs(20)); // a slow machine is no disk that hangs
        assert!(!looks.are_unchanged(|| false).await, "the file is another one");
        assert!(!looks.are_unchanged(|| panic!("a look that fails")).await);
        assert!(looks.are_unchanged(|| true).await, "neither is under way any more");
    }
}
