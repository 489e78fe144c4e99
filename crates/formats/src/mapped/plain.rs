/// Nothing to guard: Windows refuses to truncate a file while it is mapped.
#[derive(Debug)]
pub(super) struct Registration;

impl Registration {
    pub(super) fn new(_start: usize, _len: usize) -> std::io::Result<Self> {
        Ok(Self)
    }

    pub(super) fn is_lost(&self) -> bool {
        false
    }
}

/// The system does not say.
pub(super) fn is_warm(_start: usize, _range: std::ops::Range<usize>) -> bool {
    true
}

/// The system takes pages back by itself.
pub(super) fn release(_start: usize, _len: usize, _range: std::ops::Range<usize>) {}
