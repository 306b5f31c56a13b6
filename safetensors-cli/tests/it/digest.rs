//! `safetensors digest`: its output, and the data that it must not read.

use crate::fixtures::*;

fn digest(dir: &Path, args: &[&str]) -> assert_cmd::assert::Assert {
    let mut command = safetensors();
    command.current_dir(dir).arg("digest").args(args);
    command.assert()
}

#[test]
fn the_same_data_gives_the_same_lines_whatever_the_file_is_called() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "a.safetensors");
    fs::copy(path, dir.at("b.safetensors")).unwrap();
    let expected = "\
2d0408b485dd77b108c27fcd95d1fea5  embed.weight
137ec3075546cf034a4fe11e9c4a1079  mask
sha256:f4eade7ce7f15bfd58452485aa93725843b4ef7d95007b82418c081b0199ed1a  (all data)
";
    for name in ["a.safetensors", "b.safetensors"] {
        digest(dir.path(), &[name]).success().stdout(expected).stderr("");
    }
}

#[test]
fn files_of_a_checkpoint_have_the_names_of_its_index() {
    let dir = temp_dir();
    sharded(dir.path());
    let expected = "\
4533ce61c4655ba3c3e077b25dd1d769  a
26121f4bc95d869c5e03b39ffd128642  b
sha256:b9c80b5adeca450753a16950c3cc655d271f7bef7a485bc83f112b72fef21d37  model-00001-of-00002.safetensors
sha256:047dbf5366372631ba7e3e02520e651446b899c96c4b64663bac378a298a7bf7  model-00002-of-00002.safetensors
";
    digest(dir.path(), &["."]).success().stdout(expected).stderr("");
}

#[cfg(unix)]
#[test]
fn a_filter_leaves_files_out_and_their_other_tensors_unread() {
    let dir = temp_dir();
    let header = concat!(
        r#"{"small":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"#,
        r#""large":{"dtype":"U8","shape":[1099511627776],"data_offsets":[8,1099511627784]}}"#
    );
    let path = dir.at("a.safetensors");
    raw_file(&path, header, 8);
    // A sparse terabyte, which would take minutes to read.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    if file.set_len(file.metadata().unwrap().len() + (1 << 40)).is_err() {
        return;
    }
    let mut command = safetensors();
    command
        .timeout(std::time::Duration::from_secs(60))
        .arg("digest")
        .arg(&path)
        .args(["-f", "small", "--json"]);
    let json = command.assert().success().json();
    assert_eq!(
        (json["tensors"].as_array().unwrap().len(), &json["files"]),
        (1, &serde_json::json!([]))
    );
}

#[test]
fn each_file_of_a_checkpoint_is_recorded() {
    let dir = temp_dir();
    sharded(dir.path());
    let lines = "\
./model-00001-of-00002.safetensors: 1 digest recorded
./model-00002-of-00002.safetensors: 1 digest recorded
";
    digest(dir.path(), &["--record", "."]).success().stdout(native(lines)).stderr("");
    let right = contains(", 2 digests right");
    dir.run("verify --digests .").success().stdout(right).stderr("");
}

#[test]
fn digests_are_printed_recorded_and_checked() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let digests = || text(&run("digest", &path, &[]).success().get_output().stdout).to_owned();
    let before = digests();
    let lines: Vec<_> = before.lines().collect();
    assert!(
        lines.len() == 3 && lines[0].ends_with("  embed.weight") && lines[2].starts_with("sha256:"),
        "{before}"
    );
    run("verify --digests", &path, &[]).warns("records no digests");
    run("digest --record", &path, &[]).shows("2 digests recorded");
    assert_eq!(digests(), before, "metadata makes no difference");
    run("verify --digests", &path, &[]).shows(", 2 digests right");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    run("verify", &path, &[]).success();
    run("verify --digests", &path, &[]).fails(1, "\"mask\"");
    let json = run("digest --json -f 'embed*'", &path, &[]).success().json();
    assert_eq!(
        format!("{}  embed.weight", json["tensors"][0]["xxh3_128"].as_str().unwrap()),
        lines[0]
    );
}

/// Returns the output of `sha256sum` for files.
fn sha256(dir: &Path, names: &[&str]) -> String {
    use sha2::Digest;

    let lines = names.iter().map(|name| {
        let hash = sha2::Sha256::digest(dir.read(name));
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{hex}  {}\n", native(name))
    });
    lines.collect()
}

