//! How busy the processor was, and whether it is slowed down: what only shows between two looks.

use std::fs;
use std::path::Path;

use super::number;
use crate::folders::children;

/// Reads what the kernel counts, again and again.
#[derive(Debug, Default)]
pub struct ProcessorMeter {
    /// Ticks of all cores: busy, and in all.
    ticks: Option<(u64, u64)>,
    /// How often cores were slowed down for heat.
    throttles: Option<u64>,
}

impl ProcessorMeter {
    /// The part of the time since the last look that the cores were busy, 0 to 1, and whether any of them was
    /// or is slowed down for heat. `None` where the kernel below `root` does not say, and at the first look.
    pub fn read(&mut self, root: &Path) -> (Option<f32>, Option<bool>) {
        let ticks = ticks(root);
        let before = std::mem::replace(&mut self.ticks, ticks);
        let busy = before.zip(ticks).and_then(|((busy_before, all_before), (busy, all))| {
            let (busy, all) = (busy.checked_sub(busy_before)?, all.checked_sub(all_before)?);
            (all > 0).then(|| (busy as f32 / all as f32).min(1.0))
        });
        let throttles = throttles(root);
        let before = std::mem::replace(&mut self.throttles, throttles);
        let counted = before.zip(throttles).map(|(before, now)| now > before);
        let throttled = match (counted, cooled(root)) {
            (Some(counted), Some(cooled)) => Some(counted || cooled),
            (counted, cooled) => counted.or(cooled),
        };
        (busy, throttled)
    }
}

/// The first line of `proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal. Guests are in the
/// first two already.
fn ticks(root: &Path) -> Option<(u64, u64)> {
    let text = fs::read_to_string(root.join("proc/stat")).ok()?;
    let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let ticks: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
    let idle = ticks.get(3)?.checked_add(*ticks.get(4)?)?;
    let all = ticks.iter().try_fold(0u64, |sum, ticks| sum.checked_add(*ticks))?;
    Some((all.checked_sub(idle)?, all))
}

/// Of all cores, on x86.
fn throttles(root: &Path) -> Option<u64> {
    let cores = children(&root.join("sys/devices/system/cpu"), "cpu").into_iter();
    let counts = cores.filter_map(|core| number(&core.join("thermal_throttle/core_throttle_count")));
    counts.map(|count| count as u64).reduce(u64::saturating_add)
}

/// Whether a device that slows cores down is at work, as phones and boards have it.
fn cooled(root: &Path) -> Option<bool> {
    let coolers = children(&root.join("sys/class/thermal"), "cooling_device").into_iter();
    let of_cores = coolers.filter(|cooler| {
        let kind = fs::read_to_string(cooler.join("type")).unwrap_or_default();
        kind.trim() == "Processor" || kind.contains("cpufreq")
    });
    of_cores
        .filter_map(|cooler| number(&cooler.join("cur_state")))
        .map(|state| state > 0.0)
        .reduce(|a, b| a || b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_processor_is_as_busy_as_it_was_between_two_looks() {
        let (root, mut meter) = (tempfile::tempdir().unwrap(), ProcessorMeter::default());
        assert_eq!(meter.read(root.path()), (None, None), "nothing says");
        write(root.path(), "proc/stat", "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3\n");
        assert_eq!(meter.read(root.path()).0, None, "the first look");
        write(root.path(), "proc/stat", "cpu  150 0 125 720 105 0 0 0 0 0\n");
        assert_eq!(meter.read(root.path()).0, Some(0.75));
        // Counters that run backwards, and nonsense.
        write(root.path(), "proc/stat", "cpu  1 0 1 1 1 0 0 0\n");
        assert_eq!(meter.read(root.path()).0, None);
        write(root.path(), "proc/stat", "cpu  a lot\n");
        assert_eq!(meter.read(root.path()).0, None);
    }

    #[test]
    fn a_core_that_was_slowed_down_since_the_last_look_shows_and_so_does_a_cooler_at_work() {
        let (root, mut meter) = (tempfile::tempdir().unwrap(), ProcessorMeter::default());
        let count = "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count";
        write(root.path(), count, "7");
        assert_eq!(meter.read(root.path()).1, None, "the first look");
        assert_eq!(meter.read(root.path()).1, Some(false));
        write(root.path(), count, "8");
        assert_eq!(meter.read(root.path()).1, Some(true));
        write(root.path(), "sys/class/thermal/cooling_device0/type", "Processor\n");
        write(root.path(), "sys/class/thermal/cooling_device0/cur_state", "2\n");
        assert_eq!(meter.read(root.path()).1, Some(true));
        write(root.path(), "sys/class/thermal/cooling_device0/cur_state", "0\n");
        assert_eq!(meter.read(root.path()).1, Some(false));
    }
}
