//! Copies of requests: of this node's own in the memory of another member, of others' here.
//!
//! Whoever drives a request tells one other member of it and of its tokens, a few times a second; one that
//! computes for it where there is one. When its node is lost, the copy is given to the member that its client
//! turns to, against the hash of the secret that the client was given. What is lost with the node is computed
//! again, to the same tokens. A copy goes [`KEPT_FOR`] after the last that was heard of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use exo_api::NodeStatus;
use exo_cluster::wire::{BACKUP_BYTES_MAX, Backup, BackupMessage, Claimed, ControlMessage, token_bytes};
use exo_types::{ModelId, NodeId, RequestId, SampledToken, SequenceId, Time};

use crate::{Answer, BackupStart, NodeMachine, Purpose, ReplyId, Unclaimed};

/// A copy is kept for so long after the last word of its node.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(60);
/// How often the keeper is told of new tokens.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// How often it is told where there are none.
const REMIND_EVERY: Duration = Duration::from_secs(15);
/// For the answers of all members to a claim.
pub(crate) const CLAIM_MAX: Duration = Duration::from_secs(8);
/// For a node that answers a claimed request to be lost: its client knows of its death before the others do.
pub(crate) const LOST_WITHIN: Duration = Duration::from_secs(6);
/// A node that has just started, or joined, reaches its members one after the other: for so long what its
/// clients claim waits for those that it has not heard.
pub(crate) const REACHED_WITHIN: Duration = Duration::from_secs(3);
/// Who was given a copy has begun to answer, or has failed to.
pub(crate) const GIVEN_FOR: Duration = Duration::from_secs(10);
/// All copies of others' requests, of which one node may take half; and all own requests with a copy.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// What keepers are told at a tick: messages, and bytes in them. The rest is told at the next ones.
const TOLD_MAX: (usize, usize) = (128, 8 << 20);
/// Claims that wait here, of this node's clients and of others.
const CLAIMS_MAX: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Backups {
    /// When this node was started, or came to its cluster.
    since: Time,
    /// This node's own, by the id under which they run.
    own: BTreeMap<RequestId, Own>,
    kept: BTreeMap<RequestId, KeptBackup>,
    /// Claims of this node's clients.
    claims: BTreeMap<u64, Claim>,
    last_claim: u64,
    /// Claims of requests whose node is not lost yet.
    waiting: Vec<Waiting>,
    /// Who gave this node what it has claimed, until that runs here; the latest last.
    givers: VecDeque<(RequestId, NodeId)>,
    /// This node is about to end: what its clients lose by that they may claim elsewhere.
    is_leaving: bool,
}

#[derive(Debug)]
struct Own {
    start: BackupStart,
    bytes: usize,
    keeper: Option<NodeId>,
    /// Who kept it for the node before this one, until another one keeps it.
    giver: Option<NodeId>,
    is_resumed: bool,
    is_failed: bool,
    /// Members that have no room for it.
    refused_by: BTreeSet<NodeId>,
    /// Tokens of each choice that the keeper was told.
    told: Vec<usize>,
    told_at: Time,
}

#[derive(Debug)]
struct KeptBackup {
    from: NodeId,
    /// Who goes on with it, and since when.
    given: Option<(NodeId, Time)>,
    /// Its node is not heard any more, or could not go on with it.
    is_orphan: bool,
    proof: [u8; 32],
    backup: Backup,
    bytes: usize,
    heard_at: Time,
}

#[derive(Debug)]
struct Claim {
    reply: ReplyId,
    request: RequestId,
    proof: [u8; 32],
    /// Members that have not answered.
    asked: BTreeSet<NodeId>,
    answered: BTreeSet<NodeId>,
    is_running: bool,
    until: Time,
}

#[derive(Debug)]
struct Waiting {
    asker: NodeId,
    claim: u64,
    request: RequestId,
    until: Time,
}

impl Backups {
    /// None, on a node that starts now.
    pub(crate) fn new(now: Time) -> Self {
        Self { since: now, ..Self::default() }
    }

    /// For so much more of a node's requests.
    fn has_room(&self, from: NodeId, bytes: usize) -> bool {
        let kept = self.kept.values();
        let all: usize = kept.clone().map(|kept| kept.bytes).sum();
        let own: usize = kept.filter(|kept| kept.from == from).map(|kept| kept.bytes).sum();
        all + bytes <= KEPT_BYTES_MAX && own + bytes <= KEPT_BYTES_MAX / 2
    }
}

