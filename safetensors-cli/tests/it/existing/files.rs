//! The files that a file replaces or hides.

#[cfg(unix)]
use std::process::Command;

use super::{Make, Must, check, file, inputs, writers};
use crate::fixtures::*;

#[test]
fn a_file_is_replaced_only_as_the_rule_allows() {
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
            make(&dir.at(name));
            let must = match must {
                Must::Refuse(code, _) if writer.is("convert") => {
                    Must::Refuse(*code, "convert cannot write to a pipe or a device; name a file")
                }
                // Nothing but a signature is replaced by one.
                Must::Force if writer.is("sign") => Must::Refuse(1, "exists"),
                must => *must,
            };
            check(&writer, dir.path(), name, must, true);
        }
        let dir = temp_dir();
        inputs(dir.path());
        // A directory that is named like a file is a directory for `convert`.
        if !writer.is("convert") {
            fs::create_dir(dir.at(name)).unwrap();
            check(&writer, dir.path(), name, Must::Refuse(1, "found a directory"), true);
        }
    }
}

#[test]
fn a_shard_is_replaced_only_by_itself() {
    let never =
        Must::Refuse(1, "is a shard of sh/model.safetensors.index.json, and only this shard can");
    let shard = "sh/model-00001-of-00002.safetensors";
    let dir = temp_dir();
    inputs(dir.path());
    fs::create_dir(dir.at("sh")).unwrap();
    sharded(&dir.at("sh"));
    #[cfg(unix)]
    std::os::unix::fs::symlink(shard, dir.at("link.safetensors")).unwrap();
    for writer in writers().iter().filter(|it| it.name.is_some()) {
        let is_of_names = writer.is("convert") || writer.is("map");
        if is_of_names && writer.name != Some("o.safetensors") {
            continue;
        }
        check(writer, dir.path(), shard, never, true);
    }
    let again = |args: &[&str]| dir.convert(&[&[shard, shard], args].concat());
    again(&["--prefix", "p.", "--force"]).fails(1, "is a shard of");
    again(&["--dtype", "bf16"]).fails(1, "would lose precision: a");
    again(&["--dtype", "f64"]).success();
    again(&["--dtype", "bf16", "--force"]).success();
    #[cfg(unix)]
    dir.convert("in.safetensors link.safetensors --force").fails(1, "is a shard of");
    // One that is gone may come back, from wherever.
    fs::rename(dir.at(shard), dir.at("saved.safetensors")).unwrap();
    dir.convert(&["in.safetensors", shard]).code(1);
    dir.convert(&["saved.safetensors", shard]).success();
    assert_eq!(dir.open("sh").len(), 2);
}

#[test]
fn a_checkpoint_that_an_output_would_hide_is_named() {
    for before in ["model.safetensors.index.json", "weights.safetensors"] {
        let dir = temp_dir();
        inputs(dir.path());
        fs::create_dir(dir.at("sh")).unwrap();
        if before == "weights.safetensors" {
            file(&dir.at("sh"), before, &["c"], 2.0);
        } else {
            sharded(&dir.at("sh"));
        }
        let out = "sh/model.safetensors";
        for writer in writers().iter().filter(|it| it.name == Some("o.safetensors")) {
            check(writer, dir.path(), out, Must::Force, true);
            fs::remove_file(dir.at(out)).unwrap();
        }
        let error =
            format!("error: {out} would hide {before}, which sh opens as; --force writes it\n");
        dir.convert(&["in.safetensors", out]).code(1).stderr(native(&error));
        // An output made from it hides nothing else.
        let told = format!("; the directory opens as it, and no longer as {before}\n");
        dir.convert(&["sh", out]).success().stdout(ends_with(told));
    }
}

/// A file that appears after the rule was asked is not replaced either.
#[cfg(unix)]
#[test]
fn a_file_that_appears_in_the_meantime_is_not_replaced() {
    let dir = temp_dir();
    inputs(dir.path());
    // It is copied, because a save would wait, too.
    file(dir.path(), "other.safetensors", &["other"], 1.0);
    let d = dir.at("d");
    for out in ["d", "d/model.safetensors"] {
        fs::create_dir(&d).unwrap();
        let held = crate::races::lock(&d);
        let mut command = Command::new(env!("CARGO_BIN_EXE_safetensors"));
        command.current_dir(dir.path()).args(["convert", "in.safetensors", out]);
        let waiting = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
        fs::copy(dir.at("other.safetensors"), d.join("model.safetensors")).unwrap();
        drop(held);
        let output = waiting.wait_with_output().unwrap();
        let error = format!("error: {out} appeared while this command ran; --force replaces it\n");
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), &*error));
        assert_eq!(Checkpoint::open(&d).unwrap().tensors().next().unwrap().name(), "other");
        assert_eq!(names_in(&d), ["model.safetensors"]);
        fs::remove_dir_all(&d).unwrap();
    }
}
