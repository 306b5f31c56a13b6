//! A header that an interrupted change left torn: some commands restore it, others report it.

use std::io::Write;

use safetensors_core::edit;
use xxhash_rust::xxh3::xxh3_64;

use crate::fixtures::*;

const BACKUP: &str = ".model.safetensors.header-backup";

/// Makes a file with a header that an interrupted change left half written, with the backup next to
/// it, as `safetensors_core::edit` leaves both; returns its earlier bytes, too.
fn torn_file(dir: &Path) -> (PathBuf, Vec<u8>) {
    let path = dir.at("model.safetensors");
    let header = |meta: &str| {
        format!(
            r#"{{"__metadata__":{{{meta}}},"w":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#
        )
    };
    let (old, new) = (header(r#""format":"pt""#), header(r#""FORMAT":"PT""#));
    raw_file(&path, &old, 1);
    let before = fs::read(&path).unwrap();
    let mark = *b"edt\xff\x12\x34\xed\xff";
    let with_length = |json: &str| [&before[..8], json.as_bytes()].concat();
    let metadata = fs::metadata(&path).unwrap();
    #[cfg(unix)]
    let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
    #[cfg(windows)]
    let inode =
        winapi_util::file::information(fs::File::open(&path).unwrap()).unwrap().file_index();
    #[cfg(not(any(unix, windows)))]
    let inode = 0_u64;
    let numbers = [mark, inode.to_le_bytes(), metadata.len().to_le_bytes()].concat();
    let mut backup = [&b"STheadr1"[..], &numbers, &with_length(&old), &with_length(&new)].concat();
    backup.extend(xxh3_64(&backup).to_le_bytes());
    dir.write(BACKUP, backup);
    // The half of the new header.
    let torn = [&mark, &new.as_bytes()[..26], &before[34..]].concat();
    fs::File::options().write(true).open(&path).unwrap().write_all(&torn).unwrap();
    assert!(edit::is_torn(&path).unwrap());
    (path, before)
}

#[test]
fn every_change_restores_a_torn_header_first() {
    let init = "--architecture gpt-neo-x --implementation i --title t --set data_format=fp16";
    for (args, rest) in [
        ("metadata set", "a=b"),
        ("metadata remove", "format"),
        ("metadata clear", ""),
        ("digest --record", ""),
        ("metadata modelspec init", init),
        ("metadata modelspec init --hash", init),
    ] {
        let dir = temp_dir();
        let (path, _) = torn_file(dir.path());
        let told = contains(
            "warning: PATH: an earlier change of the header was interrupted; the old header is \
             restored\n"
                .replace("PATH", path.to_str().unwrap()),
        );
        run(args, &path, rest).success().stderr(told);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{args:?}");
        Checkpoint::open(&path).unwrap();
        // Also through an index that names only this file.
        let dir = temp_dir();
        let (path, _) = torn_file(dir.path());
        let index = dir.at("model.safetensors.index.json");
        fs::write(&index, r#"{"weight_map":{"w":"model.safetensors"}}"#).unwrap();
        run(args, &index, rest).success();
        Checkpoint::open(&path).unwrap();
    }
}

#[test]
fn readers_and_dry_runs_leave_a_torn_header_and_name_the_remedy() {
    for (args, rest) in [
        ("inspect", ""),
        ("verify", ""),
        ("stats", ""),
        ("digest", ""),
        ("metadata get", ""),
        ("metadata set -n", "a=b"),
        ("metadata remove -n", "format"),
        ("metadata modelspec init", "--architecture a --implementation i --title t --hash -n"),
    ] {
        let dir = temp_dir();
        let (path, _) = torn_file(dir.path());
        let before = fs::read(&path).unwrap();
        let hint = "an edit is in progress, or was interrupted; the next change, such as `safetensors metadata set`, restores the header";
        run(args, &path, rest).fails(1, hint);
        assert_eq!(fs::read(&path).unwrap(), before, "{args:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "{args:?}");
    }
    // A malformed file without a backup gets no such hint.
    let dir = temp_dir();
    dir.write("bad.safetensors", "bad");
    let hint = contains("interrupted").not();
    run("inspect", &dir.at("bad.safetensors"), &[]).code(1).stderr(hint);
}

#[test]
fn a_torn_file_without_its_backup_has_an_error_with_a_remedy() {
    for args in ["inspect", "verify", "metadata clear", "digest --record"] {
        let dir = temp_dir();
        let (path, _) = torn_file(dir.path());
        let moved = dir.at("moved.safetensors");
        fs::rename(&path, &moved).unwrap();
        let before = fs::read(&moved).unwrap();
        let hint = "there is no backup of the header next to the file: get the file again";
        run(args, &moved, &[]).fails(1, hint);
        assert_eq!(fs::read(&moved).unwrap(), before);
    }
}

#[cfg(unix)]
#[test]
fn a_torn_header_of_a_read_only_file_is_restored_once_it_is_writable() {
    use std::os::unix::fs::PermissionsExt;
    let dir = temp_dir();
    let (path, _) = torn_file(dir.path());
    let torn = fs::read(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    run("metadata set --force", &path, "a=b").fails(1, "the file is read-only; make it writable");
    assert_eq!((fs::read(&path).unwrap(), dir.at(BACKUP).exists()), (torn, true));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    run("metadata set", &path, "a=b").success();
    Checkpoint::open(&path).unwrap();
}

/// A backup next to a valid file, such as one that was downloaded with it, changes nothing.
#[test]
fn verify_names_a_backup_and_a_change_removes_it() {
    let dir = temp_dir();
    let (path, before) = torn_file(dir.path());
    fs::File::options().write(true).open(&path).unwrap().write_all(&before).unwrap();
    let named =
        || contains("an interrupted edit left a backup of its header, ").and(contains(BACKUP));
    run("verify", &path, &[]).success().stderr(named());
    run("verify --strict", &path, &[]).code(1).stderr(named());
    run("metadata set", &path, &["format=pt"]).quiet();
    assert_eq!(fs::read(&path).unwrap(), before);
    run("verify --strict", &path, &["--json"]).code(1).stderr("");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}
