//! `safetensors diff`: the differences that count, and how they are shown.

use assert_cmd::assert::Assert;
use half::bf16;
use safetensors_core::element::Element;
use serde_json::json;

use crate::fixtures::*;

/// A file of `w` and of another tensor.
fn file(dir: &Path, name: &str, w: TensorView<'_>, extra: &str, format: &str) {
    let tensors = [("w", w), (extra, array(&[1], &[1_u8]))];
    save(dir.at(name), tensors, &quick().metadata([("format", format)])).unwrap();
}

/// The files `a` and `b`, which differ in these values of `w` at most.
fn two<A: Element, B: Element>(a: &[A], b: &[B]) -> tempfile::TempDir {
    let dir = temp_dir();
    file(dir.path(), "a", array(&[a.len()], a), "x", "pt");
    file(dir.path(), "b", array(&[b.len()], b), "x", "pt");
    dir
}

fn diff(dir: &tempfile::TempDir, options: &str) -> Assert {
    dir.run(&format!("diff a b {options}"))
}

/// The files differ, and the row of `w` has this.
fn differs(dir: &tempfile::TempDir, options: &str, row: &str) {
    diff(dir, options).code(1).stdout(matches(row)).stderr("");
}

#[test]
fn a_checkpoint_equals_itself_however_it_is_split() {
    let dir = temp_dir();
    sharded(dir.path());
    dir.run("convert . one.safetensors").success();
    dir.run("diff model.safetensors.index.json one.safetensors")
        .success()
        .stdout("2 tensors equal\n")
        .stderr("");
}

#[test]
fn every_kind_of_difference_is_shown() {
    let dir = temp_dir();
    let (one, two) = ([1.0_f32, 2.0, 4.0], [1.0_f32, 2.5, f32::NAN]);
    file(dir.path(), "a", array(&[3], &one), "old", "pt");
    file(dir.path(), "b", array(&[3], &two), "new", "np");
    let expected = "   name  differs  A → B    values  max abs  max rel
───────────────────────────────────────────────────
+  new            U8 [1]
-  old            U8 [1]
~  w     values   F32 [3]  2 of 3      inf      inf

   metadata  A   B
───────────────────
~  format    pt  np

0 tensors equal, 1 different, 1 only in A, 1 only in B, metadata differs
";
    diff(&dir, "").code(1).stdout(expected).stderr("");
    let shown = diff(&dir, "--json").json();
    assert_eq!(
        (&shown["equal"], &shown["tensors"][2]["values"]["values"]),
        (&json!(false), &json!(2))
    );
    // JSON has no infinity.
    assert_eq!(shown["tensors"][2]["values"]["max_absolute"], json!(null));
    dir.run("diff a a").success();
    // A filter may match on one side only.
    diff(&dir, "-f new").code(1).stdout(contains("0 tensors equal, 1 only in B"));
    diff(&dir, "-f none").fails(2, "no tensor matches --filter 'none'; ").stdout("");
    diff(&dir, "-f new -f none").fails(2, "no tensor matches --filter 'none'; ").stdout("");
    diff(&dir, "-f new -f none --ignore-unmatched").code(1).stdout(contains("1 only in B"));
}

#[test]
fn tolerances_and_other_dtypes_are_respected() {
    let exact = [0.1_f32, -3.3, 1000.5];
    let dir = two(&exact, &exact.map(bf16::from_f32));
    differs(&dir, "", "3 of 3");
    differs(&dir, "--ignore-dtype --tolerance 0.01", "1 of 3");
    differs(&dir, "--relative-tolerance 0.004", "0 of 3");
    diff(&dir, "--ignore-dtype --relative-tolerance 0.004").success();
    for wrong in ["-1", "NaN", "inf", "1e999", "x"] {
        for option in ["--tolerance", "--relative-tolerance"] {
            let error = "expected a finite number of 0 or more";
            diff(&dir, &format!("{option} {wrong}")).fails(2, error);
        }
    }
}

