//! Code that all tests share: the command, and checkpoints to run it on.

pub(crate) use std::fs;
pub(crate) use std::path::{Path, PathBuf};

pub(crate) use assert_cmd::Command;
pub(crate) use assert_cmd::assert::Assert;
pub(crate) use predicates::prelude::*;
pub(crate) use predicates::str::{contains, ends_with, starts_with};
use safetensors_core::element::Element;
use safetensors_core::save::Order;
pub(crate) use safetensors_core::{Checkpoint, Dtype, SaveOptions, TensorView, save};
pub(crate) use safetensors_testing::files::directory_in_memory as temp_dir;
pub(crate) use safetensors_testing::files::{copy_all, names_in, write_hole};
pub(crate) use tempfile::TempDir;

/// The command under test, without the environment's settings of colours. Its tables are those for
/// people, at any width.
pub(crate) fn safetensors() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_safetensors"));
    command
        .env("COLUMNS", "100000")
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR_FORCE")
        .env_remove("CLICOLOR")
        .env("TERM", "xterm");
    command
}

/// Makes signals end the commands that begin from here on, also where these tests run with signals
/// ignored: a job in the background of a script ignores SIGINT, and one under `nohup` SIGHUP. A
/// child inherits ignored signals; a handler is not inherited, and the default replaces it.
#[cfg(unix)]
pub(crate) fn undo_ignored_signals() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    for signal in [1, 2, 15] {
        // Only Linux shows which signals are ignored. Elsewhere Ctrl-C must still end the tests.
        if ignored.unwrap_or_default() & 1 << (signal - 1) != 0 {
            signal_hook::flag::register(signal, std::sync::Arc::default()).unwrap();
        }
    }
}

/// A directory for tests of what only a disk does: it reserves room, and takes its time.
pub(crate) fn temp_dir_on_disk() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A file of two tensors and one metadata entry: 8 parameters, 40 bytes.
pub(crate) fn small_file(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    let tensors = [
        (
            "embed.weight",
            TensorView::from_slice(&[2, 3], &[0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap(),
        ),
        ("mask", TensorView::from_slice(&[2], &[1_i64, 0]).unwrap()),
    ];
    // Otherwise the tensor with the larger alignment would come first.
    let options = quick().order(Order::Given).metadata([("format", "pt")]);
    save(&path, tensors, &options).unwrap();
    path
}

/// Two shards with an index: an F32 tensor of 2 elements and a U16 tensor of 3.
pub(crate) fn sharded(dir: &Path) -> PathBuf {
    let options = quick().metadata([("format", "pt")]);
    let a = TensorView::from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    let b = TensorView::from_slice(&[3, 1], &[1_u16, 2, 3]).unwrap();
    save(dir.join("model-00001-of-00002.safetensors"), [("a", a)], &options).unwrap();
    save(dir.join("model-00002-of-00002.safetensors"), [("b", b)], &options).unwrap();
    let index = dir.join("model.safetensors.index.json");
    let map = r#"{"metadata": {"total_size": 14}, "weight_map": {
        "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    fs::write(&index, map).unwrap();
    index
}

/// A file of this header and this many bytes of data, even if the format does not allow them.
pub(crate) fn raw_file(path: &Path, header: &str, data: usize) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    fs::write(path, bytes).unwrap();
}

/// Makes a sparse file with the tensors of all-MiniLM-L6-v2, of 90.9 MB.
#[cfg(unix)]
pub(crate) fn minilm(dir: &Path) -> PathBuf {
    let mut tensors: Vec<(String, &str, Vec<u64>)> = Vec::new();
    let mut f32 = |name: String, shape: &[u64]| tensors.push((name, "F32", shape.to_vec()));
    let mut pair = |name: String, shape: &[u64]| {
        f32(format!("{name}.bias"), &shape[..1]);
        f32(format!("{name}.weight"), shape);
    };
    pair("embeddings.LayerNorm".into(), &[384]);
    for i in 0..6 {
        let layer = format!("encoder.layer.{i}");
        pair(format!("{layer}.attention.output.LayerNorm"), &[384]);
        pair(format!("{layer}.attention.output.dense"), &[384, 384]);
        for part in ["key", "query", "value"] {
            pair(format!("{layer}.attention.self.{part}"), &[384, 384]);
        }
        pair(format!("{layer}.intermediate.dense"), &[1536, 384]);
        pair(format!("{layer}.output.LayerNorm"), &[384]);
        pair(format!("{layer}.output.dense"), &[384, 1536]);
    }
    pair("pooler.dense".into(), &[384, 384]);
    for (kind, rows) in [("position", 512), ("token_type", 2), ("word", 30522)] {
        f32(format!("embeddings.{kind}_embeddings.weight"), &[rows, 384]);
    }
    tensors.push(("embeddings.position_ids".into(), "I64", vec![1, 512]));
    let mut header = r#"{"__metadata__":{"format":"pt"}"#.to_owned();
    let mut end = 0;
    for (name, dtype, shape) in &tensors {
        let begin = end;
        end += shape.iter().product::<u64>() * if *dtype == "I64" { 8 } else { 4 };
        header += &format!(
            r#","{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
        );
    }
    let path = dir.join("minilm.safetensors");
    header.push('}');
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    raw_file(&path, &header, 0);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() + end).unwrap();
    path
}

/// Makes a valid file with names and metadata that try to break a terminal.
pub(crate) fn hostile_file(dir: &Path) -> PathBuf {
    let path = dir.join("hostile.safetensors");
    let header = concat!(
        r#"{"__metadata__":{"k\u001b]0;owned\u0007":"line one\nline two\u202e"},"#,
        r#""\u001b[2Jred\u202e":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"#,
        r#""two\nlines":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"#,
        r#""":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}"#
    );
    raw_file(&path, header, 3);
    path
}

