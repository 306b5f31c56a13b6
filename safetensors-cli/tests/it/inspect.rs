//! `safetensors inspect`: its output.

use crate::fixtures::*;

#[test]
fn one_file() {
    let dir = temp_dir();
    let path = small_file(dir.path(), "model.safetensors");
    let bytes = fs::metadata(path).unwrap().len();
    let header = bytes - 40 - 8;
    let rest = format!(
        "
dtype  tensors  parameters  size
────────────────────────────────
F32          1           6  24 B
I64          1           2  16 B
total        2           8  40 B

metadata  value
───────────────
format    pt

file               tensors   size  header  padding  data at  aligned to
───────────────────────────────────────────────────────────────────────
model.safetensors        2  {bytes} B   {header} B      3 B      {start}         8 B
",
        start = header + 8,
    );
    let tree = "\
module        dtype  shape   tensors  parameters  size
──────────────────────────────────────────────────────
embed.weight  F32    [2, 3]        1           6  24 B
mask          I64    [2]           1           2  16 B
";
    let flat = "\
name          dtype  shape   size
─────────────────────────────────
embed.weight  F32    [2, 3]  24 B
mask          I64    [2]     16 B
";
    for (args, start) in [
        (&["inspect", "model.safetensors"][..], tree),
        (&["inspect", "model.safetensors", "--flat"], flat),
    ] {
        let mut command = safetensors();
        command.current_dir(dir.path()).args(args);
        command.assert().success().stdout(format!("{start}{rest}")).stderr("");
    }
}

/// A head and twelve layers. Only the last layer differs from the others.
fn layers(dir: &Path) -> PathBuf {
    let path = dir.at("layers.safetensors");
    let (small, large) = ([0_u16; 4], [0_u16; 6]);
    let small = array(&[2, 2], &small);
    let large = array(&[2, 3], &large);
    let mut tensors = vec![("head".to_owned(), large)];
    for i in 0..12 {
        tensors
            .push((format!("model.layers.{i}.mlp.up.weight"), if i == 11 { large } else { small }));
        tensors.push((format!("model.layers.{i}.norm"), small));
    }
    save(&path, tensors, &quick()).unwrap();
    path
}

#[test]
fn a_tree_of_some_depth_counts_what_is_deeper() {
    let dir = temp_dir();
    layers(dir.path());
    let shown = |depth: &str| {
        let output = dir.run(&["inspect", "layers.safetensors", "--depth", depth]);
        let output = output.quiet().get_output().stdout.clone();
        let tree = text(&output).split("\n\n").next().unwrap();
        tree.lines().skip(2).map(str::to_owned).collect::<Vec<_>>()
    };
    let two = [
        "head          U16    [2, 3]        1           6   12 B",
        "model.layers                      24          98  196 B",
        "├─ 0…10                           22          88  176 B",
        "└─ 11                              2          10   20 B",
    ];
    assert_eq!(shown("2"), two);
    assert_eq!(shown("1"), two[..2]);
    assert_eq!(shown("3").len(), 8);
    assert_eq!(shown("3"), shown("99"));
    for wrong in [["--depth", "0"], ["--depth", "x"], ["-d1", "--flat"], ["-d1", "--json"]] {
        let args = [&["inspect", "layers.safetensors"][..], &wrong].concat();
        dir.run(&args).code(2).stdout("");
    }
}

