//! Waiting for a place in a stream's work, and results on their way to the host.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::RunError;

/// A place in the work of a stream: done when everything queued before it is. Cheap to clone.
#[derive(Clone)]
pub struct Event {
    /// The backend's own.
    pub fence: Arc<dyn Fence>,
}

/// What stands behind an event.
pub trait Fence: Any + Send + Sync {
    /// Whether the work before it is done. Never waits.
    fn is_done(&self) -> Result<bool, RunError>;

    /// Waits for it. A deadline that passes costs nothing but the wait.
    fn wait(&self, deadline: Duration) -> Result<(), RunError>;
}

impl Event {
    /// The event of a device whose work is done when a call returns.
    pub fn done() -> Self {
        Self { fence: Arc::new(Done) }
    }

    /// Whether the work before it is done. Never waits.
    pub fn is_done(&self) -> Result<bool, RunError> {
        self.fence.is_done()
    }

    /// Waits for the work before it. A deadline that passes costs nothing but the wait.
    pub fn wait(&self, deadline: Duration) -> Result<(), RunError> {
        self.fence.wait(deadline)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event(done: {:?})", self.is_done())
    }
}

struct Done;

impl Fence for Done {
    fn is_done(&self) -> Result<bool, RunError> {
        Ok(true)
    }

    fn wait(&self, _deadline: Duration) -> Result<(), RunError> {
        Ok(())
    }
}

/// Elements on their way to the host, as they were when the download was queued, and what kernels complained of since the one
/// queued before. Dropping it gives the elements up; complaints are told with the next that is waited for.
pub trait Download: Send {
    /// Waits for them and fills `into`. Panics unless it has as many elements as were asked for.
    fn finish(self: Box<Self>, into: &mut [f32], deadline: Duration) -> Result<(), RunError>;
}

/// A download that has arrived.
pub struct Arrived(pub Vec<f32>);

impl Download for Arrived {
    fn finish(self: Box<Self>, into: &mut [f32], _deadline: Duration) -> Result<(), RunError> {
        into.copy_from_slice(&self.0);
        Ok(())
    }
}
