//! `safetensors convert`: to a checkpoint that is divided among ranks, and back.

use crate::fixtures::*;
use crate::plan::llama;

#[test]
fn a_checkpoint_is_divided_and_joined_again() {
    let dir = temp_dir();
    llama(dir.path(), "a.safetensors");
    let would = "would write parts (3 tensors, 108 B, for 2 ranks)\n";
    dir.convert("a.safetensors parts --ranks 2 -n").success().stdout(ends_with(would));
    assert!(!dir.at("parts").exists());
    dir.convert("a.safetensors parts --ranks 2")
        .success()
        .stdout("parts: 3 tensors, 108 B, for 2 ranks\n");
    assert_eq!(
        names_in(&dir.at("parts")),
        [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json"
        ]
    );
    dir.run("verify --strict parts").success();
    dir.convert("parts whole.safetensors").success();
    // That the other file has parts of tensors is no fault.
    dir.convert("a.safetensors lost --ranks 2").success();
    fs::remove_file(dir.at("lost/model-00002-of-00002.safetensors")).unwrap();
    let lost = dir.run("verify --digests lost").code(1).stdout("").err();
    assert!(lost.lines().count() == 1 && lost.contains("00002-of-00002"), "{lost}");
    // The files of a checkpoint of several say for which library they are.
    let diff = ["diff", "--ignore-metadata", "a.safetensors", "whole.safetensors"];
    dir.run(&diff).success();

    // Among other ranks, in another dtype, by a plan, over itself.
    dir.convert("parts parts --ranks 3 --rule '*=uneven:0'").success();
    assert_eq!(names_in(&dir.at("parts")).len(), 4);
    dir.run("plan parts -w 4 -o plan.json").success();
    dir.convert("parts four --plan plan.json").success();
    dir.convert("four parts --dtype bf16 --ranks 2 --force").success();
    dir.convert("parts back.safetensors").success();
    let back = dir.open("back.safetensors");
    let down = back.tensor("model.layers.0.mlp.down_proj.weight").unwrap();
    assert_eq!((down.dtype(), down.shape()), (Dtype::BF16, &[3, 4][..]));
    let args = ["diff", "--ignore-dtype", "--ignore-metadata", "a.safetensors", "back.safetensors"];
    dir.run(&args).success();
}

/// The last tensor does not fit into the dtype, after the files of the other ranks are written.
#[test]
fn a_failure_leaves_nothing() {
    let dir = temp_dir();
    let values = [1_f32, 2., 3., 4., 5., 6., 7., 1e30];
    let tensors = [("w", array(&[4, 2], &values))];
    save(dir.at("a.safetensors"), tensors, &SaveOptions::new()).unwrap();
    for dcp in [&[][..], &["--dcp"]] {
        let args = ["a.safetensors", "new/out", "--ranks", "4", "--rule", "*=split:0"];
        let narrow = ["--dtype", "f16", "--overflow", "error"];
        dir.convert(&[&args[..], &narrow, dcp].concat()).failure().code(1);
        assert_eq!(names_in(dir.path()), ["a.safetensors"]);
    }
}

#[test]
fn unsuitable_options_for_ranks_are_refused() {
    let dir = temp_dir();
    llama(dir.path(), "a.safetensors");
    small_file(dir.path(), "b.safetensors");
    dir.run("plan a.safetensors -w 2 -o plan.json").success();
    let fails = |args: &[&str], code, message: &str| {
        for dry_run in [&[][..], &["-n"]] {
            let stderr = contains(message.to_owned());
            dir.convert(&[args, dry_run].concat()).code(code).stdout("").stderr(stderr);
        }
        assert!(!dir.at("out").exists());
    };
    fails(&["a.safetensors", "out.safetensors", "--ranks", "2"], 2, "need a directory as OUT");
    fails(&["a.safetensors", "out", "--ranks", "2", "--no-wait"], 2, "--no-wait");
    fails(&["a.safetensors", "out", "--rule", "*=replicate"], 2, "need --ranks");
    fails(&["a.safetensors", "out", "--ranks", "2", "--plan", "plan.json"], 2, "cannot be used");
    fails(&["a.safetensors", "out", "--ranks", "3"], 1, "--rule 'NAME=uneven:DIM'");
    fails(&["b.safetensors", "out", "--ranks", "2"], 1, "--rule 'NAME=replicate'");
    fails(&["b.safetensors", "out", "--plan", "plan.json"], 1, "does not match");

    // A rank's file is gone.
    dir.convert("a.safetensors parts --ranks 2").success();
    let parts = dir.at("parts");
    let one = parts.join("model-00001-of-00002.safetensors");
    fs::copy(&one, dir.at("one.safetensors")).unwrap();
    fails(&["one.safetensors", "out"], 1, "found parts that ranks have saved");
    fs::remove_file(&one).unwrap();
    fails(&["parts", "out"], 1, "model-00001-of-00002.safetensors");
}

