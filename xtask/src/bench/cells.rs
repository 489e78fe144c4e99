//! The cells of the table: what was measured for which model, what is asked of it, and whether it is kept.

use std::path::Path;

use crate::pairs::median;

/// One thing that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Tokens per second, so many from an empty context.
    Decode(u32),
    /// Tokens per second of a prompt of this length.
    Prefill(u32),
    /// Tokens per second after so many tokens.
    DecodeAt(u32),
    /// Tokens per second of so many streams together, prompts included.
    Streams(u32),
    /// Longest wait for a stream's next token, in seconds, while a prompt of this length is computed beside
    /// it.
    LongestWait(u32),
    /// The median of those waits.
    MedianWait(u32),
    /// Time to first token of a prompt whose first 1,000 tokens are cached, over that of one without.
    CachedPrefix,
    /// Tokens per second with guesses from the text so far, over those without.
    GuessesOfPrompt,
    /// The same with guesses of a small model.
    GuessesOfModel,
    /// Resident memory beyond weights, keys and values, over the weights.
    ExtraMemory,
    /// Seconds from opening the file to the first token, in one process.
    FirstToken,
    /// Seconds from asking a node to place the model to the first token over its API.
    PlaceToToken,
    /// Processor time of an idle node with the model loaded, over the time.
    Idle,
}

/// What is asked of a cell.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Bound {
    /// At least so many times llama.cpp; or at least this share of the machine's limit, where there is one.
    Ratio { min: f64, or_share: Option<f64> },
    /// At most so much.
    AtMost(f64),
}

/// Whether a cell does what is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Pass,
    Fail,
    /// Nothing is asked, or there was nothing to compare with.
    Open,
}

/// Files up to this size are held to the bounds in seconds.
const SMALL_FILE_BYTES_MAX: u64 = 1_400_000_000;

impl What {
    /// As the table shows it.
    pub fn label(self) -> String {
        match self {
            Self::Decode(n) => format!("decode {n}"),
            Self::Prefill(n) => format!("prefill {n}"),
            Self::DecodeAt(depth) => format!("decode at depth {depth}"),
            Self::Streams(n) => format!("{n} streams"),
            Self::LongestWait(n) => format!("longest wait beside a prompt of {n}"),
            Self::MedianWait(n) => format!("median wait beside a prompt of {n}"),
            Self::CachedPrefix => "cached first token / uncached".to_owned(),
            Self::GuessesOfPrompt => "prompt lookup / no guesses".to_owned(),
            Self::GuessesOfModel => "draft model / no guesses".to_owned(),
            Self::ExtraMemory => "peak RSS beyond weights + KV / weights".to_owned(),
            Self::FirstToken => "warm file to first token".to_owned(),
            Self::PlaceToToken => "placing on a node to first token".to_owned(),
            Self::Idle => "CPU of an idle node".to_owned(),
        }
    }

