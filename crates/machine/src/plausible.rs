//! Numbers of a report that are out of all proportion to the last ones of the same member.
//!
//! What is absurd in itself ends the link that it came over (`wire/check`). Here a glitch of an honest member
//! is kept from the planner. A member that lies within the bounds is believed: whoever may compute for others
//! can be slow, or wrong, in easier ways.

use exo_cluster::wire::LinkReport;
use exo_types::{DeviceFacts, KvRates, LayerRates};

use crate::bandwidth::{REFUSED_MAX, is_leap};

/// A bandwidth that leaps keeps its last value until it has been measured so often since that the last one
/// was the wrong one.
pub(crate) fn keep_links(before: &[LinkReport], now: &mut [LinkReport]) {
    for link in now {
        let Some(last) = before.iter().find(|last| last.peer == link.peer) else { continue };
        let Some((old, new)) = last.inbound.zip(link.inbound) else { continue };
        if is_leap(old.bytes_per_s, new.bytes_per_s) && new.count.saturating_sub(old.count) <= REFUSED_MAX {
            tracing::trace!(peer = %link.peer, ?old, ?new, "a bandwidth out of all proportion is not believed");
            link.inbound = Some(old);
        }
    }
}

/// A device's rate that leaps keeps its last value until its node is lost or starts again.
pub(crate) fn keep_rates(before: &[DeviceFacts], now: &mut [DeviceFacts]) {
    let keep = |old: Option<f64>, new: &mut Option<f64>| {
        if let Some((old, rate)) = old.zip(*new)
            && is_leap(old as u64, rate as u64)
        {
            tracing::debug!(old, rate, "a device's rate out of all proportion is not believed");
            *new = Some(old);
        }
    };
    for device in now {
        let Some(last) = before.iter().find(|last| last.id == device.id) else { continue };
        keep(last.read_bytes_per_s, &mut device.read_bytes_per_s);
        keep(last.flops_per_s, &mut device.flops_per_s);
        if let Some((last, rates)) = last.layer_rates.zip(device.layer_rates.as_mut()) {
            keep_layer(last, rates);
        }
        for rates in &mut device.rates_by_type {
            let Some(last) = last.rates_by_type.iter().find(|last| last.dtype == rates.dtype) else {
                continue;
            };
            keep(last.read_16_rows_bytes_per_s, &mut rates.read_16_rows_bytes_per_s);
            let (mut read, mut flops) = (Some(rates.read_bytes_per_s), Some(rates.flops_per_s));
            keep(Some(last.read_bytes_per_s), &mut read);
            keep(Some(last.flops_per_s), &mut flops);
            (rates.read_bytes_per_s, rates.flops_per_s) =
                (read.unwrap_or_default(), flops.unwrap_or_default());
        }
    }
}

/// Of these one follows from the other's measurement: all are kept where one leaps.
fn keep_layer(last: LayerRates, rates: &mut LayerRates) {
    let each = |rates: &LayerRates| {
        let per_s = [rates.prefill_read_bytes_per_s, rates.attention_flops_per_s, rates.activations_per_s];
        let of_kv = rates.kv_read_bytes_per_s.map(KvRates::by_type).into_iter().flatten();
        let per_s = per_s.into_iter().map(|rate| rate as u64).chain([(rates.layer_s * 1e9) as u64]);
        per_s.chain(of_kv.map(|(_, rate)| rate as u64))
    };
    // Apart, for either may lack the rates of keys and values.
    let of_16_rows = last.read_16_rows_bytes_per_s.zip(rates.read_16_rows_bytes_per_s);
    let of_16_rows = of_16_rows.map(|(old, new)| (old as u64, new as u64));
    if each(&last).zip(each(rates)).chain(of_16_rows).any(|(old, new)| is_leap(old, new)) {
        tracing::debug!(?last, ?rates, "what a layer takes is out of all proportion and not believed");
        *rates = last;
    }
}

#[cfg(test)]
mod tests {
    use exo_cluster::wire::Bandwidth;
    use exo_types::{DType, DeviceId, DeviceKind, KvRates, NodeId, Provenance, TypeRates};

    use super::*;

    fn link(bytes_per_s: u64, count: u32) -> [LinkReport; 1] {
        let inbound = Some(Bandwidth { bytes_per_s, count, age_s: 1 });
        [LinkReport {
            peer: NodeId([2; 32]),
            rtt_us: 9,
            rtt_count: 9,
            rtt_age_ms: 9,
            jitter_us: 9,
            inbound,
            traffic: None,
            is_wireless: None,
        }]
    }

