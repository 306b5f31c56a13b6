//! `safetensors cache`.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::hub_server::Server as Hub;
use super::*;

/// A cache with two models.
fn filled(dir: &Path) -> Hub {
    let server = Hub::start([("owner/name", repo()), ("owner/shards", sharded_repo())]);
    for repo in ["owner/name", "owner/shards"] {
        output(with_hub(&server, dir, &["download", repo, "--cache-dir", "cache"]));
    }
    server
}

fn run(dir: &Path, args: &[&str]) -> Command {
    let mut command = safetensors(dir, args);
    command.env("HF_HUB_CACHE", dir.join("cache"));
    command
}

fn json(dir: &Path, command: &str) -> Value {
    serde_json::from_str(&output(run(dir, &["cache", command, "--json"]))).unwrap()
}

/// The largest blob of a model.
fn blob(dir: &Path, repo: &str) -> PathBuf {
    let blobs = dir.join("cache").join(repo).join("blobs");
    let paths = fs::read_dir(blobs).unwrap().map(|entry| entry.unwrap().path());
    paths.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap()
}

#[test]
fn models_are_listed_with_their_revisions() {
    let dir = temp_dir();
    let server = filled(dir.path());
    let commit = server.commit("owner/name", "main");
    let listed = output(run(dir.path(), &["cache", "list"]));
    let rows: Vec<Vec<&str>> =
        listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["repository", "revision", "commit", "files", "size"]);
    assert_eq!(rows[2], ["owner/name", "main", &commit, "1", "2.1", "MB"]);
    assert_eq!(rows[3][0], "owner/shards");
    let cache = dir.path().join("cache");
    assert!(listed.ends_with(&format!("{}: 2 repos, 4.2 MB\n", cache.display())), "{listed}");

    let json = json(dir.path(), "list");
    assert_eq!(json["path"], cache.to_str().unwrap());
    let snapshot = &json["repos"][0]["snapshots"][0];
    assert_eq!((&snapshot["commit"], &snapshot["revisions"][0]), (&commit.into(), &"main".into()));
    assert_eq!(snapshot["bytes"], file().len());
    assert_eq!(snapshot["files"], serde_json::json!(["model.safetensors"]));
    assert!(Path::new(snapshot["path"].as_str().unwrap()).join("model.safetensors").is_file());

    let one = output(run(dir.path(), &["cache", "list", "owner/shards"]));
    assert!(one.contains("1 repo,") && !one.contains("owner/name"), "{one}");
    let missing = error(run(dir.path(), &["cache", "size", "owner/absent"]), 1);
    assert!(missing.contains("`safetensors download owner/absent`"), "{missing}");
    error(run(dir.path(), &["cache", "list", "../x"]), 2);
}

#[test]
fn sizes_equal_the_files_on_the_disk() {
    let dir = temp_dir();
    filled(dir.path());
    let before = json(dir.path(), "size");
    assert_eq!(before["repos"][1]["bytes"], file().len());
    // An unfinished download, and a second snapshot with the same file.
    let blob = blob(dir.path(), "models--owner--name");
    fs::write(blob.with_extension("0123abcd.incomplete"), vec![0; 3_000_000]).unwrap();
    let second = dir.path().join("cache/models--owner--name/snapshots").join("0".repeat(40));
    fs::create_dir(&second).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(&blob, second.join("model.safetensors")).unwrap();
    let after = json(dir.path(), "size");
    assert_eq!(after["bytes"], before["bytes"].as_u64().unwrap() + 3_000_000);
    assert_eq!(after["repos"][0]["repo"], "owner/name");
    let shown = output(run(dir.path(), &["cache", "size"]));
    assert!(shown.contains("owner/name") && shown.contains("5.1 MB"), "{shown}");
}

