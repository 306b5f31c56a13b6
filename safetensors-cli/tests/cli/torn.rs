//! A header that an interrupted change left torn: some commands restore it, others report it.

use std::fs;
use std::path::Path;

use crate::fixtures::*;
use predicates::prelude::*;
use safetensors_core::Checkpoint;

/// A file whose header an interrupted change left torn, with the backup beside it. Also returns the
/// bytes that the file had before.
fn torn_file(dir: &Path) -> (std::path::PathBuf, Vec<u8>) {
    let path = dir.join("model.safetensors");
    let header = |meta: &str| {
        format!(
            r#"{{"__metadata__":{{{meta}}},"w":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#
        )
    };
    let (old, new) = (header(r#""format":"pt""#), header(r#""FORMAT":"PT""#));
    raw_file(&path, &old, 1);
    let before = fs::read(&path).unwrap();
    let with_length = |json: &str| [&before[..8], json.as_bytes()].concat();
    let backup = [with_length(&old), with_length(&new)].concat();
    fs::write(dir.join(".model.safetensors.header-backup"), backup).unwrap();
    let mut torn = before.clone();
    torn[20..30].fill(0);
    fs::write(&path, torn).unwrap();
    (path, before)
}

#[test]
fn every_change_restores_a_torn_header_first() {
    let init = [
        "--architecture",
        "gpt-neo-x",
        "--implementation",
        "i",
        "--title",
        "t",
        "--set",
        "data_format=fp16",
    ];
    for (args, rest) in [
        (&["metadata", "set"][..], &["a=b"][..]),
        (&["metadata", "remove"], &["format"]),
        (&["metadata", "clear"], &[]),
        (&["digest", "--record"], &[]),
        (&["modelspec", "init"], &init),
        (&["modelspec", "init", "--hash"], &init),
    ] {
        let dir = temp_dir();
        let (path, _) = torn_file(dir.path());
        run(args, &path, rest).success();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{args:?}");
        Checkpoint::open(&path).unwrap();
        // The same through an index that names only this file.
        let dir = temp_dir();
        let (path, _) = torn_file(dir.path());
        let index = dir.path().join("model.safetensors.index.json");
        fs::write(&index, r#"{"weight_map":{"w":"model.safetensors"}}"#).unwrap();
        run(args, &index, rest).success();
        Checkpoint::open(&path).unwrap();
    }
}

#[test]
fn readers_and_dry_runs_leave_a_torn_header_and_say_what_restores_it() {
    let init = ["--architecture", "a", "--implementation", "i", "--title", "t", "--hash", "-n"];
    for (args, rest) in [
        (&["inspect"][..], &[][..]),
        (&["verify"], &[]),
        (&["stats"], &[]),
        (&["digest"], &[]),
        (&["metadata", "get"], &[]),
        (&["metadata", "set", "-n"], &["a=b"]),
        (&["metadata", "remove", "-n"], &["format"]),
        (&["modelspec", "init"], &init),
    ] {
        let dir = temp_dir();
        let (path, _) = torn_file(dir.path());
        let before = fs::read(&path).unwrap();
        let hint = "a change of the header was interrupted: the next change, \
            such as `safetensors metadata set`, restores the old header";
        run(args, &path, rest).code(1).stdout("").stderr(predicate::str::contains(hint));
        assert_eq!(fs::read(&path).unwrap(), before, "{args:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "{args:?}");
    }
    // A malformed file without a backup gets no such hint.
    let dir = temp_dir();
    fs::write(dir.path().join("bad.safetensors"), "bad").unwrap();
    let hint = predicate::str::contains("interrupted").not();
    run(&["inspect"], &dir.path().join("bad.safetensors"), &[]).code(1).stderr(hint);
}
