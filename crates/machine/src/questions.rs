//! What the API asks, and the answers.

use std::time::Duration;

use exo_api::{AdminError, NodeStatus};
use exo_cluster::{InstanceState, InstanceView};
use exo_trust::Act;
use exo_types::{DiskRoom, ModelId, NodeId, Placement};

use crate::bounds::HEARD_WITHIN;
use crate::coordination::Asker;
use crate::joining::Joining;
use crate::persist::ActAsker;
use crate::view::bears_commit;
use crate::{ActRefusal, Answer, Limits, ModelHolders, NodeMachine, Question, ReplyId, Resolved, Unresolved};

/// Models that an error names.
const NAMED_MAX: usize = 20;

/// Behind the name of a node that a person lets in and that has a cluster of its own.
const IN_OTHER_CLUSTER: &str = "is in another cluster and does not ask to join: `exo stop`, `exo leave` and `exo` anew there, then \
                                `exo join CODE` there with a code of `exo invite` here bring it in";

/// Shorter beginnings of an id are too easily somebody's name.
const ID_CHARS_MIN: usize = 8;

fn not_asking(node: NodeId) -> AdminError {
    AdminError::NotFound { what: "join request", name: node.to_full() }
}

impl NodeMachine {
    pub(crate) fn question(&mut self, reply: ReplyId, question: Question) {
        let answer = match question {
            Question::Resolve { model } => Answer::Resolved(self.resolve(&model).map(Box::new)),
            Question::Coordinator(ask) => {
                self.note_leaving(&ask);
                return self.ask(Asker::Client(reply), *ask);
            }
            Question::Act(act) => return self.change_members(ActAsker::Client(reply), act),
            Question::Join(wanted) => {
                return self
                    .with_joining(|joining, context, out| joining.by_code(context, reply, wanted, out));
            }
            Question::Instances => Answer::Instances(self.instances.to_vec()),
            Question::Invite { node } => match self.invite(reply, node) {
                Ok(()) => return,
                Err(error) => Answer::Invited(Err(error)),
            },
            Question::Refuse { node } => Answer::Invited(self.refuse_stranger(node)),
            Question::Door { lasting } => return self.door(reply, lasting),
            Question::Models => Answer::Models(self.models_held()),
            Question::ModelsAfterScan => {
                // The one under way may have looked too early.
                self.scan.again = self.scan.is_under_way;
                self.scan.waiting.push(reply);
                return self.scan_models();
            }
            Question::Claim { request, proof } => return self.claim(reply, request, proof),
            Question::Leaving => {
                self.backups_leave();
                Answer::Leaving
            }
            Question::Requests => Answer::Requests(self.request_views()),
            Question::PlanFacts { model } => {
                let links = exo_cluster::link_facts(&self.reports, |_| true);
                let hop_s = exo_cluster::hop_seconds(&self.reports, &links, self.state());
                Answer::PlanFacts { links, hop_s, disks: self.disk_rooms(model) }
            }
            Question::CheckWords => {
                let words = self.joining.words().iter().map(|(node, words)| (*node, words.clone()));
                Answer::CheckWords(words.collect())
            }
        };
        self.reply(reply, answer);
    }

    /// The person is answered when the stranger's entry is on disk.
    fn invite(&mut self, reply: ReplyId, node: NodeId) -> Result<(), AdminError> {
        self.check_admin()?;
        let has_asked = self.with_joining(|joining, _, out| joining.invite(node, reply, out));
        match self.joining.in_other_cluster(node) {
            _ if has_asked => Ok(()),
            None => Err(not_asking(node)),
            Some(name) => {
                let message = format!("{name} {IN_OTHER_CLUSTER}");
                Err(AdminError::Conflict { message })
            }
        }
    }

    /// The refusal ends an admission that is not signed. What is signed may be on disk, and only a removal
    /// takes it back.
    fn refuse_stranger(&mut self, node: NodeId) -> Result<String, AdminError> {
        self.check_admin()?;
        if let Some(member) = self.trust.planned_view().members().get(&node) {
            let is = match self.trust.view().members().contains_key(&node) {
                true => "is a member",
                false => "was let in, which this node's disk is about to take",
            };
            let message = format!("{} ({node}) {is}: `exo remove {node}` puts it out", member.name);
            return Err(AdminError::Conflict { message });
        }
        let refused = self.with_joining(|joining, context, out| joining.refuse(context, node, out));
        refused.ok_or_else(|| not_asking(node))
    }

