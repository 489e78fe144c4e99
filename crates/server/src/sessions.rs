//! Sessions of browsers: a code that is good once, and the token that it becomes.
//!
//! Codes live in memory for a minute. Of tokens only their hashes are kept, in memory and in a file of the
//! data folder, so that a session outlasts a restart and the file opens nothing. Why no cookies:
//! decision 0046.
//!
//! Start reading at [`Sessions::give_code`].

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use exo_stdx::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::api_keys::ApiKey;

/// How long a code is good for: as long as a browser takes to open, on a slow machine.
pub const CODE_LIFE: Duration = Duration::from_secs(60);
/// Codes that are remembered, used and expired ones too, so that whoever brings one late is told why it opens
/// nothing.
const CODES_MAX: usize = 32;
/// Sessions at once. One more takes the place of the one that was idle longest.
const SESSIONS_MAX: usize = 32;
/// How exactly the file knows when a session was used: a write for each request would wear disks out, and
/// sessions last for hours.
const SAVE_EVERY_S: u64 = 600;
/// What a token begins with, so that one that has ended is told from a wrong secret.
pub const TOKEN_PREFIX: &str = "exs_";
/// A file with more was not written by us.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// All sessions of one node.
pub struct Sessions {
    /// Where they outlast a restart; nowhere without.
    path: Option<PathBuf>,
    idle_max_s: u64,
    kept: Mutex<SessionTable>,
    /// Held while the file is written, so that the last one to write has the last state.
    writing: Mutex<()>,
    /// Told when a session may have ended.
    ended: watch::Sender<u64>,
}

#[derive(Default)]
struct SessionTable {
    codes: VecDeque<Code>,
    sessions: Vec<Session>,
}

struct Code {
    hash: ApiKey,
    /// By the time that this machine runs and by the clock on the wall: on one that slept it is over.
    given: (Instant, u64),
    used: bool,
}

/// A session as it stands in the file.
#[derive(Clone, Serialize, Deserialize)]
struct Session {
    hash: String,
    used_unix_s: u64,
    #[serde(skip)]
    saved_unix_s: u64,
}

/// Names a session for as long as it lasts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SessionId(ApiKey);

/// Why a code opens nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadCode {
    Unknown,
    Used,
    Expired,
}

impl Sessions {
    /// Those of the file at `path`, if there is one that can be read.
    pub fn open(path: Option<PathBuf>, idle_max: Duration) -> Self {
        let sessions = path.as_deref().map(read).unwrap_or_default();
        Self {
            path,
            idle_max_s: idle_max.as_secs(),
            kept: Mutex::new(SessionTable { codes: VecDeque::new(), sessions }),
            writing: Mutex::default(),
            ended: watch::Sender::new(0),
        }
    }

    /// How long a session may be idle, in seconds.
    pub fn idle_max_s(&self) -> u64 {
        self.idle_max_s
    }

    /// A code that becomes a session, once.
    pub fn give_code(&self, now: Instant, now_unix_s: u64) -> Result<String, getrandom::Error> {
        let code = random_hex()?;
        let mut kept = self.kept.lock();
        if kept.codes.len() == CODES_MAX {
            kept.codes.pop_front();
        }
        let given = (now, now_unix_s);
        kept.codes.push_back(Code { hash: ApiKey::from_key(&code), given, used: false });
        Ok(code)
    }

    /// Takes a code. It is good for nothing afterwards, whatever becomes of the session.
    pub fn take_code(&self, code: &str, now: Instant, now_unix_s: u64) -> Result<(), BadCode> {
        let given = ApiKey::from_key(code);
        let mut kept = self.kept.lock();
        let known = kept.codes.iter_mut().find(|known| known.hash.matches(&given)).ok_or(BadCode::Unknown)?;
        if known.used {
            return Err(BadCode::Used);
        }
        let (given, given_unix_s) = known.given;
        let wall_s = now_unix_s.saturating_sub(given_unix_s);
        if now.saturating_duration_since(given) >= CODE_LIFE || wall_s > CODE_LIFE.as_secs() {
            return Err(BadCode::Expired);
        }
        known.used = true;
        Ok(())
    }

    /// A new session, and its token. The caller sees to [`Self::save`].
    pub fn begin(&self, now_unix_s: u64) -> Result<String, getrandom::Error> {
        let token = format!("{TOKEN_PREFIX}{}", random_hex()?);
        let mut kept = self.kept.lock();
        self.drop_idle(&mut kept, now_unix_s);
        if kept.sessions.len() >= SESSIONS_MAX {
            let oldest = (0..kept.sessions.len()).min_by_key(|i| kept.sessions[*i].used_unix_s);
            if let Some(oldest) = oldest {
                kept.sessions.remove(oldest);
            }
            self.tell_ended();
        }
        kept.sessions.push(Session {
            hash: ApiKey::from_key(&token).to_hash(),
            used_unix_s: now_unix_s,
            saved_unix_s: now_unix_s,
        });
        Ok(token)
    }

