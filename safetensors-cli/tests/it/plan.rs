//! `safetensors plan`.

use crate::fixtures::*;

/// The number is wrong for any tensors.
#[test]
fn a_number_of_ranks_that_cannot_be_is_wrong_usage() {
    let dir = temp_dir();
    small_file(dir.path(), "model.safetensors");
    for ranks in ["0", "-1", "1048577", "x"] {
        let plan = ["plan", "model.safetensors", &format!("--world-size={ranks}")];
        let convert = ["convert", "model.safetensors", "out", &format!("--ranks={ranks}")];
        for args in [&plan[..], &convert] {
            dir.run(args).fails(2, "expected a whole number from 1 to 1048576").stdout("");
        }
    }
    assert!(!dir.at("out").exists());
}

/// Makes a file with a single layer and names like Llama's: 6 parameters a row, 96 bytes.
pub(crate) fn llama(dir: &Path, name: &str) {
    let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let view = |shape| array(shape, &values);
    let norm = array(&[3], &values[..3]);
    let tensors = [
        ("model.layers.0.mlp.gate_proj.weight", view(&[4, 3])),
        ("model.layers.0.mlp.down_proj.weight", view(&[3, 4])),
        ("model.norm.weight", norm),
    ];
    save(dir.at(name), tensors, &SaveOptions::new()).unwrap();
}

#[test]
fn the_names_of_tensors_determine_the_rules() {
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
    dir.run("plan a.safetensors --world-size 2").success().stdout(shown);
    let flat = "\
name                                 dtype  shape   division   each rank holds
──────────────────────────────────────────────────────────────────────────────
model.layers.0.mlp.down_proj.weight  F32    [3, 4]  split:1               24 B
model.layers.0.mlp.gate_proj.weight  F32    [4, 3]  split:0               24 B
model.norm.weight                    F32    [3]     replicate             12 B
";
    let flat_run = dir.run("plan a.safetensors -w 2 --flat").success();
    let mut lines: Vec<_> = text(&flat_run.get_output().stdout).lines().collect();
    lines[2..].sort_unstable();
    assert_eq!(lines.join("\n") + "\n", flat);
}

#[test]
fn a_plan_is_saved_and_read() {
    let dir = temp_dir();
    llama(dir.path(), "a.safetensors");
    let run = |line: &str| dir.run(line);
    run("plan a.safetensors -w 4 -o plan.json --rule '*gate*=replicate'").success();
    let saved = dir.text("plan.json");
    let again = run("plan a.safetensors --from plan.json -o -").success();
    assert_eq!(text(&again.get_output().stdout), saved);
    let json = run("plan a.safetensors --from plan.json --json").success().json();
    assert_eq!((&json["world_size"], &json["total_size"]), (&4.into(), &108.into()));
    assert_eq!((&json["ranks"][3]["bytes"], &json["read"]), (&72.into(), &(72 * 4).into()));
    assert_eq!(json["tensors"].as_array().unwrap().len(), 3);

    small_file(dir.path(), "b.safetensors");
    let missing = contains("does not match").and(contains("missing"));
    run("plan b.safetensors --from plan.json").code(1).stdout("").stderr(missing);
    dir.write("plan.json", saved.replace("split:1", "split:7"));
    let bad = contains("plan.json").and(contains("no dimension 7"));
    run("plan a.safetensors --from plan.json").code(1).stderr(bad);
}

