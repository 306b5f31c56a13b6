//! Parts of tensors that ranks of PyTorch have saved: each command shows whole tensors of their
//! directory, and refuses one of its files.

use std::fs;
use std::path::Path;

use predicates::prelude::*;
use safetensors_core::{Checkpoint, SafeTensors, SaveOptions, TensorView, save};
use safetensors_testing::dcp::{Divided, check, file_of, sample, save_parts, save_whole};

use crate::convert::{convert, list};
use crate::fixtures::*;
use crate::other_formats::fixture;

/// A directory with parts, and one file of the same tensors.
fn both(dir: &Path) {
    fs::create_dir(dir.join("parts")).unwrap();
    save_parts(&dir.join("parts"), &sample());
    save_whole(&dir.join("whole.safetensors"), &sample());
}

#[test]
fn every_command_has_whole_tensors() {
    let dir = temp_dir();
    both(dir.path());
    let run = |line: &str| run_in(dir.path(), line);
    run("verify --strict parts").success();
    run("verify --strict .").success().stdout(predicate::str::contains("shard-").not());
    run("inspect parts").shows("grid").stdout(predicate::str::contains("DCP_SHARDING").not());
    run("inspect --recursive .").success();
    run("diff --ignore-metadata parts whole.safetensors").success();
    let digests = run("digest parts").success().out();
    assert_eq!(digests.lines().filter(|line| line.starts_with("sha256:")).count(), 4);
    for shown in ["grid", "grid '1:, 2'"] {
        let of = |input: &str| run(&format!("show {input} {shown}")).success().out();
        assert_eq!(of("parts"), of("whole.safetensors"));
    }
    run("plan parts -w 2 --rule '*=replicate'").success();
}

#[test]
fn converted_both_ways() {
    let dir = temp_dir();
    both(dir.path());
    convert(dir.path(), "parts one.safetensors").success();
    check(&Checkpoint::open(dir.path().join("one.safetensors")).unwrap(), &sample());
    convert(dir.path(), "parts shards --max-shard-size 50").success();
    check(&Checkpoint::open(dir.path().join("shards")).unwrap(), &sample());
    let rules = ["--rule", "grid=split:1", "--rule", "*=replicate"];
    let ranks = [&["parts", "ranks", "--ranks", "2"][..], &rules].concat();
    convert(dir.path(), &ranks).success();
    convert(dir.path(), "ranks back.safetensors").success();
    check(&Checkpoint::open(dir.path().join("back.safetensors")).unwrap(), &sample());

    let to_parts = |input, out| [&[input, out, "--ranks", "2", "--dcp"][..], &rules].concat();
    convert(dir.path(), &to_parts("whole.safetensors", "ours")).success();
    assert_eq!(
        list(&dir.path().join("ours")),
        [
            "shard-00001-model-00001-of-00001.safetensors",
            "shard-00002-model-00001-of-00001.safetensors"
        ]
    );
    check(&Checkpoint::open(dir.path().join("ours")).unwrap(), &sample());
    run_in(dir.path(), "verify --strict ours").success();
    convert(dir.path(), &to_parts("parts", "again")).success();
    run_in(dir.path(), "diff --ignore-metadata ours again").success();
    // Nothing is replaced.
    convert(dir.path(), &to_parts("parts", "ours")).fails(1, "move them away");
    // Nor is it hidden.
    for force in [&[][..], &["--force"]] {
        convert(dir.path(), &[&["whole.safetensors", "ours"], force].concat())
            .fails(1, "which the new files would hide or be mixed with");
    }
    assert_eq!(list(&dir.path().join("ours")).len(), 2);
    convert(dir.path(), "parts none --dcp").fails(2, "--dcp needs --ranks or --plan");
}

