//! What a member says of its devices is within bounds, or its message is refused with the reason.

#![allow(clippy::unwrap_used)] // the exemption for tests does not reach helpers of integration tests

use exo_cluster::wire::{ControlMessage, FetchSource, NodeMeasurements, NodeReport, PullReport};
use exo_types::{
    Correction, Corrections, DType, DeviceFacts, DeviceId, DeviceKind, KvRates, LayerRates, LogHead,
    NodeFacts, NodeId, Provenance, TypeRates,
};

/// What its corrections are in a report that came.
fn told(change: impl FnOnce(&mut DeviceFacts)) -> Result<Corrections, String> {
    device_told(change).map(|device| device.corrections)
}

/// What comes of a report with a device that claims this.
fn device_told(change: impl FnOnce(&mut DeviceFacts)) -> Result<DeviceFacts, String> {
    let mut device = DeviceFacts {
        compute_units: 1,
        read_bytes_per_s: Some(1e10),
        flops_per_s: Some(1e11),
        ..DeviceFacts::unmeasured(DeviceId::cpu(), DeviceKind::Cpu, "cpu", "cpu", 1 << 30)
    };
    change(&mut device);
    came(device, NodeMeasurements::default()).map(|report| report.facts.devices[0].clone())
}

/// A report with this, once it has been sent.
fn came(device: DeviceFacts, measured: NodeMeasurements) -> Result<Box<NodeReport>, String> {
    let (name, version, platform) = (String::new(), String::new(), String::new());
    let node = NodeId([1; 32]);
    let report = NodeReport {
        facts: NodeFacts { node, name, version, platform, devices: vec![device], mains_power: None },
        models: vec![],
        disk_room: exo_types::DiskRoom::default(),
        stages: vec![],
        unreached: vec![],
        links: vec![],
        desired: None,
        instance_failures: vec![],
        process_bytes: None,
        devices: vec![],
        card_events: vec![],
        measured,
        log: LogHead::EMPTY,
        is_leaving: false,
        is_disk_hung: false,
        reached: vec![],
    };
    let bytes = ControlMessage::Report(Box::new(report)).encode();
    match ControlMessage::decode(&bytes).map_err(|error| error.to_string())? {
        ControlMessage::Report(report) => Ok(report),
        other => panic!("{other:?}"),
    }
}

#[test]
fn corrections_are_within_half_and_twice_a_rate() {
    let correction = |percent| Some(Correction { percent, samples: 3 });
    for percent in [50, 100, 200] {
        let given = Corrections { decode: correction(percent), prefill: None };
        assert_eq!(told(|device| device.corrections = given), Ok(given));
    }
    for percent in [0, 49, 201, u16::MAX] {
        for given in [
            Corrections { decode: correction(percent), prefill: correction(100) },
            Corrections { decode: None, prefill: correction(percent) },
        ] {
            let refused = told(|device| device.corrections = given).unwrap_err();
            assert!(refused.contains("less than 50 or more than 200 per cent"), "{refused}");
        }
    }
}

#[test]
fn rates_are_numbers_above_zero() {
    for rate in [f64::NAN, 0.0, -1.0, f64::INFINITY, 1e19] {
        let refused = told(|device| device.read_bytes_per_s = Some(rate)).unwrap_err();
        assert!(refused.contains("not a positive number"), "{rate}: {refused}");
    }
}

fn type_rates(dtype: DType, read_bytes_per_s: f64, flops_per_s: f64, measured: Provenance) -> TypeRates {
    TypeRates { dtype, read_bytes_per_s, flops_per_s, read_16_rows_bytes_per_s: None, measured }
}

#[test]
fn what_was_measured_was_so_once_at_least_and_within_ten_years() {
    let bounds = |measured: Provenance| {
        let general = told(|device| device.rates_measured = Some(measured)).map(|_| ());
        let typed = type_rates(DType::Q4_K, 1e10, 1e11, measured);
        [general, told(|device| device.rates_by_type = vec![typed]).map(|_| ())]
    };
    for (count, age_s) in [(1, 0), (u32::MAX, Provenance::AGE_S_MAX)] {
        assert_eq!(bounds(Provenance { count, age_s }), [Ok(()), Ok(())]);
    }
    for (count, age_s) in [(0, 60), (9, Provenance::AGE_S_MAX + 1), (9, u32::MAX)] {
        for refused in bounds(Provenance { count, age_s }) {
            let refused = refused.unwrap_err();
            assert!(refused.contains("was measured not once, or more than ten years ago"), "{refused}");
        }
    }
}

