//! Commands that are killed, interrupted, or run out of space: the output is as it was, and nothing
//! is left behind.
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::convert::model;
use crate::fixtures::*;

/// A sparse file, which is quick to make but takes a while to convert.
fn large(dir: &Path) {
    write_hole(&dir.at("large.safetensors"), [("w".into(), Dtype::F32, vec![32 << 20])]);
}

/// Ranks; each gets half of the large file.
const FOR_RANKS: &str = "out/model --ranks 2 --rule *=split:0";

/// Converts the large file, and returns when the output is being written.
fn begin(mut command: Command, dir: &Path, output: &str) -> Child {
    undo_ignored_signals();
    let mut child = command
        .current_dir(dir)
        .args(["convert", "large.safetensors", "--dtype", "f64", "--force"])
        .args(output.split(' '))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !has_begun(&child, dir) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be interrupted");
        sleep(Duration::from_millis(1));
    }
    child
}

/// Whether there is a hidden file or directory, or the command has a file open that has no name.
fn has_begun(child: &Child, dir: &Path) -> bool {
    let hidden = |name: &String| name.starts_with('.') && name.ends_with(".tmp");
    let in_output =
        || dir.at("out/model").is_dir() && names_in(&dir.at("out/model")).iter().any(hidden);
    let open = fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten();
    let mut open = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    names_in(dir).iter().any(hidden)
        || in_output()
        || open.any(|path| path.starts_with(dir) && path.to_string_lossy().ends_with("(deleted)"))
}

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_safetensors"))
}

fn send(signal: &str, child: &Child) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
}

#[test]
fn a_command_that_is_interrupted_clears_up_and_ends_by_the_signal() {
    for (signal, number) in [("-INT", 2), ("-TERM", 15), ("-HUP", 1)] {
        for output in ["out.safetensors", "out/model", "out.npz", FOR_RANKS] {
            let dir = temp_dir_on_disk();
            large(dir.path());
            let mut child = begin(command(), dir.path(), output);
            send(signal, &child);
            // A shell gives 128 + number.
            assert_eq!(child.wait().unwrap().signal(), Some(number), "{signal} {output}");
            assert_eq!(names_in(dir.path()), ["large.safetensors"], "{signal} {output}");
        }
    }
}

/// As `cargo test &` in a script has it.
#[cfg(target_os = "linux")]
#[test]
fn tests_of_signals_pass_where_signals_are_ignored() {
    let script = "trap '' INT TERM HUP; exec \"$@\"";
    let mut tests = Command::new("sh");
    tests.args(["-c", script, "sh"]).arg(std::env::current_exe().unwrap()).args([
        "--exact",
        "interrupted::a_command_that_is_interrupted_clears_up_and_ends_by_the_signal",
        "browse::the_terminal_is_restored_after_every_end",
        "signals::a_command_that_waits_for_another_can_be_interrupted",
    ]);
    let with_addresses = cfg!(feature = "remote");
    tests.args(
        with_addresses.then_some("addresses::interrupted::an_interrupted_upload_leaves_nothing"),
    );
    let output = tests.output().unwrap();
    let passed = if with_addresses { "4 passed" } else { "3 passed" };
    assert!(text(&output.stdout).contains(passed), "{}", text(&output.stdout));
}

/// As `nohup` has it.
#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let dir = temp_dir_on_disk();
    large(dir.path());
    let mut shell = Command::new("sh");
    let script = format!("trap '' HUP; exec '{}' \"$@\"", env!("CARGO_BIN_EXE_safetensors"));
    shell.args(["-c", &script, "sh"]);
    let mut child = begin(shell, dir.path(), "out.safetensors");
    send("-HUP", &child);
    assert!(child.wait().unwrap().success());
    assert_eq!(names_in(dir.path()), ["large.safetensors", "out.safetensors"]);
}