    /// The session of a token, which is used now; and whether the file should hear of it.
    pub fn find(&self, token: &str, now_unix_s: u64) -> Option<(SessionId, bool)> {
        if !token.starts_with(TOKEN_PREFIX) {
            return None;
        }
        let id = SessionId(ApiKey::from_key(token));
        self.touch(id, now_unix_s).map(|save| (id, save))
    }

    /// The session of a token that a page shows while nobody is at it: that is no use of it.
    pub fn look(&self, token: &str, now_unix_s: u64) -> Option<SessionId> {
        let id = SessionId(ApiKey::from_key(token));
        (token.starts_with(TOKEN_PREFIX) && self.lasts(id, now_unix_s)).then_some(id)
    }

    /// Whether a session that was found before still lasts. That is no use of it: a page that nobody looks at
    /// is idle.
    pub fn lasts(&self, id: SessionId, now_unix_s: u64) -> bool {
        let mut kept = self.kept.lock();
        self.drop_idle(&mut kept, now_unix_s);
        kept.sessions.iter().any(|session| session.is(id))
    }

    fn touch(&self, id: SessionId, now_unix_s: u64) -> Option<bool> {
        let mut kept = self.kept.lock();
        self.drop_idle(&mut kept, now_unix_s);
        let session = kept.sessions.iter_mut().find(|session| session.is(id))?;
        session.used_unix_s = now_unix_s;
        let save = session.saved_unix_s.abs_diff(now_unix_s) >= SAVE_EVERY_S;
        if save {
            session.saved_unix_s = now_unix_s;
        }
        Some(save)
    }

    /// Ends one.
    pub fn end(&self, id: SessionId) {
        self.kept.lock().sessions.retain(|session| !session.is(id));
        self.tell_ended();
    }

    /// Ends all, and makes codes void.
    pub fn end_all(&self) {
        let mut kept = self.kept.lock();
        kept.sessions.clear();
        kept.codes.clear();
        drop(kept);
        self.tell_ended();
    }

    /// Becomes another number whenever a session may have ended.
    pub fn ended(&self) -> watch::Receiver<u64> {
        self.ended.subscribe()
    }

    /// Writes the file.
    pub fn save(&self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let _turn = self.writing.lock();
        let bytes = serde_json::to_vec(&self.kept.lock().sessions)?;
        exo_stdx::replace_for_owner(path, &bytes)
    }

    /// Ends what was idle too long. A clock that was set back counts as no time, one that was set ahead as
    /// time.
    fn drop_idle(&self, kept: &mut SessionTable, now_unix_s: u64) {
        let before = kept.sessions.len();
        for session in &mut kept.sessions {
            session.used_unix_s = session.used_unix_s.min(now_unix_s);
        }
        kept.sessions.retain(|session| now_unix_s - session.used_unix_s < self.idle_max_s);
        if kept.sessions.len() != before {
            self.tell_ended();
        }
    }

    fn tell_ended(&self) {
        self.ended.send_modify(|times| *times += 1);
    }
}

impl Session {
    fn is(&self, id: SessionId) -> bool {
        ApiKey::from_hash(&self.hash).is_some_and(|hash| hash.matches(&id.0))
    }
}

/// 256 bits.
fn random_hex() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(exo_types::hex(&bytes))
}

