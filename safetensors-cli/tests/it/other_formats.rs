//! Files of PyTorch and NumPy, wherever a command reads a checkpoint. The fixtures are those
//! of `safetensors-formats`: PyTorch and the package `gguf` wrote them.

use crate::fixtures::*;

/// A directory with these fixtures.
pub(crate) fn with(names: &[&str]) -> tempfile::TempDir {
    let dir = temp_dir();
    for name in names {
        let path = fixture(name);
        fs::copy(&path, dir.at(path.file_name().unwrap())).unwrap();
    }
    dir
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    formats.join("extras/formats/tests/fixtures").join(name)
}

pub(crate) fn output(dir: &Path, args: impl Words) -> String {
    dir.run(args).quiet().out()
}

#[test]
fn inspect_shows_tensors_aliases_and_unreadable_types() {
    let dir = with(&["pytorch/tied.pt", "pytorch/refused/complex128.pt"]);
    let shown = output(dir.path(), "inspect tied.pt");
    assert!(shown.contains("lm_head.weight  F32    [4, 3]        1          12  48 B"), "{shown}");
    assert!(shown.contains("model.embed.weight  lm_head.weight\n"), "{shown}");
    assert!(shown.contains("\ntied.pt: 1 file, ") && shown.contains(", PyTorch\n"), "{shown}");
    let listed = output(dir.path(), "inspect --files tied.pt");
    assert!(listed.contains("tied.pt  PyTorch        5  "), "{listed}");

    // A type that the format lacks is shown by its own name.
    let shown = output(dir.path(), "inspect --flat complex128.pt");
    assert!(shown.contains("wide  complex128  [2]    32 B\n"), "{shown}");

    let json = dir.run("inspect --json tied.pt").quiet().json();
    assert_eq!(json["files"][0]["format"], "PyTorch");
    assert_eq!(json["tensors"][0]["offset"], serde_json::Value::Null);
    assert_eq!(json["total"]["bytes"], 176);
}

