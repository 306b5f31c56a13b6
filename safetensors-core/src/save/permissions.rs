//! Permissions and owners: a new file gets those of the file that it replaces.

#[cfg(unix)]
use std::fs::Permissions;
use std::fs::{self, File, Metadata};
use std::io;
use std::path::Path;

use crate::io::failpoint;

/// Gives a file the permissions of another and, where the system allows it, its owner and group.
///
/// Nobody gains rights by this: if the group cannot be kept, the group of the file gets only the
/// rights that everybody has.
#[cfg(unix)]
pub(crate) fn take_after(file: &File, original: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

    let own = file.metadata()?;
    let (user, group) = (original.uid(), original.gid());
    if (own.uid(), own.gid(), own.mode()) == (user, group, original.mode()) {
        return Ok(());
    }
    failpoint::hit("permissions")?;
    let give = || {
        // A test plays a user who is no administrator.
        if failpoint::lacks("files of other users") && own.uid() != user {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        fchown(file, Some(user), Some(group))
    };
    if (own.uid(), own.gid()) != (user, group) && give().is_err() {
        // Only an administrator can give files away. Others own what they write, and may give it
        // to a group that they belong to.
        let _ = fchown(file, None, Some(group));
    }
    let own = file.metadata()?;
    let mode = kept_mode(original.mode() & 0o7777, own.uid() == user, own.gid() == group);
    // The mode comes after the owner, because a change of owner can take permissions away.
    file.set_permissions(Permissions::from_mode(mode))
}

#[cfg(not(unix))]
pub(crate) fn take_after(_: &File, _: &Metadata) -> io::Result<()> {
    // On other systems a file that may be replaced has the same permissions as a new one.
    failpoint::hit("permissions")
}

/// Gives the file at `from` the permissions of the file at `to`, which it is about to replace. If
/// `to` is a link, this does nothing: the link itself is replaced, and has no permissions.
pub(crate) fn take_over(from: &Path, to: &Path) -> io::Result<()> {
    match fs::symlink_metadata(to) {
        Ok(original) if original.is_file() => take_after(&File::open(from)?, &original),
        _ => Ok(()),
    }
}

/// The part of a mode that a file may keep if its owner or group is not the same.
#[cfg(unix)]
fn kept_mode(mut mode: u32, same_user: bool, same_group: bool) -> u32 {
    const SET_USER: u32 = 0o4000;
    const SET_GROUP: u32 = 0o2000;
    if !same_user {
        mode &= !SET_USER;
    }
    if !same_group {
        let of_others = mode & 0o007;
        mode &= !SET_GROUP & !(0o070 & !(of_others << 3));
    }
    mode
}

/// Whether the permissions of a file let nobody write to it. (An administrator can write to it
/// nevertheless.)
pub(crate) fn is_read_only(metadata: &Metadata) -> bool {
    metadata.permissions().readonly()
}

#[cfg(all(test, unix))]
mod tests {
    use super::kept_mode;

    #[test]
    fn nobody_gains_rights() {
        for (mode, same_user, same_group, expected) in [
            (0o600, true, true, 0o600),
            (0o6755, true, true, 0o6755),
            (0o6755, false, true, 0o2755),
            (0o6755, true, false, 0o4755),
            (0o660, true, false, 0o600),
            (0o664, false, false, 0o644),
            (0o640, false, false, 0o600),
        ] {
            let found = kept_mode(mode, same_user, same_group);
            assert_eq!(found, expected, "{mode:o}: {found:o}");
        }
    }
}
