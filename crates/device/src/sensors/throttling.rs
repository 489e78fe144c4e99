//! Whether a graphics card is slowed down for heat, as the kernel's drivers of AMD's and Intel's cards tell
//! it.

use std::fs;
use std::path::Path;

use super::number;
use crate::folders::children;

/// Where i915 and xe write why a card runs slower than it was asked to, below the card's folder and below a
/// folder of `drm`.
const INTEL: [&str; 2] = ["gt/gt0/throttle_reason_", "tile0/gt0/freq0/throttle/reason_"];
/// Of those reasons, heat of the card or of what feeds it. Its limits of power (`pl1`, `pl2`) are no fault.
const HEAT: [&str; 4] = ["thermal", "prochot", "ratl", "vr_thermalert"];

/// amdgpu's `gpu_metrics` of format 1.3 ends with a mask of why the card is slowed down, which is the same
/// for all cards.
const METRICS_1_3_LEN: usize = 120;
/// Of that mask, temperatures and what signals them. Limits of power and current are below, and are no fault.
const AMD_HEAT: u64 = 0xFFFF << 32;

/// Of the card whose folder of the PCI bus this is; `None` where its driver does not say.
pub(super) fn of_card(card: &Path) -> Option<bool> {
    by_amdgpu(&card.join("gpu_metrics")).or_else(|| by_intel(card))
}

fn by_amdgpu(path: &Path) -> Option<bool> {
    let metrics = fs::read(path).ok()?;
    let (head, mask) = (metrics.first_chunk::<4>()?, metrics.get(METRICS_1_3_LEN - 8..METRICS_1_3_LEN)?);
    let [len_low, len_high, format, content] = *head;
    let is_known = usize::from(u16::from_le_bytes([len_low, len_high])) == METRICS_1_3_LEN;
    let mask = u64::from_le_bytes(mask.try_into().ok()?);
    // Fields that a card does not fill are all ones.
    (is_known && (format, content) == (1, 3) && mask != u64::MAX).then_some(mask & AMD_HEAT != 0)
}

fn by_intel(card: &Path) -> Option<bool> {
    let homes = children(&card.join("drm"), "card").into_iter().chain([card.to_owned()]);
    let files = homes.flat_map(|home| INTEL.map(|file| home.join(file)));
    let reasons = files.flat_map(|file| HEAT.map(|reason| format!("{}{reason}", file.display())));
    let told = reasons.filter_map(|path| number(Path::new(&path)));
    told.map(|set| set > 0.0).reduce(|a, b| a || b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(files: &[(&str, &[u8])]) -> Option<bool> {
        let folder = tempfile::tempdir().unwrap();
        for (path, bytes) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        of_card(folder.path())
    }

    fn metrics(content: u8, mask: u64) -> Vec<u8> {
        let mut bytes = vec![7; METRICS_1_3_LEN];
        bytes[..4].copy_from_slice(&[METRICS_1_3_LEN as u8, 0, 1, content]);
        bytes[METRICS_1_3_LEN - 8..].copy_from_slice(&mask.to_le_bytes());
        bytes
    }

    #[test]
    fn amdgpu_tells_heat_from_a_limit_of_power() {
        let told = |mask| card(&[("gpu_metrics", &metrics(3, mask))]);
        assert_eq!(told(0), Some(false));
        assert_eq!(told(1 << 36), Some(true), "its hottest spot");
        assert_eq!(told(0b11 | 1 << 16), Some(false), "power and current");
        assert_eq!(told(u64::MAX), None, "a field that is not filled");
        assert_eq!(card(&[("gpu_metrics", &metrics(1, 1 << 36))]), None, "another format");
        assert_eq!(card(&[("gpu_metrics", &metrics(3, 1 << 36)[..119])]), None, "cut");
    }

    #[test]
    fn intels_drivers_tell_it_by_files() {
        assert_eq!(card(&[]), None);
        let i915 = "drm/card1/gt/gt0/throttle_reason_thermal";
        assert_eq!(card(&[(i915, b"0\n")]), Some(false));
        assert_eq!(card(&[(i915, b"1\n")]), Some(true));
        assert_eq!(card(&[("drm/card1/gt/gt0/throttle_reason_pl1", b"1\n"), (i915, b"0\n")]), Some(false));
        let xe = "tile0/gt0/freq0/throttle/reason_prochot";
        assert_eq!(card(&[(xe, b"1\n")]), Some(true));
    }
}
