//! Outputs that exist: what each command that writes does, without an option, with `--force`, and
//! in a dry run.

use std::fs;
use std::path::Path;
#[cfg(unix)]
use std::process::Command;

use assert_cmd::assert::Assert;
use predicates::prelude::*;
use safetensors_core::digest::Digest;
use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};

use crate::convert::{convert, list};
use crate::convert_gguf::{save_model, tensors};
use crate::fixtures::*;

/// A file of these tensors, each of two numbers of this value.
fn file(dir: &Path, name: &str, tensors: &[&str], value: f32) {
    let values = [value; 2];
    let view = TensorView::from_slice(&[2], &values).unwrap();
    let options = SaveOptions::new().metadata([("format", "pt"), ("a", "1")]).durable(false);
    save(dir.join(name), tensors.iter().map(|name| (name, view)), &options).unwrap();
}

/// Every file of a directory and below it, with its digest, and every directory.
fn content(dir: &Path) -> Vec<(String, Option<Digest>)> {
    let mut all = Vec::new();
    for name in list(dir) {
        let path = dir.join(&name);
        let is_file = fs::metadata(&path).is_ok_and(|found| found.is_file());
        all.push((name.clone(), is_file.then(|| Digest::of(&fs::read(&path).unwrap()))));
        if path.is_dir() {
            all.extend(content(&path).into_iter().map(|(n, bytes)| (format!("{name}/{n}"), bytes)));
        }
    }
    all
}

/// A command that writes an output.
struct Writer {
    /// Its arguments before the path of the output, and after it.
    args: (&'static [&'static str], &'static [&'static str]),
    /// The name of the output, which says its kind. Without one it is a directory.
    name: Option<&'static str>,
}

/// Every command that writes a file or a directory which is named. `metadata`, `modelspec init` and
/// `digest --record` change their input, `download` adds to a cache and replaces nothing, and
/// `delta apply` and `follow` have tests of their own.
fn writers() -> Vec<Writer> {
    let all: [(&[&str], &[&str], Option<&str>); 14] = [
        (&["convert", "in.safetensors"], &[], Some("o.safetensors")),
        (&["convert", "in.safetensors"], &["--dtype", "bf16"], Some("o.safetensors")),
        (&["convert", "in.safetensors"], &[], Some("o.npz")),
        (&["convert", "in.safetensors"], &["-f", "w"], Some("o.npy")),
        (&["convert", "in.safetensors"], &[], Some("o.bpk")),
        (&["convert", "model"], &["--quantize", "f16", "--no-tokenizer"], Some("o.gguf")),
        (&["convert", "in.safetensors"], &[], None),
        (&["convert", "in.safetensors"], &["--ranks", "2", "--rule", "*=uneven:0"], None),
        (&["extract", "in.safetensors", "w", "-o"], &[], Some("o.npy")),
        (&["map", "in.safetensors", "-o"], &["--format", "svg"], Some("o.svg")),
        (
            &["plan", "in.safetensors", "-w", "2", "--rule", "*=replicate", "-o"],
            &[],
            Some("o.json"),
        ),
        (&["manifest", "in.safetensors", "-o"], &[], Some("o.json")),
        (&["delta", "make", "in.safetensors", "same.safetensors"], &[], None),
        (&["manual"], &[], None),
    ];
    let mut all: Vec<_> = all
        .into_iter()
        .map(|(before, after, name)| Writer { args: (before, after), name })
        .collect();
    if cfg!(feature = "sign") {
        let args: (&[&str], &[&str]) = (&["sign", "model", "--key", "key.pem", "--signature"], &[]);
        all.push(Writer { args, name: Some("o.sig") });
    }
    all
}

impl Writer {
    fn run(&self, mut command: assert_cmd::Command, out: &str, options: &[&str]) -> Assert {
        let (before, after) = self.args;
        command.args(before).arg(out).args(after).args(options).assert()
    }
}

/// What must happen where an output is what it is.
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
    #[cfg(feature = "sign")]
    fs::copy(crate::sign::fixture("p256.pem"), dir.join("key.pem")).unwrap();
}