/// Every command that reads has whole tensors, and names the files that have the parts.
#[test]
fn parts_of_ranks_are_whole_tensors_in_every_command() {
    let dir = temp_dir();
    llama(dir.path(), "a.safetensors");
    dir.convert("a.safetensors parts --ranks 2").success();
    let diff = ["diff", "--ignore-metadata", "a.safetensors", "parts"];
    dir.run(&diff).shows("3 tensors equal");
    let name = "model.layers.0.mlp.down_proj.weight";
    for command in ["inspect", "stats", "digest"] {
        let args = [command, "parts"];
        dir.run(&args).success().stdout(contains("part-0000").not());
    }
    let [whole, parts] = ["a.safetensors", "parts"]
        .map(|path| dir.run(&["show", path, name]).success().get_output().stdout.clone());
    assert_eq!(whole, parts);
    dir.run("digest --record parts a.safetensors").success();
    for path in ["parts", "."] {
        dir.run(&["verify", "--strict", "--digests", path]).success();
    }
    dir.convert("parts parts --dtype f64 -n").success();
    dir.convert(&["a.safetensors", "parts", "--drop", name]).failure();
    dir.run("delta make a.safetensors parts delta").shows("0 tensors");
}

/// Facts about files are shown for the ranks' files.
#[test]
fn the_files_of_ranks_are_shown_and_checked() {
    let dir = temp_dir();
    llama(dir.path(), "a.safetensors");
    let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    dir.convert("a.safetensors parts --ranks 2").success();
    for args in ["inspect --files parts", "inspect --json parts", "digest parts"] {
        let [one, two] = names.map(contains);
        dir.run(args).success().stdout(one.and(two));
    }
    dir.run("verify parts").shows("2 shards");
    // A file of the ranks is no output.
    let part = format!("parts/{}", names[0]);
    let extract = ["extract", "parts", "model.layers.0.mlp.up_proj.weight", "-o", &part];
    dir.run(&extract).fails(2, "choose another -o FILE");
    dir.run("verify --strict parts").success();
    fs::copy(dir.at("a.safetensors"), dir.at("parts/stray.safetensors")).unwrap();
    dir.run("verify --strict parts").fails(1, "stray.safetensors");
    // Of the files that are there, none is reported.
    fs::remove_file(dir.at("parts/stray.safetensors")).unwrap();
    fs::remove_file(dir.at(&part)).unwrap();
    let lost = contains(names[0]).and(contains(names[1]).not());
    dir.run("verify .").code(1).stderr(lost);
}

/// Tied weights stay tied on the way to ranks and back.
#[test]
fn the_other_names_of_tied_weights() {
    let dir = temp_dir();
    llama(dir.path(), "a.safetensors");
    let tie = ["metadata", "set", "a.safetensors", "lm_head=model.layers.0.mlp.gate_proj.weight"];
    dir.run(&tie).success();
    dir.convert("a.safetensors parts --ranks 2").success();
    dir.convert("parts back --rename lm_head head").success();
    let back = dir.open("back");
    let gate = back.tensor("model.layers.0.mlp.gate_proj.weight").unwrap();
    assert_eq!(back.tensor("head").unwrap().name(), gate.name());
}
