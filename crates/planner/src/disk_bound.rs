//! What a node's disk leaves of its devices.

use exo_types::size;

/// What bounds the layers of a device beside its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskBound {
    /// Bytes of the model's file that there is room for. Devices of a node take equal parts of its room.
    pub bytes: u64,
    /// The setting of the node that leaves no more, and what is to be done to it.
    pub setting: (&'static str, &'static str),
}

impl DiskBound {
    /// "`disk_quota_mib` of a leaves room for 1.2 GiB of the model's file"
    pub(crate) fn text(&self, node_name: &str) -> String {
        let (bytes, (setting, _)) = (size(self.bytes), self.setting);
        format!("`{setting}` of {node_name} leaves room for {bytes} of the model's file")
    }

    /// "raise it, or make room there with …"
    pub(crate) fn remedy(&self) -> String {
        format!("{} it, or make room there with `exo models remove` or `exo prune`", self.setting.1)
    }
}
