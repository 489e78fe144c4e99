//! Codes that let a node in: who gave one out and who was given it prove to each other that they know it, and
//! never send it.
//!
//! The proof is SPAKE2 over the code, bound to both keys and to the TLS connection (its exporter). Whoever
//! listens learns nothing to try codes against; whoever sits in between has two connections and fails with
//! the right code; whoever guesses has one guess for each exchange, and an invitation takes [`TRIES`].

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use data_encoding::BASE32_NOPAD;
use exo_machine::joining::Code;
use exo_stdx::{Mutex, unix_ms};
use exo_transport::JoinChannel;
use exo_types::NodeId;
use serde::{Deserialize, Serialize};
use spake2::{Ed25519Group, Identity, Password, Spake2};

use crate::exchange_error::{ExchangeError, NoCode, NoRandom, NotACode, read};

/// How long the digits of an invitation count.
pub const CODE_LASTS: Duration = Duration::from_secs(300);
/// Wrong codes after which an invitation is void.
pub const TRIES: u32 = 3;
const DIGITS: usize = 9;
/// Tokens that may be open at once.
const TOKENS_MAX: usize = 16;
/// Random bytes of a token: no one guesses them, so tries are not counted.
const TOKEN_BYTES: usize = 16;
/// Longest message of an exchange.
const MESSAGE_BYTES_MAX: usize = 64;

/// The first message: what the one who was given the code begins with.
#[derive(Serialize, Deserialize)]
pub(crate) struct Opening {
    /// Which token; none for the digits of an invitation.
    pub(crate) token: Option<[u8; 8]>,
    pub(crate) message: Vec<u8>,
}

/// The second message, and the third without `message`.
#[derive(Serialize, Deserialize)]
pub(crate) struct Proof {
    pub(crate) message: Vec<u8>,
    pub(crate) mac: [u8; 32],
}

/// Whether a person typed what can be a code or a token at all.
pub fn check_code(code: &str) -> Result<(), NotACode> {
    normal(code).map(drop)
}

/// What a person is given.
pub(crate) fn normal(code: &str) -> Result<Code, NotACode> {
    let code = code.trim();
    let digits: String = code.chars().filter(char::is_ascii_digit).collect();
    let is_code = code.chars().all(|c| c.is_ascii_digit() || c == '-' || c == ' ');
    if is_code && digits.len() == DIGITS {
        return Ok(Code(digits));
    }
    let token = code.to_ascii_uppercase();
    let bytes = BASE32_NOPAD.decode(token.as_bytes());
    if bytes.is_ok_and(|bytes| bytes.len() == TOKEN_BYTES) {
        return Ok(Code(token));
    }
    Err(NotACode { digits: DIGITS })
}

/// Which token a code is; none for digits.
fn token_id(code: &Code) -> Option<[u8; 8]> {
    let is_token = code.0.len() != DIGITS;
    is_token
        .then(|| blake3::derive_key("exo pairing v1 token id", code.0.as_bytes())[..8].try_into().ok())
        .flatten()
}

/// What is given out at the moment.
#[derive(Default)]
pub(crate) struct Invites(Mutex<Vec<Invite>>);

struct Invite {
    code: Code,
    /// Until when, by the time that this machine runs and by the clock on the wall: of a machine that slept
    /// no code counts for longer than was said.
    until: (Instant, u64),
    /// Wrong codes it still takes; none are counted for a token.
    tries: Option<u32>,
    /// Nodes it still lets in.
    uses: u32,
    /// Who proved that it knows it: it may come again, also to hear the answer to its first question.
    known_to: Vec<NodeId>,
}

impl Invite {
    fn is_open(&self, now: Instant, now_unix_ms: u64) -> bool {
        let (until, until_unix_ms) = self.until;
        now < until && now_unix_ms < until_unix_ms && self.tries != Some(0)
    }

    fn takes(&self, node: NodeId) -> bool {
        self.uses > 0 || self.known_to.contains(&node)
    }
}

/// When that time is over from now on.
fn after(lasting: Duration) -> (Instant, u64) {
    let ms = u64::try_from(lasting.as_millis()).unwrap_or(u64::MAX);
    (Instant::now() + lasting, unix_ms().saturating_add(ms))
}