impl KeptBackup {
    /// Whether a node may say what becomes of it.
    fn is_of(&self, node: NodeId) -> bool {
        self.from == node || self.given.is_some_and(|(to, _)| to == node)
    }
}

impl NodeMachine {
    /// A request of this node's begins, under the id `run`.
    pub(crate) fn back_up(&mut self, run: RequestId, start: BackupStart) {
        let (request, bytes) = (start.request, start.backup.bytes());
        let given = self.backups.givers.iter().position(|(given, _)| *given == request);
        let giver = given.and_then(|at| self.backups.givers.remove(at)).map(|(_, giver)| giver);
        // Whoever claims twice goes on with the later one.
        self.backups.own.retain(|_, own| own.start.request != request);
        let all: usize = self.backups.own.values().map(|own| own.bytes).sum();
        if bytes > BACKUP_BYTES_MAX || all + bytes > KEPT_BYTES_MAX {
            return tracing::debug!(%request, bytes, all, "no copy of a request: it or all are too large");
        }
        let mut own = Own {
            told: vec![0; start.backup.choices.len()],
            start,
            bytes,
            keeper: None,
            giver,
            is_resumed: giver.is_some(),
            is_failed: false,
            refused_by: BTreeSet::new(),
            told_at: self.awake.now(),
        };
        // At once: its client may have a token before the next tick.
        self.tell_keeper(&mut own);
        self.backups.own.insert(run, own);
    }

    /// A token came for one of this node's clients.
    pub(crate) fn back_up_token(&mut self, sequence: SequenceId, token: &SampledToken) {
        let Some(own) = self.backups.own.get_mut(&sequence.request) else { return };
        if let Some(tokens) = own.start.backup.choices.get_mut(usize::from(sequence.index)) {
            own.bytes += token_bytes(token);
            tokens.push(token.clone());
        }
    }

    /// A choice of a request failed.
    pub(crate) fn backup_failed(&mut self, run: RequestId) {
        if let Some(own) = self.backups.own.get_mut(&run) {
            own.is_failed = true;
        }
    }

    /// A request's client has its answer or has left, or is told that this node ends.
    pub(crate) fn backup_over(&mut self, run: RequestId) {
        let Some(own) = self.backups.own.remove(&run) else { return };
        if self.backups.is_leaving {
            return;
        }
        let request = own.start.request;
        // What another node began and this one could not go on with may be tried by a third.
        let message = match own.is_resumed && own.is_failed {
            true => BackupMessage::GiveUp { request },
            false => BackupMessage::End { request },
        };
        for keeper in own.keeper.into_iter().chain(own.giver).collect::<BTreeSet<_>>() {
            self.send_backup(keeper, message.clone());
        }
    }

    /// This node has come to another cluster, and has not heard its members yet.
    pub(crate) fn backups_moved(&mut self) {
        self.backups.since = self.awake.now();
    }

    /// How long ago it was started, or came to its cluster.
    pub(crate) fn is_here_for(&self) -> Duration {
        self.awake.now().since(self.backups.since)
    }

    /// This node is about to end: what its clients asked is not over with their streams.
    pub(crate) fn backups_leave(&mut self) {
        self.backups.is_leaving = true;
    }

    /// A control link of a member ended or began: what it keeps alive it says again.
    pub(crate) fn backups_doubt(&mut self, node: NodeId) {
        let kept = self.backups.kept.values_mut().filter(|kept| kept.from == node);
        kept.for_each(|kept| kept.is_orphan = true);
        // What it was asked may have been in the link.
        if self.links.is_open(node, Purpose::Control) {
            return self.claims_reach(node);
        }
        for claim in self.backups.claims.values_mut() {
            claim.asked.remove(&node);
        }
    }

    /// The control link of a member is open: it is asked for what this node's clients claim.
    pub(crate) fn claims_reach(&mut self, node: NodeId) {
        let claims = self.backups.claims.iter_mut().filter(|(_, claim)| !claim.answered.contains(&node));
        let asks: Vec<(u64, RequestId, [u8; 32])> = claims
            .map(|(id, claim)| {
                claim.asked.insert(node);
                (*id, claim.request, claim.proof)
            })
            .collect();
        for (claim, request, proof) in asks {
            self.send_claim(node, claim, request, &proof);
        }
    }