/// A file that is missing or damaged costs a person one more `exo open`.
fn read(path: &Path) -> Vec<Session> {
    let read = || -> io::Result<Vec<Session>> {
        let Some(bytes) = exo_stdx::read_bounded(path, FILE_BYTES_MAX)? else { return Ok(Vec::new()) };
        let mut sessions: Vec<Session> = serde_json::from_slice(&bytes)?;
        sessions.retain(|session| ApiKey::from_hash(&session.hash).is_some());
        sessions.truncate(SESSIONS_MAX);
        sessions.iter_mut().for_each(|session| session.saved_unix_s = session.used_unix_s);
        Ok(sessions)
    };
    read().unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "the sessions of browsers cannot be read: they have ended");
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOURS_12: Duration = Duration::from_secs(12 * 3600);

    fn sessions() -> Sessions {
        Sessions::open(None, HOURS_12)
    }

    #[test]
    fn a_code_is_good_once_and_for_a_minute() {
        let (sessions, now) = (sessions(), Instant::now());
        let code = sessions.give_code(now, 100).unwrap();
        assert_eq!((code.len(), sessions.take_code("0", now, 100)), (64, Err(BadCode::Unknown)));
        let late = now + CODE_LIFE;
        assert_eq!(sessions.take_code(&code, late, 160), Err(BadCode::Expired));
        assert_eq!(sessions.take_code(&code, now, 161), Err(BadCode::Expired), "the machine slept");
        assert_eq!(sessions.take_code(&code, late - Duration::from_millis(1), 160), Ok(()));
        assert_eq!(sessions.take_code(&code, now, 100), Err(BadCode::Used));
        let other = sessions.give_code(now, 100).unwrap();
        sessions.end_all();
        assert_eq!(sessions.take_code(&other, now, 100), Err(BadCode::Unknown));
    }

    #[test]
    fn codes_and_sessions_are_bounded_and_the_oldest_goes() {
        let (sessions, now) = (sessions(), Instant::now());
        let codes: Vec<_> = (0..=CODES_MAX).map(|_| sessions.give_code(now, 100).unwrap()).collect();
        assert_eq!(sessions.take_code(&codes[0], now, 100), Err(BadCode::Unknown));
        assert_eq!(sessions.take_code(&codes[1], now, 100), Ok(()));
        let tokens: Vec<_> = (0..SESSIONS_MAX as u64).map(|i| sessions.begin(100 + i).unwrap()).collect();
        assert!(sessions.find(&tokens[0], 200).is_some());
        sessions.begin(201).unwrap();
        let alive = |token: &String| sessions.find(token, 201).is_some();
        assert!(alive(&tokens[0]) && !alive(&tokens[1]) && alive(&tokens[2]));
    }

    #[test]
    fn a_session_ends_after_twelve_idle_hours_whatever_the_clock_does() {
        let sessions = sessions();
        let token = sessions.begin(1_000_000).unwrap();
        let hours = |n: u64| 1_000_000 + n * 3600;
        assert!(sessions.find(&token, hours(11)).is_some());
        assert!(sessions.find(&token, hours(22)).is_some(), "it was used meanwhile");
        assert!(sessions.find(&token, hours(1)).is_some(), "the clock was set back");
        let mut ended = sessions.ended();
        ended.mark_unchanged();
        assert!(sessions.find(&token, hours(13)).is_none(), "twelve hours by the clock that counts now");
        assert!(ended.has_changed().unwrap());
    }

    #[test]
    fn sessions_outlast_a_restart_as_hashes_that_only_the_owner_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sessions.json");
        let before = Sessions::open(Some(path.clone()), HOURS_12);
        let (token, other) = (before.begin(1000).unwrap(), before.begin(1000).unwrap());
        before.save().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains(&token[TOKEN_PREFIX.len()..]) && text.contains("used_unix_s"));
        assert_eq!(exo_stdx::mode_open_to_others(&std::fs::metadata(&path).unwrap()), None);
        let after = Sessions::open(Some(path.clone()), HOURS_12);
        let (id, save) = after.find(&token, 1599).unwrap();
        assert!(!save, "ten minutes are exact enough");
        assert_eq!(after.find(&token, 1601).map(|(_, save)| save), Some(true));
        after.end(id);
        after.save().unwrap();
        let third = Sessions::open(Some(path.clone()), HOURS_12);
        assert!(third.find(&token, 1601).is_none() && third.find(&other, 1601).is_some());
        std::fs::write(&path, "[{").unwrap();
        assert!(Sessions::open(Some(path), HOURS_12).find(&other, 1601).is_none());
    }

    #[test]
    fn a_stream_that_stays_open_is_no_use_of_its_session() {
        let sessions = sessions();
        let token = sessions.begin(1000).unwrap();
        let (id, _) = sessions.find(&token, 1000).unwrap();
        assert!((0..12).all(|hour| sessions.lasts(id, 1000 + hour * 3600)));
        assert!(!sessions.lasts(id, 1000 + 12 * 3600) && sessions.find(&token, 1000).is_none());
    }

    #[test]
    fn what_a_page_asks_while_nobody_is_at_it_is_no_use_of_its_session() {
        let sessions = sessions();
        let token = sessions.begin(1000).unwrap();
        assert!((0..12).all(|hour| sessions.look(&token, 1000 + hour * 3600).is_some()));
        assert!(sessions.look("exs_0", 1000).is_none() && sessions.look(&token[1..], 1000).is_none());
        assert!(sessions.look(&token, 1000 + 12 * 3600).is_none());
    }

    #[test]
    fn the_hash_in_the_file_is_no_token() {
        let sessions = sessions();
        let token = sessions.begin(1).unwrap();
        let hash = ApiKey::from_key(&token).to_hash();
        assert!(sessions.find(&hash, 1).is_none());
        assert!(sessions.find(&format!("{TOKEN_PREFIX}{hash}"), 1).is_none());
    }
}