#[test]
fn the_error_of_an_indivisible_tensor_suggests_a_rule() {
    let dir = temp_dir();
    llama(dir.path(), "a.safetensors");
    small_file(dir.path(), "b.safetensors");
    let fails = |args: &[&str], code, message: &str| {
        let stderr = contains(message.to_owned());
        dir.run(args).code(code).stdout("").stderr(stderr);
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
    dir.run(&uneven).shows("0…1      44   44 B");
}

#[test]
fn a_rule_that_matches_no_tensor_is_an_error_unless_that_is_ignored() {
    let dir = temp_dir();
    llama(dir.path(), "a.safetensors");
    let rule = ["--rule", "*.gaet_proj.weight=replicate"];
    let says = "a.safetensors: no tensor matches --rule '*.gaet_proj.weight'; similar: \
                model.layers.0.mlp.gate_proj.weight; --ignore-unmatched allows it";
    let plan = ["plan", "a.safetensors", "-w", "2", "-o", "plan.json"];
    dir.run(&[&plan[..], &rule].concat()).fails(1, says).stdout("");
    assert!(!dir.at("plan.json").exists());
    let convert = ["convert", "a.safetensors", "out", "--ranks", "2"];
    let says = "no tensor matches --rule '*.gaet_proj.weight'; similar: ";
    dir.run(&[&convert[..], &rule].concat()).fails(1, says).stdout("");
    assert!(!dir.at("out").exists());
    for args in [&plan[..], &convert] {
        dir.run(&[args, &rule, &["--ignore-unmatched"]].concat()).quiet();
    }
    assert!(dir.at("out").is_dir() && dir.at("plan.json").is_file());

    // The rules of a conversion are for the names that OUT has. A rule after one that matches the
    // same tensors is not misspelt.
    let names = ["--force", "--prefix", "x.", "--rule", "x.*.gate_proj.*=replicate"];
    let both = ["--rule", "*.mlp.gate_proj.*=split:0"];
    dir.run(&[&convert[..], &names, &both].concat()).quiet();
}

/// Names of a hostile file cannot control the terminal.
#[test]
fn hostile_names_are_escaped() {
    let dir = temp_dir();
    hostile_file(dir.path());
    let args = ["plan", "hostile.safetensors", "-w", "1", "--rule", "*=replicate", "--flat"];
    let shown = dir.run(&args).success();
    assert!(is_plain(text(&shown.get_output().stdout)));
    let refused = dir.run("plan hostile.safetensors -w 1").code(1);
    assert!(is_plain(text(&refused.get_output().stderr)));
}

/// A layer of attention with four heads of two numbers, and two heads of keys and values.
fn attention(dir: &Path) {
    let values = [0.5_f32; 64];
    let tensors = [("q_proj", [8, 8]), ("k_proj", [4, 8]), ("v_proj", [4, 8]), ("o_proj", [8, 8])];
    let tensors = tensors.each_ref().map(|(name, shape)| {
        let name = format!("model.layers.0.self_attn.{name}.weight");
        (name, array(shape, &values[..shape[0] * shape[1]]))
    });
    save(dir.at("model.safetensors"), tensors, &quick()).unwrap();
}

#[test]
fn a_rank_that_gets_a_part_of_a_head_is_a_warning_with_a_rule_that_helps() {
    let dir = temp_dir();
    attention(dir.path());
    let config = r#"{"num_attention_heads": 4, "num_key_value_heads": 2}"#;
    let [k, v] = ["k", "v"].map(|name| format!("model.layers.0.self_attn.{name}_proj.weight"));
    let shared = format!(
        "warning: a rank gets a part of a head: 2 heads among 4 ranks: {k}, {v}; \
         --rule 'NAME=shared:0:2' has ranks share whole heads\n"
    );
    // Without settings, nobody knows the heads.
    dir.run("plan . -w 4").quiet();
    dir.write("config.json", config);
    dir.run("plan . -w 2").quiet();
    dir.run("plan . -w 4").success().stderr(shared.clone());
    dir.run("plan . -w 4 --rule *.{k,v}_proj.weight=shared:0:2").quiet();
    dir.run("plan . -w 4 --rule *.{k,v}_proj.weight=replicate").quiet();
    // Also of a saved plan, and of rows and columns that are no whole heads.
    let written = "\nplan.json: 4 tensors, for 4 ranks\n";
    dir.run("plan . -w 4 -o plan.json").success().stdout(ends_with(written));
    let json = dir.run("plan . -w 4 -o plan.json --json --force").success().out();
    assert!(json.starts_with('{') && json.ends_with("}\n"), "{json}");
    dir.run("plan . --from plan.json").success().stderr(shared.clone());
    dir.convert("model.safetensors out --ranks 4 -n").success().stderr(shared.clone());
    dir.convert("model.safetensors out --plan plan.json").success().stderr(shared);
    let all = dir.run("plan . -w 8 --rule *.{k,v}_proj.weight=replicate").success();
    let (all, heads) = (all.err(), "4 heads among 8 ranks");
    assert!(
        all.contains(&format!(
            "{heads}: model.layers.0.self_attn.q_proj.weight; --rule 'NAME=shared:0:4'"
        )),
        "{all}"
    );
    assert!(
        all.contains(&format!(
            "{heads}: model.layers.0.self_attn.o_proj.weight; --rule 'NAME=shared:1:4'"
        )),
        "{all}"
    );
    dir.run("plan . -w 2 --rule *.k_proj.weight=offsets:0:0,1,4").success().stderr(
        format!("warning: a rank gets a part of a head: 2 heads among 2 ranks: {k}; --rule 'NAME=shared:0:2' has ranks share whole heads\n"));
    dir.write("config.json", r#"{"num_attention_heads": 4, "num_key_value_heads": 1}"#);
    dir.run("plan . -w 2").success().stderr(contains("1 head among 2 ranks"));
    // Settings that are none do not stop a plan.
    dir.write("config.json", "{");
    dir.run("plan . -w 4").quiet();
}
