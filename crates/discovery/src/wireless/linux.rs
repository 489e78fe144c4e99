use std::path::Path;

/// Whether the interface of that name is a radio; `None` where nothing tells. `root` is where `/sys` is.
///
/// The folder `wireless` is there where the kernel has the older calls for radios, `phy80211` with each
/// driver that uses its newer ones.
pub(crate) fn is_wireless(root: &Path, interface: &str) -> Option<bool> {
    // A second address may have a name of its own: `wlan0:1`.
    let interface = interface.split_once(':').map_or(interface, |(interface, _)| interface);
    let shown = root.join("sys/class/net").join(interface);
    shown.exists().then(|| ["wireless", "phy80211"].iter().any(|mark| shown.join(mark).exists()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_radio_is_told_from_a_cable_and_what_is_not_shown_is_neither() {
        let root = tempfile::tempdir().unwrap();
        let shown = root.path().join("sys/class/net");
        for folder in ["wlan0/wireless", "wlp3s0/phy80211", "eth0/queues"] {
            std::fs::create_dir_all(shown.join(folder)).unwrap();
        }
        let of = |interface| is_wireless(root.path(), interface);
        assert_eq!([of("wlan0"), of("wlan0:1"), of("wlp3s0")], [Some(true); 3]);
        assert_eq!(of("eth0"), Some(false));
        assert_eq!(of("eth1"), None, "no such interface, or no such folder in a container");
    }
}
