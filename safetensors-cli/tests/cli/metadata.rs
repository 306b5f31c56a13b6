//! `safetensors metadata`, `modelspec` and `digest`.

use std::fs;
use std::path::Path;

use crate::fixtures::*;
use assert_cmd::assert::Assert;
use predicates::prelude::*;
use safetensors_core::Checkpoint;

fn run(args: &[&str], path: &Path, rest: &[&str]) -> Assert {
    let mut command = safetensors();
    command.args(args).arg(path).args(rest);
    command.assert()
}

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
fn several_files_are_not_changed_by_one_name() {
    let dir = temp_dir();
    sharded(dir.path());
    run(&["metadata", "get"], dir.path(), &["format"]).success().stdout("pt\n");
    let error = predicate::str::contains("has 2 files; name the one to change");
    run(&["metadata", "set"], dir.path(), &["a=b"]).code(1).stderr(error);
}

#[test]
fn modelspec_is_written_and_checked() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    run(&["modelspec", "validate"], &path, &[]).code(1).stderr(predicate::str::contains("modelspec init"));
    let required = ["--architecture", "gpt-neo-x", "--implementation", "transformers", "--title", "My model"];
    let init = |more: &[&str]| run(&["modelspec", "init"], &path, &[&required, more].concat());
    init(&[]).code(1).stderr(predicate::str::contains("modelspec.data_format").and(predicate::str::contains("--set")));
    init(&["--set", "data_format=fp32", "--set", "date=soon"])
        .code(1)
        .stderr(predicate::str::contains("modelspec.date"));
    init(&["--set", "data_format=fp32", "--hash"]).success();
    run(&["metadata", "get"], &path, &["modelspec.title"]).success().stdout("My model\n");
    run(&["modelspec", "validate"], &path, &[]).success().stdout(predicate::str::contains(": 0 errors, "));
    // A value without its form is refused, and nothing is written.
    let before = fs::read(&path).unwrap();
    init(&["--set", "data_format=fp32", "--title", " "]).code(2);
    init(&["--set", "data_format=fp32", "--set", "tags=a,,b"])
        .code(1)
        .stderr(predicate::str::starts_with("error: \"modelspec.tags\" should be "));
    assert_eq!(fs::read(&path).unwrap(), before);
    // The recorded hash is that of the data.
    run(&["verify", "--digests"], &path, &[]).success().stdout(predicate::str::contains(", 1 digest right"));
    // A later change that breaks the standard is told.
    let warning = predicate::str::starts_with("warning: ").and(predicate::str::contains("modelspec.date"));
    run(&["metadata", "set"], &path, &["modelspec.date=soon"]).success().stderr(warning);
    run(&["modelspec", "validate"], &path, &[]).code(1).stdout(predicate::str::contains("error: \"modelspec.date\""));
}

#[test]
fn digests_are_printed_recorded_and_checked() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let digests = || text(&run(&["digest"], &path, &[]).success().get_output().stdout).to_owned();
    let before = digests();
    let lines: Vec<_> = before.lines().collect();
    assert!(lines.len() == 3 && lines[0].ends_with("  embed.weight") && lines[2].starts_with("sha256:"), "{before}");
    run(&["verify", "--digests"], &path, &[]).success().stderr(predicate::str::contains("records no digests"));
    run(&["digest", "--record"], &path, &[]).success().stdout(predicate::str::contains("2 digests recorded"));
    assert_eq!(digests(), before, "metadata makes no difference");
    run(&["verify", "--digests"], &path, &[]).success().stdout(predicate::str::contains(", 2 digests right"));
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    run(&["verify"], &path, &[]).success();
    run(&["verify", "--digests"], &path, &[]).code(1).stdout("").stderr(predicate::str::contains("\"mask\""));
    let json = run(&["digest", "--json", "-f", "embed*"], &path, &[]).success().get_output().stdout.clone();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(format!("{}  embed.weight", json["tensors"][0]["xxh3_128"].as_str().unwrap()), lines[0]);
}
