//! Devices that have been slowed down for heat or power for a while: a plan counts with less of their speed.

use std::collections::BTreeMap;
use std::time::Duration;

use exo_types::{DeviceFacts, DeviceId, NodeId, Time};

use crate::wire::DeviceReport;

/// Part of the measured speed that is counted of such a device, in per cent: it was measured while it was
/// cool.
const THROTTLED_PERCENT: u32 = 70;
/// What was slowed down for less than this is back at its speed before the model of a plan is loaded.
const THROTTLED_AFTER: Duration = Duration::from_secs(30);

/// What has not been slowed down for this long is so no more: a device at its limit is so off and on.
const COOL_AFTER: Duration = Duration::from_secs(10);

/// Devices that say in their reports that they are slowed down.
#[derive(Clone, Debug, Default)]
pub(super) struct ThrottledDevices(BTreeMap<(NodeId, DeviceId), Throttling>);

#[derive(Clone, Copy, Debug)]
struct Throttling {
    since: Time,
    /// When it last said so, or said nothing of it.
    last: Time,
}

impl ThrottledDevices {
    /// Takes in what a member reports of its devices.
    pub(super) fn follow(&mut self, now: Time, node: NodeId, devices: &[DeviceReport]) {
        self.0.retain(|(at, id), throttled| {
            let device = devices.iter().find(|device| device.device == *id).filter(|_| *at == node);
            let Some(device) = device else { return *at != node };
            if device.monitor.throttled != Some(false) {
                throttled.last = now;
            }
            now.since(throttled.last) < COOL_AFTER
        });
        for device in devices.iter().filter(|device| device.monitor.throttled == Some(true)) {
            let began = Throttling { since: now, last: now };
            self.0.entry((node, device.device.clone())).or_insert(began);
        }
    }

    /// Forgets a member that is lost.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.0.retain(|(at, _), _| *at != node);
    }

    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Part of its speed that a plan counts with, in per cent. What the device's steps have taught of its
    /// slowness is not counted once more.
    pub(super) fn thermal_percent(&self, now: Time, node: NodeId, device: &DeviceFacts) -> u32 {
        let throttled = self.0.get(&(node, device.id.clone()));
        if throttled.is_none_or(|throttled| now.since(throttled.since) < THROTTLED_AFTER) {
            return 100;
        }
        let learned = device.corrections.decode.map_or(100, |correction| u32::from(correction.percent));
        THROTTLED_PERCENT * 100 / learned.clamp(THROTTLED_PERCENT, 100)
    }
}

#[cfg(test)]
mod tests {
    use exo_types::{Correction, DeviceState, Monitor};

    use super::*;
    use crate::testing::{PLENTY, node, report};

    fn told(throttled: Option<bool>) -> [DeviceReport; 1] {
        let monitor = Monitor { throttled, ..Monitor::default() };
        let (device, reason) = (DeviceId::cpu(), String::new());
        [DeviceReport { device, state: DeviceState::Usable, reason, driver: None, monitor }]
    }

    #[test]
    fn a_device_counts_less_from_half_a_minute_of_throttling_until_ten_seconds_without() {
        let mut throttling = ThrottledDevices::default();
        let facts = report(1, PLENTY).facts.devices[0].clone();
        let mut counted = |seconds: u64, throttled: Option<bool>| {
            let now = Time::from_millis(seconds * 1000);
            throttling.follow(now, node(1), &told(throttled));
            throttling.follow(now, node(2), &told(Some(false)));
            throttling.thermal_percent(now, node(1), &facts)
        };
        assert_eq!((counted(0, Some(true)), counted(29, Some(true))), (100, 100));
        assert_eq!(counted(30, Some(true)), 70);
        assert_eq!((counted(31, Some(false)), counted(39, Some(false))), (70, 70), "off and on");
        assert_eq!((counted(39, Some(true)), counted(48, Some(false))), (70, 70), "off and on");
        assert_eq!(counted(49, Some(false)), 100, "it has cooled down");
        assert_eq!((counted(50, Some(true)), counted(79, Some(true))), (100, 100));
        assert_eq!((counted(80, Some(true)), counted(94, None)), (70, 70), "a sample is missing");
        assert_eq!(counted(95, Some(false)), 70);
        throttling.forget(node(2));
        assert_eq!(throttling.thermal_percent(Time::from_millis(95_000), node(1), &facts), 70);
        throttling.forget(node(1));
        assert_eq!(throttling.thermal_percent(Time::from_millis(95_000), node(1), &facts), 100);
    }

    #[test]
    fn what_steps_have_taught_of_its_slowness_is_not_counted_twice() {
        let mut throttling = ThrottledDevices::default();
        throttling.follow(Time::ZERO, node(1), &told(Some(true)));
        let counted = |percent: u16| {
            let mut facts = report(1, PLENTY).facts.devices[0].clone();
            facts.corrections.decode = Some(Correction { percent, samples: 9 });
            throttling.thermal_percent(Time::from_millis(40_000), node(1), &facts)
        };
        assert_eq!([120, 100, 80, 70, 50].map(counted), [70, 70, 87, 100, 100]);
    }
}
