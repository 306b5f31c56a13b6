//! `safetensors verify`: how files are named, found and passed over.

use crate::fixtures::*;

#[test]
fn other_ways_to_name_a_file_are_the_same_file() {
    let dir = temp_dir();
    small_file(dir.path(), "a.safetensors");
    let mut command = safetensors();
    let absolute = dir.at("a.safetensors");
    command
        .current_dir(dir.path())
        .args(["verify", "a.safetensors", "./a.safetensors", "."])
        .arg(&absolute);
    command
        .assert()
        .success()
        .stdout("a.safetensors: ok, 2 tensors, 8 parameters, 40 B\n")
        .stderr("");
}

/// Windows and macOS find a shard in any case of the name in the index.
#[test]
fn a_shard_that_the_index_names_in_other_case_is_checked_once() {
    let dir = temp_dir();
    let index = sharded(dir.path());
    let named = fs::read_to_string(&index).unwrap();
    fs::write(&index, named.replace("model-00002", "Model-00002")).unwrap();
    let run = dir.run("verify --strict .");
    if dir.at("Model-00002-of-00002.safetensors").exists() {
        let expected =
            "./model.safetensors.index.json: ok, 2 shards, 2 tensors, 5 parameters, 14 B\n";
        run.success().stdout(native(expected)).stderr("");
    } else {
        run.code(1).stdout(contains("2 checked: 1 ok, 1 failed"));
    }
}

#[test]
fn two_variants_in_one_directory_are_no_strays() {
    let dir = temp_dir();
    sharded(dir.path());
    for i in 1..=2 {
        let name = |variant| dir.at(format!("model{variant}-0000{i}-of-00002.safetensors"));
        fs::copy(name(""), name(".fp16")).unwrap();
    }
    let index = dir.text("model.safetensors.index.json");
    fs::write(dir.at("model.fp16.safetensors.index.json"), index.replace("model-", "model.fp16-"))
        .unwrap();
    safetensors().args(["verify", "--strict"]).arg(dir.path()).assert().quiet();
    safetensors()
        .args(["verify", "--strict"])
        .arg(dir.at("model.safetensors.index.json"))
        .assert()
        .success();
}

#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_is_not_passed_over() {
    let dir = temp_dir();
    small_file(dir.path(), "good.safetensors");
    std::os::unix::fs::symlink("../blobs/gone", dir.at("model.safetensors")).unwrap();
    // A link to a directory is not followed, and does not count as a file.
    std::os::unix::fs::symlink(".", dir.at("loop.safetensors")).unwrap();
    let mut command = safetensors();
    let error = matches("^error: ./model.safetensors: No such file[^\n]*\n$");
    let command = command.current_dir(dir.path()).args(["verify", "."]).assert();
    command.code(1).stdout(contains("2 checked: 1 ok, 1 failed")).stderr(error);
}

#[cfg(unix)]
#[test]
fn an_unreadable_directory_is_a_separate_failure() {
    use std::os::unix::fs::PermissionsExt;

    let dir = temp_dir();
    small_file(dir.path(), "good.safetensors");
    fs::create_dir(dir.at("secret")).unwrap();
    sharded(&dir.at("secret"));
    let lock =
        |mode| fs::set_permissions(dir.at("secret"), fs::Permissions::from_mode(mode)).unwrap();
    lock(0o000);
    let verify = |path: &str| as_a_user(dir.path()).args(["verify", path]).output();
    // Other users may have no access to root's build directory.
    let Ok(output) = verify(".") else { return };
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "error: ./secret: Permission denied (os error 13)\n");
    let expected = "./good.safetensors: ok, 2 tensors, 8 parameters, 40 B\n\n2 checked: 1 ok, 1 failed; 40 B\n";
    assert_eq!(text(&output.stdout), expected);
    let index = "secret/model.safetensors.index.json";
    assert_eq!(
        text(&verify(index).unwrap().stderr),
        format!("error: {index}: Permission denied (os error 13)\n")
    );
    // In a directory that can be searched but not listed, an index cannot be audited either.
    lock(0o711);
    assert_eq!(
        text(&verify(index).unwrap().stderr),
        "error: secret: Permission denied (os error 13)\n"
    );
    lock(0o755);
}

#[cfg(unix)]
#[test]
fn a_fifo_in_a_directory_is_refused_without_waiting() {
    let dir = temp_dir();
    let fifo = dir.at("fifo.safetensors");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut command = safetensors();
    command.timeout(std::time::Duration::from_secs(20)).arg("verify").arg(dir.path());
    command.assert().fails(1, "expected a regular file");
}

#[test]
fn files_with_names_in_upper_case_are_verified() {
    let dir = temp_dir();
    small_file(dir.path(), "X.SAFETENSORS");
    dir.write("bad.SafeTensors", "no header");
    let verify = safetensors().current_dir(dir.path()).args(["verify", "."]).assert();
    let sound = native("./X.SAFETENSORS: ok, 2 tensors, 8 parameters, 40 B\n");
    verify
        .code(1)
        .stdout(format!("{sound}\n2 checked: 1 ok, 1 failed; 40 B\n"))
        .stderr(contains("bad.SafeTensors"));
}