#[test]
fn cache_verify_reports_a_damaged_file() {
    let dir = temp_dir();
    let server = filled(dir.path());
    let intact = output(run(dir.path(), &["cache", "verify"]));
    assert!(intact.contains("owner/name: ok") && intact.ends_with("2 repos checked: 2 intact\n"));
    let blob = blob(dir.path(), "models--owner--shards");
    let mut bytes = fs::read(&blob).unwrap();
    bytes[1000] ^= 1;
    fs::write(&blob, bytes).unwrap();
    let said = error(run(dir.path(), &["cache", "verify"]), 1);
    assert!(said.contains("expected the SHA-256"), "{said}");
    assert!(said.contains(blob.to_str().unwrap()) && said.contains("remove the file"), "{said}");
    output(run(dir.path(), &["cache", "verify", "owner/name"]));
    let mut command = run(dir.path(), &["cache", "verify", "--json"]);
    let found: Value =
        serde_json::from_slice(&command.assert().code(1).get_output().stdout).unwrap();
    let states = [&found, &found["repos"][0], &found["repos"][1]].map(|it| &it["state"]);
    assert_eq!(states, ["damaged", "ok", "damaged"]);
    assert_eq!(found["repos"][1]["damaged"][0]["path"], blob.to_str().unwrap());
    // As the message says.
    fs::remove_file(&blob).unwrap();
    let args = ["download", "owner/shards", "--cache-dir", "cache"];
    output(with_hub(&server, dir.path(), &args));
    output(run(dir.path(), &["cache", "verify"]));
}

#[test]
fn a_file_that_was_compared_with_nothing_is_not_verified() {
    let dir = temp_dir();
    filled(dir.path());
    let repo = dir.path().join("cache/models--owner--shards");
    let odd = repo.join("blobs/odd-1");
    fs::write(&odd, "x").unwrap();
    let snapshot = fs::read_dir(repo.join("snapshots")).unwrap().next().unwrap().unwrap().path();
    let copy = snapshot.join("copy.json");
    fs::write(&copy, "y").unwrap();

    let assert = run(dir.path(), &["cache", "verify"]).assert().success();
    let [shown, said] = [&assert.get_output().stdout, &assert.get_output().stderr]
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(shown.contains("owner/name: ok") && !shown.contains("owner/shards: ok"), "{shown}");
    assert!(shown.contains("owner/shards: not verified: 2 of "), "{shown}");
    assert!(shown.ends_with("2 repos checked: 1 intact, 1 not verified\n"), "{shown}");
    for path in [&odd, &copy] {
        let line = format!("warning: {}: not verified: ", path.display());
        assert!(said.contains(&line), "{said}");
    }
    let found = json(dir.path(), "verify");
    let shards = &found["repos"][1];
    assert_eq!([&found["state"], &shards["state"]], ["unverified", "unverified"]);
    assert_eq!(found["repos"][0]["verified"], 1);
    assert_eq!(shards["unverified"][1]["path"], copy.to_str().unwrap());
    let said = error(run(dir.path(), &["cache", "verify", "--strict"]), 1);
    assert!(said.contains("error: ") && said.contains("copy.json"), "{said}");
    output(run(dir.path(), &["cache", "verify", "--strict", "owner/name"]));

    // A file that is damaged counts more.
    let blob = blob(dir.path(), "models--owner--shards");
    fs::write(&blob, "z").unwrap();
    error(run(dir.path(), &["cache", "verify"]), 1);
}

#[test]
fn a_branch_without_its_snapshot_is_reported() {
    let dir = temp_dir();
    let server = filled(dir.path());
    let repo = dir.path().join("cache/models--owner--shards");
    fs::remove_dir_all(repo.join("snapshots")).unwrap();
    let commit = server.commit("owner/shards", "main");
    let listed = output(run(dir.path(), &["cache", "list"]));
    let row = listed.lines().find(|line| line.starts_with("owner/shards")).expect(&listed);
    let row: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(row, ["owner/shards", "main", &commit, "no", "snapshot"]);
    let json = json(dir.path(), "list");
    let lost = serde_json::json!({ "main": commit });
    assert_eq!(json["repos"][1]["revisions_without_snapshot"], lost);
    assert_eq!(json["repos"][0]["revisions_without_snapshot"], serde_json::json!({}));

    let assert = run(dir.path(), &["cache", "verify"]).assert().success();
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    let named = format!("warning: {}: not verified: ", repo.join("refs/main").display());
    assert!(said.contains(&named) && said.contains("no snapshot of its commit"), "{said}");
    error(run(dir.path(), &["cache", "verify", "--strict"]), 1);
}

