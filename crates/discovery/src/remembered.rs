//! What was already reported: repeats are dropped, and a flood of names does not grow without end.

use std::collections::{HashMap, VecDeque};

use exo_types::NodeId;

use crate::announcement::{FoundNode, Source};

/// Peers remembered at once. Beyond it the one heard of first is forgotten and reported anew when heard
/// again.
const PEERS_MAX: usize = 256;

/// The last report of each instance name.
#[derive(Default)]
pub(crate) struct Remembered {
    by_instance: HashMap<String, (NodeId, FoundNode)>,
    order: VecDeque<String>,
}

impl Remembered {
    /// Whether this says something new; remembers it if so.
    pub(crate) fn is_news(&mut self, instance: &str, node: NodeId, found: &FoundNode) -> bool {
        if self.by_instance.get(instance).is_some_and(|(_, known)| known == found) {
            return false;
        }
        if self.by_instance.insert(instance.to_owned(), (node, found.clone())).is_none() {
            self.order.push_back(instance.to_owned());
            if self.order.len() > PEERS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                tracing::debug!(oldest, max = PEERS_MAX, "too many announcements: forgot the oldest");
                self.by_instance.remove(&oldest);
            }
        }
        true
    }

    /// Forgets `instance`; what to report if it was known.
    pub(crate) fn lose(&mut self, instance: &str) -> Option<FoundNode> {
        let (node, last) = self.by_instance.remove(instance)?;
        self.order.retain(|other| other != instance);
        Some(FoundNode {
            node: Some(node),
            addrs: Vec::new(),
            source: Source::Mdns,
            txt: last.txt,
            lost: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn found(port: u16) -> FoundNode {
        let addrs = vec![([127, 0, 0, 1], port).into()];
        FoundNode { node: None, addrs, source: Source::Mdns, txt: BTreeMap::new(), lost: false }
    }

    #[test]
    fn only_changes_are_news() {
        let (mut known, node) = (Remembered::default(), NodeId([1; 32]));
        assert!(known.is_news("a", node, &found(1)));
        assert!(!known.is_news("a", node, &found(1)));
        assert!(known.is_news("a", node, &found(2)));
        assert!(known.lose("a").is_some_and(|f| f.lost && f.node == Some(node)));
        assert!(known.lose("a").is_none());
        assert!(known.is_news("a", node, &found(2)), "it is back");
    }

    #[test]
    fn a_flood_of_names_is_bounded() {
        let mut known = Remembered::default();
        for i in 0..10_000u32 {
            known.is_news(&i.to_string(), NodeId([0; 32]), &found(1));
        }
        assert_eq!((known.by_instance.len(), known.order.len()), (PEERS_MAX, PEERS_MAX));
    }
}
