//! What the build before wrote to its journal (format 3): a stage had one shard, written where the stage now is.
//!
//! Format 3 named a placement by instance and generation. It becomes the id with epoch counter 0, which no coordinator has ever
//! had, with the instance in the epoch's key, and with the generation as its number: so ids of different instances differ, they grow
//! with the generation, and every id given out since is higher.
//!
//! A log is chained by its bytes and shared between members, so its entries are never written anew: they are read here for
//! as long as any log has them.

use std::collections::{BTreeMap, BTreeSet};

use exo_types::{DeviceId, Epoch, InstanceId, KvDType, LayerRange, ModelId, NodeId, PlacementId};
use serde::{Deserialize, Serialize};

use crate::{ClusterId, Event, InstanceRequest, Member, StateInstance};

/// Events that did not change have the encoding they had; the two with a placement stand at these numbers.
const INSTANCE_PLACED: u8 = 5;
const INSTANCE_REPLACED: u8 = 6;

/// An event of format 3.
pub(crate) fn event(bytes: &[u8]) -> Result<Event, postcard::Error> {
    match bytes.split_first() {
        Some((&INSTANCE_PLACED, body)) => {
            let (request, placement, memory_bytes) =
                postcard::from_bytes::<(InstanceRequest, Placement, Vec<u64>)>(body)?;
            Ok(Event::InstancePlaced { request, placement: placement.into(), memory_bytes })
        }
        Some((&INSTANCE_REPLACED, body)) => {
            let (placement, memory_bytes, reason) =
                postcard::from_bytes::<(Placement, Vec<u64>, String)>(body)?;
            Ok(Event::InstanceReplaced { placement: placement.into(), memory_bytes, reason })
        }
        _ => postcard::from_bytes(bytes),
    }
}

/// A snapshot of format 3.
pub(crate) fn state(bytes: &[u8]) -> Result<crate::State, postcard::Error> {
    let State { cluster, join_window_until_unix_s, members, removed, instances, instance_last } =
        postcard::from_bytes(bytes)?;
    let instance = |(id, old): (InstanceId, (InstanceRequest, Placement, Vec<u64>))| {
        let (request, placement, memory_bytes) = old;
        (id, StateInstance { request, placement: placement.into(), memory_bytes })
    };
    let instances = instances.into_iter().map(instance).collect();
    // Every cluster had its window from the beginning.
    let join_window_until_unix_s = cluster.is_some().then_some(join_window_until_unix_s);
    let placement_last = None; // as after the events: ids of format 3 do not count
    Ok(crate::State {
        cluster,
        join_window_until_unix_s,
        members,
        removed,
        instances,
        instance_last,
        placement_last,
        is_used: instance_last.is_some(),
    })
}

/// The id of a placement that format 3 named by instance and generation.
fn placement_id(instance: InstanceId, generation: u32) -> PlacementId {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&instance.0.to_be_bytes());
    PlacementId { epoch: Epoch { counter: 0, key: NodeId(key) }, number: generation }
}

/// Whether a placement was named by format 3.
pub(crate) fn is_legacy(placement: PlacementId) -> bool {
    placement.epoch.counter == 0
}

#[derive(Serialize, Deserialize)]
struct State {
    cluster: Option<(ClusterId, String)>,
    join_window_until_unix_s: u64,
    members: BTreeMap<NodeId, Member>,
    removed: BTreeSet<NodeId>,
    instances: BTreeMap<InstanceId, (InstanceRequest, Placement, Vec<u64>)>,
    instance_last: Option<InstanceId>,
}

#[derive(Serialize, Deserialize)]
struct Placement {
    instance: InstanceId,
    generation: u32,
    model: ModelId,
    stages: Vec<Stage>,
    context_tokens: u32,
    slots: u32,
    cache_tokens: u32,
    kv: KvDType,
}

#[derive(Serialize, Deserialize)]
struct Stage {
    node: NodeId,
    device: DeviceId,
    shard: Shard,
}

#[derive(Serialize, Deserialize)]
struct Shard {
    layers: LayerRange,
    embedding: bool,
    head: bool,
    slice: Only,
    experts: Only,
    residency: Only,
}

/// A choice that had one variant.
#[derive(Serialize, Deserialize)]
enum Only {
    One,
}

