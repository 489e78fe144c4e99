use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

/// Not as a secret, which is what temporary files are made as: the user's mask takes off what it should.
pub(super) fn as_any_new_file(builder: &mut tempfile::Builder<'_, '_>) {
    builder.permissions(Permissions::from_mode(0o666));
}