    pub(crate) fn tick_backups(&mut self) {
        self.tell_keepers();
        let now = self.awake.now();
        self.backups.kept.retain(|_, kept| now.since(kept.heard_at) < KEPT_FOR);
        let waiting = std::mem::take(&mut self.backups.waiting);
        for Waiting { asker, claim, request, until } in waiting {
            if self.is_running(request, asker) && now < until {
                self.backups.waiting.push(Waiting { asker, claim, request, until });
            } else {
                self.answer_claim(asker, claim, request);
            }
        }
        let claims = self.backups.claims.iter();
        let over = claims.filter(|(_, claim)| now >= claim.until || self.is_answered_by_all(claim));
        let over: Vec<u64> = over.map(|(id, _)| *id).collect();
        over.into_iter().for_each(|claim| self.give_up_claim(claim));
    }

    /// How many there are here: copies of own requests and of others', and claims that wait.
    pub(crate) fn backup_counts(&self) -> (usize, usize, usize) {
        let claims = self.backups.claims.len() + self.backups.waiting.len();
        (self.backups.own.len(), self.backups.kept.len(), claims)
    }

    fn tell_keepers(&mut self) {
        let now = self.awake.now();
        let due = self.backups.own.iter().filter(|(_, own)| now.since(own.told_at) >= TELL_EVERY);
        let mut due: Vec<(Time, RequestId)> = due.map(|(run, own)| (own.told_at, *run)).collect();
        due.sort();
        let mut all: usize = self.backups.own.values().map(|own| own.bytes).sum();
        let (mut messages, mut bytes) = (0, 0);
        for (_, run) in due {
            if messages >= TOLD_MAX.0 || bytes >= TOLD_MAX.1 {
                break;
            }
            let Some(mut own) = self.backups.own.remove(&run) else { continue };
            if own.bytes > BACKUP_BYTES_MAX || all > KEPT_BYTES_MAX {
                all -= own.bytes;
                let request = own.start.request;
                tracing::debug!(%request, bytes = own.bytes, all, "a copy of a request is given up: it or all are too large");
                own.keeper.into_iter().for_each(|k| self.send_backup(k, BackupMessage::End { request }));
                messages += 1;
                continue;
            }
            let told = self.tell_keeper(&mut own);
            (messages, bytes) = (messages + told.0, bytes + told.1);
            self.backups.own.insert(run, own);
        }
    }

    /// Messages, and about their bytes.
    fn tell_keeper(&mut self, own: &mut Own) -> (usize, usize) {
        let BackupStart { request, proof, backup } = &own.start;
        let (request, now) = (*request, self.awake.now());
        let lengths: Vec<usize> = backup.choices.iter().map(Vec::len).collect();
        let is_there = |node: &NodeId| self.links.is_open(*node, Purpose::Control);
        let Some(keeper) = own.keeper.filter(is_there) else {
            own.told_at = now;
            own.keeper = self.keeper_for(backup.model, &own.refused_by);
            let Some(keeper) = own.keeper else { return (0, 0) };
            let begin = BackupMessage::Begin { request, proof: *proof, backup: backup.clone() };
            self.send_backup(keeper, begin);
            own.told = lengths;
            return (1, own.bytes);
        };
        // It has kept it for a while: whoever gave it to this node need not.
        if let Some(giver) = own.giver.take().filter(|giver| *giver != keeper) {
            self.send_backup(giver, BackupMessage::End { request });
        }
        let (mut messages, mut bytes) = (0, 0);
        let is_silent = now.since(own.told_at) >= REMIND_EVERY;
        for (index, tokens) in (0u16..).zip(&backup.choices) {
            let position = own.told.get(usize::from(index)).copied().unwrap_or(tokens.len());
            if position < tokens.len() || (is_silent && index == 0) {
                let tokens = tokens.get(position..).unwrap_or_default().to_vec();
                #[cfg(feature = "planted")]
                let tokens = match self.has_bug(crate::planted::Bug::CopyReversed) {
                    true => tokens.into_iter().rev().collect(),
                    false => tokens,
                };
                (messages, bytes) = (messages + 1, bytes + tokens.iter().map(token_bytes).sum::<usize>());
                let message = BackupMessage::Tokens { request, index, position: position as u32, tokens };
                self.send_backup(keeper, message);
                own.told_at = now;
            }
        }
        own.told = lengths;
        (messages, bytes)
    }

