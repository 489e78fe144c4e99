//! What a node with `--backend auto` would make of each device, and how to ask for one by hand.

use exo_node::{Candidate, Ranking, seconds};
use exo_types::SupportClass;

use super::Row;
use crate::auto;

/// Adds to each row whether a node computes on it by itself, else why not, and what asks for it.
pub fn add(rows: &mut [Row], ranking: &Ranking) {
    let chosen = ranking.candidates.first();
    for row in rows {
        if row.backends.first().is_some_and(|backend| backend == "cpu") {
            row.chosen = chosen.is_none();
            let why = chosen.map(|chosen| {
                format!("a node takes {} by itself; --backend cpu asks for this", chosen.label)
            });
            append(&mut row.reason, why.as_deref().unwrap_or("a node takes it by itself"));
        } else if row.support != SupportClass::Unsupported {
            row.chosen = chosen.is_some_and(|chosen| is_of(row, &chosen.label));
            let decision = decision(row, ranking, chosen);
            append(&mut row.reason, &decision);
        }
    }
}

/// Of a graphics processor that can be used.
fn decision(row: &Row, ranking: &Ranking, chosen: Option<&Candidate>) -> String {
    let how = row.backends.first().and_then(|place| place.split_once(':'));
    let how = how.map_or_else(String::new, |(backend, index)| {
        format!("; --backend {backend} --device {index} asks for it")
    });
    let own = ranking.candidates.iter().find(|candidate| is_of(row, &candidate.label));
    match (own, chosen) {
        (Some(own), Some(chosen)) if own.label == chosen.label => {
            let own_s = seconds(chosen.seconds);
            let than = ranking.processor_s.map(|s| format!(", where the processor takes {}", seconds(s)));
            let place = row.backends.iter().find(|place| is_at(&own.label, place)).map_or("", String::as_str);
            format!("a node takes it by itself, as {place}: {own_s}{}{how}", than.unwrap_or_default())
        }
        (Some(own), Some(chosen)) => {
            let (own_s, best_s) = (seconds(own.seconds), seconds(chosen.seconds));
            format!("no node takes it by itself: {own_s} for what takes {} {best_s}{how}", chosen.label)
        }
        _ => {
            let out = ranking.left_out.iter().find(|out| is_of(row, &out.label));
            // That it plays a card, the row says.
            let out = out.filter(|out| out.reason != auto::SOFTWARE);
            let why = out.map_or_else(String::new, |out| format!(": {}", out.reason));
            format!("no node takes it by itself{why}{how}")
        }
    }
}

/// Whether a label is that of a device of this row.
fn is_of(row: &Row, label: &str) -> bool {
    row.backends.iter().any(|place| is_at(label, place))
}

fn is_at(label: &str, place: &str) -> bool {
    label.ends_with(&format!("({place})"))
}

fn append(reason: &mut String, more: &str) {
    if !reason.is_empty() {
        reason.push_str("; ");
    }
    reason.push_str(more);
}
