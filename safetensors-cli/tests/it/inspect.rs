//! `safetensors inspect`: its output.

use crate::convert_tied::tied;
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
        (&["inspect", "model.safetensors", "--files"][..], tree),
        (&["inspect", "model.safetensors", "--flat", "--files"], flat),
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
fn a_tree_with_a_depth_counts_deeper_tensors() {
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
        .fails(1, "layers.safetensors: no tensor matches --filter '*.weights'; similar: ")
        .stdout("");
    dir.run("inspect layers.safetensors -f [").code(2);
}

#[test]
fn a_pattern_takes_a_tied_tensor_by_each_of_its_names() {
    let dir = temp_dir();
    tied(dir.path());
    for command in ["inspect --flat", "stats", "digest"] {
        for patterns in ["-f aaa.*", "-f model.* -f aaa.*", "-f * -f aaa.weight"] {
            let line = format!("{command} tied.safetensors {patterns}");
            dir.run(&line).shows("model.embed.weight");
        }
        dir.run(&format!("{command} tied.safetensors -f model.* -f aaa"))
            .fails(1, "no tensor matches --filter 'aaa'; '*aaa*' matches aaa.weight");
    }
    dir.run("map tied.safetensors -o map.html -f model.* -f aaa.*").success();
    dir.run("map tied.safetensors -o map.html -f aaa.* --force").success();
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

";
    let listed = "\
file                              tensors   size  header  padding  data at  aligned to
──────────────────────────────────────────────────────────────────────────────────────
model-00001-of-00002.safetensors        1  104 B    88 B      3 B       96        32 B
model-00002-of-00002.safetensors        1  102 B    88 B      1 B       96        32 B

index: model/model.safetensors.index.json
";
    let line = "model/model.safetensors.index.json: 2 files, 206 B\n";
    for path in ["model", "model/model.safetensors.index.json"] {
        for (option, files) in [("--flat", line), ("--flat --files", listed)] {
            let path = native(path);
            let args: Vec<_> = ["inspect", &path].into_iter().chain(option.split(' ')).collect();
            let run = dir.run(&args);
            run.success().stdout(native(&format!("{expected}{files}"))).stderr("");
        }
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

none.safetensors: 1 file, 10 B
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

";
    let line = "odd.safetensors: 1 file, 200 B, 1 tensor misaligned\n";
    let listed = "\
file             tensors   size  header  padding  data at  aligned to  misaligned
─────────────────────────────────────────────────────────────────────────────────
odd.safetensors        3  200 B   181 B      0 B      189         1 B    1 tensor
";
    for (args, files) in [
        ("inspect --flat odd.safetensors", line),
        ("inspect --flat --files odd.safetensors", listed),
    ] {
        dir.run(args).success().stdout(format!("{expected}{files}")).stderr("");
    }
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
fn an_unreadable_file_is_an_error_without_output() {
    let dir = temp_dir();
    dir.write("bad.safetensors", b"not a safetensors file");
    for name in ["bad.safetensors", "missing.safetensors"] {
        let error = format!("error: {name}: ");
        dir.run(&["inspect", "--flat", name]).fails(1, error).stdout("");
    }
    small_file(dir.path(), "second.safetensors");
    dir.run("inspect .").fails(1, "\"bad.safetensors\", \"second.safetensors\"").stdout("");
}

#[test]
fn the_largest_tensors_are_shown_alone() {
    let dir = temp_dir();
    layers(dir.path());
    let rows = |args: &str| {
        let shown = dir.run(&format!("inspect layers.safetensors {args}")).quiet().out();
        let (table, rest) = shown.split_once("\n\n").unwrap();
        let names = table.lines().skip(2).map(|row| row.split(' ').next().unwrap().to_owned());
        (names.collect::<Vec<_>>().join(" "), rest.to_owned())
    };
    let largest = "head model.layers.11.mlp.up.weight model.layers.0.mlp.up.weight";
    let shown = (largest.to_owned(), "3 of 25 tensors shown, 32 B\n".to_owned());
    assert_eq!(rows("--top 3"), shown);
    assert_eq!(rows("--top 3 --flat"), shown);
    let last =
        ("model.layers.0.mlp.up.weight".to_owned(), "1 of 25 tensors shown, 8 B\n".to_owned());
    assert_eq!(rows("--top 1 --sort name -f 'model.*'"), last);
    // More than there are is all of them.
    assert!(rows("--top 999").1.starts_with("25 of 25 tensors shown"));
    for wrong in ["--top 0", "--top x", "--top 1 -d1", "--top 1 --json", "--summary --top 1"] {
        dir.run(&format!("inspect layers.safetensors {wrong}")).code(2).stdout("");
    }
}

#[test]
fn several_checkpoints_take_a_line_each_in_the_order_of_their_numbers() {
    let dir = temp_dir();
    for step in [9, 100, 1000, 20] {
        fs::create_dir(dir.at(format!("step-{step}"))).unwrap();
        small_file(&dir.at(format!("step-{step}")), "model.safetensors");
    }
    dir.write("bad.safetensors", "bad");
    let expected = native(
        "\
checkpoint                     tensors  parameters  size  stored as
───────────────────────────────────────────────────────────────────
./step-9/model.safetensors           2           8  40 B  F32, I64
./step-20/model.safetensors          2           8  40 B  F32, I64
./step-100/model.safetensors         2           8  40 B  F32, I64
./step-1000/model.safetensors        2           8  40 B  F32, I64

5 inputs: 4 shown, 1 not; 8 tensors, 32 parameters, 160 B
",
    );
    let run = dir.run("inspect -r .").code(1).stderr(contains("bad.safetensors: "));
    let shown = run.out();
    assert_eq!(shown, expected);
    // One has a line on request, and several have all of it on request.
    let one = "step-9            2           8  40 B  F32, I64\n";
    dir.run("inspect --summary step-9").success().stdout(ends_with(one));
    dir.run("inspect --summary step-9 -f mask")
        .success()
        .stdout(ends_with("  1           2  16 B  I64\n"));
    dir.run("inspect --summary bad.safetensors").fails(1, "bad.safetensors: ").stdout("");
    for more in ["--flat", "-d9", "--files", "--sort size", "--top 1"] {
        let run = dir.run(&format!("inspect {more} step-9 step-20")).quiet();
        assert!(run.out().starts_with("step-9:\n"), "{more}");
    }
}

#[test]
fn a_quantised_weight_counts_its_numbers_and_has_the_name_of_its_scheme() {
    let dir = temp_dir();
    let values = [0.5_f32; 32 * 64];
    save(dir.at("plain.safetensors"), [("a.q_proj.weight", array(&[32, 64], &values))], &quick())
        .unwrap();
    for (scheme, name) in [
        ("fp8-block128", "fp8"),
        ("fp8-channel", "fp8"),
        ("int8-channel", "int8"),
        ("nvfp4", "nvfp4"),
        ("mxfp4", "mxfp4"),
    ] {
        fs::create_dir(dir.at(scheme)).unwrap();
        let out = format!("{scheme}/model.safetensors");
        dir.convert(&["plain.safetensors", &*out, "--quantize", scheme]).success();
        let json = dir.run(&["inspect", "--json", &out]).quiet().json();
        assert_eq!(json["quantized_weights"][0]["scheme"], name);
        assert_eq!(json["quantized_weights"][0]["parameters"], 2048);
        assert_eq!(json["total"]["parameters"], 2048, "{scheme}");
        let shown = dir.run(&["inspect", &out]).quiet().out();
        let row = format!("\n{name:<12}        1       2,048  ");
        assert!(shown.contains("\nquantised as  weights  parameters  "), "{shown}");
        assert!(shown.contains(&row) && shown.contains("  bits each\n"), "{shown}");
        let codes = shown
            .lines()
            .find(|line| line.contains("  [32, 64] ") || line.contains("─ weight_packed "))
            .unwrap();
        assert!(codes.contains("  2,048  "), "{shown}");
        let summary = dir.run(&["inspect", "--summary", &out]).out();
        assert!(summary.ends_with(&format!("  {name}\n")), "{summary}");
    }
}
