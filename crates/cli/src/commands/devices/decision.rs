//! What a node with `--backend auto` would make of each device, and how to ask for one by hand.

use exo_node::{Candidate, Ranking, seconds};
use exo_types::SupportClass;

use super::Row;
use crate::auto;

/// Adds to each row whether a node computes on it by itself, else why not, and what asks for it.
pub fn add(rows: &mut [Row], ranking: &Ranking) {
    let chosen = ranking.each_card();
    for row in rows {
        if row.backends.first().is_some_and(|backend| backend == "cpu") {
            row.chosen = chosen.is_empty();
            let why = chosen.first().map(|best| {
                format!("a node takes {} before it by itself; --backend cpu asks for this alone", best.label)
            });
            append(&mut row.reason, why.as_deref().unwrap_or("a node takes it by itself"));
        } else if row.support != SupportClass::Unsupported {
            row.chosen = chosen.iter().any(|chosen| is_of(row, &chosen.label));
            let decision = decision(row, ranking, &chosen);
            append(&mut row.reason, &decision);
        }
    }
}

/// Of a graphics processor that can be used.
fn decision(row: &Row, ranking: &Ranking, chosen: &[&Candidate]) -> String {
    let how = row.backends.first().and_then(|place| place.split_once(':'));
    let how = how.map_or_else(String::new, |(backend, index)| {
        format!("; --backend {backend} --device {index} asks for it")
    });
    match chosen.iter().find(|candidate| is_of(row, &candidate.label)) {
        Some(own) => {
            let own_s = seconds(own.seconds);
            let than = ranking.processor_s.map(|s| format!(", where the processor takes {}", seconds(s)));
            let place = row.backends.iter().find(|place| is_at(&own.label, place)).map_or("", String::as_str);
            format!("a node takes it by itself, as {place}: {own_s}{}{how}", than.unwrap_or_default())
        }
        None => {
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
