//! `safetensors metadata modelspec`: its entries and its findings.

use crate::fixtures::*;

#[test]
fn modelspec_is_written_and_checked() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    run("metadata modelspec validate", &path, &[]).fails(1, "metadata modelspec init");
    let required =
        ["--architecture", "gpt-neo-x", "--implementation", "transformers", "--title", "My model"];
    let init = |more: &[&str]| run("metadata modelspec init", &path, &[&required, more].concat());
    init(&[]).code(1).stderr(contains("modelspec.data_format").and(contains("--set")));
    init(&["--set", "data_format=fp32", "--set", "date=soon"]).fails(1, "modelspec.date");
    init(&["--set", "data_format=fp32", "--hash"]).success();
    run("metadata get", &path, &["modelspec.title"]).success().stdout("My model\n");
    run("metadata modelspec validate", &path, &[]).shows(": 0 errors, ");
    // A malformed value is refused, and nothing is written.
    let before = fs::read(&path).unwrap();
    init(&["--set", "data_format=fp32", "--title", " "]).code(2);
    init(&["--set", "data_format=fp32", "--set", "tags=a,,b"])
        .code(1)
        .stderr(starts_with("error: \"modelspec.tags\" should be "));
    init(&["--set", "data_format=fp32", "--set", "hash_sha256=0x00"])
        .fails(2, "--hash computes it");
    assert_eq!(fs::read(&path).unwrap(), before);
    // The recorded hash covers the data.
    run("verify --digests", &path, &[]).shows(", 1 digest right");
    // A later change that breaks the standard gives a warning.
    let warning = starts_with("warning: ").and(contains("modelspec.date"));
    run("metadata set", &path, &["modelspec.date=soon"]).success().stderr(warning);
    run("metadata modelspec validate", &path, &[])
        .code(1)
        .stdout(contains("error: \"modelspec.date\""));
}

#[test]
fn modelspec_is_checked_together_with_existing_entries() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let required =
        ["--architecture", "stable-diffusion-v1", "--implementation", "diffusers", "--title"];
    let init = |more: &[&str]| run("metadata modelspec init", &path, &[&required, more].concat());
    let missing = contains("\"modelspec.resolution\" is missing").and(contains("--set"));
    init(&["one"]).code(1).stderr(missing);
    init(&["one", "--set", "resolution=512x512"]).success();
    init(&["two"]).success();
    run("metadata get", &path, &["modelspec.title"]).success().stdout("two\n");
    run("metadata get", &path, &["modelspec.resolution"]).success().stdout("512x512\n");
    // The title has a separate option, so the error does not suggest --set.
    let empty = contains("\"modelspec.title\" should be").and(contains("--set").not());
    init(&[""]).code(1).stderr(empty);
    // Of a sharded checkpoint, each file gets the keys, and one line for each warning.
    let shards = dir.at("shards");
    fs::create_dir(&shards).unwrap();
    sharded(&shards);
    let lora = ["--architecture", "a/lora", "--implementation", "i", "--title", "t"];
    let told = run("metadata modelspec init", &shards, &lora).success().err();
    assert_eq!(told.matches("modelspec.author").count(), 2, "{told}");
    run("metadata modelspec validate", &shards, &[]).success();
    // The line has only one label: `warning:`.
    let date = run("metadata set", &path, &["modelspec.date=soon"]).success();
    let line = matches("^warning: [^\n]*model.safetensors: \"modelspec.date\" should be");
    date.stderr(line);
}
