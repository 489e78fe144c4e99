//! Graphics processors, as `exo devices` finds them: each driver asked in a child, within a bound.

use exo_accelerators::report::Row;
use exo_types::SupportClass;

use super::Check;
use crate::commands::devices::{Filter, rows_unmeasured};
use crate::config::Config;

const NAME: &str = "graphics";

/// What nodes compute on, what they leave and why, and which driver is broken.
pub(super) async fn graphics(config: &Config) -> Vec<Check> {
    let backend = config.text("backend");
    if backend == "cpu" {
        let found = "no driver was asked, as the backend is cpu; models run on the processor";
        return vec![Check::note(NAME, found)];
    }
    let filter = Filter::of_settings(config);
    let rows = match rows_unmeasured(config, &filter).await {
        Ok(rows) => rows,
        // A node would not start.
        Err(error) => {
            return vec![Check::broken(NAME, format!("{error:#}")).next("`exo devices` shows what there is")];
        }
    };
    let is_named = filter.backend().is_some() || filter.device().is_some();
    // A card in quarantine is waited for; anything else that is named and cannot be used ends the start.
    let is_out = |row: &&Row| row.support == SupportClass::Unsupported && !row.is_quarantined();
    let mut cards = rows.iter().filter(|row| !row.is_processor());
    if is_named && rows.iter().all(|row| !row.is_processor()) && cards.all(|row| is_out(&row)) {
        let found: Vec<_> = rows.iter().map(|row| format!("{}: {}", row.label(), row.reason)).collect();
        let next = "no node starts with this `--backend` and `--device`; `exo devices` shows what there is";
        return vec![Check::broken(NAME, found.join("; ")).next(next)];
    }
    let checks: Vec<Check> =
        rows.iter().filter(|row| !row.is_processor()).map(|row| check(row, is_named)).collect();
    if checks.is_empty() {
        return vec![Check::note(NAME, "no driver shows a graphics processor; models run on the processor")];
    }
    checks
}

fn check(row: &Row, is_named: bool) -> Check {
    let found = format!("{}: {}", row.label(), row.reason);
    match row.support {
        SupportClass::Unsupported => Check::warning(NAME, found),
        _ if is_named => {
            Check::ok(NAME, format!("{}: nodes can compute on it, as the settings ask", row.label()))
        }
        _ if row.chosen => Check::ok(NAME, found),
        _ => Check::note(NAME, found),
    }
}