    pub(crate) fn check_admin(&self) -> Result<(), ActRefusal> {
        if self.is_admin() {
            return Ok(());
        }
        let is_there = |admin: &NodeId| self.statuses.get(admin) == Some(&NodeStatus::Alive);
        let (there, gone): (Vec<_>, Vec<_>) = self.trust.view().admins().partition(is_there);
        let names = |nodes: Vec<NodeId>| nodes.into_iter().map(|admin| self.name_of(admin)).collect();
        Err(ActRefusal::NotAnAdmin { there: names(there), gone: names(gone) })
    }

    /// Opens this node's door for a while, or shuts every door that the cluster has open.
    fn door(&mut self, reply: ReplyId, lasting: Option<Duration>) {
        let allowed = self.check_admin();
        let allowed = match lasting {
            Some(_) if self.config.trust_closed => allowed.and(Err(ActRefusal::Closed)),
            _ => allowed,
        };
        match (&allowed, lasting) {
            (Ok(()), Some(lasting)) => {
                self.with_joining(|joining, context, out| joining.open_door(context, lasting, out));
            }
            (Ok(()), None) => {
                self.with_joining(Joining::shut_door);
                if self.is_window_open() {
                    return self.change_members(ActAsker::Client(reply), Act::Window { until_unix_s: 0 });
                }
            }
            (Err(_), _) => {}
        }
        self.reply(reply, Answer::Acted(allowed));
    }

    /// Every model some node has or can have others fetch, each once, sorted by name.
    pub(crate) fn models_held(&self) -> Vec<ModelHolders> {
        let mut all: Vec<ModelHolders> = Vec::new();
        // This node first: its names win over those of others.
        let own = self.reports.get(&self.me).map(|r| (self.me, r));
        let others = self.reports.iter().filter(|(n, _)| **n != self.me).map(|(n, r)| (*n, r));
        for (node, report) in own.into_iter().chain(others) {
            for held in report.models.iter().filter(|m| m.is_served()) {
                let whole_on = (held.complete && self.keeps_copies(node)).then_some(node);
                match all.iter_mut().find(|m| m.id == held.model) {
                    Some(known) => {
                        known.nodes.push(node);
                        // What is whole here is called as this node calls it.
                        if bears_commit(&held.name, &known.name) && !self.has_all(self.me, held.model) {
                            known.name.clone_from(&held.name);
                        }
                        known.whole_on.extend(whole_on);
                    }
                    None => all.push(ModelHolders {
                        id: held.model,
                        name: held.name.clone(),
                        bytes: held.bytes,
                        nodes: vec![node],
                        whole_on: whole_on.into_iter().collect(),
                        node_names: Vec::new(),
                        instances: Vec::new(),
                    }),
                }
            }
        }
        for model in &mut all {
            model.node_names = model.nodes.iter().map(|n| self.name_of(*n)).collect();
            let of = self.instances.iter().filter(|i| i.model() == model.id);
            model.instances = of.map(InstanceView::instance).collect();
        }
        all.sort_by(|a, b| a.name.cmp(&b.name).then(a.id.cmp(&b.id)));
        all
    }

    /// Whether what a member has is there tomorrow: a machine that is about to leave takes its copies away.
    fn keeps_copies(&self, node: NodeId) -> bool {
        self.statuses.get(&node) == Some(&NodeStatus::Alive) && !self.state().drained().contains(&node)
    }

    fn disk_rooms(&self, model: ModelId) -> Vec<(NodeId, DiskRoom)> {
        let is_placed = |model: ModelId| self.instances.iter().any(|i| i.model() == model);
        exo_cluster::disk_rooms(&self.reports, model, is_placed, |node| self.keeps_copies(node))
    }

