use std::io;

use socket2::{SockRef, Socket, TcpKeepalive};

use super::{ASK_AFTER, ASK_INTERVAL};

/// Has a peer that vanished without a reset noticed, while nothing is being sent. How often it is asked, the
/// system decides.
pub(crate) fn notice_silence(socket: &SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(ASK_AFTER).with_interval(ASK_INTERVAL))
}

/// Nothing is to be done: the option of that name would let two programs share the port.
pub(crate) fn share_port_with_the_past(_socket: &Socket) -> io::Result<()> {
    Ok(())
}