impl Invites {
    fn open(&self) -> MutexGuard<'_, Vec<Invite>> {
        let mut invites = self.0.lock();
        let (now, now_unix_ms) = (Instant::now(), unix_ms());
        invites.retain(|invite| invite.is_open(now, now_unix_ms));
        invites
    }

    /// Nine digits for one node. Those given out before are void.
    pub(crate) fn give_digits(&self) -> Result<String, NoCode> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(NoRandom)?;
        let digits = format!("{:09}", u64::from_le_bytes(bytes) % 1_000_000_000);
        let mut invites = self.open();
        invites.retain(|invite| invite.tries.is_none());
        invites.push(Invite {
            code: Code(digits.clone()),
            until: after(CODE_LASTS),
            tries: Some(TRIES),
            uses: 1,
            known_to: Vec::new(),
        });
        Ok(format!("{}-{}-{}", &digits[..3], &digits[3..6], &digits[6..]))
    }

    /// A token for so many nodes.
    pub(crate) fn give_token(&self, uses: u32, lasting: Duration) -> Result<String, NoCode> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes).map_err(NoRandom)?;
        let token = BASE32_NOPAD.encode(&bytes);
        let mut invites = self.open();
        if invites.iter().filter(|invite| invite.tries.is_none()).count() >= TOKENS_MAX {
            return Err(NoCode::TooManyTokens { max: TOKENS_MAX });
        }
        let (code, until) = (Code(token.clone()), after(lasting));
        invites.push(Invite { code, until, tries: None, uses, known_to: Vec::new() });
        Ok(token.to_ascii_lowercase())
    }

    /// The code that `node` must know. Counts as a try until it is proven.
    fn begin(&self, node: NodeId, token: Option<[u8; 8]>) -> Result<Code, ExchangeError> {
        let mut invites = self.open();
        let is_meant = |invite: &&mut Invite| token_id(&invite.code) == token && invite.takes(node);
        let Some(invite) = invites.iter_mut().find(is_meant) else {
            return Err(ExchangeError::NotInvited);
        };
        if let Some(tries) = &mut invite.tries {
            *tries -= 1;
        }
        Ok(invite.code.clone())
    }

    /// `node` knew it: this was no wrong try. Of several that prove it at once no more come in than it is
    /// for.
    fn proven(&self, node: NodeId, code: &Code) -> Result<(), ExchangeError> {
        let mut invites = self.0.lock();
        let invite = invites.iter_mut().find(|invite| invite.code == *code).ok_or(ExchangeError::UsedUp)?;
        if let Some(tries) = &mut invite.tries {
            *tries += 1;
        }
        if !invite.known_to.contains(&node) {
            invite.uses = invite.uses.checked_sub(1).ok_or(ExchangeError::UsedUp)?;
            invite.known_to.push(node);
        }
        Ok(())
    }

    /// The side that gave the code out, in an exchange that `opening` began. `Ok` if the other knows the
    /// code.
    pub(crate) async fn check(
        &self,
        channel: &mut JoinChannel,
        me: NodeId,
        opening: &Opening,
        kind: u8,
    ) -> Result<(), ExchangeError> {
        let peer = channel.peer;
        let code = self.begin(peer, opening.token)?;
        let binding = Binding { joiner: peer, inviter: me, exporter: channel.exporter() };
        let (message, macs) = binding.answer(&code, &opening.message)?;
        send(channel, kind, &Proof { message, mac: macs.inviter.into() }).await?;
        let theirs: Proof = receive(channel, kind).await?;
        if macs.joiner != blake3::Hash::from_bytes(theirs.mac) {
            return Err(ExchangeError::WrongCode { tries: TRIES });
        }
        self.proven(peer, &code)
    }
}

/// The side that was given the code. `begin` sends the opening with the question. `Ok` if the other knows the
/// code.
pub(crate) struct Given {
    state: Spake2<Ed25519Group>,
}

impl Given {
    /// Begins; the opening is to be sent.
    pub(crate) fn begin(me: NodeId, peer: NodeId, code: &Code) -> (Self, Opening) {
        let (joiner, inviter) = (Identity::new(&me.0), Identity::new(&peer.0));
        let password = Password::new(code.0.as_bytes());
        let (state, message) = Spake2::<Ed25519Group>::start_a(&password, &joiner, &inviter);
        (Self { state }, Opening { token: token_id(code), message })
    }