#[test]
fn how_often_and_how_long_ago_a_device_was_measured_comes_as_it_was_told() {
    let measured = Provenance { count: 12, age_s: 7300 };
    let typed = type_rates(DType::Q4_K, 1e10, 1e11, measured);
    let told = device_told(|device| {
        device.rates_measured = Some(measured);
        device.rates_by_type = vec![typed];
    });
    let told = told.unwrap();
    assert_eq!((told.rates_measured, told.rates_by_type), (Some(measured), vec![typed]));
}

#[test]
fn eight_downloads_of_eight_sources_each_come_as_they_were_told_and_no_more() {
    let of = |count: usize, reference: &str, sources: usize| {
        let source = FetchSource { member: None, bytes: 3, bytes_per_s: 1 };
        let pull = PullReport {
            reference: reference.to_owned(),
            state: 2,
            verified_bytes: 5,
            total_bytes: Some(9),
            bytes_per_s: None,
            sources: vec![source; sources],
        };
        let measured = NodeMeasurements { pulls: vec![pull; count], ..NodeMeasurements::default() };
        let device = device_told(|_| ()).unwrap();
        came(device, measured.clone()).map(|report| report.measured == measured)
    };
    assert_eq!(of(8, "hf.co/a/b", 8), Ok(true));
    assert!(of(9, "hf.co/a/b", 0).unwrap_err().contains("longer than allowed"));
    assert!(of(1, "hf.co/a/b", 9).unwrap_err().contains("longer than allowed"));
    assert!(of(1, &"x".repeat(1 << 16), 0).unwrap_err().contains("bytes of a download's reference"));
}

#[test]
fn what_a_layer_takes_is_numbers_that_a_device_could_have() {
    let good = LayerRates {
        prefill_read_bytes_per_s: 5e9,
        attention_flops_per_s: 8e10,
        activations_per_s: 1e9,
        layer_s: 2e-5,
        kv_read_bytes_per_s: Some(KvRates { f32: 4e9, f16: 3e9, q8: 2e9 }),
        read_16_rows_bytes_per_s: Some(2e9),
    };
    let of_kv = |f16| LayerRates { kv_read_bytes_per_s: Some(KvRates { f32: 4e9, f16, q8: 2e9 }), ..good };
    let of = |rates: LayerRates| told(|device| device.layer_rates = Some(rates)).map(|_| ());
    assert_eq!(of(good), Ok(()));
    for absurd in [f64::NAN, 0.0, -1.0, f64::INFINITY, 1e19] {
        for given in [
            LayerRates { prefill_read_bytes_per_s: absurd, ..good },
            LayerRates { attention_flops_per_s: absurd, ..good },
            LayerRates { activations_per_s: absurd, ..good },
            LayerRates { layer_s: absurd, ..good },
            LayerRates { read_16_rows_bytes_per_s: Some(absurd), ..good },
            of_kv(absurd),
        ] {
            let refused = of(given).unwrap_err();
            assert!(refused.contains("what a layer takes is not positive"), "{given:?}: {refused}");
        }
    }
    assert!(of(LayerRates { layer_s: 2.0, ..good }).is_err(), "no layer takes two seconds");
}

#[test]
fn rates_of_types_are_numbers_above_zero_and_each_type_has_one() {
    let measured = Provenance { count: 9, age_s: 60 };
    let rates = |dtype, read, flops| type_rates(dtype, read, flops, measured);
    let step = |rate| TypeRates { read_16_rows_bytes_per_s: Some(rate), ..rates(DType::Q4_K, 1e10, 1e11) };
    let of = |rates: Vec<TypeRates>| told(|device| device.rates_by_type = rates).map(|_| ());
    assert_eq!(of(vec![rates(DType::Q4_K, 1e10, 1e11), rates(DType::F16, 2e10, 1e11)]), Ok(()));
    assert_eq!(of(vec![step(5e9)]), Ok(()));
    for absurd in [f64::NAN, 0.0, -1.0, f64::INFINITY, 1e19] {
        for given in [rates(DType::Q4_K, absurd, 1e11), rates(DType::Q4_K, 1e10, absurd), step(absurd)] {
            let refused = of(vec![rates(DType::F16, 1e10, 1e11), given]).unwrap_err();
            assert!(refused.contains("not a positive number"), "{absurd}: {refused}");
        }
    }
    for twice in [[DType::Q4_K, DType::Q4_K], [DType::Q4_K, DType::Q8_0]] {
        let refused = of(twice.map(|dtype| rates(dtype, 1e10, 1e11)).to_vec()).unwrap_err();
        assert!(refused.contains("a type of weights has two rates"), "{refused}");
    }
    let many = vec![rates(DType::Q4_K, 1e10, 1e11); 15];
    assert!(of(many).is_err_and(|refused| refused.contains("longer than allowed")));
}
