//! Bytes from a peer: the frame reader must end, never panic, and hand out nothing beyond its limit.
#![no_main]

use std::future::Future;
use std::io::Cursor;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use exo_transport::{FrameLimits, FrameReader};
use exo_trust::Entry;
use libfuzzer_sys::fuzz_target;

const LIMITS: FrameLimits = FrameLimits { payload_bytes_max: 4096 };

fuzz_target!(|bytes: &[u8]| {
    let _ = Entry::decode(bytes);
    let mut reader = FrameReader::over(Cursor::new(bytes.to_vec()), LIMITS);
    loop {
        // The bytes are all there, so one poll is the whole wait.
        let next = pin!(reader.next(None)).poll(&mut Context::from_waker(Waker::noop()));
        match next {
            Poll::Ready(Ok(frame)) => assert!(frame.payload.len() <= LIMITS.payload_bytes_max as usize),
            Poll::Ready(Err(_)) => break,
            Poll::Pending => panic!("waits for bytes that are there"),
        }
    }
});
