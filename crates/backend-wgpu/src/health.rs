//! What the driver says outside any call: errors no one asked about, and the device's end.

use std::sync::{Arc, Mutex, PoisonError};

use exo_backend::{AllocError, RunError};

/// The first thing that went wrong for good. Kept for the device's life.
#[derive(Clone, Default, Debug)]
pub(crate) struct Health(Arc<Mutex<Option<String>>>);

impl Health {
    /// Listens to `device` from now on: without it, `wgpu` panics on errors that no scope caught.
    pub(crate) fn watch(device: &wgpu::Device) -> Self {
        let health = Self::default();
        let told = health.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| told.lost(&error.to_string())));
        let told = health.clone();
        device.set_device_lost_callback(move |reason, message| match reason {
            wgpu::DeviceLostReason::Destroyed => {}
            wgpu::DeviceLostReason::Unknown => told.lost(&message),
        });
        health
    }

    pub(crate) fn lost(&self, reason: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| reason.trim().to_owned());
    }

    pub(crate) fn check(&self) -> Result<(), AllocError> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(reason) => Err(AllocError::DeviceLost { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    pub(crate) fn check_run(&self) -> Result<(), RunError> {
        Ok(self.check()?)
    }
}
