//! `safetensors download`.

use std::fs;
use std::path::PathBuf;

use super::hub_server::repo::{Access, Repo};
use super::hub_server::{Server as Hub, TOKEN};
use super::*;

/// The directory of a snapshot.
fn snapshot(server: &Hub, dir: &Path, repo: &str) -> PathBuf {
    let folder = format!("models--{}", repo.replace('/', "--"));
    let commit = server.commit(repo, "main");
    dir.join("hf/hub").join(folder).join("snapshots").join(commit)
}

/// The names of the files of a snapshot.
fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn the_checkpoint_comes_and_its_directory_is_printed() {
    let dir = temp_dir();
    let server = Hub::start([("owner/name", repo()), ("owner/shards", sharded_repo())]);
    let expected = snapshot(&server, dir.path(), "owner/name");
    let mut command = with_hub(&server, dir.path(), &["download", "owner/name"]);
    // No progress where there is no terminal.
    command.assert().success().stdout(format!("{}\n", expected.display())).stderr("");
    assert_eq!(files(&expected), ["model.safetensors"]);
    // Again, without a request for the file, and offline without any.
    server.clear_log();
    let run = |args: &[&str]| with_hub(&server, dir.path(), args);
    output(run(&["download", "owner/name"]));
    assert_eq!(server.log().len(), 1);
    let mut offline = run(&["download", "hf://owner/name@main"]);
    offline.env("HF_HUB_OFFLINE", "1");
    assert_eq!(output(offline), format!("{}\n", expected.display()));
    assert_eq!(server.log().len(), 1);

    // A download is read offline, too, by its address.
    let mut offline = run(&["inspect", "hf://models/owner/name"]);
    offline.env("HF_HUB_OFFLINE", "1");
    assert!(output(offline).contains("hf://owner/name/model.safetensors"));
    assert_eq!(server.log().len(), 1);

    let printed = output(run(&["download", "owner/shards", "--quiet", "--max-workers", "1"]));
    let sharded = snapshot(&server, dir.path(), "owner/shards");
    assert_eq!(Path::new(printed.trim_end()), sharded);
    assert_eq!(files(&sharded).len(), shards().len());
    // The printed path opens.
    let verified = output(safetensors(dir.path(), &["verify", printed.trim_end()]));
    assert!(verified.contains("4 tensors"), "{verified}");
}

#[test]
fn files_are_chosen_as_by_hf_download() {
    let server = Hub::start([("owner/name", repo())]);
    let all = ["README.md", "config.json", "model.safetensors", "tokenizer.json", "unet"];
    for (args, expected) in [
        (&["config.json"][..], &["config.json"][..]),
        (&["config.json", "tok*"], &["config.json", "tokenizer.json"]),
        (&["--include", "*.json", "--exclude", "tok*"], &["config.json"]),
        (&["--exclude", "unet/*", "--exclude", "*.json"], &["README.md", "model.safetensors"]),
        (&["--include", "*"], &all),
        (&["--include", "[!a-q]*.json", "--include", "unet/"], &["tokenizer.json", "unet"]),
        (&["--also", "config.json"], &["config.json", "model.safetensors"]),
    ] {
        let dir = temp_dir();
        let args = [&["download", "owner/name", "--cache-dir", "cache"], args].concat();
        let printed = output(with_hub(&server, dir.path(), &args));
        let commit = server.commit("owner/name", "main");
        let snapshot = Path::new("cache/models--owner--name/snapshots").join(commit);
        assert_eq!(files(&dir.path().join(&snapshot)), expected, "{args:?}");
        // For one file the path is printed.
        let one = if args.len() == 5 && expected.len() == 1 { expected[0] } else { "" };
        assert_eq!(Path::new(printed.trim_end()), snapshot.join(one), "{args:?}");
        // Also from the cache alone.
        let mut offline = safetensors(dir.path(), &args);
        assert_eq!(output_of(offline.env("HF_HUB_OFFLINE", "1")), printed, "{args:?}");
    }
}

