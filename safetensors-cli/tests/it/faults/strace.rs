//! Running a command under `strace`: which system calls it makes, and one of them made to fail.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a run may take, on a machine that does much else.
const MOST: Duration = Duration::from_secs(15);

/// No thread can be started, so one does everything, and each run makes the same calls: they are
/// counted for each thread, and any free thread opens the shards of a checkpoint.
const ONE_THREAD: &str = "inject=?clone,?clone3:error=EAGAIN";

/// One system call of a run: the `nth` of this name, from 1.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    name: String,
    nth: usize,
    /// Whether a file may have changed since the call before it in the list. If not, a process that
    /// is killed here leaves the same files as one that is killed there.
    pub(crate) follows_change: bool,
}

/// Calls that only read.
const READS: [&str; 8] =
    ["statx", "newfstatat", "pread64", "preadv", "read", "readlink", "getdents64", "lseek"];

/// Other calls that change no file's name or content. No shared mapping is written to.
const HARMLESS: [&str; 16] = [
    "access",
    "clone",
    "clone3",
    "close",
    "execve",
    "fadvise64",
    "fcntl",
    "fdatasync",
    "flock",
    "fstat",
    "fstatfs",
    "fsync",
    "getcwd",
    "mmap",
    "poll",
    "statfs",
];

impl Call {
    /// Whether the call only reads.
    pub(crate) fn only_reads(&self) -> bool {
        READS.contains(&self.name.as_str())
    }
}

/// Whether a call may change a file. One in neither list may.
fn may_change(name: &str, arguments: &str) -> bool {
    match name {
        "openat" => ["O_CREAT", "O_TRUNC", "O_TMPFILE"].iter().any(|flag| arguments.contains(flag)),
        _ => !READS.contains(&name) && !HARMLESS.contains(&name),
    }
}

/// The event at a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The call fails with this error and has no effect.
    Error(&'static str),
    /// So does every later call of this name.
    ErrorsFromHere(&'static str),
    /// The process is killed.
    Killed,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Exit(i32),
    Signal(i32),
    /// It had to be stopped after [`MOST`].
    Endless,
}

/// Whether calls can be failed here; if not, why not.
pub(crate) fn is_usable() -> Result<(), String> {
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null"]);
    command.args(["-e", "trace=openat", "-e", "inject=openat:error=EIO", "true"]);
    match command.stdout(Stdio::null()).stderr(Stdio::piped()).output() {
        Err(error) => Err(format!("strace: {error}")),
        // Without any file the loader cannot even start a program.
        Ok(output) if output.status.success() => Err("strace fails no system calls".into()),
        Ok(output) => {
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            if message.contains("ptrace") { Err(message) } else { Ok(()) }
        }
    }
}

/// Returns the calls about files that a command makes from the first with `operand` among its
/// arguments on: earlier calls are the loader's.
pub(crate) fn calls(command: &Command, log: &Path, operand: &str) -> Vec<Call> {
    let status = traced(command, log, &["-e", "trace=%file,%desc,?clone,?clone3"]);
    let succeeds = status.is_some_and(|status| status.success());
    assert!(succeeds, "{command:?} fails undisturbed: {status:?}");
    let log = std::fs::read_to_string(log).unwrap();
    let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
    let (mut calls, mut has_begun, mut follows_change) = (BTreeSet::new(), false, true);
    for line in log.lines() {
        // PID NAME(ARGUMENTS) = RESULT
        let Some((process, rest)) = line.split_once(' ') else { continue };
        let Some((name, arguments)) = rest.trim_start().split_once('(') else { continue };
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            continue;
        }
        let nth = counts.entry((process, name)).or_default();
        *nth += 1;
        has_begun |= name != "execve" && arguments.contains(operand);
        // Memory and terminals are no files here. Nothing looks at the result of a close, before
        // which the standard library checks its descriptors where assertions are on.
        // Calls that start threads fail anyway.
        let is_other =
            matches!(name, "mmap" | "ioctl" | "poll" | "close" | "fcntl" | "clone" | "clone3");
        if has_begun && !is_other {
            calls.insert(Call { name: name.into(), nth: *nth, follows_change });
            follows_change = false;
        }
        follows_change |= may_change(name, arguments);
    }
    calls.into_iter().collect()
}

/// Runs a command with a fault at a call.
pub(crate) fn run(command: &Command, log: &Path, call: &Call, fault: Fault) -> Outcome {
    let Call { name, nth, .. } = call;
    let kind = match fault {
        Fault::Error(error) => format!("error={error}:when={nth}"),
        Fault::ErrorsFromHere(error) => format!("error={error}:when={nth}+"),
        Fault::Killed => format!("signal=SIGKILL:when={nth}"),
    };
    let trace = format!("trace={name},?clone,?clone3");
    let inject = format!("inject={name}:{kind}");
    let mut options = vec!["-e", &trace, "-e", &inject];
    if has_filter() && !matches!(fault, Fault::Killed) {
        options.push("--seccomp-bpf");
    }
    let status = traced(command, log, &options);
    match status.map(|status| (status.code(), status.signal())) {
        Some((Some(code), _)) => Outcome::Exit(code),
        Some((None, Some(signal))) => Outcome::Signal(signal),
        Some((None, None)) => panic!("{command:?} ended without a reason"),
        None => Outcome::Endless,
    }
}

/// Whether `strace` can stop at the traced calls alone, which is quicker than at every call. It
/// injects no signals then.
fn has_filter() -> bool {
    static HAS_FILTER: LazyLock<bool> = LazyLock::new(|| {
        let mut strace = Command::new("strace");
        strace.args([
            "--seccomp-bpf",
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            "trace=openat",
            "true",
        ]);
        strace.output().is_ok_and(|output| output.status.success() && output.stderr.is_empty())
    });
    *HAS_FILTER
}

/// Runs a command under `strace`, which ends as the command does; `None` if it does not end.
fn traced(command: &Command, log: &Path, options: &[&str]) -> Option<ExitStatus> {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o"]).arg(log).args(options).args(["-e", ONE_THREAD]);
    strace.arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => strace.env(key, value),
            None => strace.env_remove(key),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        strace.current_dir(directory);
    }
    strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = strace.process_group(0).spawn().unwrap();
    let begun = Instant::now();
    loop {
        if let Some(status) = running.try_wait().unwrap() {
            return Some(status);
        }
        if begun.elapsed() > MOST {
            // The command too, which is in the same group.
            let group = format!("-{}", running.id());
            Command::new("kill").args(["-KILL", "--", &group]).status().unwrap();
            running.wait().unwrap();
            return None;
        }
        sleep(Duration::from_millis(1));
    }
}
