//! Why a shard is not loaded: a closed set with its numbers, for the wire and the log. Whoever shows it makes
//! the sentence.

use exo_types::{NodeId, Shard, list, size, size_up};
use serde::{Deserialize, Serialize};

use crate::names::{NodeName, shown_by_id};

/// Members that are named because they had a model.
pub const HOLDERS_NAMED_MAX: usize = 3;
/// Characters of a detail.
const DETAIL_CHARS_MAX: usize = 1000;

/// Why a shard is not loaded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum LoadFailure {
    /// Nobody who is reachable has its model.
    NoHolder {
        model_name: String,
        /// Members that had it when it was placed.
        #[serde(deserialize_with = "list::<_, _, HOLDERS_NAMED_MAX>")]
        had: Vec<NodeId>,
    },
    /// Its device has too little memory left, and nothing there is about to free some.
    NoMemory { shard: Shard, needed_bytes: u64, free_bytes: u64 },
    /// No byte came for so long.
    NoProgress { seconds: u64 },
    /// It was loaded, and its device holds nothing of it any more.
    LetGo,
    /// A file, a line, a driver or a system failed.
    Fault {
        kind: LoadFault,
        /// In the words of what failed.
        detail: String,
    },
}

/// At what a load failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LoadFault {
    /// Its bytes did not come.
    Fetch,
    /// Bytes on this disk are damaged, and nobody gave them again.
    Damaged,
    /// The disk has no room for them.
    DiskRoom,
    /// What is here is not what its hub promised.
    Differs,
    /// Its file could not be opened, or its device is not there at present.
    Open,
    /// Its device did not take it.
    Device,
    /// Its device or worker process was lost.
    Lost,
}

impl LoadFailure {
    /// Whether the next attempt will hardly do better: such failures are counted.
    pub fn is_refusal(&self) -> bool {
        let Self::Fault { kind, .. } = self else { return false };
        matches!(kind, LoadFault::DiskRoom | LoadFault::Differs | LoadFault::Device)
    }

    /// The same with a detail that a message takes.
    pub(crate) fn clipped(self) -> Self {
        match self {
            Self::Fault { kind, detail } => {
                Self::Fault { kind, detail: detail.chars().take(DETAIL_CHARS_MAX).collect() }
            }
            bounded => bounded,
        }
    }

    /// The sentence.
    pub fn text(&self, name: NodeName<'_>) -> String {
        match self {
            Self::NoHolder { model_name, had } => {
                let names: Vec<String> = had.iter().map(|node| name(*node)).collect();
                let what_to_do = match names.as_slice() {
                    [] => "start exo again on a machine that has it".to_owned(),
                    names => format!("{} had it: start exo there again", names.join(", ")),
                };
                format!(
                    "no member that is reachable has {model_name}; {what_to_do}, or `exo models add` its file here"
                )
            }
            Self::NoMemory { shard, needed_bytes, free_bytes } => {
                format!("{shard} needs {}, {} are free", size_up(*needed_bytes), size(*free_bytes))
            }
            Self::NoProgress { seconds } => format!("no progress for {seconds} s"),
            Self::LetGo => "the device let go of it".to_owned(),
            Self::Fault { detail, .. } => detail.clone(),
        }
    }
}

shown_by_id!(LoadFailure);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::node;

    #[test]
    fn who_had_a_model_is_named_as_it_is_called_where_that_is_read() {
        let failure = |had| LoadFailure::NoHolder { model_name: "mine".to_owned(), had };
        let name = |node: NodeId| format!("n{}", node.0[0]);
        let two = failure(vec![node(1), node(2)]).text(&name);
        assert!(
            two.starts_with("no member that is reachable has mine; n1, n2 had it: start exo there again, or")
        );
        assert!(failure(Vec::new()).text(&name).contains("; start exo again on a machine that has it, or"));
    }

    #[test]
    fn what_will_hardly_go_better_the_next_time_is_a_refusal() {
        let fault = |kind| LoadFailure::Fault { kind, detail: "why".to_owned() };
        for kind in [LoadFault::DiskRoom, LoadFault::Differs, LoadFault::Device] {
            assert!(fault(kind).is_refusal(), "{kind:?}");
        }
        for kind in [LoadFault::Fetch, LoadFault::Damaged, LoadFault::Open, LoadFault::Lost] {
            assert!(!fault(kind).is_refusal(), "{kind:?}");
        }
        assert!(!LoadFailure::NoProgress { seconds: 60 }.is_refusal() && !LoadFailure::LetGo.is_refusal());
    }
}