#[test]
fn a_directory_that_is_named_is_a_model_for_every_command() {
    let dir = temp_dir();
    let server = Hub::start([("owner/shards", sharded_repo()), ("owner/name", repo())]);
    let run = |args: &[&str]| with_hub(&server, dir.path(), &[&["download"], args].concat());
    let dry = ["owner/shards", "--local-dir", "model", "--dry-run"];
    assert!(!output(run(&dry)).contains("present"));
    assert!(!dir.path().join("model").exists());
    assert_eq!(output(run(&dry[..3])), "model\n");
    assert_eq!(output(run(&dry)).matches("present").count(), shards().len());
    assert_eq!(files(&dir.path().join("model")).len(), shards().len() + 1);
    assert!(!dir.path().join("hf").exists());
    let verified = output(safetensors(dir.path(), &["verify", "-r", "model"]));
    assert!(verified.contains("4 tensors") && !verified.contains("other file"), "{verified}");
    output(safetensors(dir.path(), &["inspect", "model"]));

    let one = ["owner/name", "config.json", "--local-dir", "model"];
    assert_eq!(output(run(&one)), "model/config.json\n");
    fs::write(dir.path().join("model/config.json"), "{\"mine\": 1}").unwrap();
    let said = error(run(&one), 1);
    assert!(said.contains("would be lost: \"config.json\"; --force replaces them"), "{said}");
    output(safetensors(dir.path(), &["convert", "model", "copy", "--dtype", "f16"]));
    assert!(files(&dir.path().join("copy")).contains(&"config.json".to_owned()));
    assert!(!dir.path().join("copy/.cache").exists());
    output(run(&[&one[..], &["--force"]].concat()));
    assert_eq!(fs::read(dir.path().join("model/config.json")).unwrap(), b"{\"a\": 1}");
    let mut offline = run(&one);
    assert_eq!(output_of(offline.env("HF_HUB_OFFLINE", "1")), "model/config.json\n");
    let refused = error(run(&["owner/name", "--force"]), 2);
    assert!(refused.contains("--local-dir"), "{refused}");
}

fn output_of(command: &mut Command) -> String {
    String::from_utf8(command.assert().success().get_output().stdout.clone()).unwrap()
}

#[test]
fn a_dry_run_lists_the_files_and_writes_nothing() {
    let dir = temp_dir();
    let server = Hub::start([("owner/name", repo()), ("owner/shards", sharded_repo())]);
    let run =
        |args: &[&str]| output(with_hub(&server, dir.path(), &[&["download"], args].concat()));
    let names = |shown: &str| -> Vec<String> {
        let words = shown.lines().filter_map(|line| line.split_whitespace().next());
        words.filter(|word| word.contains('.')).map(str::to_owned).collect()
    };
    let before = run(&["owner/name", "--include", "*.json", "--dry-run"]);
    assert_eq!(names(&before), ["config.json", "tokenizer.json"]);
    assert!(!before.contains("model.safetensors") && !before.contains("cached"), "{before}");
    let sharded = run(&["owner/shards", "--dry-run"]);
    assert_eq!(sharded.matches("-of-").count(), shards().len() - 1, "{sharded}");
    assert!(!dir.path().join("hf").exists());
    // The same files come, and are then in the cache.
    run(&["owner/name", "config.json"]);
    let after = run(&["owner/name", "--include", "*.json", "--dry-run"]);
    assert_eq!(names(&after), names(&before));
    assert_eq!(after.matches("cached").count(), 1, "{after}");
    run(&["owner/shards"]);
    server.clear_log();
    let cached = run(&["owner/shards", "--dry-run"]);
    assert_eq!(cached.matches("cached").count(), shards().len(), "{cached}");
    let mut offline = with_hub(&server, dir.path(), &["download", "owner/shards", "--dry-run"]);
    assert_eq!(output_of(offline.env("HF_HUB_OFFLINE", "1")), cached);
    let args = ["download", "owner/name", "absent.json", "--dry-run"];
    error(with_hub(&server, dir.path(), &args), 1);
}

#[test]
fn a_folder_and_a_revision_can_be_downloaded() {
    let dir = temp_dir();
    let with_tag = repo().commit("v1", [("model.safetensors", file())]);
    let server = Hub::start([("owner/name", with_tag)]);
    let run = |args: &[&str]| output(with_hub(&server, dir.path(), args));
    let printed = run(&["download", "hf://owner/name/unet"]);
    let expected = snapshot(&server, dir.path(), "owner/name").join("unet/model.safetensors");
    assert_eq!(Path::new(printed.trim_end()), expected);
    let tag = server.commit("owner/name", "v1");
    for args in [
        &["download", "owner/name@v1"][..],
        &["download", "owner/name", "--revision", "v1"],
        &["download", "hf://owner/name@v1"],
    ] {
        assert!(run(args).trim_end().ends_with(&tag));
    }
}