/// Runs a command with each option, and compares everything in the directory.
fn check(writer: &Writer, dir: &Path, out: &str, must: Must, may_write: bool) {
    let run = |options: &[&str]| {
        let mut command = if may_write {
            safetensors()
        } else {
            #[cfg(unix)]
            let command = assert_cmd::Command::from_std(as_a_user(dir));
            #[cfg(not(unix))]
            let command = safetensors();
            command
        };
        command.current_dir(dir);
        writer.run(command, out, options)
    };
    let before = content(dir);
    let what = format!("{:?} {out}: {must:?}", writer.args);
    // A warning may come before the error.
    let error_of = |run: &Assert| {
        let lines = text(&run.get_output().stderr).to_owned();
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

/// Makes what is at the path of an output.
type Make = fn(&Path);

#[test]
fn a_file_is_replaced_as_the_rule_says() {
    let states: [(&str, Make, Must); 5] = [
        ("absent", |_| {}, Must::Write),
        ("an empty file", |out| fs::write(out, "").unwrap(), Must::Force),
        ("a text", |out| fs::write(out, "a text that took long").unwrap(), Must::Force),
        (
            "the same names and shapes",
            |out| {
                let path = out.with_file_name("other.safetensors");
                file(path.parent().unwrap(), "other.safetensors", &["w", "b"], 2.0);
                fs::rename(path, out).unwrap();
            },
            Must::Force,
        ),
        #[cfg(unix)]
        (
            "a FIFO",
            |out| assert!(Command::new("mkfifo").arg(out).status().unwrap().success()),
            Must::Refuse(1, "expected a regular file, found a special file; "),
        ),
        #[cfg(not(unix))]
        ("absent", |_| {}, Must::Write),
    ];
    for writer in writers() {
        let Some(name) = writer.name else { continue };
        for (_, make, must) in &states {
            let dir = temp_dir();
            inputs(dir.path());
            make(&dir.path().join(name));
            let must = match must {
                // Nothing but a signature is replaced by one.
                Must::Force if writer.args.0[0] == "sign" => Must::Refuse(1, "exists"),
                must => *must,
            };
            check(&writer, dir.path(), name, must, true);
        }
        let dir = temp_dir();
        inputs(dir.path());
        // A directory that is named like a file is a directory for `convert`.
        if writer.args.0[0] != "convert" {
            fs::create_dir(dir.path().join(name)).unwrap();
            check(&writer, dir.path(), name, Must::Refuse(1, "found a directory"), true);
        }
    }
}

#[test]
fn a_shard_is_replaced_only_by_itself() {
    let never = Must::Refuse(1, "is a shard of sh/model.safetensors.index.json, and nothing but");
    let shard = "sh/model-00001-of-00002.safetensors";
    let dir = temp_dir();
    inputs(dir.path());
    fs::create_dir(dir.path().join("sh")).unwrap();
    sharded(&dir.path().join("sh"));
    #[cfg(unix)]
    std::os::unix::fs::symlink(shard, dir.path().join("link.safetensors")).unwrap();
    for writer in writers().iter().filter(|it| it.name.is_some()) {
        if writer.args.0[0] == "convert" && writer.name != Some("o.safetensors") {
            continue;
        }
        check(writer, dir.path(), shard, never, true);
    }
    let again = |args: &[&str]| convert(dir.path(), &[&[shard, shard], args].concat());
    again(&["--prefix", "p.", "--force"]).code(1).stderr(predicate::str::contains("is a shard of"));
    again(&["--dtype", "bf16"]).code(1).stderr(predicate::str::contains("would lose precision: a"));
    again(&["--dtype", "f64"]).success();
    again(&["--dtype", "bf16", "--force"]).success();
    #[cfg(unix)]
    convert(dir.path(), &["in.safetensors", "link.safetensors", "--force"])
        .code(1)
        .stderr(predicate::str::contains("is a shard of"));
    // One that is gone may come back, from wherever.
    fs::rename(dir.path().join(shard), dir.path().join("saved.safetensors")).unwrap();
    convert(dir.path(), &["in.safetensors", shard]).code(1);
    convert(dir.path(), &["saved.safetensors", shard]).success();
    assert_eq!(Checkpoint::open(dir.path().join("sh")).unwrap().len(), 2);
}

#[test]
fn a_directory_is_replaced_as_the_rule_says() {
    let states: [(&str, Make, Must); 7] = [
        ("absent", |_| {}, Must::Write),
        ("empty", |out| fs::create_dir(out).unwrap(), Must::Write),
        (
            "one file",
            |out| {
                fs::create_dir(out).unwrap();
                file(out, "model.safetensors", &["w", "b"], 2.0);
            },
            Must::Force,
        ),
        (
            "shards",
            |out| {
                fs::create_dir(out).unwrap();
                sharded(out);
            },
            Must::Force,
        ),
        (
            "a shard without its index",
            |out| {
                fs::create_dir(out).unwrap();
                file(out, "model-00003-of-00009.safetensors", &["c"], 2.0);
            },
            Must::Force,
        ),
        (
            "a file of another name, which is hidden",
            |out| {
                fs::create_dir(out).unwrap();
                file(out, "weights.safetensors", &["c"], 2.0);
            },
            Must::Force,
        ),
        ("a file", |out| fs::write(out, "a text").unwrap(), Must::Refuse(1, "ot a directory")),
    ];
    for writer in writers().iter().filter(|it| it.name.is_none()) {
        for (_, make, must) in &states {
            let dir = temp_dir();
            inputs(dir.path());
            make(&dir.path().join("o"));
            let must = match (writer.args.0[0], *must) {
                // The pages are files of other names.
                ("manual", Must::Force) => Must::Write,
                ("manual", Must::Refuse(code, _)) => Must::Refuse(code, "o: "),
                // A delta takes the place of a delta.
                ("delta", Must::Force) => continue,
                (_, must) => must,
            };
            check(writer, dir.path(), "o", must, true);
        }
    }
}

#[test]
fn what_a_file_would_hide_is_named() {
    for before in ["model.safetensors.index.json", "weights.safetensors"] {
        let dir = temp_dir();
        inputs(dir.path());
        fs::create_dir(dir.path().join("sh")).unwrap();
        if before == "weights.safetensors" {
            file(&dir.path().join("sh"), before, &["c"], 2.0);
        } else {
            sharded(&dir.path().join("sh"));
        }
        let out = "sh/model.safetensors";
        for writer in writers().iter().filter(|it| it.name == Some("o.safetensors")) {
            check(writer, dir.path(), out, Must::Force, true);
            fs::remove_file(dir.path().join(out)).unwrap();
        }
        let error =
            format!("error: {out} would hide {before}, which sh opens as; --force writes it\n");
        convert(dir.path(), &["in.safetensors", out]).code(1).stderr(native(&error));
        // What is made of it hides nothing else.
        let told = format!("; the directory opens as it, and no longer as {before}\n");
        convert(dir.path(), &["sh", out]).success().stdout(predicate::str::ends_with(told));
    }
}

#[cfg(unix)]
#[test]
fn a_dry_run_fails_in_a_directory_that_cannot_be_written() {
    use std::os::unix::fs::PermissionsExt;

    let dir = temp_dir();
    inputs(dir.path());
    fs::create_dir(dir.path().join("locked")).unwrap();
    let mode = |mode| {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(dir.path().join("locked"), permissions).unwrap();
    };
    mode(0o555);
    fs::set_permissions(dir.path().join("key.pem"), fs::Permissions::from_mode(0o644)).ok();
    for writer in writers() {
        let out = format!("locked/{}", writer.name.unwrap_or("o"));
        check(&writer, dir.path(), &out, Must::Refuse(1, "ermission denied"), false);
    }
    mode(0o755);
}

#[test]
fn an_input_is_replaced_where_nothing_is_lost() {
    let dir = temp_dir();
    file(dir.path(), "a.safetensors", &["x", "y", "w.weight"], 1.0);
    file(dir.path(), "b.safetensors", &["z"], 1.0);
    let file = "a.safetensors";
    let lost = |what: &str| format!("error: {file} is an input, and {what}; --force replaces it\n");
    for (args, problem) in [
        (&[file, file][..], None),
        (&[file, file, "--dtype", "f64"], None),
        (&[file, file, "--prefix", "p."], None),
        (&["b.safetensors", file, file], None),
        (
            &[file, file, "--dtype", "bf16"],
            Some("3 of its 3 tensors would lose precision: w.weight, x, y"),
        ),
        (&[file, file, "--cast", "x=i8"], Some("1 of its 3 tensors would lose precision: x")),
        (&[file, file, "--drop", "x"], Some("1 of its 3 tensors would be lost: x")),
        (&[file, file, "-f", "x"], Some("2 of its 3 tensors would be lost: w.weight, y")),
    ] {
        let before = content(dir.path());
        let run = convert(dir.path(), &[args, &["-n"]].concat());
        match problem {
            None => run.success(),
            Some(problem) => run.code(1).stdout("").stderr(lost(problem)),
        };
        assert_eq!(content(dir.path()), before);
        if let Some(problem) = problem {
            convert(dir.path(), args).code(1).stdout("").stderr(lost(problem));
            assert_eq!(content(dir.path()), before);
        }
    }
    // Digests are metadata that is not kept, and of two values for one key the first is.
    run_in(dir.path(), &["digest", "--record", file]).success();
    let digests = lost("1 of its 3 metadata keys would be lost: safetensors_bridge.xxh3_128");
    convert(dir.path(), &[file, file]).code(1).stderr(digests);
    run_in(dir.path(), &["metadata", "remove", file, "safetensors_bridge.xxh3_128"]).success();
    run_in(dir.path(), &["metadata", "set", file, "a=2"]).success();
    let other = lost("1 of its 2 metadata keys would be lost: a");
    convert(dir.path(), &["b.safetensors", file, file]).code(1).stderr(other);
    convert(dir.path(), &[file, file, "--dtype", "f64"]).success();

    let shards = temp_dir();
    sharded(shards.path());
    convert(shards.path(), &[".", ".", "--prefix", "p."]).success();
    let error =
        "error: . is an input, and 1 of its 2 tensors would be lost: p.b; --force replaces it\n";
    convert(shards.path(), &[".", ".", "-f", "p.a"]).code(1).stderr(error);
    let parts = ["--ranks", "2", "--rule", "*=uneven:0"];
    convert(shards.path(), &[&[".", "parts"], &parts[..]].concat()).success();
    convert(shards.path(), &["parts", "parts"]).success();
    assert_eq!(list(&shards.path().join("parts")), ["model.safetensors"]);
}

#[test]
fn the_error_says_what_is_there_and_what_to_do() {
    let dir = temp_dir();
    inputs(dir.path());
    file(dir.path(), "c.safetensors", &["z", "y\u{202e}"], 1.0);
    fs::create_dir(dir.path().join("d")).unwrap();
    (1..6).for_each(|i| {
        fs::write(dir.path().join(format!("d/model-0000{i}-of-00009.safetensors")), "x").unwrap()
    });
    fs::write(dir.path().join("notes.npz"), "12345").unwrap();
    for (out, held) in [
        ("c.safetensors", "2 tensors, 16 B"),
        ("notes.npz", "5 B"),
        (
            "d",
            "5 files (model-00001-of-00009.safetensors, model-00002-of-00009.safetensors, \
             model-00003-of-00009.safetensors and 2 more), 5 B",
        ),
    ] {
        let error = format!(
            "error: {out} exists: it has {held}, and would be replaced; --force replaces it\n"
        );
        convert(dir.path(), &["in.safetensors", "same.safetensors", out, "--prefix", "p."]).code(1);
        convert(dir.path(), &["in.safetensors", out]).code(1).stdout("").stderr(error);
        let would = format!("\nwould replace {out} ({held}) with 2 tensors, 16 B");
        convert(dir.path(), &["in.safetensors", out, "-n", "--force"])
            .success()
            .stdout(predicate::str::contains(would));
    }
}

/// The commands that change their input name the keys in a dry run, and change nothing.
#[test]
fn a_dry_run_of_a_change_names_the_keys() {
    let dir = temp_dir();
    inputs(dir.path());
    let before = content(dir.path());
    let init = ["--architecture", "a", "--implementation", "b", "--title", "c"];
    for (args, keys) in [
        (&["metadata", "set", "in.safetensors", "x=1", "y=2"][..], "set x, y"),
        (&["metadata", "remove", "in.safetensors", "a"], "remove a"),
        (&["metadata", "clear", "in.safetensors"], "remove a, format"),
        (&[&["modelspec", "init", "in.safetensors"], &init[..]].concat(), "set modelspec."),
        (&["digest", "--record", "in.safetensors"], "set safetensors_bridge.xxh3_128"),
    ] {
        let would = format!("would replace in.safetensors (2 tensors, 16 B): {keys}");
        run_in(dir.path(), &[args, &["-n"]].concat())
            .success()
            .stdout(predicate::str::starts_with(would));
        assert_eq!(content(dir.path()), before);
    }
}

/// What appears after the rule was asked is not replaced either.
#[cfg(unix)]
#[test]
fn a_file_that_appears_in_the_meantime_is_not_replaced() {
    let dir = temp_dir();
    inputs(dir.path());
    // It is copied, because a save would wait, too.
    file(dir.path(), "other.safetensors", &["other"], 1.0);
    let d = dir.path().join("d");
    for out in ["d", "d/model.safetensors"] {
        fs::create_dir(&d).unwrap();
        let held = crate::races::lock(&d);
        let mut command = Command::new(env!("CARGO_BIN_EXE_safetensors"));
        command.current_dir(dir.path()).args(["convert", "in.safetensors", out]);
        let waiting = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
        fs::copy(dir.path().join("other.safetensors"), d.join("model.safetensors")).unwrap();
        drop(held);
        let output = waiting.wait_with_output().unwrap();
        let error =
            format!("error: {out} exists since this command has begun; --force replaces it\n");
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), &*error));
        assert_eq!(Checkpoint::open(&d).unwrap().tensors().next().unwrap().name(), "other");
        assert_eq!(list(&d), ["model.safetensors"]);
        fs::remove_dir_all(&d).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn a_terminal_is_asked() {
    use crate::pty::Session;
    let dir = temp_dir();
    inputs(dir.path());
    fs::create_dir(dir.path().join("sh")).unwrap();
    sharded(&dir.path().join("sh"));
    fs::write(dir.path().join("map.svg"), "old").unwrap();
    let questions: [(&[&str], &str); 4] = [
        (
            &["convert", "in.safetensors", "same.safetensors", "--prefix", "p."],
            "same.safetensors exists: it has 2 tensors, 16 B, and would be replaced; replace it? [y/N]",
        ),
        (
            &["convert", "in.safetensors", "in.safetensors", "--drop", "w"],
            "in.safetensors is an input, and 1 of its 2 tensors would be lost: w; replace it? [y/N]",
        ),
        (
            &["convert", "same.safetensors", "sh/model.safetensors"],
            "would hide model.safetensors.index.json, which sh opens as; write it? [y/N]",
        ),
        (
            &["map", "same.safetensors", "-o", "map.svg"],
            "map.svg exists: it has 3 B, and would be replaced; replace it? [y/N]",
        ),
    ];
    for (args, question) in questions {
        let before = content(dir.path());
        for (answer, code) in [("\n", 1), ("no\n", 1), ("y\n", 0)] {
            let mut session = Session::start(dir.path(), args, (24, 200));
            session.wait_for(question);
            session.send(answer);
            assert_eq!(session.end().code(), Some(code), "{answer:?}");
            assert_eq!(content(dir.path()) == before, code == 1, "{args:?}");
        }
    }
    // Standard input is no answer if it is an input.
    let before = content(dir.path());
    let mut command = safetensors();
    command.current_dir(dir.path()).args(["convert", "-", "same.safetensors", "--prefix", "p."]);
    let from = fs::read(dir.path().join("in.safetensors")).unwrap();
    command.write_stdin(from).assert().code(1).stderr(predicate::str::contains("--force"));
    assert_eq!(content(dir.path()), before);
}
