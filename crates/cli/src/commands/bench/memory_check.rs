//! Whether random weights and the tests on them fit, asked before anything is made.

use anyhow::bail;
use exo_types::KvDType;

use super::plan::BenchPlan;
use super::synthetic::Synthetic;
use crate::commands::compute::Compute;
use crate::ui;

/// Refuses, with the numbers, what has no room on the device or in this process.
pub fn check(synthetic: &Synthetic, compute: &Compute, plan: &BenchPlan) -> anyhow::Result<()> {
    let kv = |kv: &KvDType| synthetic.kv_bytes(*kv, plan.context(), plan.streams());
    let kv_bytes = plan.kv.iter().map(kv).max().unwrap_or(0);
    let needs = Needs {
        name: synthetic.name(),
        weight_bytes: match compute {
            Compute::Processor => synthetic.packed_bytes(),
            Compute::Card(_) => synthetic.weight_bytes(),
        },
        kv_bytes,
        pool_bytes: synthetic.pool_bytes(),
    };
    let host_free = exo_device::memory("/".as_ref()).map_or(u64::MAX, |memory| memory.available_bytes);
    match compute {
        Compute::Processor => needs.fit(host_free, host_free, "this machine", true),
        Compute::Card(device) => {
            needs.fit(device.memory().free_bytes, host_free, &device.facts().name, false)
        }
    }
}

struct Needs<'a> {
    name: &'a str,
    weight_bytes: u64,
    kv_bytes: u64,
    pool_bytes: u64,
}

impl Needs<'_> {
    fn fit(&self, device_free: u64, host_free: u64, device: &str, shared: bool) -> anyhow::Result<()> {
        let Self { name, weight_bytes, kv_bytes, pool_bytes } = *self;
        let pool = if shared { pool_bytes } else { 0 };
        let needed = weight_bytes.saturating_add(kv_bytes).saturating_add(pool);
        if needed > device_free {
            let pool =
                if shared { format!(" and {} to make them from", ui::bytes(pool)) } else { String::new() };
            bail!(
                "{name} needs {}: {} of weights, {} of keys and values{pool}; {device} has {} free: give a smaller \
                 --shape or --type, or fewer tokens (-p, -d, -b)",
                ui::bytes(needed),
                ui::bytes(weight_bytes),
                ui::bytes(kv_bytes),
                ui::bytes(device_free)
            );
        }
        if pool_bytes > host_free {
            bail!(
                "{name} needs {} in this process to make weights from; {} are free: give a smaller --shape or --type",
                ui::bytes(pool_bytes),
                ui::bytes(host_free)
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_refused_with_what_it_needs_and_what_is_free() {
        let needs =
            Needs { name: "x (random)", weight_bytes: 8 << 30, kv_bytes: 1 << 30, pool_bytes: 1 << 30 };
        assert!(needs.fit(10 << 30, 10 << 30, "this machine", true).is_ok());
        let error = needs.fit((10 << 30) - 1, 99 << 30, "this machine", true).unwrap_err().to_string();
        for part in
            ["x (random) needs 10.00 GiB", "8.00 GiB of weights", "1.00 GiB of keys", "has 10.00 GiB free"]
        {
            assert!(error.contains(part), "{part}: {error}");
        }
        // A card holds weights and cache, this process what they are made from.
        assert!(needs.fit(9 << 30, 1 << 30, "a card", false).is_ok());
        assert!(needs.fit((9 << 30) - 1, 99 << 30, "a card", false).is_err());
        assert!(
            needs.fit(9 << 30, 1 << 20, "a card", false).unwrap_err().to_string().contains("in this process")
        );
    }
}
