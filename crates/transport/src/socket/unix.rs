use std::io;

use socket2::{SockRef, Socket, TcpKeepalive};

use super::{ASK_AFTER, ASK_INTERVAL};

const ASK_TIMES: u32 = 3;

/// Has a peer that vanished without a reset noticed after about five seconds; where the system can, also in
/// the middle of sending.
pub(crate) fn notice_silence(socket: &SockRef<'_>) -> io::Result<()> {
    let keepalive =
        TcpKeepalive::new().with_time(ASK_AFTER).with_interval(ASK_INTERVAL).with_retries(ASK_TIMES);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(Some(std::time::Duration::from_secs(5)))?;
    Ok(())
}

/// Lets a port be used again while connections of an earlier process are still being forgotten.
pub(crate) fn share_port_with_the_past(socket: &Socket) -> io::Result<()> {
    socket.set_reuse_address(true)
}
