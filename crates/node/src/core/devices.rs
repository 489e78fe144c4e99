//! Devices that workers lose: verified and used again, or given up for the processor.

use exo_cluster::{ShardKey, WorkerInput};

use super::{Core, CoreEvent};
use crate::Notice;
use crate::compute::{Loss, Stand};
use crate::device::Opened;
use crate::engine_host::chain;

/// What became of a device that was lost.
pub enum DeviceEvent {
    /// A child opened it and made it compute, or could not.
    Verified(Result<(), String>),
    /// The processor is open in its place, or cannot be.
    Replaced { reason: String, processor: Result<Opened, String> },
}

impl Core {
    pub(super) fn worker_lost(&mut self, key: ShardKey, reason: &str) {
        let ShardKey { instance, stage, .. } = key;
        self.notice(Notice::Warning(format!(
            "stage {stage} of instance {instance} lost its device: {reason}"
        )));
        // Before the shard is wanted again: what is loaded from now on waits for the device.
        self.device_lost(reason);
        if self.stages.remove(&key).is_some() {
            self.feed_worker(WorkerInput::Failed { key, reason: reason.to_owned() });
        }
    }

    pub(super) fn device_event(&mut self, event: DeviceEvent) {
        match event {
            DeviceEvent::Verified(Ok(())) => self.p.compute.stand(Stand::Usable),
            DeviceEvent::Verified(Err(reason)) => {
                self.p.compute.stand(Stand::Usable); // looked at, and found lost again
                self.notice(Notice::Warning(format!("the device does not come back: {reason}")));
                self.device_lost(&reason);
            }
            DeviceEvent::Replaced { reason, processor } => self.device_replaced(&reason, processor),
        }
    }

    /// Until it is verified nothing is loaded on it; shards lost at the same time are one loss.
    fn device_lost(&mut self, reason: &str) {
        let now = self.now();
        let core = self.p.sender.clone();
        match self.p.compute.lost(now, reason) {
            None => {}
            Some(Loss::Verify { wait, check }) => {
                tokio::spawn(async move {
                    tokio::time::sleep(wait).await;
                    let verified = tokio::task::spawn_blocking(check).await;
                    let verified = verified.unwrap_or_else(|error| Err(error.to_string()));
                    core.post(CoreEvent::Device(DeviceEvent::Verified(verified)));
                });
            }
            Some(Loss::GiveUp { reason }) => {
                let (config, host) = (self.p.config.clone(), self.p.host.clone());
                tokio::task::spawn_blocking(move || {
                    let processor = crate::device::processor(&config, host.as_ref());
                    let processor = processor.map_err(|error| chain(&*error));
                    core.post(CoreEvent::Device(DeviceEvent::Replaced { reason, processor }));
                });
            }
        }
    }

    /// From now on the node offers its processor, and says why.
    fn device_replaced(&mut self, reason: &str, processor: Result<Opened, String>) {
        let processor = match processor {
            Ok(opened) => Some(opened),
            Err(error) => {
                self.notice(Notice::Warning(format!("the processor cannot take over: {error}")));
                None
            }
        };
        self.notice(Notice::Warning(reason.to_owned()));
        self.p.compute.give_up(reason, processor);
        self.p.facts.devices = self.p.compute.facts();
        self.view_stale = true;
        self.report_now();
    }
}
