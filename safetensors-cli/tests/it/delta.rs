//! `safetensors delta`, and the messages of the other commands about a delta.

use serde_json::Value;

use crate::fixtures::*;

const INDEX: &str = "model.safetensors.index.json";

fn checkpoint(path: &Path, w: [f32; 3], format: &str) {
    fs::create_dir_all(path).unwrap();
    let bias = [1_i64, 2];
    let tensors = [("w", array(&[3], &w)), ("bias", array(&[2], &bias))];
    let options = quick().metadata([("format", format)]);
    save(path.join("model.safetensors"), tensors, &options).unwrap();
    fs::write(path.join("config.json"), "{}").unwrap();
}

/// Two deltas from 000000 to 000001, of `old` and `new`: `delta` and, as another program would
/// write it, `theirs`.
pub(crate) fn make_deltas(dir: &Path) {
    checkpoint(&dir.at("old"), [1.0, 2.0, 3.0], "pt");
    checkpoint(&dir.at("new"), [1.0, 2.5, 3.0], "pt");
    dir.run("delta make old new delta").quiet();
    dir.run("delta make old new theirs --for modelexpress").success();
    let index = dir.at("theirs").join(INDEX);
    let mut json: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    let metadata = json["metadata"].as_object_mut().unwrap();
    metadata.retain(|key, _| !key.starts_with("safetensors_bridge."));
    fs::write(index, json.to_string()).unwrap();
}

fn values(path: &Path) -> Vec<f32> {
    let tensor = Checkpoint::open(path).unwrap();
    tensor.tensor("w").unwrap().read().unwrap().into_vec().unwrap()
}

#[test]
fn a_delta_is_made_shown_verified_and_applied() {
    let dir = temp_dir();
    make_deltas(dir.path());
    let run = |line: &str| dir.run(line);
    let summary = "a delta from 000000 to 000001: 1 tensor, 21 B as xor and zstd\n";
    run("delta make old new delta --force").success().stdout(format!("delta: {summary}"));
    let shown = run("delta inspect delta").success().out();
    assert!(shown.starts_with(summary), "{shown}");
    assert!(matches("digest of the base: [0-9a-f]{64}\ndigest of the result: ").eval(&shown));
    run("inspect delta").success().stdout(shown);
    run("delta verify delta").success().stdout(format!("delta: ok, {summary}"));
    run("delta verify delta --base old")
        .success()
        .stdout("old: ok, 1 delta from 000000 to 000001\n")
        .stderr("");
    run("delta apply old delta out")
        .success()
        .stdout("out: version 000001, 2 tensors, 28 B\n")
        .stderr("");
    run("diff out new").success().stdout("2 tensors equal\n");
    assert_eq!(dir.read("out/config.json"), b"{}");
    // So may a delta.
    run("delta make old new delta")
        .code(1)
        .stderr(starts_with("error: delta exists: it has 2 files ("));
    // A checkpoint takes the place of its base.
    run("delta apply old delta old").code(1).stderr(
        "error: old is an input, and the deltas change model.safetensors; --force replaces it\n",
    );
    run("delta apply old delta old --force").success();
    assert_eq!(values(&dir.at("old")), [1.0, 2.5, 3.0]);
    run("delta verify delta --base old")
        .fails(1, "tensor \"w\": its blake3 after the delta \"000001\" should be ");
}

#[test]
fn every_other_command_refuses_a_delta() {
    let dir = temp_dir();
    make_deltas(dir.path());
    for args in [
        &["convert", "delta", "out.safetensors"][..],
        &["convert", &format!("delta/{INDEX}"), "out"],
        &["delta", "apply", "delta", "delta", "out"],
        &["delta", "make", "old", "delta", "out"],
        &["diff", "delta", "new"],
        &["digest", "delta"],
        &["digest", "--record", "delta"],
        &["extract", "delta", "w", "-o", "w.npy"],
        &["manifest", "delta"],
        &["map", "delta", "-o", "map.html"],
        &["metadata", "get", "delta"],
        &["metadata", "set", &format!("delta/{INDEX}"), "a=b"],
        &["plan", "delta", "-w", "2"],
        &["show", "delta", "w"],
        &["stats", "delta"],
    ] {
        dir.run(args).fails(
            trouble(args),
            "this is a delta of \"000000\"; apply it to that checkpoint first",
        );
    }
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 4, "{left:?}");
    // And a checkpoint is no delta.
    for args in [&["delta", "inspect", "new"][..], &["delta", "apply", "old", "new", "out"]] {
        dir.run(args).fails(1, "expected a delta");
    }
}

