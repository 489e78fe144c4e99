//! What nodes say of the cluster that they are in.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

use super::{ANSWER_MAX, Cluster, Instance, JOIN_MAX, POLL};
use crate::wait::wait_for;

/// Who coordinates, as one node says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Epoch {
    pub counter: u64,
    /// Its node id.
    pub coordinator: String,
}

impl Epoch {
    /// In a view of the cluster; `None` in an election.
    pub fn of(view: &Value) -> Option<Self> {
        let epoch = &view["epoch"];
        Some(Self {
            counter: epoch["counter"].as_u64()?,
            coordinator: epoch["coordinator"].as_str()?.to_owned(),
        })
    }
}

impl Cluster {
    /// The cluster as one node sees it.
    pub fn view(&self, at: usize) -> anyhow::Result<Value> {
        self.node(at)?.server.get("/exo/v1/cluster", ANSWER_MAX)
    }

    /// A node's id.
    pub fn id_of(&self, at: usize) -> anyhow::Result<String> {
        Ok(self.view(at)?["self_node"].as_str().context("a node does not say its id")?.to_owned())
    }

    /// Which node coordinates, as the node `by` sees it.
    pub fn coordinator(&self, by: usize) -> anyhow::Result<usize> {
        let Epoch { coordinator, .. } =
            wait_for("an election", (JOIN_MAX, POLL), || Ok(Epoch::of(&self.view(by)?)))?;
        for at in 0..self.nodes.len() {
            if self.id_of(at)? == coordinator {
                return Ok(at);
            }
        }
        bail!("no node of this cluster coordinates it")
    }

    /// Waits until the node `by` sees so many that live and have devices.
    pub fn wait_seen(&self, by: usize, size: usize, at_most: Duration) -> anyhow::Result<()> {
        wait_for(&format!("seeing {size} nodes"), (at_most, POLL), || {
            Ok(super::sees(&self.view(by)?, size).then_some(()))
        })
    }

    /// The layers of each shard that a node has begun to load, the last ones last.
    pub fn loads(&self, at: usize) -> anyhow::Result<Vec<String>> {
        let node = self.node(at)?;
        let path = format!("/exo/v1/logs?node={}&target=events::shard&limit=2000", node.name);
        let logs = node.server.get(&path, ANSWER_MAX)?;
        let lines = logs["lines"].as_array().context("a node shows no log")?;
        let texts = lines.iter().filter_map(|line| line["text"].as_str());
        Ok(texts.filter_map(layers_to_load).map(str::to_owned).collect())
    }

    /// The layers that a node has of an instance, as `0..4`.
    pub fn layers_of(&self, instance: &Instance, at: usize) -> anyhow::Result<Option<String>> {
        let on_node = format!("{}/", self.node(at)?.name);
        let pins = self.pins_of(instance)?;
        let pin = pins.iter().find(|pin| pin.starts_with(&on_node));
        Ok(pin.and_then(|pin| pin.rsplit_once('=')).map(|(_, layers)| layers.to_owned()))
    }
}

/// Which placement each instance has in a view of the cluster: another one each time it is placed anew.
pub fn placements(view: &Value) -> BTreeMap<String, String> {
    let instances = view["instances"].as_array().into_iter().flatten();
    let placed = |instance: &Value| {
        Some((instance["id"].as_str()?.to_owned(), instance["placement"].as_str()?.to_owned()))
    };
    instances.filter_map(placed).collect()
}

/// In the text of a log line that says so.
fn layers_to_load(text: &str) -> Option<&str> {
    text.strip_prefix("loading ")?.split(' ').find_map(|field| field.strip_prefix("layers="))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn loads_are_told_from_what_else_a_log_says_of_shards() {
        assert_eq!(layers_to_load("loading engine=3 layers=4..8"), Some("4..8"));
        assert_eq!(layers_to_load("kept in memory engine=3 layers=4..8 placement=p1"), None);
        assert_eq!(layers_to_load("loaded layers=4..8 bytes=1"), None);
    }

    #[test]
    fn who_coordinates_and_what_is_placed_stand_in_a_view() {
        let view = json!({
            "epoch": { "counter": 3, "coordinator": "n1" },
            "instances": [{ "id": "i1", "placement": "a" }, { "id": "i2", "placement": "b" }],
        });
        assert_eq!(Epoch::of(&view), Some(Epoch { counter: 3, coordinator: "n1".to_owned() }));
        assert_eq!(Epoch::of(&json!({ "epoch": null })), None);
        let placed = [("i1", "a"), ("i2", "b")].map(|(id, placement)| (id.to_owned(), placement.to_owned()));
        assert_eq!(placements(&view), BTreeMap::from(placed));
    }
}
