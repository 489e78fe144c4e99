use exo_types::{
    DeviceKind, Epoch, LayerShape, PlacementId, Principal, Provenance, RequestId, SequenceId, StepSequence,
    TypeBytes,
};

use super::*;

fn facts(read: f64) -> DeviceFacts {
    DeviceFacts {
        compute_units: 2,
        read_bytes_per_s: Some(read),
        flops_per_s: Some(1e11),
        ..DeviceFacts::unmeasured(DeviceId::cpu(), DeviceKind::Cpu, "a processor", "cpu/avx2", 1 << 30)
    }
}

const EXPECTED: ExpectedStep = ExpectedStep { rated_ns: 1_000_000, fixed_ns: 100_000 };

/// After steps that took so many microseconds each.
fn after(took_us: &[u64]) -> Option<(u16, u16)> {
    let mut factor = Factor::default();
    took_us.iter().for_each(|us| factor.learn(EXPECTED, us * 1000));
    factor.correction().map(|learned| (learned.percent, learned.samples))
}

#[test]
fn a_factor_is_the_median_of_the_last_samples_and_bounded() {
    assert_eq!(after(&[2100, 2100]), None, "too few");
    assert_eq!(after(&[2100, 2100, 2100]), Some((50, 3)));
    assert_eq!(after(&[1350; 20]), Some((80, 9)));
    assert_eq!(after(&[900, 900, 900]), Some((125, 3)));
    // Out of all bounds, and no time at all.
    assert_eq!(after(&[1_000_000; 3]), Some((50, 3)));
    assert_eq!((after(&[1; 3]), after(&[0; 3])), (Some((200, 3)), None));
    assert_eq!(after(&[u64::MAX / 1000; 3]), Some((50, 3)));
}

#[test]
fn outliers_change_nothing_and_what_has_changed_is_learned_anew() {
    let stalls = [1350, 900_000, 1350, 1350, 1, 1350, 1350, 900_000];
    assert_eq!(after(&stalls), Some((80, 8)));
    let mut slower = vec![1100; 9];
    slower.extend([2100; 4]);
    assert_eq!(after(&slower), Some((100, 9)), "four of nine");
    slower.push(2100);
    assert_eq!(after(&slower), Some((50, 9)));
}

#[test]
fn what_is_told_is_which_way_it_went_once_and_a_factor_that_wavers_tells_nothing_more() {
    let mut factor = Factor::default();
    // So often that it is the median.
    let mut news = |took_us: u64| -> Vec<Pace> {
        let each = (0..SAMPLES_MAX).filter_map(|_| {
            factor.learn(EXPECTED, took_us * 1000);
            factor.news()
        });
        each.collect()
    };
    assert_eq!(news(1100), [], "as measured from the beginning");
    assert_eq!(news(1450), [Pace::Slower], "74 %");
    for _ in 0..5 {
        assert_eq!((news(1400), news(1450)), (vec![], vec![]), "76 and 74 %");
    }
    assert_eq!(news(1150), [Pace::AsMeasured], "95 %");
    assert_eq!(news(1400), [], "76 %: not far enough to begin");
    assert_eq!(news(600), [Pace::Faster], "200 %");
    assert_eq!(news(910), [], "123 %");
    assert_eq!(news(2100), [Pace::Slower], "50 %");
}

#[test]
fn where_rates_do_not_decide_nothing_is_learned() {
    let mut factor = Factor::default();
    (0..9).for_each(|_| factor.learn(ExpectedStep { rated_ns: 99_999, fixed_ns: 100_000 }, 900_000));
    assert_eq!(factor.correction(), None);
}

#[test]
fn what_was_learned_with_other_rates_or_before_a_loss_is_forgotten() {
    let (mut step_corrections, slow) = (StepCorrections::default(), Duration::from_micros(2100));
    let learn = |step_corrections: &mut StepCorrections, facts: &DeviceFacts| {
        (0..3).for_each(|_| step_corrections.learn(facts, Phase::Decode, EXPECTED, slow));
    };
    let decode = |step_corrections: &StepCorrections, facts: &DeviceFacts| {
        step_corrections.of(facts).decode.map(|learned| learned.percent)
    };
    learn(&mut step_corrections, &facts(1e10));
    assert_eq!(decode(&step_corrections, &facts(1e10)), Some(50));
    assert_eq!(step_corrections.of(&facts(1e10)).prefill, None, "of the other phase nothing is known");
    assert_eq!(decode(&step_corrections, &facts(2e10)), None, "measured anew");
    let other = DeviceFacts { backend: "cpu/scalar".to_owned(), ..facts(1e10) };
    assert_eq!(decode(&step_corrections, &other), None, "another build");
    // One sample with the new rates does not stand on the old ones.
    step_corrections.learn(&facts(2e10), Phase::Decode, EXPECTED, slow);
    assert_eq!(
        (decode(&step_corrections, &facts(2e10)), decode(&step_corrections, &facts(1e10))),
        (None, None)
    );
    learn(&mut step_corrections, &facts(2e10));
    assert_eq!(decode(&step_corrections, &facts(2e10)), Some(50));
    step_corrections.forget_device(&DeviceId::cpu());
    assert_eq!(decode(&step_corrections, &facts(2e10)), None, "lost");
}

fn position() -> ShardPosition {
    let placement = PlacementId { epoch: Epoch { counter: 1, key: NodeId([1; 32]) }, number: 1 };
    ShardPosition { placement, stage: 0, rank: 0 }
}