#[test]
fn the_digest_of_a_checkpoint_does_not_depend_on_shards_order_or_metadata() {
    let dir = temp_dir();
    let (a, b) = ([1.0_f32, 2.0], [3_u8; 5]);
    let tensors = || [("a", array(&[2], &a)), ("b", array(&[5], &b))];
    save(dir.at("one"), tensors(), &quick()).unwrap();
    let mut other = tensors();
    other.reverse();
    let options = quick().order(safetensors_core::save::Order::Given).metadata([("k", "v")]);
    save(dir.at("other"), other, &options).unwrap();
    dir.run("convert one shards/ --max-shard-size 8").success();
    let of = |path: &str| {
        let line = dir.run(&["digest", "--checkpoint", path]).quiet().out();
        line.strip_suffix(&format!("  {path}\n")).unwrap().to_owned()
    };
    let digest = of("one");
    // BLAKE3 of `["a","F32",[2],"…"]` and `["b","U8",[5],"…"]`, computed by another program.
    assert_eq!(digest, "blake3:7bfd9c27d46ec2009ca4b0c8625c927fae91de43581ee8a480fa555b05e7d6dd");
    for same in ["other", "shards", "shards/model.safetensors.index.json"] {
        assert_eq!(of(same), digest, "{same}");
    }
    // A delta knows its base by it.
    dir.run("delta make one shards delta").success();
    let inspected = dir.run("delta inspect --json delta").json();
    assert_eq!(
        format!("blake3:{}", inspected["deltas"][0]["base_digest"].as_str().unwrap()),
        digest
    );
    // A name, a dtype, a shape, a value.
    for changed in [
        [("a", array(&[2], &a)), ("c", array(&[5], &b))],
        [("a", array(&[1, 2], &a)), ("b", array(&[5], &b))],
        [("a", array(&[2], &[1.0_f32, 2.5])), ("b", array(&[5], &b))],
        [("a", array(&[2], &a)), ("b", array(&[5], &[3_i8; 5]))],
    ] {
        save(dir.at("changed"), changed, &quick()).unwrap();
        assert_ne!(of("changed"), digest);
    }
    let both = dir.run("digest --checkpoint one gone shards").code(1);
    both.stdout(format!("{digest}  one\n{digest}  shards\n")).stderr(contains("gone"));
    let json = dir.run("digest --checkpoint --json one").json();
    assert_eq!(format!("blake3:{}", json["checkpoint"].as_str().unwrap()), digest);
    fs::copy(crate::other_formats::fixture("stored.npz"), dir.at("a.npz")).unwrap();
    for paths in ["a.npz", "one a.npz"] {
        let says = "error: a.npz: the digest of a checkpoint is the one of safetensors files; ";
        dir.run(&format!("digest --checkpoint {paths}")).code(1).stderr(starts_with(says));
    }
}

#[test]
fn a_quantised_tensor_of_gguf_has_the_digest_of_its_bytes() {
    let dir = temp_dir();
    // One block of Q8_0: a scale, and 32 codes.
    let block: Vec<u8> = [0, 60].into_iter().chain(0..32).collect();
    let mut gguf = [&b"GGUF"[..], &3_u32.to_le_bytes(), &1_u64.to_le_bytes()].concat();
    gguf.extend(0_u64.to_le_bytes());
    gguf.extend([&1_u64.to_le_bytes()[..], b"w", &1_u32.to_le_bytes()].concat());
    gguf.extend([&32_u64.to_le_bytes()[..], &8_u32.to_le_bytes(), &[0; 8]].concat());
    gguf.resize(gguf.len().next_multiple_of(32), 0);
    gguf.extend(&block);
    dir.write("a.gguf", &gguf);
    let bytes = array(&[34], &block);
    save(dir.at("b.safetensors"), [("w", bytes)], &quick()).unwrap();
    let of_bytes = dir.run("digest -f w b.safetensors").success().out();
    assert_eq!(dir.run("digest a.gguf").success().quiet().out(), of_bytes);
}

#[test]
fn the_digest_of_a_file_is_the_one_of_sha256sum() {
    let dir = temp_dir();
    fs::create_dir(dir.at("m")).unwrap();
    sharded(&dir.at("m"));
    small_file(dir.path(), "a.safetensors");
    fs::copy(crate::other_formats::fixture("stored.npz"), dir.at("a.npz")).unwrap();
    let shards = ["m/model-00001-of-00002.safetensors", "m/model-00002-of-00002.safetensors"];
    let all = [&shards[..], &["a.safetensors", "a.npz"]].concat();
    let expected = sha256(dir.path(), &all);
    let files = dir.run("digest --files m a.safetensors a.npz").quiet().out();
    assert_eq!(files, expected);
    let json = dir.run("digest --files --json a.safetensors").json();
    assert!(expected.contains(json["files"][0]["sha256"].as_str().unwrap()));
    for options in ["--files --checkpoint", "--files -f a", "--files --record", "--check -r", "-q"]
    {
        dir.run(&format!("digest a.safetensors {options}")).code(2);
    }
}

