//! How every command deals with closed pipes, a full disk and read-only directories.

use std::process::{Command, Output, Stdio};

use crate::fixtures::*;

/// So many tensors that their table does not fit a pipe (64 KiB) or a buffer.
fn many_tensors(dir: &Path) -> PathBuf {
    let path = dir.at("many.safetensors");
    let tensor = array(&[1], &[1_u8]);
    let tensors = (0..5_000).map(|i| (format!("model.l{i}.mlp.gate_proj.weight"), tensor));
    save(&path, tensors, &quick()).unwrap();
    path
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_safetensors"));
    command.env_remove("CLICOLOR_FORCE");
    command
}

/// The commands that only read, for a path and one of its tensors.
fn readers(path: &Path, tensor: &str) -> Vec<Command> {
    let path = path.to_str().unwrap();
    let lines = [
        "inspect PATH",
        "inspect PATH --flat",
        "inspect PATH --json",
        "verify PATH",
        "stats PATH",
        "stats PATH --json",
        "diff PATH PATH",
        "convert PATH PATH.safetensors -n",
        "metadata get PATH",
        "digest PATH",
        "digest PATH --json",
        "extract PATH TENSOR -o -",
        "map PATH -o -",
    ];
    let words = |line: &str| -> Vec<String> {
        line.split(' ').map(|word| word.replace("PATH", path).replace("TENSOR", tensor)).collect()
    };
    let with = |line: &str| {
        let mut command = command();
        command.args(words(line));
        command
    };
    lines.into_iter().map(with).collect()
}

/// Runs a command with a pipe as standard output or error that is not read.
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
    for mut command in readers(&path, "model.l7.mlp.gate_proj.weight") {
        let output = run_with_closed(&mut command, true);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{command:?}");
    }
    for args in [&["--help"][..], &["--version"], &["inspect", "--help"]] {
        let output = run_with_closed(command().args(args), true);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn verify_into_a_closed_pipe_still_sets_its_exit_code() {
    let dir = temp_dir();
    let good = small_file(dir.path(), "good.safetensors");
    let bad = dir.at("bad.safetensors");
    fs::write(&bad, b"bad").unwrap();
    let output = run_with_closed(command().arg("verify").args([&good, &bad]), true);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).starts_with("error: ") && !text(&output.stderr).contains("ipe"),
        "{output:?}"
    );
}

#[test]
fn a_closed_standard_error_is_no_panic() {
    let dir = temp_dir();
    let bad = dir.at("bad.safetensors");
    fs::write(&bad, b"bad").unwrap();
    for mut command in readers(&bad, "w") {
        let output = run_with_closed(&mut command, false);
        let code = if is_diff(&command) { 2 } else { 1 };
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(code), ""), "{command:?}");
    }
}

/// Trouble has a separate code there.
#[cfg(unix)]
fn is_diff(command: &std::process::Command) -> bool {
    command.get_args().any(|argument| argument == "diff")
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    for mut command in readers(&path, "mask") {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = command.stdout(full).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(if is_diff(&command) { 2 } else { 1 }),
            "{command:?}"
        );
        let said = text(&output.stderr);
        assert!(said.starts_with("error: standard output: "), "{output:?}");
        assert_eq!(said.matches("standard output").count(), 1, "{output:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_path_that_is_not_utf8() {
    use std::os::unix::ffi::OsStrExt;

    let dir = temp_dir();
    let sound = small_file(dir.path(), "model.safetensors");
    let path = dir.at(std::ffi::OsStr::from_bytes(b"caf\xe9.safetensors"));
    fs::rename(sound, &path).unwrap();
    for name in ["inspect", "verify"] {
        let output = safetensors().arg(name).arg(&path).output().unwrap();
        assert!(
            output.status.success() && text(&output.stdout).contains("caf\u{fffd}.safetensors"),
            "{output:?}"
        );
    }
}

#[cfg(unix)]
#[test]
fn all_that_only_reads_does_with_a_read_only_directory() {
    use std::os::unix::fs::PermissionsExt;

    let dir = temp_dir();
    sharded(dir.path());
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
    for mut command in readers(dir.path(), "a") {
        let output = command.output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{command:?} {output:?}");
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
}
