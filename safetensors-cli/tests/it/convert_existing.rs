//! `safetensors convert`: what lies at OUT already.

use std::fs;
use std::path::Path;

use predicates::prelude::*;
use safetensors_core::{Checkpoint, Dtype, SaveOptions, TensorView, save};

use crate::convert::{convert, list};
use crate::fixtures::*;

/// A file of these tensors, each of this many numbers of this value.
fn file(dir: &Path, name: &str, tensors: &[&str], len: usize, value: f32) {
    let (shape, values) = ([len], vec![value; len]);
    let view = TensorView::from_slice(&shape, &values).unwrap();
    let options = SaveOptions::new().durable(false);
    save(dir.join(name), tensors.iter().map(|name| (name, view)), &options).unwrap();
}

/// Every file of a directory and below it, with its content.
fn content(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for name in list(dir) {
        let path = dir.join(&name);
        if path.is_dir() {
            all.extend(content(&path).into_iter().map(|(n, b)| (format!("{name}/{n}"), b)))
        } else {
            all.push((name, fs::read(path).unwrap()))
        }
    }
    all
}

/// The command fails, also as a dry run, and with the option it does not.
#[track_caller]
fn refused(dir: &Path, args: &[&str], error: &str) {
    let before = content(dir);
    for dry_run in [&[][..], &["-n"]] {
        let run = convert(dir, &[args, dry_run].concat()).code(1).stdout("");
        run.stderr(format!("error: {error}; --force replaces it\n"));
    }
    assert_eq!(content(dir), before);
}

/// A shell makes `*.safetensors` of all inputs, and the last one becomes OUT.
#[test]
fn a_forgotten_output_costs_no_input() {
    let dir = temp_dir();
    file(dir.path(), "a.safetensors", &["x"], 2, 1.0);
    file(dir.path(), "b.safetensors", &["y"], 2, 1.0);
    file(dir.path(), "c.safetensors", &["z", "y2"], 2, 1.0);
    let all = ["a.safetensors", "b.safetensors", "c.safetensors"];
    let there = "c.safetensors: OUT, the last argument, is there already, and ";
    refused(dir.path(), &all, &format!("{there}2 of its 2 tensors would be lost: \"y2\", \"z\""));
    convert(dir.path(), &[&all[..], &["--force"]].concat()).success();
    assert_eq!(Checkpoint::open(dir.path().join("c.safetensors")).unwrap().len(), 2);

    let shards = temp_dir();
    sharded(shards.path());
    let [first, second] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let there = format!("{second}: OUT, the last argument, is there already, and ");
    let error = format!("{there}1 of its 1 tensor would be lost: \"b\"");
    refused(shards.path(), &[first, second], &error);
}

/// Two versions of one model have the same names, so that nothing but the values tells them apart.
#[test]
fn a_copy_does_not_replace_another_version() {
    let dir = temp_dir();
    file(dir.path(), "a.safetensors", &["x"], 2, 1.0);
    file(dir.path(), "b.safetensors", &["x"], 2, 2.0);
    file(dir.path(), "large.safetensors", &["x"], 3, 2.0);
    let there = "OUT, the last argument, is there already, and ";
    let error =
        format!("b.safetensors: {there}its values would be lost: nothing of IN is converted");
    refused(dir.path(), &["a.safetensors", "b.safetensors"], &error);
    let error = format!("large.safetensors: {there}1 of its 1 tensor would be lost: \"x\"");
    refused(dir.path(), &["a.safetensors", "large.safetensors"], &error);
    convert(dir.path(), &["a.safetensors", "b.safetensors", "--force"]).success();
    // Now they are the same.
    convert(dir.path(), &["a.safetensors", "b.safetensors"]).success();
    // Another dtype is another version, too.
    convert(dir.path(), &["a.safetensors", "c.safetensors", "--dtype", "bf16"]).success();
    let error =
        format!("c.safetensors: {there}its values would be lost: nothing of IN is converted");
    refused(dir.path(), &["a.safetensors", "c.safetensors"], &error);
    convert(dir.path(), &["a.safetensors", "c.safetensors", "--dtype", "f16"]).success();
}

#[test]
fn scales_that_a_weight_is_multiplied_by_are_not_lost() {
    let dir = temp_dir();
    let codes = TensorView::new(Dtype::F8_E4M3, &[1, 2], &[0x38, 0x40]).unwrap();
    let scale = TensorView::from_slice(&[1, 1], &[0.5_f32]).unwrap();
    for name in ["in.safetensors", "w.safetensors", "p.safetensors", "out.safetensors"] {
        let tensors = [("w", codes), ("w_scale_inv", scale)];
        save(dir.path().join(name), tensors, &SaveOptions::new().durable(false)).unwrap();
    }
    let error = "w.safetensors: OUT, the last argument, is there already, and 1 of its 2 tensors \
                 would be lost: \"w_scale_inv\"";
    refused(dir.path(), &["in.safetensors", "w.safetensors", "-f", "w"], error);
    let dequantize = ["--dequantize", "bf16"];
    let ranks = ["--ranks", "2", "--rule", "w=split:1", "--rule", "*=replicate"];
    convert(dir.path(), &[&["in.safetensors", "parts"], &ranks[..]].concat()).success();
    for paths in [
        &["w.safetensors", "w.safetensors"][..],
        &["p.safetensors", "p.safetensors", "--prefix", "p."],
        &["in.safetensors", "out.safetensors"],
        &["in.safetensors", "parts"],
    ] {
        convert(dir.path(), &[paths, &dequantize].concat()).success();
    }
    assert_eq!(Checkpoint::open(dir.path().join("w.safetensors")).unwrap().len(), 1);
}