    /// A value with its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Decode(_) | Self::Prefill(_) | Self::DecodeAt(_) | Self::Streams(_) => {
                format!("{value:.1} t/s")
            }
            Self::FirstToken | Self::PlaceToToken => format!("{value:.2} s"),
            Self::LongestWait(_) | Self::MedianWait(_) => format!("{value:.3} s"),
            Self::GuessesOfPrompt | Self::GuessesOfModel => format!("{value:.2} x"),
            Self::CachedPrefix | Self::ExtraMemory | Self::Idle => format!("{:.1} %", value * 100.0),
        }
    }

    /// What the project asks of it.
    fn bound(self, subject: &Subject, threads: usize) -> Option<Bound> {
        let dtype = subject.dtype.as_str();
        let quantised = !matches!(dtype, "F16" | "BF16" | "F32");
        let is_small = subject.file_bytes <= SMALL_FILE_BYTES_MAX;
        let ratio = |min, or_share| Some(Bound::Ratio { min, or_share });
        match self {
            Self::Decode(_) => {
                let share = match (dtype, threads) {
                    ("Q8_0", 1) => Some(0.85),
                    ("Q8_0", _) => Some(0.80),
                    ("Q4_0" | "Q4_K", 1) => Some(0.80),
                    ("Q4_0" | "Q4_K", _) => Some(0.70),
                    _ => None,
                };
                match dtype {
                    "Q8_0" => ratio(1.6, share),
                    "Q4_0" => ratio(1.4, share),
                    "Q4_K" => ratio(1.5, share),
                    "F16" => ratio(1.2, share),
                    _ => None,
                }
            }
            Self::Prefill(512) => match dtype {
                "Q8_0" => ratio(2.5, None),
                "Q4_0" | "Q4_K" => ratio(2.0, None),
                "F16" => ratio(1.15, None),
                "BF16" => ratio(2.0, None),
                _ => None,
            },
            Self::Prefill(128) if quantised => ratio(1.5, None),
            Self::Prefill(_) => None,
            Self::DecodeAt(_) => ratio(1.3, None),
            Self::Streams(_) if matches!(dtype, "Q8_0" | "Q4_0") => ratio(1.5, None),
            Self::Streams(_) => None,
            Self::GuessesOfPrompt | Self::GuessesOfModel => None,
            // Asked of Qwen3-0.6B on two threads.
            Self::LongestWait(_) => (threads >= 2 && is_small).then_some(Bound::AtMost(0.4)),
            Self::MedianWait(_) => None,
            Self::CachedPrefix => Some(Bound::AtMost(0.1)),
            Self::ExtraMemory => Some(Bound::AtMost(0.1)),
            Self::FirstToken | Self::PlaceToToken => is_small.then_some(Bound::AtMost(2.0)),
            Self::Idle => Some(Bound::AtMost(0.01)),
        }
    }
}

/// A model file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subject {
    /// The file's name without `.gguf`.
    pub name: String,
    /// The type most of its weights have.
    pub dtype: String,
    pub file_bytes: u64,
}

impl Subject {
    /// `dtype` as `exo bench` tells it.
    pub fn new(path: &Path, dtype: &str) -> Self {
        let name = path.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let file_bytes = std::fs::metadata(path).map_or(0, |m| m.len());
        Self { name, dtype: dtype.to_owned(), file_bytes }
    }
}

/// One pair of runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    pub ours: f64,
    pub theirs: Option<f64>,
    /// Part of the machine's limit that ours reached: read bandwidth for decode, multiply-adds for prefill.
    pub share: Option<f64>,
}

/// One line of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct Cell {
    pub subject: Subject,
    pub threads: usize,
    pub what: What,
    pub samples: Vec<Sample>,
}

impl Cell {
    /// The median round; of the longest waits the longest, since no round may have a longer one.
    pub fn ours(&self) -> Option<f64> {
        let rounds = self.samples.iter().map(|s| s.ours);
        match self.what {
            What::LongestWait(_) => rounds.max_by(f64::total_cmp),
            _ => median(rounds),
        }
    }

    pub fn theirs(&self) -> Option<f64> {
        median(self.samples.iter().filter_map(|s| s.theirs))
    }

    /// Median of the pairs' ratios: a machine that drifts moves both of a pair.
    pub fn ratio(&self) -> Option<f64> {
        median(self.samples.iter().filter_map(|s| Some(s.ours / s.theirs?)))
    }

    pub fn share(&self) -> Option<f64> {
        median(self.samples.iter().filter_map(|s| s.share))
    }

    pub fn bound(&self) -> Option<Bound> {
        self.what.bound(&self.subject, self.threads)
    }

    pub fn verdict(&self) -> Verdict {
        let kept = match self.bound() {
            None => None,
            Some(Bound::AtMost(max)) => self.ours().map(|ours| ours <= max),
            Some(Bound::Ratio { min, or_share }) => {
                let by_ratio = self.ratio().map(|ratio| ratio >= min);
                let by_share = or_share.and_then(|min| Some(self.share()? >= min));
                match (by_ratio, by_share) {
                    (Some(true), _) | (_, Some(true)) => Some(true),
                    // Without llama.cpp a share that is too small decides nothing.
                    (ratio, _) => ratio,
                }
            }
        };
        match kept {
            None => Verdict::Open,
            Some(true) => Verdict::Pass,
            Some(false) => Verdict::Fail,
        }
    }
}