/// The output of a command as text.
pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A text with paths as this system writes them: on Windows with `\` between their names.
pub(crate) fn native(text: &str) -> String {
    text.replace('/', std::path::MAIN_SEPARATOR_STR)
}

/// Whether part of a text matches this regular expression.
pub(crate) fn matches(pattern: &str) -> impl predicates::Predicate<str> + use<> {
    let pattern = regex::Regex::new(pattern).unwrap();
    predicates::prelude::predicate::function(move |text: &str| pattern.is_match(text))
}

/// Whether a text has only printable characters and line ends.
pub(crate) fn is_plain(text: &str) -> bool {
    text.chars().all(|c| c == '\n' || !(c.is_control() || "\u{202e}\u{2066}\u{200b}".contains(c)))
}

/// A command run by a user whom permissions restrict: `nobody` if the tests run as root.
#[cfg(unix)]
pub(crate) fn as_a_user(dir: &Path) -> std::process::Command {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;

    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_safetensors"));
    command.current_dir(dir);
    if fs::metadata(dir).unwrap().uid() == 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
        command.uid(65534);
    }
    command
}

/// Arguments: words, or a line of them as a shell takes it.
pub(crate) trait Words {
    fn words(&self) -> Vec<String>;
}

impl Words for &str {
    fn words(&self) -> Vec<String> {
        shlex::split(self).unwrap()
    }
}

impl Words for &String {
    fn words(&self) -> Vec<String> {
        self.as_str().words()
    }
}

impl Words for &[&str] {
    fn words(&self) -> Vec<String> {
        self.iter().map(|&word| word.to_owned()).collect()
    }
}

impl<const N: usize> Words for &[&str; N] {
    fn words(&self) -> Vec<String> {
        self.as_slice().words()
    }
}

impl Words for &Vec<&str> {
    fn words(&self) -> Vec<String> {
        self.as_slice().words()
    }
}

/// Runs a command with a path between its arguments.
pub(crate) fn run(args: impl Words, path: &Path, rest: impl Words) -> Assert {
    let mut command = safetensors();
    command.args(args.words()).arg(path).args(rest.words());
    command.assert()
}

/// Runs a command in a directory, so that its output has no temporary path.
pub(crate) fn run_in(dir: &Path, args: impl Words) -> Assert {
    let mut command = safetensors();
    command.current_dir(dir).args(args.words());
    command.assert()
}

/// A directory with the files of a test.
pub(crate) trait Dir: AsRef<Path> {
    /// Returns the path of a file in it.
    fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.as_ref().join(name)
    }

    /// Runs a command in it.
    fn run(&self, args: impl Words) -> Assert {
        run_in(self.as_ref(), args)
    }

    /// Runs `safetensors convert` in it.
    fn convert(&self, args: impl Words) -> Assert {
        let mut command = safetensors();
        command.current_dir(self).arg("convert").args(args.words()).assert()
    }

    fn open(&self, name: impl AsRef<Path>) -> Checkpoint {
        Checkpoint::open(self.at(name)).unwrap()
    }

    fn read(&self, name: impl AsRef<Path>) -> Vec<u8> {
        fs::read(self.at(name)).unwrap()
    }

    fn text(&self, name: impl AsRef<Path>) -> String {
        fs::read_to_string(self.at(name)).unwrap()
    }

    fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        fs::write(self.at(name), content).unwrap();
    }
}

impl<T: AsRef<Path> + ?Sized> Dir for T {}

/// Returns the exit code of a failing command: for `diff` it is not the code of a difference.
pub(crate) fn trouble(args: &[&str]) -> i32 {
    if args[0] == "diff" { 2 } else { 1 }
}

/// A tensor of these values.
pub(crate) fn array<'a, T: Element>(shape: &'a [usize], values: &'a [T]) -> TensorView<'a> {
    TensorView::from_slice(shape, values).unwrap()
}

/// Runs a command in a directory, with a full disk as standard output.
#[cfg(target_os = "linux")]
pub(crate) fn run_full(dir: &Path, args: impl Words) -> Assert {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_safetensors"));
    command.current_dir(dir).args(args.words()).stderr(std::process::Stdio::piped());
    command.stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    Assert::new(command.spawn().unwrap().wait_with_output().unwrap())
}

/// The end of a command, and its output.
pub(crate) trait Ended: Sized {
    fn assert(self) -> Assert;

    /// It has failed with this code, and said this.
    fn fails(self, code: i32, says: impl Into<String>) -> Assert {
        self.assert().code(code).stderr(contains(says))
    }

    /// It has succeeded, and shown this.
    fn shows(self, shown: impl Into<String>) -> Assert {
        self.assert().success().stdout(contains(shown))
    }

    /// It has succeeded, and warned of this.
    fn warns(self, warning: impl Into<String>) -> Assert {
        self.assert().success().stderr(contains(warning))
    }

    /// It has succeeded without a warning.
    fn quiet(self) -> Assert {
        self.assert().success().stderr("")
    }

    /// Its output.
    fn out(self) -> String {
        text(&self.assert().get_output().stdout).to_owned()
    }

    /// Returns its standard error.
    fn err(self) -> String {
        text(&self.assert().get_output().stderr).to_owned()
    }

    /// Its output as JSON.
    fn json(self) -> serde_json::Value {
        serde_json::from_slice(&self.assert().get_output().stdout).unwrap()
    }
}

impl Ended for Assert {
    fn assert(self) -> Assert {
        self
    }
}

/// The options of a save that need not survive the system.
pub(crate) fn quick() -> SaveOptions {
    SaveOptions::new().durable(false)
}
