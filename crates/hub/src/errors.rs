//! Why a hub's model did not come. One enum: whoever asked sees the whole chain from reference to disk.

#![allow(missing_docs)] // the messages say what the fields are

use std::io;
use std::path::PathBuf;

use crate::ReferenceProblem;

/// Why a model was not found, chosen or fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    #[error("`{text}` is not a reference to a model: {reason}")]
    Reference { text: String, reason: ReferenceProblem },
    #[error("{name} cannot be used: {reason}")]
    Setting { name: String, reason: String },
    #[error("{what} is not on this machine, and exo is offline ({why})")]
    Offline { what: String, why: &'static str },
    #[error("no answer from {host} while trying to {attempt}, tried {}", times(*.tries))]
    Unreachable { host: String, attempt: String, tries: u32, source: Box<ureq::Error> },
    #[error("{host} answered {status} to the attempt to {attempt}{said}")]
    Status { host: String, attempt: String, status: u16, said: String },
    #[error("{host} has no {what}")]
    NotFound { host: String, what: String },
    #[error("`{repo}` is called `{to}` now")]
    Renamed { repo: String, to: String },
    #[error("the model that was fetched of `{repo}` is not in its commit {commit} any more: {reason}")]
    VariantGone { repo: String, commit: String, reason: String },
    #[error("`{reference}` has no revisions: nothing says whether it changed")]
    NoRevisions { reference: String },
    #[error("`{reference}` means {found} now, and not {commit} as it was shown")]
    Moved { reference: String, commit: String, found: String },
    #[error("`{repo}` is gated: {advice}")]
    Gated { repo: String, advice: String },
    /// It is hidden, and the hub says from whom or why to nobody who is not signed in.
    #[error("`{repo}` is not there, or is private or gated: {advice}")]
    Hidden { repo: String, advice: String },
    #[error("{host} gave an answer that cannot be used to the attempt to {attempt}: {problem}")]
    Answer { host: String, attempt: String, problem: String },
    /// A host that does not have what this needs, and is as it should be otherwise.
    #[error("{host} cannot be used to {attempt}: {problem}")]
    Lacks { host: String, attempt: String, problem: String },
    #[error("the redirect from {from} to {to} was not followed: {reason}")]
    Redirect {
        from: String,
        /// Where to, without the query, which may be signed.
        to: String,
        reason: String,
    },
    /// Something strangers sized is too large.
    #[error("{what} is {found}, at most {max} is accepted")]
    TooLarge { what: String, found: u64, max: u64 },
    #[error(
        "{host} asks to wait {asked_s} s before the next request; {max_s} s are waited at most. Try again later"
    )]
    Limited { host: String, asked_s: u64, max_s: u64 },
    #[error("`{path}` in `{repo}` cannot be fetched: {reason}")]
    Name { repo: String, path: String, reason: String },
    #[error("`{repo}` has no model to take: {reason}")]
    NoModel { repo: String, reason: String },
    #[error("cannot {attempt} {}", path.display())]
    Disk { attempt: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "`{file}` was fetched whole ({bytes} bytes), but its {kind} is {found} and {host} promised {expected}; it was deleted"
    )]
    Digest { file: String, bytes: u64, host: String, kind: &'static str, expected: String, found: String },
    #[error("another exo is fetching this to {}; wait for it, or end it", folder.display())]
    Busy { folder: PathBuf },
    #[error("ended before it was done; what is verified stays, and the next attempt goes on from there")]
    Cancelled,
}

impl HubError {
    /// The next thing to do, where the message does not say it.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Offline { .. } => {
                "leave offline mode, or copy the model to this disk; `exo models --found` lists what is here"
            }
            Self::Unreachable { .. } => {
                "check the line, HF_ENDPOINT and the proxy; a download goes on from what came"
            }
            Self::Status { status: 500.., .. } => {
                "the hub has a fault of its own: try again later, or name a mirror in HF_ENDPOINT"
            }
            Self::Status { status: 401 | 403, .. } => {
                "a hub that answers so refuses the token (HF_TOKEN, `exo login hub`, the file of the hub's own tools), which may have ended: without it what is public comes all the same; an address or a registry must be open to anybody: exo signs in to hubs alone"
            }
            Self::Status { status: 404, .. } => "look whether the address is right, and still good",
            Self::NotFound { .. } => "`exo search` finds repositories, `exo show` lists what one has",
            Self::NoModel { .. } | Self::VariantGone { .. } => "`exo show` lists what the repository has",
            Self::Moved { .. } => "`exo update` shows what it would bring now",
            Self::Renamed { .. } => "`exo pull` fetches it by its new name; what is here stays as it is",
            Self::NoRevisions { .. } => {
                "to have it fetched again, `exo models remove` the one that is here first"
            }
            Self::Disk { source, .. } if is_full(source) => {
                "`exo prune` deletes what was never finished, `exo models remove` a model; `--data-dir` names another disk"
            }
            Self::Disk { attempt: "write", source, .. } if exo_stdx::is_device_fault(source) => {
                "the disk has a fault, which the log of the system says more of; what was compared stays, and the same command goes on from there, or from the beginning on another disk with `--data-dir`"
            }
            Self::Digest { .. } => "try again; if it happens again, the hub or a mirror has a damaged file",
            Self::Answer { .. } | Self::Redirect { .. } => {
                "something between this machine and the hub may have answered in its place: a proxy, or a page that asks to sign in"
            }
            _ => return None,
        })
    }

    /// Whether no connection came about, as where the line is away for a while. A host that answers is not
    /// that, whatever it says and however it breaks off.
    pub fn is_line_away(&self) -> bool {
        matches!(self, Self::Unreachable { source, .. } if crate::retry::is_line_away(source))
    }

    /// Whether another attempt goes on from what is there: the line is away, another process fetches the
    /// same, or somebody ended or paused it.
    pub fn is_interruption(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Cancelled) || self.is_line_away()
    }

    pub(crate) fn disk(attempt: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Disk { attempt, path, source }
    }
}