/// Every cell, in the order they were first measured.
#[derive(Default)]
pub struct Cells(Vec<Cell>);

impl Cells {
    /// Adds a pair to its cell.
    pub fn add(&mut self, subject: &Subject, threads: usize, what: What, sample: Sample) {
        let is_it = |c: &&mut Cell| c.subject == *subject && c.threads == threads && c.what == what;
        match self.0.iter_mut().find(is_it) {
            Some(cell) => cell.samples.push(sample),
            None => self.0.push(Cell { subject: subject.clone(), threads, what, samples: vec![sample] }),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Cell> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One cell from pairs (ours, theirs, share).
    fn check(dtype: &str, threads: usize, what: What, pairs: &[(f64, Option<f64>, Option<f64>)]) -> Verdict {
        let subject = Subject { name: "m".into(), dtype: dtype.into(), file_bytes: 1 };
        let mut cells = Cells::default();
        for &(ours, theirs, share) in pairs {
            cells.add(&subject, threads, what, Sample { ours, theirs, share });
        }
        let cell = cells.iter().next().unwrap();
        assert_eq!(cell.samples.len(), pairs.len());
        cell.verdict()
    }

    #[test]
    fn the_median_pair_decides() {
        let pair = |ours, theirs| (ours, Some(theirs), None);
        let decode = What::Decode(64);
        let good = [pair(16.0, 10.0), pair(32.0, 20.0), pair(10.0, 10.0)];
        assert_eq!(check("Q8_0", 1, decode, &good), Verdict::Pass);
        let bad = [pair(16.0, 10.0), pair(31.0, 20.0), pair(10.0, 10.0)];
        assert_eq!(check("Q8_0", 1, decode, &bad), Verdict::Fail);
        assert_eq!(check("Q4_0", 1, decode, &bad), Verdict::Pass);
        assert_eq!(check("Q8_0", 1, What::Prefill(512), &good), Verdict::Fail);
        assert_eq!(check("Q8_0", 1, What::Prefill(128), &good), Verdict::Pass);
        assert_eq!(check("F16", 1, What::Prefill(128), &good), Verdict::Open);
    }

    #[test]
    fn a_decode_that_reaches_the_memory_passes_whatever_the_ratio() {
        let decode =
            |threads, share| check("Q8_0", threads, What::Decode(64), &[(1.0, Some(1.0), Some(share))]);
        assert_eq!((decode(1, 0.85), decode(1, 0.84)), (Verdict::Pass, Verdict::Fail));
        assert_eq!((decode(2, 0.80), decode(2, 0.79)), (Verdict::Pass, Verdict::Fail));
        assert_eq!(check("F16", 1, What::Decode(64), &[(1.0, Some(1.0), Some(0.99))]), Verdict::Fail);
    }

    #[test]
    fn one_wait_that_is_too_long_fails_whatever_the_others() {
        let waits = |threads, rounds: &[f64]| {
            let rounds: Vec<_> = rounds.iter().map(|&wait| (wait, None, None)).collect();
            check("Q8_0", threads, What::LongestWait(2000), &rounds)
        };
        assert_eq!(waits(2, &[0.4, 0.1, 0.2]), Verdict::Pass);
        assert_eq!(waits(2, &[0.1, 0.41, 0.1]), Verdict::Fail);
        assert_eq!(waits(1, &[0.9]), Verdict::Open);
    }

    #[test]
    fn without_llama_cpp_a_ratio_stays_open() {
        assert_eq!(check("Q8_0", 1, What::Prefill(512), &[(9.0, None, None)]), Verdict::Open);
        assert_eq!(check("Q8_0", 1, What::Decode(64), &[(9.0, None, Some(0.5))]), Verdict::Open);
        assert_eq!(check("Q8_0", 1, What::Decode(64), &[(9.0, None, Some(0.9))]), Verdict::Pass);
        assert_eq!(check("Q8_0", 1, What::Idle, &[(0.009, None, None)]), Verdict::Pass);
        assert_eq!(check("Q8_0", 1, What::CachedPrefix, &[(0.11, None, None)]), Verdict::Fail);
    }
}
