//! Every wait of a node's machine, with its bound: the table in `docs/failure-model.md`, which
//! `cargo run -p exo-node --example failure_model` writes.

use std::time::Duration;

use exo_cluster::bounds::{Bound, time};

use crate::backups::{CLAIM_MAX, GIVEN_FOR, KEPT_FOR, LOST_WITHIN, REACHED_WITHIN};
use crate::coordination::{ASK_MAX, ELECTION_MAX};
use crate::cut_off::{CUT_OFF_AFTER, LINK_TRIED_FOR};
use crate::links::{APART_FOR, OFFER_MAX, OUTLIVED_MAX, SILENCE_MAX, UNREACHED_AFTER, held};
use crate::non_finite;
use crate::persist::LOG_WRITE_MAX;
use crate::replication::{CATCH_UP_ALL_MAX, CATCH_UP_MAX, DISTRUST_FOR, SECOND_HOLDER_MAX};
use crate::requests::WATCHED_EVERY;
use crate::worker::KEPT_ROWS_BYTES_MAX;

/// How long whoever asks a machine waits for an answer that needs no coordinator: the machine never waits
/// itself, but for its disk.
pub const ANSWER_MAX: Duration = Duration::from_secs(12);
/// The same of an answer of the coordinator: longer than the machine waits for it.
pub const COORDINATOR_MAX: Duration = Duration::from_secs(45);
/// By then a node that has just started has heard from members that are there what they have, and from the
/// coordinator what is placed.
pub const HEARD_WITHIN: Duration = Duration::from_secs(5);

/// The table, as Markdown.
pub fn table() -> String {
    let mut text = "| what | bound | who watches it | then |\n|---|---|---|---|\n".to_owned();
    for Bound { what, bound, owner, then } in [
        exo_cluster::bounds::bounds(),
        of_links(),
        of_members(),
        of_coordinators(),
        of_devices(),
        of_cut_off_nodes(),
        of_copies(),
        of_askers(),
    ]
    .concat()
    {
        text.push_str(&format!("| {what} | {bound} | {owner} | {then} |\n"));
    }
    text
}

fn of_links() -> Vec<Bound> {
    vec![
        Bound::new(
            "a data message for a link that is not open",
            time(held::WAIT_MAX),
            "links",
            "steps and tokens: the term ends or their answer is interrupted; others are repeated, or missed by a deadline",
        ),
        Bound::new("a link that is not accepted", time(OFFER_MAX), "links", "it is closed and dialled again"),
        Bound::new(
            "a link without a sign of life",
            time(SILENCE_MAX),
            "links",
            "it is closed and dialled again",
        ),
        Bound::new(
            "a control link without a sign of life beside a data link that lives",
            time(OUTLIVED_MAX),
            "links",
            "the same, over the other transport first",
        ),
        Bound::new(
            "a member without an open data link",
            time(UNREACHED_AFTER),
            "links",
            "it is reported, and no placement puts the two beside each other",
        ),
        Bound::new(
            "a key that two processes use",
            format!("{} after only one of them was seen", time(APART_FOR)),
            "links",
            "that one is linked with again; until then neither is, and each is told",
        ),
    ]
}

fn of_members() -> Vec<Bound> {
    let members = exo_membership::Config::default();
    vec![
        Bound::new(
            "a member that was suddenly disconnected",
            format!("{}; at once where its ports refuse connections", time(members.declare_after_reset)),
            "membership",
            "it is lost: what it held is repaired",
        ),
        Bound::new("a member that is silent on both links", time(members.declare), "membership", "the same"),
        Bound::new(
            "a member of which no message comes while its data link lives",
            time(members.declare_without_message),
            "membership",
            "the same",
        ),
        Bound::new(
            "members that were never heard",
            time(members.patience),
            "membership",
            "an election does not wait for them any longer",
        ),
    ]
}

fn of_coordinators() -> Vec<Bound> {
    vec![
        Bound::new(
            "a question without a coordinator",
            time(ELECTION_MAX),
            "machine",
            "the asker hears that there is none; a request asks again",
        ),
        Bound::new(
            "an answer of the coordinator",
            format!("{}, or the end of the control link to it", time(ASK_MAX)),
            "machine",
            "the asker hears that none came; a request asks again",
        ),
        Bound::new(
            "an answer of the coordinator until a second member has it on its disk",
            time(SECOND_HOLDER_MAX),
            "machine",
            "it goes out, and says that only one member has it",
        ),
        Bound::new(
            "an elected coordinator until it has what only others have",
            format!("{} for each, {} in all", time(CATCH_UP_MAX), time(CATCH_UP_ALL_MAX)),
            "machine",
            "it leads with what it has",
        ),
        Bound::new(
            "a write of the log that the disk does not answer, of a coordinator or of one just elected",
            format!("{} in which the node ran", time(LOG_WRITE_MAX)),
            "machine",
            "where another member is alive it leaves the lead to that one, and does not take it before its disk answers",
        ),
        Bound::new(
            "a candidate that lacks entries of another one, until it claims",
            format!("{} longer than the other", time(exo_membership::Config::default().patience)),
            "membership",
            "it leads, and takes in those entries first",
        ),
        Bound::new(
            "a coordinator that sent an entry that cannot be",
            time(DISTRUST_FOR),
            "machine",
            "it may be followed again; `exo status` says what it sent",
        ),
        Bound::new(
            "a request of which there is no news",
            time(WATCHED_EVERY),
            "machine",
            "the server hears that it is watched; without that for 150 s it ends the request itself",
        ),
    ]
}

