//! When models were last asked for at this node, and when those that requests loaded are unloaded.

use std::collections::BTreeMap;
use std::time::Duration;

use exo_api::InstanceView;
use exo_stdx::Mutex;
use exo_types::ModelId;

/// By model, in seconds since 1970.
#[derive(Default)]
pub struct ModelUses(Mutex<BTreeMap<ModelId, u64>>);

impl ModelUses {
    /// A request asks for the model.
    pub fn note(&self, model: ModelId, unix_s: u64) {
        self.0.lock().insert(model, unix_s);
    }

    /// When that was last; 0 if never.
    pub fn last(&self, model: ModelId) -> u64 {
        self.0.lock().get(&model).copied().unwrap_or(0)
    }
}

/// When an instance is unloaded unless a request comes; `None` if it stays.
pub fn unloads_unix_s(
    instance: &InstanceView,
    after: Option<Duration>,
    last_use_unix_s: u64,
    now_unix_s: u64,
) -> Option<u64> {
    let after = after.filter(|_| instance.is_on_demand)?;
    let is_at_work = instance.load.as_ref().is_some_and(|load| load.running + load.waiting > 0);
    let used = if is_at_work { now_unix_s } else { last_use_unix_s.max(instance.state_since_unix_s) };
    // Requests of other nodes are not known here once they are over.
    Some(used.saturating_add(after.as_secs()).max(now_unix_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(more: serde_json::Value) -> InstanceView {
        let mut instance = serde_json::json!({
            "id": "i1", "model": "m", "model_id": "aa", "state": {"kind": "ready"}, "placement": "p1",
            "context_tokens": 1, "slots": 1, "kv": "f16", "stages": [], "state_since_unix_s": 1000,
            "is_on_demand": true,
        });
        instance.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(instance).unwrap()
    }

    #[test]
    fn what_a_request_loaded_goes_when_it_was_not_used_for_as_long_as_is_set() {
        let half_an_hour = Some(Duration::from_secs(1800));
        let loaded = instance(serde_json::json!({}));
        assert_eq!(unloads_unix_s(&loaded, half_an_hour, 0, 1100), Some(2800), "since it was loaded");
        assert_eq!(unloads_unix_s(&loaded, half_an_hour, 1500, 1600), Some(3300));
        assert_eq!(unloads_unix_s(&loaded, half_an_hour, 1500, 9000), Some(9000), "another node uses it");
        assert_eq!(unloads_unix_s(&loaded, None, 1500, 1600), None, "nothing is unloaded");
        let placed = instance(serde_json::json!({"is_on_demand": false}));
        assert_eq!(unloads_unix_s(&placed, half_an_hour, 1500, 1600), None, "a person placed it");
    }
}
