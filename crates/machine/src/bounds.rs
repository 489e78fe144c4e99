//! Every wait of a node's machine, with its bound: the table in `docs/failure-model.md`, which
//! `cargo run -p exo-node --example failure_model` writes.

use std::time::Duration;

use exo_cluster::bounds::time;

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
/// By then a node that has just started, or joined, has heard from members that are there what they have, and
/// from the coordinator what is placed.
pub const HEARD_WITHIN: Duration = Duration::from_secs(5);

/// The table, as Markdown.
pub fn table() -> String {
    [
        "| what | bound | who watches it | then |\n|---|---|---|---|\n".to_owned(),
        exo_cluster::bounds::rows(),
        of_links(),
        of_members(),
        of_coordinators(),
        of_devices(),
        of_cut_off_nodes(),
        of_copies(),
        of_askers(),
    ]
    .concat()
}

fn of_links() -> String {
    format!(
        "| a data message for a link that is not open | {wait_max} | links | steps and tokens: the term ends or their answer is interrupted; others are repeated, or missed by a deadline |\n\
         | a link that is not accepted | {offer_max} | links | it is closed and dialled again |\n\
         | a link without a sign of life | {silence_max} | links | it is closed and dialled again |\n\
         | a control link without a sign of life beside a data link that lives | {outlived_max} | links | the same, over the other transport first |\n\
         | a member without an open data link | {unreached_after} | links | it is reported, and no placement puts the two beside each other |\n\
         | a key that two processes use | {apart_for} after only one of them was seen | links | that one is linked with again; until then neither is, and each is told |\n",
        wait_max = time(held::WAIT_MAX),
        offer_max = time(OFFER_MAX),
        silence_max = time(SILENCE_MAX),
        outlived_max = time(OUTLIVED_MAX),
        unreached_after = time(UNREACHED_AFTER),
        apart_for = time(APART_FOR),
    )
}

fn of_members() -> String {
    format!(
        "| a member that was suddenly disconnected | {declare_after_reset}; at once where its ports refuse connections | membership | it is lost: what it held is repaired |\n\
         | a member that is silent on both links | {declare} | membership | the same |\n\
         | a member of which no message comes while its data link lives | {declare_without_message} | membership | the same |\n\
         | members that were never heard | {patience} | membership | an election does not wait for them any longer |\n",
        declare_after_reset = time(exo_membership::DECLARE_AFTER_RESET),
        declare = time(exo_membership::DECLARE),
        declare_without_message = time(exo_membership::DECLARE_WITHOUT_MESSAGE),
        patience = time(exo_membership::PATIENCE),
    )
}

fn of_coordinators() -> String {
    format!(
        "| a question without a coordinator | {election_max} | machine | the asker hears that there is none; a request asks again |\n\
         | an answer of the coordinator | {ask_max}, or the end of the control link to it | machine | the asker hears that none came; a request asks again |\n\
         | an answer of the coordinator until a second member has it on its disk | {second_holder_max} | machine | it goes out, and says that only one member has it |\n\
         | an elected coordinator until it has what only others have | {catch_up_max} for each, {catch_up_all_max} in all | machine | it leads with what it has |\n\
         | a write of the log that the disk does not answer, of a coordinator or of one just elected | {log_write_max} in which the node ran | machine | where another member is alive it leaves the lead to that one, and does not take it before its disk answers |\n\
         | a candidate that lacks entries of another one, until it claims | {patience} longer than the other | membership | it leads, and takes in those entries first |\n\
         | a coordinator that sent an entry that cannot be | {distrust_for} | machine | it may be followed again; `exo status` says what it sent |\n\
         | a request of which there is no news | {watched_every} | machine | the server hears that it is watched; without that for 150 s it ends the request itself |\n",
        election_max = time(ELECTION_MAX),
        ask_max = time(ASK_MAX),
        second_holder_max = time(SECOND_HOLDER_MAX),
        catch_up_max = time(CATCH_UP_MAX),
        catch_up_all_max = time(CATCH_UP_ALL_MAX),
        log_write_max = time(LOG_WRITE_MAX),
        patience = time(exo_membership::PATIENCE),
        distrust_for = time(DISTRUST_FOR),
        watched_every = time(WATCHED_EVERY),
    )
}

