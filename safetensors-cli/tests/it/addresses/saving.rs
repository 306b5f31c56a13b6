//! `convert` from addresses and to them.

use std::fs;

use super::bucket::Bucket;
use super::hub_server::Server as Hub;
use super::web::Server as Web;
use super::*;

#[test]
fn a_checkpoint_of_the_hub_is_converted() {
    let dir = temp_dir();
    let server = Hub::start([("owner/name", sharded_repo())]);
    let run = |args: &[&str]| output(with_hub(&server, dir.path(), args));
    let planned = run(&["convert", "hf://owner/name", "out", "--dtype", "bf16", "--dry-run"]);
    assert!(planned.contains("F32 → BF16") && planned.contains("\nwould write out ("), "{planned}");
    assert!(!dir.path().join("out").exists());
    run(&["convert", "hf://owner/name", "out", "--max-shard-size", "1MB"]);
    assert_eq!(run(&["diff", "hf://owner/name", "out"]), "4 tensors equal\n");
    assert!(dir.path().join("out/model.safetensors.index.json").exists());
    run(&["convert", "hf://owner/name", "ranks", "--ranks", "2"]);
    run(&["convert", "ranks", "whole.safetensors"]);
    assert_eq!(run(&["diff", "hf://owner/name", "whole.safetensors"]), "4 tensors equal\n");
    run(&["convert", "hf://owner/name", "a.npz"]);
    // An input of the disk and one of the Hub.
    run(&["convert", "a.npz", "b.npz", "--prefix", "b."]);
    run(&["convert", "b.npz", "hf://owner/name", "both", "-f", "*.norm.*"]);
    assert!(run(&["verify", "both"]).contains("2 tensors"));
}

#[test]
fn a_model_of_the_hub_takes_its_other_files_along() {
    let dir = temp_dir();
    let mut files = shards();
    let config = r#"{"torch_dtype": "float32"}"#;
    for (name, text) in
        [("config.json", config), ("custom_generate/b.txt", "b"), ("x.gguf", "x"), (".git", "x")]
    {
        files.push((name.into(), text.into()));
    }
    let files = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone()));
    let server = Hub::start([("owner/name", hub_server::repo::Repo::new(files))]);
    let args = ["convert", "hf://owner/name", "out", "--dtype", "bf16"];
    let told = output(with_hub(&server, dir.path(), &args));
    let with =
        ", with config.json and 1 other file; copied: custom_generate/b.txt; not copied: x.gguf\n";
    assert!(told.ends_with(with), "{told}");
    let read = |name: &str| fs::read_to_string(dir.path().join("out").join(name)).unwrap();
    assert_eq!(
        [read("custom_generate/b.txt"), read("config.json")],
        ["b", &config.replace("float32", "bfloat16")]
    );
}

#[test]
fn a_conversion_to_a_store() {
    let dir = temp_dir();
    fs::create_dir(dir.path().join("a store")).unwrap();
    let store = format!("file://{}/a%20store", dir.path().display());
    fs::write(dir.path().join("in.safetensors"), file()).unwrap();
    let run = |args: &[&str]| output(safetensors(dir.path(), args));
    let (one, several) = (format!("{store}/one.safetensors"), format!("{store}/several/"));
    let told = run(&["convert", "in.safetensors", &one]);
    // The address is the path.
    let path = dir.path().join("a store/one.safetensors");
    assert!(told.starts_with(&format!("{}: 4 tensors, 2.1 MB", path.display())), "{told}");
    assert_eq!(run(&["diff", "in.safetensors", &one]), "4 tensors equal\n");
    assert_eq!(fs::read(path).unwrap(), file());
    run(&["convert", "in.safetensors", &several, "--max-shard-size", "1MB", "--dtype", "bf16"]);
    assert!(dir.path().join("a store/several/model.safetensors.index.json").exists());
    let checked = run(&["verify", &several]);
    assert!(checked.contains("ok, 2 shards, 4 tensors"), "{checked}");
    // Back into its own place, as one file.
    run(&["convert", &several, &several]);
    assert!(!dir.path().join("a store/several/model.safetensors.index.json").exists());
    assert!(run(&["verify", &several]).contains("ok, 4 tensors"));
    let fewer = ["convert", "in.safetensors", &one, "-f", "*norm*", "--dry-run"];
    let refused = error(safetensors(dir.path(), &fewer), 1);
    assert!(
        refused.contains("exists: it has 4 tensors, 2.1 MB, and would be replaced"),
        "{refused}"
    );
    assert!(refused.contains("; --force replaces it"), "{refused}");
    let planned = run(&[&fewer[..], &["--force"]].concat());
    assert!(
        planned.contains("\nwould replace ") && planned.contains(" with 1 tensor, "),
        "{planned}"
    );
    assert_eq!(run(&["diff", "in.safetensors", &one]), "4 tensors equal\n");
}

