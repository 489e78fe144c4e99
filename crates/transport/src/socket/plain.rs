use std::io;

use socket2::{SockRef, Socket, TcpKeepalive};

use super::{ASK_AFTER, ASK_INTERVAL};

const ASK_TIMES: u32 = 3;

/// Has a peer that vanished without a reset noticed after about five seconds, while nothing is being sent.
pub(crate) fn notice_silence(socket: &SockRef<'_>) -> io::Result<()> {
    let keepalive =
        TcpKeepalive::new().with_time(ASK_AFTER).with_interval(ASK_INTERVAL).with_retries(ASK_TIMES);
    socket.set_tcp_keepalive(&keepalive)
}

/// Lets a port be used again while connections of an earlier process are still being forgotten.
pub(crate) fn share_port_with_the_past(socket: &Socket) -> io::Result<()> {
    socket.set_reuse_address(true)
}
