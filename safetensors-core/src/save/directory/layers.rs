//! Directories that cannot be renamed.
//!
//! An overlay file system, such as that of a container, cannot rename a directory of a lower layer.
//! Such a directory can only be emptied and removed, file by file. So it gets a mark before its
//! first file is removed. From then on the path means what has the hidden name `.NAME.next`: the new
//! directory or, if there is none, nothing. Whoever finds the mark goes on from there.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use super::sync_names;
use crate::io::failpoint;
use crate::io::hidden::{directory as parent_of, next};
use crate::io::remove::unless_missing;

/// The name of the mark within a directory that is being removed.
const MARK: &str = ".safetensors.removing";

/// Renames a directory. Returns `false` if the file system cannot rename it.
pub(super) fn rename(from: &Path, to: &Path) -> io::Result<bool> {
    if failpoint::lacks("renaming of directories") {
        return Ok(false);
    }
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => Ok(false),
        renamed => renamed.map(|()| true),
    }
}

/// Replaces a directory that cannot be renamed by a new one, which has the name `next` for that
/// time. When this fails after the mark was made, [`go_on`] replaces it later.
pub(super) fn replace(new: &Path, destination: &Path) -> io::Result<()> {
    failpoint::hit("rename")?;
    fs::rename(new, next(destination))?;
    // The new directory must be found before a file of the old one is gone.
    sync_names(parent_of(destination), true)?;
    remove(destination).map_err(|error| {
        let message = format!(
            "the file system cannot rename the old directory, which has to be emptied: {error}; \
             if files of it are missing, the next save or AtomicDirectory::repair puts the new \
             directory in place"
        );
        io::Error::new(error.kind(), message)
    })
}

/// Removes a directory that cannot be renamed. What has the name `next` takes its place. If there
/// is nothing and the process ends just after the mark is removed, an empty directory stays.
pub(super) fn remove(directory: &Path) -> io::Result<()> {
    failpoint::hit("mark the directory")?;
    let mark = directory.join(MARK);
    // Closed at once: some systems keep the name of a file for as long as it is open.
    let synced = File::create_new(&mark)?.sync_all();
    if let Err(error) = synced.and_then(|()| sync_names(directory, true)) {
        // Nothing is removed yet, so the directory stays.
        let _ = fs::remove_file(&mark);
        return Err(error);
    }
    go_on(directory)
}

/// Whether the removal of a directory was interrupted, or what has the name `next` has to take its
/// place.
pub(super) fn is_interrupted(directory: &Path) -> bool {
    // The mark is the last entry, so without it the directory is empty or gone.
    let is_empty_or_gone = || match fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    directory.join(MARK).is_file() || (next(directory).is_dir() && is_empty_or_gone())
}

/// Removes the rest of a marked directory. What has the name `next` takes its place.
pub(super) fn go_on(directory: &Path) -> io::Result<()> {
    if fs::symlink_metadata(directory).is_ok() {
        remove_rest(directory)?;
    }
    failpoint::hit("rename")?;
    unless_missing(fs::rename(next(directory), directory))
}

