//! Coordinator, instance scheduler, driver, worker reconcile and stage as state machines.
