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
fn a_backslash_and_a_line_end_do_not_look_alike() {
    let dir = temp_dir();
    let path = dir.path().join("m.safetensors");
    raw_file(&path, r#"{"__metadata__":{"a":"x\ny","b":"x\\ny","k\\":"\"it's\""}}"#, 0);
    run(&["metadata", "get"], &path, &[]).success().stdout("a=x\\ny\nb=x\\\\ny\nk\\\\=\"it's\"\n");
    run(&["metadata", "get"], &path, &["b"]).success().stdout("x\\\\ny\n");
    run(&["metadata", "get"], &path, &["b", "--raw"]).success().stdout("x\\ny\n");
}

/// A file whose header an interrupted change left torn, with the backup beside it; and the bytes that it had before.
fn torn_file(dir: &Path) -> (std::path::PathBuf, Vec<u8>) {
    let path = dir.join("model.safetensors");
    let header =
        |meta: &str| format!(r#"{{"__metadata__":{{{meta}}},"w":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
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
    let init = ["--architecture", "gpt-neo-x", "--implementation", "i", "--title", "t", "--set", "data_format=fp16"];
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
        // The same by way of an index that names the one file.
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
        let hint =
            "a change of the header was interrupted, and the next one, such as `safetensors metadata set`, restores";
        run(args, &path, rest).code(1).stdout("").stderr(predicate::str::contains(hint));
        assert_eq!(fs::read(&path).unwrap(), before, "{args:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "{args:?}");
    }
    // A file that is merely malformed has no such hint.
    let dir = temp_dir();
    fs::write(dir.path().join("bad.safetensors"), "bad").unwrap();
    let hint = predicate::str::contains("interrupted").not();
    run(&["inspect"], &dir.path().join("bad.safetensors"), &[]).code(1).stderr(hint);
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
fn modelspec_is_checked_together_with_what_the_file_has() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let required = ["--architecture", "stable-diffusion-v1", "--implementation", "diffusers", "--title"];
    let init = |more: &[&str]| run(&["modelspec", "init"], &path, &[&required, more].concat());
    let missing =
        predicate::str::contains("\"modelspec.resolution\" is missing").and(predicate::str::contains("--set"));
    init(&["one"]).code(1).stderr(missing);
    init(&["one", "--set", "resolution=512x512"]).success();
    init(&["two"]).success();
    run(&["metadata", "get"], &path, &["modelspec.title"]).success().stdout("two\n");
    run(&["metadata", "get"], &path, &["modelspec.resolution"]).success().stdout("512x512\n");
    // What is on the command line is corrected there.
    let empty = predicate::str::contains("\"modelspec.title\" should be").and(predicate::str::contains("--set").not());
    init(&[""]).code(1).stderr(empty);
    // A line has one label.
    let date = run(&["metadata", "set"], &path, &["modelspec.date=soon"]).success();
    let line = matches("^warning: [^\n]*model.safetensors: \"modelspec.date\" should be");
    date.stderr(line);
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
