//! Parts of tensors that ranks of PyTorch have saved: each command shows whole tensors of their
//! directory, and refuses one of its files.

use safetensors_core::SafeTensors;
use safetensors_testing::dcp::{Divided, check, file_of, sample, save_parts, save_whole};

use crate::fixtures::*;
use crate::other_formats::fixture;

/// A directory with parts, and one file of the same tensors.
fn both(dir: &Path) {
    fs::create_dir(dir.at("parts")).unwrap();
    save_parts(&dir.at("parts"), &sample());
    save_whole(&dir.at("whole.safetensors"), &sample());
}

#[test]
fn every_command_has_whole_tensors() {
    let dir = temp_dir();
    both(dir.path());
    let run = |line: &str| dir.run(line);
    run("verify --strict parts").success();
    run("verify --strict .").success().stdout(contains("shard-").not());
    run("inspect parts").shows("grid").stdout(contains("DCP_SHARDING").not());
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
fn parts_are_converted_both_ways() {
    let dir = temp_dir();
    both(dir.path());
    dir.convert("parts one.safetensors").success();
    check(&dir.open("one.safetensors"), &sample());
    dir.convert("parts shards --max-shard-size 50").success();
    check(&dir.open("shards"), &sample());
    let rules = ["--rule", "grid=split:1", "--rule", "*=replicate"];
    let ranks = [&["parts", "ranks", "--ranks", "2"][..], &rules].concat();
    dir.convert(&ranks).success();
    dir.convert("ranks back.safetensors").success();
    check(&dir.open("back.safetensors"), &sample());

    let to_parts = |input, out| [&[input, out, "--ranks", "2", "--dcp"][..], &rules].concat();
    dir.convert(&to_parts("whole.safetensors", "ours")).success();
    assert_eq!(
        names_in(&dir.at("ours")),
        [
            "shard-00001-model-00001-of-00001.safetensors",
            "shard-00002-model-00001-of-00001.safetensors"
        ]
    );
    check(&dir.open("ours"), &sample());
    dir.run("verify --strict ours").success();
    dir.convert(&to_parts("parts", "again")).success();
    dir.run("diff --ignore-metadata ours again").success();
    // Nothing is replaced.
    dir.convert(&to_parts("parts", "ours")).fails(1, "move the parts away");
    // Nor is it hidden.
    for force in [&[][..], &["--force"]] {
        dir.convert(&[&["whole.safetensors", "ours"], force].concat())
            .fails(1, "new files would hide or mix with them");
    }
    assert_eq!(names_in(&dir.at("ours")).len(), 2);
    dir.convert("parts none --dcp").fails(2, "--dcp needs --ranks or --plan");
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
        dir.run(args).fails(trouble(args), "open the directory of all their files");
    }
    assert!(!dir.at("out.safetensors").exists());
    // A gap.
    fs::remove_file(dir.at(part)).unwrap();
    for args in [&["verify", "parts"][..], &["inspect", "parts"], &["convert", "parts", "out.npz"]]
    {
        let stderr = contains("elements of shape").and(contains("--recursive").not());
        dir.run(args).failure().stderr(stderr);
    }
    // An overlap.
    let boxes: &[(usize, &[usize], &[usize])] = &[(0, &[0], &[3]), (1, &[2], &[2])];
    fs::create_dir(dir.at("twice")).unwrap();
    save_parts(&dir.at("twice"), &[Divided::new("w", &[4], boxes)]);
    dir.run("verify twice").fails(1, "[2] from [2] on overlaps [3] from [0] on");
}

#[test]
fn digests_and_findings_are_about_the_files_with_parts() {
    let dir = temp_dir();
    both(dir.path());
    let verify = |path: &str| dir.run(&["verify", "--digests", path]);
    verify("parts").success().stderr(contains("0 of 4 files record digests"));
    let recorded = contains("recorded").count(4);
    dir.run("digest --record parts").success().stdout(recorded);
    verify("parts").shows("12 digests right").stderr(predicate::str::is_empty());
    // Again, a single one, in place.
    let part = file_of(Path::new("parts"), 1);
    let args = ["digest", "--record", "--in-place", part.to_str().unwrap()];
    dir.run(&args).success();
    verify(".").warns("whole.safetensors: records no digests");

    let part = dir.at(part);
    let sound = fs::read(&part).unwrap();
    let mut flipped = sound.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(&part, flipped).unwrap();
    let stderr = contains("shard-00002").and(contains("XXH3"));
    verify("parts").failure().stderr(stderr);

    let header = usize::from(sound[0]) + (usize::from(sound[1]) << 8);
    let mut padded = sound.clone();
    padded[8 + header - 1] = b'\n';
    fs::write(&part, padded).unwrap();
    let strict = || dir.run("verify --strict parts");
    strict().fails(1, "shard-00002");

    // The values of a part are an archive, and another part's values follow it.
    let zip = fs::read(fixture("stored.npz")).unwrap();
    fs::create_dir(dir.at("both")).unwrap();
    for (rank, bytes) in [&zip[..], &[0; 9]].into_iter().enumerate() {
        let info = format!(r#"{{"w": {{"saved_offsets": [{}]}}}}"#, rank * zip.len());
        let options = SaveOptions::new().metadata([("DCP_SHARDING_INFO", info)]);
        let shape = [bytes.len()];
        let values = array(&shape, bytes);
        save(file_of(&dir.at("both"), rank), [("w", values)], &options).unwrap();
    }
    let stderr = contains("shard-00001").and(contains("ZIP"));
    dir.run("verify both").failure().stderr(stderr);
}

#[test]
fn the_metadata_of_a_part_is_changed() {
    let dir = temp_dir();
    both(dir.path());
    let part = file_of(Path::new("parts"), 1);
    for options in [&[][..], &["--in-place"]] {
        let value = format!("key={}", options.len());
        let args = [&["metadata", "set", part.to_str().unwrap(), &value], options].concat();
        dir.run(&args).success().stderr(predicate::str::is_empty());
    }
    let edited = SafeTensors::from_source(dir.read(&part)).unwrap();
    assert_eq!(edited.metadata()["key"], "1");
    dir.run("verify --strict parts").success();
}

#[test]
fn files_next_to_parts_are_separate_targets() {
    let dir = temp_dir();
    both(dir.path());
    fs::rename(dir.at("whole.safetensors"), dir.at("parts/whole.safetensors")).unwrap();
    dir.run("verify .")
        .failure()
        .stdout(contains("whole.safetensors: ok"))
        .stderr(contains("open the directory").not());
    // Our own need their index, which is missed by its name.
    dir.convert(
        "parts/whole.safetensors ours --ranks 2 --rule 'grid=uneven:1' --rule '*=replicate'",
    )
    .success();
    fs::remove_file(dir.at("ours/model.safetensors.index.json")).unwrap();
    let missed = "ours/model.safetensors.index.json: missing: ";
    dir.run("verify ours").failure().stderr(contains(missed).and(contains("2 of 2")));
}
