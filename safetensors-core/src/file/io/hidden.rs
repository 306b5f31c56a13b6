//! Names of hidden files next to a file that is being saved or edited.
//!
//! `.model.safetensors.Xy12aB.tmp` is a temporary file, `.model.safetensors.header-backup` a backup
//! of the header. A long name is shortened, with a hash.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::{FileSource, ReadAt, failpoint};

// Most file systems take 255 bytes, eCryptfs takes 143.
const NAME_MAX: usize = 143;

pub(crate) const ID_LEN: usize = 6;

/// Locked while files are put in place in its directory.
pub(crate) const LOCK_NAME: &str = ".safetensors.lock";

const GROWING_ID: &str = "growth";

pub(crate) const TEMPORARY_SUFFIX: &str = ".tmp";

/// Locked while its temporary directory is in use.
pub(crate) const TEMPORARY_LOCK: &str = ".lock";

const ATTEMPT_MAX: usize = 64;

const ATTEMPT_SUFFIX: &str = ".ranks";

const BACKUP_SUFFIX: &str = ".header-backup";

const INDEX_ENDING: &str = ".index.json";

pub(crate) const BACKUP_MAGIC: [u8; 8] = *b"STheadr1";

/// Returns the current one for a bare name.
pub(crate) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn next_to(path: &Path, suffix: &str) -> PathBuf {
    let mut name = stem(path.file_name().unwrap_or_default(), suffix.len());
    name.push(suffix);
    directory(path).join(name)
}

/// Shortens a long name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = shortened(path.file_name().unwrap_or_default(), NAME_MAX - suffix.len());
    name.push(suffix);
    path.with_file_name(name)
}

/// Returns the file that is locked while a file is written step by step.
// Saves to that path remove it if it is not locked.
pub(crate) fn growing_lock(path: &Path) -> PathBuf {
    let mut name = temporary_prefix(path.file_name().unwrap_or_default());
    name.push(GROWING_ID);
    name.push(TEMPORARY_SUFFIX);
    directory(path).join(name)
}

pub(crate) fn header_backup(path: &Path) -> PathBuf {
    next_to(path, BACKUP_SUFFIX)
}

/// Follows no links, and opens no special files.
pub(crate) fn is_header_backup(path: &Path) -> bool {
    if !fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
        return false;
    }
    let Ok(source) = FileSource::open_now(path) else { return false };
    let mut found = [0; BACKUP_MAGIC.len()];
    source.read_exact_at(&mut found, 0).is_ok() && found == BACKUP_MAGIC
}

pub(crate) fn temporary_prefix(file_name: &OsStr) -> OsString {
    let mut prefix = stem(file_name, 1 + ID_LEN + TEMPORARY_SUFFIX.len());
    prefix.push(".");
    prefix
}

/// Returns the name of the checkpoint's single file, perhaps shortened.
pub(crate) fn checkpoint_of_temporary(name: &OsStr) -> Option<String> {
    let text = name.to_string_lossy();
    let (owner, id) = text.strip_prefix('.')?.strip_suffix(TEMPORARY_SUFFIX)?.rsplit_once('.')?;
    let is_id = id.len() == ID_LEN && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_id || owner.is_empty() {
        return None;
    }
    let of_backup = owner.strip_prefix('.').and_then(|it| it.strip_suffix(BACKUP_SUFFIX));
    let file = of_backup.unwrap_or(owner);
    let file = file.strip_suffix(INDEX_ENDING).unwrap_or(file);
    let shard =
        |(at, _)| shard_numbers(&file[at..]).map(|(_, _, rest)| [&file[..at], rest].concat());
    Some(file.match_indices('-').find_map(shard).unwrap_or_else(|| file.to_owned()))
}

/// Returns the results of [`checkpoint_of_temporary`] for a file, its index, its shards and its
/// header's backup.
pub(crate) fn checkpoints_of(file_name: &OsStr) -> BTreeSet<String> {
    let mut index = file_name.to_owned();
    index.push(INDEX_ENDING);
    let backup = header_backup(Path::new(file_name));
    let names = [file_name, &index, backup.file_name().unwrap_or_default()];
    let temporaries = names.map(|name| growing_lock(Path::new(name)));
    temporaries.iter().filter_map(|path| checkpoint_of_temporary(path.file_name()?)).collect()
}

