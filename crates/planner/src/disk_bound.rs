//! What a node's disk leaves of its devices.

use exo_types::{DiskRoom, size};

/// What bounds the layers of a device beside its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskBound {
    /// Bytes of the model's file that there is room for. Devices of a node take equal parts of its room.
    pub bytes: u64,
    /// The room of the node, and what its settings take of it.
    pub room: DiskRoom,
}

impl DiskBound {
    /// "`disk_quota_mib` of a leaves room for 1.2 GiB of the model's file"
    pub fn text(&self, node_name: &str) -> String {
        let (bytes, reserved_bytes) = (size(self.bytes), self.room.reserved_bytes());
        if self.room.is_bounded_by_quota() {
            return format!("`disk_quota_mib` of {node_name} leaves room for {bytes} of the model's file");
        }
        let beside = match reserved_bytes {
            0 => String::new(),
            reserved => format!(", beside {} that `disk_reserve_mib` keeps free", size(reserved)),
        };
        format!("the disk of {node_name} has room for {bytes} of the model's file{beside}")
    }

    /// What gives the node room for so many bytes, or at least for more: "raise `disk_quota_mib`, or make
    /// room there with …"
    pub(crate) fn remedy(&self, bytes: u64) -> String {
        let more = self.room.bytes().unwrap_or(u64::MAX).saturating_add(1);
        let settings = settings_text(&self.room.short_of(bytes.max(more)));
        let or = if settings.is_empty() { "" } else { ", or " };
        format!("{settings}{or}make room there with `exo models remove` or `exo prune`")
    }
}

/// "raise `disk_quota_mib` and lower `disk_reserve_mib`"
pub fn settings_text(settings: &[(&str, &str)]) -> String {
    let each = settings.iter().map(|(setting, change)| format!("{change} `{setting}`"));
    each.collect::<Vec<_>>().join(" and ")
}