    /// A member that computes for the model and is reached; else any that is reached.
    fn keeper_for(&self, model: ModelId, refused_by: &BTreeSet<NodeId>) -> Option<NodeId> {
        let stages = self.instances.iter().filter(|instance| instance.model() == model);
        let computing = stages.flat_map(|instance| instance.placement.shards()).map(|(_, shard)| shard.node);
        let mut all = computing.chain(self.members.iter().copied());
        all.find(|node| {
            *node != self.me && !refused_by.contains(node) && self.links.is_open(*node, Purpose::Control)
        })
    }

    pub(crate) fn backup_message(&mut self, from: NodeId, message: BackupMessage) {
        match message {
            BackupMessage::Begin { request, proof, backup } => self.keep(from, request, proof, backup),
            BackupMessage::Tokens { request, index, position, tokens } => {
                self.keep_tokens(from, request, index, position, tokens);
            }
            BackupMessage::End { request } => {
                let kept = self.backups.kept.get(&request);
                if kept.is_some_and(|kept| kept.is_of(from)) {
                    self.backups.kept.remove(&request);
                } else {
                    tracing::trace!(%from, %request, "the end of a request of which it has no copy here");
                }
            }
            BackupMessage::GiveUp { request } => {
                let kept = self.backups.kept.get_mut(&request);
                if let Some(kept) = kept.filter(|kept| kept.is_of(from)) {
                    (kept.is_orphan, kept.given, kept.heard_at) = (true, None, self.awake.now());
                } else {
                    tracing::trace!(%from, %request, "gives up a request of which it has no copy here");
                }
            }
            BackupMessage::Dropped { request, has_room } => self.copy_dropped(from, request, has_room),
            BackupMessage::Claim { claim, request, proof } => self.claimed(from, claim, request, proof),
            BackupMessage::Claimed { claim, claimed } => self.claim_answered(from, claim, claimed),
        }
    }

    fn keep(&mut self, from: NodeId, request: RequestId, proof: [u8; 32], backup: Backup) {
        let known = self.backups.kept.get(&request);
        // Who goes on with a request that it has claimed has shown the proof.
        if known.is_some_and(|kept| kept.from != from && kept.proof != proof) {
            return tracing::debug!(peer = %from, %request, "a copy of a request that is another node's");
        }
        self.backups.kept.remove(&request);
        let bytes = backup.bytes();
        if !self.backups.has_room(from, bytes) {
            tracing::debug!(peer = %from, %request, bytes, "no room for the copy of a request");
            return self.send_backup(from, BackupMessage::Dropped { request, has_room: false });
        }
        let heard_at = self.awake.now();
        let kept = KeptBackup { from, given: None, is_orphan: false, proof, backup, bytes, heard_at };
        self.backups.kept.insert(request, kept);
    }

    fn keep_tokens(
        &mut self,
        from: NodeId,
        request: RequestId,
        index: u16,
        position: u32,
        tokens: Vec<SampledToken>,
    ) {
        let more: usize = tokens.iter().map(token_bytes).sum();
        let mut has_room = self.backups.has_room(from, more);
        let kept = self.backups.kept.get_mut(&request).filter(|kept| kept.from == from);
        if let Some(kept) = kept {
            has_room &= kept.bytes + more <= BACKUP_BYTES_MAX;
            let choice = kept.backup.choices.get_mut(usize::from(index));
            if let Some(choice) = choice.filter(|choice| has_room && choice.len() == position as usize) {
                choice.extend(tokens);
                kept.bytes += more;
                (kept.heard_at, kept.is_orphan) = (self.awake.now(), false);
                return;
            }
            // A copy with a gap is none.
            self.backups.kept.remove(&request);
        }
        tracing::debug!(peer = %from, %request, index, position, has_room, "a copy of a request is not kept");
        self.send_backup(from, BackupMessage::Dropped { request, has_room });
    }

