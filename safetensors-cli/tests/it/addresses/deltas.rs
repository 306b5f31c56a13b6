//! Deltas at addresses: made of them, verified, applied and followed there.

use super::hub_server::Server;
use super::hub_server::repo::Repo;
use super::*;
use crate::delta_follow::versions;

/// The files below some directories, by their names in a repository.
fn repo(dir: &Path, names: &[(&str, &str)]) -> Repo {
    let mut files = Vec::new();
    for (from, to) in names {
        for (name, bytes) in files_below(&dir.join(from)) {
            let name = if to.is_empty() { name } else { format!("{to}/{name}") };
            files.push((name, bytes));
        }
    }
    Repo::new(files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())))
}

#[test]
fn deltas_are_made_and_applied_from_addresses() {
    let dir = temp_dir();
    versions(dir.path());
    std::fs::write(dir.path().join("root/weight_v000000/config.json"), "{}").unwrap();
    let server = Server::start([
        ("owner/old", repo(dir.path(), &[("root/weight_v000000", "")])),
        ("owner/new", repo(dir.path(), &[("step-1", "")])),
        ("owner/delta", repo(dir.path(), &[("weight_v000001", "run/weight_v000001")])),
    ]);
    let run = |args: &[&str]| output(with_hub(&server, dir.path(), args));
    run(&["delta", "make", "hf://owner/old", "hf://owner/new", "made"]);
    let delta = "hf://owner/delta/run/weight_v000001";
    assert!(run(&["delta", "verify", delta, "--base", "hf://owner/old"]).contains("ok, 1 delta"));
    run(&["delta", "apply", "hf://owner/old", "made", "applied"]);
    run(&["delta", "apply", "hf://owner/old", delta, "applied", "--force"]);
    run(&["delta", "squash", "hf://owner/old", delta, "squashed"]);
    assert_eq!(run(&["diff", "applied", "step-1"]), "1 tensor equal\n");
}

#[test]
fn a_repository_is_followed() {
    let dir = temp_dir();
    versions(dir.path());
    std::fs::write(dir.path().join("root/weight_v000000/config.json"), "{}").unwrap();
    let [zero, one] = ["run/weight_v000000", "run/weight_v000001"];
    let full = ("root/weight_v000000", zero);
    let server = Server::start([("owner/name", repo(dir.path(), &[full]))]);
    let follow = ["delta", "follow", "hf://owner/name/run", "served", "--once"];
    let followed = || output(with_hub(&server, dir.path(), &follow));
    assert_eq!(followed(), "served: version 000000, a full version\n");
    assert!(dir.path().join("served/config.json").exists());
    server.set("owner/name", repo(dir.path(), &[full, ("weight_v000001", one)]));
    assert_eq!(followed(), "served: version 000001, of version 000000 and 1 delta\n");
    assert_eq!(followed(), "");
    assert_eq!(output(safetensors(dir.path(), &["diff", "served", "step-1"])), "1 tensor equal\n");
    // A web server cannot list its versions.
    let args = ["delta", "follow", "https://localhost/run", "served", "--once"];
    let refused = error(safetensors(dir.path(), &args), 2);
    assert!(refused.contains("a web server does not list"), "{refused}");
}
