//! `sched_getaffinity` and `sched_setaffinity` of the calling thread.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{CORES_MAX, ConfineError, CoreList};

/// The cores the calling thread may run on.
pub(super) fn allowed() -> Result<CoreList, ConfineError> {
    let set = sched_getaffinity(None).map_err(|e| ConfineError::Unknown(e.into()))?;
    Ok(CoreList((0..CORES_MAX).filter(|core| set.is_set(*core)).collect()))
}

pub(super) fn confine(cores: &CoreList) -> Result<(), ConfineError> {
    let mut set = CpuSet::new();
    cores.numbers().iter().for_each(|core| set.set(*core));
    sched_setaffinity(None, &set).map_err(|e| ConfineError::System { cores: cores.clone(), source: e.into() })
}