fn of_devices() -> String {
    format!(
        "| a write of the log that the disk of any member does not answer | {log_write_max} in which the node ran | machine | its reports say so: it keeps the stages that it has, and plans leave it out until its disk answers |\n\
         | steps in which a device gave what is no number | 2 within {within}, of two requests with different prompts | machine | the device is in quarantine until `exo devices --retry`: the processor 10 min or until its node starts again, a card 10 min the first time and 6 h from then on; its stages go elsewhere |\n\
         | hidden rows that a stage keeps for when the one behind it is lost | no bound in time, {kept_rows_mib} MiB for a node, shared equally by its stages and by the sequences of each | stage | all stages compute the history again for which there are none |\n",
        log_write_max = time(LOG_WRITE_MAX),
        within = time(non_finite::WITHIN),
        kept_rows_mib = KEPT_ROWS_BYTES_MAX >> 20,
    )
}

fn of_cut_off_nodes() -> String {
    format!(
        "| a request or a question that needs a coordinator which others follow and this node does not hear | {cut_off_after} after this node noticed that others follow it; at once from then on | machine | it is refused with who is to be asked instead |\n\
         | a request whose model only nodes compute to which this one has no data link | {cut_off_after} after the link was lost, and {link_tried_for} of its own | machine | the same |\n\
         | a request whose model fits only over two members between which no data link is open | {cut_off_after} in which every plan came to that | machine | it is refused with their names |\n",
        cut_off_after = time(CUT_OFF_AFTER),
        link_tried_for = time(LINK_TRIED_FOR),
    )
}

fn of_copies() -> String {
    format!(
        "| the copy of a request that nothing was told of | {kept_for} | machine | it goes; the request cannot be gone on with any more |\n\
         | a claimed request whose node is not lost yet | {lost_within} | machine | the client hears that its node still answers it |\n\
         | a copy that was given to a node, until that one has a copy of its own elsewhere | {given_for} | machine | it may be claimed again |\n\
         | the members' answers to a claim | {claim_max} | machine | the client hears that no member it reaches has the request |\n\
         | a member that was not heard since the node was started or joined, of which a client claims a request | {reached_within} after that | machine | it is not waited for |\n",
        kept_for = time(KEPT_FOR),
        lost_within = time(LOST_WITHIN),
        given_for = time(GIVEN_FOR),
        claim_max = time(CLAIM_MAX),
        reached_within = time(REACHED_WITHIN),
    )
}

fn of_askers() -> String {
    format!(
        "| a change of the members that this node's disk has not taken | {log_write_max} in which the node ran | machine | what is not signed is not done; what is signed is written until the disk is sure; who asked for it hears which: `deadline_exceeded` |\n\
         | a command or a question that this node answers alone, with what it signs and writes first | {answer_max} | node | `deadline_exceeded`; a change of the members goes on without its asker, who hears so |\n\
         | one that the coordinator answers, where the asker's own node is held up | {coordinator_max} | node | `deadline_exceeded` |\n\
         | a model of which no member has told yet | {heard_within} after the start of the node that is asked, or after it joined | node | it is unknown |\n",
        log_write_max = time(LOG_WRITE_MAX),
        answer_max = time(ANSWER_MAX),
        coordinator_max = time(COORDINATOR_MAX),
        heard_within = time(HEARD_WITHIN),
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_of_the_documentation_is_that_of_the_code() {
        let page = include_str!("../../../docs/failure-model.md");
        assert!(page.contains(&super::table()), "`cargo run -p exo-node --example failure_model` writes it");
    }
}