/// Splits a text such as `-00001-of-00003` into the numbers and the rest.
pub(crate) fn shard_numbers(text: &str) -> Option<(&str, &str, &str)> {
    let number = |text: &str| {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        (digits >= 5).then_some(digits)
    };
    let text = text.strip_prefix('-')?;
    let (shard, text) = text.split_at(number(text)?);
    let text = text.strip_prefix("-of-")?;
    let (shards, text) = text.split_at(number(text)?);
    Some((shard, shards, text))
}

/// Returns the place for ranks' files until all have saved.
pub(crate) fn attempt_directory(index: &Path, attempt: &str) -> PathBuf {
    let file_name = index.file_name().unwrap_or_default();
    let mut name = stem(file_name, 1 + ATTEMPT_MAX + ATTEMPT_SUFFIX.len());
    name.push(".");
    name.push(attempt);
    name.push(ATTEMPT_SUFFIX);
    directory(index).join(name)
}

pub(crate) fn is_attempt(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=ATTEMPT_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Returns `None` for the attempts of another index.
pub(crate) fn attempt_of<'p>(index: &Path, path: &'p Path) -> Option<&'p str> {
    let name = path.file_name()?.to_str()?.strip_suffix(ATTEMPT_SUFFIX)?;
    let (_, attempt) = name.rsplit_once('.')?;
    let is_own =
        is_attempt(attempt) && attempt_directory(index, attempt).file_name() == path.file_name();
    is_own.then_some(attempt)
}

fn is_attempt_directory(name: &OsStr) -> bool {
    let stem = name.as_encoded_bytes().strip_suffix(ATTEMPT_SUFFIX.as_bytes());
    let Some(text) = stem.and_then(|stem| std::str::from_utf8(stem).ok()) else { return false };
    let parts = text.rsplit_once('.');
    parts.is_some_and(|(file, attempt)| file.starts_with('.') && is_attempt(attempt))
}

pub(crate) fn is_temporary(name: &OsStr, prefix: &OsStr) -> bool {
    let id = name
        .as_encoded_bytes()
        .strip_prefix(prefix.as_encoded_bytes())
        .and_then(|rest| rest.strip_suffix(TEMPORARY_SUFFIX.as_bytes()));
    id.is_some_and(|id| id.len() == ID_LEN && id.iter().all(u8::is_ascii_alphanumeric))
}

/// Returns `true` for hidden names of saves and edits: temporary files and directories, parts that
/// only some ranks have saved, locks, and header backups. None is a checkpoint.
///
/// ```
/// use safetensors_core::framework::is_temporary_name;
///
/// assert!(is_temporary_name(".model.safetensors.aB3dE6.tmp".as_ref()));
/// assert!(!is_temporary_name("model.safetensors".as_ref()));
/// ```
#[doc(hidden)]
pub fn is_temporary_name(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    let is_backup = bytes.len() > BACKUP_SUFFIX.len() + 1
        && bytes.starts_with(b".")
        && bytes.ends_with(BACKUP_SUFFIX.as_bytes());
    name == LOCK_NAME
        || is_attempt_directory(name)
        || is_backup
        || checkpoint_of_temporary(name).is_some()
}

/// Returns `.NAME`, shortened so that `more` bytes can follow.
fn stem(file_name: &OsStr, more: usize) -> OsString {
    let mut stem = OsString::from(".");
    stem.push(shortened(file_name, NAME_MAX - 1 - more));
    stem
}

fn shortened(file_name: &OsStr, room: usize) -> OsString {
    if file_name.len() <= room {
        return file_name.to_owned();
    }
    let hash = format!("~{:016x}", xxh3_64(file_name.as_encoded_bytes()));
    let text = file_name.to_string_lossy();
    let mut short = OsString::from(&text[..text.floor_char_boundary(room - hash.len())]);
    short.push(hash);
    short
}

