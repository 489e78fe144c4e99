//! A cluster for tests, in which all is well.

use exo_api::{
    ClusterView, DeviceTelemetryView, DeviceView, InstanceState, InstanceView, LinkTelemetryView, LoadView,
    MemberRole, MemoryView, NodeStatus, NodeTelemetryView, NodeView, SensorsView, TelemetryView,
};
use exo_types::{DeviceKind, DeviceState, KvDType, SupportClass};

/// Measurements of a node that is there.
pub fn node(id: &str) -> NodeTelemetryView {
    NodeTelemetryView {
        node: id.to_owned(),
        name: format!("node {id}"),
        status: NodeStatus::Alive,
        age_s: Some(0.5),
        version: "1".to_owned(),
        platform: "test".to_owned(),
        uptime_s: Some(9),
        clock_ahead_s: Some(0),
        process_bytes: Some(1 << 26),
        memory_total_bytes: Some(16 << 30),
        memory_available_bytes: Some(8 << 30),
        disk_free_bytes: Some(100 << 30),
        disk_room_bytes: None,
        descriptors_open: Some(40),
        descriptors_max: Some(1024),
        battery: Some(0.9),
        mains_power: Some(false),
        multicast_heard: Some(true),
        transfers: 0,
        transferred_bytes: 0,
        unreached: Vec::new(),
        devices: vec![DeviceTelemetryView {
            device: "cuda:0".to_owned(),
            sensors: SensorsView { temperature_c: Some(60.0), ..SensorsView::default() },
            limit_c: None,
            throttled: Some(false),
            memory: MemoryView::default(),
            missing: Vec::new(),
        }],
        links: Vec::new(),
        stages: Vec::new(),
        instances: Vec::new(),
        requests: Vec::new(),
        pulls: Vec::new(),
    }
}

/// A link whose round trip takes a millisecond.
pub fn link(peer: &str) -> LinkTelemetryView {
    LinkTelemetryView {
        peer: peer.to_owned(),
        peer_name: format!("node {peer}"),
        rtt_ms: 1.0,
        jitter_ms: 0.1,
        sent_bytes: Some(1),
        received_bytes: Some(2),
        ..LinkTelemetryView::default()
    }
}

fn shown(id: &str) -> NodeView {
    NodeView {
        id: id.to_owned(),
        name: format!("node {id}"),
        is_self: id == "a",
        role: MemberRole::Worker,
        status: NodeStatus::Alive,
        gone_since_unix_s: None,
        version: "1".to_owned(),
        platform: "test".to_owned(),
        devices: vec![DeviceView {
            id: "cuda:0".to_owned(),
            kind: DeviceKind::DiscreteGpu,
            name: "a card".to_owned(),
            backend: "cuda".to_owned(),
            driver: None,
            memory_total_bytes: 1,
            memory_free_bytes: 1,
            memory_domain: None,
            compute_units: None,
            read_bytes_per_s: None,
            flops_per_s: None,
            rates_by_type: Vec::new(),
            layer_rates: None,
            rates_measured: None,
            corrections: Default::default(),
            unsupported_types: Vec::new(),
            support: SupportClass::Full,
            support_reason: String::new(),
            state: DeviceState::Usable,
            state_reason: String::new(),
            sensors: SensorsView::default(),
        }],
        addresses: Vec::new(),
        mains_power: None,
        process_bytes: None,
        card_events: Vec::new(),
        is_drained: false,
        is_disk_hung: false,
        has_forked: false,
    }
}

/// An instance that serves.
pub fn instance() -> InstanceView {
    InstanceView {
        id: "i1".to_owned(),
        model_id: "m".to_owned(),
        model: "m".to_owned(),
        state: InstanceState::Ready,
        placement: "p1".to_owned(),
        context_tokens: 64,
        slots: 4,
        cache_tokens: 256,
        kv: KvDType::F16,
        load: Some(LoadView { running: 1, waiting_max: 10, pages: 100, ..LoadView::default() }),
        ..InstanceView::default()
    }
}

/// Two nodes, `a` and `b`, with a link and an instance.
pub fn cluster() -> (ClusterView, TelemetryView) {
    let view = ClusterView {
        cluster: Some("c".to_owned()),
        self_node: "a".to_owned(),
        epoch: Some(exo_api::EpochView { counter: 1, coordinator: "a".to_owned() }),
        nodes: vec![shown("a"), shown("b")],
        instances: vec![instance()],
        ..ClusterView::default()
    };
    let a = NodeTelemetryView { links: vec![link("b")], ..node("a") };
    (view, TelemetryView { self_node: "a".to_owned(), nodes: vec![a, node("b")] })
}