#[test]
fn every_command_reads_pytorch() {
    let dir = with(&["pytorch/strided.pt", "pytorch/strided.safetensors", "pytorch/tied.pt"]);
    dir.run("convert strided.pt out.safetensors").quiet();
    for file in ["strided.pt", "out.safetensors"] {
        dir.run(&["diff", file, "strided.safetensors"]).stdout(contains("9 tensors equal"));
    }
    let stats = output(dir.path(), "stats --bins 0 strided.pt");
    let expected = output(dir.path(), "stats --bins 0 strided.safetensors");
    let sorted = |text: &str| {
        let mut rows: Vec<_> = text.lines().map(str::to_owned).collect();
        rows.sort();
        rows
    };
    assert_eq!(sorted(&stats), sorted(&expected));
    dir.run("extract strided.pt transposed -o t.npy").success();
    dir.run("extract strided.safetensors transposed -o e.npy").success();
    let read = |name: &str| dir.read(name);
    assert_eq!(read("t.npy"), read("e.npy"));

    // The digests of tensors cover their values, in any format.
    let digests = output(dir.path(), "digest strided.pt");
    let expected = output(dir.path(), "digest strided.safetensors");
    let of_tensors = |text: &str| {
        let mut lines: Vec<_> =
            text.lines().filter(|line| !line.starts_with("sha256")).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(of_tensors(&digests), of_tensors(&expected));
    assert!(expected.contains("sha256") && !digests.contains("sha256"));

    // Tied names remain names of a single tensor.
    dir.run("convert tied.pt tied.safetensors")
        .shows("5 tensors, 176 B, and 2 more names of tied weights");
}

/// Libraries find both by their names.
#[test]
fn an_adapter_of_pytorch_is_converted_next_to_itself() {
    for name in ["adapter_model.bin", "diffusion_pytorch_model.bin"] {
        let dir = temp_dir();
        fs::create_dir(dir.at("model")).unwrap();
        fs::copy(fixture("pytorch/strided.pt"), dir.at("model").join(name)).unwrap();
        dir.run(&["convert", &format!("model/{name}"), "model"]).success();
        let converted = format!("model/{}", name.replace(".bin", ".safetensors"));
        dir.run(&["diff", &converted, &format!("model/{name}")])
            .stdout(contains("9 tensors equal"));
    }
}

#[test]
fn shards_of_pytorch_are_opened_by_index_and_by_directory() {
    let names = ["00001-of-00002.bin", "00002-of-00002.bin"]
        .map(|name| format!("pytorch/sharded/pytorch_model-{name}"));
    let dir = with(&[&names[0], &names[1], "pytorch/sharded/pytorch_model.bin.index.json"]);
    for input in [".", "pytorch_model.bin.index.json"] {
        let shown = output(dir.path(), &["inspect", input]);
        assert!(shown.contains("total        3           6  24 B"), "{shown}");
    }
    dir.run("convert . out").quiet();
    assert_eq!(dir.open("out").len(), 3);
    // A checkpoint that would hide them is not written unasked.
    dir.run("convert out .")
        .fails(1, "would hide pytorch_model-00001-of-00002.bin, pytorch_model-00002-of-00002.bin");
    assert!(!dir.at("model.safetensors").exists());

    // Also where the directory is searched.
    let found = output(dir.path(), "verify --strict .");
    assert!(found.starts_with(".: ok, 2 shards, 3 tensors, 6 parameters, 24 B"), "{found}");

    // As for safetensors files, the index decides, and files that it does not name are a warning.
    let index = dir.at("pytorch_model.bin.index.json");
    let file = "pytorch_model.bin.index.json";
    dir.run(&["verify", "--strict", file]).quiet();
    let text = fs::read_to_string(&index).unwrap();
    let second = r#""b": "pytorch_model-00002-of-00002.bin""#;
    let first = r#""a": "pytorch_model-00001-of-00002.bin""#;
    let map = format!(r#"{{"weight_map": {{{first}, {second}}}}}"#);
    assert_ne!(text, map);
    fs::write(&index, map).unwrap();
    let says = "pytorch_model-00001-of-00002.bin: the index leaves out tensor \"tied\"";
    dir.run(&["verify", file]).warns(says);
    dir.run(&["verify", "--strict", file]).fails(1, says);
    fs::write(&index, text).unwrap();
    fs::remove_file(dir.at("pytorch_model-00002-of-00002.bin")).unwrap();
    dir.run("inspect .").fails(1, "pytorch_model-00002-of-00002.bin: ");
}

#[test]
fn a_directory_with_one_file_of_another_format_opens_as_it() {
    let part = |number| format!("gguf/split-0000{number}-of-00003.gguf");
    let parts = [part(1), part(2), part(3)];
    for (names, opened, shown) in [
        (&["gguf/plain.gguf"][..], "plain.gguf", "8 tensors equal"),
        (&["stored.npz"], "stored.npz", " tensors equal"),
        (&["pytorch/tied.pt"], "tied.pt", "5 tensors equal"),
        (&parts.each_ref().map(String::as_str), "split-00002-of-00003.gguf", "3 tensors equal"),
    ] {
        let dir = with(names);
        dir.write("config.json", "{}");
        dir.write(".hidden.pt", "");
        dir.run(&["diff", ".", opened]).shows(shown);
        dir.convert(". out").success();
        dir.run(&["diff", "out", opened, "--ignore-metadata"]).shows(shown);
        // Of two, none is taken.
        fs::remove_dir_all(dir.at("out")).unwrap();
        dir.write("other.npz", "");
        dir.run("inspect .").fails(1, "\"other.npz\"").fails(1, "; name a file");
    }
}

#[test]
fn a_pytorch_file_does_not_replace_shards_without_an_index() {
    let dir = with(&["pytorch/tied.pt"]);
    dir.run("inspect .").success();
    fs::rename(dir.at("tied.pt"), dir.at("pytorch_model.bin")).unwrap();
    dir.run("inspect .").success();
    dir.run("verify .").shows("5 tensors");
    dir.write("model-00001-of-00002.safetensors", b"");
    dir.run("inspect .").fails(1, "model-00001-of-00002.safetensors");
}

#[test]
fn verify_prints_its_checks() {
    let dir = with(&["pytorch/tied.pt", "gguf/plain.gguf", "stored.npz"]);
    dir.run("verify tied.pt").success().stdout(
        "tied.pt: ok, 5 tensors, 44 parameters, 176 B; PyTorch: its structure and the places of \
         all tensors, not their values\n",
    );
    dir.run("verify --digests tied.pt").shows("the places of all tensors, 8 checksums\n");
    let values = "its structure and the places of all tensors, their values\n";
    dir.run("verify --finite plain.gguf").success().stdout(ends_with(values));
    let both = "the places of all tensors, their values, 8 checksums\n";
    dir.run("verify --finite --digests tied.pt").success().stdout(ends_with(both));
    let path = dir.at("stored.npz");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(6).position(|part| part == b"\x93NUMPY").unwrap() + 128;
    bytes[at] ^= 1;
    fs::write(&path, &bytes).unwrap();
    dir.run("verify stored.npz").success();
    dir.run("verify --digests stored.npz")
        .failure()
        .code(1)
        .stderr(starts_with("error: stored.npz: tensor \"layer.0/f4_c.npy\": "));
    let path = dir.at("plain.gguf");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 40]).unwrap();
    dir.run("verify --json plain.gguf").failure().stdout(contains("its data ends at byte "));
}