    fn has_all(&self, node: NodeId, model: ModelId) -> bool {
        let report = self.reports.get(&node);
        report.is_some_and(|r| r.models.iter().any(|m| m.model == model && m.complete))
    }

    /// Whether members may tell of models any moment: this node has just started, or come to their cluster.
    fn may_be_told(&self) -> bool {
        !self.other_members().is_empty() && self.is_here_for() < HEARD_WITHIN
    }

    /// What the placement of a model holds. Until a coordinator has told what is placed the log says so: a
    /// request to a node that has just started is not held to what that one would place.
    fn limits_of(&self, model: ModelId) -> Option<Limits> {
        let told = self.placed_as(model).map(|instance| &instance.placement);
        let logged = || {
            let mut placed = self.state().instances().values().filter(|_| self.instances.is_empty());
            placed.find(|placed| placed.request.model == model).map(|placed| &placed.placement)
        };
        told.or_else(logged).map(limits)
    }

    /// Of all models the one that is meant: by its id, which no name takes away; by what this node calls so,
    /// where others may have another commit of it, but for parts of an older one, which it got from them and
    /// does not know to be that; by what others call so. Of several the placed one, else the first by id. And
    /// a file may have come here under another name since others, or a placement, were given this one.
    fn named<'a>(&self, all: &'a [ModelHolders], name: &str) -> Option<&'a ModelHolders> {
        let of_id = |id: ModelId| all.iter().find(|model| model.id == id);
        let own = || {
            let own = self.reports.get(&self.me)?.models.iter().filter(|m| m.is_served() && m.name == name);
            let is_older = |id| all.iter().any(|m| m.id == id && m.name != name);
            placed_first(own.map(|m| m.model).filter(|id| !is_older(*id)).filter_map(of_id))
        };
        let placed = || {
            let placed = self.instances.iter().filter(|i| i.model_name == name).map(InstanceView::model);
            placed.into_iter().find_map(of_id)
        };
        let of_others = || {
            let so_named = || all.iter().filter(|m| m.name == name);
            so_named().find(|m| !m.instances.is_empty()).or_else(|| placed().or_else(|| so_named().next()))
        };
        let reported = || {
            let held = self.reports.values().flat_map(|report| &report.models);
            held.filter(|held| held.is_served() && held.name == name).find_map(|held| of_id(held.model))
        };
        let by_id = all.iter().find(|model| model.id.to_full() == name);
        by_id.or_else(own).or_else(of_others).or_else(reported)
    }

    /// A model whose files no one reports. Where it is ready its stages have what a request needs, whatever
    /// became of the file.
    fn ready_without_file(&self, name: &str) -> Option<Resolved> {
        let is_it = |i: &&InstanceView| {
            i.state == InstanceState::Ready && (i.model_name == name || i.model().to_full() == name)
        };
        let instance = self.instances.iter().find(is_it)?;
        let stages: Vec<NodeId> = instance.placement.shards().map(|(_, shard)| shard.node).collect();
        Some(Resolved {
            id: instance.model(),
            name: instance.model_name.clone(),
            holders: self.holders_of(instance.model(), &stages),
            holder_nodes: Vec::new(),
            is_file_gone: true,
            limits: Some(limits(&instance.placement)),
            me: self.me,
        })
    }

    /// The model of that name or id, or the one whose id begins so. The error names what there is.
    fn resolve(&self, wanted: &str) -> Result<Resolved, Unresolved> {
        if self.is_removed() {
            return Err(Unresolved::Removed);
        }
        let all = self.models_held();
        let names = || [Some(wanted), exo_api::ollama::untagged(wanted)].into_iter().flatten();
        let found = names().find_map(|name| self.named(&all, name));
        if found.is_none()
            && let Some(ready) = names().find_map(|name| self.ready_without_file(name))
        {
            return Ok(ready);
        }
        let Some(found) = found.or_else(|| names().find_map(|name| of_id_prefix(&all, name))) else {
            // After a start its holders may be on their way: the log says that there is one.
            let is_it = |i: &&InstanceView| i.model_name == wanted || i.model().to_full() == wanted;
            return Err(match self.instances.iter().find(is_it) {
                Some(instance) => {
                    let state = instance.state.text(&|node| self.name_of(node));
                    Unresolved::Away { reason: format!("its instance {} is {state}", instance.instance()) }
                }
                None => Unresolved::Unknown { known: known_names(&all), may_be_told: self.may_be_told() },
            });
        };
        Ok(Resolved {
            id: found.id,
            name: found.name.clone(),
            holders: self.holders_of(found.id, &found.nodes),
            holder_nodes: found.nodes.iter().copied().filter(|node| self.has_all(*node, found.id)).collect(),
            is_file_gone: false,
            limits: self.limits_of(found.id),
            me: self.me,
        })
    }
}

