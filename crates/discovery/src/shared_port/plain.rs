use std::io;

use socket2::Socket;

/// Lets others bind the port of this socket too, before it is bound itself.
pub fn share(socket: &Socket) -> io::Result<()> {
    socket.set_reuse_address(true)
}
