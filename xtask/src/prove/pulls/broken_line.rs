//! A hub behind a line, of whose answers many break off half way.

use std::time::Duration;

use super::super::Verdict;
use super::hub::{Hub, Model, PullTarget, rate};
use super::{Programs, skipped};
use crate::lan::Lan;
use crate::run;
use crate::wire::Wire;

/// Of what the line carries; the heads of frames are 4.4 % of that.
const PERCENT_MIN: f64 = 90.0;
/// Every n-th answer breaks off half way. exo asks for up to 64 MiB at once: with one in a hundred a download
/// of this size would see none.
const BREAK_EVERY: u64 = 4;
/// The machine of the hub, and the one that pulls.
const HUB_AT: usize = 0;
const PULLS_AT: usize = 1;

pub fn prove(programs: &Programs, model: &Model, line: Wire) -> anyhow::Result<Verdict> {
    if !run::has("ip") {
        return Ok(skipped("behind a line", "`ip` is not there"));
    }
    let lan = match Lan::with_wires(PULLS_AT + 1, line) {
        Ok(lan) => lan,
        Err(error) => return Ok(skipped("behind a line", &format!("{error:#}"))),
    };
    let faults = ["--break-every".to_owned(), BREAK_EVERY.to_string()];
    let hub = Hub::start(&programs.mock_hub, &model.folder, Some((&lan, HUB_AT)), &faults)?;
    let target = PullTarget::new(&programs.folder)?;
    let pull = hub.pull(lan.command(PULLS_AT, &programs.exo), &target);
    let line_seconds = 8.0 * model.bytes as f64 / line.bits_per_s as f64;
    let rate = rate(model.bytes, pull, Duration::from_secs_f64(60.0 + 3.0 * line_seconds))?;
    model.check(&target)?;
    Ok(verdict(model.bytes, rate, line, hub.counts()?.data_answers))
}

fn verdict(bytes: u64, rate: f64, line: Wire, answers: u64) -> Verdict {
    let (percent, broken) = (100.0 * 8.0 * rate / line.bits_per_s as f64, answers / BREAK_EVERY);
    Verdict {
        line: format!(
            "pulls behind {:.0} Mbit/s and {} ms each way: {} MiB at {:.2} MB/s, {percent:.1} % of the line (bound {PERCENT_MIN} %); {broken} of \
             {answers} answers broke off half way",
            line.bits_per_s as f64 / 1e6,
            line.delay.as_millis(),
            bytes >> 20,
            rate / 1e6,
        ),
        is_kept: percent >= PERCENT_MIN && broken > 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_to_be_filled_although_answers_break_off() {
        let line: Wire = "100:5".parse().unwrap();
        let check = |rate: f64, answers| verdict(64 << 20, rate, line, answers).is_kept;
        assert!(check(11.25e6, BREAK_EVERY));
        assert!(!check(11.24e6, BREAK_EVERY), "the line is not full");
        assert!(!check(11.25e6, BREAK_EVERY - 1), "nothing broke off");
    }
}
