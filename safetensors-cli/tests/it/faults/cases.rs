//! The cases: a command, the checkpoint that it changes, and its state before and after.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use regex::bytes::Regex;
use safetensors_core::edit::{is_torn, restore_header};
use safetensors_core::{Checkpoint, LoadOptions, SaveOptions, TensorView, save};
use tempfile::TempDir;

use super::strace::{self, Call, Fault, Outcome};
use crate::fixtures::{self, Words, copy_all};

/// Where the new tensors come from, and the checkpoint that is changed, in each run's directory.
const INPUT: &str = "input.safetensors";

/// A checkpoint, as it opens: each tensor's name with its shape and bytes, and the metadata. Of
/// anything else, each file's name with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)>,
    metadata: BTreeMap<String, String>,
}

/// A command that changes a checkpoint.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    line: &'static str,
    /// The file or directory that opens as the checkpoint.
    target: &'static str,
    /// A directory as it is before each run.
    template: TempDir,
    pub(crate) old: Contents,
    pub(crate) new: Contents,
    /// Whether the target opens as a checkpoint. A signature and a delta do not, and are put in
    /// place as any file and any directory is.
    pub(crate) is_checkpoint: bool,
    /// Whether an interruption may leave a file that readers refuse until it is restored.
    pub(crate) may_tear: bool,
    /// Whether the command does nothing where nothing is new. Then the lock of a process that was
    /// killed stays.
    pub(crate) follows: bool,
    /// Whether only every fourth is tested of the calls that only read and follow no change,
    /// because there are many, and they leave the state of the calls before them.
    is_long: bool,
}

/// How a run ended, and the directory that it ran in.
pub(crate) struct Run {
    pub(crate) outcome: Outcome,
    pub(crate) directory: TempDir,
}

/// One file, and a directory.
pub(crate) const FILE: &str = "checkpoint/model.safetensors";
pub(crate) const FOLDER: &str = "checkpoint";

impl Case {
    /// Makes a case of a command with its arguments, and of a function that prepares the directory,
    /// which already has new tensors.
    pub(crate) fn new(
        name: &'static str,
        line: &'static str,
        target: &'static str,
        make_old: impl FnOnce(&Path),
    ) -> Self {
        let template = temp_dir();
        fs::create_dir(template.path().join(FOLDER)).unwrap();
        let values: Vec<f32> = (0..6).map(|i| i as f32 + 0.5).collect();
        let tensors = [("x", 3), ("y", 2), ("new", 1)].map(|(name, len)| (name, [len]));
        let views = tensors.iter().map(|(name, shape)| {
            (*name, TensorView::from_slice(shape, &values[..shape[0]]).unwrap())
        });
        save(template.path().join(INPUT), views, &SaveOptions::new()).unwrap();
        make_old(template.path());

        let nothing = || Contents { tensors: BTreeMap::new(), metadata: BTreeMap::new() };
        let mut case = Self {
            name,
            line,
            target,
            template,
            old: nothing(),
            new: nothing(),
            is_checkpoint: !line.starts_with("sign") && !line.starts_with("delta make"),
            may_tear: name == "an edit in place",
            follows: line.starts_with("delta follow"),
            is_long: line.starts_with("delta make") || line.starts_with("delta follow"),
        };
        let directory = case.directory();
        case.old = case.found(directory.path()).unwrap();
        case.run_again(directory.path()).unwrap();
        case.new = case.found(directory.path()).unwrap();
        assert_ne!(case.old, case.new);
        case
    }

    /// The system calls of an undisturbed run that are disturbed.
    pub(crate) fn calls(&self) -> Vec<Call> {
        let mut calls = self.all_calls();
        if self.is_long && !crate::faults::tries_all() {
            let mut reads = 0..;
            let may_skip = |call: &Call| call.only_reads() && !call.follows_change;
            calls.retain(|call| !may_skip(call) || reads.next().is_some_and(|i| i % 4 == 0));
        }
        calls
    }

    fn all_calls(&self) -> Vec<Call> {
        let directory = self.directory();
        let log = directory.path().join("log");
        strace::calls(&self.command(directory.path()), &log, self.target)
    }

    /// Runs the command on the old checkpoint with a fault.
    pub(crate) fn run_with(&self, call: &Call, fault: Fault) -> Run {
        let directory = self.directory();
        let command = self.command(directory.path());
        let outcome = strace::run(&command, Path::new("/dev/null"), call, fault);
        Run { outcome, directory }
    }