    /// A member has no copy of an own request, or none without a gap. One that has room is told all of it
    /// again.
    fn copy_dropped(&mut self, from: NodeId, request: RequestId, has_room: bool) {
        let mut own = self.backups.own.values_mut();
        let own = own.find(|own| own.start.request == request && own.keeper == Some(from));
        if let Some(own) = own {
            own.keeper = None;
            if !has_room {
                own.refused_by.insert(from);
            }
        } else {
            tracing::trace!(%from, %request, "no copy of a request that it is not to keep");
        }
    }

    // ---- claims ----

    /// A client of this node's wants to go on with a request that another one answered.
    pub(crate) fn claim(&mut self, reply: ReplyId, request: RequestId, proof: [u8; 32]) {
        if self.backups.claims.len() >= CLAIMS_MAX {
            return self.reply(reply, Answer::Claimed(Err(Unclaimed::Busy)));
        }
        self.backups.last_claim += 1;
        let claim = self.backups.last_claim;
        let reached = |node: &NodeId| self.links.is_open(*node, Purpose::Control);
        let mut asked: BTreeSet<NodeId> = self.members.iter().copied().filter(reached).collect();
        asked.insert(self.me);
        let until = self.awake.now() + CLAIM_MAX;
        let (answered, is_running) = (BTreeSet::new(), false);
        let entry = Claim { reply, request, proof, asked: asked.clone(), answered, is_running, until };
        self.backups.claims.insert(claim, entry);
        for node in asked {
            self.send_claim(node, claim, request, &proof);
        }
    }

    fn send_claim(&mut self, to: NodeId, claim: u64, request: RequestId, proof: &[u8; 32]) {
        let proof = *shown(proof, request, self.me, to).as_bytes();
        self.send_backup(to, BackupMessage::Claim { claim, request, proof });
    }

    /// Whether all members have answered that could: one that lives may be linked with again in a moment,
    /// and one that was not heard since this node was started as well.
    fn is_answered_by_all(&self, claim: &Claim) -> bool {
        let is_new = self.is_here_for() < REACHED_WITHIN;
        let may_answer = |node: &NodeId| {
            let is_expected = self.statuses.get(node).map_or(is_new, |status| !status.is_gone());
            is_expected && *node != self.me && !self.links.is_open(*node, Purpose::Control)
        };
        let mut others = self.members.iter().filter(|node| !claim.answered.contains(*node));
        claim.asked.is_empty() && !others.any(may_answer)
    }

    fn claimed(&mut self, asker: NodeId, claim: u64, request: RequestId, proof: [u8; 32]) {
        let kept = self.backups.kept.get(&request);
        if !kept.is_some_and(|kept| shown(&kept.proof, request, asker, self.me) == proof) {
            return self.send_backup(asker, BackupMessage::Claimed { claim, claimed: Claimed::Unknown });
        }
        if self.is_running(request, asker) && self.backups.waiting.len() < CLAIMS_MAX {
            let until = self.awake.now() + LOST_WITHIN;
            return self.backups.waiting.push(Waiting { asker, claim, request, until });
        }
        self.answer_claim(asker, claim, request);
    }

    /// Whether somebody else than the asker answers a request whose copy is here.
    fn is_running(&self, request: RequestId, asker: NodeId) -> bool {
        let Some(kept) = self.backups.kept.get(&request) else { return false };
        let is_alive =
            |node| self.members.contains(&node) && self.statuses.get(&node) == Some(&NodeStatus::Alive);
        let given = kept.given.filter(|(to, at)| *to != asker && self.awake.now().since(*at) < GIVEN_FOR);
        match given {
            Some((to, _)) => is_alive(to),
            None => !kept.is_orphan && kept.from != asker && is_alive(kept.from),
        }
    }

    /// To who has shown the proof.
    fn answer_claim(&mut self, asker: NodeId, claim: u64, request: RequestId) {
        let (is_running, now, me) = (self.is_running(request, asker), self.awake.now(), self.me);
        let claimed = match self.backups.kept.get_mut(&request) {
            None => Claimed::Unknown,
            Some(_) if is_running => Claimed::Running,
            Some(kept) => {
                kept.given = Some((asker, now));
                let proof = *given(&kept.proof, request, asker, me, &kept.backup).as_bytes();
                Claimed::Kept { backup: kept.backup.clone(), proof }
            }
        };
        self.send_backup(asker, BackupMessage::Claimed { claim, claimed });
    }

