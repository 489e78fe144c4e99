//! One download that is killed again and again: what is fetched again for that, and whether it ever has less
//! than before.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use super::super::Verdict;
use super::Programs;
use super::hub::{Hub, Model, PullTarget};
use crate::child::{self, Running};
use crate::rng::Rng;
use crate::system;
use crate::wait::wait_for;

/// Chunks that a kill may cost: one for each range that may be under way.
const AGAIN_MAX: u64 = 8;
/// Ranges at once, at most.
const RANGES_MAX: u64 = 8;
/// Of each connection: a chunk of 4 MiB then takes a second.
const RATE_MIN: u64 = 4 << 20;
/// From the first byte to the kill, at most.
const KILLED_MAX: Duration = Duration::from_millis(1500);
/// From the start to the first byte: what is on the disk may be looked through before.
const FIRST_MAX: Duration = Duration::from_secs(60);
/// For the rest, when no one kills it any more.
const REST_MAX: Duration = Duration::from_secs(600);
/// Between two looks at what is on the disk.
const POLL: Duration = Duration::from_millis(20);
/// The hub hears within this time that a connection is gone.
const STILL: Duration = Duration::from_millis(200);
/// A record of the map beside a partial file begins with the chunk's index and its hash.
const RECORD_BYTES: usize = 40;
const HASH: std::ops::Range<usize> = 4..36;

pub fn prove(programs: &Programs, model: &Model, kills: u32, seed: u64) -> anyhow::Result<Verdict> {
    // Each connection so slow that the model is not whole before the last kill, with all ranges at once, and
    // so fast that chunks are.
    let rate = model.bytes / ((u64::from(kills) + 2) * RANGES_MAX);
    if rate < RATE_MIN {
        let mib = (RATE_MIN * (u64::from(kills) + 2) * RANGES_MAX).div_ceil(1 << 20);
        bail!("{kills} kills want a model of at least {mib} MiB (--mib)");
    }
    let faults = ["--bytes-per-s".to_owned(), rate.to_string()];
    let hub = Hub::start(&programs.mock_hub, &model.folder, None, &faults)?;
    let target = PullTarget::new(&programs.folder)?;
    let (mut rng, mut disk) = (Rng::new(seed), DiskProgress::new(&target, model));
    let mut again = Vec::new();
    for kill in 1..=kills {
        let (sent_before, held_before) = (hub.counts()?.sent_bytes, disk.look()?);
        let mut running = start(programs, &hub, &target)?;
        wait_for("the first byte", (FIRST_MAX, POLL), || {
            check_under_way(&mut running, kill)?;
            disk.look()?;
            Ok((hub.counts()?.sent_bytes > sent_before).then_some(()))
        })?;
        let until = Instant::now() + Duration::from_millis(rng.below(KILLED_MAX.as_millis() as usize) as u64);
        while Instant::now() < until {
            std::thread::park_timeout(POLL.min(until - Instant::now()));
            check_under_way(&mut running, kill)?;
            disk.look()?;
        }
        running.kill()?;
        drop(running);
        let (sent, held) = (sent_at_last(&hub)?, disk.look()?);
        again.push((sent - sent_before).saturating_sub(held.saturating_sub(held_before)));
        eprintln!("kill {kill} of {kills}: {} of {} MiB are on the disk", held >> 20, model.bytes >> 20);
    }
    let mut running = start(programs, &hub, &target)?;
    let ended = wait_for("the rest of the download", (REST_MAX, POLL), || {
        disk.look()?;
        Ok(running.has_ended())
    });
    let (status, said) = ended?;
    if !status.success() {
        bail!("the last `exo pull` failed ({status}): {said}");
    }
    model.check(&target)?;
    let sent_bytes = hub.counts()?.sent_bytes;
    Ok(verdict(&again, sent_bytes.saturating_sub(model.bytes), &disk))
}

fn start(programs: &Programs, hub: &Hub, target: &PullTarget) -> anyhow::Result<Running> {
    child::start(hub.pull(Command::new(&programs.exo), target), &system::cores()?)
}

fn check_under_way(running: &mut Running, kill: u32) -> anyhow::Result<()> {
    match running.has_ended() {
        None => Ok(()),
        Some((status, said)) => bail!("`exo pull` ended before kill {kill} ({status}): {said}"),
    }
}

