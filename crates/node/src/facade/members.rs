//! Who belongs to the cluster: codes that let nodes in, joining by one, and what an admin signs.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use exo_api::{
    AdminError, ClusterView, InviteRequest, InviteView, JoinRequest, JoinedView, MemberRole, MemberView,
    NodeView,
};
use exo_machine::joining::JoinByCode;
use exo_machine::{Answer, Question};
use exo_stdx::unix_s;
use exo_trust::Act;
use exo_types::NodeId;

use super::{ANSWER_MAX, NodeFacade};
use crate::exchange_error::NoCode;
use crate::pairing;
use crate::questions::NoAnswer;

/// For a join by code: longer than the machine takes.
const JOIN_MAX: Duration = Duration::from_secs(45);
/// Longest sentence about a join that came to nothing, in characters: names of other nodes are in it.
const FAILURE_CHARS_MAX: usize = 4000;
/// How long a token lasts if no one says, and at most.
const TOKEN_HOURS: u32 = 24;
const TOKEN_HOURS_MAX: u32 = 24 * 30;
/// How long a door is open that a person opens, if no one says, and at most.
const DOOR_MINUTES: u32 = 10;
const DOOR_MINUTES_MAX: u32 = 60;
/// Of a change of the members.
const NOT_ON_DISK: &str = "the change was not on this node's disk";
/// Why no one is let in there.
const NO_PORT: &str = "this node runs for one command and has no port for others; start one with `exo`";
/// Nodes that a token may let in: a cluster has no more.
const TOKEN_USES_MAX: u32 = 64;

impl NodeFacade {
    /// Has this node sign a change of the members, if it is an admin.
    pub(super) async fn act(&self, act: Act) -> Result<(), AdminError> {
        self.acted(Question::Act(act)).await
    }

    /// Asks what [`Answer::Acted`] answers.
    pub(super) async fn acted(&self, question: Question) -> Result<(), AdminError> {
        match self.ask(question, ANSWER_MAX).await {
            Ok(Answer::Acted(Ok(()))) => Ok(()),
            Ok(Answer::Acted(Err(refusal))) => Err(refusal.into()),
            other => Err(goes_on(NoAnswer::of(other), NOT_ON_DISK)),
        }
    }

    /// Lets in a stranger that asks: it is a member on disk when this returns.
    pub(super) async fn let_in(&self, node: NodeId) -> Result<MemberView, AdminError> {
        let name = match self.ask(Question::Invite { node }, ANSWER_MAX).await {
            Ok(Answer::Invited(name)) => name?,
            other => return Err(goes_on(NoAnswer::of(other), NOT_ON_DISK)),
        };
        let role = MemberRole::Worker;
        Ok(MemberView { node: node.to_full(), name, role, is_self: false, check_words: None })
    }

    pub(super) async fn open_door(&self, minutes: Option<u32>) -> Result<(), AdminError> {
        let minutes = minutes.unwrap_or(DOOR_MINUTES);
        in_range("minutes", minutes, DOOR_MINUTES_MAX, "a join window takes")?;
        if self.config.is_private {
            return Err(AdminError::Conflict { message: NO_PORT.to_owned() });
        }
        self.acted(Question::Door { lasting: Some(Duration::from_secs(60) * minutes) }).await
    }

    pub(super) fn give_code(&self, request: &InviteRequest) -> Result<InviteView, AdminError> {
        let view = self.view.borrow().clone();
        let admins: Vec<_> = view.nodes.iter().filter(|node| node.role == MemberRole::Admin).collect();
        if !view.nodes.is_empty() && !view.nodes.iter().any(|node| node.is_self) {
            let message =
                "this node was removed from its cluster; `exo stop` and `exo leave` make it a new one"
                    .to_owned();
            return Err(AdminError::Conflict { message });
        }
        if !admins.iter().any(|admin| admin.is_self) {
            let names: Vec<_> = admins.iter().map(|admin| admin.name.as_str()).collect();
            let message =
                format!("this node is not an admin of its cluster; invite on {}", names.join(" or "));
            return Err(AdminError::Conflict { message });
        }
        if self.config.is_private {
            return Err(AdminError::Conflict { message: NO_PORT.to_owned() });
        }
        let failed = |error: NoCode| AdminError::Conflict { message: error.to_string() };
        let (code, lasting, uses) = match request {
            InviteRequest { uses: None, hours: None } => {
                (self.invites.give_digits().map_err(failed)?, pairing::CODE_LASTS, 1)
            }
            InviteRequest { uses, hours } => {
                let (uses, hours) = (uses.unwrap_or(1), hours.unwrap_or(TOKEN_HOURS));
                in_range("uses", uses, TOKEN_USES_MAX, "a token takes")?;
                in_range("hours", hours, TOKEN_HOURS_MAX, "a token takes")?;
                let lasting = Duration::from_secs(3600) * hours;
                (self.invites.give_token(uses, lasting).map_err(failed)?, lasting, uses)
            }
        };
        let expires_at_unix_s = unix_s() + lasting.as_secs();
        let node = view.self_node;
        Ok(InviteView { code, uses, expires_at_unix_s, node, addresses: self.own_addresses() })
    }

    /// Where machines of the same networks reach this node.
    fn own_addresses(&self) -> Vec<String> {
        if !self.listen.ip().is_unspecified() {
            return vec![self.listen.to_string()];
        }
        let interfaces = exo_discovery::local_interfaces().unwrap_or_default();
        let usable = interfaces.iter().map(|interface| interface.ip).filter(|ip| {
            let is_link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
            !ip.is_loopback() && !is_link_local
        });
        usable.map(|ip| SocketAddr::new(ip, self.listen.port()).to_string()).collect()
    }

