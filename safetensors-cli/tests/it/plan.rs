//! `safetensors plan`.

use std::fs;
use std::path::Path;

use predicates::prelude::*;
use safetensors_core::{SaveOptions, TensorView, save};

use crate::fixtures::*;

/// The number is wrong whatever the tensors are.
#[test]
fn a_number_of_ranks_that_cannot_be_is_wrong_usage() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    for ranks in ["0", "-1", "1048577", "x"] {
        let plan = ["plan", "model.safetensors", &format!("--world-size={ranks}")];
        let convert = ["convert", "model.safetensors", "out", &format!("--ranks={ranks}")];
        for args in [&plan[..], &convert] {
            let said = predicates::str::contains("expected a number from 1 to 1048576");
            run_in(dir.path(), args).code(2).stdout("").stderr(said);
        }
    }
    assert!(!dir.path().join("out").exists());
}

/// A file of one layer with names like Llama's: 6 parameters a row, 96 bytes.
pub(crate) fn llama(dir: &Path, name: &str) {
    let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let view = |shape| TensorView::from_slice(shape, &values).unwrap();
    let norm = TensorView::from_slice(&[3], &values[..3]).unwrap();
    let tensors = [
        ("model.layers.0.mlp.gate_proj.weight", view(&[4, 3])),
        ("model.layers.0.mlp.down_proj.weight", view(&[3, 4])),
        ("model.norm.weight", norm),
    ];
    save(dir.join(name), tensors, &SaveOptions::new()).unwrap();
}

#[test]
fn the_names_tell_the_rules() {
    let dir = temp_dir();
    llama(dir.path(), "a.safetensors");
    let shown = "\
division   tensors  size  each rank holds
─────────────────────────────────────────
replicate        1  12 B             12 B
split:0          1  48 B             24 B
split:1          1  48 B             24 B

rank  bytes   size
──────────────────
0…1      60   60 B
all     120  120 B

the whole tensors have 108 bytes, 108 B
";
    run_in(dir.path(), "plan a.safetensors --world-size 2").success().stdout(shown);
    let flat = "\
name                                 dtype  shape   division   each rank holds
──────────────────────────────────────────────────────────────────────────────
model.layers.0.mlp.down_proj.weight  F32    [3, 4]  split:1               24 B
model.layers.0.mlp.gate_proj.weight  F32    [4, 3]  split:0               24 B
model.norm.weight                    F32    [3]     replicate             12 B
";
    let flat_run = run_in(dir.path(), "plan a.safetensors -w 2 --flat").success();
    let mut lines: Vec<_> = text(&flat_run.get_output().stdout).lines().collect();
    lines[2..].sort_unstable();
    assert_eq!(lines.join("\n") + "\n", flat);
}

#[test]
fn a_plan_is_saved_and_read() {
    let dir = temp_dir();
    llama(dir.path(), "a.safetensors");
    let run = |line: &str| run_in(dir.path(), line);
    run("plan a.safetensors -w 4 -o plan.json --rule '*gate*=replicate'").success();
    let saved = fs::read_to_string(dir.path().join("plan.json")).unwrap();
    let again = run("plan a.safetensors --from plan.json -o -").success();
    assert_eq!(text(&again.get_output().stdout), saved);
    let json = run("plan a.safetensors --from plan.json --json").success().json();
    assert_eq!((&json["world_size"], &json["total_size"]), (&4.into(), &108.into()));
    assert_eq!((&json["ranks"][3]["bytes"], &json["read"]), (&72.into(), &(72 * 4).into()));
    assert_eq!(json["tensors"].as_array().unwrap().len(), 3);

    small_file(dir.path(), "b.safetensors");
    let missing =
        predicate::str::contains("does not match").and(predicate::str::contains("missing"));
    run("plan b.safetensors --from plan.json").code(1).stdout("").stderr(missing);
    fs::write(dir.path().join("plan.json"), saved.replace("split:1", "split:7")).unwrap();
    let bad = predicate::str::contains("plan.json").and(predicate::str::contains("no dimension 7"));
    run("plan a.safetensors --from plan.json").code(1).stderr(bad);
}

#[test]
fn what_cannot_be_divided_says_how_it_could() {
    let dir = temp_dir();
    llama(dir.path(), "a.safetensors");
    small_file(dir.path(), "b.safetensors");
    let fails = |args: &[&str], code, message: &str| {
        let stderr = predicate::str::contains(message.to_owned());
        run_in(dir.path(), args).code(code).stdout("").stderr(stderr);
    };
    fails(&["plan", "a.safetensors", "-w", "3"], 1, "--rule 'NAME=uneven:DIM'");
    fails(&["plan", "b.safetensors", "-w", "2"], 1, "--rule 'NAME=replicate'");
    fails(&["plan", "a.safetensors"], 2, "--world-size");
    fails(&["plan", "a.safetensors", "-w", "2", "--rule", "x"], 2, "GLOB=RULE");
    fails(&["plan", "a.safetensors", "-w", "2", "--rule", "[=replicate"], 2, "not closed");
    fails(&["plan", "a.safetensors", "-w", "2", "--rule", "*=half"], 2, "expected replicate");
    fails(&["plan", "a.safetensors", "-w", "2", "--json", "-o", "-"], 2, "standard output");
    fails(&["plan", "a.safetensors", "--from", "none.json"], 1, "none.json");
    let uneven = ["plan", "a.safetensors", "-w", "3", "--rule", "*=uneven:0", "--preset", "none"];
    run_in(dir.path(), &uneven).shows("0…1      44   44 B");
}

/// Names of a hostile file cannot control the terminal.
#[test]
fn hostile_names_are_escaped() {
    let dir = temp_dir();
    hostile_file(dir.path());
    let args = ["plan", "hostile.safetensors", "-w", "1", "--rule", "*=replicate", "--flat"];
    let shown = run_in(dir.path(), &args).success();
    assert!(is_plain(text(&shown.get_output().stdout)));
    let refused = run_in(dir.path(), "plan hostile.safetensors -w 1").code(1);
    assert!(is_plain(text(&refused.get_output().stderr)));
}