/// The command with a bucket that keeps objects.
fn in_bucket(bucket: &Bucket, dir: &Path, args: &[&str]) -> Command {
    let mut command = safetensors(dir, args);
    command.env("AWS_ENDPOINT", &bucket.endpoint).env("AWS_ALLOW_HTTP", "true");
    command.env("AWS_SKIP_SIGNATURE", "true").env("AWS_REGION", "us-east-1");
    command
}

/// A bucket with a model that has other files.
fn bucket_of_model() -> Bucket {
    let bucket = Bucket::new();
    bucket.put("bucket/m/model.safetensors", file());
    bucket.put("bucket/m/config.json", r#"{"torch_dtype": "float32"}"#);
    bucket.put("bucket/m/tokenizer.json", "{}");
    bucket
}

#[test]
fn a_bucket_that_is_its_own_output_keeps_its_other_files() {
    let dir = temp_dir();
    for out in ["s3://bucket/m", "s3://bucket/m/"] {
        let bucket = bucket_of_model();
        let args = ["convert", "s3://bucket/m", out, "--dtype", "bf16", "--force"];
        let told = output(in_bucket(&bucket, dir.path(), &args));
        assert!(told.ends_with(", in 1 file, with config.json\n"), "{told}");
        let config = bucket.object("bucket/m/config.json").unwrap();
        assert_eq!(config, br#"{"torch_dtype": "bfloat16"}"#);
        assert_eq!(bucket.paths().len(), 3);
    }
    let bucket = bucket_of_model();
    let args = ["convert", "s3://bucket/m", "s3://bucket/n"];
    let told = output(in_bucket(&bucket, dir.path(), &args));
    assert!(
        told.ends_with(", with config.json and 1 other file; copied: tokenizer.json\n"),
        "{told}"
    );
    assert_eq!(bucket.object("bucket/n/tokenizer.json").unwrap(), b"{}");
}

#[test]
fn other_files_in_a_bucket_are_replaced_after_a_question_only() {
    let dir = temp_dir();
    let bucket = bucket_of_model();
    bucket.put("bucket/n/config.json", "mine");
    bucket.put("bucket/n/notes.txt", "mine");
    let args = ["convert", "s3://bucket/m", "s3://bucket/n"];
    for options in [&[][..], &["-n"]] {
        let refused = error(in_bucket(&bucket, dir.path(), &[&args[..], options].concat()), 1);
        let expected = "s3://bucket/n exists: it has 1 file (config.json), and would be replaced; \
                        --force replaces it";
        assert!(refused.contains(expected), "{refused}");
    }
    assert_eq!(bucket.object("bucket/n/config.json").unwrap(), b"mine");
    output(in_bucket(&bucket, dir.path(), &[&args[..], &["--force"]].concat()));
    assert_eq!(bucket.object("bucket/n/config.json"), bucket.object("bucket/m/config.json"));
    assert_eq!(bucket.object("bucket/n/notes.txt").unwrap(), b"mine");
}

#[test]
fn a_list_of_a_bucket_that_fails_is_an_error_and_one_that_is_denied_a_warning() {
    let dir = temp_dir();
    let bucket = bucket_of_model();
    bucket.put("bucket/m/tokenizer/vocab.json", "{}");
    let args = ["convert", "s3://bucket/m", "out"];
    bucket.refuse_listings("m/tokenizer/", 400);
    let refused = error(in_bucket(&bucket, dir.path(), &args), 1);
    assert!(refused.contains("; --no-other-files leaves such files behind"), "{refused}");
    assert!(!dir.path().join("out").exists());
    bucket.refuse_listings("m/tokenizer/", 403);
    let assert = in_bucket(&bucket, dir.path(), &args).assert().success();
    let warned = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(warned.contains("no access to the list of files of IN"), "{warned}");
    assert!(dir.path().join("out/tokenizer.json").exists());
    let args = [&args[..2], &["other", "--no-other-files"]].concat();
    in_bucket(&bucket, dir.path(), &args).assert().success().stderr("");
}

/// Each command takes it, also those that change a file or write another one.
#[test]
fn an_address_of_the_disk_is_the_path() {
    let dir = temp_dir();
    fs::write(dir.path().join("ä.safetensors"), file()).unwrap();
    let run = |args: &[&str]| output(safetensors(dir.path(), args));
    let address = format!("file://localhost{}/%C3%A4.safetensors", dir.path().display());
    run(&["metadata", "set", &address, "a=file:///b%20c"]);
    assert_eq!(run(&["metadata", "get", &address, "a"]), "file:///b%20c\n");
    let array = format!("file://{}/norm.npy", dir.path().display());
    run(&["extract", &address, "model.norm.weight", "-o", &array]);
    run(&["convert", &array, &format!("file://{}/a%23b.npz", dir.path().display())]);
    assert!(dir.path().join("a#b.npz").exists());
    let checked = run(&["verify", &format!("file://{}", dir.path().display())]);
    assert!(checked.contains("ä.safetensors: ok"), "{checked}");

    for (address, expected) in
        [("file://host/a.safetensors", "expected file:///path"), ("file:///a.safetensors?b", "%3F")]
    {
        let refused = error(safetensors(dir.path(), &["inspect", address]), 2);
        assert!(refused.contains(expected), "{refused}");
        let refused = error(safetensors(dir.path(), &["convert", "ä.safetensors", address]), 2);
        assert!(refused.contains(expected), "{refused}");
    }
}

/// A conversion to an address of the disk is on the disk when the command ends.
#[test]
fn an_address_of_the_disk_is_synced() {
    use std::process::Command as Program;

    let strace = Program::new("strace").arg("-V").output();
    if !strace.is_ok_and(|strace| strace.status.success()) {
        eprintln!("SKIPPED: this test needs strace, which is not there");
        return;
    }
    let dir = crate::fixtures::temp_dir_on_disk();
    fs::write(dir.path().join("in.safetensors"), file()).unwrap();
    let mut traced = Program::new("strace");
    traced.args(["-qq", "-f", "-o", "trace", "-e", "trace=fsync,fdatasync"]);
    traced.arg(env!("CARGO_BIN_EXE_safetensors")).args(["convert", "in.safetensors"]);
    traced.arg(format!("file://{}/out.safetensors", dir.path().display()));
    assert!(traced.current_dir(dir.path()).status().unwrap().success());
    let trace = fs::read_to_string(dir.path().join("trace")).unwrap();
    // The file, and the directory after the file has its name.
    assert!(trace.lines().filter(|line| line.ends_with("= 0")).count() >= 2, "{trace}");
}

#[test]
fn tied_weights_and_metadata_go_along() {
    let dir = temp_dir();
    let weight = TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0]).unwrap();
    let tied = SaveOptions::new().metadata([("lm_head", "embed"), ("license", "mit")]);
    let bytes = serialize([("embed", &weight)], &tied).unwrap();
    fs::write(dir.path().join("in.safetensors"), bytes).unwrap();
    let out = format!("file://{}", dir.path().join("out").display());
    let run = |args: &[&str]| output(safetensors(dir.path(), args));
    run(&["convert", "in.safetensors", &out, "--prefix", "model."]);
    let metadata = run(&["metadata", "get", &out]);
    assert_eq!(metadata, "format=pt\nlicense=mit\nmodel.lm_head=model.embed\n");
}

