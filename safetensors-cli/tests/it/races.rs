//! Processes that write to a directory at the same time, and readers that open it during that.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use safetensors_core::{Checkpoint, LoadOptions, TensorView, save};

use crate::fixtures::{Dir, names_in, quick, temp_dir};

/// Twelve one-byte tensors.
const TENSORS: u8 = 12;

/// Makes a file with the version in all its tensors.
fn version(dir: &Path, version: u8) -> String {
    let bytes = [version];
    let view = TensorView::from_slice(&[1], &bytes).unwrap();
    let name = format!("{version}.safetensors");
    let tensors = (0..TENSORS).map(|i| (format!("t{i:02}"), view));
    save(dir.join(&name), tensors, &quick()).unwrap();
    name
}

/// The one version that a directory has.
fn read_version(dir: &Path) -> u8 {
    let checkpoint = Checkpoint::open(dir).unwrap();
    assert_eq!(checkpoint.len(), usize::from(TENSORS));
    let bufs = checkpoint.read_all(&LoadOptions::new().threads(1)).unwrap();
    let versions: Vec<_> = bufs.iter().map(|buf| buf.bytes()[0]).collect();
    assert!(versions.iter().all(|&version| version == versions[0]), "a mixture: {versions:?}");
    versions[0]
}

/// `safetensors convert FROM d`, in this many shards, run by another program if one is given.
fn convert(dir: &Path, by: &[String], from: &str, shards: u8) -> Child {
    let size = TENSORS.div_ceil(shards).to_string();
    convert_with(dir, by, from, &["--max-shard-size", &size])
}

/// `safetensors convert FROM d` with these options.
fn convert_with(dir: &Path, by: &[String], from: &str, options: &[&str]) -> Child {
    let mut command = by.to_vec();
    command.extend(
        [env!("CARGO_BIN_EXE_safetensors"), "convert", from, "d", "--force"].map(String::from),
    );
    command.extend(options.iter().map(|&option| option.to_owned()));
    let (program, args) = command.split_first().unwrap();
    let mut command = Command::new(program);
    command.args(args).current_dir(dir).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Waits for a command that must not wait forever.
fn finish(mut child: Child) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return status.success(),
            None if Instant::now() > end => {
                child.kill().unwrap();
                unreachable!("it does not end");
            }
            None => thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// The lock of a directory, as another command holds it.
#[cfg(unix)]
pub(crate) fn lock(dir: &Path) -> fs::File {
    let file = fs::File::create(dir.join(".safetensors.lock")).unwrap();
    file.lock().unwrap();
    file
}

#[cfg(unix)]
#[test]
fn a_save_waits_for_another_or_fails_with_no_wait() {
    let dir = temp_dir();
    let from = version(dir.path(), 1);
    let d = dir.path().join("d");
    fs::create_dir(&d).unwrap();
    let held = lock(&d);
    let args = ["convert", &from, "d", "--no-wait", "--force"];
    let error = dir.run(&args).code(1).get_output().stderr.clone();
    let error = crate::fixtures::text(&error);
    assert!(error.starts_with("error: d: ") && error.lines().count() == 1);
    let mut waiting = convert(dir.path(), &[], &from, 2);
    thread::sleep(Duration::from_millis(300));
    assert!(waiting.try_wait().unwrap().is_none(), "it waits");
    drop(held);
    assert!(finish(waiting));
    dir.run(&args).success();
    assert_eq!((read_version(&d), hidden(&d)), (1, vec![]));
    // One file is renamed in a moment, so there is nothing to choose.
    dir.run(&["convert", &from, "one.safetensors", "--no-wait"]).code(2);
}

/// A save of shards over a single file ends while `verify` looks for the index of the shards.
#[cfg(target_os = "linux")]
#[test]
fn verify_finds_an_index_that_replaces_a_file_at_the_same_time() {
    let dir = temp_dir();
    let from = version(dir.path(), 0);
    let d = dir.path().join("d");
    assert!(finish(convert(dir.path(), &[], &from, 3)));
    let [file, index] =
        ["model.safetensors", "model.safetensors.index.json"].map(|name| d.join(name));
    let saved = dir.path().join("saved.json");
    for slow in [&file, &index] {
        // As it is before the save puts its index in place.
        fs::copy(dir.path().join(&from), &file).unwrap();
        fs::rename(&index, &saved).unwrap();
        let looked_at = ["-P", slow.to_str().unwrap()];
        let Some(mut command) =
            strace(&[&looked_at[..], &["-e", "inject=statx:delay_exit=200000"]].concat())
        else {
            return;
        };
        command.extend([env!("CARGO_BIN_EXE_safetensors"), "verify"].map(String::from));
        let mut verify = Command::new(&command[0]);
        verify.args(&command[1..]).arg(&d).stdout(Stdio::null()).stderr(Stdio::piped());
        let verify = verify.spawn().unwrap();
        thread::sleep(Duration::from_millis(100));
        fs::rename(&saved, &index).unwrap();
        fs::remove_file(&file).unwrap();
        let output = verify.wait_with_output().unwrap();
        let shown = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {shown}", slow.display());
    }
}

fn hidden(dir: &Path) -> Vec<String> {
    names_in(dir).into_iter().filter(|name| name.starts_with('.')).collect()
}

/// Opens a directory again and again while `f` runs, and returns how often.
fn read_during(dir: &Path, f: impl FnOnce()) -> usize {
    let (is_over, opens) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                read_version(dir);
                opens.fetch_add(1, Ordering::Relaxed);
            }
        });
        f();
        is_over.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    opens.into_inner()
}

