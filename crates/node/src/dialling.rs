//! Dialling one node at all of its addresses: side by side, and the first that answers counts.

use std::net::SocketAddr;
use std::time::Duration;

use exo_machine::{ADDRESSES_APART, TRANSPORTS_APART};
use exo_stdx::Mutex;
use exo_transport::{Channel, DialError, Endpoint};
use exo_types::{NodeId, Transport};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

/// Dials each way so long after the one before, or as soon as one has failed (happy eyeballs, RFC 8305). The
/// first that answers, and the others are dropped, which closes them; or why the last one failed; `None`
/// without any.
pub async fn first_to_answer<W: Clone, T, E, F: Future<Output = Result<T, E>>>(
    apart: Duration,
    ways: &[W],
    dial: impl Fn(W) -> F,
) -> Option<Result<T, E>> {
    let (mut attempts, mut others, mut last) = (FuturesUnordered::new(), ways.iter(), None);
    loop {
        attempts.extend(others.next().cloned().map(&dial));
        let next_due = tokio::time::sleep(apart);
        tokio::select! {
            answer = attempts.next() => match answer {
                Some(Ok(found)) => return Some(Ok(found)),
                Some(failed) => last = Some(failed),
                None => return last,
            },
            () = next_due, if others.len() > 0 => {}
        }
    }
}

/// Opens a channel to a member over whichever way answers first, all of them together within `within`. The
/// ways over the better transport stand in front; those over the other one begin a moment later, or once all
/// of these have failed. Else why that failed which tells most: an address that no one answers at hides no
/// node that says why it refuses.
pub async fn dial(
    endpoint: &Endpoint,
    peer: NodeId,
    ways: &[(Transport, SocketAddr)],
    purpose: u8,
    within: Duration,
) -> Option<Result<Channel, DialError>> {
    let (_, addr) = *ways.first()?;
    let transports: Vec<_> = ways.chunk_by(|a, b| a.0 == b.0).map(<[_]>::to_vec).collect();
    let kept = Mutex::new(None);
    let why = &kept;
    let at = |(via, address)| async move {
        let dialled = endpoint.dial(peer, address, via, purpose, within).await;
        dialled.map_err(|error| keep(why, error))
    };
    let over = |ways: Vec<(Transport, SocketAddr)>| async move {
        first_to_answer(ADDRESSES_APART, &ways, at).await.expect("no part of a list is empty")
    };
    let first = tokio::time::timeout(within, first_to_answer(TRANSPORTS_APART, &transports, over)).await;
    match first {
        Ok(Some(Ok(channel))) => return Some(Ok(channel)),
        Ok(_) => {}
        Err(_) => keep(why, DialError::Timeout { addr, within }),
    }
    kept.into_inner().map(Err)
}

/// The last of those that tell most.
fn keep(why: &Mutex<Option<DialError>>, error: DialError) {
    let mut kept = why.lock();
    if kept.as_ref().is_none_or(|kept| tells(kept) <= tells(&error)) {
        *kept = Some(error);
    }
}

/// How much an error tells of why there is no channel: the node's own word most, silence least.
fn tells(error: &DialError) -> u8 {
    match error {
        DialError::Timeout { .. } => 0,
        DialError::NotMember { .. }
        | DialError::WrongPeer { .. }
        | DialError::Refused { .. }
        | DialError::Version { .. } => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use exo_transport::{Incoming, MemberSet, NodeKey, Options};
    use tokio::time::Instant;

    use super::*;

    /// Dials so many addresses: at the third one somebody answers, at `silent` no one, and the others refuse.
    async fn answered(count: u16, silent: u16) -> (Option<Result<u16, &'static str>>, Duration) {
        let (began, ports) = (Instant::now(), (1..=count).collect::<Vec<_>>());
        let dial = |port: u16| async move {
            match port {
                3 => Ok(port),
                _ if port == silent => {
                    tokio::time::sleep(Duration::from_secs(30)).await;
                    Err("nobody answered")
                }
                _ => Err("refused"),
            }
        };
        let answer = first_to_answer(ADDRESSES_APART, &ports, dial).await;
        (answer, began.elapsed())
    }

    #[tokio::test]
    async fn an_address_that_nobody_answers_at_costs_a_moment_and_one_that_is_refused_none() {
        for (silent, at_least) in [(1, ADDRESSES_APART), (0, Duration::ZERO)] {
            let (answer, took) = answered(3, silent).await;
            assert_eq!(answer, Some(Ok(3)));
            assert!(took >= at_least && took < at_least + Duration::from_secs(2), "{took:?}");
        }
        assert_eq!(answered(2, 0).await.0, Some(Err("refused")));
        assert_eq!(answered(0, 0).await.0, None);
    }

    async fn endpoint(key: &NodeKey, members: &MemberSet) -> Endpoint {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        Endpoint::bind(Options::new(listen, key.clone(), members.clone())).await.unwrap()
    }

    #[tokio::test]
    async fn a_member_is_reached_beside_silent_addresses_and_over_the_transport_that_gets_through() {
        let keys = [1, 2, 3].map(|seed| NodeKey::from_seed(&[seed; 32]));
        let members = MemberSet::new(keys.each_ref().map(NodeKey::node_id));
        let (one, other) = (endpoint(&keys[0], &members).await, endpoint(&keys[1], &members).await);
        let (peer, there) = (other.node(), other.local_addr());
        let accepting = tokio::spawn(async move {
            let mut accepted = Vec::new();
            while let Some(Incoming::Channel(channel)) = other.accept().await {
                accepted.push(channel);
            }
        });
        // They take what comes, and answer nothing.
        let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let silent =
            [(Transport::Tcp, tcp.local_addr().unwrap()), (Transport::Quic, udp.local_addr().unwrap())];
        let within = Duration::from_secs(20);
        for (ways, expected) in [
            (vec![silent[0], silent[0], (Transport::Tcp, there)], Transport::Tcp),
            (vec![silent[1], silent[1], (Transport::Tcp, there)], Transport::Tcp),
            (vec![silent[0], (Transport::Quic, there)], Transport::Quic),
        ] {
            let began = Instant::now();
            let channel = dial(&one, peer, &ways, 9, within).await.unwrap().unwrap();
            assert_eq!((channel.peer, channel.via, channel.remote), (peer, expected, there));
            assert!(began.elapsed() < within / 2, "{:?}", began.elapsed());
        }
        let (began, within) = (Instant::now(), Duration::from_millis(300));
        let late = dial(&one, peer, &[silent[0], silent[1]], 9, within).await.unwrap().unwrap_err();
        assert!(matches!(late, DialError::Timeout { .. }), "{late}");
        assert!(began.elapsed() < Duration::from_secs(5), "all of them together");
        let (third, ways) = (keys[2].node_id(), [silent[0], (Transport::Tcp, there)]);
        let told = dial(&one, third, &ways, 9, Duration::from_secs(1)).await.unwrap().unwrap_err();
        assert!(matches!(told, DialError::WrongPeer { .. }), "the silent address hides it: {told}");
        assert!(dial(&one, peer, &[], 9, within).await.is_none());
        accepting.abort();
    }
}