#[test]
fn a_conversion_can_be_repeated() {
    let dir = temp_dir();
    small_file(dir.path(), "in.safetensors");
    for args in [
        &["out.safetensors", "--dtype", "bf16"][..],
        &["out.safetensors", "--dtype", "f64"],
        &["out.npz"],
        &["mask.npy", "-f", "mask"],
        &["out"],
        &["out", "--max-shard-size", "16"],
        &["out", "--ranks", "2", "--preset", "none", "--rule", "*=uneven:0"],
        &["out", "--ranks", "4", "--preset", "none", "--rule", "*=replicate"],
        &["out", "--dtype", "bf16"],
    ] {
        for _ in 0..2 {
            convert(dir.path(), &[&["in.safetensors"], args].concat()).success();
        }
    }
    let error = "out.npz: OUT, the last argument, is there already, and 1 of its 2 tensors would \
                 be lost: \"mask\"";
    refused(dir.path(), &["in.safetensors", "out.npz", "-f", "embed.*"], error);
    let error = "mask.npy: OUT, the last argument, is there already, and 1 of its 1 tensor would \
                 be lost: \"mask\"";
    refused(dir.path(), &["in.safetensors", "mask.npy", "-f", "embed.*"], error);
}

#[test]
fn an_input_is_replaced_if_all_of_it_is_taken() {
    let dir = temp_dir();
    file(dir.path(), "a.safetensors", &["x", "y"], 2, 1.0);
    file(dir.path(), "b.safetensors", &["z"], 2, 1.0);
    for args in [&["--dtype", "bf16"][..], &["--prefix", "p."], &["--rename", "x", "w"]] {
        convert(dir.path(), &[&["a.safetensors", "a.safetensors"], args].concat()).success();
    }
    convert(dir.path(), &["b.safetensors", "a.safetensors", "a.safetensors"]).success();
    let there = "a.safetensors: OUT, the last argument, is there already, and ";
    let error = format!("{there}1 of its 3 tensors would be lost: \"z\"");
    refused(dir.path(), &["a.safetensors", "a.safetensors", "--drop", "z"], &error);

    let shards = temp_dir();
    sharded(shards.path());
    convert(shards.path(), &[".", ".", "--prefix", "p."]).success();
    refused(
        shards.path(),
        &[".", ".", "-f", "p.a"],
        ".: OUT, the last argument, is there already, and 1 of its 2 tensors would be lost: \"p.b\"",
    );
}

#[test]
fn a_directory_keeps_what_no_index_names() {
    let dir = temp_dir();
    file(dir.path(), "in.safetensors", &["a", "b"], 2, 1.0);
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    file(&out, "model-00003-of-00009.safetensors", &["c"], 2, 1.0);
    file(&out, "other.safetensors", &["d"], 2, 1.0);
    let error = "out: OUT, the last argument, is there already, and 1 of its 1 tensor would be \
                 lost: \"c\"";
    refused(dir.path(), &["in.safetensors", "out"], error);
    fs::remove_file(out.join("model-00003-of-00009.safetensors")).unwrap();
    convert(dir.path(), &["in.safetensors", "out"]).success();
    assert_eq!(list(&out), ["model.safetensors", "other.safetensors"]);
}

#[test]
fn what_cannot_be_read_is_lost_too() {
    let dir = temp_dir();
    small_file(dir.path(), "in.safetensors");
    let path = |name: &str| dir.path().join(name);
    for name in ["out.safetensors", "out.npz", "out/model.safetensors"] {
        let out = name.split('/').next().unwrap();
        fs::create_dir_all(path(name).parent().unwrap()).unwrap();
        fs::write(path(name), "a text that took long to write").unwrap();
        let before = content(dir.path());
        let start = format!(
            "error: {out}: OUT, the last argument, is there already, and what it holds would be \
             lost, unread ({}: ",
            native(name)
        );
        convert(dir.path(), &["in.safetensors", out])
            .code(1)
            .stderr(predicate::str::starts_with(start));
        assert_eq!(content(dir.path()), before);
        convert(dir.path(), &["in.safetensors", out, "--force"]).success();
        // An empty file holds nothing.
        fs::write(path(name), "").unwrap();
        convert(dir.path(), &["in.safetensors", out]).success();
    }
}

#[cfg(unix)]
#[test]
fn a_terminal_is_asked() {
    use crate::pty::Session;
    let dir = temp_dir();
    file(dir.path(), "a.safetensors", &["x"], 2, 1.0);
    file(dir.path(), "b.safetensors", &["y\u{202e}"], 2, 1.0);
    let before = content(dir.path());
    for (answer, code) in [("\n", 1), ("no\n", 1), ("y\n", 0)] {
        let args = ["convert", "a.safetensors", "b.safetensors"];
        let mut session = Session::start(dir.path(), &args, (24, 200));
        let question = "b.safetensors is there already, and 1 of its 1 tensor would be lost: \
                        \"y\\u{202e}\"; replace it? [y/N]";
        session.wait_for(question);
        session.send(answer);
        assert_eq!(session.end().code(), Some(code), "{answer:?}");
        assert_eq!(content(dir.path()) == before, code == 1);
    }
    // Standard input is no answer if it is an input.
    let before = content(dir.path());
    let mut command = safetensors();
    command.current_dir(dir.path()).args(["convert", "-", "b.safetensors", "--prefix", "p."]);
    let from = fs::read(dir.path().join("a.safetensors")).unwrap();
    command.write_stdin(from).assert().code(1).stderr(predicate::str::contains("--force"));
    assert_eq!(content(dir.path()), before);
}