/// A limit for the size of files, however the shell handles its signal, also simulates a full disk.
#[test]
fn no_space_leaves_the_output_as_it_was_and_no_litter() {
    let dir = temp_dir_on_disk();
    model(dir.path(), "a.safetensors");
    let weight = vec![0.5_f32; 100_000];
    let tensors = [("w", array(&[100_000], &weight))];
    save(dir.at("large.safetensors"), tensors, &quick()).unwrap();
    let limited = |trap: &str, args: &str| {
        let command = env!("CARGO_BIN_EXE_safetensors");
        let script = format!("{trap} ulimit -f 100; exec '{command}' {args}");
        Command::new("bash").current_dir(dir.path()).args(["-c", &script]).output().unwrap()
    };
    for trap in ["", "trap '' XFSZ;"] {
        for (output, more, is_new) in [
            ("a.safetensors", "", false),
            ("new.safetensors", "", true),
            ("x.npz", "", true),
            ("new", "", true),
            ("new", "--ranks 2 --rule '*=split:0'", true),
        ] {
            let before = names_in(dir.path());
            let arguments = format!("convert large.safetensors {output} --force {more}");
            let result = limited(trap, &arguments);
            assert_eq!(result.status.code(), Some(1), "{result:?}");
            let said = text(&result.stderr);
            assert!(said.starts_with(&format!("error: {output}")), "{result:?}");
            assert!(said.contains(": File too large (os error 27); 400."), "{result:?}");
            let remedy = " kB are needed there: raise the limit of file sizes (`ulimit -f`), or \
                          choose another OUT\n";
            assert!(said.ends_with(remedy), "{result:?}");
            assert_eq!(names_in(dir.path()), before);
            assert_eq!(dir.at(output).exists(), !is_new);
        }
        let result = limited(trap, "extract large.safetensors w --raw -o - > out");
        assert_eq!(result.status.code(), Some(1), "{result:?}");
        fs::remove_file(dir.at("out")).unwrap();
    }
    assert_eq!(dir.open("a.safetensors").len(), 7);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_read_only_output_is_replaced_only_with_force() {
    let dir = temp_dir_on_disk();
    small_file(dir.path(), "in.safetensors");
    for (args, name) in [
        (&["convert", "in.safetensors", "out.safetensors"][..], "out.safetensors"),
        (&["convert", "in.safetensors", "out.npz"], "out.npz"),
        (&["convert", "in.safetensors", "out"], "out/model.safetensors"),
        (&["extract", "in.safetensors", "mask", "-o", "out.npy"], "out.npy"),
        (&["map", "in.safetensors", "-o", "out.html"], "out.html"),
    ] {
        let path = dir.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "old").unwrap();
        set_mode(&path, 0o444);
        let told = starts_with(format!("error: {name}: the file is read-only"))
            .and(ends_with("; --force replaces it\n"));
        dir.run(args).code(1).stderr(told);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        dir.run(&[args, &["--force"]].concat()).success();
        assert!(fs::read(&path).unwrap() != b"old" && mode(&path) == 0o444, "{name}");
        set_mode(&path, 0o600);
        dir.run(&[args, &["--force"]].concat()).success();
        assert_eq!(mode(&path), 0o600, "{name}");
    }
}

#[test]
fn a_read_only_file_is_changed_only_with_force() {
    let dir = temp_dir_on_disk();
    fs::create_dir_all(dir.at("w/m")).unwrap();
    let path = small_file(&dir.at("w"), "in.safetensors");
    sharded(&dir.at("w/m"));
    let shard = dir.at("w/m/model-00002-of-00002.safetensors");
    for path in [&path, &shard] {
        set_mode(path, 0o444);
    }
    // Permissions mean nothing to an administrator.
    let _ = Command::new("chown").args(["-R", "65534"]).arg(dir.at("w")).status();
    let told = ends_with("; --force replaces it\n");
    let user = |args: &[&str]| {
        let mut command = as_a_user(dir.path());
        command.args(args).output().unwrap().status.success()
    };
    for args in [
        &["metadata", "set", "w/in.safetensors", "a=b"][..],
        &["metadata", "set", "w/in.safetensors", "a=b", "-n"],
        &["metadata", "clear", "w/m"],
        &["digest", "--record", "w/in.safetensors"],
    ] {
        dir.run(args).code(1).stderr(told.clone());
        assert!(user(&[args, &["--force"]].concat()), "{args:?}");
        assert_eq!([mode(&path), mode(&shard)], [0o444; 2]);
    }
    // It is not written to, also in place.
    let before = fs::read(&path).unwrap();
    fs::hard_link(&path, dir.at("w/name.safetensors")).unwrap();
    assert!(user(&["metadata", "set", "w/in.safetensors", "a=c", "--force", "--in-place"]));
    assert_eq!(fs::read(dir.at("w/name.safetensors")).unwrap(), before);
    assert_ne!(fs::read(&path).unwrap(), before);
    set_mode(&path, 0o600);
    dir.run("metadata set w/in.safetensors a=b").success();
    assert_eq!(mode(&path), 0o600);
}
