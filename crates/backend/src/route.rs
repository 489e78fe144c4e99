//! Copies from a buffer of one device to a buffer of another.

use std::time::Duration;

use crate::{Buffer, Element, RunError, Stream};

/// Which way a copy went.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Route {
    /// Both buffers are one device's.
    OneDevice,
    /// From device to device, without a stop in the host's memory.
    PeerToPeer,
    /// Down to the host and up again.
    ThroughHost,
}

/// Where a copy starts or ends: a buffer and a stream of its device.
pub struct End<'a> {
    /// Of the buffer's device.
    pub stream: &'a mut dyn Stream,
    /// Of f32.
    pub buffer: &'a Buffer,
}

/// Copies the first `len` elements of `from` to `to`, directly where the pair of devices allows, and says which way they
/// went. Work queued later on either stream sees them. Panics if they do not fit.
pub fn copy_between(from: End<'_>, to: End<'_>, len: usize, deadline: Duration) -> Result<Route, RunError> {
    from.buffer.assert_fits(Element::F32, 0, len);
    to.buffer.assert_fits(Element::F32, 0, len);
    if from.buffer.storage.owner() == to.buffer.storage.owner() {
        // What the other stream has queued may still use the target.
        from.stream.after(&to.stream.event()?)?;
        from.stream.copy(from.buffer, to.buffer, len)?;
        to.stream.after(&from.stream.event()?)?;
        return Ok(Route::OneDevice);
    }
    // What the other stream has queued may still use the target.
    to.stream.synchronize(deadline)?;
    if from.stream.copy_to_peer(from.buffer, to.buffer, len)? {
        return Ok(Route::PeerToPeer);
    }
    let mut elements = vec![0.0; len];
    from.stream.download_f32(from.buffer, 0, &mut elements, deadline)?;
    to.stream.upload_f32(to.buffer, 0, &elements)?;
    Ok(Route::ThroughHost)
}