fn times(tries: u32) -> String {
    if tries == 1 { "once".to_owned() } else { format!("{tries} times") }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A stranger's words for an error: one bounded line.
pub(crate) fn quoted(text: &str) -> String {
    exo_types::printable(text, 120)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_says_what_makes_room_and_only_what_does_not_connect_is_a_line_that_is_away() {
        let disk =
            |kind: io::ErrorKind| HubError::disk("write", std::path::Path::new("/d/m.gguf"))(kind.into());
        assert!(disk(io::ErrorKind::StorageFull).hint().is_some_and(|hint| hint.contains("exo prune")));
        assert_eq!(disk(io::ErrorKind::PermissionDenied).hint(), None);
        let fault = HubError::disk("write", std::path::Path::new("/d/m.gguf"));
        let fault = fault(io::Error::from_raw_os_error(exo_stdx::DEVICE_FAULTS[0]));
        assert_eq!(fault.to_string(), "cannot write /d/m.gguf");
        assert!(fault.hint().is_some_and(|hint| hint.contains("goes on from there")));
        let unreachable = |source: ureq::Error| HubError::Unreachable {
            host: "h".to_owned(),
            attempt: "fetch".to_owned(),
            tries: 9,
            source: Box::new(source),
        };
        assert!(unreachable(ureq::Error::Io(io::ErrorKind::ConnectionRefused.into())).is_line_away());
        assert!(unreachable(ureq::Error::HostNotFound).is_line_away());
        assert!(!unreachable(ureq::Error::StatusCode(503)).is_line_away());
        assert!(!unreachable(ureq::Error::InvalidProxyUrl).is_line_away());
        assert!(unreachable(ureq::Error::Timeout(ureq::Timeout::Connect)).is_line_away());
        assert!(unreachable(ureq::Error::Io(io::ErrorKind::NetworkUnreachable.into())).is_line_away());
        let once = HubError::Unreachable {
            host: "h".to_owned(),
            attempt: "fetch".to_owned(),
            tries: 1,
            source: Box::new(ureq::Error::HostNotFound),
        };
        assert_eq!(once.to_string(), "no answer from h while trying to fetch, tried once");
        assert!(unreachable(ureq::Error::HostNotFound).to_string().ends_with(", tried 9 times"));
        // A host that breaks off each body, says nothing, or leads to a private address is there.
        assert!(!unreachable(ureq::Error::Io(io::ErrorKind::UnexpectedEof.into())).is_line_away());
        assert!(!unreachable(ureq::Error::Io(io::ErrorKind::ConnectionReset.into())).is_line_away());
        assert!(!unreachable(ureq::Error::Timeout(ureq::Timeout::RecvResponse)).is_line_away());
        assert!(!unreachable(ureq::Error::Other("resolves to a private address".into())).is_line_away());
        assert!(!HubError::Cancelled.is_line_away());
        // What is linked stays for the next attempt, or goes.
        let busy = HubError::Busy { folder: PathBuf::from("/d") };
        assert!(busy.is_interruption() && HubError::Cancelled.is_interruption());
        assert!(unreachable(ureq::Error::HostNotFound).is_interruption());
        assert!(!unreachable(ureq::Error::InvalidProxyUrl).is_interruption());
        assert!(!disk(io::ErrorKind::StorageFull).is_interruption());
        let text = || "x".to_owned();
        assert_eq!(HubError::Lacks { host: text(), attempt: text(), problem: text() }.hint(), None);
        assert!(HubError::Answer { host: text(), attempt: text(), problem: text() }.hint().is_some());
    }
}
