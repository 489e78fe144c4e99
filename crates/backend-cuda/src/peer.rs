//! Copies from one card to another of the same machine.

use std::time::Duration;

use exo_backend::{Buffer, Device, RunError};

use crate::device::CudaDevice;
use crate::storage;
use crate::stream::{CudaStream, wait};

/// Which way a copy went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// One card read the other's memory.
    Peer,
    /// Through memory of the machine.
    Host,
}

/// Copies the first `len` elements of a buffer of one card to a buffer of another, and waits for it. Work on `from` must be done;
/// panics if the elements do not fit, or the buffers are not theirs.
pub fn copy_between(
    (source, from): (&CudaDevice, &Buffer),
    (target, to): (&CudaDevice, &Buffer),
    len: usize,
    deadline: Duration,
) -> Result<Route, RunError> {
    assert!(from.element == to.element, "{from:?} and {to:?} hold different elements");
    assert!(len <= from.len && len <= to.len, "{len} elements do not fit {from:?} and {to:?}");
    let (read, written) = (storage::buffer(from, source.shop.owner), storage::buffer(to, target.shop.owner));
    let context = &target.shop.context;
    let can_reach = context.reach(&source.shop.context).map_err(|error| context.lost_run(&error))?;
    if can_reach {
        let stream = CudaStream::new(&target.shop)?;
        let copied = stream.queue.copy_peer(&read.memory, &written.memory, 4 * len as u64);
        copied.map_err(|error| context.lost_run(&error))?;
        wait(context, &stream.queue, deadline)?;
        return Ok(Route::Peer);
    }
    let mut elements = vec![0.0; len];
    source.stream()?.download_f32(from, 0, &mut elements, deadline)?;
    let mut stream = target.stream()?;
    stream.upload_f32(to, 0, &elements)?;
    stream.synchronize(deadline)?;
    Ok(Route::Host)
}
