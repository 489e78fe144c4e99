//! Who runs when several want to: principals, queues, shares, making way.

use super::*;

#[test]
fn principals_take_turns() {
    let mut s = scheduler(&[1], 4); // one sequence at a time
    let (a, b) = (Principal([1; 16]), Principal([2; 16]));
    submit_as(&mut s, 1, 4, 12, a);
    for (n, who) in [(2, a), (3, a), (4, b)] {
        submit_as(&mut s, n, 4, 12, who);
    }
    let mut order = Vec::new();
    for n in [1, 2, 4] {
        let cancel = cancelled(seq(n));
        let out = show(&s.handle(Time::ZERO, cancel));
        order.extend(out.into_iter().filter(|l| l.starts_with("started")));
    }
    assert_eq!(order, ["started 2", "started 4", "started 3"]);
}

#[test]
fn principals_take_turns_with_what_was_interrupted_and_it_goes_before_what_is_new() {
    let mut s = scheduler(&[1], 4); // one sequence at a time
    let (a, b) = (Principal([1; 16]), Principal([2; 16]));
    submit_as(&mut s, 1, 4, 12, a);
    submit_as(&mut s, 2, 4, 12, b);
    for (n, who) in [(3, a), (4, a), (5, a), (6, b)] {
        let mut resumed = submission(n, 4, 11);
        (resumed.spec.principal, resumed.attempt) = (who, Attempt(2));
        resumed.spec.history.push(7);
        s.handle(Time::ZERO, SchedulerInput::Submit { from: node(9), submission: resumed });
    }
    let mut order = Vec::new();
    while let Some((sequence, attempt)) = s.running.iter().next().map(|(id, r)| (*id, r.attempt)) {
        let (from, placement) = (node(9), placement_id(1, 1));
        let end = SchedulerInput::Cancel { from, placement, sequence, attempt };
        let out = show(&s.handle(Time::ZERO, end));
        order.extend(out.into_iter().filter(|l| l.starts_with("started")));
    }
    assert_eq!(order, ["started 3", "started 6", "started 4", "started 5", "started 2"]);
}

#[test]
fn who_fills_the_queue_takes_nobody_elses_share_of_it() {
    let mut s = scheduler(&[1], 4);
    for n in 1..=4 {
        submit(&mut s, n, 4, 12);
    }
    assert_eq!(show(&submit(&mut s, 5, 4, 12)), ["rejected 5 QueueFull"]);
    let [second, third, fourth, fifth] = [2, 3, 4, 5].map(|n| Principal([n; 16]));
    assert_eq!(
        show(&submit_as(&mut s, 6, 4, 12, second)),
        ["accepted 6 behind 3"],
        "one of three seats is its share"
    );
    assert_eq!(show(&submit_as(&mut s, 7, 4, 12, second)), ["rejected 7 QueueFull"]);
    assert_eq!(show(&submit_as(&mut s, 8, 4, 12, third)), ["accepted 8 behind 4"]);
    assert_eq!(
        show(&submit_as(&mut s, 9, 4, 12, fourth)),
        ["accepted 9 behind 5"],
        "a seat for who has none, with less than one for each"
    );
    assert_eq!(show(&submit_as(&mut s, 10, 4, 12, fourth)), ["rejected 10 QueueFull"]);
    for n in 0..6 {
        submit_as(&mut s, 20 + n, 4, 12, Principal([20 + n as u8; 16]));
    }
    assert_eq!(
        show(&submit_as(&mut s, 30, 4, 12, fifth)),
        ["rejected 30 QueueFull"],
        "four times the seats wait"
    );
    let ended = show(&s.handle(Time::ZERO, cancelled(seq(1))));
    assert!(ended.contains(&"started 2".to_owned()), "{ended:?}");
    let ended = show(&s.handle(Time::ZERO, cancelled(seq(2))));
    assert!(
        ended.contains(&"started 6".to_owned()),
        "its turn comes before the next of the first: {ended:?}"
    );
}