#[test]
fn an_output_that_cannot_be_is_refused_before_anything_is_read() {
    let dir = temp_dir();
    let server = Web::new().with("in.safetensors", file());
    let input = server.address("in.safetensors");
    let out = server.address("out.safetensors");
    for (args, expected) in [
        (&[input.as_str(), &out][..], "nothing is saved to the Hub or to web servers"),
        (&[&input, "hf://owner/name"], "nothing is saved to the Hub or to web servers"),
        (&[&input, "file://host/a"], "expected file:///path"),
        (&[&input, "memory:///a.safetensors"], "empty when a command starts and lost when it ends"),
        (&[&input, "MEMORY:///a/"], "empty when a command starts and lost when it ends"),
        (&[&input, "s3://bucket/a.npz"], "NumPy's files are written to the disk only"),
        (&[&input, "s3://bucket/a.gguf"], "burnpack, GGUF and NumPy's files are written"),
        (&[&input, "s3://bucket/a.gguf", "--quantize", "f16"], "are written to the disk only"),
        (&[&input, "s3://bucket/a.safetensor"], "s3://bucket/a.safetensors is a file, and "),
        (&[&input, "s3://bucket/a.safetensor"], "s3://bucket/a.safetensor/ a directory"),
        (&[&input, "s3://bucket.st/m.st/a.st?b=c"], "s3://bucket.st/m.st/a.safetensors is a file"),
        (&[&input, "s3://bucket/a/", "--no-wait"], "need a directory on the disk"),
        (&[&input, "s3://bucket/a/", "--ranks", "2"], "need a directory on the disk"),
        (&[&input, "s3://bucket/a/model.safetensors.index.json"], "name the directory"),
    ] {
        let refused = error(safetensors(dir.path(), &[&["convert"], args].concat()), 2);
        assert!(refused.contains(expected), "{args:?}: {refused}");
    }
    assert!(server.take_log().is_empty());
    let args = ["convert", "memory:///a.safetensors", "out.safetensors"];
    let refused = error(safetensors(dir.path(), &args), 1);
    assert!(refused.contains("empty when a command starts and lost when it ends"), "{refused}");
}