#[test]
fn filter_and_sort() {
    let dir = temp_dir();
    layers(dir.path());
    let names = |options: &str| {
        let line = format!("inspect layers.safetensors --flat --filter '*.1*.mlp.*' {options}");
        let shown = dir.run(&line).shows("\n3 of 25 tensors shown\n").out();
        let numbers = shown.lines().filter_map(|line| line.strip_prefix("model.layers."));
        numbers.map(|line| line.split('.').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for order in ["", "--sort name", "--sort dtype"] {
        assert_eq!(names(order), ["1", "10", "11"]);
    }
    assert_eq!(names("--sort size"), ["11", "1", "10"]);
    dir.run("inspect layers.safetensors -f '*.weights'")
        .fails(1, "layers.safetensors: no tensor matches --filter '*.weights'; near it: ")
        .stdout("");
    dir.run("inspect layers.safetensors -f [").code(2);
}

#[test]
fn flat_and_tree_have_one_order() {
    let dir = temp_dir();
    let path = dir.at("slashes.safetensors");
    let one = [1_u8];
    let one = array(&[1], &one);
    let names = ["l/9/w.x", "l/10/w", "l/9/w-x", "l/9/w", "a.b"];
    save(&path, names.map(|name| (name, one)), &quick()).unwrap();
    let firsts = |args: &[&str]| {
        let output = safetensors().arg("inspect").arg(&path).args(args).output().unwrap();
        let rows = text(&output.stdout).lines().skip(2).take_while(|line| !line.is_empty());
        rows.map(|row| {
            row.trim_start_matches(['├', '└', '│', '─', ' ']).split(' ').next().unwrap().to_owned()
        })
        .collect::<Vec<_>>()
    };
    assert_eq!(firsts(&["--sort", "name"]), ["a.b", "l", "9", "w", "w-x", "w.x", "10/w"]);
    assert_eq!(
        firsts(&["--flat", "--sort", "name"]),
        ["a.b", "l/9/w", "l/9/w-x", "l/9/w.x", "l/10/w"]
    );
}

#[test]
fn json_has_everything_and_is_printable() {
    let dir = temp_dir();
    let path = hostile_file(dir.path());
    let output = safetensors().arg("inspect").arg(&path).arg("--json").output().unwrap();
    assert!(output.status.success() && is_plain(text(&output.stdout)), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["tensors"][0]["name"], "\u{1b}[2Jred\u{202e}");
    assert_eq!(json["metadata"]["k\u{1b}]0;owned\u{7}"], "line one\nline two\u{202e}");
    assert_eq!(
        (json["total"]["bytes"].as_u64(), json["dtypes"]["U8"]["tensors"].as_u64()),
        (Some(3), Some(3))
    );
    let file = &json["files"][json["tensors"][2]["file"].as_u64().unwrap() as usize];
    assert_eq!(file["path"], path.to_str().unwrap());
    assert_eq!(
        json["tensors"][2]["offset"].as_u64().unwrap(),
        file["data_start"].as_u64().unwrap() + 2
    );
}

#[test]
fn names_of_dimensions_and_units_are_shown() {
    let dir = temp_dir();
    let u = array(&[2, 1], &[1.0_f32, 2.0]);
    let options = SaveOptions::new().metadata([
        ("attribute:u#dimensions", r#"["t", "x"]"#),
        ("attribute:u#units", "m/s"),
        ("attribute:v#dimensions", "not a list"),
    ]);
    save(dir.at("a.safetensors"), [("u", u), ("v", u)], &options).unwrap();
    let shown =
        contains("\nlabelled  dimensions  units\n").and(contains("\nu         t 2 × x 1   m/s\n"));
    dir.run("inspect a.safetensors").success().stdout(shown).stderr("");
    let output = dir.run("inspect --json a.safetensors").success();
    let json = output.json();
    let dimensions = [0, 1].map(|i| json["tensors"][i]["dimensions"].clone());
    assert_eq!(dimensions, [serde_json::json!(["t", "x"]), serde_json::Value::Null]);
}

#[test]
fn two_shards_by_directory_or_index() {
    let dir = temp_dir();
    fs::create_dir(dir.at("model")).unwrap();
    sharded(&dir.at("model"));
    let expected = "\
name  dtype  shape   size  file
───────────────────────────────────────────────────────────
a     F32    [2]      8 B  model-00001-of-00002.safetensors
b     U16    [3, 1]   6 B  model-00002-of-00002.safetensors

dtype  tensors  parameters  size
────────────────────────────────
U16          1           3   6 B
F32          1           2   8 B
total        2           5  14 B

metadata  value
───────────────
format    pt

file                                    tensors   size  header  padding  data at  aligned to
────────────────────────────────────────────────────────────────────────────────────────────
model/model-00001-of-00002.safetensors        1  104 B    88 B      3 B       96        32 B
model/model-00002-of-00002.safetensors        1  102 B    88 B      1 B       96        32 B

index: model/model.safetensors.index.json
";
    for path in ["model", "model/model.safetensors.index.json"] {
        let run = dir.run(&["inspect", "--flat", &native(path)]);
        run.success().stdout(native(expected)).stderr("");
    }
}

#[test]
fn no_tensors_and_no_metadata() {
    let dir = temp_dir();
    raw_file(&dir.at("none.safetensors"), "{}", 0);
    let expected = "\
no tensors

dtype  tensors  parameters  size
────────────────────────────────
total        0           0   0 B

no metadata

file              tensors  size  header  padding  data at  aligned to
─────────────────────────────────────────────────────────────────────
none.safetensors        0  10 B     2 B      0 B       10         2 B
";
    dir.run("inspect none.safetensors").success().stdout(expected).stderr("");
}

#[test]
fn scalars_empty_and_sub_byte_tensors() {
    let dir = temp_dir();
    let path = dir.at("odd.safetensors");
    let header = concat!(
        r#"{"scalar":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"#,
        r#""empty":{"dtype":"F32","shape":[0,7],"data_offsets":[8,8]},"#,
        r#""half bytes":{"dtype":"F4","shape":[2,3],"data_offsets":[8,11]}}"#
    );
    raw_file(&path, header, 11);
    let expected = "\
name        dtype  shape   size
───────────────────────────────
scalar      F64    []       8 B
empty       F32    [0, 7]   0 B
half bytes  F4     [2, 3]   3 B

dtype  tensors  parameters  size
────────────────────────────────
F4           1           6   3 B
F32          1           0   0 B
F64          1           1   8 B
total        3           7  11 B

no metadata

file             tensors   size  header  padding  data at  aligned to  misaligned
─────────────────────────────────────────────────────────────────────────────────
odd.safetensors        3  200 B   181 B      0 B      189         1 B    1 tensor
";
    dir.run("inspect --flat odd.safetensors").success().stdout(expected).stderr("");
}

#[test]
fn hostile_names_are_escaped_and_stay_on_their_lines() {
    let dir = temp_dir();
    let path = hostile_file(dir.path());
    let output = safetensors().args(["inspect", "--flat"]).arg(&path).output().unwrap();
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(is_plain(shown), "{shown:?}");
    for row in [
        r"\u{1b}[2Jred\u{202e}  U8     [1]     1 B",
        r"two\nlines            U8     [1]     1 B",
        r#"""                    U8     [1]     1 B"#,
        r"k\u{1b}]0;owned\u{7}  line one\nline two\u{202e}",
    ] {
        assert!(shown.lines().any(|line| line == row), "{row:?} is not a line of\n{shown}");
    }
}

#[test]
fn what_cannot_be_shown_is_an_error_and_nothing_else() {
    let dir = temp_dir();
    dir.write("bad.safetensors", b"not a safetensors file");
    for name in ["bad.safetensors", "missing.safetensors"] {
        let error = format!("error: {name}: ");
        dir.run(&["inspect", "--flat", name]).fails(1, error).stdout("");
    }
    small_file(dir.path(), "second.safetensors");
    dir.run("inspect .").fails(1, "\"bad.safetensors\", \"second.safetensors\"").stdout("");
}
