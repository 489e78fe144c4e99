//! Both ends of the channel, on whatever system this is.

use std::time::Duration;

use exo_local_channel::{LocalListener, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const WAIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn many_commands_at_once_are_answered_each() {
    const COMMANDS: u8 = 50;
    let folder = tempfile::tempdir().unwrap();
    let (listener, path) = LocalListener::open(folder.path()).unwrap();
    let serving = tokio::spawn(async move {
        loop {
            let mut stream = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let byte = stream.read_u8().await.unwrap();
                stream.write_all(&[byte, byte]).await.unwrap();
                // A pipe that is closed loses what was not read.
                let _ = stream.read_u8().await;
            });
        }
    });
    let ask = |byte: u8| {
        let path = path.clone();
        tokio::spawn(async move {
            let mut stream = connect(&path).await.unwrap();
            stream.write_all(&[byte]).await.unwrap();
            let mut answer = [0; 2];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(answer, [byte, byte]);
        })
    };
    let asked: Vec<_> = (0..COMMANDS).map(ask).collect();
    for one in asked {
        tokio::time::timeout(WAIT, one).await.unwrap().unwrap();
    }
    serving.abort();
}

#[tokio::test]
async fn a_node_that_has_ended_leaves_no_channel_and_the_next_one_opens_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (first, path) = LocalListener::open(folder.path()).unwrap();
    drop(first);
    assert!(tokio::time::timeout(WAIT, connect(&path)).await.unwrap().is_err());
    let (second, path) = LocalListener::open(folder.path()).unwrap();
    let (accepted, connected) = tokio::join!(second.accept(), connect(&path));
    assert!(accepted.is_ok() && connected.is_ok());
}
