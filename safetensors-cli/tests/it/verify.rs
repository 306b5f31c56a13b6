//! `safetensors verify`: exit codes, and the content of both streams.

use crate::fixtures::*;

#[test]
fn a_directory_an_index_and_several_paths() {
    let (single, several) = (temp_dir(), temp_dir());
    let file = small_file(single.path(), "any-name.safetensors");
    let index = sharded(several.path());
    let expected = format!(
        "{}: ok, 2 tensors, 8 parameters, 40 B\n{}: ok, {}\n\n2 checked: 2 ok; 54 B\n",
        file.display(),
        index.display(),
        "2 shards, 2 tensors, 5 parameters, 14 B",
    );
    let mut command = safetensors();
    // Each file is checked once, however often it is named.
    let shard = several.path().join("model-00002-of-00002.safetensors");
    command.arg("verify").args([&shard, single.path(), several.path(), &index, &file]);
    command.assert().success().stdout(expected).stderr("");
}

#[test]
fn directories_are_searched_and_shards_checked_once() {
    let dir = temp_dir();
    fs::create_dir_all(dir.at("b/deep/er")).unwrap();
    fs::create_dir(dir.at("c")).unwrap();
    sharded(&dir.at("b/deep"));
    small_file(&dir.at("b/deep/er"), "x.safetensors");
    dir.write("c/broken.safetensors", b"short");
    small_file(dir.path(), "a.safetensors");
    let expected = "\
./a.safetensors: ok, 2 tensors, 8 parameters, 40 B
./b/deep/er/x.safetensors: ok, 2 tensors, 8 parameters, 40 B
./b/deep/model.safetensors.index.json: ok, 2 shards, 2 tensors, 5 parameters, 14 B

4 checked: 3 ok, 1 failed; 94 B
";
    dir.run("verify .")
        .code(1)
        .stdout(native(expected))
        .stderr(starts_with(native("error: ./c/broken.safetensors: ")));
    // No tensor, and one.
    raw_file(&dir.at("none.safetensors"), "{}", 0);
    let one = r#"{"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#;
    raw_file(&dir.at("one.safetensors"), one, 4);
    let expected = "none.safetensors: ok, 0 tensors, 0 parameters, 0 B\n\
                    one.safetensors: ok, 1 tensor, 1 parameter, 4 B\n\n2 checked: 2 ok; 4 B\n";
    dir.run("verify none.safetensors one.safetensors").quiet().stdout(expected);
}

