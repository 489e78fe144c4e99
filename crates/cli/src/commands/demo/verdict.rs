//! What the demo promises, checked: the same text split and solo, the known answers, and each node only its
//! share.

use std::collections::BTreeSet;

use exo_api::InstanceView;

use super::ask::{DemoPrompt, TimedText};

/// Beside the tensors of the file a device holds small tables of its own, like the frequencies of positions.
const DEVICE_OWN_BYTES: u64 = 64 << 10;

/// The model at work in one way: on one node, or split.
pub struct DemoRun {
    /// The instance once it has answered, so with bytes held and shares of time.
    pub instance: InstanceView,
    /// One answer per prompt.
    pub answers: Vec<String>,
    /// The long text and its speed.
    pub measured: TimedText,
}

/// Every promise that was not kept, in words; empty when all were.
pub fn broken_promises(known: &[DemoPrompt], solo: &DemoRun, split: &DemoRun, nodes: usize) -> Vec<String> {
    let mut broken = texts(known, solo, split);
    broken.extend(shares(&solo.instance, &split.instance, nodes));
    broken
}

fn texts(known: &[DemoPrompt], solo: &DemoRun, split: &DemoRun) -> Vec<String> {
    let mut broken = Vec::new();
    for (i, DemoPrompt { prompt, answer }) in known.iter().enumerate() {
        let (alone, apart) = (&solo.answers[i], &split.answers[i]);
        if alone != apart {
            broken.push(format!("`{prompt}`: split says `{apart}`, one node says `{alone}`"));
        }
        if apart.trim() != answer.trim() {
            broken.push(format!("`{prompt}`: the answer is `{apart}`, known is `{answer}`"));
        }
    }
    if solo.measured.text != split.measured.text && kinds(solo) == kinds(split) {
        broken.push("the long text differs between split and one node".to_owned());
    }
    broken
}

/// Where the long text goes another way, if it may: processors and graphics cards round differently, and over
/// some hundred tokens the likeliest of two that are nearly as likely is sometimes the other one.
pub fn other_way(solo: &DemoRun, split: &DemoRun) -> Option<usize> {
    let (alone, apart) = (&solo.measured.text, &split.measured.text);
    let same = alone.chars().zip(apart.chars()).take_while(|(a, b)| a == b).count();
    (alone != apart && kinds(solo) != kinds(split)).then_some(same)
}

/// What computes: `cpu`, `vulkan`, ...
fn kinds(run: &DemoRun) -> BTreeSet<&str> {
    run.instance.stages.iter().filter_map(|stage| stage.device.split('-').next()).collect()
}

fn shares(solo: &InstanceView, split: &InstanceView, nodes: usize) -> Vec<String> {
    let whole: u64 = solo.stages.iter().map(|s| s.weight_bytes_held).sum();
    let sum: u64 = split.stages.iter().map(|s| s.weight_bytes_held).sum();
    let mut broken = Vec::new();
    if solo.stages.len() != 1 || split.stages.len() != nodes {
        broken.push(format!(
            "solo has {} stages and split {}, not 1 and {nodes}",
            solo.stages.len(),
            split.stages.len()
        ));
    }
    for stage in &split.stages {
        let (name, held, planned) = (&stage.node_name, stage.weight_bytes_held, stage.weight_bytes);
        if held == 0 || held >= whole {
            broken.push(format!("{name} holds {held} bytes of tensors, the whole model has {whole}"));
        }
        if held.abs_diff(planned) > planned / 50 + DEVICE_OWN_BYTES {
            broken.push(format!("{name} holds {held} bytes of tensors, its share is {planned}"));
        }
    }
    // A model whose output head is its embedding has that table on the first and on the last node.
    let twice = split.stages.first().map_or(0, |s| s.weight_bytes_held);
    if sum < whole || sum > whole + twice {
        broken.push(format!("the nodes hold {sum} bytes of tensors together, the whole model has {whole}"));
    }
    broken
}

#[cfg(test)]
mod tests {
    use exo_api::StageView;

    use super::*;

    /// Shares in units of a million bytes.
    fn instance(held: &[u64]) -> InstanceView {
        let stage = |millions: &u64| StageView {
            node_name: "anna".to_owned(),
            device: "cpu".to_owned(),
            weight_bytes: millions * 1_000_000,
            weight_bytes_held: millions * 1_000_000,
            ..StageView::default()
        };
        InstanceView { stages: held.iter().map(stage).collect(), ..InstanceView::default() }
    }

    fn run(held: &[u64], answer: &str) -> DemoRun {
        let measured = TimedText { text: "long".to_owned(), tokens_per_s: 1.0 };
        DemoRun { instance: instance(held), answers: vec![answer.to_owned()], measured }
    }

    fn check(solo: &DemoRun, split: &DemoRun) -> Vec<String> {
        let known = [DemoPrompt { prompt: "6 x 7".to_owned(), answer: "42".to_owned() }];
        broken_promises(&known, solo, split, 3)
    }

    #[test]
    fn a_split_that_keeps_its_promises_has_nothing_to_say() {
        assert!(check(&run(&[90], "42"), &run(&[30, 30, 30], "42")).is_empty());
        assert!(check(&run(&[90], "42"), &run(&[40, 20, 40], "42")).is_empty(), "a tied head is held twice");
    }

    #[test]
    fn a_long_text_may_differ_only_where_other_kinds_of_device_compute() {
        let (solo, mut split) = (run(&[90], "42"), run(&[30, 30, 30], "42"));
        split.measured.text = "lone".to_owned();
        assert_eq!((check(&solo, &split).len(), other_way(&solo, &split)), (1, None));
        split.instance.stages[1].device = "vulkan-0".to_owned();
        assert_eq!((check(&solo, &split).len(), other_way(&solo, &split)), (0, Some(3)));
    }

    #[test]
    fn another_text_a_wrong_answer_and_wrong_shares_are_each_found() {
        let solo = run(&[90], "42");
        assert_eq!(
            check(&solo, &run(&[30, 30, 30], "41")).len(),
            2,
            "differs from solo and from what is known"
        );
        assert_eq!(check(&run(&[90], "41"), &run(&[30, 30, 30], "41")).len(), 1);
        assert!(check(&solo, &run(&[90, 30, 30], "42"))[0].contains("anna holds 90000000 bytes"));
        assert!(check(&solo, &run(&[30, 20, 30], "42"))[0].contains("80000000 bytes of tensors together"));
        assert!(check(&solo, &run(&[45, 45], "42"))[0].contains("split 2"));
        let mut more = run(&[30, 30, 30], "42");
        more.instance.stages[1].weight_bytes_held += 1_000_000;
        assert!(check(&solo, &more)[0].contains("its share is 30000000"));
    }
}
