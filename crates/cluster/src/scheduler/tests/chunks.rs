//! How a long prompt is read beside running answers.

use super::*;

#[test]
fn those_behind_long_prompts_hear_that_the_pipeline_moves() {
    let mut s = scheduler(&[1], 64);
    submit(&mut s, 1, 60, 4);
    submit(&mut s, 2, 2, 4);
    let tick = |s: &mut Scheduler, ms| show(&s.handle(Time::from_millis(ms), SchedulerInput::Tick));
    assert!(tick(&mut s, 6_000).is_empty(), "no step came back yet");
    s.completed_at = Time::from_millis(6_500);
    assert_eq!(tick(&mut s, 7_000), ["started 1", "started 2"]);
    assert!(tick(&mut s, 20_000).is_empty(), "nothing moved since");
}

/// Answers every step at the pace of a device: 40 ms a step and `prompt_us` a prompt token, until `until`
/// tokens of sequence 1 are there. Gives the longest time between two of its tokens after the first.
fn longest_gap(s: &mut Scheduler, mut out: Vec<SchedulerOutput>, prompt_us: u64, until: u32) -> Duration {
    let (mut steps, mut now, mut last, mut gap) = (VecDeque::new(), Time::ZERO, None, Duration::ZERO);
    loop {
        steps.extend(out.drain(..).filter_map(|o| match o {
            SchedulerOutput::Step(step) => Some(step),
            _ => None,
        }));
        let Some(step) = steps.pop_front() else { return gap };
        let prompt: u64 = step.frame.sequences.iter().map(|p| p.tokens.len() as u64).filter(|n| *n > 1).sum();
        now = now + Duration::from_micros(40_000 + prompt_us * prompt);
        let sampled = step.frame.sequences.iter().filter(|p| p.sample);
        let results: Vec<_> = sampled.map(|p| result(p.sequence.request.0, p.sample_position(), 7)).collect();
        if results.iter().any(|r| r.sequence == seq(1)) {
            gap = gap.max(last.map_or(Duration::ZERO, |last| now.since(last)));
            last = Some(now);
        }
        if s.running.get(&seq(1)).is_none_or(|r| r.generated >= until) {
            return gap;
        }
        let back = back(s, step.frame.step, results);
        out = s.tokens(now, sender(s), &back);
    }
}

#[test]
fn a_long_prompt_does_not_hold_up_a_running_sequence() {
    for (on, prompt_us) in [(&[1][..], 100), (&[1], 2_500), (&[1], 12_000), (&[1, 2], 2_500)] {
        let mut placement = placement(1, 1, on);
        placement.context_tokens = 4096;
        let config = SchedulerConfig { speculation: Speculation::Off, ..SchedulerConfig::default() };
        let mut s = serving(config, placement, 1024, 32);
        let mut out = submit(&mut s, 1, 2, 400);
        out.extend(submit(&mut s, 2, 2000, 4));
        let gap = longest_gap(&mut s, out, prompt_us, 300);
        assert!(gap < Duration::from_millis(300), "{prompt_us} us a token on {on:?}: {gap:?}");
        assert!(!s.running.contains_key(&seq(2)), "and the prompt was read meanwhile");
    }
}

#[test]
fn alone_a_prompt_is_read_in_large_chunks() {
    let mut placement = placement(1, 1, &[1]);
    placement.context_tokens = 4096;
    let mut s = serving(SchedulerConfig::default(), placement, 1024, 32);
    let out = submit(&mut s, 1, 3000, 4);
    assert_eq!(show(&out)[2], "step 1: open 1 | 1@0+128", "nothing is measured yet");
    s.completed_at = Time::ZERO;
    let back = back(&s, 1, vec![]);
    let out = s.tokens(Time::from_millis(64), node(1), &back);
    assert_eq!(show(&out), ["step 2: keep 1 4 | 1@128+512"], "0.5 ms a token: the largest chunk");
}

#[test]
fn what_fails_with_the_chunk_in_front_is_one_fault() {
    let mut s = scheduler(&[1, 2], 64);
    submit(&mut s, 1, 20, 12);
    assert_eq!(s.in_flight.len(), 2);
    for step in [1, 2] {
        failed(&mut s, step, 1, FailureKind::Device);
        assert_eq!(s.failures_in_row, 1);
    }
}

#[test]
fn sequences_with_large_grammars_are_opened_over_several_steps() {
    let placement = Placement { slots: 8, ..placement(1, 1, &[1]) };
    let mut s = serving(SchedulerConfig::default(), placement, 64, 8);
    submit(&mut s, 1, 4, 4);
    let grammar = "x".repeat(exo_types::GRAMMAR_BYTES_MAX);
    let constraint = exo_types::Constraint { grammar, engine: String::new(), vocabulary: [0; 32] };
    let constraint = Some(std::sync::Arc::new(constraint));
    for n in 2..=7 {
        let mut submission = submission(n, 4, 4);
        submission.spec.sampling.constraint.clone_from(&constraint);
        s.handle(Time::ZERO, SchedulerInput::Submit { from: node(9), submission });
    }
    let opened = |out: &[String]| out.iter().map(|line| line.matches("open ").count()).sum::<usize>();
    let first = show(&tokens(&mut s, 1, vec![result(1, 4, 7)]));
    assert_eq!(opened(&first), 4, "4 MiB of grammars: {first:?}");
    let results = [2, 3, 4, 5].map(|n| result(n, 4, 7));
    let second = show(&tokens(&mut s, 2, [vec![result(1, 5, 7)], results.to_vec()].concat()));
    assert_eq!(opened(&second), 2, "{second:?}");
}