// Errors are ignored, because a backup that stays does no harm.
pub(crate) fn remove_header_backup(destination: &Path) {
    let path = header_backup(destination);
    if is_header_backup(&path) {
        let _ = failpoint::hit("remove the backup").and_then(|()| fs::remove_file(path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_names_identify_their_file() {
        let backup = header_backup(Path::new("models/model.safetensors"));
        assert_eq!(backup, Path::new("models/.model.safetensors.header-backup"));
        assert_eq!(header_backup(Path::new("a")), Path::new("./.a.header-backup"));
        assert!(is_temporary_name(growing_lock(Path::new("a")).file_name().unwrap()));
        let prefix = temporary_prefix(OsStr::new("model.safetensors"));
        assert_eq!(prefix, ".model.safetensors.");
        for (name, expected) in [
            (".model.safetensors.aB3dE6.tmp", true),
            (".model.safetensors.aB3dE.tmp", false),
            (".model.safetensors.aB3d.6.tmp", false),
            (".model.safetensors.aB3dE6.tmp~", false),
            ("model.safetensors.aB3dE6.tmp", false),
            (".model.safetensors..tmp", false),
            (".model.safetensors.tmp", false),
            // A temporary file of another file with a name that begins the same way.
            (".model.safetensors.index.json.aB3dE6.tmp", false),
        ] {
            assert_eq!(is_temporary(OsStr::new(name), &prefix), expected, "{name}");
        }
        for (name, expected) in [
            (".model.safetensors.aB3dE6.tmp", true),
            (".a.aB3dE6.tmp", true),
            (".safetensors.lock", true),
            (".model.safetensors.header-backup", true),
            (".header-backup", false),
            (".权.aB3dE6.tmp", true),
            (".model.safetensors.index.json.step-1.ranks", true),
            (".model.safetensors.index.json..ranks", false),
            ("model.step-1.ranks", false),
            (".step-1.ranks", false),
            (".ranks", false),
            ("..aB3dE6.tmp", false),
            (".aB3dE6.tmp", false),
            ("model.safetensors.aB3dE6.tmp", false),
            (".model.safetensors.aB3d.6.tmp", false),
            (".model.safetensors.aB3dE6", false),
            (".权权权权", false),
            ("", false),
        ] {
            assert_eq!(is_temporary_name(OsStr::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn temporary_files_of_one_checkpoint_belong_together() {
        let model = checkpoints_of("model.safetensors".as_ref());
        assert_eq!(model.first().map(String::as_str), Some("model.safetensors"));
        for file in [
            "model.safetensors",
            "model-00001-of-00002.safetensors",
            "model.safetensors.index.json",
        ] {
            let backup = header_backup(Path::new(file));
            for file in [Path::new(file), &backup] {
                let temporary = growing_lock(file);
                let found = checkpoint_of_temporary(temporary.file_name().unwrap()).unwrap();
                assert!(model.contains(&found), "{}", temporary.display());
            }
        }
        for file in ["model2.safetensors", "model.fp16.safetensors", "model", "config.json"] {
            let temporary = growing_lock(Path::new(file));
            let found = checkpoint_of_temporary(temporary.file_name().unwrap()).unwrap();
            assert!(!model.contains(&found), "{file}");
        }
        for len in [120, 140, 200, 232] {
            let name = "x".repeat(len) + ".safetensors";
            let index = growing_lock(Path::new(&(name.clone() + INDEX_ENDING)));
            let found = checkpoint_of_temporary(index.file_name().unwrap()).unwrap();
            assert!(checkpoints_of(name.as_ref()).contains(&found), "{len}");
        }
    }

    #[test]
    fn every_name_fits_and_two_long_ones_differ() {
        for len in 1..=255 {
            for unit in ["x", "é", "權"] {
                let name = unit.repeat(len / unit.len()) + &"y".repeat(len % unit.len());
                let backup = header_backup(Path::new(&name));
                assert!(backup.file_name().unwrap().len() <= NAME_MAX, "{name}");
                let prefix = temporary_prefix(OsStr::new(&name));
                let temporary = prefix.len() + ID_LEN + TEMPORARY_SUFFIX.len();
                assert!(temporary <= NAME_MAX, "{name}");
                let mut other = name.clone();
                other.pop();
                other.push('z');
                assert_ne!(backup, header_backup(Path::new(&other)), "{name}");
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_name_need_not_be_text() {
        use std::os::unix::ffi::OsStrExt;

        for len in [1, 200, 254] {
            let name = [b"\xff".repeat(len), b"a".to_vec()].concat();
            let backup = header_backup(Path::new(OsStr::from_bytes(&name)));
            assert!(backup.file_name().unwrap().len() <= NAME_MAX);
        }
    }
}