    /// Runs the command undisturbed on the directory as it is.
    pub(crate) fn run_again(&self, directory: &Path) -> Result<(), String> {
        let output = self.command(directory).output().unwrap();
        let message = || String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(message()) }
    }

    /// The checkpoint that is there now.
    pub(crate) fn found(&self, directory: &Path) -> Result<Contents, String> {
        if self.line.starts_with("delta make") {
            return delta(&directory.join(self.target)).map_err(|error| error.to_string());
        }
        if !self.is_checkpoint {
            // Equal input and key give equal bytes.
            return files(&directory.join(self.target)).map_err(|error| error.to_string());
        }
        let open = || -> safetensors_core::Result<Contents> {
            let checkpoint = Checkpoint::open(directory.join(self.target))?;
            let read = checkpoint.read_all(&LoadOptions::new().threads(1))?;
            let tensors = checkpoint.tensors().zip(read).map(|(tensor, read)| {
                (tensor.name().to_owned(), (read.shape().to_vec(), read.bytes().to_vec()))
            });
            let mut metadata = checkpoint.metadata().clone();
            // Each save for ranks has a unique name.
            metadata.remove("safetensors_bridge.attempt");
            Ok(Contents { tensors: tensors.collect(), metadata })
        };
        open().map_err(|error| error.to_string())
    }

    /// Whether the checkpoint, if it is one file, can be read as the Python library does it: the
    /// length first, then the header, once.
    pub(crate) fn is_readable(&self, directory: &Path) -> Result<(), String> {
        let path = directory.join(self.target);
        if !path.is_file() || !self.is_checkpoint {
            return Ok(());
        }
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let (length, rest) = bytes.split_first_chunk().ok_or("no length")?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|e| e.to_string())?;
        let (header, data) = rest.split_at_checked(length).ok_or("header too large")?;
        let header: BTreeMap<String, serde_json::Value> =
            serde_json::from_slice(header).map_err(|error| error.to_string())?;
        let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
        let end = tensors.filter_map(|(_, tensor)| tensor["data_offsets"][1].as_u64()).max();
        if end == Some(data.len() as u64) { Ok(()) } else { Err("incomplete metadata".into()) }
    }

    /// Whether `verify` finds the checkpoint sound.
    pub(crate) fn verifies(&self, directory: &Path) -> Result<(), String> {
        let output = safetensors(directory).args(["verify", self.target]).output().unwrap();
        let message = || format!("verify: {}", String::from_utf8_lossy(&output.stderr));
        if output.status.success() { Ok(()) } else { Err(message()) }
    }

    /// Puts a header back that a change in place was interrupted in. Says whether it did.
    pub(crate) fn restore(&self, directory: &Path) -> Result<bool, String> {
        let path = directory.join(self.target);
        let is_torn = path.is_file() && is_torn(&path).map_err(|error| error.to_string())?;
        if is_torn { restore_header(&path).map_err(|error| error.to_string()) } else { Ok(false) }
    }

    /// Returns the names of hidden files next to the checkpoint.
    pub(crate) fn hidden_files(&self, directory: &Path) -> Vec<String> {
        let entries = [directory.join(FOLDER), directory.to_owned()];
        let entries = entries.iter().flat_map(|directory| fs::read_dir(directory).unwrap());
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let stays = [".safetensors-follow.json", ".safetensors.lock"];
        let may_stay = |name: &String| self.follows && stays.contains(&&**name);
        names.filter(|name| name.starts_with('.') && !may_stay(name)).collect()
    }

    fn command(&self, directory: &Path) -> Command {
        let mut command = safetensors(directory);
        command.args(self.line.words());
        command
    }

    /// A new directory that is as the template.
    fn directory(&self) -> TempDir {
        let directory = temp_dir();
        copy_all(self.template.path(), directory.path());
        directory
    }
}

/// Every file and directory of a run, with its bytes.
pub(crate) type State = Vec<(String, Vec<u8>)>;