#[test]
fn a_part_is_refused() {
    let dir = temp_dir();
    both(dir.path());
    let part = file_of(Path::new("parts"), 1);
    let part = part.to_str().unwrap();
    for args in [
        &["inspect", part][..],
        &["verify", part],
        &["show", part, "grid"],
        &["stats", part],
        &["diff", part, "whole.safetensors"],
        &["convert", part, "out.safetensors"],
    ] {
        run_in(dir.path(), args).fails(1, "open the directory of all their files");
    }
    assert!(!dir.path().join("out.safetensors").exists());
    // A gap.
    fs::remove_file(dir.path().join(part)).unwrap();
    for args in [&["verify", "parts"][..], &["inspect", "parts"], &["convert", "parts", "out.npz"]]
    {
        let stderr = predicate::str::contains("elements of shape")
            .and(predicate::str::contains("--recursive").not());
        run_in(dir.path(), args).failure().stderr(stderr);
    }
    // An overlap.
    let boxes: &[(usize, &[usize], &[usize])] = &[(0, &[0], &[3]), (1, &[2], &[2])];
    fs::create_dir(dir.path().join("twice")).unwrap();
    save_parts(&dir.path().join("twice"), &[Divided::new("w", &[4], boxes)]);
    run_in(dir.path(), "verify twice").fails(1, "[2] from [2] on overlaps [3] from [0] on");
}

#[test]
fn digests_and_layouts_are_those_of_the_parts() {
    let dir = temp_dir();
    both(dir.path());
    let verify = |path: &str| run_in(dir.path(), &["verify", "--digests", path]);
    verify("parts").success().stderr(predicate::str::contains("records no digests").count(4));
    let recorded = predicate::str::contains("recorded").count(4);
    run_in(dir.path(), "digest --record parts").success().stdout(recorded);
    verify("parts").shows("12 digests right").stderr(predicate::str::is_empty());
    // Again, one by itself, in place.
    let part = file_of(Path::new("parts"), 1);
    let args = ["digest", "--record", "--in-place", part.to_str().unwrap()];
    run_in(dir.path(), &args).success();
    verify(".").warns("whole.safetensors: records no digests");

    let part = dir.path().join(part);
    let sound = fs::read(&part).unwrap();
    let mut flipped = sound.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(&part, flipped).unwrap();
    let stderr = predicate::str::contains("shard-00002").and(predicate::str::contains("XXH3"));
    verify("parts").failure().stderr(stderr);

    let header = usize::from(sound[0]) + (usize::from(sound[1]) << 8);
    let mut padded = sound.clone();
    padded[8 + header - 1] = b'\n';
    fs::write(&part, padded).unwrap();
    let strict = || run_in(dir.path(), "verify --strict parts");
    strict().fails(1, "shard-00002");

    // The values of a part are an archive, and those of another one follow it.
    let zip = fs::read(fixture("stored.npz")).unwrap();
    fs::create_dir(dir.path().join("both")).unwrap();
    for (rank, bytes) in [&zip[..], &[0; 9]].into_iter().enumerate() {
        let info = format!(r#"{{"w": {{"saved_offsets": [{}]}}}}"#, rank * zip.len());
        let options = SaveOptions::new().metadata([("DCP_SHARDING_INFO", info)]);
        let shape = [bytes.len()];
        let values = TensorView::from_slice(&shape, bytes).unwrap();
        save(file_of(&dir.path().join("both"), rank), [("w", values)], &options).unwrap();
    }
    let stderr = predicate::str::contains("shard-00001").and(predicate::str::contains("ZIP"));
    run_in(dir.path(), "verify both").failure().stderr(stderr);
}

#[test]
fn the_metadata_of_a_part_is_changed() {
    let dir = temp_dir();
    both(dir.path());
    let part = file_of(Path::new("parts"), 1);
    for options in [&[][..], &["--in-place"]] {
        let value = format!("key={}", options.len());
        let args = [&["metadata", "set", part.to_str().unwrap(), &value], options].concat();
        run_in(dir.path(), &args).success().stderr(predicate::str::is_empty());
    }
    let edited = SafeTensors::from_source(fs::read(dir.path().join(&part)).unwrap()).unwrap();
    assert_eq!(edited.metadata()["key"], "1");
    run_in(dir.path(), "verify --strict parts").success();
}

#[test]
fn files_beside_parts_are_targets_of_their_own() {
    let dir = temp_dir();
    both(dir.path());
    fs::rename(dir.path().join("whole.safetensors"), dir.path().join("parts/whole.safetensors"))
        .unwrap();
    run_in(dir.path(), "verify .")
        .failure()
        .stdout(predicate::str::contains("whole.safetensors: ok"))
        .stderr(predicate::str::contains("open the directory").not());
}