/// Reports a token of each part of the step that was sent last; who started and ended then.
fn go_on(s: &mut Scheduler) -> Vec<String> {
    let flight = s.in_flight.front().unwrap();
    let step = flight.step;
    let result = |part: &exo_types::StepSequence| TokenResult {
        sequence: part.sequence,
        ..result(part.sequence.request.0, part.end(), 7)
    };
    let results = flight.sampled.iter().map(|(_, part)| result(part)).collect();
    let out = show(&tokens(s, step, results));
    out.into_iter().filter(|line| !line.starts_with("step")).collect()
}

/// Whose parts are in the step that was sent last: chunks of prompts, then those that sample.
fn in_step(s: &Scheduler) -> Vec<u128> {
    let flight = s.in_flight.back().unwrap();
    let chunks = flight.chunks.iter().map(|(_, sequence, _)| *sequence);
    let sampled = flight.sampled.iter().map(|(_, part)| part.sequence);
    chunks.chain(sampled).map(|sequence| sequence.request.0).collect()
}

#[test]
fn where_rows_are_expensive_who_runs_most_sits_out_of_steps_in_turns() {
    let config = SchedulerConfig { speculation: Speculation::Off, ..SchedulerConfig::default() };
    let mut s = serving(config, placement(1, 1, &[1]), 64, 4);
    s.row_cost = RowCost::of_row(1.0);
    let [a, b] = [1, 2].map(|n| Principal([n; 16]));
    for n in 1..=4 {
        submit_as(&mut s, n, 4, 40, a);
    }
    go_on(&mut s);
    submit_as(&mut s, 7, 4, 40, b);
    assert_eq!(go_on(&mut s), ["started 7"]);
    assert_eq!(in_step(&s), [1, 2, 3, 7], "nobody waits for a token of the other yet");
    let mut counts = BTreeMap::new();
    for _ in 0..6 {
        go_on(&mut s);
        let rows = in_step(&s);
        assert_eq!(rows.len(), 3, "{rows:?}");
        rows.into_iter().for_each(|n| *counts.entry(n).or_insert(0) += 1);
    }
    assert_eq!(counts, BTreeMap::from([(1, 4), (2, 4), (3, 4), (7, 6)]));
    s.row_cost = RowCost::of_row(0.1);
    go_on(&mut s);
    assert_eq!(in_step(&s).len(), 4, "where rows are cheap, all go along");
}

/// Over two stages a step has room for one row: it is of one principal, then of the other.
#[test]
fn where_a_step_has_no_room_for_one_row_of_each_principal_they_take_turns() {
    let config = SchedulerConfig { speculation: Speculation::Off, ..SchedulerConfig::default() };
    let mut s = serving(config, placement(1, 1, &[1, 2]), 64, 4);
    s.row_cost = RowCost::of_row(1.0);
    let [a, b] = [1, 2].map(|n| Principal([n; 16]));
    for (n, who) in [(1, a), (2, a), (3, a), (7, b)] {
        submit_as(&mut s, n, 4, 40, who);
    }
    (0..12).for_each(|_| drop(go_on(&mut s)));
    let mut counts = BTreeMap::new();
    for _ in 0..12 {
        go_on(&mut s);
        in_step(&s).into_iter().for_each(|n| *counts.entry(n).or_insert(0) += 1);
    }
    assert_eq!(counts, BTreeMap::from([(1, 2), (2, 2), (3, 2), (7, 6)]));
}

#[test]
fn a_long_prompt_has_its_turns_however_many_principals_come_with_short_ones() {
    let config =
        SchedulerConfig { speculation: Speculation::Off, chunk_tokens_max: 8, ..SchedulerConfig::default() };
    let mut s = serving(config, placement(1, 1, &[1]), 64, 4);
    submit_as(&mut s, 1, 40, 12, Principal([1; 16]));
    let mut steps = vec![in_step(&s)];
    for n in 10..20 {
        submit_as(&mut s, n, 8, 1, Principal([n as u8; 16]));
        go_on(&mut s);
        steps.push(in_step(&s));
    }
    assert!(steps.windows(4).all(|four| four.iter().flatten().any(|n| *n == 1)), "{steps:?}");
    assert_eq!(steps[1], [10], "who is new waits for one chunk of it: {steps:?}");
}

