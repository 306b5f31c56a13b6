//! Signals that come while a command waits, or cannot listen.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::fixtures::{names_in, small_file, temp_dir, undo_ignored_signals};
use crate::races::{lock, strace};

const TERM: i32 = 15;

/// `safetensors convert in.safetensors OUT`, run by another program if one is given.
fn convert(dir: &Path, by: &[String], output: &str) -> Child {
    undo_ignored_signals();
    let command = env!("CARGO_BIN_EXE_safetensors").to_owned();
    let mut words = by.iter().chain([&command]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["convert", "in.safetensors", output]).current_dir(dir);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// The command that a tracer runs: its only child.
fn traced(tracer: &Child) -> u32 {
    let path = format!("/proc/{0}/task/{0}/children", tracer.id());
    fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

fn terminate(pid: u32) {
    let pid = pid.to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
}

/// Whether a process has ended. Its tracer may not have noticed yet.
fn has_ended(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.is_empty() || status.contains("State:\tZ")
}

/// Waits until something is there, a few seconds at most.
fn until(what: &str, is_there: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_there() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_command_that_waits_for_another_can_be_interrupted() {
    for output in ["d", "d/model.safetensors"] {
        let dir = temp_dir();
        small_file(dir.path(), "in.safetensors");
        fs::create_dir(dir.path().join("d")).unwrap();
        let _held = lock(&dir.path().join("d"));
        let mut child = convert(dir.path(), &[], output);
        sleep(Duration::from_millis(300));
        assert!(child.try_wait().unwrap().is_none(), "it waits");
        terminate(child.id());
        assert_eq!(child.wait().unwrap().signal(), Some(TERM), "{output}");
        // The lock is not its own.
        assert_eq!(names_in(&dir.path().join("d")), [".safetensors.lock"], "{output}");
    }
}

#[test]
fn a_signal_while_the_directory_is_locked_leaves_no_lock() {
    let Some(strace) = strace(&["-e", "inject=/^(rename|link):delay_enter=1000000"]) else {
        return;
    };
    let dir = temp_dir();
    small_file(dir.path(), "in.safetensors");
    let mut child = convert(dir.path(), &strace, "out.safetensors");
    until("the lock", || names_in(dir.path()).iter().any(|name| name == ".safetensors.lock"));
    terminate(traced(&child));
    let status = child.wait().unwrap();
    // A save that is being put in place is finished first. The command may then end before it
    // takes notice of the signal.
    let is_saved = dir.path().join("out.safetensors").is_file();
    assert!(status.signal() == Some(TERM) || (status.success() && is_saved), "{status}");
    let left = names_in(dir.path());
    assert!(left.iter().all(|name| !name.starts_with('.')), "{left:?}");
}

/// Without the thread that listens, signals must end the command as they do by default.
#[test]
fn a_command_that_cannot_listen_ends_by_a_signal_nevertheless() {
    let calls = "inject=clone3,clone:error=EAGAIN:when=1";
    let Some(strace) = strace(&["-e", calls]) else { return };
    let dir = temp_dir();
    small_file(dir.path(), "in.safetensors");
    let held = lock(dir.path());
    let mut child = convert(dir.path(), &strace, "out.safetensors");
    sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "it waits");
    let command = traced(&child);
    terminate(command);
    until("the end of the command", || has_ended(command));
    assert_eq!(child.wait().unwrap().signal(), Some(TERM));
    drop(held);
}
