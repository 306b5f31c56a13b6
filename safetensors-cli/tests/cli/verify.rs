//! `safetensors verify`: exit codes, and what goes to which stream.

use std::fs;

use crate::fixtures::*;
use predicates::prelude::*;

#[test]
fn a_sound_file_is_one_line() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    let expected = "model.safetensors: ok, 2 tensors, 8 parameters, 40 B\n";
    let mut command = safetensors();
    command.current_dir(dir.path()).args(["verify", "model.safetensors"]);
    command.assert().success().stdout(expected).stderr("");
}

#[test]
fn a_directory_an_index_and_several_paths() {
    let (single, several) = (temp_dir(), temp_dir());
    small_file(single.path(), "any-name.safetensors");
    let index = sharded(several.path());
    let expected = format!(
        "{}: ok, 2 tensors, 8 parameters, 40 B\n{1}: ok, {shards}\n{2}: ok, {shards}\n",
        single.path().display(),
        several.path().display(),
        index.display(),
        shards = "2 shards, 2 tensors, 5 parameters, 14 B",
    );
    let mut command = safetensors();
    command.arg("verify").args([single.path(), several.path(), &index]);
    command.assert().success().stdout(expected).stderr("");
}

#[test]
fn no_tensors_and_one_scalar() {
    let dir = temp_dir();
    raw_file(&dir.path().join("none.safetensors"), "{}", 0);
    let scalar = r#"{"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#;
    raw_file(&dir.path().join("one.safetensors"), scalar, 4);
    let expected = "\
none.safetensors: ok, 0 tensors, 0 parameters, 0 B
one.safetensors: ok, 1 tensor, 1 parameter, 4 B
";
    let mut command = safetensors();
    command.current_dir(dir.path()).args(["verify", "none.safetensors", "one.safetensors"]);
    command.assert().success().stdout(expected).stderr("");
}

#[test]
fn a_malformed_file_is_one_error_and_the_others_are_still_checked() {
    let dir = temp_dir();
    let hole = r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    raw_file(&dir.path().join("bad.safetensors"), hole, 2);
    small_file(dir.path(), "good.safetensors");
    let mut command = safetensors();
    command.current_dir(dir.path()).args(["verify", "bad.safetensors", "good.safetensors"]);
    command
        .assert()
        .code(1)
        .stdout("good.safetensors: ok, 2 tensors, 8 parameters, 40 B\n")
        .stderr(predicate::str::starts_with("error: bad.safetensors: tensor \"w\": a hole"))
        .stderr(predicate::str::ends_with("\n").and(predicate::function(|text: &str| text.lines().count() == 1)));
}

#[test]
fn every_kind_of_unsound_path_fails_with_its_name() {
    let dir = temp_dir();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("short.safetensors"), [1, 2, 3]).unwrap();
    fs::write(path("empty.safetensors"), []).unwrap();
    raw_file(&path("json.safetensors"), "{,}", 0);
    raw_file(&path("trailing.safetensors"), "{}", 1);
    fs::create_dir(path("folder")).unwrap();
    fs::write(path("model.safetensors.index.json"), r#"{"weight_map":{"a":"gone.safetensors"}}"#).unwrap();
    fs::write(path("escape.safetensors.index.json"), r#"{"weight_map":{"a":"../x.safetensors"}}"#).unwrap();
    for (name, named) in [
        ("short.safetensors", "short.safetensors: "),
        ("empty.safetensors", "empty.safetensors: "),
        ("json.safetensors", "json.safetensors: "),
        ("trailing.safetensors", "trailing.safetensors: "),
        ("folder", "folder: "),
        ("missing.safetensors", "missing.safetensors: "),
        ("model.safetensors.index.json", "gone.safetensors: "),
        ("escape.safetensors.index.json", "escape.safetensors.index.json: "),
    ] {
        let mut command = safetensors();
        command.current_dir(dir.path()).args(["verify", name]);
        command.assert().code(1).stdout("").stderr(predicate::str::starts_with(format!("error: {named}")));
    }
}

#[test]
fn an_index_that_lies_names_tensor_and_shard() {
    let dir = temp_dir();
    let index = sharded(dir.path());
    let map = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors"}}"#;
    fs::write(&index, map).unwrap();
    let mut command = safetensors();
    command.arg("verify").arg(dir.path());
    let both = predicate::str::contains("\"b\"").and(predicate::str::contains("model-00001-of-00002.safetensors"));
    command.assert().code(1).stdout("").stderr(both);
}

#[cfg(unix)]
#[test]
fn errors_escape_hostile_names() {
    let dir = temp_dir();
    let header = r#"{"\u001b[2J\u202e":{"dtype":"\u001b[31m","shape":[1],"data_offsets":[0,1]}}"#;
    raw_file(&dir.path().join("bad\u{1b}\n.safetensors"), header, 1);
    let output = safetensors().arg("verify").arg(dir.path()).output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(is_plain(error) && error.lines().count() == 1, "{error:?}");
    assert!(error.contains(r#"bad\u{1b}\n.safetensors: tensor "\u{1b}[2J\u{202e}": "#), "{error:?}");
}

#[cfg(unix)]
#[test]
fn a_hostile_path_is_escaped() {
    let dir = temp_dir();
    small_file(dir.path(), "a\u{1b}[31m\u{202e}.safetensors");
    let mut command = safetensors();
    command.current_dir(dir.path()).args(["verify", "a\u{1b}[31m\u{202e}.safetensors"]);
    command.assert().success().stdout(predicate::str::starts_with(r"a\u{1b}[31m\u{202e}.safetensors: ok, "));
}

#[test]
fn wrong_usage_exits_2_with_usage() {
    for args in [&["verify"][..], &["verify", "--no-such-option", "x"]] {
        let usage = predicate::str::contains("safetensors verify");
        safetensors().args(args).assert().code(2).stdout("").stderr(usage);
    }
    safetensors().args(["verify", ""]).assert().code(2).stdout("").stderr(predicate::str::contains("<PATH>..."));
    safetensors().arg("no-such-command").assert().code(2).stdout("");
    safetensors().assert().code(2).stdout("").stderr(predicate::str::contains("Usage: safetensors"));
}

#[test]
fn help_and_version() {
    for args in [&["--help"][..], &["verify", "--help"], &["verify", "-h"], &["help", "inspect"]] {
        let help = predicate::str::contains("Examples:").and(predicate::str::contains("Exit codes:"));
        safetensors().args(args).assert().success().stdout(help).stderr("");
    }
    let version = format!("safetensors {}\n", env!("CARGO_PKG_VERSION"));
    safetensors().arg("--version").assert().success().stdout(version).stderr("");
}

#[cfg(unix)]
#[test]
fn a_fifo_is_refused_and_not_waited_for() {
    let dir = temp_dir();
    let fifo = dir.path().join("fifo.safetensors");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut command = safetensors();
    command.timeout(std::time::Duration::from_secs(20)).arg("verify").arg(&fifo);
    command.assert().code(1).stdout("").stderr(predicate::str::contains("expected a regular file"));
}