/// Returns the state that a run has left. The names of temporary files, of replaced files and of
/// saves for ranks are random, and made equal here.
pub(crate) fn state(root: &Path) -> State {
    // Compiled once: without optimisation, that takes as long as running the command.
    static HIDDEN: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?-u)(^|/)\.[^/]*\.tmp").unwrap());
    static CHANCE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?-u)(convert-\d+|\.replaced)-\d+").unwrap());
    let plain = |bytes: &[u8]| CHANCE.replace_all(bytes, &b"chance"[..]).into_owned();
    let (mut all, mut below) = (Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = below.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = plain(path.strip_prefix(root).unwrap().as_os_str().as_encoded_bytes());
            let name = HIDDEN.replace_all(&name, &b"$1.tmp"[..]).into_owned();
            let bytes = if path.is_dir() { Vec::new() } else { plain(&fs::read(&path).unwrap()) };
            all.push((String::from_utf8(name).unwrap(), bytes));
            if path.is_dir() {
                below.push(path);
            }
        }
    }
    all.sort();
    all
}

/// Reads a file, or the files of a directory that are not hidden.
fn files(path: &Path) -> io::Result<Contents> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        files = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    }
    let named = files.into_iter().filter_map(|file| {
        let name = file.file_name()?.to_string_lossy().into_owned();
        let is_hidden = name.starts_with('.');
        (!is_hidden).then(|| Ok((name, (Vec::new(), fs::read(file)?))))
    });
    Ok(Contents { tensors: named.collect::<io::Result<_>>()?, metadata: BTreeMap::new() })
}

/// A new directory: if everything is tried, on the disk, where space is also reserved.
fn temp_dir() -> TempDir {
    if crate::faults::tries_all() { fixtures::temp_dir_on_disk() } else { fixtures::temp_dir() }
}

/// The command. Under `strace` it has one thread.
fn safetensors(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_safetensors"));
    command.current_dir(directory).env("SAFETENSORS_THREADS", "1").env_remove("CLICOLOR_FORCE");
    // Where cargo has libraries searched for in more places, starting takes many more calls.
    command.env_remove("LD_LIBRARY_PATH");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Runs a command that must succeed.
pub(crate) fn run(directory: &Path, line: &str) {
    let status = safetensors(directory).args(line.words()).status().unwrap();
    assert!(status.success(), "{line}");
}

/// Turns a bit of the last byte of a file.
pub(crate) fn change_last_byte(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

/// Makes a checkpoint `base`, another one `new.safetensors`, and the delta from one to the other.
pub(crate) fn make_delta(directory: &Path) {
    fs::create_dir(directory.join("base")).unwrap();
    run(directory, "convert input.safetensors base/model.safetensors");
    fs::write(directory.join("base/config.json"), "{}").unwrap();
    let values = [9.0_f32, 1.5, 2.5, 3.5, 4.5, -1.0];
    let shapes = [("x", [3], 0), ("y", [2], 3), ("new", [1], 5)];
    let views = shapes.iter().map(|(name, shape, start)| {
        let values = &values[*start..start + shape[0]];
        (*name, TensorView::from_slice(shape, values).unwrap())
    });
    let metadata = Checkpoint::open(directory.join("base")).unwrap().metadata().clone();
    let options = SaveOptions::new().metadata(metadata);
    save(directory.join("new.safetensors"), views, &options).unwrap();
    run(directory, "delta make base new.safetensors delta");
}

/// Makes a file of three tensors; two have names that the new one has too.
pub(crate) fn old_file(path: &Path, options: &SaveOptions) {
    let values = [9.0_f32, 8.0, 7.0];
    let tensors = [("x", [3]), ("y", [2]), ("old", [1])];
    let views = tensors
        .iter()
        .map(|(name, shape)| (*name, TensorView::from_slice(shape, &values[..shape[0]]).unwrap()));
    let options = options.clone().metadata([("format", "pt"), ("title", "old")]);
    save(path, views, &options).unwrap();
}

/// Converts such a file to the folder.
pub(crate) fn old_folder(directory: &Path, options: &str) {
    old_file(&directory.join("old.safetensors"), &SaveOptions::new());
    run(directory, &format!("convert old.safetensors {FOLDER} {options}"));
    fs::remove_file(directory.join("old.safetensors")).unwrap();
}

/// A delta as it opens: its digests, and each difference.
fn delta(path: &Path) -> safetensors_core::Result<Contents> {
    let delta = safetensors_delta::Delta::open(path)?;
    let mut tensors = BTreeMap::new();
    for tensor in delta.tensors() {
        let read = tensor.read()?;
        tensors.insert(tensor.name().into(), (read.shape().to_vec(), read.bytes().to_vec()));
    }
    let digests = [("base", delta.base_digest()), ("result", delta.result_digest())];
    let digests = digests.map(|(of, digest)| (of.into(), digest.unwrap_or_default()));
    Ok(Contents { tensors, metadata: digests.into() })
}
