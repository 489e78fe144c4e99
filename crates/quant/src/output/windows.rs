/// A new file has the rights of its folder.
pub(super) fn as_any_new_file(_builder: &mut tempfile::Builder<'_, '_>) {}
