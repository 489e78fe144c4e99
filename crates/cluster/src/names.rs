//! What nodes are called in sentences.

use exo_types::NodeId;

/// What a node is called in a sentence.
pub type NodeName<'a> = &'a dyn Fn(NodeId) -> String;

/// Where no names are known: `machine` puts them in place of "node" and the id.
pub(crate) fn by_id(node: NodeId) -> String {
    format!("node {node}")
}