#[test]
fn prompts_of_principals_are_read_in_turns() {
    let config =
        SchedulerConfig { speculation: Speculation::Off, chunk_tokens_max: 8, ..SchedulerConfig::default() };
    let mut s = serving(config, placement(1, 1, &[1]), 64, 4);
    let [a, b] = [1, 2].map(|n| Principal([n; 16]));
    for (n, who) in [(1, a), (2, a), (3, a), (7, b)] {
        submit_as(&mut s, n, 24, 12, who);
    }
    let mut steps = Vec::new();
    for _ in 0..6 {
        steps.push(in_step(&s));
        go_on(&mut s);
    }
    assert_eq!(
        steps,
        [vec![1], vec![7], vec![1], vec![7], vec![1], vec![1, 7]],
        "not behind all of the other's"
    );
}

#[test]
fn who_has_all_slots_makes_way_for_who_has_none() {
    let config = SchedulerConfig { speculation: Speculation::Off, ..SchedulerConfig::default() };
    let mut s = serving(config, placement(1, 1, &[1]), 64, 4);
    let [a, b, c] = [1, 2, 3].map(|n| Principal([n; 16]));
    for n in 1..=6 {
        submit_as(&mut s, n, 4, 12, a);
    }
    assert_eq!(go_on(&mut s), Vec::<String>::new());
    assert_eq!(s.running.keys().map(|id| id.request.0).collect::<Vec<_>>(), [1, 2, 3, 4]);

    // All are in a step: it starts when that comes back.
    assert_eq!(show(&submit_as(&mut s, 7, 4, 12, b)), ["accepted 7 behind 2"]);
    assert_eq!(go_on(&mut s), ["started 7"]);
    assert_eq!(show(&submit_as(&mut s, 8, 4, 12, b)), ["accepted 8 behind 3"]);
    assert_eq!(go_on(&mut s), ["started 8"], "two and two");
    submit_as(&mut s, 9, 4, 12, b);
    assert_eq!(go_on(&mut s), Vec::<String>::new(), "more than half is nobody's share");
    submit_as(&mut s, 10, 4, 12, c);
    assert_eq!(go_on(&mut s), ["started 10"]);
    assert_eq!(s.running.len(), 4);

    // What made way goes on before what of its principal had not begun, and has its tokens in all.
    let mut said = Vec::new();
    while !s.running.is_empty() {
        assert!(said.len() < 100, "{said:?}");
        said.extend(go_on(&mut s));
    }
    let position = |line: &str| said.iter().position(|said| said.starts_with(line)).unwrap_or(said.len());
    assert!(position("started 4") < position("started 5"), "{said:?}");
    for n in 1..=10 {
        assert!(said.contains(&format!("ended {n} MaxTokens after 12")), "{n}: {said:?}");
    }
    assert_eq!((s.pages.claimed(), s.load_report().waiting), (0, 0));
}

#[test]
fn the_end_tells_where_the_time_of_prompt_and_answer_went() {
    let mut s = serving(SchedulerConfig::default(), placement(1, 1, &[1, 2]), 64, 4);
    submit(&mut s, 1, 4, 2);
    let from = node(2);
    let mut after = |ms: u64, computed_us: Vec<u32>, position: u32| {
        let step = s.in_flight.front().unwrap().step;
        let tokens = TokensMessage { computed_us, ..back(&s, step, vec![result(1, position, 7)]) };
        s.tokens(Time::from_millis(ms), from, &tokens)
    };
    after(100, vec![30_000, 50_000], 4);
    // One that says more of itself than the step took gets what there was, and further ones are of no stage.
    let out = after(110, vec![4000, 900_000, 1], 5);
    let times = out.iter().find_map(|out| match out {
        SchedulerOutput::Send { message: DataMessage::SequenceEnded { times, .. }, .. } => {
            Some(times.clone())
        }
        _ => None,
    });
    let expected = SequenceTimes {
        prompt: PhaseTimes { stages_us: vec![30_000, 50_000], between_us: 20_000 },
        answer: PhaseTimes { stages_us: vec![4000, 6000], between_us: 0 },
    };
    assert_eq!(times, Some(expected), "{:?}", show(&out));
}