/// Removes a marked directory. The mark goes last.
fn remove_rest(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name() == MARK {
            continue;
        }
        failpoint::hit("remove an old file")?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?
        } else {
            fs::remove_file(entry.path())?
        }
    }
    // After a power cut, too, the mark must be there as long as one of the files.
    sync_names(directory, true)?;
    failpoint::hit("remove the mark")?;
    unless_missing(fs::remove_file(directory.join(MARK)))?;
    failpoint::hit("remove the old directory")?;
    fs::remove_dir(directory)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tempfile::tempdir;

    use super::super::tests::{content, put};
    use super::*;
    use crate::error::ErrorKind;
    use crate::io::failpoint::{crash_at, fail_at, without};
    use crate::io::testing::names_in;
    use crate::save::AtomicDirectory;

    /// Whichever step fails or is the last, the old directory or the new one is there, complete, at
    /// the latest when the path is asked for by [`AtomicDirectory::repair`].
    #[test]
    fn an_interruption_leaves_the_old_directory_or_the_new_one() {
        without("renaming of directories", || {
            let (mut forwards, mut backwards) = (0, 0);
            for crash in [false, true] {
                for n in 0.. {
                    let dir = tempdir().unwrap();
                    let path = dir.path().join("epoch");
                    put(&path, "old").unwrap();
                    let run = || put(&path, "new");
                    let (result, step) = if crash { crash_at(n, run) } else { fail_at(n, run) };
                    let Some(step) = step else { break };
                    let is_recovered = AtomicDirectory::repair(&path).unwrap();
                    assert!(!AtomicDirectory::repair(&path).unwrap());
                    let found = content(&path).unwrap();
                    forwards += usize::from(is_recovered && found == "new");
                    backwards += usize::from(found == "old");
                    assert!(found == "new" || (found == "old" && !is_recovered), "{step}");
                    let is_unharmed = found == "old" && result.is_err();
                    assert!(is_unharmed || found == "new", "{step}");
                    put(&path, "third").unwrap();
                    assert_eq!(content(&path).unwrap(), "third");
                    assert_eq!(names_in(dir.path()), ["epoch"], "{step}");
                }
            }
            assert!(forwards > 4 && backwards > 4, "{forwards} {backwards}");
        });
    }

    #[test]
    fn an_interrupted_removal_is_completed() {
        without("renaming of directories", || {
            for recovers in [true, false] {
                for n in 0.. {
                    let dir = tempdir().unwrap();
                    let path = dir.path().join("epoch");
                    put(&path, "old").unwrap();
                    let (_, step) = crash_at(n, || AtomicDirectory::remove(&path));
                    let Some(step) = step else {
                        assert!(n > 4);
                        break;
                    };
                    if recovers {
                        AtomicDirectory::repair(&path).unwrap();
                        let is_empty = path.exists() && names_in(&path).is_empty();
                        assert_eq!(is_empty, step == "remove the old directory");
                        assert!(
                            is_empty || matches!(content(&path).as_deref(), None | Some("old"))
                        );
                    }
                    AtomicDirectory::remove(&path).unwrap();
                    assert!(names_in(dir.path()).is_empty(), "{step}");
                }
            }
        });
    }

    /// Nothing has called [`AtomicDirectory::repair`] when the directory is to be removed.
    #[test]
    fn an_interrupted_replacement_is_completed_before_a_removal() {
        without("renaming of directories", || {
            let mut replaced = 0;
            for is_wanted in [false, true] {
                for n in 0.. {
                    let dir = tempdir().unwrap();
                    let path = dir.path().join("epoch");
                    put(&path, "old").unwrap();
                    let (_, step) = crash_at(n, || put(&path, "new"));
                    let Some(step) = step else { break };
                    let mut seen = None;
                    let removed = AtomicDirectory::remove_if(&path, |found| {
                        seen = content(found);
                        is_wanted
                    });
                    assert_eq!(removed.unwrap(), is_wanted, "{step}");
                    assert!(matches!(seen.as_deref(), Some("old" | "new")), "{step}: {seen:?}");
                    replaced += usize::from(seen.as_deref() == Some("new"));
                    assert!(!AtomicDirectory::repair(&path).unwrap(), "{step}");
                    let kept = if is_wanted { None } else { seen };
                    assert_eq!(content(&path), kept, "{step}");
                    put(&path, "third").unwrap();
                    assert_eq!(names_in(dir.path()), ["epoch"], "{step}");
                }
            }
            assert!(replaced > 8, "{replaced}");
        });
    }

    #[test]
    fn what_prevents_the_mark_is_the_error() {
        without("renaming of directories", || {
            let dir = tempdir().unwrap();
            let path = dir.path().join("epoch");
            put(&path, "old").unwrap();
            fs::create_dir(path.join(MARK)).unwrap();
            let error = AtomicDirectory::remove(&path).unwrap_err();
            let is_right = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
            assert!(matches!(error.kind(), ErrorKind::Io(io) if is_right(io)), "{error}");
            assert_eq!(names_in(&path), [MARK, "a", "b"]);
        });
    }

    /// The error says what to do, because the path may have a part of the old directory.
    #[test]
    fn a_failure_midway_is_explained() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("epoch");
        let last = without("renaming of directories", || {
            put(&path, "old").unwrap();
            (0..)
                .map(|n| fail_at(n, || put(&path, "new")))
                .take_while(|(_, step)| step.is_some())
                .find(|(_, step)| *step == Some("remove an old file"))
        });
        let error = last.unwrap().0.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
        assert!(error.to_string().contains("AtomicDirectory::repair"), "{error}");
    }

    /// Not a test by itself: what runs on an overlay file system.
    #[test]
    fn child() {
        let Some(merged) = std::env::var_os("CHILD_MERGED").map(PathBuf::from) else { return };
        let path = merged.join("epoch");
        assert_eq!(content(&path).unwrap(), "lower");
        assert!(!rename(&path, &merged.join("other")).unwrap(), "it can be renamed here");
        put(&path, "new").unwrap();
        assert_eq!(content(&path).unwrap(), "new");
        put(&path, "newer").unwrap();
        assert_eq!(content(&path).unwrap(), "newer");
        let other = merged.join("removed");
        assert_eq!(content(&other).unwrap(), "lower");
        assert!(AtomicDirectory::remove(&other).unwrap());
        assert_eq!(names_in(&merged), ["epoch"]);
    }

    /// Lower layers as containers have them.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_directory_of_a_lower_layer_is_replaced() {
        const MOUNT: &str = r#"
            mount -t tmpfs none "$1" && cd "$1" && mkdir -p lower upper work merged || exit 77
            for name in epoch removed; do
                mkdir lower/$name; printf lower > lower/$name/a; printf lower > lower/$name/b
            done
            layers=lowerdir=lower,upperdir=upper,workdir=work
            mount -t overlay -o $layers,redirect_dir=off overlay merged || exit 77
            CHILD_MERGED="$1/merged" exec "$2" --exact save::directory::layers::tests::child
        "#;
        let dir = tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        let mut run = std::process::Command::new("unshare");
        run.args(["--mount", "sh", "-c", MOUNT, "sh"]).arg(dir.path()).arg(program);
        match run.output() {
            Ok(output) if output.status.success() => {
                assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
            }
            // `unshare` ends with 1 if it may not, and the script with 77. A test program that fails
            // ends with 101, or by a signal.
            Ok(output) if !matches!(output.status.code(), Some(1 | 77)) => {
                panic!("{}: {}", output.status, String::from_utf8_lossy(&output.stdout))
            }
            output => eprintln!("SKIPPED: no overlay file system can be mounted here: {output:?}"),
        }
    }
}