#[test]
fn errors_name_the_file_and_the_tensor() {
    let dir =
        with(&["pytorch/refused/exported.pt2", "pytorch/refused/plain.pkl", "pytorch/tied.pt"]);
    dir.run("inspect exported.pt2").failure().code(1).stderr(
        "error: exported.pt2: an archive of torch.export, which is not read; save the module's \
         state_dict() instead\n",
    );
    dir.run("inspect plain.pkl")
        .failure()
        .stderr("error: plain.pkl: a pickle, but not one that PyTorch's save has written\n");
    // The content decides, not the name.
    dir.write("text.pt", "hello");
    dir.run("inspect text.pt").failure().stderr(starts_with("error: text.pt: "));
    fs::copy(dir.at("tied.pt"), dir.at("renamed.safetensors")).unwrap();
    dir.run("inspect renamed.safetensors").success().stderr(
        "warning: renamed.safetensors: a file of PyTorch under the name of a safetensors file\n",
    );

    // A file that is changed in place must be a safetensors file.
    let before = dir.read("tied.pt");
    for args in [
        &["metadata", "set", "tied.pt", "a=b"][..],
        &["metadata", "set", "--dry-run", "tied.pt", "a=b"],
        &["digest", "--record", "tied.pt"],
    ] {
        dir.run(args).failure().code(1).stderr(
            "error: tied.pt: only safetensors files can be changed, not a file of PyTorch; \
             `safetensors convert` makes one of it\n",
        );
    }
    assert_eq!(dir.read("tied.pt"), before);
}

#[test]
fn unreadable_tensors_are_listed_and_change_the_exit_code() {
    let dir = with(&["pytorch/refused/arrays.pt"]);
    let shown = output(dir.path(), "inspect --flat arrays.pt");
    for row in
        ["fine     F32 ", "objects  object ", "typed    array.array ", "wide     complex128 "]
    {
        assert!(shown.contains(row), "{shown}");
    }
    let says = "tensor \"typed\" is array.array, which cannot be read";
    let warns = contains(says);
    dir.run("verify arrays.pt").success().stderr(warns.clone());
    dir.run("verify --strict arrays.pt").failure().code(1).stderr(warns);

    // An object is no tensor with one element. Readable tensors are shown, compared and hashed.
    assert!(shown.contains("  unread   0 B\n"), "{shown}");
    let all = |args: &[&str], shows: &str| {
        let is_named = contains("tensor \"typed\": a tensor inside")
            .and(contains("tensor \"wide\": the elements are complex128"));
        let shows = contains(shows);
        dir.run(args).code(trouble(args)).stdout(shows).stderr(is_named);
    };
    all(&["stats", "--bins", "0", "arrays.pt"], "fine     F32");
    all(&["digest", "arrays.pt"], "  fine\n");
    all(&["diff", "arrays.pt", "arrays.pt"], "\n1 tensor equal, 5 unread\n");
    // What is known to differ does, whatever else cannot be read.
    let renamed = ["diff", "arrays.pt", "arrays.pt", "--rename", "^fine$", "other"];
    let shows = "0 tensors equal, 5 unread, 1 only in A, 1 only in B\n";
    dir.run(&renamed)
        .code(1)
        .stdout(contains(shows))
        .stderr(contains("\"typed\": a tensor inside"));
    let quiet = [&renamed[..], &["--quiet"]].concat();
    dir.run(&quiet).code(1).stdout("");
    let json = |args: &[&str]| {
        let shown = dir.run(args).code(1).get_output().stdout.clone();
        serde_json::from_slice::<serde_json::Value>(&shown).unwrap()
    };
    let tensors = json(&["stats", "--json", "arrays.pt"])["tensors"].clone();
    let typed = tensors.as_array().unwrap().iter().find(|it| it["name"] == "typed").unwrap();
    assert_eq!((&typed["dtype"], &typed["shape"]), (&"array.array".into(), &vec![0].into()));
    assert!(typed["error"].as_str().unwrap().contains("array.array"), "{typed}");
    let total = output(dir.path(), "inspect --json arrays.pt --filter typed");
    let total: serde_json::Value = serde_json::from_str(&total).unwrap();
    assert_eq!((&total["total"]["parameters"], &total["total"]["tensors"]), (&0.into(), &1.into()));

    dir.run("convert arrays.pt out.safetensors").fails(1, "; --drop skips it");
    assert!(!dir.at("out.safetensors").exists());
    let drop = ["objects", "dates", "typed", "masked", "wide"].map(|name| ["--drop", name]);
    let args = [&["convert", "arrays.pt", "out.safetensors"][..], drop.as_flattened()].concat();
    dir.run(&args).success();
    let saved = dir.open("out.safetensors");
    assert_eq!(saved.tensors().map(|tensor| tensor.name()).collect::<Vec<_>>(), ["fine"]);
    // Of a tensor that only one side has, no value is compared.
    for (a, b, side) in
        [("arrays.pt", "out.safetensors", "A"), ("out.safetensors", "arrays.pt", "B")]
    {
        let shows = format!("\n1 tensor equal, 5 only in {side}\n");
        dir.run(&["diff", a, b]).code(1).stdout(contains(shows)).stderr("");
        dir.run(&["diff", a, b, "-q"]).code(1).stdout("").stderr("");
    }
}