fn of_devices() -> Vec<Bound> {
    vec![
        Bound::new(
            "a write of the log that the disk of any member does not answer",
            format!("{} in which the node ran", time(LOG_WRITE_MAX)),
            "machine",
            "its reports say so: it keeps the stages that it has, and plans leave it out until its disk answers",
        ),
        Bound::new(
            "steps in which a device gave what is no number",
            format!("2 within {}, of two requests with different prompts", time(non_finite::WITHIN)),
            "machine",
            "the device is in quarantine until `exo devices --retry`: the processor 10 min or until its node starts again, a card 10 min the first time and 6 h from then on; its stages go elsewhere",
        ),
        Bound::new(
            "hidden rows that a stage keeps for when the one behind it is lost",
            format!(
                "no bound in time, {} MiB for a node, shared equally by its stages and by the sequences of each",
                KEPT_ROWS_BYTES_MAX >> 20
            ),
            "stage",
            "all stages compute the history again for which there are none",
        ),
    ]
}

fn of_cut_off_nodes() -> Vec<Bound> {
    vec![
        Bound::new(
            "a request or a question that needs a coordinator which others follow and this node does not hear",
            format!(
                "{} after this node noticed that others follow it; at once from then on",
                time(CUT_OFF_AFTER)
            ),
            "machine",
            "it is refused with who is to be asked instead",
        ),
        Bound::new(
            "a request whose model only nodes compute to which this one has no data link",
            format!(
                "{} after the link was lost, and {} of its own",
                time(CUT_OFF_AFTER),
                time(LINK_TRIED_FOR)
            ),
            "machine",
            "the same",
        ),
        Bound::new(
            "a request whose model fits only over two members between which no data link is open",
            format!("{} in which every plan came to that", time(CUT_OFF_AFTER)),
            "machine",
            "it is refused with their names",
        ),
    ]
}

fn of_copies() -> Vec<Bound> {
    vec![
        Bound::new(
            "the copy of a request that nothing was told of",
            time(KEPT_FOR),
            "machine",
            "it goes; the request cannot be gone on with any more",
        ),
        Bound::new(
            "a claimed request whose node is not lost yet",
            time(LOST_WITHIN),
            "machine",
            "the client hears that its node still answers it",
        ),
        Bound::new(
            "a copy that was given to a node, until that one has a copy of its own elsewhere",
            time(GIVEN_FOR),
            "machine",
            "it may be claimed again",
        ),
        Bound::new(
            "the members' answers to a claim",
            time(CLAIM_MAX),
            "machine",
            "the client hears that no member it reaches has the request",
        ),
        Bound::new(
            "a member that was not heard since the node was started, of which a client claims a request",
            format!("{} after the start", time(REACHED_WITHIN)),
            "machine",
            "it is not waited for",
        ),
    ]
}

fn of_askers() -> Vec<Bound> {
    vec![
        Bound::new(
            "a change of the members that this node's disk has not taken",
            format!("{} in which the node ran", time(LOG_WRITE_MAX)),
            "machine",
            "what is not signed is not done; what is signed is written until the disk is sure; who asked for it hears which: `deadline_exceeded`",
        ),
        Bound::new(
            "a command or a question that this node answers alone, with what it signs and writes first",
            time(ANSWER_MAX),
            "node",
            "`deadline_exceeded`; a change of the members goes on without its asker, who hears so",
        ),
        Bound::new(
            "one that the coordinator answers, where the asker's own node is held up",
            time(COORDINATOR_MAX),
            "node",
            "`deadline_exceeded`",
        ),
        Bound::new(
            "a model of which no member has told yet",
            format!("{} after the start of the node that is asked", time(HEARD_WITHIN)),
            "node",
            "it is unknown",
        ),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_of_the_documentation_is_that_of_the_code() {
        let page = include_str!("../../../docs/failure-model.md");
        assert!(page.contains(&super::table()), "`cargo run -p exo-node --example failure_model` writes it");
    }
}
