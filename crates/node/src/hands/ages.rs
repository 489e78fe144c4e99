//! How old the measurements of devices are now: facts say it as of when they were found.

use std::collections::BTreeMap;

use exo_types::{DType, DeviceFacts, DeviceId, LayerRates, Provenance, Time, TypeRates};

/// See the module.
#[derive(Default)]
pub struct Ages {
    general: BTreeMap<DeviceId, WithTime<General>>,
    typed: BTreeMap<(DeviceId, DType), WithTime<TypeRates>>,
}

/// Rates as they were found, and when.
type WithTime<T> = (T, Time);

/// All rates of a device that are not of one type of weights.
type General = (Option<f64>, Option<f64>, Option<LayerRates>, Provenance);

impl Ages {
    /// Adds to each age how long the rates have been known. What has another rate, count or age was measured
    /// or looked up again.
    pub fn advance(&mut self, now: Time, devices: &mut [DeviceFacts]) {
        for device in devices {
            if let Some(measured) = device.rates_measured {
                let rates = (device.read_bytes_per_s, device.flops_per_s, device.layer_rates, measured);
                let seen_at = first_seen(&mut self.general, device.id.clone(), rates, now);
                device.rates_measured = Some(measured.later(now.since(seen_at).as_secs()));
            }
            for rates in &mut device.rates_by_type {
                let seen_at = first_seen(&mut self.typed, (device.id.clone(), rates.dtype), *rates, now);
                rates.measured = rates.measured.later(now.since(seen_at).as_secs());
            }
        }
    }
}

fn first_seen<K: Ord, T: PartialEq>(all: &mut BTreeMap<K, WithTime<T>>, key: K, rates: T, now: Time) -> Time {
    match all.get(&key) {
        Some((known, at)) if *known == rates => *at,
        _ => {
            all.insert(key, (rates, now));
            now
        }
    }
}

#[cfg(test)]
mod tests {
    use exo_device::ProbeOptions;

    use super::*;

    #[test]
    fn ages_grow_from_when_the_rates_were_found_and_begin_anew_with_other_ones() {
        let typed = |read_bytes_per_s, age_s| TypeRates {
            dtype: DType::Q4_K,
            read_bytes_per_s,
            flops_per_s: 1e11,
            read_16_rows_bytes_per_s: None,
            measured: Provenance { count: 3, age_s },
        };
        let found = |read, age_s| DeviceFacts {
            rates_measured: Some(Provenance { count: 12, age_s }),
            rates_by_type: vec![typed(read, 0)],
            ..exo_device::probe(&ProbeOptions::default())
        };
        let mut ages = Ages::default();
        let mut told = |seconds: u64, read, age_s| {
            let mut devices = [found(read, age_s)];
            ages.advance(Time(seconds * 1_000_000), &mut devices);
            let [device] = devices;
            (device.rates_measured, device.rates_by_type[0].measured.age_s)
        };
        let all = |age_s| Some(Provenance { count: 12, age_s });
        assert_eq!(told(10, 1e9, 100), (all(100), 0));
        assert_eq!(told(70, 1e9, 100), (all(160), 60));
        assert_eq!(told(80, 2e9, 100), (all(170), 0), "the type was measured again");
        assert_eq!(told(90, 2e9, 0), (all(0), 10), "and the rest looked up again");
    }
}
