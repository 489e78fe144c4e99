/// A child whose parent was killed has nobody to work for.
pub fn end_with_parent() {
    use rustix::process::{Signal, set_parent_process_death_signal};
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::debug!(%error, "this process may outlive its parent");
    }
}
