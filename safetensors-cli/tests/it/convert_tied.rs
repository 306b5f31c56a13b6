//! `safetensors convert`: tied weights, which are one tensor under several names.

use crate::convert::content;
use crate::fixtures::*;

/// A tensor with two names. The name that is only in the metadata sorts first.
pub(crate) fn tied(dir: &Path) {
    let tensors = [("model.embed.weight", array(&[2], &[1.0_f32, 2.0]))];
    let options =
        SaveOptions::new().metadata([("aaa.weight", "model.embed.weight"), ("format", "pt")]);
    save(dir.at("tied.safetensors"), tensors, &options.durable(false)).unwrap();
}

#[test]
fn tied_weights_keep_their_name_and_are_counted_once() {
    let dir = temp_dir();
    tied(dir.path());
    let done = dir.convert("tied.safetensors out.safetensors").quiet();
    done.stdout("out.safetensors: 1 tensor, 8 B, and 1 more name of tied weights\n");
    let (before, after) = (dir.at("tied.safetensors"), dir.at("out.safetensors"));
    assert_eq!(fs::read(before).unwrap(), fs::read(after).unwrap());

    let done = dir.convert("tied.safetensors dir --dtype f64 --prefix x.").success();
    done.stdout("dir: 1 tensor, 16 B, in 1 file, and 1 more name of tied weights\n");
    let checkpoint = dir.open("dir");
    let aliases: Vec<_> =
        checkpoint.aliases().map(|(alias, tensor)| (alias, tensor.name())).collect();
    assert_eq!(aliases, [("x.aaa.weight", "x.model.embed.weight")]);

    let plan = "\
name                  from                dtype                   shape  size
─────────────────────────────────────────────────────────────────────────────
x.model.embed.weight  model.embed.weight  F32                     [2]     8 B
x.aaa.weight          aaa.weight          = x.model.embed.weight

would replace out.safetensors (1 tensor, 8 B) with 1 tensor, 8 B, and 1 more name of tied weights
";
    dir.convert("tied.safetensors out.safetensors --prefix x. -n --force").success().stdout(plan);
    // NumPy's files have no other names for a tensor.
    let done = dir.convert("tied.safetensors out.npz").success();
    let done = done.stdout("out.npz: 1 tensor, 8 B\n");
    done.stderr("warning: out.npz: NumPy's files hold no metadata; omitted: aaa.weight, format\n");
}

#[test]
fn a_tied_name_that_is_selected_alone_gets_the_dtype() {
    let dir = temp_dir();
    tied(dir.path());
    let taken = |out: &str, args: &[&str]| {
        let args = [&["tied.safetensors", out, "--force", "-f", "aaa.*", "--dtype"], args].concat();
        dir.convert(&args).success()
    };
    for args in [&["bf16"][..], &["bf16", "--all"]] {
        taken("head.safetensors", args);
        assert_eq!(content(dir.at("head.safetensors")), [("aaa.weight".to_owned(), Dtype::BF16)]);
    }
    taken("head.safetensors", &["bf16", "-n"]).stdout(contains("F32 → BF16"));
    taken("head.npz", &["f64"]).stdout("head.npz: 1 tensor, 16 B\n");
}

#[test]
fn a_tied_name_that_conflicts_with_metadata_can_be_dropped_or_renamed() {
    let dir = temp_dir();
    for (file, tensor, title) in [("a.safetensors", "x", "x"), ("b.safetensors", "y", "My model")] {
        let tensors = [(tensor, array(&[2], &[1.0_f32, 2.0]))];
        save(dir.at(file), tensors, &quick().metadata([("title", title)])).unwrap();
    }
    let merge = |out: &str, args: &[&str]| {
        dir.convert(&[&["a.safetensors", "b.safetensors", out, "--force"], args].concat())
    };
    for out in ["out.safetensors", "out"] {
        let advice = "\"My model\"; skip it with --drop, or rename it with --rename\n";
        merge(out, &[]).code(1).stderr(ends_with(advice));
    }
    assert_eq!(names_in(dir.path()), ["a.safetensors", "b.safetensors"]);
    for args in [&["--drop", "title"][..], &["--rename", "^title$", "head"]] {
        merge("out.safetensors", args).success();
        let out = dir.open("out.safetensors");
        assert_eq!((out.len(), out.metadata()["title"].as_str()), (2, "My model"));
    }
    // NumPy's files have no metadata with which the name could collide.
    let done = merge("out.npz", &[]).success().stdout("out.npz: 2 tensors, 16 B\n");
    done.stderr("warning: out.npz: NumPy's files hold no metadata; omitted: title\n");
}