/// One sequence for each `start+tokens`.
fn frame(step: u64, parts: &[(u32, usize)]) -> StepFrame {
    let part = |(index, &(start, tokens)): (usize, &(u32, usize))| StepSequence {
        sequence: SequenceId { request: RequestId(1), index: index as u16 },
        principal: Principal([1; 16]),
        start,
        tokens: vec![0; tokens],
        sample: true,
        drafts: 0,
        truncate_to: None,
    };
    StepFrame {
        placement: position().placement,
        term: Term::FIRST,
        step,
        sequences: parts.iter().enumerate().map(part).collect(),
    }
}

#[test]
fn only_steps_of_one_stream_that_were_alone_count() {
    let mut step_corrections = StepCorrections::default();
    let end = |step_corrections: &mut StepCorrections, engine, step| {
        step_corrections.ended(engine, (position(), Term::FIRST, step))
    };
    let mut alone = |parts: &[(u32, usize)]| {
        step_corrections.begun(EngineId(1), position(), &frame(1, parts));
        end(&mut step_corrections, EngineId(1), 1)
    };
    assert_eq!(alone(&[(700, 1)]), Some(StepSize::Token { depth: 700 }));
    assert_eq!(alone(&[(0, 100)]), Some(StepSize::Prompt { tokens: 100 }));
    for other in [&[(0, 63)][..], &[(700, 2)], &[(512, 100)], &[(7, 1), (9, 1)], &[]] {
        assert_eq!(alone(other), None, "{other:?}");
    }
    // Two at once, whichever began first.
    step_corrections.begun(EngineId(1), position(), &frame(1, &[(7, 1)]));
    step_corrections.begun(EngineId(2), position(), &frame(2, &[(7, 1)]));
    assert_eq!(
        (end(&mut step_corrections, EngineId(1), 1), end(&mut step_corrections, EngineId(2), 2)),
        (None, None)
    );
    // The next part of a prompt waits for the one before.
    step_corrections.begun(EngineId(1), position(), &frame(5, &[(0, 100)]));
    step_corrections.begun(EngineId(1), position(), &frame(6, &[(100, 100)]));
    assert_eq!(end(&mut step_corrections, EngineId(1), 5), Some(StepSize::Prompt { tokens: 100 }));
    assert_eq!(end(&mut step_corrections, EngineId(1), 6), None);
    // What ends with its engine is no neighbour of the next.
    step_corrections.begun(EngineId(1), position(), &frame(3, &[(7, 1)]));
    step_corrections.forget_engine(EngineId(1));
    step_corrections.begun(EngineId(2), position(), &frame(4, &[(7, 1)]));
    assert_eq!(end(&mut step_corrections, EngineId(2), 4), Some(StepSize::Token { depth: 7 }));
    assert!(step_corrections.in_flight.is_empty());
}

#[test]
fn a_step_is_expected_as_the_plan_expects_it_whatever_was_learned_before() {
    let layer = LayerShape {
        weight_bytes: 10_000_000,
        packed_bytes: 10_000_000,
        kv_bytes_per_token: 1000,
        flops_per_token: 20_000_000,
    };
    let shape = ModelShape {
        layers: vec![layer; 4],
        embedding_bytes: 1000,
        head_bytes: 1000,
        embedding_packed_bytes: 1000,
        head_packed_bytes: 1000,
        tied: false,
        hidden: 1024,
        attention: 64,
        vocab: 8,
        context_tokens_max: 4096,
    };
    let layers = LayerRange { start: 0, end: 2 };
    let of = |facts: &DeviceFacts, phase, tokens| {
        expected(NodeId([1; 32]), facts, (&shape, None, KvDType::F16, layers), (phase, tokens)).unwrap()
    };
    let decode = of(&facts(1e10), Phase::Decode, 1000);
    // Two layers of 1 ms, and keys and values of 1 MB each at three quarters of the rate.
    assert_eq!(decode, ExpectedStep { rated_ns: 2_266_666, fixed_ns: 90_000 });
    let learned = Some(Correction { percent: 50, samples: 9 });
    let corrected = Corrections { decode: learned, prefill: learned };
    assert_eq!(of(&DeviceFacts { corrections: corrected, ..facts(1e10) }, Phase::Decode, 1000), decode);
    let prompt = of(&facts(1e10), Phase::Prefill, 512);
    // Twice 102 ms of products, 2 of waiting for weights, 1 of attention, 4 of the rest.
    assert!((216_000_000..222_000_000).contains(&prompt.rated_ns), "{prompt:?}");
    assert_eq!(of(&facts(1e10), Phase::Prefill, 1).rated_ns, 0, "it waits for weights");

    // A type with rates of its own is expected by them.
    let measured = Provenance { count: 9, age_s: 60 };
    let q4_k = TypeRates {
        dtype: DType::Q4_K,
        read_bytes_per_s: 5e9,
        flops_per_s: 5e10,
        read_16_rows_bytes_per_s: None,
        measured,
    };
    let typed = DeviceFacts { rates_by_type: vec![q4_k], ..facts(1e10) };
    let layer = TypeBytes(vec![(DType::Q4_K, 10_000_000)]);
    let types = WeightTypes { layers: vec![layer; 4], head: TypeBytes(vec![(DType::F32, 1000)]) };
    let step = expected(
        NodeId([1; 32]),
        &typed,
        (&shape, Some(&types), KvDType::F16, layers),
        (Phase::Decode, 1000),
    )
    .unwrap();
    assert_eq!(step, ExpectedStep { rated_ns: 4_266_666, fixed_ns: 90_000 });
    let mut step_corrections = StepCorrections::default();
    (0..9).for_each(|_| {
        step_corrections.learn(&facts(1e10), Phase::Decode, EXPECTED, Duration::from_micros(2100))
    });
    assert!(step_corrections.of(&facts(1e10)).decode.is_some());
    assert_eq!(step_corrections.of(&typed), Corrections::default(), "the factor was one of other rates");
}