#[test]
fn a_cache_that_does_not_exist_is_empty() {
    let dir = temp_dir();
    for command in ["list", "verify", "size"] {
        let shown = output(run(dir.path(), &["cache", command]));
        assert!(shown.contains("0 repos"), "{shown}");
    }
    assert_eq!(json(dir.path(), "list")["repos"], serde_json::json!([]));
    let shown = output(run(dir.path(), &["cache", "list"]));
    assert!(
        shown.ends_with("cache: 0 repos; the first download makes this directory\n"),
        "{shown}"
    );
}

#[test]
fn a_directory_that_is_named_has_to_be_one() {
    let dir = temp_dir();
    fs::write(dir.path().join("file"), "").unwrap();
    for command in ["list", "verify", "size"] {
        let said = |path| error(run(dir.path(), &["cache", command, "--cache-dir", path]), 1);
        assert_eq!(said("absent"), "error: absent: there is no such directory\n");
        let expected = "error: file: expected the directory of a cache, found a file\n";
        assert_eq!(said("file"), expected);
    }
}

#[test]
fn repositories_are_removed_after_a_dry_run_and_with_force() {
    let dir = temp_dir();
    let server = filled(dir.path());
    let rm =
        |options: &[&str]| run(dir.path(), &[&["cache", "rm", "owner/name"], options].concat());
    assert_eq!(output(rm(&["--dry-run"])), "would remove 2.1 MB of owner/name\n");
    let refused = error(rm(&[]), 1);
    assert!(refused.contains("2.1 MB of 1 repo would be removed; --force removes it"), "{refused}");
    assert_eq!(json(dir.path(), "list")["repos"].as_array().unwrap().len(), 2);
    assert_eq!(output(rm(&["--force"])), "removed 2.1 MB of owner/name\n");
    let left = json(dir.path(), "list");
    assert_eq!(left["repos"].as_array().unwrap().len(), 1);
    assert_eq!(left["repos"][0]["repo"], "owner/shards");
    assert!(error(rm(&["--force"]), 1).contains("owner/name is not in the cache"));
    assert!(error(run(dir.path(), &["cache", "rm"]), 2).contains("name the repositories"));
    // It comes back.
    output(with_hub(&server, dir.path(), &["download", "owner/name", "--cache-dir", "cache"]));
    output(run(dir.path(), &["cache", "verify", "--strict"]));
}

#[test]
fn commits_that_nothing_leads_to_are_pruned() {
    let dir = temp_dir();
    let _server = filled(dir.path());
    let prune = |options: &[&str]| run(dir.path(), &[&["cache", "prune"], options].concat());
    let nothing = output(prune(&["--dry-run"]));
    assert!(nothing.ends_with(": nothing to remove\n"), "{nothing}");
    // The branch is another commit by now.
    let repo = dir.path().join("cache/models--owner--name");
    let old = repo.join("snapshots").join("0".repeat(40));
    fs::create_dir(&old).unwrap();
    fs::write(old.join("copy"), vec![0; 3000]).unwrap();
    assert_eq!(output(prune(&["-n"])), "would remove 3.0 kB of owner/name\n");
    assert!(error(prune(&[]), 1).contains("3.0 kB of 1 repo would be removed; --force"));
    assert!(old.is_dir());
    assert_eq!(output(prune(&["--force", "owner/name"])), "removed 3.0 kB of owner/name\n");
    assert!(!old.exists());
    output(run(dir.path(), &["cache", "verify", "--strict"]));
}