    fn claim_answered(&mut self, from: NodeId, id: u64, claimed: Claimed) {
        let claim = self.backups.claims.get_mut(&id);
        let Some(claim) = claim.filter(|claim| claim.asked.contains(&from)) else {
            return tracing::trace!(%from, id, "an answer to no claim");
        };
        claim.asked.remove(&from);
        claim.answered.insert(from);
        claim.is_running |= claimed == Claimed::Running;
        let (reply, request) = (claim.reply, claim.request);
        match claimed {
            Claimed::Kept { backup, proof }
                if given(&claim.proof, request, self.me, from, &backup) == proof =>
            {
                self.backups.claims.remove(&id);
                if self.backups.givers.len() >= CLAIMS_MAX {
                    self.backups.givers.pop_front();
                }
                self.backups.givers.push_back((request, from));
                return self.reply(reply, Answer::Claimed(Ok(backup)));
            }
            Claimed::Kept { .. } => {
                tracing::debug!(peer = %from, %request, "a copy from who does not know its proof")
            }
            Claimed::Unknown | Claimed::Running => {}
        }
        if self.backups.claims.get(&id).is_some_and(|claim| self.is_answered_by_all(claim)) {
            self.give_up_claim(id);
        }
    }

    fn give_up_claim(&mut self, id: u64) {
        let Some(claim) = self.backups.claims.remove(&id) else { return };
        let why = if claim.is_running { Unclaimed::Running } else { Unclaimed::Unknown };
        self.reply(claim.reply, Answer::Claimed(Err(why)));
    }

    fn send_backup(&mut self, to: NodeId, message: BackupMessage) {
        if !self.send_control(to, ControlMessage::Backup(message)) {
            tracing::debug!(peer = %to, "a word on the copy of a request found no link");
        }
    }
}

/// What shows a keeper that the asker knows the hash of the secret. Every member is asked, and what one is
/// shown is worth nothing with another.
fn shown(proof: &[u8; 32], request: RequestId, asker: NodeId, keeper: NodeId) -> blake3::Hash {
    let parts = [&b"exo claims a request"[..], &request.0.to_le_bytes(), &asker.0, &keeper.0];
    blake3::keyed_hash(proof, &parts.concat())
}

/// What shows the asker that a copy is from who was given the hash of the secret by the request's node:
/// others make up none.
fn given(
    proof: &[u8; 32],
    request: RequestId,
    asker: NodeId,
    keeper: NodeId,
    backup: &Backup,
) -> blake3::Hash {
    // Plain values always serialise.
    let copy = blake3::hash(&postcard::to_stdvec(backup).unwrap_or_default());
    let parts = [&b"exo gives a request"[..], &request.0.to_le_bytes(), &asker.0, &keeper.0, copy.as_bytes()];
    blake3::keyed_hash(proof, &parts.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_for_one_member_take_half_of_the_room_and_those_for_all_no_more_than_it() {
        const HALF: usize = 32 << 20;
        let [one, two, three] = [1, 2, 3].map(|byte| NodeId([byte; 32]));
        let mut backups = Backups::new(Time::ZERO);
        for (request, from) in [(1, one), (2, two)] {
            assert!(backups.has_room(from, HALF) && !backups.has_room(from, HALF + 1));
            let backup = Backup { model: ModelId([1; 32]), record: Vec::new(), choices: Vec::new() };
            let (given, is_orphan, proof) = (None, false, [0; 32]);
            let (bytes, heard_at) = (HALF, Time::ZERO);
            let kept = KeptBackup { from, given, is_orphan, proof, backup, bytes, heard_at };
            backups.kept.insert(RequestId(request), kept);
            assert!(!backups.has_room(from, 1));
        }
        assert!(!backups.has_room(three, 1));
    }

    #[test]
    fn what_one_member_is_shown_is_worth_nothing_with_another_or_for_another_request() {
        let [asker, keeper, thief] = [1, 2, 3].map(|byte| NodeId([byte; 32]));
        let (proof, request) = ([7; 32], RequestId(9));
        let given = shown(&proof, request, asker, keeper);
        assert_eq!(given, shown(&proof, request, asker, keeper));
        for other in [
            shown(&proof, request, thief, keeper),
            shown(&proof, request, asker, thief),
            shown(&proof, RequestId(10), asker, keeper),
            shown(&[8; 32], request, asker, keeper),
        ] {
            assert_ne!(given, other);
        }
    }
}
