//! What sockets are told, which differs from system to system.

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux;
#[cfg(not(any(target_os = "linux", target_os = "android", windows)))]
mod plain;
#[cfg(windows)]
mod windows;

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use linux::{notice_silence, share_port_with_the_past};
#[cfg(not(any(target_os = "linux", target_os = "android", windows)))]
pub(crate) use plain::{notice_silence, share_port_with_the_past};
#[cfg(windows)]
pub(crate) use windows::{notice_silence, share_port_with_the_past};

use std::time::Duration;

/// A connection that is silent for so long is asked whether it is alive, and again after each interval.
const ASK_AFTER: Duration = Duration::from_secs(2);
const ASK_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_is_asked_for_signs_of_life() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = socket2::SockRef::from(&stream);
        assert!(!socket.keepalive().unwrap());
        notice_silence(&socket).unwrap();
        assert!(socket.keepalive().unwrap());
    }
}
