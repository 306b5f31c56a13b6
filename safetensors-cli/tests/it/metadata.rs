//! `safetensors metadata`: its output and its changes.

use crate::fixtures::*;

#[test]
fn entries_are_shown_set_removed_and_cleared() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "m.safetensors");
    let missing = "m.safetensors: there is no metadata key b; `safetensors metadata get PATH` \
                   lists the keys\n";
    let [unknown, kept] =
        ["error: ", "error: nothing was removed: "].map(|it| it.to_owned() + missing);
    let would = "would replace m.safetensors (2 tensors, 40 B): ";
    let [sets, removes] = ["set a\n", "remove a\n"].map(|it| would.to_owned() + it);
    let clears = "would change m.safetensors in place (2 tensors, 40 B): remove format\n";
    for (line, stdout, stderr) in [
        ("get m.safetensors", "format=pt\n", ""),
        ("set m.safetensors a=1=2 --dry-run", &*sets, ""),
        ("get m.safetensors", "format=pt\n", ""),
        ("set m.safetensors a=1=2 format=np", "m.safetensors: rewritten\n", ""),
        ("get m.safetensors", "a=1=2\nformat=np\n", ""),
        ("get m.safetensors format a", "format=np\na=1=2\n", ""),
        ("get m.safetensors a", "1=2\n", ""),
        ("get m.safetensors a --json", "{\n  \"a\": \"1=2\"\n}\n", ""),
        ("get m.safetensors b", "", &unknown),
        ("remove m.safetensors a b", "", &kept),
        ("remove m.safetensors a -n", &removes, ""),
        ("remove m.safetensors a", "m.safetensors: rewritten\n", ""),
        ("get m.safetensors", "format=np\n", ""),
        ("clear m.safetensors -n --in-place", clears, ""),
        ("clear m.safetensors --in-place", "m.safetensors: changed in place\n", ""),
        ("get m.safetensors", "", ""),
        ("clear m.safetensors", "m.safetensors: unchanged\n", ""),
    ] {
        let done = dir.run(&format!("metadata {line}"));
        done.code(i32::from(!stderr.is_empty()))
            .stdout(stdout.to_owned())
            .stderr(stderr.to_owned());
    }
    let values = Checkpoint::open(&path).unwrap().tensor("mask").unwrap().read().unwrap();
    assert_eq!(values.as_slice::<i64>().unwrap(), [1, 0]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    dir.run("metadata set m.safetensors novalue").code(2);
}

#[test]
fn hostile_values_are_escaped_unless_raw() {
    let dir = temp_dir();
    let path = hostile_file(dir.path());
    let shown = run("metadata get", &path, &[]).success().get_output().stdout.clone();
    assert!(
        is_plain(text(&shown)) && text(&shown).contains(r"line one\nline two\u{202e}"),
        "{shown:?}"
    );
    let raw = run("metadata get", &path, &["k\u{1b}]0;owned\u{7}", "--raw"]).success();
    raw.stdout("line one\nline two\u{202e}\n");
}

