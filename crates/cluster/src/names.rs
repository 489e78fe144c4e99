//! What nodes are called in sentences.

use exo_types::NodeId;

/// What a node is called in a sentence.
pub type NodeName<'a> = &'a dyn Fn(NodeId) -> String;

/// Where no names are known: `machine` puts them in place of "node" and the id.
pub(crate) fn by_id(node: NodeId) -> String {
    format!("node {node}")
}

/// Displays values that have a `text` with ids in place of names: for logs, tests and parts that know none.
macro_rules! shown_by_id {
    ($($shown:ty),+) => {
        $(impl std::fmt::Display for $shown {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.text(&$crate::names::by_id))
            }
        })+
    };
}
pub(crate) use shown_by_id;
