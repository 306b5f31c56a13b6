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
