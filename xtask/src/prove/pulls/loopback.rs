//! `exo pull`, `curl` and `dd` take turns: the same file from the same hub, and as many bytes to the same
//! disk.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use super::super::Verdict;
use super::hub::{Hub, Model, PullTarget, rate};
use super::{Programs, skipped};
use crate::pairs::median;
use crate::run;

/// Of what the slower of curl and the disk reaches.
const PERCENT_MIN: f64 = 80.0;
/// For one program.
const TURN_MAX: Duration = Duration::from_secs(300);

/// Bytes a second of each turn.
#[derive(Default)]
struct Rates {
    exo: Vec<f64>,
    curl: Vec<f64>,
    disk: Vec<f64>,
}

pub fn prove(programs: &Programs, model: &Model, rounds: u32) -> anyhow::Result<Verdict> {
    if let Some(missing) = ["curl", "dd"].iter().find(|program| !run::has(program)) {
        return Ok(skipped("on loopback", &format!("`{missing}` is not there")));
    }
    let hub = Hub::start(&programs.mock_hub, &model.folder, None, &[])?;
    let mut rates = Rates::default();
    for round in 1..=rounds {
        let target = PullTarget::new(&programs.folder)?;
        rates.exo.push(rate(model.bytes, hub.pull(Command::new(&programs.exo), &target), TURN_MAX)?);
        model.check(&target)?;
        drop(target);
        let file = programs.folder.join("beside");
        rates.curl.push(rate(model.bytes, curl(&hub.file_address(), &file), TURN_MAX)?);
        std::fs::remove_file(&file).context("curl has written no file")?;
        rates.disk.push(rate(model.bytes, dd(model.bytes, &file), TURN_MAX)?);
        std::fs::remove_file(&file).context("dd has written no file")?;
        let last = |rates: &[f64]| rates.last().copied().unwrap_or_default() / 1e6;
        eprintln!(
            "round {round} of {rounds}: exo {:.0} MB/s, curl {:.0}, the disk {:.0}",
            last(&rates.exo),
            last(&rates.curl),
            last(&rates.disk)
        );
    }
    Ok(verdict(model.bytes, rates))
}

fn curl(address: &str, file: &Path) -> Command {
    let mut curl = Command::new("curl");
    curl.args(["-q", "--silent", "--show-error", "--fail", "--location", "--noproxy", "*"]);
    curl.arg("--output").arg(file).arg(address);
    curl
}

/// Writes whole MiB, and waits for the disk.
fn dd(bytes: u64, file: &Path) -> Command {
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", "bs=1M", "conv=fdatasync", &format!("count={}", bytes >> 20)]);
    dd.arg(format!("of={}", file.display()));
    dd
}

fn verdict(bytes: u64, rates: Rates) -> Verdict {
    let rounds = rates.exo.len();
    let [exo, curl, disk] =
        [rates.exo, rates.curl, rates.disk].map(|rates| median(rates).unwrap_or_default());
    let percent = 100.0 * exo / curl.min(disk);
    Verdict {
        line: format!(
            "pulls on loopback: {} MiB at {:.0} MB/s, `curl -o` {:.0}, `dd` with fdatasync {:.0} (medians of {rounds}): {percent:.0} % of the \
             slower one (bound {PERCENT_MIN} %)",
            bytes >> 20,
            exo / 1e6,
            curl / 1e6,
            disk / 1e6,
        ),
        is_kept: percent >= PERCENT_MIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_is_held_to_the_slower_of_curl_and_the_disk() {
        let check = |exo: [f64; 3], curl: f64, disk: f64| {
            let rates = Rates {
                exo: exo.map(|mb| 1e6 * mb).to_vec(),
                curl: vec![1e6 * curl],
                disk: vec![1e6 * disk],
            };
            verdict(64 << 20, rates).is_kept
        };
        assert!(check([80.0, 80.0, 80.0], 100.0, 900.0) && check([80.0, 80.0, 80.0], 900.0, 100.0));
        assert!(!check([79.0, 79.0, 79.0], 100.0, 900.0));
        assert!(check([10.0, 85.0, 90.0], 100.0, 900.0), "the median counts");
    }
}