    /// Proves it and has it proven.
    pub(crate) async fn finish(
        self,
        channel: &mut JoinChannel,
        me: NodeId,
        theirs: &Proof,
        kind: u8,
    ) -> Result<(), ExchangeError> {
        let binding = Binding { joiner: me, inviter: channel.peer, exporter: channel.exporter() };
        let macs = self.macs(&binding, &theirs.message)?;
        if macs.inviter != blake3::Hash::from_bytes(theirs.mac) {
            return Err(ExchangeError::WrongCode { tries: TRIES });
        }
        send(channel, kind, &Proof { message: Vec::new(), mac: macs.joiner.into() }).await
    }

    fn macs(self, binding: &Binding<'_>, message: &[u8]) -> Result<Macs, ExchangeError> {
        let secret = self.state.finish(bounded(message)?).map_err(|_| ExchangeError::NoPoint)?;
        Ok(binding.macs(&secret))
    }
}

/// What a proof is bound to beside the code.
#[derive(Clone, Copy)]
struct Binding<'a> {
    joiner: NodeId,
    inviter: NodeId,
    /// What only the two ends of the connection know.
    exporter: &'a [u8; 32],
}

/// What each side shows the other. Compared in constant time: a [`blake3::Hash`] does.
struct Macs {
    inviter: blake3::Hash,
    joiner: blake3::Hash,
}

impl Binding<'_> {
    /// The inviter's message of SPAKE2, and what both show once each has that of the other.
    fn answer(&self, code: &Code, opening: &[u8]) -> Result<(Vec<u8>, Macs), ExchangeError> {
        let (joiner, inviter) = (Identity::new(&self.joiner.0), Identity::new(&self.inviter.0));
        let password = Password::new(code.0.as_bytes());
        let (state, message) = Spake2::<Ed25519Group>::start_b(&password, &joiner, &inviter);
        let secret = state.finish(bounded(opening)?).map_err(|_| ExchangeError::NoPoint)?;
        Ok((message, self.macs(&secret)))
    }

    fn macs(&self, secret: &[u8]) -> Macs {
        let key = blake3::derive_key("exo pairing v1 confirmation", &[secret, self.exporter].concat());
        let mac = |role: &str| {
            blake3::keyed_hash(&key, &[role.as_bytes(), &self.joiner.0, &self.inviter.0].concat())
        };
        Macs { inviter: mac("inviter"), joiner: mac("joiner") }
    }
}

fn bounded(message: &[u8]) -> Result<&[u8], ExchangeError> {
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(ExchangeError::TooLong { bytes: message.len(), max: MESSAGE_BYTES_MAX });
    }
    Ok(message)
}

pub(crate) async fn send(
    channel: &mut JoinChannel,
    kind: u8,
    message: &impl Serialize,
) -> Result<(), ExchangeError> {
    let bytes = postcard::to_allocvec(message)
        .map_err(|source| ExchangeError::Unreadable { what: "a message of this node's", source })?;
    Ok(channel.send(kind, &bytes).await?)
}

