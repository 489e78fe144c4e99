use std::io;
use std::time::Duration;

use socket2::{SockRef, Socket, TcpKeepalive};

use super::{ASK_AFTER, ASK_INTERVAL};

const ASK_TIMES: u32 = 3;
/// Also in the middle of sending.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Has a peer that vanished without a reset noticed after about five seconds.
pub(crate) fn notice_silence(socket: &SockRef<'_>) -> io::Result<()> {
    let keepalive =
        TcpKeepalive::new().with_time(ASK_AFTER).with_interval(ASK_INTERVAL).with_retries(ASK_TIMES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(SILENCE_MAX))
}

/// Lets a port be used again while connections of an earlier process are still being forgotten.
pub(crate) fn share_port_with_the_past(socket: &Socket) -> io::Result<()> {
    socket.set_reuse_address(true)
}
