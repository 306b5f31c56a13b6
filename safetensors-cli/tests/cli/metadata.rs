//! `safetensors metadata`: what it shows and changes.

use std::fs;
use std::path::Path;

use crate::fixtures::*;
use predicates::prelude::*;
use safetensors_core::Checkpoint;

#[test]
fn entries_are_shown_set_removed_and_cleared() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let get = || run(&["metadata", "get"], &path, &[]).success();
    let before = fs::read(&path).unwrap();
    get().stdout("format=pt\n");
    run(&["metadata", "set"], &path, &["a=1=2", "--dry-run"]).success().stdout(predicate::str::contains(": would be "));
    assert_eq!(fs::read(&path).unwrap(), before);
    run(&["metadata", "set"], &path, &["a=1=2", "format=np"])
        .success()
        .stdout(predicate::str::contains(": written anew"));
    get().stdout("a=1=2\nformat=np\n");
    run(&["metadata", "get"], &path, &["a"]).success().stdout("1=2\n");
    run(&["metadata", "get"], &path, &["a", "--json"]).success().stdout("{\n  \"a\": \"1=2\"\n}\n");
    let missing = "there is no metadata b; `safetensors metadata get PATH` lists the keys";
    run(&["metadata", "get"], &path, &["b"]).code(1).stderr(predicate::str::contains(missing));
    run(&["metadata", "remove"], &path, &["a", "b"]).code(1).stderr(predicate::str::contains("nothing was removed"));
    run(&["metadata", "remove"], &path, &["a"]).success().stdout(predicate::str::contains(": changed in place"));
    get().stdout("format=np\n");
    run(&["metadata", "clear"], &path, &[]).success();
    get().stdout("");
    run(&["metadata", "clear"], &path, &[]).success().stdout(predicate::str::contains(": unchanged"));
    let values = Checkpoint::open(&path).unwrap().tensor("mask").unwrap().read().unwrap().into_vec::<i64>().unwrap();
    assert_eq!(values, [1, 0]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    run(&["metadata", "set"], &path, &["novalue"]).code(2);
}

#[test]
fn hostile_values_are_escaped_unless_raw() {
    let dir = temp_dir();
    let path = hostile_file(dir.path());
    let shown = run(&["metadata", "get"], &path, &[]).success().get_output().stdout.clone();
    assert!(is_plain(text(&shown)) && text(&shown).contains(r"line one\nline two\u{202e}"), "{shown:?}");
    let raw = run(&["metadata", "get"], &path, &["k\u{1b}]0;owned\u{7}", "--raw"]).success();
    raw.stdout("line one\nline two\u{202e}\n");
}

#[test]
fn a_backslash_and_a_line_end_do_not_look_alike() {
    let dir = temp_dir();
    let path = dir.path().join("m.safetensors");
    raw_file(&path, r#"{"__metadata__":{"a":"x\ny","b":"x\\ny","k\\":"\"it's\""}}"#, 0);
    run(&["metadata", "get"], &path, &[]).success().stdout("a=x\\ny\nb=x\\\\ny\nk\\\\=\"it's\"\n");
    run(&["metadata", "get"], &path, &["b"]).success().stdout("x\\\\ny\n");
    run(&["metadata", "get"], &path, &["b", "--raw"]).success().stdout("x\\ny\n");
}

#[cfg(unix)]
#[test]
fn a_dry_run_needs_no_permission_to_write() {
    use std::os::unix::fs::PermissionsExt;

    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&path, 0o444);
    mode(dir.path(), 0o555);
    run(&["metadata", "set", "-n"], &path, &["a=b"])
        .success()
        .stdout(predicate::str::contains("would be written anew"));
    mode(dir.path(), 0o755);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn several_files_are_not_changed_by_one_name() {
    let dir = temp_dir();
    sharded(dir.path());
    run(&["metadata", "get"], dir.path(), &["format"]).success().stdout("pt\n");
    let error = predicate::str::contains("has 2 files; name the one to change");
    run(&["metadata", "set"], dir.path(), &["a=b"]).code(1).stderr(error);
}