#[test]
fn concurrent_saves_leave_one_complete_checkpoint() {
    let dir = temp_dir();
    let d = dir.path().join("d");
    let from = [0, 1].map(|i| version(dir.path(), i));
    assert!(finish(convert(dir.path(), &[], &from[0], 3)));
    let opens = read_during(&d, || {
        for shards in [[3, 3], [3, 4], [1, 3], [2, 1]].into_iter().cycle().take(16) {
            let both = [0, 1].map(|i| convert(dir.path(), &[], &from[i], shards[i]));
            assert!(both.into_iter().all(finish));
            read_version(&d);
            assert_eq!(hidden(&d), [""; 0]);
        }
    });
    println!("{opens} opens, 32 saves of two processes at once, no mixture");
    assert!(opens > 100, "{opens}");
}

/// `strace`, which does something to calls of the system by the command that it runs; nothing where
/// there is none.
#[cfg(target_os = "linux")]
pub(crate) fn strace(args: &[&str]) -> Option<Vec<String>> {
    let strace = Command::new("strace").arg("-V").stdout(Stdio::null()).status();
    if !strace.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: this test needs strace, which is not there");
        return None;
    }
    let command = ["strace", "-qq", "-f", "-o", "/dev/null"].iter().chain(args);
    Some(command.map(|arg| (*arg).to_owned()).collect())
}

/// One save stops for a while in the midst of its renaming, each time at another file, and the
/// other one begins and ends, or waits, in this time.
#[cfg(target_os = "linux")]
#[test]
fn a_save_that_is_slow_meets_another() {
    for rename in 1.. {
        let delay = format!("inject=rename:delay_enter=300000:when={rename}");
        let Some(strace) = strace(&["-e", &delay]) else { return };
        for (slow, quick) in [(3, 4), (3, 3)] {
            let dir = temp_dir();
            let d = dir.path().join("d");
            let from = [0, 1].map(|i| version(dir.path(), i));
            assert!(finish(convert(dir.path(), &[], &from[0], 3)));
            read_during(&d, || {
                let slow = convert(dir.path(), &strace, &from[1], slow);
                thread::sleep(Duration::from_millis(100));
                let quick = convert(dir.path(), &[], &from[0], quick);
                assert!(finish(slow) && finish(quick), "renaming {rename}");
            });
            read_version(&d);
            assert_eq!(hidden(&d), [""; 0], "renaming {rename}");
        }
        // Three temporary files, the old shards' index, three shards and an index.
        if rename == 8 {
            break;
        }
    }
}

/// Whatever the directory has is read before it is changed.
#[cfg(target_os = "linux")]
#[test]
fn an_old_checkpoint_that_cannot_be_read_is_not_replaced() {
    let dir = temp_dir();
    let d = dir.path().join("d");
    let from = [0, 1].map(|i| version(dir.path(), i));
    assert!(finish(convert(dir.path(), &[], &from[0], 3)));
    let index = d.join("model.safetensors.index.json");
    for error in ["EACCES", "EMFILE", "EIO"] {
        let inject = format!("inject=openat:error={error}");
        // strace compares the path with the one that is opened: so the command has the whole path.
        let args = ["-P", index.to_str().unwrap(), "-e", &inject];
        let Some(strace) = strace(&args) else { return };
        let mut command = Command::new(&strace[0]);
        command.args(&strace[1..]).arg(env!("CARGO_BIN_EXE_safetensors")).current_dir(dir.path());
        command.args(["convert", &from[1]]).arg(&d).args(["--max-shard-size", "4", "--force"]);
        let output = command.output().unwrap();
        let shown = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}: {shown}");
        assert!(shown.contains("model.safetensors.index.json: "), "{error}: {shown}");
        assert_eq!((read_version(&d), hidden(&d)), (0, vec![]), "{error}");
    }
}
