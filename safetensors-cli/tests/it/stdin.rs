//! Standard input as a path: `-`.

use std::process::{Command, Output};

use crate::fixtures::*;

/// Runs a command with a file as standard input.
fn redirected(args: &[&str], file: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_safetensors"));
    command.args(args).stdin(fs::File::open(file).unwrap()).output().unwrap()
}

fn piped(args: &[&str], file: &Path) -> Output {
    safetensors().args(args).write_stdin(fs::read(file).unwrap()).output().unwrap()
}

#[test]
fn it_has_a_name_in_tables_and_errors() {
    let dir = temp_dir();
    let good = small_file(dir.path(), "good.safetensors");
    let bad = dir.at("bad.safetensors");
    fs::write(&bad, b"bad").unwrap();
    for run in [redirected, piped] {
        let shown = run(&["inspect", "-"], &good);
        assert!(text(&shown.stdout).contains("\nstandard input: 1 file, "), "{shown:?}");
        let shown = run(&["verify", "-"], &good);
        assert_eq!(text(&shown.stdout), "standard input: ok, 2 tensors, 8 parameters, 40 B\n");
        let json = run(&["inspect", "-", "--json"], &good);
        let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(json["files"][0]["path"], "standard input");
        let says = "error: standard input: too short for a safetensors file";
        for command in ["inspect", "verify", "stats", "metadata get", "digest"] {
            let args: Vec<_> = command.split(' ').chain(["-"]).collect();
            Assert::new(run(&args, &bad)).code(1).stderr(starts_with(says));
        }
        let failed = run(&["metadata", "get", "-", "nope"], &good);
        let expected = "error: standard input: there is no metadata key nope; `safetensors \
                        metadata get PATH` lists the keys\n";
        assert_eq!((failed.status.code(), text(&failed.stderr)), (Some(1), expected));
        Assert::new(run(&["digest", "-"], &good)).shows("  mask\n");
    }
}

#[test]
fn it_is_never_changed() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let before = fs::read(&path).unwrap();
    let required = ["--architecture", "a", "--implementation", "i", "--title", "t", "--hash"];
    let init = [&["metadata", "modelspec", "init", "-"], &required[..]].concat();
    for args in [
        &["digest", "--record", "-"][..],
        &["metadata", "set", "-", "a=b"],
        &["metadata", "remove", "-", "format"],
        &["metadata", "clear", "-"],
        &init,
    ] {
        for run in [redirected, piped] {
            let output = run(args, &path);
            assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{args:?}");
            let expected =
                "error: standard input cannot be changed; name the file instead of -\n\nUsage: ";
            assert!(text(&output.stderr).starts_with(expected), "{output:?}");
        }
    }
    assert_eq!(fs::read(&path).unwrap(), before);
    let output = piped(&["diff", "-", "-"], &path);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[cfg(unix)]
#[test]
fn a_fifo_that_is_named_is_read_like_standard_input() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let fifo = dir.at("pipe");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let out = dir.at("out.safetensors");
    let (pipe, out_path) = (fifo.to_str().unwrap(), out.to_str().unwrap());
    for args in [
        &["inspect", pipe][..],
        &["verify", pipe],
        &["stats", pipe],
        &["digest", pipe],
        &["metadata", "get", pipe],
        &["diff", pipe, path.to_str().unwrap()],
        &["convert", pipe, out_path],
    ] {
        let bytes = fs::read(&path).unwrap();
        let output = std::thread::scope(|scope| {
            scope.spawn(|| fs::write(&fifo, &bytes));
            let mut command = safetensors();
            command.timeout(std::time::Duration::from_secs(20)).args(args).output().unwrap()
        });
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?} {output:?}");
    }
    assert_eq!(fs::read(&out).unwrap().len(), fs::read(&path).unwrap().len());
    let verified = safetensors()
        .args(["verify", "/dev/stdin"])
        .write_stdin(fs::read(&path).unwrap())
        .output()
        .unwrap();
    assert_eq!(text(&verified.stdout), "/dev/stdin: ok, 2 tensors, 8 parameters, 40 B\n");
    // One cannot be changed.
    let mut command = safetensors();
    let failed = command.args(["metadata", "set", pipe, "a=b"]).output().unwrap();
    assert!(text(&failed.stderr).contains("expected a regular file"), "{failed:?}");
}

/// As `<(command)` of a shell, which gives `/dev/fd/N`.
#[cfg(target_os = "linux")]
#[test]
fn a_pipe_that_is_named_is_converted_to_a_new_file() {
    let dir = temp_dir();
    let input = small_file(dir.path(), "in.safetensors");
    let [by_name, by_pipe] = ["name.safetensors", "pipe.safetensors"].map(|name| dir.at(name));
    for (from, out) in [(input.to_str().unwrap(), &by_name), ("/dev/stdin", &by_pipe)] {
        let converted = piped(&["convert", from, out.to_str().unwrap()], &input);
        assert!(converted.status.success(), "{converted:?}");
    }
    assert!(fs::read(by_pipe).unwrap() == fs::read(by_name).unwrap());
}

#[test]
fn the_error_of_a_failed_copy_has_the_reason() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let nowhere = dir.at("nowhere");
    let mut command = safetensors();
    let output = command
        .args(["verify", "-"])
        .env("TMPDIR", &nowhere)
        .write_stdin(fs::read(&path).unwrap())
        .output();
    let (output, nowhere) = (output.unwrap(), nowhere.display());
    if cfg!(unix) {
        let expected = format!(
            "error: standard input: cannot create a temporary file in {nowhere}; TMPDIR can name another directory: No such file"
        );
        assert!(text(&output.stderr).starts_with(&expected), "{output:?}");
        // A directory is no pipe.
        let output = redirected(&["verify", "-"], dir.path());
        assert!(
            text(&output.stderr).starts_with("error: standard input: Is a directory"),
            "{output:?}"
        );
    }
}
