//! Strangers at an open window, many of them.

use super::*;

/// Writes the entries that wait, in order, as far as they still may be.
fn write_admissions(node: &mut Node, waiting: &mut Vec<(u64, NodeId)>) {
    for (admission, stranger) in waiting.drain(..) {
        let may = node.call(|joining, ctx, _| joining.may_record(ctx, admission, ctx.trust.view()));
        if may.is_ok() {
            node.admit(stranger);
        }
        node.recorded(admission, may);
        node.take();
    }
}

/// In each run others are near, and entries wait for the disk for longer or shorter: up to all who are near.
#[test]
fn of_strangers_at_an_open_window_sixteen_that_are_near_come_in_and_nobody_else() {
    let strangers: Vec<NodeId> = (2..62).map(|seed| key(seed).1).collect();
    for seed in 1..=100u64 {
        let mut state = seed;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let mut node = Node::fresh(key(1), &[]);
        let (mut near, mut waiting) = (BTreeSet::new(), Vec::new());
        let written_one_in = 1 + seed % 50;
        for &stranger in &strangers {
            node.is_near = below(3) > 0;
            if node.is_near {
                near.insert(stranger);
            }
            node.asked(stranger);
            waiting.extend(node.take().into_iter().filter_map(|output| match output {
                JoiningOutput::Act { admission, act: Act::Admit { node, .. } } => Some((admission, node)),
                _ => None,
            }));
            if below(written_one_in) == 0 {
                write_admissions(&mut node, &mut waiting);
            }
        }
        write_admissions(&mut node, &mut waiting);
        let mut members: BTreeSet<NodeId> = node.trust.view().members().keys().copied().collect();
        members.remove(&node.me());
        assert_eq!(members.len(), 16, "seed {seed}");
        assert!(members.is_subset(&near), "seed {seed}");
        assert!(!node.call(|_, ctx, _| ctx.is_window_open()), "seed {seed}");
    }
}