#[test]
fn a_backslash_and_a_line_end_do_not_look_alike() {
    let dir = temp_dir();
    let path = dir.at("m.safetensors");
    raw_file(&path, r#"{"__metadata__":{"a":"x\ny","b":"x\\ny","k\\":"\"it's\""}}"#, 0);
    run("metadata get", &path, &[]).success().stdout("a=x\\ny\nb=x\\\\ny\nk\\\\=\"it's\"\n");
    run("metadata get", &path, &["b"]).success().stdout("x\\\\ny\n");
    run("metadata get", &path, &["b", "--raw"]).success().stdout("x\\ny\n");
}

#[cfg(unix)]
#[test]
fn a_dry_run_fails_where_the_change_would() {
    use std::os::unix::fs::PermissionsExt;

    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let mode =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for (of_file, of_directory) in [(0o444, 0o755), (0o644, 0o555)] {
        mode(&path, of_file);
        for args in [&["metadata", "set"][..], &["metadata", "set", "-n"]] {
            let mut command = as_a_user(dir.path());
            mode(dir.path(), of_directory);
            let output = command.args(args).args(["model.safetensors", "a=b"]).output().unwrap();
            let error = text(&output.stderr);
            assert!(error.starts_with("error: model.safetensors: "), "{args:?}: {error}");
            assert_eq!(output.status.code(), Some(1));
        }
    }
    mode(dir.path(), 0o755);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

const SHARDS: [&str; 2] =
    ["m/model-00001-of-00002.safetensors", "m/model-00002-of-00002.safetensors"];

#[test]
fn all_files_of_a_checkpoint_are_changed() {
    let dir = temp_dir();
    fs::create_dir(dir.at("m")).unwrap();
    sharded(&dir.at("m"));
    let lines = |text: &str| native(&SHARDS.map(|shard| text.replace("FILE", shard)).concat());
    let changed = lines("FILE: rewritten\n");
    let would = |size: [&str; 2], keys: &str| {
        let line =
            |i: usize| format!("would replace {} (1 tensor, {}): {keys}\n", SHARDS[i], size[i]);
        native(&format!("{}{}", line(0), line(1)))
    };
    for (line, stdout) in [
        ("set m a=1 --dry-run", &*would(["8 B", "6 B"], "set a")),
        ("set m a=1", &changed),
        ("set m a=1", &lines("FILE: unchanged\n")),
        ("get m a", "1\n"),
        // A key of a single file is removed from that one.
        (
            "set m/model-00001-of-00002.safetensors b=2",
            &native("m/model-00001-of-00002.safetensors: rewritten\n"),
        ),
        ("remove m a b", &changed),
        ("get m", "format=pt\n"),
        ("clear m/model.safetensors.index.json", &changed),
    ] {
        dir.run(&format!("metadata {line}")).success().stdout(stdout.to_owned()).stderr("");
    }
    for shard in SHARDS {
        assert!(dir.open(shard).metadata().is_empty(), "{shard}");
    }
    assert_eq!(fs::read_dir(dir.at("m")).unwrap().count(), 3);
}

#[test]
fn all_files_of_a_checkpoint_are_checked_before_the_first_is_changed() {
    let dir = temp_dir();
    fs::create_dir(dir.at("m")).unwrap();
    sharded(&dir.at("m"));
    let before = SHARDS.map(|shard| dir.read(shard));
    let missing = contains("nothing was removed: ").and(contains("no metadata key b"));
    dir.run("metadata remove m format b").code(1).stdout("").stderr(missing);
    dir.write(SHARDS[1], &before[1][..20]);
    for line in ["set m a=1", "clear m", "remove m format", "set m a=1 --in-place"] {
        let error = native(SHARDS[1]);
        dir.run(&format!("metadata {line}")).fails(1, error).stdout("");
    }
    dir.run("digest --record m").code(1).stdout("");
    assert!(dir.read(SHARDS[0]) == before[0]);
    // A directory that holds two models is none.
    small_file(&dir.at("m"), "other.safetensors");
    fs::remove_file(dir.at("m/model.safetensors.index.json")).unwrap();
    dir.run("metadata set m a=1").code(1).stdout("");
}

#[test]
fn a_value_may_be_the_text_of_a_file() {
    let dir = temp_dir();
    small_file(dir.path(), "m.safetensors");
    dir.write("licence.txt", "one\ntwo = @three\n");
    dir.write("binary", b"\xff\xfe");
    dir.run("metadata set m.safetensors l=@licence.txt at=@@me e=a@b").success();
    for (key, value) in [("l", "one\ntwo = @three\n"), ("at", "@me"), ("e", "a@b")] {
        assert_eq!(dir.open("m.safetensors").metadata()[key], value);
    }
    let mut piped = safetensors();
    piped.current_dir(dir.path()).args(["metadata", "set", "m.safetensors", "in=@-"]);
    piped.write_stdin("piped").assert().success();
    assert_eq!(dir.open("m.safetensors").metadata()["in"], "piped");
    let before = dir.read("m.safetensors");
    dir.run("metadata set m.safetensors a=1 l=@gone").fails(1, "gone: ");
    dir.run("metadata set m.safetensors l=@binary").fails(1, "binary: a value must be text");
    assert!(dir.read("m.safetensors") == before);
    let init =
        "metadata modelspec init m.safetensors --architecture a/b --implementation i --title t";
    dir.run(&format!("{init} --set license=@licence.txt -n"))
        .success()
        .stdout(contains(": set modelspec.architecture, modelspec.implementation"));
    dir.run(&format!("{init} --set license=@licence.txt")).success();
    assert!(dir.open("m.safetensors").metadata()["modelspec.license"].starts_with("one"));
}

/// Runs a command that cannot write files of 100 kB and more. The limit simulates a full disk;
/// without the trap the system would kill the command.
#[cfg(target_os = "linux")]
fn limited(dir: &Path, line: &str) -> std::process::Output {
    let command = env!("CARGO_BIN_EXE_safetensors");
    let script = format!("trap '' XFSZ; ulimit -f 100; exec '{command}' {line}");
    let mut bash = std::process::Command::new("bash");
    bash.current_dir(dir).args(["-c", &script]).output().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn a_change_that_ends_between_two_files_is_completed_by_the_next() {
    let dir = temp_dir_on_disk();
    let long = vec![0.5_f32; 100_000];
    for (name, tensor, values) in [("a", "x", &long[..1]), ("b", "y", &long)] {
        let shape = [values.len()];
        let tensors = [(tensor, array(&shape, values))];
        save(dir.at(format!("{name}.safetensors")), tensors, &quick()).unwrap();
    }
    let map = r#"{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}"#;
    dir.write("model.safetensors.index.json", map);
    let before = dir.read("b.safetensors");
    let output = limited(dir.path(), "metadata set . k=v");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "./a.safetensors: rewritten\n");
    assert!(text(&output.stderr).starts_with("error: ./b.safetensors: File too large"));
    assert!(dir.read("b.safetensors") == before);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    let completed = "./a.safetensors: unchanged\n./b.safetensors: rewritten\n";
    dir.run("metadata set . k=v").success().stdout(completed);
}

#[cfg(target_os = "linux")]
#[test]
fn a_change_is_made_in_place_without_room_for_a_copy() {
    let dir = temp_dir_on_disk();
    let path = dir.at("m.safetensors");
    let weight = vec![0.5_f32; 100_000];
    let tensors = [("w", array(&[100_000], &weight))];
    save(&path, tensors, &quick().align(4096)).unwrap();
    let before = fs::read(&path).unwrap();
    let limited = |line: &str| {
        let output = limited(dir.path(), line);
        (output.status.code(), text(&output.stderr).to_owned())
    };
    let problem = "error: m.safetensors: File too large (os error 27); 404.1 kB are needed there: \
                   raise the limit of file sizes (`ulimit -f`)";
    let hint = ", or give --in-place, which needs hardly any if the new header fits into the space \
                of the old one";
    let long = format!("metadata set --in-place m.safetensors a={}", "x".repeat(5000));
    for (line, hint) in [
        ("metadata set m.safetensors a=b", hint),
        ("digest --record m.safetensors", hint),
        // This header does not fit.
        (&long, ""),
    ] {
        assert_eq!(limited(line), (Some(1), format!("{problem}{hint}\n")), "{line}");
        assert!(fs::read(&path).unwrap() == before, "{line}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{line}");
    }
    for line in
        ["metadata set m.safetensors a=b --in-place", "digest --record m.safetensors --in-place"]
    {
        assert_eq!(limited(line), (Some(0), String::new()), "{line}");
    }
    assert!(fs::read(&path).unwrap()[4096..] == before[4096..]);
    run("verify --digests", &path, &[]).success();
    run("digest --in-place", &path, &[]).code(2);
}

#[cfg(target_os = "linux")]
#[test]
fn a_change_that_cannot_be_printed_is_reported_as_done() {
    let dir = temp_dir_on_disk();
    let path = small_file(dir.path(), "m.safetensors");
    let rewritten = "error: m.safetensors is rewritten, but this could not be printed: ";
    run_full(dir.path(), "metadata set m.safetensors a=1").fails(1, rewritten);
    run_full(dir.path(), "digest --record m.safetensors").fails(1, rewritten);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.metadata()["a"], "1");
    assert!(checkpoint.metadata().contains_key(safetensors_core::digest::KEY));
}

/// The effect of a command on records and on other names of a file is reported, and a change that
/// would break an epoch of burn is refused.
#[test]
fn records_of_a_file_are_kept_right_or_the_change_is_refused() {
    let dir = temp_dir_on_disk();
    let path = small_file(dir.path(), "m.safetensors");
    let init = ["metadata", "modelspec", "init", "m.safetensors", "--architecture", "gpt-neo-x"];
    let rest = ["--implementation", "x", "--title", "t", "--set", "data_format=fp16", "--hash"];
    dir.run(&[&init[..], &rest].concat()).success();
    dir.run("digest --record m.safetensors").success();
    dir.run("verify --digests m.safetensors").success();

    let removed = "modelspec.hash_sha256 is removed: it is a digest of data that changes\n";
    let tensors = "safetensors_bridge.xxh3_128 is removed: it is a digest of data that changes\n";
    let said = format!("warning: new.safetensors: {removed}warning: new.safetensors: {tensors}");
    for dry_run in [&["--dry-run"][..], &[]] {
        let args = [&["convert", "m.safetensors", "new.safetensors"], dry_run].concat();
        dir.run(&args).warns(&*said);
    }
    dir.run("verify --digests new.safetensors").success();

    dir.write("m.safetensors.sig", "");
    let said = "warning: m.safetensors: the signature m.safetensors.sig no longer holds if it \
                covers this file: sign again\n";
    dir.run("metadata set m.safetensors a=1").success().stderr(said);
    fs::remove_file(dir.at("m.safetensors.sig")).unwrap();

    let (file, manifest) = (fs::read(&path).unwrap(), dir.at("manifest.json"));
    let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let digest = safetensors_core::digest::Digest::compute(&file[..header]);
    fs::write(&manifest, format!(r#"{{"header": "{digest}"}}"#)).unwrap();
    let refused =
        contains("manifest.json has a digest of this file's header, which would not match");
    for args in [
        &["metadata", "set", "m.safetensors", "a=2"][..],
        &["metadata", "set", "m.safetensors", "a=2", "--in-place", "--force"],
        &["metadata", "set", "m.safetensors", "a=2", "--dry-run"],
        &["metadata", "clear", "m.safetensors"],
        &["digest", "--record", "m.safetensors"],
        &[&init[..], &rest].concat(),
        &["convert", "m.safetensors", "m.safetensors", "--force"],
        &["convert", "m.safetensors", "m.safetensors", "--force", "--dry-run"],
        &["convert", "new.safetensors", "m.safetensors", "--force"],
    ] {
        dir.run(args).code(1).stderr(refused.clone());
    }
    assert!(fs::read(&path).unwrap() == file);
    fs::remove_file(manifest).unwrap();

    if !cfg!(any(unix, windows)) {
        return;
    }
    for name in ["one", "two"] {
        fs::hard_link(&path, dir.at(name)).unwrap();
    }
    let said = "warning: m.safetensors: has 3 names; it is written as a new file, and the others \
                keep the old one\n";
    dir.run("metadata remove m.safetensors a --in-place")
        .success()
        .stdout("m.safetensors: rewritten\n")
        .stderr(said);
    assert!(dir.read("two") == file);
    // It has one name again, and may get another.
    let args = ["digest", "--record", "m.safetensors", "--in-place"];
    let digests = "safetensors_bridge.xxh3_128";
    dir.run(&["metadata", "remove", "m.safetensors", digests, "--in-place"])
        .success()
        .stdout("m.safetensors: changed in place\n")
        .stderr("");
    fs::hard_link(&path, dir.at("three")).unwrap();
    let said = contains("has 2 names; it is written as a new file");
    dir.run(&args).success().stderr(said);
    assert!(!dir.open("three").metadata().contains_key(digests));
}