/// Compares a file with a fixture, which has the same tensors and no metadata.
#[track_caller]
pub(crate) fn assert_tensors_equal(dir: &Path, file: &str, expected: &str, says: &str) {
    let expected = fixture(expected);
    let diff = dir.run(&["diff", file, expected.to_str().unwrap()]);
    diff.failure().code(1).stdout(contains(format!("\n{says}")));
}

#[test]
fn torchscript_is_converted_and_skipped_values_are_counted() {
    let dir = with(&["pytorch/script.pt", "pytorch/frozen.pt", "pytorch/training.pt"]);
    for (file, says) in [("script", "19 tensors equal, "), ("frozen", "4 tensors equal, ")] {
        let out = format!("{file}.safetensors");
        dir.run(&["convert", &format!("{file}.pt"), &out]).quiet();
        assert_tensors_equal(dir.path(), &out, &format!("pytorch/{out}"), says);
    }
    let shown = output(dir.path(), "inspect frozen.pt");
    assert!(shown.contains("CONSTANTS"), "{shown}");
    let shown = output(dir.path(), "inspect training.pt");
    assert!(shown.contains("\ntraining.pt: skipped: "), "{shown}");
}

#[test]
fn a_record_of_an_old_burn_is_read_and_converted() {
    let (dir, path) = (temp_dir(), fixture("burn/half.mpk"));
    let path = path.to_str().unwrap();
    let shown = dir.run(&["inspect", path]).quiet();
    assert!(text(&shown.get_output().stdout).contains("head.Linear.weight"));
    dir.run(&["convert", path, "model.safetensors"]).success();
    dir.run(&["diff", path, "model.safetensors"]).success();
    dir.run(&["verify", path]).quiet();
    // Nothing writes such a file, but the format of later versions is written.
    let refused = dir.run("convert model.safetensors model.mpk").code(2);
    assert!(text(&refused.get_output().stderr).contains(".bpk"));

    dir.run(&["convert", path, "model.bpk"]).success().stdout("model.bpk: 13 tensors, 81 B\n");
    for (name, other) in [("model.bpk", path), ("model.bpk", "model.safetensors")] {
        dir.run(&["diff", name, other]).success();
    }
    dir.run("verify model.bpk").quiet();
    dir.run("convert model.bpk back.safetensors").success();
    let file = |name: &str| dir.read(name);
    assert!(file("back.safetensors") == file("model.safetensors"));
}

#[test]
fn a_file_of_burn_may_be_made_of_itself() {
    let (dir, path) = (temp_dir(), fixture("burn/full.mpk"));
    let path = path.to_str().unwrap();
    let file = || dir.read("model.bpk");
    dir.run(&["convert", path, "model.bpk"]).success();
    let before = file();
    let fewer = ["convert", path, "model.bpk", "--drop", "steps"];
    let fp8 = ["convert", path, "model.bpk", "--dtype", "f8_e4m3", "--dry-run"];
    let refused = dir.run(&fp8).code(1);
    let says = "its elements are F8_E4M3, so a burnpack file of burn cannot have it; --cast";
    assert!(text(&refused.get_output().stderr).contains(says));
    assert!(file() == before);
    dir.run(&[&fewer[..], &["--force"]].concat()).success();
    assert!(file() != before);
    let half = ["convert", "model.bpk", "model.bpk", "--dtype", "f16"];
    let refused = dir.run(&half).code(1);
    assert!(text(&refused.get_output().stderr).contains("would lose precision: "));
    dir.run(&[&half[..], &["--force"]].concat()).success();
    let shown = output(dir.path(), "inspect --flat model.bpk");
    assert!(shown.contains("F16") && !shown.contains("F32"), "{shown}");
}
