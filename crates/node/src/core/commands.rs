//! What the API asks of the core, and how it is answered.

use std::net::SocketAddr;

use exo_api::AdminError;
use exo_cluster::wire::{ControlAsk, ControlReply};
use exo_cluster::{InstanceRequest, InstanceView, Member};
use exo_types::{InstanceId, ModelId, NodeId};
use tokio::sync::oneshot;

use super::Core;
use super::joining::Asked;
use super::requests::StartRequest;
use crate::cache::{CacheError, CacheRequest};
use crate::library::Holder;

/// A question with a way to answer it.
pub enum Command {
    /// Which model is meant, who has it, and with which context it runs.
    Resolve { model: String, answer: oneshot::Sender<Result<Resolved, Vec<String>>> },
    /// Run the sequences of a request.
    Start(StartRequest),
    /// Ask the coordinator.
    Ask { ask: Box<ControlAsk>, answer: oneshot::Sender<ControlReply> },
    /// The instances as now known.
    Instances { answer: oneshot::Sender<Vec<InstanceView>> },
    /// Let in a node that asks to join.
    Invite { node: NodeId, answer: oneshot::Sender<Result<String, AdminError>> },
    /// The models on this node's disk changed.
    ModelsChanged,
    /// A stranger asks to join.
    JoinAsked(Asked),
    /// A member that asked here is recorded.
    MemberIn { member: Box<Member>, listen: SocketAddr },
    /// The coordinator's answer to a placement that a request caused.
    Placed { model: ModelId, reply: Option<ControlReply> },
    /// Names of the nodes that have each model.
    Holders { answer: oneshot::Sender<Vec<ModelHolders>> },
    /// The words shown when members were admitted.
    Words { answer: oneshot::Sender<Vec<(NodeId, String)>> },
}

/// A model and who has it.
#[derive(Clone, Debug)]
pub struct ModelHolders {
    pub id: ModelId,
    pub name: String,
    pub bytes: u64,
    pub nodes: Vec<NodeId>,
    pub node_names: Vec<String>,
    pub instances: Vec<InstanceId>,
}

/// A model that was asked for by name.
#[derive(Clone, Debug)]
pub struct Resolved {
    pub id: ModelId,
    pub name: String,
    pub holders: Vec<Holder>,
    /// Nodes that have all of it, this one included.
    pub holder_nodes: Vec<NodeId>,
    /// Context and cache of the instance that serves it, if there is one.
    pub limits: Option<Limits>,
    pub me: NodeId,
}

/// What bounds a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest it can become.
    pub context_tokens: u32,
    /// Tokens that all sequences together can have.
    pub cache_tokens: u32,
}

impl Core {
    pub(super) fn command(&mut self, command: Command) {
        match command {
            Command::Resolve { model, answer } => drop(answer.send(self.resolve(&model))),
            Command::Start(request) => self.start_request(request),
            Command::Ask { ask, answer } => {
                let reply = self.ask(*ask);
                tokio::spawn(async move {
                    if let Ok(reply) = reply.await {
                        let _ = answer.send(reply);
                    }
                });
            }
            Command::Instances { answer } => drop(answer.send(self.instances.clone())),
            Command::Invite { node, answer } => {
                let admin = self.p.coordinator.state().admins().any(|n| n == self.me);
                if !admin {
                    let message = "this node is not an admin of its cluster; ask on the founder's".to_owned();
                    return drop(answer.send(Err(AdminError::Conflict { message })));
                }
                let name = self.invite(node);
                let missing = AdminError::NotFound { what: "join request", name: node.to_full() };
                drop(answer.send(name.ok_or(missing)));
            }
            Command::ModelsChanged => {
                self.look_at_models();
                self.report_now();
            }
            Command::JoinAsked(asked) => self.join_asked(asked),
            Command::MemberIn { member, listen } => self.member_in(&member, listen),
            Command::Placed { model, reply } => self.placed(model, reply),
            Command::Holders { answer } => drop(answer.send(self.models_held())),
            Command::Words { answer } => {
                let words = self.strangers.words.iter().map(|(n, w)| (*n, w.clone())).collect();
                drop(answer.send(words));
            }
        }
    }

    /// Every model some node has, each once, sorted by name.
    fn models_held(&self) -> Vec<ModelHolders> {
        let mut all: Vec<ModelHolders> = Vec::new();
        // This node first: its names win over those of others.
        let own = self.reports.get(&self.me).map(|r| (self.me, r));
        let others = self.reports.iter().filter(|(n, _)| **n != self.me).map(|(n, r)| (*n, r));
        for (node, report) in own.into_iter().chain(others) {
            for held in report.models.iter().filter(|m| m.complete) {
                match all.iter_mut().find(|m| m.id == held.model) {
                    Some(known) => known.nodes.push(node),
                    None => all.push(ModelHolders {
                        id: held.model,
                        name: held.name.clone(),
                        bytes: held.bytes,
                        nodes: vec![node],
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

    /// The model of that name or id. The error names what there is.
    fn resolve(&self, wanted: &str) -> Result<Resolved, Vec<String>> {
        let all = self.models_held();
        let fits = |m: &&ModelHolders| m.name == wanted || m.id.to_full() == wanted;
        let Some(found) = all.iter().find(fits) else {
            return Err(all.into_iter().map(|m| m.name).take(20).collect());
        };
        let instance = self.instances.iter().find(|i| i.model() == found.id);
        Ok(Resolved {
            id: found.id,
            name: found.name.clone(),
            holders: self.holders_of(found.id, &found.nodes),
            holder_nodes: found.nodes.clone(),
            limits: instance.map(|i| Limits {
                context_tokens: i.placement.context_tokens,
                cache_tokens: i.placement.cache_tokens,
            }),
            me: self.me,
        })
    }
}

/// What a placement of a model asks for, with the node's defaults where the caller left something open.
pub fn instance_request(
    resolved: &Resolved,
    open: &crate::library::OpenModel,
    cache: CacheRequest,
    nodes_min: u32,
) -> Result<InstanceRequest, CacheError> {
    let objective = if nodes_min > 1 {
        exo_cluster::PlaceObjective::Spread { stages_min: nodes_min }
    } else {
        exo_cluster::PlaceObjective::Fit
    };
    let holders = resolved.holder_nodes.clone();
    // Where the file is nothing has to be fetched: this node if it has it, else the first that does.
    let pinned_first = holders.iter().copied().find(|n| *n == resolved.me).or(holders.first().copied());
    let (context_tokens, cache_tokens) = cache.shape(open.model.config.context_tokens_max)?;
    Ok(InstanceRequest {
        model: resolved.id,
        model_name: resolved.name.clone(),
        shape: open.model.shape_packed(cache.kv, &exo_backend_cpu::weight_bytes),
        context_tokens,
        slots: cache.slots,
        cache_tokens,
        kv: cache.kv,
        objective,
        pinned_first,
        holders,
    })
}