#[test]
fn an_answer_that_runs_alone_is_timed_until_another_runs_beside_it() {
    let config = SchedulerConfig { speculation: Speculation::Off, ..SchedulerConfig::default() };
    let mut s = serving(config, placement(1, 1, &[1, 2]), 64, 4);
    let after = |s: &mut Scheduler, ms: u64, computed_us: [u32; 2], sequence: u128, position: u32| {
        let step = s.in_flight.front().unwrap().step;
        let results = vec![result(sequence, position, 7)];
        let tokens = TokensMessage { computed_us: computed_us.to_vec(), ..back(s, step, results) };
        s.tokens(Time::from_millis(ms), node(2), &tokens);
        s.alone.times().cloned()
    };
    submit(&mut s, 1, 4, 3);
    assert_eq!(s.alone.times(), None);
    let first = AloneTimes {
        prompt_tokens: 4,
        first_token_us: 100_000,
        prompt: PhaseTimes { stages_us: vec![30_000, 50_000], between_us: 20_000 },
        answer_tokens: 0,
        answer: PhaseTimes::default(),
    };
    assert_eq!(after(&mut s, 100, [30_000, 50_000], 1, 4), Some(first.clone()));
    let answer = PhaseTimes { stages_us: vec![4000, 5000], between_us: 1000 };
    let second = Some(AloneTimes { answer_tokens: 1, answer, ..first });
    assert_eq!(after(&mut s, 110, [4000, 5000], 1, 5), second);
    // What runs beside another says nothing of one stream, and what was known stays.
    submit(&mut s, 2, 4, 3);
    assert_eq!(after(&mut s, 120, [9000, 900], 1, 6), second, "two were running");
    after(&mut s, 130, [30_000, 900], 2, 4);
    assert_eq!(after(&mut s, 140, [9000, 900], 2, 5), second, "it did not begin alone");
}

#[test]
fn a_free_slot_is_for_who_runs_least_and_so_nobody_is_paused_again_and_again() {
    let config = SchedulerConfig { speculation: Speculation::Off, ..SchedulerConfig::default() };
    let mut placement = placement(1, 1, &[1]);
    placement.context_tokens = 4096;
    let mut s = serving(config, placement, 4096, 4);
    let [long, short] = [1, 2].map(|n| Principal([n; 16]));
    for n in 1..=4 {
        submit_as(&mut s, n, 4, 200, long);
    }
    for n in 11..=13 {
        submit_as(&mut s, n, 4, 2, short);
    }
    let mut said = Vec::new();
    for n in 14..60 {
        submit_as(&mut s, n, 4, 2, short);
        said.extend(go_on(&mut s));
    }
    let is_paused = |line: &&String| line.starts_with("started 3 ") || line.starts_with("started 4 ");
    assert_eq!(said.iter().filter(is_paused).count(), 0, "two and two from the first to the last: {said:?}");
    let run = s.running.keys().filter(|sequence| sequence.request.0 <= 4);
    assert_eq!(run.count(), 2, "{said:?}");
    assert!(said.iter().filter(|line| line.starts_with("ended")).count() > 20, "{said:?}");
}