pub(crate) async fn receive<T: for<'a> Deserialize<'a>>(
    channel: &mut JoinChannel,
    kind: u8,
) -> Result<T, ExchangeError> {
    let (got, bytes) = channel.recv().await?;
    if got != kind {
        return Err(ExchangeError::Kind { got, wanted: kind });
    }
    read("a message of the exchange", &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u8) -> NodeId {
        NodeId([n; 32])
    }

    #[test]
    fn a_code_is_read_as_people_write_it() {
        let digits = Code("123456789".to_owned());
        for text in ["123-456-789", "123456789", " 123 456 789\n", "12-34-56-789"] {
            assert_eq!(normal(text), Ok(digits.clone()), "{text}");
        }
        let invites = Invites::default();
        let token = invites.give_token(2, Duration::from_secs(9)).unwrap();
        assert_eq!(normal(&token).map(|code| token_id(&code).is_some()), Ok(true));
        for text in ["", "12345678", "1234567890", "123-456-78x", "aaaa", &token[1..], &format!("{token}a")] {
            assert!(normal(text).is_err_and(|error| error.to_string().contains("9 digits")), "{text}");
        }
    }

    #[test]
    fn an_invitation_lets_in_one_node_and_is_void_after_three_wrong_tries() {
        let invites = Invites::default();
        let shown = invites.give_digits().unwrap();
        let code = normal(&shown).unwrap();
        assert_eq!(invites.begin(node(1), None).unwrap(), code);
        assert_eq!(invites.begin(node(2), None).unwrap(), code, "an exchange beside it");
        invites.proven(node(1), &code).unwrap();
        assert!(invites.proven(node(2), &code).is_err(), "only one of both comes in");
        assert!(invites.begin(node(2), None).is_err(), "it is used up");
        assert_eq!(invites.begin(node(1), None).unwrap(), code, "but not for who asks again");

        invites.give_digits().unwrap();
        for _ in 0..TRIES {
            assert!(invites.begin(node(3), None).is_ok());
        }
        assert!(invites.begin(node(3), None).is_err());
    }

    #[test]
    fn a_new_code_makes_the_one_before_void_and_leaves_tokens() {
        let invites = Invites::default();
        let token = normal(&invites.give_token(2, Duration::from_secs(60)).unwrap()).unwrap();
        let first = normal(&invites.give_digits().unwrap()).unwrap();
        let second = normal(&invites.give_digits().unwrap()).unwrap();
        assert_ne!(first, second);
        assert_eq!(invites.begin(node(1), None).unwrap(), second);
        for n in [1, 2] {
            assert_eq!(invites.begin(node(n), token_id(&token)).unwrap(), token);
            invites.proven(node(n), &token).unwrap();
        }
        assert!(invites.begin(node(3), token_id(&token)).is_err());
        let over = normal(&invites.give_token(2, Duration::ZERO).unwrap()).unwrap();
        assert!(invites.begin(node(3), token_id(&over)).is_err());
    }

    #[test]
    fn digits_count_for_five_minutes() {
        let invites = Invites::default();
        let (given, given_unix_ms) = (Instant::now(), unix_ms());
        invites.give_digits().unwrap();
        let is_open = |ran_s: u64, wall_s: u64| {
            invites.open()[0].is_open(given + Duration::from_secs(ran_s), given_unix_ms + 1000 * wall_s)
        };
        assert!(is_open(299, 299) && !is_open(310, 310));
        assert!(!is_open(10, 310), "the machine slept");
        assert!(!is_open(310, 10), "its clock was set back");
    }

    #[tokio::test]
    async fn a_token_counts_until_its_time_is_over_and_not_after() {
        let invites = Invites::default();
        let lasting = Duration::from_secs(3600);
        let (before, _, after) = (Instant::now(), invites.give_token(1, lasting).unwrap(), Instant::now());
        let is_open = |at: Instant| invites.open()[0].is_open(at, unix_ms());
        assert!(is_open(before + lasting - Duration::from_secs(1)) && !is_open(after + lasting));

        // By the clock of an exchange.
        let token = normal(&invites.give_token(1, Duration::from_millis(500)).unwrap()).unwrap();
        assert_eq!(invites.begin(node(1), token_id(&token)).unwrap(), token);
        tokio::time::sleep(Duration::from_millis(600)).await;
        assert!(matches!(invites.begin(node(1), token_id(&token)), Err(ExchangeError::NotInvited)));
    }

    /// Whether what two sides with the same code show each other fits: the inviter's, and the joiner's.
    fn fits(joiner: Binding<'_>, inviter: Binding<'_>) -> [bool; 2] {
        let code = Code("123456789".to_owned());
        let (given, opening) = Given::begin(joiner.joiner, joiner.inviter, &code);
        let (message, theirs) = inviter.answer(&code, &opening.message).unwrap();
        let own = given.macs(&joiner, &message).unwrap();
        [own.inviter == theirs.inviter, own.joiner == theirs.joiner]
    }

    #[test]
    fn a_proof_is_bound_to_each_of_both_keys_and_to_the_connection() {
        let both = Binding { joiner: node(1), inviter: node(2), exporter: &[3; 32] };
        assert_eq!(fits(both, both), [true; 2]);
        let others = [
            ("the connection alone", Binding { exporter: &[4; 32], ..both }),
            ("the joiner's key alone", Binding { joiner: node(4), ..both }),
            ("the inviter's key alone", Binding { inviter: node(4), ..both }),
        ];
        for (what, other) in others {
            assert_eq!([fits(both, other), fits(other, both)], [[false; 2]; 2], "{what} is another");
        }
    }

    #[test]
    fn tokens_are_bounded() {
        let invites = Invites::default();
        for _ in 0..TOKENS_MAX {
            invites.give_token(1, Duration::from_secs(60)).unwrap();
        }
        assert!(
            invites.give_token(1, Duration::from_secs(60)).unwrap_err().to_string().contains("16 tokens")
        );
    }
}
