//! Why there is no plan.

/// One device's memory, for the message that says where the bytes are missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Node and device, for people.
    pub name: String,
    /// Free for models.
    pub free_bytes: u64,
    /// Of that, what layers could fill after the workspace every stage needs.
    pub usable_bytes: u64,
}

/// No placement exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The model has no layer, or the context or the slots are zero.
    #[error("nothing to place: {what} is 0")]
    Empty {
        /// Which number.
        what: &'static str,
    },
    /// No device may be used at all.
    #[error("no device can be used: {}", reasons.join("; "))]
    NoDevices {
        /// One line per device.
        reasons: Vec<String>,
    },
    /// Fewer usable devices, or layers, than stages wanted.
    #[error("{wanted} stages were asked for, {possible} are possible ({why})")]
    TooFewStages {
        /// Asked for.
        wanted: u32,
        /// At most possible.
        possible: u32,
        /// What bounds it.
        why: String,
    },
    /// It needs more memory than there is.
    #[error(
        "the model needs {needed_bytes} bytes, the devices have {usable_bytes} usable of {free_bytes} free: \
         {missing_bytes} bytes are missing ({}); the largest single unit is {largest_unit} with \
         {largest_unit_bytes} bytes",
        per_device.iter().map(|d| format!("{}: {} usable of {} free", d.name, d.usable_bytes, d.free_bytes))
            .collect::<Vec<_>>().join(", ")
    )]
    DoesNotFit {
        /// Weights and KV of the whole model.
        needed_bytes: u64,
        /// Free on all usable devices.
        free_bytes: u64,
        /// Of that, usable for weights and KV.
        usable_bytes: u64,
        /// Bytes that must be freed or added at least. When the sum would do and only the pieces do not fit, the
        /// least growth of a single device that would make it fit.
        missing_bytes: u64,
        /// Every usable device.
        per_device: Vec<DeviceMemory>,
        /// Name of the largest piece that cannot be split.
        largest_unit: String,
        /// Its bytes.
        largest_unit_bytes: u64,
    },
}
