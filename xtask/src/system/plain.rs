/// Debian's tool is for Linux.
pub fn can_apt() -> bool {
    false
}

/// As many as there are, by number.
pub fn cores() -> anyhow::Result<Vec<usize>> {
    Ok((0..std::thread::available_parallelism()?.get()).collect())
}

/// Programs run wherever the system puts them.
pub fn pin_this_thread(_cores: &[usize]) -> anyhow::Result<()> {
    Ok(())
}

/// Unknown: nothing is touched.
pub fn free_memory() -> u64 {
    0
}
