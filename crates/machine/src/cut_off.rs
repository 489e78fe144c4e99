//! A node that is cut off from some members while others reach them: nothing is relayed, so what needs a
//! link that does not open is refused with the reason instead of waited for.

use std::time::Duration;

use exo_api::GenerateError;
use exo_cluster::wire::NotCoordinator;
use exo_cluster::{DriverPhase, InstanceState};
use exo_types::{ModelId, NodeId, SequenceId};

use crate::NodeMachine;

/// A data link that has been missing for so long does not open in a moment, and a coordinator that others
/// follow for so long is not about to be heard. A healed link is back within 2 s, a lost coordinator's
/// successor within 5 s.
pub(crate) const CUT_OFF_AFTER: Duration = Duration::from_secs(10);
/// What was away for long may be back this moment, and its link about to open.
pub(crate) const LINK_TRIED_FOR: Duration = Duration::from_secs(3);
/// Members that a refusal names.
const NAMED_MAX: usize = 3;
/// When a client may ask again.
pub(crate) const RETRY_AFTER_S: u32 = 30;

impl NodeMachine {
    /// Notes since when others follow a coordinator that this node does not hear.
    pub(crate) fn note_cut_off(&mut self) {
        let now = self.now.time;
        let since = self.membership.followed_elsewhere().map(|_| self.asks.cut_off_since.unwrap_or(now));
        self.asks.cut_off_since = since;
    }

    /// Why this node has no coordinator, if others have had one for a while.
    pub(crate) fn cut_off(&self) -> Option<NotCoordinator> {
        let since = self.asks.cut_off_since?;
        let (member, coordinator) = self.membership.followed_elsewhere()?;
        let is_long = self.now.time.since(since) >= CUT_OFF_AFTER;
        is_long.then_some(NotCoordinator::CutOff { member, coordinator })
    }

    /// Requests that wait for what this node does not reach end, and say who does.
    pub(crate) fn refuse_cut_off(&mut self) {
        let now = self.awake.now();
        for entry in self.drivers.values_mut() {
            let waits = matches!(entry.phase(), DriverPhase::WaitingForLink(_));
            entry.link_waited_since = waits.then(|| entry.link_waited_since.unwrap_or(now));
        }
        let cut_off = self.cut_off().map(|why| why.text(&|node| self.name_of(node)));
        let reason = |id: &SequenceId| {
            let entry = self.drivers.get(id)?;
            match entry.phase() {
                DriverPhase::WaitingForInstance => cut_off.clone(),
                DriverPhase::WaitingForLink(node) => {
                    let is_tried = now.since(entry.link_waited_since?) >= LINK_TRIED_FOR;
                    let is_other_coming = self.is_coming(entry.model());
                    self.link_does_not_open(node).filter(|_| is_tried && !is_other_coming)
                }
                _ => None,
            }
        };
        let refused: Vec<_> = self.drivers.keys().filter_map(|id| Some((*id, reason(id)?))).collect();
        for (id, reason) in refused {
            self.refuse_request(id, GenerateError::Unavailable { reason, retry_after_s: RETRY_AFTER_S });
        }
    }

    /// Whether another instance of the model is on its way.
    fn is_coming(&self, model: ModelId) -> bool {
        let is_on_its_way = |state: &InstanceState| {
            matches!(state, InstanceState::Placing | InstanceState::Loading | InstanceState::Wiring)
        };
        self.instances.iter().any(|instance| instance.model() == model && is_on_its_way(&instance.state))
    }

    fn link_does_not_open(&self, node: NodeId) -> Option<String> {
        let missing = self.links.unreached_for(self.now.time, node).filter(|time| *time >= CUT_OFF_AFTER)?;
        let reaches = |report: &exo_cluster::wire::NodeReport| report.links.iter().any(|l| l.peer == node);
        let others = self.reports.iter().filter(|(from, report)| **from != self.me && reaches(report));
        let others = others.map(|(from, _)| *from).take(NAMED_MAX);
        let there: Vec<String> = std::iter::once(node).chain(others).map(|n| self.name_of(n)).collect();
        Some(format!(
            "this node has had no link to {}, which computes this model, for {} s: ask on {}, or see that the two machines reach each \
             other (exo's port, UDP and TCP, in both firewalls)",
            self.name_of(node),
            missing.as_secs(),
            there.join(" or ")
        ))
    }
}
