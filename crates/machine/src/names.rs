//! What people call the members: each says itself what it is called, and what is shown names one of them.
//!
//! The log of trust has the name that a node had when it came in, which no one changes for it; its reports
//! have today's. Names are free, and machines from one image have the same one: such names get the beginning
//! of their node's id behind them, so that whoever types what the screen shows means one machine. Only ids
//! decide anything.

use std::collections::BTreeMap;

use exo_trust::Member;
use exo_types::{NodeId, clean_name};

/// Longest name, in characters.
const NAME_CHARS_MAX: usize = 64;
/// Characters of an id behind a name: none, as many as tell two nodes of one name apart, more where even
/// these are somebody's name.
const ID_CHARS: [usize; 4] = [0, 4, 16, 64];

/// The members' names.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// As each last said it. It stays while a member is away.
    told: BTreeMap<NodeId, String>,
    shown: BTreeMap<NodeId, String>,
    /// As those were called who belonged to the cluster in this run: their going is told by it.
    former: BTreeMap<NodeId, String>,
}

impl Names {
    /// What a member says it is called.
    pub(crate) fn tell(&mut self, node: NodeId, name: &str, members: &BTreeMap<NodeId, Member>) {
        let name = clean_name(name, NAME_CHARS_MAX);
        if !name.is_empty() && self.told.get(&node) != Some(&name) {
            self.told.insert(node, name);
            self.set_members(members);
        }
    }

    /// Who belongs to the cluster now.
    pub(crate) fn set_members(&mut self, members: &BTreeMap<NodeId, Member>) {
        self.told.retain(|node, _| members.contains_key(node));
        self.former.extend(std::mem::take(&mut self.shown));
        self.former.retain(|node, _| !members.contains_key(node));
        let plain =
            |(node, member): (&NodeId, &Member)| (*node, self.told.get(node).unwrap_or(&member.name).clone());
        let plain: BTreeMap<_, _> = members.iter().map(plain).collect();
        let ids: Vec<(NodeId, String)> = members.keys().map(|node| (*node, node.to_full())).collect();
        let looks_like_another = |node: NodeId, name: &str| {
            let is_of_another =
                |end: &str| ids.iter().any(|(other, id)| *other != node && id.starts_with(end));
            let end = name.rsplit_once('-').map(|(_, end)| end).filter(|end| end.len() >= ID_CHARS[1]);
            name.contains(['/', '=']) || end.is_some_and(is_of_another)
        };
        // How much of the id stands behind each name.
        let level =
            |(node, name): (&NodeId, &String)| (*node, if looks_like_another(*node, name) { 2 } else { 0 });
        let mut levels: BTreeMap<NodeId, usize> = plain.iter().map(level).collect();
        loop {
            self.shown =
                plain.iter().map(|(node, name)| (*node, with_id(name, *node, levels[node]))).collect();
            let mut bearers: BTreeMap<&String, usize> = BTreeMap::new();
            self.shown.values().for_each(|name| *bearers.entry(name).or_default() += 1);
            let is_shared = |node: &NodeId| bearers[&self.shown[node]] > 1;
            let raised: Vec<NodeId> = levels
                .iter()
                .filter(|(node, level)| **level < ID_CHARS.len() - 1 && is_shared(node))
                .map(|(node, _)| *node)
                .collect();
            if raised.is_empty() {
                return;
            }
            raised.iter().for_each(|node| *levels.entry(*node).or_default() += 1);
        }
    }

    /// What people call a node: a member's name, the one of a former member unless another bears it now, else
    /// the beginning of its id.
    pub(crate) fn of(&self, node: NodeId) -> String {
        let former =
            || self.former.get(&node).filter(|name| !self.shown.values().any(|other| other == *name));
        self.shown.get(&node).or_else(former).cloned().unwrap_or_else(|| node.to_string())
    }

    /// A text that has ids behind the word `node`, with the names of members and former members.
    pub(crate) fn in_text(&self, text: &str) -> String {
        let known = self.shown.keys().chain(self.former.keys());
        known.fold(text.to_owned(), |text, node| {
            text.replace(&format!("node {node}"), &format!("node {}", self.of(*node)))
        })
    }
}

fn with_id(name: &str, node: NodeId, level: usize) -> String {
    match ID_CHARS[level] {
        0 => name.to_owned(),
        chars => format!("{name}-{}", node.to_full().chars().take(chars).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use exo_trust::Role;

    use super::*;

    fn members(names: &[(u8, &str)]) -> BTreeMap<NodeId, Member> {
        let member = |name: &str| Member { name: name.to_owned(), role: Role::Worker };
        names.iter().map(|(n, name)| (NodeId([*n; 32]), member(name))).collect()
    }

    #[test]
    fn a_member_is_called_what_it_says_and_what_it_was_called_when_it_came_in_before_that() {
        let members = members(&[(1, "desk"), (2, "attic")]);
        let mut names = Names::default();
        names.set_members(&members);
        assert_eq!(names.of(NodeId([2; 32])), "attic");
        names.tell(NodeId([2; 32]), "cellar\u{1b}[31m", &members);
        assert_eq!(names.of(NodeId([2; 32])), "cellar[31m", "nothing that a terminal obeys");
        names.tell(NodeId([2; 32]), "", &members);
        assert_eq!(names.of(NodeId([2; 32])), "cellar[31m");
        names.tell(NodeId([3; 32]), "stranger", &members);
        assert_eq!(names.of(NodeId([3; 32])), NodeId([3; 32]).to_string(), "strangers have no name");
    }

    #[test]
    fn who_was_put_out_is_called_as_before_until_another_is_called_so() {
        let (left, new) = (NodeId([2; 32]), NodeId([3; 32]));
        let mut names = Names::default();
        names.set_members(&members(&[(1, "desk"), (2, "mini")]));
        names.set_members(&members(&[(1, "desk")]));
        assert_eq!(names.of(left), "mini");
        let text = |of: NodeId| format!("the stage on node {of} was lost");
        assert_eq!(names.in_text(&text(left)), "the stage on node mini was lost");
        assert_eq!(names.in_text(&text(new)), text(new), "of a stranger there is only the id");
        names.set_members(&members(&[(1, "desk"), (3, "mini")]));
        assert_eq!((names.of(left), names.of(new)), (left.to_string(), "mini".to_owned()));
    }

    #[test]
    fn what_is_shown_names_one_member_whoever_calls_itself_so() {
        let node = |n: u8| NodeId([n; 32]);
        let id = |n: u8, chars: usize| node(n).to_full().chars().take(chars).collect::<String>();
        let like_the_second = format!("pi-{}", id(2, 4));
        let members = members(&[(1, "pi"), (2, "pi"), (3, &like_the_second), (4, "desk"), (5, "desk/cpu")]);
        let mut names = Names::default();
        names.set_members(&members);
        let shown: Vec<_> = (1..=5).map(|n| names.of(node(n))).collect();
        assert_eq!(shown[0], format!("pi-{}", id(1, 4)));
        assert_eq!(shown[1], format!("pi-{}", id(2, 4)));
        assert_eq!(
            shown[2],
            format!("{like_the_second}-{}", id(3, 16)),
            "it bears the beginning of another's id"
        );
        assert_eq!((shown[3].as_str(), &shown[4]), ("desk", &format!("desk/cpu-{}", id(5, 16))));
        names.tell(node(1), "lab", &members);
        assert_eq!(names.of(node(2)), "pi", "alone with its name again");
        assert_eq!(names.of(node(3)), shown[2], "and nobody else gets the name that it had");
    }
}
