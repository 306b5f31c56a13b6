//! Outputs that exist: the result of each command that writes, without an option, with `--force`,
//! and in a dry run.

mod directories;
mod files;
mod inputs;
mod messages;

use safetensors_core::digest::Digest;
use safetensors_delta::{Encoding, Options};

use crate::convert_gguf::{save_model, tensors};
use crate::fixtures::*;

/// A file of these tensors, each of two numbers of this value.
fn file(dir: &Path, name: &str, tensors: &[&str], value: f32) {
    let values = [value; 2];
    let view = array(&[2], &values);
    let options = quick().metadata([("format", "pt"), ("a", "1")]);
    save(dir.at(name), tensors.iter().map(|name| (name, view)), &options).unwrap();
}

/// Every file of a directory and below it, with its digest, and every directory.
fn content(dir: &Path) -> Vec<(String, Option<Digest>)> {
    let mut all = Vec::new();
    for name in names_in(dir) {
        let path = dir.at(&name);
        let is_file = fs::metadata(&path).is_ok_and(|found| found.is_file());
        all.push((name.clone(), is_file.then(|| Digest::compute(&fs::read(&path).unwrap()))));
        if path.is_dir() {
            all.extend(content(&path).into_iter().map(|(n, bytes)| (format!("{name}/{n}"), bytes)));
        }
    }
    all
}

/// A command that writes an output.
struct Writer {
    /// It and its arguments. `OUT` is the path of the output.
    line: &'static str,
    /// The name of the output, which says its kind. Without one it is a directory.
    name: Option<&'static str>,
}

/// Every command that writes a file or a directory which is named. `metadata` and `digest --record`
/// change their input, `download` adds to a cache and replaces nothing, and `delta follow` is for
/// many versions.
fn writers() -> Vec<Writer> {
    let mut all = vec![
        ("convert in.safetensors OUT", Some("o.safetensors")),
        ("convert in.safetensors OUT --dtype bf16", Some("o.safetensors")),
        ("convert in.safetensors OUT", Some("o.npz")),
        ("convert in.safetensors OUT -f w", Some("o.npy")),
        ("convert in.safetensors OUT", Some("o.bpk")),
        ("convert model OUT --quantize f16 --no-tokenizer", Some("o.gguf")),
        ("convert in.safetensors OUT", None),
        ("convert in.safetensors OUT --ranks 2 --rule '*=uneven:0'", None),
        ("extract in.safetensors w -o OUT", Some("o.npy")),
        ("map in.safetensors -o OUT", Some("o.html")),
        ("plan in.safetensors -w 2 --rule '*=replicate' -o OUT", Some("o.json")),
        ("manifest in.safetensors -o OUT", Some("o.json")),
        ("delta make in.safetensors same.safetensors OUT", None),
        ("delta squash base weight_v000001 OUT", None),
        ("delta apply base weight_v000001 OUT", None),
        ("manual OUT", None),
    ];
    if cfg!(feature = "sign") {
        all.push(("sign model --key key.pem --signature OUT", Some("o.sig")));
    }
    all.into_iter().map(|(line, name)| Writer { line, name }).collect()
}

impl Writer {
    /// Whether it is this command.
    fn is(&self, command: &str) -> bool {
        self.line.starts_with(command)
    }

    fn run(&self, mut command: Command, out: &str, options: &[&str]) -> Assert {
        command.args(self.line.replace("OUT", out).as_str().words()).args(options).assert()
    }
}

/// The expected result for an output of this kind.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Must {
    /// It is written.
    Write,
    /// It is replaced with `--force` only.
    Force,
    /// Nothing replaces it: the exit code, and a part of the error.
    Refuse(i32, &'static str),
}

/// The inputs of all commands.
fn inputs(dir: &Path) {
    file(dir, "in.safetensors", &["w", "b"], 1.0);
    file(dir, "same.safetensors", &["w", "b"], 1.0);
    save_model(dir, tensors());
    fs::create_dir(dir.at("base")).unwrap();
    file(&dir.at("base"), "model.safetensors", &["w", "b"], 3.0);
    delta(&dir.at("weight_v000001"), Encoding::Xor);
    #[cfg(feature = "sign")]
    fs::copy(crate::sign::fixture("p256.pem"), dir.at("key.pem")).unwrap();
}

/// Makes a delta from `base` to `same.safetensors`, which are next to it.
fn delta(path: &Path, encoding: Encoding) {
    let [base, new] = ["base", "same.safetensors"].map(|name| path.with_file_name(name));
    let [base, new] = [base, new].map(|path| Checkpoint::open(path).unwrap());
    let tensors = new.tensors().map(|tensor| (tensor.name(), tensor));
    let options = Options::new().encoding(encoding).durable(false);
    safetensors_delta::make(&base, tensors, path, &options).unwrap();
}

/// Runs a command with each option, and compares everything in the directory.
fn check(writer: &Writer, dir: &Path, out: &str, must: Must, may_write: bool) {
    let run = |options: &[&str]| {
        let mut command = safetensors();
        #[cfg(unix)]
        if !may_write {
            command = Command::from_std(as_a_user(dir));
        }
        command.current_dir(dir);
        writer.run(command, out, options)
    };
    let before = content(dir);
    let what = format!("{} {out}: {must:?}", writer.line);
    // A warning may come before the error.
    let error_of = |run: &Assert| {
        let lines = text(&run.get_output().stderr);
        lines.lines().last().unwrap_or_default().to_owned() + "\n"
    };
    let error = |options: &[&str]| error_of(&run(options));
    let mut replaces = false;
    for (options, is_forced) in [(&["-n"][..], false), (&["-n", "--force"], true)] {
        let run = run(options);
        let output = run.get_output();
        let (stdout, stderr) = (text(&output.stdout), error_of(&run));
        match must {
            Must::Refuse(code, expected) => {
                assert_eq!(output.status.code(), Some(code), "{what}: {stderr}");
                assert!(stderr.contains(expected), "{what}: {stderr}");
                assert_eq!(error(&options[1..]), stderr, "{what}");
            }
            Must::Force if !is_forced => {
                assert_eq!((output.status.code(), stdout), (Some(1), ""), "{what}");
                assert!(
                    stderr.ends_with("; --force replaces it\n")
                        || stderr.ends_with("; --force writes it\n"),
                    "{what}: {stderr}"
                );
                replaces = stderr.ends_with("; --force replaces it\n");
                assert_eq!(error(&[]), stderr, "{what}");
            }
            _ => {
                assert_eq!(output.status.code(), Some(0), "{what}: {stderr}");
                let last = stdout.lines().last().unwrap_or_default();
                let would = if replaces { "would replace " } else { "would write " };
                assert!(last.starts_with(&format!("{would}{}", native(out))), "{what}: {stdout}");
            }
        }
        assert_eq!(content(dir), before, "{what} {options:?}");
    }
    if !matches!(must, Must::Refuse(..)) {
        let options: &[&str] = if must == Must::Force { &["--force"] } else { &[] };
        run(options).success();
        assert_ne!(content(dir), before, "{what}");
    }
}

/// Makes the thing at the path of an output.
type Make = fn(&Path);