#[test]
fn a_complex_number_is_compared_with_a_real_one() {
    let dir = temp_dir();
    for (name, numbers) in [("a", [1.0_f32, 5.0, 7.0, 7.0]), ("pure", [1.0, 0.0, 5.0, -0.0])] {
        let bytes = numbers.map(f32::to_le_bytes).concat();
        let view = TensorView::new(Dtype::C64, &[2], &bytes).unwrap();
        file(dir.path(), name, view, "x", "pt");
    }
    file(dir.path(), "b", array(&[2], &[1.0_f32, 5.0]), "x", "pt");
    differs(&dir, "--ignore-dtype", "w .* 3 of 4 +7 +1\n");
    let row = matches("w .* 3 of 4 +7 +1\n");
    dir.run("diff b a --ignore-dtype").code(1).stdout(row);
    dir.run("diff pure b --ignore-dtype").success();
    dir.run("diff pure b").code(1).stdout(contains(" 0 of 4 "));
}

#[test]
fn equal_means_the_same_bits_unless_there_is_a_tolerance() {
    let minus = [-0.0_f32, 1.0, f32::from_bits(0x7fc0_0001)];
    let dir = two(&[0.0_f32, 1.0, f32::NAN], &minus);
    let expected = "   name  differs  A → B            values  max abs  max rel
───────────────────────────────────────────────────────────
~  w     bits     F32 [3]  2 of 3 in bits        0        0

1 tensor equal, 1 different
";
    diff(&dir, "").code(1).stdout(expected).stderr("");
    let values = diff(&dir, "--json").json()["tensors"][0]["values"].clone();
    let [differ, bits, of] = ["values", "other_bits", "of"].map(|key| values[key].clone());
    assert_eq!([differ, bits, of], [json!(0), json!(2), json!(3)]);
    diff(&dir, "--tolerance 0").success().stdout("2 tensors equal\n");
    diff(&dir, "--relative-tolerance 0").success();
    dir.run("diff a a").success();
    differs(&two(&[0.0_f32, 1.0], &[-0.0_f32, 2.0]), "", "w .* 1 of 2, 1 in bits +1 +0.5\n");
}