    fn device(rate: Option<f64>) -> [DeviceFacts; 1] {
        [DeviceFacts {
            read_bytes_per_s: rate,
            flops_per_s: rate,
            ..DeviceFacts::unmeasured(DeviceId::cpu(), DeviceKind::Cpu, "", "", 1)
        }]
    }

    #[test]
    fn a_bandwidth_that_leaps_is_believed_when_it_has_come_three_times() {
        let told = |before: u64, after: u64, measured: u32| {
            let (before, mut now) = (link(before, 4), link(after, 4 + measured));
            keep_links(&before, &mut now);
            now[0].inbound.map(|inbound| inbound.bytes_per_s)
        };
        assert_eq!(told(1000, 99_000, 1), Some(99_000), "no leap");
        assert_eq!((told(1000, 101_000, 2), told(101_000, 1000, 2)), (Some(1000), Some(101_000)));
        assert_eq!((told(1000, 101_000, 3), told(101_000, 1000, 3)), (Some(101_000), Some(1000)));
    }

    #[test]
    fn a_rate_that_leaps_is_not_believed_and_a_first_one_is() {
        let told = |before: Option<f64>, after: Option<f64>| {
            let (before, mut now) = (device(before), device(after));
            keep_rates(&before, &mut now);
            (now[0].read_bytes_per_s, now[0].flops_per_s)
        };
        for (before, after, expected) in [
            (Some(1e9), Some(5e9), Some(5e9)),
            (Some(1e9), Some(1e12), Some(1e9)),
            (Some(1e12), Some(1e9), Some(1e12)),
            (None, Some(1e12), Some(1e12)),
            (Some(1e9), None, None),
        ] {
            assert_eq!(told(before, after), (expected, expected), "{before:?} {after:?}");
        }
    }

    #[test]
    fn what_a_layer_takes_is_kept_as_a_whole_where_one_number_leaps() {
        let usual = LayerRates {
            prefill_read_bytes_per_s: 5e9,
            attention_flops_per_s: 8e10,
            activations_per_s: 1e9,
            layer_s: 2e-5,
            kv_read_bytes_per_s: Some(KvRates { f32: 4e9, f16: 3e9, q8: 2e9 }),
            read_16_rows_bytes_per_s: Some(3e9),
        };
        let with = |rates: LayerRates| {
            let [mut device] = device(Some(1e9));
            device.layer_rates = Some(rates);
            [device]
        };
        let told = |rates: LayerRates| {
            let mut now = with(rates);
            keep_rates(&with(usual), &mut now);
            now[0].layer_rates
        };
        let (faster, slower) =
            (LayerRates { attention_flops_per_s: 1e13, ..usual }, LayerRates { layer_s: 0.5, ..usual });
        assert_eq!((told(faster), told(slower)), (Some(usual), Some(usual)));
        let of_kv =
            |f32, q8| LayerRates { kv_read_bytes_per_s: Some(KvRates { f32, f16: 3e9, q8 }), ..usual };
        assert_eq!([of_kv(4e12, 2e9), of_kv(4e9, 2e6)].map(told), [Some(usual); 2]);
        let of_16_rows = |rate| LayerRates { read_16_rows_bytes_per_s: Some(rate), ..usual };
        assert_eq!([of_16_rows(4e11), of_16_rows(2e7)].map(told), [Some(usual); 2]);
        let near = LayerRates { attention_flops_per_s: 4e10, layer_s: 1e-4, ..usual };
        assert_eq!(told(near), Some(near));
    }

    #[test]
    fn a_rate_of_a_type_that_leaps_keeps_the_last_one_of_its_type() {
        let with = |rates: &[(DType, f64, f64)]| {
            let [mut device] = device(Some(1e9));
            let typed = |&(dtype, read_bytes_per_s, flops_per_s)| TypeRates {
                dtype,
                read_bytes_per_s,
                flops_per_s,
                read_16_rows_bytes_per_s: Some(read_bytes_per_s / 2.0),
                measured: Provenance { count: 9, age_s: 60 },
            };
            device.rates_by_type = rates.iter().map(typed).collect();
            [device]
        };
        let before = with(&[(DType::Q4_K, 1e9, 1e10)]);
        let mut now = with(&[(DType::Q4_K, 2e11, 2e10), (DType::F16, 5e11, 5e12)]);
        keep_rates(&before, &mut now);
        assert_eq!(now, with(&[(DType::Q4_K, 1e9, 2e10), (DType::F16, 5e11, 5e12)]));
    }
}