#[test]
fn wrong_usage_is_reported_before_any_request() {
    let dir = temp_dir();
    let server = Hub::start([("owner/name", repo())]);
    for (args, expected) in [
        (&["owner/name/file"][..], "is no repository"),
        (&["../name"], "is no repository"),
        (&["hf://owner"], "expected hf://owner/name"),
        (&["owner/name@a..b"], "is no revision"),
        (&["owner/name@v1", "--revision", "v2"], "given twice"),
        (&["hf://owner/name/unet", "config.json"], "name all files as FILE"),
        (&["hf://owner/name/unet", "--exclude", "*.bin"], "name all files as FILE"),
        (&["owner/name", "a", "--also", "b"], "cannot be used with"),
        (&["owner/name", "--max-workers", "0"], "a whole number from 1 to 65535"),
        (&["owner/name", "--repo-type", "bucket"], "invalid value 'bucket'"),
        (&["datasets/owner/name", "--repo-type", "dataset"], "is no repository"),
        (&["hf://datasets/owner/name", "--repo-type", "dataset"], "the address has the type"),
    ] {
        let refused = error(with_hub(&server, dir.path(), &[&["download"], args].concat()), 2);
        assert!(refused.contains(expected), "{args:?}: {refused}");
    }
    assert!(server.log().is_empty());
}

#[test]
fn failed_downloads_suggest_a_remedy() {
    let dir = temp_dir();
    let server = Hub::start([
        ("owner/name", repo()),
        ("owner/gated", repo().access(Access::Gated)),
        ("owner/text", Repo::new([("README.md", b"text".to_vec())])),
    ]);
    for (args, expected) in [
        (&["owner/absent"][..], "check the name, and set HF_TOKEN"),
        (&["owner/gated"], "accept the conditions at"),
        (&["owner/name@v9"], "no revision \"v9\""),
        (&["owner/name", "a.json"], "no file matches \"a.json\"; the repository has"),
        (&["owner/name", "--include", "*.json", "--exclude", "*"], "no file matches"),
        (&["owner/text"], "expected model.safetensors, an index"),
        (&["owner/gated", "--token", "hf_another_secret"], "the token is not valid"),
        (&["buckets/owner/name"], "; `safetensors convert hf://buckets/owner/name OUT` copies it"),
    ] {
        let said = error(with_hub(&server, dir.path(), &[&["download"], args].concat()), 1);
        assert!(said.contains(expected) && !said.contains("hf_another"), "{args:?}: {said}");
    }
    let args = ["download", "owner/gated", "--token", TOKEN];
    output(with_hub(&server, dir.path(), &args));
    let mut offline = safetensors(dir.path(), &["download", "owner/other"]);
    offline.env("HF_HUB_OFFLINE", "1");
    let said = error(offline, 1);
    assert!(said.contains("is not in ") && said.contains("HF_HUB_OFFLINE"), "{said}");
}

#[test]
fn a_renamed_repository_is_followed_by_option() {
    let dir = temp_dir();
    let renamed = Repo { renamed_to: Some("new/name".into()), ..repo() };
    let server = Hub::start([("old/name", renamed), ("new/name", repo())]);
    let said = error(with_hub(&server, dir.path(), &["download", "old/name"]), 1);
    let option = "--follow-renames";
    let expected = format!("renamed to new/name; use that name; {option} follows\n");
    assert!(said.ends_with(&expected), "{said}");
    output(with_hub(&server, dir.path(), &["download", "old/name", option]));
}

#[test]
fn the_type_of_a_repository_is_an_option_as_in_hf() {
    let dir = temp_dir();
    let server = Hub::start([("datasets/owner/name", repo())]);
    let download =
        |args: &[&str]| output(with_hub(&server, dir.path(), &[&["download"], args].concat()));
    let by_name = download(&["datasets/owner/name"]);
    assert_eq!(download(&["owner/name", "--repo-type", "dataset"]), by_name);
    assert!(by_name.contains("datasets--owner--name"), "{by_name}");
    error(with_hub(&server, dir.path(), &["download", "owner/name", "--repo-type", "model"]), 1);
}