#[test]
fn of_principals_that_run_as_much_the_turn_decides_however_many_choices_a_request_has() {
    let config = SchedulerConfig { speculation: Speculation::Off, ..SchedulerConfig::default() };
    let mut placement = placement(1, 1, &[1]);
    placement.slots = 3;
    let mut s = serving(config, placement, 64, 4);
    for index in 0..6 {
        let mut submission = submission(1, 4, 12);
        submission.spec.sequence.index = index;
        s.handle(Time::ZERO, SchedulerInput::Submit { from: node(9), submission });
    }
    go_on(&mut s);
    let other = Principal([2; 16]);
    submit_as(&mut s, 11, 4, 12, other);
    submit_as(&mut s, 12, 4, 12, other);
    assert_eq!(go_on(&mut s), ["started 11"]);
    let out = show(&s.handle(Time::ZERO, cancelled(seq(1))));
    let started: Vec<_> = out.iter().filter(|line| line.starts_with("started")).collect();
    assert_eq!(started, ["started 1 behind 4"], "the other has had its turn, and each runs one: {out:?}");
}

/// One request with many choices beside another of the same principal.
#[test]
fn choices_that_have_all_slots_make_way_for_another_request() {
    let config = SchedulerConfig { speculation: Speculation::Off, ..SchedulerConfig::default() };
    let mut s = serving(config, placement(1, 1, &[1]), 64, 4);
    for index in 0..6 {
        let mut submission = submission(1, 4, 12);
        submission.spec.sequence.index = index;
        s.handle(Time::ZERO, SchedulerInput::Submit { from: node(9), submission });
    }
    go_on(&mut s);
    submit(&mut s, 2, 4, 12);
    assert_eq!(go_on(&mut s), ["started 2"]);
    submit(&mut s, 3, 4, 12);
    assert_eq!(go_on(&mut s), ["started 3"], "two choices and two others");
    submit(&mut s, 4, 4, 12);
    assert_eq!(go_on(&mut s), ["started 4"]);
    submit(&mut s, 5, 4, 12);
    assert_eq!(go_on(&mut s), Vec::<String>::new(), "one of each");
    // It is cancelled while it waits: its driver hears of the tokens it has.
    let paused = s.queue.paused().next().unwrap().spec.sequence;
    let ended = s.handle(Time::ZERO, cancelled(paused));
    let SchedulerOutput::Send { message: DataMessage::SequenceEnded { generated, .. }, .. } = &ended[0]
    else {
        panic!("{ended:?}")
    };
    assert!(*generated > 0);
}

#[test]
fn who_made_way_and_asks_again_hears_that_it_has_started() {
    let config = SchedulerConfig { speculation: Speculation::Off, ..SchedulerConfig::default() };
    let mut s = serving(config, placement(1, 1, &[1]), 64, 4);
    let [a, b] = [1, 2].map(|n| Principal([n; 16]));
    for n in 1..=4 {
        submit_as(&mut s, n, 4, 12, a);
    }
    go_on(&mut s);
    submit_as(&mut s, 5, 4, 12, b);
    assert_eq!(go_on(&mut s), ["started 5"]);
    let paused = s.queue.paused().next().unwrap().spec.sequence.request.0;
    assert_eq!(show(&submit_as(&mut s, paused, 4, 12, a)), [format!("started {paused}")]);
}

#[test]
fn who_made_way_hears_that_the_pipeline_moves_and_who_runs_nothing_is_not_overtaken() {
    let config = SchedulerConfig { speculation: Speculation::Off, ..SchedulerConfig::default() };
    // Sixteen pages: four sequences that may become as long as the context have them all.
    let mut s = serving(config, placement(1, 1, &[1]), 16, 4);
    let [a, b, c] = [1, 2, 3].map(|n| Principal([n; 16]));
    for n in 1..=4 {
        submit_as(&mut s, n, 4, 12, a);
    }
    go_on(&mut s);
    // The first needs more than one that makes way gives back, and who came later does not go first.
    submit_as(&mut s, 5, 4, 28, b);
    submit_as(&mut s, 6, 4, 12, c);
    assert_eq!(go_on(&mut s), Vec::<String>::new());
    s.handle(Time::ZERO, cancelled(seq(5)));
    assert_eq!(go_on(&mut s), ["started 6"]);
    let now = Time::ZERO + BEAT_EVERY;
    s.completed_at = now;
    assert_eq!(show(&s.handle(now, SchedulerInput::Tick)), ["started 6", "started 4"]);
}
