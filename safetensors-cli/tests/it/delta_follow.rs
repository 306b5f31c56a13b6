//! `safetensors delta follow`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::fixtures::*;

/// The values of the versions.
fn write(path: &Path, value: f32) {
    fs::create_dir_all(path).unwrap();
    let values = [1.0, value, 3.0];
    let tensors = [("w", array(&[3], &values))];
    let options = quick();
    save(path.join("model.safetensors"), tensors, &options).unwrap();
}

/// Makes the versions 0 to 3 of a run, and publishes only the first.
pub(crate) fn versions(dir: &Path) {
    for number in 0..=3_u8 {
        write(&dir.at(format!("step-{number}")), number.into());
        if let Some(before) = number.checked_sub(1) {
            let [old, new] = [before, number].map(|number| format!("step-{number}"));
            dir.run(&["delta", "make", &old, &new, &format!("weight_v00000{number}")]).success();
        }
    }
    fs::create_dir(dir.at("root")).unwrap();
    fs::rename(dir.at("step-0"), dir.at("root/weight_v000000")).unwrap();
}

fn publish(dir: &Path, number: u8) {
    let name = format!("weight_v00000{number}");
    fs::rename(dir.at(&name), dir.at("root").join(name)).unwrap();
}

#[test]
fn a_follower_prints_the_applied_versions() {
    let dir = temp_dir();
    versions(dir.path());
    let follow = |more: &[&str]| dir.run(&[&["delta", "follow", "root", "served"], more].concat());
    let said = |line: &str| format!("served: version {line}\n");
    follow(&["--once"]).success().stdout(said("000000, a full version")).stderr("");
    follow(&["--once"]).success().stdout("").stderr("");
    publish(dir.path(), 1);
    publish(dir.path(), 2);
    publish(dir.path(), 3);
    follow(&["--until", "2"]).success().stdout(said("000002, of version 000000 and 2 deltas"));
    dir.run("diff served step-2").success();
    follow(&["--until", "2", "--timeout", "0"]).success().stdout("");
    let late = "error: root: no version after 000003 came within 0 seconds\n";
    follow(&["--timeout", "0"])
        .code(124)
        .stdout(said("000003, of version 000002 and 1 delta"))
        .stderr(late);
    // The trainer starts over.
    fs::remove_dir_all(dir.at("root/weight_v000003")).unwrap();
    let anew = "000002, of the full version 000000 and 2 deltas, replacing version 000003";
    follow(&["--once"]).success().stdout(said(anew));
    dir.run("diff served step-2").success();
}

#[test]
fn a_follower_refuses_missing_versions_and_foreign_files() {
    let dir = temp_dir();
    versions(dir.path());
    let follow = |more: &[&str]| dir.run(&[&["delta", "follow"], more].concat());
    follow(&["nothing", "served", "--once"])
        .code(1)
        .stderr("error: nothing: there is no complete version\n");
    follow(&["root", "step-1", "--once"])
        .code(1)
        .stderr("error: step-1: the directory has files; --force replaces them\n");
    follow(&["root", "step-1", "--once", "--force"]).success();
    // Version 2 is not there.
    publish(dir.path(), 3);
    let gap = "a delta is missing between the versions \"000000\" and \"000002\"";
    follow(&["root", "served", "--once"]).fails(1, gap);
    fs::remove_dir_all(dir.at("root/weight_v000000")).unwrap();
    let base = ["root", "served", "--once", "--base", "step-2"];
    follow(&base[..3]).fails(1, "neither local nor published");
    follow(&base).success().stdout("served: version 000003, of BASE and 1 delta\n");
    for wrong in [
        &["root", "s3://bucket/out"][..],
        &["-", "out"],
        &["root", "out", "--once", "--timeout", "1"],
        &["root", "out", "--interval", "-1"],
        &["root", "out", "--interval", "soon"],
    ] {
        follow(wrong).code(2);
    }
    // Tensors that no delta changes are not known to be right.
    crate::delta::make_deltas(dir.path());
    fs::remove_dir_all(dir.at("root")).unwrap();
    fs::create_dir(dir.at("root")).unwrap();
    fs::rename(dir.at("theirs"), dir.at("root/weight_v000001")).unwrap();
    follow(&["root", "other", "--once", "--base", "old"])
        .warns("so unchanged tensors are not checked");
}

#[test]
fn a_follower_waits_for_new_versions() {
    let dir = temp_dir();
    versions(dir.path());
    let arguments = ["delta", "follow", "root", "served", "--until", "3", "--interval", "0.001"];
    let mut follower = std::process::Command::new(env!("CARGO_BIN_EXE_safetensors"))
        .current_dir(dir.path())
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    for number in 1..=3 {
        // It has the version before, and looks for the next.
        let line = lines.next().unwrap().unwrap();
        assert!(line.starts_with(&format!("served: version 00000{}", number - 1)), "{line}");
        publish(dir.path(), number);
    }
    assert!(lines.next().unwrap().unwrap().starts_with("served: version 000003"));
    assert!(follower.wait().unwrap().success());
    dir.run("diff served step-3").success();
}
