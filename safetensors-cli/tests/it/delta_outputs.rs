//! The outputs of `safetensors delta`: other files in the directory stay, for every way to name it.

use super::delta::make_deltas;
use crate::fixtures::*;

/// Files of a training that belong to no version of the model.
const OTHERS: [&str; 5] =
    [".env", ".git/HEAD", "checkpoint-500/model.safetensors", "notes.txt", "optimizer.pt"];

/// A base `run` with other files in it, and a delta.
fn training(dir: &Path) {
    make_deltas(dir);
    fs::rename(dir.at("old"), dir.at("run")).unwrap();
    for name in OTHERS {
        fs::create_dir_all(dir.at("run").join(name).parent().unwrap()).unwrap();
        fs::write(dir.at("run").join(name), name).unwrap();
    }
}

/// Asserts that the new version and all other files are there, and nothing else.
fn assert_applied(out: &Path) {
    let w = Checkpoint::open(out).unwrap().tensor("w").unwrap().read().unwrap();
    assert_eq!(w.as_slice::<f32>().unwrap(), [1.0, 2.5, 3.0]);
    for name in OTHERS {
        assert_eq!(fs::read(out.join(name)).unwrap(), name.as_bytes());
    }
    let mut names = names_in(out);
    names.retain(|name| name != ".safetensors-follow.json");
    let top = OTHERS.map(|name| name.split('/').next().unwrap());
    let expected = [&top[..3], &["config.json", "model.safetensors"], &top[3..]].concat();
    assert_eq!(names, expected);
}

#[cfg(unix)]
#[test]
fn a_base_is_replaced_in_a_directory_of_any_name() {
    for (home, out) in [("", "run"), ("run", "."), ("", "run/."), ("run/.git", ".."), ("", "link")]
    {
        for follows in [false, true] {
            let dir = temp_dir();
            training(dir.path());
            std::os::unix::fs::symlink("run", dir.at("link")).unwrap();
            let root = dir.at("root");
            let delta = root.join("weight_v000001");
            fs::create_dir(&root).unwrap();
            fs::rename(dir.at("delta"), &delta).unwrap();
            let line = if follows {
                let base = dir.at("run");
                let (root, base) = (root.display(), base.display());
                format!("delta follow {root} {out} --base {base} --once --force")
            } else {
                format!("delta apply {out} {} {out} --force", delta.display())
            };
            run_in(&dir.at(home), &line).quiet();
            assert_applied(&dir.at("run"));
            assert!(dir.at("link").is_symlink());
        }
    }
}

/// As a volume in a container is one.
#[cfg(target_os = "linux")]
#[test]
fn a_mount_point_is_written_to() {
    let dir = temp_dir();
    training(dir.path());
    fs::create_dir(dir.at("mnt")).unwrap();
    let script = r#"mount -t tmpfs tmpfs mnt || exit 77
        cp -r run/. mnt && "$0" delta apply mnt delta mnt --force && "$0" diff mnt new &&
        cat mnt/.git/HEAD mnt/optimizer.pt && ls -A mnt | wc -l"#;
    let run = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(env!("CARGO_BIN_EXE_safetensors"))
        .current_dir(dir.path())
        .output();
    let Ok(output) = run else { return eprintln!("skipped: there is no unshare") };
    let [stdout, stderr] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    if output.status.code() == Some(77) || stderr.contains("unshare: ") {
        return eprintln!("skipped: {stderr}");
    }
    assert_eq!((output.status.code(), &*stderr), (Some(0), ""));
    assert!(stdout.ends_with("2 tensors equal\n.git/HEADoptimizer.pt7\n"), "{stdout}");
}

#[cfg(unix)]
#[test]
fn a_directory_that_cannot_be_written_is_refused_and_stays() {
    use std::os::unix::fs::PermissionsExt;

    let dir = temp_dir();
    training(dir.path());
    let out = dir.at("run");
    fs::set_permissions(&out, fs::Permissions::from_mode(0o555)).unwrap();
    let apply = ["delta", "apply", "run", "delta", "run", "--force"];
    let output = as_a_user(dir.path()).args(apply).output().unwrap();
    let stderr = text(&output.stderr);
    let expected = "error: run: Permission denied (os error 13); files are replaced in the \
                    directory, so it has to be writable\n";
    assert_eq!((output.status.code(), stderr), (Some(1), expected));
    fs::set_permissions(&out, fs::Permissions::from_mode(0o755)).unwrap();
    dir.run(&apply).success();
    assert_applied(&out);
}

/// The rule about outputs is the same as for the other commands, which `existing` tests.
#[test]
fn an_applied_delta_names_the_files_it_replaces() {
    let dir = temp_dir();
    make_deltas(dir.path());
    let apply = |args: &[&str]| dir.run(&[&["delta", "apply", "old"], args].concat());
    apply(&["delta", "out", "-n"]).success().stdout("would write out (version 000001)\n");
    assert!(!dir.at("out").exists());
    // Its other files are copied, but replace only files of a checkpoint.
    fs::create_dir(dir.at("out")).unwrap();
    dir.write("out/config.json", "mine");
    dir.write("old/config.json", "{}");
    let kept = "warning: not copied to out: config.json; such files are there already";
    apply(&["delta", "out"]).success().stderr(starts_with(kept));
    assert_eq!(dir.text("out/config.json"), "mine");
    let exists = "error: out exists: it has 2 tensors, 28 B, and would be replaced; --force \
                  replaces it\n";
    apply(&["delta", "out", "-n"]).code(1).stdout("").stderr(exists);
    apply(&["delta", "out"]).code(1).stdout("").stderr(exists);
    apply(&["delta", "old", "-n", "--force"])
        .success()
        .stdout("would replace old (2 tensors, 28 B) with version 000001\n");
    dir.run("delta verify delta --base old").success();
    // A dry run fails where the deltas do not fit.
    dir.run("delta apply new delta other -n")
        .fails(1, "its blake3 after the delta \"000001\" should be ");
}

#[test]
fn a_result_that_the_directory_would_not_open_as_is_refused() {
    let dir = temp_dir();
    make_deltas(dir.path());
    let run = |args: &[&str]| dir.run(args);
    fs::rename(dir.at("old/model.safetensors"), dir.at("old/a.safetensors")).unwrap();
    for options in [&["--force"][..], &["--force", "-n"], &["-n"]] {
        run(&[&["delta", "apply", "old", "delta", "new"], options].concat())
            .code(1)
            .stderr(contains("a.safetensors").and(contains("new")));
    }
    run(&["delta", "apply", "old", "delta", "absent", "-n"]).success();
    run(&["delta", "apply", "old", "delta", "absent"]).success();
    run(&["delta", "apply", "old", "delta", "old", "--force"]).success();
    run(&["diff", "old", "new"]).success();
    run(&["diff", "absent", "new"]).success();
}
