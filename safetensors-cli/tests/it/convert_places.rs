//! `safetensors convert`: outputs that cannot be written, and the leftovers of a failure.

use crate::fixtures::*;

/// Runs with `-n` and without. Both have to fail in the same way.
fn refused(dir: &Path, line: &str, error: &str) {
    for line in [line, &format!("{line} -n")] {
        let stderr = starts_with(format!("error: {error}"));
        dir.convert(line).code(1).stdout("").stderr(stderr);
    }
}

#[test]
fn a_directory_opens_as_the_output_next_to_other_files() {
    let dir = temp_dir();
    fs::create_dir(dir.at("d")).unwrap();
    small_file(&dir.at("d"), "weights.safetensors");
    dir.convert("d d --dtype bf16").success();
    assert_eq!(names_in(&dir.at("d")), ["model.safetensors", "weights.safetensors"]);
    let opened = dir.open("d");
    assert_eq!(opened.tensor("embed.weight").unwrap().dtype(), Dtype::BF16);
    dir.convert("d d --max-shard-size 16").success();
    assert_eq!(dir.open("d").files().len(), 2);
}

/// A pattern that matches nothing must not destroy the checkpoint at OUT.
#[test]
fn a_filter_that_matches_nothing_replaces_nothing() {
    let dir = temp_dir();
    small_file(dir.path(), "in.safetensors");
    small_file(dir.path(), "out.safetensors");
    fs::create_dir(dir.at("d")).unwrap();
    sharded(&dir.at("d"));
    let content = || {
        let all = names_in(dir.path()).into_iter().chain(names_in(&dir.at("d")));
        all.map(|name| (fs::read(dir.at(&name)).ok(), name)).collect::<Vec<_>>()
    };
    let before = content();
    for filter in ["-f none.* --ignore-unmatched", "--drop *"] {
        for output in ["out.safetensors", "d", "out.npz"] {
            let line = format!("in.safetensors {output} {filter}");
            refused(dir.path(), &line, "no tensor is left to be written");
        }
    }
    assert_eq!(content(), before);
    // A file without tensors is not the result of a filter.
    raw_file(&dir.at("empty.safetensors"), "{}", 0);
    dir.convert("empty.safetensors d --force").success();
    assert!(dir.open("d").is_empty());
}

#[test]
fn a_dry_run_refuses_places_where_nothing_can_be() {
    let dir = temp_dir();
    small_file(dir.path(), "in.safetensors");
    fs::create_dir_all(dir.at("d/model.safetensors")).unwrap();
    fs::create_dir_all(dir.at("taken.npz/x")).unwrap();
    let missing = fs::metadata(dir.at("none")).unwrap_err();
    for output in ["none/x.safetensors", "none/x.npz"] {
        let problem = format!("{output}: {missing}; make the directory first, or choose");
        refused(dir.path(), &format!("in.safetensors {output}"), &problem);
    }
    refused(dir.path(), "in.safetensors in.safetensors/x.npz", "in.safetensors/x.npz: ");
    refused(dir.path(), "in.safetensors in.safetensors/x", "in.safetensors/x: ");
    refused(
        dir.path(),
        "in.safetensors d",
        &native("d/model.safetensors: expected a regular file, found a directory"),
    );
    assert_eq!(names_in(dir.path()), ["d", "in.safetensors", "taken.npz"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_summary_that_cannot_be_printed_does_not_hide_that_the_output_is_written() {
    let dir = temp_dir();
    small_file(dir.path(), "in.safetensors");
    let done =
        "error: out.safetensors is written, but this could not be printed: standard output: ";
    run_full(dir.path(), "convert in.safetensors out.safetensors").fails(1, done);
    assert_eq!(dir.open("out.safetensors").len(), 2);
}

#[test]
fn the_summary_names_the_older_shards_that_are_removed() {
    let dir = temp_dir();
    small_file(dir.path(), "a.safetensors");
    let shards = dir.at("out");
    fs::create_dir(&shards).unwrap();
    // No index names this one, so nothing but its name says that it is a shard.
    small_file(&shards, "model-00001-of-00009.safetensors");
    small_file(&shards, "other-00001-of-00009.safetensors");
    let names = "model-00001-of-00009.safetensors\n";
    let planned = format!("model.safetensors; 1 older file would be removed: {names}");
    let run = dir.convert("a.safetensors out -n --force").success();
    run.stdout(ends_with(planned));
    assert!(shards.join("model-00001-of-00009.safetensors").exists());

    let done = format!("in 1 file; 1 older file removed: {names}");
    let run = dir.convert("a.safetensors out --force").success();
    run.stdout(ends_with(done));
    assert_eq!(names_in(&shards), ["model.safetensors", "other-00001-of-00009.safetensors"]);
}

/// A longer name is refused before anything is written.
#[cfg(unix)]
#[test]
fn the_longest_names_of_outputs() {
    let dir = temp_dir();
    small_file(dir.path(), "a.safetensors");
    for suffix in [".safetensors", ".npz", ""] {
        for (len, is_taken) in [(255, true), (256, false)] {
            let name = "x".repeat(len - suffix.len()) + suffix;
            let before = names_in(dir.path());
            let assert = dir.convert(&["a.safetensors", &name]);
            if is_taken {
                assert.success();
                assert_eq!(names_in(dir.path()).len(), before.len() + 1);
            } else {
                let problem = "a name of 256 bytes is longer than the file system takes";
                assert.fails(1, problem);
                assert_eq!(names_in(dir.path()), before);
            }
        }
    }
}
