//! Resident memory of this process.

/// Forgets the peak so far, where the system can: it then is what is resident now.
pub fn reset_peak() {
    // Refused in some containers; the peak is then that of all engines before, too.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The most it held since [`reset_peak`], in bytes; `None` where the system does not say.
pub fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    peak_in(&status)
}

fn peak_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_from_the_status_page() {
        assert_eq!(peak_in("VmPeak:\t  9 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n"), Some(2 << 20));
        assert_eq!(peak_in("VmPeak:\t  9 kB\n"), None);
        assert_eq!(peak_in("VmHWM:\t x kB\n"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_a_peak() {
        assert!(peak_rss_bytes().unwrap() > 1 << 20);
    }
}
