//! A Unix socket. Both sides ask the system who is at the other end.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use exo_server::LocalListener;
use tokio::net::{UnixListener, UnixStream};

/// Longest path of a socket that every system takes.
const PATH_BYTES_MAX: usize = 100;

/// Opens the socket in the data folder, or, if its path is too long for one, in the folder for temporary files. The node holds the
/// data folder's lock: what lies there was left by one that has ended.
pub fn open(data_dir: &Path) -> anyhow::Result<Option<(LocalListener, PathBuf)>> {
    let mut path = std::path::absolute(data_dir)?.join("api.sock");
    if path.as_os_str().len() > PATH_BYTES_MAX {
        let folder = blake3::hash(path.as_os_str().as_encoded_bytes()).to_hex();
        path = std::env::temp_dir().join(format!("exo-{:.16}.sock", folder.as_str()));
    }
    let open = || {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    let listener =
        open().with_context(|| format!("cannot open the channel for commands, {}", path.display()))?;
    Ok(Some((LocalListener(listener), path)))
}

/// Connects to a node of this user, or, for root, of anybody.
pub async fn connect(path: &Path) -> anyhow::Result<UnixStream> {
    let cannot = || format!("cannot connect to the node at {}", path.display());
    let socket = UnixStream::connect(path).await.with_context(cannot)?;
    let (server, own) = (socket.peer_cred().with_context(cannot)?.uid(), rustix::process::geteuid().as_raw());
    if server != own && own != 0 {
        bail!("{} belongs to user {server}, not to the one who runs this command", path.display());
    }
    Ok(socket)
}
