//! Systems whose threads cannot be kept to cores, or where no one has tried.

use super::{ConfineError, CoreList};

pub(super) fn allowed() -> Result<CoreList, ConfineError> {
    Err(ConfineError::Unsupported)
}

pub(super) fn confine(_cores: &CoreList) -> Result<(), ConfineError> {
    Err(ConfineError::Unsupported)
}