/// What the hub has sent when it sends no more.
fn sent_at_last(hub: &Hub) -> anyhow::Result<u64> {
    let mut before = hub.counts()?.sent_bytes;
    wait_for("the hub to stop sending", (FIRST_MAX, STILL), || {
        std::thread::park_timeout(STILL);
        let now = hub.counts()?.sent_bytes;
        let is_still = std::mem::replace(&mut before, now) == now;
        Ok(is_still.then_some(now))
    })
}

/// Verified bytes on the disk, looked at again and again.
struct DiskProgress {
    file: PathBuf,
    bytes: u64,
    chunk_bytes: u64,
    last: u64,
    /// The first time that there was less than before: how much, before and then.
    ran_back: Option<(u64, u64)>,
}

impl DiskProgress {
    fn new(target: &PullTarget, model: &Model) -> Self {
        Self { file: target.file(), bytes: model.bytes, chunk_bytes: 1, last: 0, ran_back: None }
    }

    fn look(&mut self) -> anyhow::Result<u64> {
        let now = self.verified()?;
        if now < self.last && self.ran_back.is_none() {
            self.ran_back = Some((self.last, now));
        }
        self.last = now;
        Ok(now)
    }

    /// What the map beside the file promises; all of it when the file has its name.
    fn verified(&mut self) -> anyhow::Result<u64> {
        let mut map = self.file.as_os_str().to_owned();
        map.push(".part.map");
        let map = match std::fs::read(Path::new(&map)) {
            Ok(map) => map,
            Err(_) if self.file.exists() => return Ok(self.bytes),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error).context("cannot read what is on the disk"),
        };
        // One that has no head yet promises nothing.
        let Some(head_len) = map.iter().position(|byte| *byte == b'\n') else { return Ok(0) };
        let head: Value = serde_json::from_slice(&map[..head_len]).context("the map has another head")?;
        self.chunk_bytes =
            head["chunk_bytes"].as_u64().context("the map does not say how large chunks are")?;
        Ok((promised(&map[head_len + 1..]) * self.chunk_bytes).min(self.bytes))
    }
}

/// Chunks that records promise; a hash of zeros takes a promise back.
fn promised(records: &[u8]) -> u64 {
    let mut chunks = BTreeSet::new();
    for record in records.chunks_exact(RECORD_BYTES) {
        let index = &record[..HASH.start];
        match record[HASH].iter().any(|byte| *byte != 0) {
            true => chunks.insert(index),
            false => chunks.remove(index),
        };
    }
    chunks.len() as u64
}

fn verdict(again: &[u64], again_in_all: u64, disk: &DiskProgress) -> Verdict {
    let chunks = |bytes: u64| bytes as f64 / disk.chunk_bytes as f64;
    let most = again.iter().copied().max().unwrap_or_default();
    let back = match disk.ran_back {
        None => "progress never ran backwards".to_owned(),
        Some((before, then)) => format!("progress ran backwards from {before} bytes to {then}"),
    };
    Verdict {
        line: format!(
            "pulls killed {} times: at most {:.1} chunks came again for a kill (bound {AGAIN_MAX}), {:.1} in all; {back}; the digest is right",
            again.len(),
            chunks(most),
            chunks(again_in_all),
        ),
        is_kept: most <= AGAIN_MAX * disk.chunk_bytes && disk.ran_back.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_costs_eight_chunks_at_most_and_nothing_that_was_there() {
        let check = |again: &[u64], ran_back| {
            let disk = DiskProgress { file: "x".into(), bytes: 100, chunk_bytes: 10, last: 0, ran_back };
            verdict(again, 0, &disk).is_kept
        };
        assert!(check(&[0, 80], None));
        assert!(!check(&[81], None) && !check(&[0], Some((20, 10))));
    }

    #[test]
    fn a_map_promises_each_chunk_once_and_takes_promises_back() {
        let record = |index: u8, hash: u8| {
            let mut record = [hash; RECORD_BYTES];
            record[..4].copy_from_slice(&[index, 0, 0, 0]);
            record
        };
        let map = [record(3, 7), record(4, 7), record(3, 8), record(4, 0)].concat();
        assert_eq!(promised(&map), 1);
        assert_eq!(promised(&map[..3 * RECORD_BYTES - 1]), 2, "the end is torn");
    }
}