#[test]
fn a_list_of_digests_is_checked_as_sha256sum_does() {
    let dir = temp_dir();
    fs::create_dir(dir.at("m")).unwrap();
    sharded(&dir.at("m"));
    for name in ["a", "b c", "config.json"] {
        dir.write(name, name);
    }
    let list = sha256(dir.path(), &["a", "b c", "config.json"]);
    let checkpoint = dir.run("digest --checkpoint m").out();
    let tagged = {
        let (hex, name) = list.lines().next().unwrap().split_once("  ").unwrap();
        format!("SHA256 ({name}) = {}\n", hex.to_uppercase())
    };
    let binary = list.lines().nth(1).unwrap().replacen("  ", " *", 1);
    dir.write("SUMS", format!("# a comment\n{list}{checkpoint}{tagged}{binary}\r\n"));
    let right = "a: OK\nb c: OK\nconfig.json: OK\nm: OK\na: OK\nb c: OK\n";
    dir.run("digest --check SUMS").success().stdout(right).stderr("");
    dir.run("digest -c SUMS --quiet").success().stdout("").stderr("");
    let mut piped = safetensors();
    piped.current_dir(dir.path()).args(["digest", "--check", "-"]);
    piped.write_stdin(list.clone()).assert().success();

    dir.write("a", "changed");
    dir.run("metadata set m step=4").success();
    fs::remove_file(dir.at("config.json")).unwrap();
    dir.write("more", format!("{list}no digest\n{checkpoint}\n"));
    let told = dir.run("digest --check more --quiet").code(1);
    let told = told.stdout("a: FAILED\nconfig.json: FAILED open or read\n").err();
    let told: Vec<_> = told.lines().collect();
    assert!(told[0].starts_with("error: config.json: "), "{told:?}");
    assert_eq!(
        told[1..],
        [
            "warning: 2 lines without a digest and a name",
            "warning: 1 listed file could not be read",
            "warning: 1 computed digest did not match"
        ]
    );
    dir.run("digest --check a").fails(1, "a: not a list of digests and names").stdout("");
    dir.run("digest --check gone").code(1).stdout("");
}

/// Of a name with a backslash or a line end, the line begins with a backslash. All other bytes of a
/// name are in it as they are.
#[cfg(target_os = "linux")]
#[test]
fn names_of_any_bytes_are_listed_and_checked() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let dir = temp_dir();
    let content = fs::read(small_file(dir.path(), "in.safetensors")).unwrap();
    let (mut names, mut expected) = (Vec::new(), Vec::new());
    let hash = dir.run("digest --files in.safetensors").out();
    let hash = hash.split(' ').next().unwrap().to_owned();
    for (name, mark, listed) in [
        (&b"a\\b.safetensors"[..], "\\", &br"a\\b.safetensors"[..]),
        (b"line\nend.safetensors", "\\", br"line\nend.safetensors"),
        (b"return\r.safetensors", "\\", br"return\r.safetensors"),
        (b"\x1b[31mred.safetensors", "", b"\x1b[31mred.safetensors"),
        (b"caf\xe9\xc3\xa9.safetensors", "", b"caf\xe9\xc3\xa9.safetensors"),
    ] {
        let name = OsStr::from_bytes(name).to_owned();
        fs::write(dir.path().join(&name), &content).unwrap();
        names.push(name);
        expected.extend([mark.as_bytes(), hash.as_bytes(), b"  ", listed, b"\n"].concat());
    }
    let mut command = safetensors();
    command.current_dir(&dir).args(["digest", "--files"]).args(&names);
    let list = command.assert().success().get_output().stdout.clone();
    assert_eq!(list, expected);
    fs::write(dir.at("SUMS"), &list).unwrap();
    let checked = dir.run("digest --check SUMS").success().out();
    assert!(is_plain(&checked.replace('\n', "")), "{checked}");
    fs::remove_file(dir.path().join(&names[4])).unwrap();
    dir.run("digest --check SUMS").code(1);
    fs::write(dir.path().join(&names[4]), &content).unwrap();
    // A terminal gets nothing that controls it.
    let mut session = crate::pty::Session::start(
        dir.path(),
        &["digest", "--files", names[3].to_str().unwrap()],
        (24, 200),
    );
    session.wait_for("\\u{1b}[31mred.safetensors");
    session.end();
    assert!(!session.written().contains("\x1b[31m"));
    // The program that the form is from agrees.
    let checked =
        std::process::Command::new("sha256sum").current_dir(&dir).args(["-c", "SUMS"]).output();
    if let Ok(checked) = checked {
        assert!(checked.status.success(), "{checked:?}");
    }
}
