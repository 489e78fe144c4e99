use std::io;

/// Elsewhere a nice value is a whole process's, or there is none.
pub(super) fn lower_priority() -> io::Result<()> {
    Ok(())
}