#[test]
fn tensors_and_files_missing_from_an_index_are_warnings() {
    let dir = temp_dir();
    let index = sharded(dir.path());
    small_file(dir.path(), "model-00001-of-00002.safetensors");
    small_file(dir.path(), "stray.safetensors");
    let map = r#"{"weight_map": {"mask": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    fs::write(&index, map).unwrap();
    fs::write(
        &index,
        fs::read_to_string(&index).unwrap().replacen('{', r#"{"metadata": {"total_size": 7}, "#, 1),
    )
    .unwrap();
    let warnings = "\
warning: model-00001-of-00002.safetensors: the index leaves out tensor \"embed.weight\"
warning: model.safetensors.index.json: total_size is 7, but the tensors have 22 bytes
warning: stray.safetensors: is next to the index, which does not name it
";
    let shown = "model.safetensors.index.json: ok, 2 shards, 2 tensors, 5 parameters, 22 B\n";
    dir.run("verify model.safetensors.index.json").success().stderr(warnings).stdout(shown);
    // With `--strict`, each warning is a separate error.
    let strict = dir.run("verify --strict model.safetensors.index.json").code(1).stdout("");
    strict.stderr(warnings.replace("warning: ", "error: "));
    let json = run("verify --strict --json", &index, "").json();
    let result = &json["results"][0];
    assert_eq!((&result["sound"], &result["error"]), (&false.into(), &serde_json::Value::Null));
    assert_eq!(result["warnings"].as_array().unwrap().len(), 3, "{json}");
}

#[test]
fn strict_holds_files_to_the_text() {
    let dir = temp_dir();
    let tensor = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    assert_eq!(tensor.len() % 8, 6);
    let path = dir.at("w.safetensors");
    for (header, departure) in [
        (format!("  {tensor}"), "the header starts with 2 bytes of white space"),
        (format!("{tensor}\n "), "the header is padded with white space other than spaces"),
        (format!("{tensor}   "), "the data starts at byte 65, not at a multiple of 8"),
        (format!("{tensor} "), "tensor \"w\" begins at byte 63, not at a multiple of 4"),
    ] {
        raw_file(&path, &header, 4);
        run("verify", &path, "").quiet();
        run("verify --strict", &path, "").fails(1, departure).stdout("");
    }
    for spaces in [2, 10_002] {
        raw_file(&path, &format!("{tensor}{}", " ".repeat(spaces)), 4);
        run("verify --strict", &path, "").quiet();
    }
}

#[test]
fn json_has_all_outcomes() {
    let dir = temp_dir();
    small_file(dir.path(), "good.safetensors");
    dir.write("bad.safetensors", b"bad");
    let json = dir.run("verify --json . missing").code(1).stderr("").json();
    assert_eq!((json["checked"].as_u64(), json["sound"].as_u64()), (Some(3), Some(1)));
    let [bad, good, missing] = [0, 1, 2].map(|i| &json["results"][i]);
    assert_eq!((&bad["path"], &bad["sound"]), (&native("./bad.safetensors").into(), &false.into()));
    let error = native("./bad.safetensors: too short for a safetensors file");
    assert!(bad["error"].as_str().unwrap().starts_with(&error));
    let path = native("./good.safetensors");
    assert_eq!((&good["path"], &good["bytes"]), (&path.into(), &40.into()));
    assert!(missing["error"].as_str().unwrap().starts_with("missing: "));
}

#[test]
fn every_kind_of_unsound_path_fails_with_its_name() {
    let dir = temp_dir();
    let path = |name: &str| dir.at(name);
    fs::write(path("short.safetensors"), [1, 2, 3]).unwrap();
    fs::write(path("empty.safetensors"), []).unwrap();
    raw_file(&path("json.safetensors"), "{,}", 0);
    raw_file(&path("trailing.safetensors"), "{}", 1);
    fs::create_dir(path("folder")).unwrap();
    fs::write(path("model.safetensors.index.json"), r#"{"weight_map":{"a":"gone.safetensors"}}"#)
        .unwrap();
    fs::write(path("escape.safetensors.index.json"), r#"{"weight_map":{"a":"../x.safetensors"}}"#)
        .unwrap();
    let names = "short.safetensors empty.safetensors json.safetensors trailing.safetensors folder \
                 missing.safetensors model.safetensors.index.json escape.safetensors.index.json";
    let not_found = fs::read(path("gone")).unwrap_err();
    let expected = format!(
        "\
error: short.safetensors: too short for a safetensors file: expected at least 8 bytes, found 3
error: empty.safetensors: too short for a safetensors file: expected at least 8 bytes, found 0
error: json.safetensors: the header is not JSON at byte 1: found ',', expected a name in quotes
error: trailing.safetensors: trailing data: the tensors have 0 bytes, but 1 follow the header
error: folder: no *.safetensors file or index in this directory or below it
error: missing.safetensors: {not_found}
error: gone.safetensors: tensor \"a\": the shard is missing; the index needs it for 1 tensor
error: escape.safetensors.index.json: the index is malformed: the shard \"../x.safetensors\" should be a *.safetensors file in or below the index's directory
"
    );
    let all = dir.run(&format!("verify {names}")).code(1);
    all.stdout("\n8 checked: 0 ok, 8 failed; 0 B\n").stderr(expected.clone());
    for (name, line) in names.split(' ').zip(expected.lines()) {
        dir.run(&["verify", name]).code(1).stdout("").stderr(format!("{line}\n"));
    }
}

#[test]
fn numbered_shards_without_an_index_are_not_sound() {
    let dir = temp_dir();
    fs::create_dir(dir.at("m")).unwrap();
    let index = sharded(&dir.at("m"));
    dir.run("verify m").quiet();
    fs::remove_file(&index).unwrap();
    let error = "error: m/model.safetensors.index.json: missing: model-00001-of-00002.safetensors and \
                 the other numbered shards are no checkpoint without an index; 2 of 2 are there\n";
    dir.run("verify m").code(1).stderr(native(error)).stdout(native(
        "m/model-00001-of-00002.safetensors: ok, 1 tensor, 2 parameters, 8 B\n\
         m/model-00002-of-00002.safetensors: ok, 1 tensor, 3 parameters, 6 B\n\n\
         3 checked: 2 ok, 1 failed; 14 B\n",
    ));
    dir.run("inspect m").code(1);
    // A named one is checked as the file that it is.
    dir.run("verify m/model-00001-of-00002.safetensors").success();
    // One shard alone is no better, and another index may name it.
    fs::remove_file(dir.at("m/model-00002-of-00002.safetensors")).unwrap();
    let error = ends_with("; 1 of 2 are there\n");
    dir.run("verify m").code(1).stderr(error);
    let map = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors"}}"#;
    dir.write("m/other.safetensors.index.json", map);
    dir.run("verify m").quiet();
}

#[test]
fn a_broken_shard_is_reported_once() {
    let dir = temp_dir();
    sharded(dir.path());
    let shard = dir.at("model-00002-of-00002.safetensors");
    let bytes = fs::read(&shard).unwrap();
    for broken in [&bytes[..bytes.len() - 1], &bytes[..20], b"", b"\x02\0\0\0\0\0\0\0[]"] {
        fs::write(&shard, broken).unwrap();
        let name = "model-00002-of-00002.safetensors: ";
        dir.run("verify .").code(1).stdout("").stderr(
            contains(name).and(predicate::function(|text: &str| text.lines().count() == 1)),
        );
    }
}

/// Makes five shards with a tensor each, `a` to `e`, with their digests.
fn five_shards(dir: &Path) {
    let shard = |name: char| format!("{name}.safetensors");
    let names = ['a', 'b', 'c', 'd', 'e'];
    for name in names {
        let values = [name as u8 as f32, 1.0];
        let tensors = [(name.to_string(), array(&[2], &values))];
        save(dir.join(shard(name)), tensors, &quick().digests(true)).unwrap();
    }
    let map: Vec<_> = names.map(|it| format!(r#""{it}": "{}""#, shard(it))).into();
    let map = format!(r#"{{"weight_map": {{{}}}}}"#, map.join(","));
    fs::write(dir.join("model.safetensors.index.json"), map).unwrap();
}

#[test]
fn one_run_reports_all_faults_of_all_shards() {
    let dir = temp_dir();
    five_shards(dir.path());
    let b = dir.read("b.safetensors");
    dir.write("a.safetensors", &b[..b.len() - 1]);
    fs::remove_file(dir.at("c.safetensors")).unwrap();
    dir.write("d.safetensors", &b);
    let mut e = dir.read("e.safetensors");
    *e.last_mut().unwrap() ^= 1;
    dir.write("e.safetensors", e);
    let kinds = |options: &str| {
        let json = dir.run(&format!("verify --json . {options}")).code(1).stderr("").json();
        assert_eq!((&json["checked"], &json["failed"]), (&1.into(), &1.into()));
        let result = &json["results"][0];
        assert_eq!(result["error"], result["faults"][0]["error"]);
        let faults = result["faults"].as_array().unwrap().iter();
        let words = faults.map(|fault| {
            let file = fault["file"].as_str().unwrap().rsplit(['/', '\\']).next().unwrap();
            format!("{} {file} {}", fault["kind"], fault["tensor"]).replace('"', "")
        });
        words.collect::<Vec<_>>().join(", ")
    };
    let headers = "truncated a.safetensors b, missing c.safetensors c, \
                   index model.safetensors.index.json d";
    assert_eq!(kinds(""), headers);
    // The data of the shards that open is read all the same.
    assert_eq!(kinds("--digests"), format!("{headers}, digest e.safetensors e"));
    let lines = dir.run("verify .").code(1).stdout("").err();
    assert_eq!(lines.lines().count(), 3, "{lines}");
    // A shard that opens may be at fault all the same.
    let archive = fs::read(crate::other_formats::fixture("stored.npz")).unwrap();
    let shape = [archive.len()];
    save(dir.at("e.safetensors"), [("e", array(&shape, &archive))], &quick()).unwrap();
    assert_eq!(kinds(""), format!("{headers}, format e.safetensors null"));
}

#[test]
fn every_changed_tensor_of_every_shard_is_reported() {
    let dir = temp_dir();
    five_shards(dir.path());
    for name in ["a.safetensors", "e.safetensors"] {
        let mut bytes = dir.read(name);
        *bytes.last_mut().unwrap() ^= 1;
        dir.write(name, bytes);
    }
    let changed =
        matches("^error: [^\n]*tensor \"a\": [^\n]*\nerror: [^\n]*tensor \"e\": [^\n]*\n$");
    dir.run("verify --digests .").code(1).stdout("").stderr(changed);
    let json = dir.run("verify --digests --json .").json();
    assert_eq!(json["results"][0]["digests"], 3);
}

#[test]
fn shards_without_digests_are_one_warning() {
    let dir = temp_dir();
    sharded(dir.path());
    let warning = |count: &str| {
        let rest = "record digests; `safetensors digest --record` writes them\n";
        native(&format!("warning: ./model.safetensors.index.json: {count} {rest}"))
    };
    dir.run("verify --digests .").success().stderr(warning("0 of 2 files"));
    dir.run("digest --record model-00001-of-00002.safetensors").success();
    dir.run("verify --digests .").success().stderr(warning("1 of 2 files"));
    dir.run("verify --digests --strict .").code(1);
}

#[test]
fn nan_and_infinity_are_faults_by_option() {
    let dir = temp_dir();
    let mut long = vec![0.5_f32; 700_000];
    long[650_001] = f32::NEG_INFINITY;
    long[699_999] = f32::NAN;
    let half = [half::f16::ONE, half::f16::NAN].map(half::f16::to_bits);
    let half: Vec<_> = half.iter().flat_map(|it| it.to_le_bytes()).collect();
    let complex: Vec<_> =
        [1.0, 2.0, 3.0, f32::INFINITY].into_iter().flat_map(f32::to_le_bytes).collect();
    let tensors = [
        ("long", array(&[700, 1000], &long)),
        ("half", TensorView::new(Dtype::F16, &[2], &half).unwrap()),
        ("complex", TensorView::new(Dtype::C64, &[2], &complex).unwrap()),
        ("sound", array(&[2], &[f64::MAX, -0.0])),
        ("number", array(&[1], &[u32::MAX])),
    ];
    save(dir.at("x.safetensors"), tensors, &quick()).unwrap();
    dir.run("verify x.safetensors").quiet();
    let faults = "\
error: x.safetensors: tensor \"complex\": 1 of 2 values are NaN or infinite; the first, [1], is inf
error: x.safetensors: tensor \"half\": 1 of 2 values are NaN or infinite; the first, [1], is NaN
error: x.safetensors: tensor \"long\": 2 of 700,000 values are NaN or infinite; the first, [650, 1], is -inf
";
    let told = dir.run("verify --finite x.safetensors").code(1).stdout("").err();
    let mut told: Vec<_> = told.lines().collect();
    told.sort_unstable();
    assert_eq!(told, faults.lines().collect::<Vec<_>>());
    let fault =
        dir.run("verify --finite --json x.safetensors").json()["results"][0]["faults"][0].clone();
    assert_eq!((&fault["kind"], &fault["file"]), (&"not_finite".into(), &"x.safetensors".into()));
    small_file(dir.path(), "good.safetensors");
    dir.run("verify --finite good.safetensors").quiet();
}

#[test]
fn files_of_other_formats_in_a_directory_are_counted() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    fs::create_dir(dir.at("sub")).unwrap();
    for name in ["evil.bin", "a.gguf", "config.json", "README.md", ".hidden.pt", "sub/x.onnx"] {
        dir.write(name, "");
    }
    let names = native("./a.gguf, ./evil.bin, ./sub/x.onnx");
    let expected = native("./model.safetensors: ok, 2 tensors, 8 parameters, 40 B\n");
    let line = format!("3 other files not checked; name one to check it: {names}\n");
    // The option of other commands changes nothing.
    for search in ["verify .", "verify -r .", "verify --recursive ."] {
        dir.run(search).success().stdout(format!("{expected}{line}")).stderr("");
    }
    dir.run("verify --quiet .").success().stdout("");
    assert_eq!(dir.run("verify --json .").json()["other_files"], 3);
    // One that is named is checked.
    dir.run("verify . a.gguf").code(1).stdout(contains("2 other files not checked"));
}

#[test]
fn programs_get_a_kind_for_each_fault() {
    let dir = temp_dir();
    let tensor = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    raw_file(&dir.at("cut"), tensor, 3);
    raw_file(&dir.at("long"), tensor, 5);
    raw_file(&dir.at("header"), &tensor.replace("F32", "F31"), 4);
    dir.write("short", "abc");
    dir.write("page", "<!doctype html><title>Sign in</title>");
    dir.write("model.safetensors.index.json", r#"{"weight_map": 3}"#);
    fs::create_dir(dir.at("empty")).unwrap();
    fs::copy(crate::other_formats::fixture("stored.npz"), dir.at("x.safetensors")).unwrap();
    for (path, kind) in [
        ("cut", "truncated"),
        ("short", "truncated"),
        ("long", "trailing"),
        ("header", "header"),
        ("page", "format"),
        ("x.safetensors", "format"),
        ("model.safetensors.index.json", "index"),
        ("gone", "missing"),
        ("empty", "missing"),
    ] {
        let json = dir.run(&["verify", "--json", path]).code(1).json();
        let fault = &json["results"][0]["faults"][0];
        assert_eq!((&fault["kind"], &fault["file"]), (&kind.into(), &path.into()), "{json:#}");
    }
}

#[test]
fn an_index_that_the_directory_does_not_open_as_is_a_warning() {
    let dir = temp_dir();
    sharded(dir.path());
    small_file(dir.path(), "model.safetensors");
    let warning = "warning: ./model.safetensors: the directory opens as this file and not as \
                   model.safetensors.index.json next to it, which does not name it\n";
    dir.run("verify .").success().stderr(native(warning));
    dir.run("verify --strict .").code(1);
}

#[cfg(unix)]
#[test]
fn errors_escape_hostile_names() {
    let dir = temp_dir();
    let header = r#"{"\u001b[2J\u202e":{"dtype":"\u001b[31m","shape":[1],"data_offsets":[0,1]}}"#;
    raw_file(&dir.at("bad\u{1b}\n.safetensors"), header, 1);
    let output = safetensors().arg("verify").arg(dir.path()).output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(is_plain(error) && error.lines().count() == 1, "{error:?}");
    assert!(
        error.contains(r#"bad\u{1b}\n.safetensors: tensor "\u{1b}[2J\u{202e}": "#),
        "{error:?}"
    );
}

#[test]
fn invalid_booleans_are_reported_if_data_are_read() {
    let dir = temp_dir();
    let path = dir.at("f.safetensors");
    let header = format!("{:<64}", r#"{"f":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}"#);
    raw_file(&path, &header, 3);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() = 2;
    fs::write(&path, bytes).unwrap();
    run("verify --strict", &path, "").quiet();
    let finding =
        contains("f.safetensors: element 2 of the BOOL tensor \"f\" should be 0 or 1, found 2\n");
    run("verify --digests", &path, "").success().stderr(contains("warning: ").and(finding.clone()));
    run("verify --digests --strict", &path, "").code(1).stdout("").stderr(finding);
}
