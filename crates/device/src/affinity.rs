//! The cores that this process was given to compute on.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;

use std::fmt;
use std::str::FromStr;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use plain as system;

/// Numbers of cores are below this: what Linux's fixed-size set holds.
const CORES_MAX: usize = 1024;

/// Some cores by the system's numbers, each once, ascending. Written as `0-3,8`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreList(Vec<usize>);

/// The text is no list of cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no list of cores: write numbers below {CORES_MAX} and ranges with commas between, as in 0-3,8")]
pub struct BadCoreList;

/// This process cannot be kept to the cores that were asked for.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum ConfineError {
    #[error("core {core} is not among those that this process may use: {allowed}")]
    NotAllowed { core: usize, allowed: CoreList },
    /// Written for Linux only.
    #[error("on this system exo cannot choose its cores; start it with the system's own tool for that")]
    Unsupported,
    #[error("the system does not tell which cores this process may use")]
    Unknown(#[source] std::io::Error),
    #[error("the system did not keep this process to the cores {cores}")]
    System { cores: CoreList, source: std::io::Error },
}

impl ConfineError {
    /// Stable, for whoever chooses by it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotAllowed { .. } => "cores_not_allowed",
            Self::Unsupported => "cores_not_supported",
            Self::Unknown(_) | Self::System { .. } => "cores_refused",
        }
    }
}

impl CoreList {
    /// The numbers, ascending; never empty.
    pub fn numbers(&self) -> &[usize] {
        &self.0
    }

    /// The cores that the calling thread may run on.
    pub fn allowed() -> Result<Self, ConfineError> {
        system::allowed()
    }

    /// Keeps the calling thread, and every thread and process it starts from now on, to these cores.
    pub fn confine(&self) -> Result<(), ConfineError> {
        let allowed = Self::allowed()?;
        if let Some(core) = self.0.iter().find(|core| !allowed.0.contains(core)) {
            return Err(ConfineError::NotAllowed { core: *core, allowed });
        }
        system::confine(self)
    }

    /// Keeps the calling thread to the core of worker number `worker`: neighbours take neighbouring cores, in
    /// turn.
    pub fn pin(&self, worker: usize) -> Result<(), ConfineError> {
        system::confine(&Self(vec![self.0[worker % self.0.len()]]))
    }
}

impl FromStr for CoreList {
    type Err = BadCoreList;

    fn from_str(text: &str) -> Result<Self, BadCoreList> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse().ok().filter(|core| *core < CORES_MAX);
            Some(number(first)?..=number(last)?).filter(|range| !range.is_empty())
        };
        let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
        let mut cores: Vec<usize> = ranges.ok_or(BadCoreList)?.into_iter().flatten().collect();
        cores.sort_unstable();
        cores.dedup();
        Ok(Self(cores))
    }
}

impl fmt::Display for CoreList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, run) in self.0.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<CoreList, BadCoreList> {
        text.parse()
    }

    #[test]
    fn lists_are_read_and_written_back_in_order() {
        for (text, written) in [("0", "0"), ("3,1 , 2", "1-3"), ("0-1,8,4-5,4", "0-1,4-5,8"), ("7-7", "7")] {
            assert_eq!(list(text).unwrap().to_string(), written, "{text}");
        }
        for bad in ["", ",", "1,", "3-1", "-1", "1-", "a", "1024", "0-99999999999"] {
            assert_eq!(list(bad), Err(BadCoreList), "{bad}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_is_kept_to_its_cores_and_what_is_not_ours_is_refused() {
        std::thread::spawn(|| {
            let all = CoreList::allowed().unwrap();
            let last = CoreList(vec![*all.numbers().last().unwrap()]);
            let elsewhere = CoreList(vec![CORES_MAX - 1]);
            let error = elsewhere.confine().unwrap_err().to_string();
            assert!(error.contains("core 1023 is not among") && error.contains(&all.to_string()), "{error}");
            last.confine().unwrap();
            assert_eq!(system::allowed().unwrap(), last);
            assert_eq!(crate::cores(), 1);
            // What is started from here on is kept there too.
            std::thread::spawn(move || assert_eq!(system::allowed().unwrap(), last)).join().unwrap();
        })
        .join()
        .unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn workers_take_cores_in_turn() {
        std::thread::spawn(|| {
            let all = CoreList::allowed().unwrap();
            for worker in 0..2 * all.numbers().len() {
                all.pin(worker).unwrap();
                let core = all.numbers()[worker % all.numbers().len()];
                assert_eq!(system::allowed().unwrap(), CoreList(vec![core]));
            }
        })
        .join()
        .unwrap();
    }
}
