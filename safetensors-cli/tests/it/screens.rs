//! The screens of the command on terminals of several sizes.

use safetensors_core::save::Order;

use crate::fixtures::*;
use crate::terminal::{Screen, Terminal};

/// A file with a name of 10 kB and a metadata value of 5 kB.
fn long(dir: &Path) {
    let tensor = array(&[2, 3], &[0.0_f32; 6]);
    let tensors = [("w".to_owned(), tensor), (format!("{}.weight", "x".repeat(10_000)), tensor)];
    let options = quick().metadata([("log", "v".repeat(5000))]);
    save(dir.at("long.safetensors"), tensors, &options).unwrap();
}

fn on(rows: u16, columns: u16, dir: &Path, args: &[&str]) -> Screen {
    let screen = Terminal::new(rows, columns).run(dir, args);
    assert!(screen.code == Some(0) && !screen.wraps, "{screen:?}");
    screen
}

/// The first screen of a long output.
fn first(rows: u16, columns: u16, dir: &Path, args: &[&str]) -> String {
    let pager = format!("head -n {}", rows - 1);
    let screen = Terminal::new(rows, columns).env("PAGER", pager).run(dir, args);
    assert!(screen.code == Some(0) && !screen.wraps, "{screen:?}");
    screen.last
}

#[test]
fn a_tree_at_80_by_24() {
    let dir = temp_dir();
    minilm(dir.path());
    let expected = "\
module                        dtype  shape         tensors  parameters      size
────────────────────────────────────────────────────────────────────────────────
embeddings                                               6  11,919,104   47.7 MB
├─ LayerNorm                                             2         768    3.1 kB
│  ├─ bias                    F32    [384]               1         384    1.5 kB
│  └─ weight                  F32    [384]               1         384    1.5 kB
├─ position…mbeddings.weight  F32    [512, 384]          1     196,608  786.4 kB
├─ position_ids               I64    [1, 512]            1         512    4.1 kB
├─ token_ty…mbeddings.weight  F32    [2, 384]            1         768    3.1 kB
└─ word_embeddings.weight     F32    [30522, 384]        1  11,720,448   46.9 MB
encoder.layer.0…5                                       96  10,646,784   42.6 MB
├─ attention                                            60   3,552,768   14.2 MB
│  ├─ output                                            24     891,648    3.6 MB
│  │  ├─ LayerNorm                                      12       4,608   18.4 kB
│  │  │  ├─ bias              F32    [384]               6       2,304    9.2 kB
│  │  │  └─ weight            F32    [384]               6       2,304    9.2 kB
│  │  └─ dense                                          12     887,040    3.5 MB
│  │     ├─ bias              F32    [384]               6       2,304    9.2 kB
│  │     └─ weight            F32    [384, 384]          6     884,736    3.5 MB
│  └─ self                                              36   2,661,120   10.6 MB
│     ├─ key                                            12     887,040    3.5 MB
│     │  ├─ bias              F32    [384]               6       2,304    9.2 kB
│     │  └─ weight            F32    [384, 384]          6     884,736    3.5 MB
";
    assert_eq!(first(24, 80, dir.path(), &["inspect", "minilm.safetensors"]), expected);
}

/// People look for NaN, and a name that is shortened to another layer's is useless.
#[test]
fn statistics_at_80_by_24_show_nan_and_distinct_layers() {
    let dir = temp_dir();
    let layer = |i: usize| format!("model.layers.{i}.self_attention.query_projection.weight");
    let (sound, broken) = ([1.5_f32, -0.25], [f32::NAN, 1234.5]);
    let save_as = |name: &str, last: &[f32; 2]| {
        let tensors = [(0, &sound), (1, last)].map(|(i, values)| (layer(i), array(&[2], values)));
        let options = quick().order(Order::Given);
        save(dir.at(name), tensors, &options).unwrap();
    };
    save_as("sound.safetensors", &sound);
    let expected = "\
name                                          min       p1  max   mean    std  …
────────────────────────────────────────────────────────────────────────────────
model.layers.0…ion.query_projection.weight  -0.25  -0.2325  1.5  0.625  0.875
model.layers.1…ion.query_projection.weight  -0.25  -0.2325  1.5  0.625  0.875
";
    let shown = on(24, 80, dir.path(), &["stats", "sound.safetensors"]).last;
    assert_eq!(shown, expected);
    save_as("broken.safetensors", &broken);
    let expected = "\
name                                             min   max   mean    std  NaN  …
────────────────────────────────────────────────────────────────────────────────
model.layers.0.…ntion.query_projection.weight  -0.25   1.5  0.625  0.875    –
model.layers.1.…ntion.query_projection.weight   1234  1234   1234      0    1

1 tensor with NaN or infinity
";
    let shown = on(24, 80, dir.path(), &["stats", "broken.safetensors"]).last;
    assert_eq!(shown, expected);
}