#[test]
fn bytes_that_are_no_booleans_are_compared_all_the_same() {
    let dir = temp_dir();
    for (name, byte) in [("a", 2), ("again", 2), ("b", 1)] {
        let path = dir.at(name);
        raw_file(&path, r#"{"f":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}"#, 3);
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() = byte;
        fs::write(&path, bytes).unwrap();
    }
    dir.run("diff a again").success().stdout("1 tensor equal\n");
    differs(&dir, "", "1 of 3");
}

#[test]
fn pieces_add_up() {
    // More elements than one piece holds. The first and the last piece differ.
    let values: Vec<u16> = (0..600_001_u32).map(|i| (i % 1000) as u16).collect();
    let mut other = values.clone();
    other[3] = 8;
    other[600_000] = 7;
    differs(&two(&values, &other), "", "w .* 2 of 600,001 +7 +1\n");
}

#[test]
fn another_shape_is_not_compared() {
    let dir = temp_dir();
    file(dir.path(), "a", array(&[2], &[1_u8, 2]), "x", "pt");
    file(dir.path(), "b", array(&[1, 2], &[1_u8, 2]), "x", "pt");
    differs(&dir, "", r"~  w     shape    U8 \[2\] → \[1, 2\]\n");
    diff(&dir, "-f x").success().stdout("1 tensor equal\n");
}

/// A script must not take a file that is not there for one that differs.
#[test]
fn a_difference_is_1_and_trouble_is_2() {
    let dir = two(&[1.0_f32], &[2.0_f32]);
    fs::write(dir.at("broken"), "broken").unwrap();
    for (args, code) in [("a a", 0), ("a b", 1), ("a gone", 2), ("broken a", 2), ("a", 2)] {
        for option in ["", " -q", " --headers"] {
            let code = if (args, option) == ("a b", " --headers") { 0 } else { code };
            dir.run(&format!("diff {args}{option}")).code(code);
        }
    }
}

#[test]
fn quiet_prints_nothing_and_ends_at_the_first_difference() {
    let dir = temp_dir();
    let long = vec![7_u8; 9_000_000];
    let mut other = long.clone();
    other[0] = 8;
    for (name, values) in [("a", &long), ("b", &other)] {
        save(dir.at(name), [("w", array(&[9_000_000], values))], &quick()).unwrap();
    }
    diff(&dir, "--quiet").code(1).stdout("").stderr("");
    dir.run("diff -q a a").success().stdout("").stderr("");
    // A difference of headers needs no data, which is not there.
    let header = |name: &str, shape: &str| {
        let header =
            format!(r#"{{"w":{{"dtype":"U8","shape":{shape},"data_offsets":[0,1099511627776]}}}}"#);
        raw_file(&dir.at(name), &header, 0);
        let file = fs::OpenOptions::new().write(true).open(dir.at(name)).unwrap();
        file.set_len(file.metadata().unwrap().len() + (1 << 40)).is_ok()
    };
    if header("a", "[1099511627776]") && header("b", "[2,549755813888]") {
        let mut command = safetensors();
        command.timeout(std::time::Duration::from_secs(60)).current_dir(&dir);
        command.args(["diff", "a", "b", "-q"]).assert().code(1).stdout("");
    }
}

#[test]
fn headers_are_compared_without_the_data() {
    let dir = temp_dir();
    file(dir.path(), "a", array(&[2], &[1.0_f32, 2.0]), "x", "pt");
    file(dir.path(), "b", array(&[2], &[1.0_f32, f32::NAN]), "x", "pt");
    diff(&dir, "--headers").success().stdout("2 tensors equal in dtype and shape\n");
    let half = [bf16::ONE; 4];
    file(dir.path(), "b", array(&[4], &half), "x", "np");
    let expected = "   name  differs       A → B
─────────────────────────────────────────
~  w     dtype, shape  F32 [2] → BF16 [4]

   metadata  A   B
───────────────────
~  format    pt  np

1 tensor equal in dtype and shape, 1 different, metadata differs
";
    diff(&dir, "--headers").code(1).stdout(expected).stderr("");
    let json = diff(&dir, "--headers --json").json();
    assert_eq!(
        (&json["headers_only"], &json["tensors"][0]["values"]),
        (&json!(true), &json!(null))
    );
    file(dir.path(), "b", array(&[2], &half[..2]), "x", "pt");
    diff(&dir, "--headers --ignore-dtype").success();
    diff(&dir, "--headers --tolerance 0").code(2);
}

#[test]
fn renamed_tensors_are_compared() {
    let dir = temp_dir();
    let values = [1.0_f32, 2.0];
    let both = |names: [&'static str; 2]| names.map(|name| (name, array(&[2], &values)));
    save(dir.at("a"), both(["h.0.w", "h.1.w"]), &quick()).unwrap();
    save(dir.at("b"), both(["model.layers.0.w", "model.layers.1.w"]), &quick()).unwrap();
    diff(&dir, "").code(1).stdout(contains("0 tensors equal, 2 only in A, 2 only in B"));
    let renamed = |options: &str| {
        let mut words = vec!["diff", "a", "b", "--rename", r"^h\.(\d+)", "model.layers.$1"];
        words.extend(options.split_whitespace());
        dir.run(&words)
    };
    renamed("").success().stdout("2 tensors equal\n");
    // A pattern applies to the new names.
    renamed("-f model.*.1.w").success().stdout("1 tensor equal\n");
    renamed("--rename layers same").code(1);
    dir.run(&["diff", "a", "b", "--rename", r"\d", "n"])
        .fails(2, r"--rename: h.0.w, h.1.w of A get the same name: h.n.w");
    diff(&dir, "--rename ( x").fails(2, "--rename: ");
}

#[test]
fn stacked_experts_are_compared_with_single_ones() {
    let dir = temp_dir();
    let all: Vec<f32> = (0..72_u8).map(f32::from).collect();
    let bias = array(&[3], &all[..3]);
    let single = (0..9).map(|i| {
        let (part, shape) = [("gate", &[2, 4]), ("up", &[2, 4]), ("down", &[4, 2])][i % 3];
        let name = format!("l.0.experts.{}.{part}_proj.weight", i / 3);
        (name, array(shape, &all[i * 8..][..8]))
    });
    let single: Vec<_> = single.chain([("l.0.bias".to_owned(), bias)]).collect();
    save(dir.at("a"), single, &quick()).unwrap();
    let stack = |values: &[f32], count: usize| {
        let part = |from: usize, len: usize| {
            let experts = values.chunks(24).take(count).flat_map(move |it| &it[from..][..len]);
            experts.copied().collect::<Vec<_>>()
        };
        let (gate_up, down) = (part(0, 16), part(16, 8));
        let shapes = [[count, 4, 4], [count, 4, 2]];
        let tensors = [
            ("l.0.experts.gate_up_proj", array(&shapes[0], &gate_up)),
            ("l.0.experts.down_proj", array(&shapes[1], &down)),
            ("l.0.bias", bias),
        ];
        save(dir.at("b"), tensors, &quick()).unwrap();
    };
    stack(&all, 3);
    diff(&dir, "").success().stdout("10 tensors equal\n");
    dir.run("diff b a").success().stdout("10 tensors equal\n");
    dir.run("diff b b").success().stdout("3 tensors equal\n");
    let as_stored = "1 tensor equal in dtype and shape, 9 only in A, 2 only in B";
    diff(&dir, "--headers").code(1).stdout(contains(as_stored));
    let mut other = all.clone();
    other[48 + 9] = 0.5;
    stack(&other, 3);
    differs(&dir, "", r"\n~  l.0.experts.2.up_proj.weight  values   F32 \[2, 4\]  1 of 8 ");
    diff(&dir, "").stdout(contains("9 tensors equal, 1 different\n"));
    stack(&all, 2);
    diff(&dir, "").code(1).stdout(contains("7 tensors equal, 3 only in A"));
    // Stacks that do not fit each other are other tensors.
    let tensors = [
        ("l.0.experts.gate_up_proj", array(&[3, 4, 4], &all[..48])),
        ("l.0.experts.down_proj", array(&[3, 4, 3], &all[..36])),
    ];
    save(dir.at("b"), tensors, &quick()).unwrap();
    diff(&dir, "").code(1).stdout(contains("0 tensors equal, 10 only in A, 2 only in B"));
}

#[test]
fn fused_projections_are_compared_with_separate_ones() {
    let dir = temp_dir();
    let all: Vec<f32> = (0..24_u8).map(f32::from).collect();
    let separate = |name: &str, part: usize| {
        (format!("mlp.{name}.weight"), array(&[2, 3], &all[part * 6..][..6]))
    };
    let fuse = |name: &str, shape: &[usize], values: &[f32]| {
        save(dir.at("b"), [(format!("mlp.{name}"), array(shape, values))], &quick()).unwrap();
    };
    save(dir.at("a"), [separate("gate_proj", 0), separate("up_proj", 1)], &quick()).unwrap();
    fuse("gate_up_proj.weight", &[4, 3], &all[..12]);
    diff(&dir, "").success().stdout("2 tensors equal\n");
    dir.run("diff b a").success().stdout("2 tensors equal\n");
    fuse("gate_up_proj.weight", &[4, 3], &all[1..13]);
    differs(&dir, "-f *up*", r"\n~  mlp.up_proj.weight  values   F32 \[2, 3\]  6 of 6 ");
    // Halves of another shape, or on one side only, are other tensors. So are fused ones whose
    // halves are there too.
    let fused = ("mlp.gate_up_proj.weight".to_owned(), array(&[4, 3], &all[..12]));
    save(dir.at("b"), [separate("gate_proj", 0), fused], &quick()).unwrap();
    diff(&dir, "").code(1).stdout(contains("1 tensor equal, 1 only in A, 1 only in B"));
    fuse("gate_up_proj.weight", &[3, 4], &all[..12]);
    diff(&dir, "").code(1).stdout(contains("0 tensors equal, 2 only in A, 1 only in B"));
    save(dir.at("a"), [separate("gate_proj", 0)], &quick()).unwrap();
    fuse("gate_up_proj.weight", &[4, 3], &all[..12]);
    diff(&dir, "").code(1).stdout(contains("0 tensors equal, 1 only in A, 1 only in B"));
}

#[test]
fn rows_are_in_the_natural_order_of_names() {
    let dir = temp_dir();
    let values = [1.0_f32, 2.0];
    let names = ["h.10.w", "h.9.w", "h", "h.9.b", "a"];
    save(dir.at("a"), names.map(|name| (name, array(&[2], &values))), &quick()).unwrap();
    save(dir.at("b"), [("a", array(&[2], &values))], &quick()).unwrap();
    let json = diff(&dir, "--json").json();
    let rows = json["tensors"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap());
    assert_eq!(rows.collect::<Vec<_>>(), ["h", "h.9.b", "h.9.w", "h.10.w"]);
}

/// Each matrix of four rows and eight columns of four bits is 16 bytes.
#[test]
fn experts_of_packed_elements_are_compared_by_bytes() {
    let dir = temp_dir();
    let bytes: Vec<u8> = (0..96).collect();
    let f4 = |shape: &'static [usize], bytes| TensorView::new(Dtype::F4, shape, bytes).unwrap();
    let gate_up = [&bytes[..32], &bytes[48..80]].concat();
    let down = [&bytes[32..48], &bytes[80..]].concat();
    let stacked = [
        ("e.experts.gate_up_proj", f4(&[2, 8, 8], &gate_up)),
        ("e.experts.down_proj", f4(&[2, 8, 4], &down)),
    ];
    save(dir.at("b"), stacked, &quick()).unwrap();
    let single = ["gate", "up", "down"].into_iter().cycle().zip(bytes.chunks(16)).enumerate();
    let single = single.map(|(i, (part, bytes))| {
        let shape = if part == "down" { &[8, 4] } else { &[4, 8] };
        (format!("e.experts.{}.{part}_proj.weight", i / 3), f4(shape, bytes))
    });
    save(dir.at("a"), single.collect::<Vec<_>>(), &quick()).unwrap();
    diff(&dir, "").success().stdout("6 tensors equal\n");
}

#[test]
fn a_pattern_takes_a_pair_by_each_name_of_a_tied_tensor() {
    let dir = temp_dir();
    let (ours, theirs) = ([1.0_f32, 2.0], [1.0_f32, 3.0]);
    let tied = || quick().metadata([("head", "embed")]);
    save(dir.at("a"), [("embed", array(&[2], &ours))], &tied()).unwrap();
    save(dir.at("b"), [("embed", array(&[2], &theirs))], &tied()).unwrap();
    for patterns in ["-f head", "-f embed -f head", "-f h* -f e*"] {
        diff(&dir, patterns).code(1).stdout(contains("0 tensors equal, 1 different\n"));
    }
    diff(&dir, "-f embed -f tail").fails(2, "no tensor matches --filter 'tail'; ");
    // Where one side has a tensor of the name, only that is compared.
    let both = [("embed", array(&[2], &ours)), ("head", array(&[2], &theirs))];
    save(dir.at("b"), both, &quick()).unwrap();
    for (left, right) in [("a", "b"), ("b", "a")] {
        let run =
            |options: &str| dir.run(&format!("diff {left} {right} --ignore-metadata {options}"));
        run("-f embed").success().stdout("1 tensor equal\n");
        run("-f head").code(1).stdout(contains("0 tensors equal, 1 different\n"));
    }
    // An expression may change the other name alone.
    let tail = [("embed", array(&[2], &ours)), ("tail", array(&[2], &ours))];
    save(dir.at("b"), tail, &quick()).unwrap();
    let renamed = "--ignore-metadata --rename ^head$ tail -f tail";
    diff(&dir, renamed).success().stdout("1 tensor equal\n");
}