impl From<Placement> for exo_types::Placement {
    fn from(old: Placement) -> Self {
        let Placement { instance, generation, model, stages, context_tokens, slots, cache_tokens, kv } = old;
        let stage = |Stage { node, device, shard }: Stage| {
            let Shard { layers, embedding, head, .. } = shard;
            exo_types::Stage::solo(node, device, exo_types::Shard { layers, embedding, head })
        };
        let stages = stages.into_iter().map(stage).collect();
        let id = placement_id(instance, generation);
        Self { id, instance, model, stages, context_tokens, slots, cache_tokens, kv }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{node, placement, request};
    use crate::{EventError, Role};

    /// The placement as the build before had it.
    fn before(placement: &exo_types::Placement) -> Placement {
        let exo_types::Placement { id, instance, model, context_tokens, slots, cache_tokens, kv, .. } =
            *placement;
        let generation = id.number;
        let stage = |stage: &exo_types::Stage| {
            let exo_types::PlacedShard { node, device, shard } = stage.leader().clone();
            let exo_types::Shard { layers, embedding, head } = shard;
            let (slice, experts, residency) = (Only::One, Only::One, Only::One);
            Stage { node, device, shard: Shard { layers, embedding, head, slice, experts, residency } }
        };
        let stages = placement.stages.iter().map(stage).collect();
        Placement { instance, generation, model, stages, context_tokens, slots, cache_tokens, kv }
    }

    /// A placement as format 3 names it.
    fn named(instance: u64, generation: u32, on: &[u8]) -> exo_types::Placement {
        let id = placement_id(InstanceId(instance), generation);
        exo_types::Placement { id, ..placement(instance, generation, on) }
    }

    /// Events that have another encoding now, with their old bytes.
    fn placements() -> Vec<(Event, Vec<u8>)> {
        let (first, second) = (named(7, 1, &[1, 2]), named(7, 2, &[2]));
        let bytes = |variant, body: Vec<u8>| [vec![variant], body].concat();
        let placed = postcard::to_allocvec(&(request(), before(&first), vec![5u64, 6])).unwrap();
        let replaced = postcard::to_allocvec(&(before(&second), vec![9u64], "lost")).unwrap();
        vec![
            (
                Event::InstancePlaced { request: request(), placement: first, memory_bytes: vec![5, 6] },
                bytes(INSTANCE_PLACED, placed),
            ),
            (
                Event::InstanceReplaced { placement: second, memory_bytes: vec![9], reason: "lost".into() },
                bytes(INSTANCE_REPLACED, replaced),
            ),
        ]
    }

    /// Events that have the same encoding but for the byte in front.
    fn others() -> Vec<Event> {
        let (name, certificate) = ("n".to_owned(), vec![1]);
        let member =
            |n, role| Member { node: node(n), name: name.clone(), role, certificate: certificate.clone() };
        let (cluster, founder) = (ClusterId([1; 16]), member(1, Role::Admin));
        vec![
            Event::ClusterCreated { cluster, name: "home".into(), founder, at_unix_s: 3 },
            Event::JoinWindow { until_unix_s: 9 },
            Event::MemberAdmitted(member(2, Role::Worker)),
            Event::MemberAdmitted(member(3, Role::Worker)),
            Event::MemberRemoved { node: node(3), reason: "sold".into() },
            Event::AdminAppointed { node: node(2), certificate: vec![2] },
            Event::InstanceRemoved { instance: InstanceId(7), reason: "asked".into() },
        ]
    }

    #[test]
    fn events_of_the_build_before_are_read() {
        for (event, old) in placements() {
            assert_eq!(Event::decode(&old), Ok(event.clone()));
            assert_ne!(event.encode(), old);
            assert_eq!(Event::decode(&event.encode()), Ok(event));
        }
        for event in others() {
            assert_eq!(Event::decode(&event.encode()[1..]), Ok(event));
        }
        // The bytes as the build before wrote them, in full: the removal of an instance, and the begin of a placement.
        let removed = Event::InstanceRemoved { instance: InstanceId(7), reason: "asked".into() };
        assert_eq!(Event::decode(&[7, 7, 5, b'a', b's', b'k', b'e', b'd']), Ok(removed));
        let stage = postcard::to_allocvec(&before(&placement(7, 1, &[1])).stages[0]).unwrap();
        assert_eq!(stage[32..], [3, b'c', b'p', b'u', 0, 4, 1, 1, 0, 0, 0]);
    }

    #[test]
    fn a_snapshot_of_the_build_before_is_read() {
        let mut now = crate::State::default();
        let all = others().into_iter().take(6).chain(placements().into_iter().map(|(event, _)| event));
        all.for_each(|event| now.apply(&event).unwrap());
        let crate::State {
            cluster,
            join_window_until_unix_s,
            members,
            removed,
            instances,
            instance_last,
            ..
        } = now.clone();
        let instance =
            |(id, i): (InstanceId, StateInstance)| (id, (i.request, before(&i.placement), i.memory_bytes));
        let instances = instances.into_iter().map(instance).collect();
        let join_window_until_unix_s = join_window_until_unix_s.unwrap();
        let old = State { cluster, join_window_until_unix_s, members, removed, instances, instance_last };
        assert_eq!(crate::State::decode(&postcard::to_allocvec(&old).unwrap()), Ok(now));
        let empty = [0; 6];
        assert_eq!(crate::State::decode(&empty), Ok(crate::State::default()), "before any event");
    }

    #[test]
    fn placements_of_the_build_before_differ_and_are_lower_than_any_since() {
        let id = |instance, generation| placement_id(InstanceId(instance), generation);
        assert_ne!(id(7, 1), id(8, 1));
        assert!(id(7, 1) < id(7, 2));
        let now = PlacementId { epoch: Epoch { counter: 1, key: NodeId([0; 32]) }, number: 1 };
        assert!(id(u64::MAX, u32::MAX) < now);
        assert!(is_legacy(id(7, 1)) && !is_legacy(now));
    }

    #[test]
    fn a_later_format_is_refused_by_its_number_with_what_to_do() {
        let mut bytes = others()[0].encode();
        bytes[0] += 1;
        let error = Event::decode(&bytes).unwrap_err();
        assert_eq!(error, EventError::Format { got: 5 });
        assert!(error.to_string().contains("start the build that wrote it"), "{error}");
        assert_eq!(crate::State::decode(&bytes), Err(EventError::Format { got: 5 }));
    }
}
