//! Gives a new file the permissions of the file that it replaces.

#[cfg(unix)]
use std::fs::Permissions;
use std::fs::{self, File, Metadata};
use std::io;
use std::path::Path;

use crate::file::io::failpoint;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    /// `None` if files have different owners.
    #[cfg(unix)]
    user: Option<u32>,
    #[cfg(unix)]
    group: u32,
    #[cfg(unix)]
    mode: u32,
}

impl Rights {
    /// Combines the permissions of regular files: the first owner's rights, and the rights that
    /// every file gives others.
    pub(crate) fn of_all(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Option<Self> {
        let files = paths
            .into_iter()
            .filter_map(|path| fs::symlink_metadata(path).ok().filter(Metadata::is_file));
        files.map(|file| Self::new(&file)).reduce(Self::and)
    }

    #[cfg(unix)]
    fn new(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        let mode = metadata.mode() & 0o7777;
        Self { user: Some(metadata.uid()), group: metadata.gid(), mode }
    }

    #[cfg(unix)]
    fn and(self, other: Self) -> Self {
        let theirs = kept_mode(other.mode, true, self.group == other.group);
        let user = self.user.filter(|_| self.user == other.user);
        Self { user, mode: self.mode & (theirs | 0o7700), ..self }
    }

    #[cfg(not(unix))]
    fn new(_: &Metadata) -> Self {
        Self {}
    }

    #[cfg(not(unix))]
    fn and(self, _: Self) -> Self {
        self
    }
}

/// Takes the group and the owner where allowed.
pub(crate) fn take_after(file: &File, original: &Metadata) -> io::Result<()> {
    take(file, Rights::new(original))
}

/// Takes the group and the owner where allowed.
// If the group cannot be kept, the file's group gets only everybody's rights, so that no one gains
// rights.
#[cfg(unix)]
fn take(file: &File, rights: Rights) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

    let own = file.metadata()?;
    let user = rights.user.unwrap_or(own.uid());
    let group = rights.group;
    if (own.uid(), own.gid(), own.mode() & 0o7777) == (user, group, rights.mode) {
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
        // Only an administrator can give files away. Other users own their files, and may give them
        // to a group that they belong to.
        let _ = fchown(file, None, Some(group));
    }
    let own = file.metadata()?;
    let mode = kept_mode(rights.mode, rights.user == Some(own.uid()), own.gid() == group);
    // The mode comes after the owner, because a change of owner can take permissions away.
    file.set_permissions(Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn take(_: &File, _: Rights) -> io::Result<()> {
    // On other systems a file that may be replaced has the same permissions as a new one.
    failpoint::hit("permissions")
}

/// Gives `from` the permissions of the file at `to`, or `otherwise` these. A link at `to` has none.
pub(crate) fn take_over(from: &Path, to: &Path, otherwise: Option<Rights>) -> io::Result<()> {
    let rights = match fs::symlink_metadata(to) {
        Ok(original) => original.is_file().then(|| Rights::new(&original)),
        Err(_) => otherwise,
    };
    match rights {
        Some(rights) => take(&File::open(from)?, rights),
        None => Ok(()),
    }
}

/// Returns the rights that a file may keep without its owner or group.
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

/// Returns `true` if nobody but an administrator may write to the file.
// On WASI, std takes all files for read-only.
pub(crate) fn is_read_only(metadata: &Metadata) -> bool {
    cfg!(not(target_os = "wasi")) && metadata.permissions().readonly()
}

/// Replaces an entry that others may have open, also on Windows. The caller has checked for a
/// read-only file.
pub(crate) fn rename_over(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(windows)]
    if let Ok(original) = fs::symlink_metadata(to)
        && original.is_file()
        && is_read_only(&original)
    {
        // Windows refuses to replace such a file. Only the attribute protects it there.
        let mut writable = original.permissions();
        writable.set_readonly(false);
        fs::set_permissions(to, writable)?;
        return fs::rename(from, to)
            .inspect_err(|_| _ = fs::set_permissions(to, original.permissions()));
    }
    fs::rename(from, to)
}

// Files in it may have to be private.
pub(crate) fn create_private_directory(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::DirBuilderExt::mode(&mut fs::DirBuilder::new(), 0o700).create(path);
    #[cfg(not(unix))]
    fs::create_dir(path)
}

#[cfg(all(test, unix))]
mod tests {
    use super::{Rights, kept_mode};

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

    #[test]
    fn of_several_files_the_strictest_counts() {
        let rights = |user, group, mode| Rights { user: Some(user), group, mode };
        for (one, other, user, mode) in [
            (rights(1, 1, 0o644), rights(1, 1, 0o600), Some(1), 0o600),
            (rights(1, 1, 0o600), rights(1, 1, 0o644), Some(1), 0o600),
            (rights(1, 1, 0o664), rights(1, 1, 0o440), Some(1), 0o640),
            (rights(1, 1, 0o660), rights(1, 2, 0o660), Some(1), 0o600),
            (rights(1, 1, 0o664), rights(2, 2, 0o664), None, 0o644),
        ] {
            let found = one.and(other);
            assert_eq!((found.user, found.group, found.mode), (user, 1, mode), "{one:?} {other:?}");
        }
    }
}