/// Of models of one name.
fn placed_first<'a>(so_named: impl Iterator<Item = &'a ModelHolders>) -> Option<&'a ModelHolders> {
    so_named.min_by_key(|model| (model.instances.is_empty(), model.id))
}

/// The one model whose id begins so.
fn of_id_prefix<'a>(all: &'a [ModelHolders], text: &str) -> Option<&'a ModelHolders> {
    let prefix = text.to_ascii_lowercase();
    if prefix.len() < ID_CHARS_MIN || !prefix.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut so_begun = all.iter().filter(|model| model.id.to_full().starts_with(&prefix));
    so_begun.next().filter(|_| so_begun.next().is_none())
}

/// What an error names, of models sorted by name: with its id where a name is not that of one alone.
fn known_names(all: &[ModelHolders]) -> Vec<String> {
    let is_shared = |name: &str| all.iter().filter(|model| model.name == name).nth(1).is_some();
    let text = |model: &ModelHolders| match is_shared(&model.name) {
        true => format!("{} ({})", model.name, model.id),
        false => model.name.clone(),
    };
    all.iter().take(NAMED_MAX).map(text).collect()
}

fn limits(placement: &Placement) -> Limits {
    let Placement { context_tokens, cache_tokens, .. } = *placement;
    Limits { context_tokens, cache_tokens }
}

#[cfg(test)]
mod tests {
    use exo_types::InstanceId;

    use super::*;

    fn model(id: u8, instances: &[u64]) -> ModelHolders {
        ModelHolders {
            id: ModelId([id; 32]),
            name: "m".to_owned(),
            bytes: 1,
            nodes: Vec::new(),
            node_names: Vec::new(),
            whole_on: Vec::new(),
            instances: instances.iter().map(|number| InstanceId(*number)).collect(),
        }
    }

    #[test]
    fn a_model_is_meant_by_eight_characters_of_its_id_that_no_other_one_begins_with() {
        let mut twin = model(0xab, &[]);
        twin.id.0[5] = 0;
        let all = [model(0xab, &[]), twin, model(0xcd, &[])];
        let meant = |text: &str| of_id_prefix(&all, text).map(|model| model.id);
        assert_eq!(meant("cdcdcdcd"), Some(ModelId([0xcd; 32])));
        assert_eq!(meant("CDCDCDCDCDCD"), Some(ModelId([0xcd; 32])));
        assert_eq!(meant("abababab"), None, "two begin so");
        assert_eq!(meant("abababababab"), Some(ModelId([0xab; 32])));
        for text in ["cdcdcdc", "cdcdcdcg", "cdcdcdce", ""] {
            assert_eq!(meant(text), None, "{text}");
        }
    }

    #[test]
    fn a_name_that_two_models_have_is_told_with_their_ids() {
        let other = ModelHolders { name: "n".to_owned(), ..model(3, &[]) };
        let told = known_names(&[model(1, &[]), model(2, &[]), other]);
        assert_eq!(told, ["m (010101010101)", "m (020202020202)", "n"]);
    }

    #[test]
    fn of_models_of_one_name_the_placed_one_is_meant_and_else_the_first_by_id() {
        let meant = |models: &[ModelHolders]| placed_first(models.iter()).map(|model| model.id);
        assert_eq!(meant(&[model(3, &[]), model(2, &[]), model(4, &[])]), Some(ModelId([2; 32])));
        assert_eq!(meant(&[model(1, &[]), model(2, &[7])]), Some(ModelId([2; 32])));
        assert_eq!(meant(&[]), None);
    }
}
