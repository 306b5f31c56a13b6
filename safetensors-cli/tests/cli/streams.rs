//! What every command does with its surroundings: closed pipes, a full disk, directories that only allow reading.

use std::fs;
use std::io::Read;
use std::process::{Command, Output, Stdio};

use crate::fixtures::*;
use safetensors_core::{SaveOptions, TensorView, save};

/// The commands that take one path and only read.
const READERS: [&str; 4] = ["digest", "inspect", "stats", "verify"];

/// Enough tensors that their table does not fit a pipe (64 KiB) or a buffer.
fn many_tensors(dir: &std::path::Path) -> std::path::PathBuf {
    let path = dir.join("many.safetensors");
    let tensor = TensorView::from_slice(&[0], &[0_u8; 0]).unwrap();
    let tensors = (0..5_000).map(|i| (format!("model.l{i}.mlp.gate_proj.weight"), tensor));
    save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
    path
}

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_safetensors"))
}

/// Runs a command whose standard output or error is a pipe that nobody reads.
fn run_with_closed(command: &mut Command, stdout: bool) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    if stdout {
        command.stdout(writer).stderr(Stdio::piped())
    } else {
        command.stderr(writer).stdout(Stdio::piped())
    };
    command.spawn().unwrap().wait_with_output().unwrap()
}

#[test]
fn a_pipe_that_is_closed_from_the_start_is_quiet() {
    let dir = temp_dir();
    let path = many_tensors(dir.path());
    for name in READERS {
        let output = run_with_closed(command().arg(name).arg(&path), true);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{name}");
    }
    for args in [&["--help"][..], &["--version"], &["inspect", "--help"]] {
        let output = run_with_closed(command().args(args), true);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn a_pipe_that_is_closed_after_one_line_is_quiet() {
    let dir = temp_dir();
    let path = many_tensors(dir.path());
    let mut child = command().arg("inspect").arg(&path).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut start = [0; 4];
    let mut pipe = child.stdout.take().unwrap();
    pipe.read_exact(&mut start).unwrap();
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    assert_eq!((&start, output.status.code(), text(&output.stderr)), (b"modu", Some(0), ""));
}

#[test]
fn verify_into_a_closed_pipe_still_tells_by_its_exit_code() {
    let dir = temp_dir();
    let good = small_file(dir.path(), "good.safetensors");
    let bad = dir.path().join("bad.safetensors");
    fs::write(&bad, b"bad").unwrap();
    let output = run_with_closed(command().arg("verify").args([&good, &bad]), true);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("error: ") && !text(&output.stderr).contains("ipe"), "{output:?}");
}

#[test]
fn a_closed_standard_error_is_no_panic() {
    let dir = temp_dir();
    let bad = dir.path().join("bad.safetensors");
    fs::write(&bad, b"bad").unwrap();
    for name in READERS {
        let output = run_with_closed(command().arg(name).arg(&bad), false);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{name}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    for name in READERS {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = command().arg(name).arg(&path).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(text(&output.stderr).starts_with("error: standard output: "), "{output:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_read_only_directory_is_read_and_left_as_it_was() {
    use std::os::unix::fs::PermissionsExt;

    let dir = temp_dir();
    sharded(dir.path());
    let list = || {
        let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = list();
    for entry in fs::read_dir(dir.path()).unwrap() {
        fs::set_permissions(entry.unwrap().path(), fs::Permissions::from_mode(0o444)).unwrap();
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
    for name in READERS {
        safetensors().arg(name).arg(dir.path()).assert().success().stderr("");
    }
    assert_eq!(list(), before);
    // So that the directory can be removed.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn no_colours_in_a_pipe() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    for name in READERS {
        let output = safetensors().arg(name).arg(&path).output().unwrap();
        assert!(is_plain(text(&output.stdout)), "{output:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_path_that_is_not_utf8() {
    use std::os::unix::ffi::OsStrExt;

    let dir = temp_dir();
    let sound = small_file(dir.path(), "model.safetensors");
    let path = dir.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9.safetensors"));
    fs::rename(sound, &path).unwrap();
    for name in ["inspect", "verify"] {
        let output = safetensors().arg(name).arg(&path).output().unwrap();
        assert!(output.status.success() && text(&output.stdout).contains("caf\u{fffd}.safetensors"), "{output:?}");
    }
}

/// The commands that read, with all that they need; a path stands for `{}`.
#[cfg(unix)]
fn all_readers(path: &std::path::Path) -> Vec<Command> {
    let path = path.to_str().unwrap();
    let lines = [
        "inspect {} --flat",
        "inspect {} --json",
        "verify {} --digests --strict",
        "stats {} --json",
        "diff {} {}",
        "metadata get {}",
        "digest {} --json",
        "extract {} a -o -",
        "convert {} {}/x.safetensors -n",
    ];
    let words = |line: &str| line.split(' ').map(|word| word.replace("{}", path)).collect::<Vec<_>>();
    let with = |line: &&str| {
        let mut command = command();
        command.args(words(line));
        command
    };
    lines.iter().map(with).collect()
}

#[cfg(unix)]
#[test]
fn all_that_only_reads_does_with_a_read_only_directory_and_a_closed_pipe() {
    use std::os::unix::fs::PermissionsExt;

    let dir = temp_dir();
    sharded(dir.path());
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
    for mut command in all_readers(dir.path()) {
        let output = command.output().unwrap();
        // That no digests are recorded is a failure for the strict, which this file is not about.
        let is_verify = command.get_args().next().unwrap() == "verify";
        assert_eq!(output.status.code(), Some(i32::from(is_verify)), "{command:?} {output:?}");
        let closed = run_with_closed(&mut command, true);
        assert_eq!(closed.status.code(), output.status.code(), "{command:?}");
        assert!(is_verify || closed.stderr.is_empty(), "{command:?} {closed:?}");
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
}