#[test]
fn no_table_is_wider_than_its_terminal() {
    let dir = temp_dir();
    minilm(dir.path());
    small_file(dir.path(), "small.safetensors");
    hostile_file(dir.path());
    long(dir.path());
    for columns in [60, 80, 120] {
        for (code, args) in [
            (0, &["inspect", "minilm.safetensors"][..]),
            (0, &["inspect", "--flat", "minilm.safetensors"]),
            (0, &["inspect", "hostile.safetensors"]),
            (0, &["inspect", "long.safetensors", "--flat"]),
            (0, &["stats", "small.safetensors"]),
            (1, &["diff", "small.safetensors", "long.safetensors"]),
            (0, &["plan", "small.safetensors", "-w", "1", "--rule", "*=replicate", "--flat"]),
            (0, &["convert", "-n", "long.safetensors", "new.safetensors", "--prefix", "p."]),
        ] {
            let screen = Terminal::new(200, columns).run(dir.path(), args);
            assert!(screen.code == Some(code) && !screen.wraps, "{columns} {args:?} {screen:?}");
        }
    }
}

#[test]
fn differences_at_80_columns_show_the_kind_of_difference() {
    let dir = temp_dir();
    let name = |i: usize| format!("model.layers.{i}.self_attention.query_projection.weight");
    let values = vec![0.5_f32; 150_000];
    let half = vec![half::bf16::from_f32(0.5); 150_000];
    let minus: Vec<f32> = values.iter().map(|it| -it).collect();
    let shape = [300, 500];
    let a = [0, 1, 2].map(|i| (name(i), array(&shape, &values)));
    save(dir.at("a"), a, &quick()).unwrap();
    let b = [
        (name(0), array(&shape, &half)),
        (name(1), array(&[500, 300], &values)),
        (name(2), array(&shape, &minus)),
    ];
    save(dir.at("b"), b, &quick()).unwrap();
    let expected = "\
   name                                                   differs  …
────────────────────────────────────────────────────────────────────
~  model.layers.0.self_attention.query_projection.weight  dtype
~  model.layers.1.self_attention.query_projection.weight  shape
~  model.layers.2.self_attention.query_projection.weight  values

0 tensors equal, 3 different
";
    let shown = Terminal::new(24, 80).run(dir.path(), &["diff", "a", "b"]).last;
    assert_eq!(shown.trim_start(), expected.trim_start());
}

#[test]
fn a_pipe_gets_tabs_and_full_names_unless_columns_is_set() {
    let dir = temp_dir();
    minilm(dir.path());
    long(dir.path());
    let args = ["inspect", "minilm.safetensors", "--no-pager"];
    let piped = |args: &[&str], columns: Option<&str>| {
        let mut command = safetensors();
        command.current_dir(dir.path()).args(args).env_remove("COLUMNS");
        columns.map(|columns| command.env("COLUMNS", columns));
        command.assert().quiet().out()
    };
    let told = Terminal::new(100, 160).env("COLUMNS", "60").run(dir.path(), &args);
    assert_eq!(told.last, on(100, 60, dir.path(), &args).last);
    assert_eq!(piped(&args, Some("60")), told.last);
    let shown = piped(&args, None);
    for line in [
        "module\tdtype\tshape\ttensors\tparameters\tsize",
        "pooler.dense\t\t\t2\t147,840\t591.4 kB",
    ] {
        assert!(shown.lines().any(|it| it == line), "{line} {shown}");
    }
    assert!(!shown.contains("───"), "{shown}");
    // Nothing but the table comes where each checkpoint is a line.
    small_file(dir.path(), "a.safetensors");
    let lines = piped(&["inspect", "a.safetensors", "a.safetensors"], None);
    let row = "a.safetensors\t2\t8\t40 B\tF32, I64\n";
    assert_eq!(lines, format!("checkpoint\ttensors\tparameters\tsize\tstored as\n{row}{row}"));
    let flat = piped(&["inspect", "--flat", "long.safetensors"], None);
    let name = format!("{}.weight", "x".repeat(10_000));
    let value = format!("log\t{}", "v".repeat(5000));
    for whole in [&format!("{name}\tF32\t[2, 3]\t24 B"), &value] {
        assert!(flat.lines().any(|line| line == whole));
    }
    // A message stays short.
    let missing = safetensors()
        .current_dir(dir.path())
        .env_remove("COLUMNS")
        .args(["show", "long.safetensors", "xx.weight"])
        .assert()
        .err();
    assert!(missing.len() < 1000, "{}", missing.len());
}