    pub(super) async fn join_by_code(&self, request: JoinRequest) -> Result<JoinedView, AdminError> {
        let code = pairing::normal(&request.code).map_err(|e| AdminError::invalid("code", e.to_string()))?;
        let with = request.node.map(|node| node.parse::<NodeId>()).transpose();
        let with = with.map_err(|error| AdminError::invalid("node", error.to_string()))?;
        let mut addresses = Vec::new();
        for text in &request.addresses {
            let address = text.parse::<SocketAddr>();
            let wrong = |error| AdminError::invalid("addresses", format!("`{text}`: {error}"));
            addresses.push(address.map_err(wrong)?);
        }
        if self.config.is_private {
            let message = "this node runs for one command; start one that stays with `exo`".to_owned();
            return Err(AdminError::Conflict { message });
        }
        match self.ask(Question::Join(JoinByCode { code, with, addresses }), JOIN_MAX).await {
            Ok(Answer::Joined(Ok(joined))) => Ok(JoinedView { name: joined.name, check_words: joined.words }),
            Ok(Answer::Joined(Err(failure))) => Err(AdminError::Conflict {
                message: exo_types::printable(&failure.to_string(), FAILURE_CHARS_MAX),
            }),
            other => Err(goes_on(NoAnswer::of(other), "the join had not ended")),
        }
    }

    pub(super) async fn list_members(&self) -> Result<Vec<MemberView>, AdminError> {
        let words = match self.ask(Question::CheckWords, ANSWER_MAX).await {
            Ok(Answer::CheckWords(words)) => words,
            _ => Vec::new(),
        };
        let words: BTreeMap<String, String> = words.into_iter().map(|(n, w)| (n.to_full(), w)).collect();
        let view = self.view.borrow().clone();
        let member = |n: exo_api::NodeView| MemberView {
            check_words: words.get(&n.id).cloned(),
            node: n.id,
            name: n.name,
            role: n.role,
            is_self: n.is_self,
        };
        Ok(view.nodes.into_iter().map(member).collect())
    }
}

/// What takes longer than who waits for it goes on, as a change of the members that waits for the disk does;
/// `what` says what was not so in time.
fn goes_on(why: NoAnswer, what: &str) -> AdminError {
    let NoAnswer::Late { within } = why else { return why.into() };
    let within = exo_cluster::bounds::time(within);
    let message = format!(
        "{what} within {within}; it goes on without you: see `exo status` before you ask for it again"
    );
    AdminError::Late { message }
}

fn in_range(param: &str, value: u32, max: u32, what_takes: &str) -> Result<(), AdminError> {
    if (1..=max).contains(&value) {
        return Ok(());
    }
    let message = format!("{param} is {value}, and {what_takes} 1 to {max}");
    Err(AdminError::invalid(param, message))
}

/// Why a node does not remove itself, and which member can: only admins may.
pub(super) fn not_itself(view: &ClusterView) -> String {
    let is_other_admin = |node: &&NodeView| node.role == MemberRole::Admin && !node.is_self;
    let admins: Vec<&str> = view.nodes.iter().filter(is_other_admin).map(|node| node.name.as_str()).collect();
    match admins.as_slice() {
        [] => "a node does not remove itself, and no other member is an admin: `exo admin add NODE` here makes one, which can".to_owned(),
        [admin, ..] => format!("a node does not remove itself; do it on {admin}, which is an admin as well"),
    }
}

#[cfg(test)]
mod tests {
    use exo_api::NodeStatus;

    use super::*;

    #[test]
    fn a_change_that_waits_for_the_disk_goes_on_and_is_not_told_as_the_end_of_the_node() {
        let AdminError::Late { message } = goes_on(NoAnswer::Late { within: ANSWER_MAX }, NOT_ON_DISK) else {
            panic!("another error");
        };
        assert!(message.contains("within 12 s; it goes on without you: see `exo status`"), "{message}");
        let AdminError::Unavailable { reason, .. } = goes_on(NoAnswer::Ending, NOT_ON_DISK) else {
            panic!("another error");
        };
        assert_eq!(reason, "the node is shutting down");
    }

    #[test]
    fn who_would_remove_itself_is_told_which_member_can_and_how_one_comes_to() {
        let mut view = exo_machine::empty_view(NodeId([1; 32]));
        let text = not_itself(&view);
        assert!(text.contains("`exo admin add NODE` here"), "{text}");
        let node = |name: &str, is_self, role| NodeView {
            id: name.to_owned(),
            name: name.to_owned(),
            is_self,
            role,
            status: NodeStatus::Alive,
            gone_since_unix_s: None,
            version: String::new(),
            platform: String::new(),
            devices: Vec::new(),
            addresses: Vec::new(),
            mains_power: None,
            process_bytes: None,
            card_events: Vec::new(),
            is_drained: false,
            is_disk_hung: false,
            has_forked: false,
        };
        view.nodes = vec![node("desk", true, MemberRole::Admin), node("attic", false, MemberRole::Worker)];
        assert_eq!(not_itself(&view), text);
        view.nodes.push(node("laptop", false, MemberRole::Admin));
        assert!(not_itself(&view).contains("on laptop"), "{}", not_itself(&view));
    }
}