#[test]
fn verify_and_inspect_describe_a_delta() {
    let dir = temp_dir();
    make_deltas(dir.path());
    let run = |args: &[&str]| dir.run(args);
    let summary = "a delta from 000000 to 000001: 1 tensor, 21 B as xor and zstd";
    for path in ["delta", &format!("delta/{INDEX}")] {
        run(&["verify", path, "--digests", "--strict"])
            .success()
            .stdout(
                contains(format!("{INDEX}: ok, {summary}"))
                    .or(contains(format!("{path}: ok, {summary}"))),
            )
            .stderr("");
    }
    // It has no numbers. A training that writes deltas is not at fault for that.
    let warning = "a delta has no numbers to check, only differences from its base; check what \
                   `safetensors delta apply` makes of both\n";
    let finite = run(&["verify", "delta", "--finite"]).success();
    let file = native(&format!("delta/{INDEX}"));
    finite.stderr(format!("warning: {file}: {warning}")).stdout(contains(format!("ok, {summary}")));
    run(&["verify", "delta", "--finite", "--strict"]).fails(1, warning);
    // Its files are part of it.
    run(&["verify", "."]).shows("\n4 checked: 4 ok; ");
    let json = run(&["verify", "delta", "--json"]).success().json();
    let result = &json["results"][0];
    assert_eq!((&result["format"], &result["tensors"]), (&"delta".into(), &1.into()));
    let json = run(&["inspect", "delta", "--json"]).success().json();
    assert_eq!(json["delta"]["tensors"][0]["name"], "w");
    assert_eq!(json["delta"]["base_version"], "000000");

    // A damaged frame shows when it is read.
    let shard = dir.at("delta/model-00000-of-00001.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 0xff;
    bytes.push(0);
    fs::write(&shard, &bytes).unwrap();
    run(&["verify", "delta"]).fails(1, "but 22 follow the header");
    bytes.pop();
    let at = bytes.len() - 14;
    bytes[at] = 0xff;
    fs::write(&shard, &bytes).unwrap();
    run(&["verify", "delta"]).success();
    run(&["verify", "delta", "--digests"]).fails(1, "tensor \"w\"");
    run(&["delta", "verify", "delta"]).fails(1, "tensor \"w\"");

    // The files of a delta that does not open are no checkpoints.
    fs::remove_file(&shard).unwrap();
    fs::copy(dir.at("theirs/model-00000-of-00001.safetensors"), &shard).unwrap();
    run(&["verify", "delta"]).code(1).stdout(contains("ok").not());
    let shard = shard.to_str().unwrap();
    run(&["verify", shard]).fails(1, "this is a delta of");
    run(&["convert", shard, "out.safetensors"]).fails(1, "this is a delta of");
}

#[test]
fn of_several_deltas_all_that_are_damaged_are_named() {
    let dir = temp_dir();
    make_deltas(dir.path());
    let run = |line: &str| dir.run(line);
    run("delta make new old weight_v000002").success();
    run("delta verify weight_v000002 delta").success();
    run("delta verify delta theirs").fails(1, "two deltas lead to the version \"000001\"");
    for name in ["delta", "weight_v000002"] {
        let file = dir.at(name).join("model-00000-of-00001.safetensors");
        let mut bytes = fs::read(&file).unwrap();
        bytes.pop();
        fs::write(file, bytes).unwrap();
    }
    for base in ["", "--base old"] {
        let verified = run(&format!("delta verify delta theirs weight_v000002 {base}")).code(1);
        let errors = text(&verified.get_output().stderr).to_owned();
        assert_eq!(errors.lines().count(), 2, "{errors}");
        assert!(errors.lines().all(|line| line.starts_with("error: ")), "{errors}");
    }
}

#[test]
fn versions_come_from_the_name_of_the_directory() {
    let dir = temp_dir();
    make_deltas(dir.path());
    let made = |args: &[&str]| {
        let args = [&["delta", "make", "old", "new"], args, &["--force"]].concat();
        let made = dir.run(&args).success().out();
        made.split_once("from ").unwrap().1.split_once(':').unwrap().0.to_owned()
    };
    assert_eq!(made(&["weight_v000042"]), "000041 to 000042");
    assert_eq!(made(&["step_v7"]), "6 to 7");
    assert_eq!(made(&["delta", "--to-version", "0100"]), "0099 to 0100");
    assert_eq!(made(&["weight_v000042", "--base-version", "seed"]), "seed to 000042");
    assert_eq!(made(&["delta", "--base-version", "a", "--to-version", "b"]), "a to b");
    for version in ["latest", "0"] {
        dir.run(&["delta", "make", "old", "new", "d", "--to-version", version])
            .fails(2, "name the base with --base-version");
    }
    dir.run("delta make old new d --for slime --to-version b --base-version a")
        .fails(1, "slime needs decimal versions");
}

#[test]
fn differences_that_a_delta_omits_are_warned_of() {
    let dir = temp_dir();
    make_deltas(dir.path());
    checkpoint(&dir.at("other"), [1.0, 2.5, 3.0], "np");
    dir.write("other/config.json", "{ }");
    let config = "warning: other: config.json differs from OLD's; deltas do not include it\n";
    dir.run("delta make old other made")
        .success()
        .stdout(ends_with("as xor and zstd; other metadata\n"))
        .stderr(config);
    let metadata = "warning: other: the metadata differs from OLD's; a delta made with --for \
                    omits it\n";
    dir.run("delta make old other slime --for slime")
        .success()
        .stdout(ends_with("as xor and zstd\n"))
        .stderr(config.to_owned() + metadata);
    // Without the digest of the base, tensors that do not change are not known to be right.
    let unchecked = contains("has no digest of its base, so unchanged tensors are not checked");
    dir.run("delta verify theirs --base old").success().stderr(unchecked);
    // They are, if another delta of the chain names one.
    dir.run("delta make new old weight_v000002").success();
    dir.run("delta verify theirs weight_v000002 --base old").quiet();
}

#[test]
fn tensors_are_added_replaced_and_removed() {
    let dir = temp_dir();
    make_deltas(dir.path());
    let run = |args: &[&str]| dir.run(args);
    let (w, added) = ([1.0_f32, 2.0, 3.5], [7_u8; 5]);
    let tensors = [("w", array(&[3, 1], &w)), ("added", array(&[5], &added))];
    let options = quick().metadata([("format", "np")]);
    save(dir.at("other.safetensors"), tensors, &options).unwrap();
    let summary = "a delta from 000000 to 000001: 2 tensors, ";
    let extra = " as xor and zstd; 1 added, 1 replaced, 1 removed, other metadata\n";
    run(&["delta", "make", "old", "other.safetensors", "d"])
        .success()
        .stdout(starts_with(format!("d: {summary}")))
        .stdout(ends_with(extra))
        .stderr("");
    for reader in ["slime", "modelexpress"] {
        run(&["delta", "make", "old", "other.safetensors", "no", "--for", reader]).code(1).stderr(
            contains("not needed: \"added\"")
                .and(contains("missing: \"bias\""))
                .and(contains("\"w\" should have shape [3], found [3, 1]")),
        );
    }
    let shown = run(&["delta", "inspect", "d"]).success().out();
    assert!(shown.contains("\nmetadata: 1 entry\n"), "{shown}");
    let words = |line: &str| line.split_whitespace().take(2).map(String::from).collect::<Vec<_>>();
    let rows: Vec<_> = shown.lines().skip(7).map(words).collect();
    let expected = [["added", "added"], ["w", "replaced"], ["bias", "removed"]];
    assert_eq!(rows, expected, "{shown}");
    let json = run(&["delta", "inspect", "d", "--json"]).success().json();
    let delta = &json["deltas"][0];
    assert_eq!(delta["tensors"][1]["shape"], serde_json::json!([3, 1]));
    assert_eq!(delta["removed"], serde_json::json!(["bias"]));
    assert_eq!(delta["metadata"], serde_json::json!({"format": "np"}));
    run(&["delta", "verify", "d", "--base", "old"]).success();
    run(&["delta", "apply", "old", "d", "out"])
        .success()
        .stdout("out: version 000001, 2 tensors, 17 B\n");
    run(&["diff", "out", "other.safetensors"]).success();
}

#[test]
fn files_that_are_not_copied_are_named() {
    let dir = temp_dir();
    make_deltas(dir.path());
    for name in ["pytorch_model.bin", "model.sig", "notes.txt"] {
        fs::write(dir.at("old").join(name), "x").unwrap();
    }
    dir.run("delta apply old delta out").success().stderr(
        "warning: not copied to out: model.sig, pytorch_model.bin; such files are there already, \
         hold or sign other tensors, are hidden, over 256 MiB or links out of their directory, or \
         BASE has no config.json or the like\n",
    );
    assert!(dir.at("out/notes.txt").exists());
}

/// The name of a pipe is none that a directory is opened by.
#[cfg(unix)]
#[test]
fn a_base_may_be_standard_input() {
    let dir = temp_dir();
    make_deltas(dir.path());
    let base = dir.read("old/model.safetensors");
    let mut command = safetensors();
    command.current_dir(dir.path()).args(["delta", "apply", "-", "delta", "out"]);
    command.write_stdin(base).assert().success();
    assert_eq!(values(&dir.at("out")), [1.0, 2.5, 3.0]);
}

#[test]
fn wrong_usage_of_delta_is_refused() {
    let dir = temp_dir();
    make_deltas(dir.path());
    for args in [
        &["delta", "apply", "old", "delta"][..],
        &["delta", "apply", "old", "delta", "s3://bucket/out"],
        &["delta", "make", "old", "new", "s3://bucket/out"],
        &["delta", "make", "-", "-", "out"],
        &["delta", "inspect", "-"],
        &["delta", "make", "old", "new", "out", "--for", "vllm"],
    ] {
        dir.run(args).code(2);
    }
    dir.run("delta delta").fails(2, "`safetensors delta inspect DELTA`");
    dir.run("delta make old shards out").code(1);
}
