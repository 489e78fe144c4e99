use super::*;

#[test]
fn what_a_device_does_not_tell_is_named_with_its_reason() {
    let monitor = Monitor { temperature_c: Some(50.0), throttled: Some(false), ..Monitor::default() };
    let names = |kind| {
        let missing = missing(kind, &monitor);
        missing.into_iter().map(|m| (m.what, m.reason)).collect::<Vec<_>>()
    };
    let of_card = names(DeviceKind::DiscreteGpu);
    assert_eq!(of_card.len(), 3, "{of_card:?}");
    assert!(of_card.iter().all(|(what, reason)| what != "temperature_c" && reason.ends_with("driver")));
    assert!(names(DeviceKind::Cpu).iter().all(|(_, reason)| reason == "not reported by this system"));
}

#[test]
fn requests_of_unknown_kinds_are_counted_together_and_other_bounds_are_not_believed() {
    let totals = ModelTotals {
        model: "m".to_owned(),
        ended: vec![(0, 0, 2), (200, 0, 3), (201, 0, 4), (0, 1, 5)],
        token: Histogram { counts: vec![1; 3], sum_us: 9 },
        duration: Histogram { counts: vec![1; api::DURATION_BOUNDS_S.len() + 1], sum_us: 2_500_000 },
        ..ModelTotals::default()
    };
    let view = requests_view(&totals);
    let ended: Vec<_> =
        view.ended.iter().map(|e| (e.endpoint.as_str(), e.reason.as_str(), e.count)).collect();
    assert_eq!(ended, [("chat", "length", 5), ("chat", "stop", 2), ("other", "stop", 7)]);
    assert_eq!(view.token, api::HistogramView::default());
    assert_eq!((view.duration.count(), view.duration.sum_s), (19, 2.5));
}

#[test]
fn a_download_of_another_node_says_what_each_source_gave() {
    let source = |member, bytes, bytes_per_s| FetchSource { member, bytes, bytes_per_s };
    let member = NodeId([2; 32]);
    let pull = PullReport {
        reference: "hf.co/a/b".to_owned(),
        state: api::PullState::Fetching.number(),
        verified_bytes: 9,
        total_bytes: None,
        bytes_per_s: None,
        sources: vec![source(Some(member), 5, 50), source(None, 2, 20)],
    };
    let of_another_build = PullReport { state: u8::MAX, ..pull.clone() };
    let shown = pull_telemetry(&[of_another_build, pull], &Names::default());
    let view = |member, bytes, bytes_per_s| api::FetchSourceView { member, bytes, bytes_per_s };
    assert_eq!(shown.len(), 1);
    assert_eq!(shown[0].sources, [view(Some(member.to_string()), 5, 50), view(None, 2, 20)]);
}
