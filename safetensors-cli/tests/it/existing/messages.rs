//! The messages about an output that exists: the error, the dry run, the question on a terminal.

use super::{content, file, inputs};
use crate::fixtures::*;

#[test]
fn the_error_describes_the_existing_output_and_a_remedy() {
    let dir = temp_dir();
    inputs(dir.path());
    file(dir.path(), "c.safetensors", &["z", "y\u{202e}"], 1.0);
    fs::create_dir(dir.at("d")).unwrap();
    (1..6).for_each(|i| dir.write(format!("d/model-0000{i}-of-00009.safetensors"), "x"));
    dir.write("notes.npz", "12345");
    for (out, held) in [
        ("c.safetensors", "2 tensors, 16 B"),
        ("notes.npz", "5 B"),
        (
            "d",
            "5 files (model-00001-of-00009.safetensors, model-00002-of-00009.safetensors, \
             model-00003-of-00009.safetensors and 2 more), 5 B",
        ),
    ] {
        let error = format!(
            "error: {out} exists: it has {held}, and would be replaced; --force replaces it\n"
        );
        dir.convert(&["in.safetensors", "same.safetensors", out, "--prefix", "p."]).code(1);
        dir.convert(&["in.safetensors", out]).code(1).stdout("").stderr(error);
        let would = format!("\nwould replace {out} ({held}) with 2 tensors, 16 B");
        dir.convert(&["in.safetensors", out, "-n", "--force"]).shows(would);
    }
}

/// The commands that change their input name the keys in a dry run, and change nothing.
#[test]
fn a_dry_run_of_a_change_names_the_keys() {
    let dir = temp_dir();
    inputs(dir.path());
    let before = content(dir.path());
    let init = ["--architecture", "a", "--implementation", "b", "--title", "c"];
    for (args, keys) in [
        (&["metadata", "set", "in.safetensors", "x=1", "y=2"][..], "set x, y"),
        (&["metadata", "remove", "in.safetensors", "a"], "remove a"),
        (&["metadata", "clear", "in.safetensors"], "remove a, format"),
        (
            &[&["metadata", "modelspec", "init", "in.safetensors"], &init[..]].concat(),
            "set modelspec.",
        ),
        (&["digest", "--record", "in.safetensors"], "set safetensors_bridge.xxh3_128"),
    ] {
        let would = format!("would replace in.safetensors (2 tensors, 16 B): {keys}");
        dir.run(&[args, &["-n"]].concat()).success().stdout(starts_with(would));
        assert_eq!(content(dir.path()), before);
    }
}

#[cfg(unix)]
#[test]
fn a_terminal_gets_a_question() {
    use crate::pty::Session;
    let dir = temp_dir();
    inputs(dir.path());
    fs::create_dir(dir.at("sh")).unwrap();
    sharded(&dir.at("sh"));
    dir.write("map.html", "old");
    fs::create_dir(dir.at("d")).unwrap();
    file(&dir.at("d"), "a.safetensors", &["w", "b"], 3.0);
    let questions: [(&[&str], &str); 6] = [
        (
            &["convert", "in.safetensors", "same.safetensors", "--prefix", "p."],
            "same.safetensors exists: it has 2 tensors, 16 B, and would be replaced; replace it? [y/N]",
        ),
        (
            &["convert", "in.safetensors", "in.safetensors", "--drop", "w"],
            "in.safetensors is an input, and 1 of its 2 tensors would be lost: w; replace it? [y/N]",
        ),
        (
            &["convert", "same.safetensors", "sh/model.safetensors"],
            "would hide model.safetensors.index.json, which sh opens as; write it? [y/N]",
        ),
        (
            &["map", "same.safetensors", "-o", "map.html"],
            "map.html exists: it has 3 B, and would be replaced; replace it? [y/N]",
        ),
        (
            &["delta", "apply", "base", "weight_v000001", "d"],
            "d would hide a.safetensors, which d opens as; write it? [y/N]",
        ),
        (
            &["delta", "apply", "base", "weight_v000001", "base"],
            "base is an input, and the deltas change model.safetensors; replace it? [y/N]",
        ),
    ];
    for (args, question) in questions {
        let before = content(dir.path());
        for (answer, code) in [("\n", 1), ("no\n", 1), ("y\n", 0)] {
            let mut session = Session::start(dir.path(), args, (24, 200));
            session.wait_for(question);
            session.send(answer);
            assert_eq!(session.end().code(), Some(code), "{answer:?}");
            assert_eq!(content(dir.path()) == before, code == 1, "{args:?}");
        }
    }
    // Standard input is no answer if it is an input.
    let before = content(dir.path());
    let mut command = safetensors();
    command.current_dir(dir.path()).args(["convert", "-", "same.safetensors", "--prefix", "p."]);
    let from = dir.read("in.safetensors");
    command.write_stdin(from).assert().fails(1, "--force");
    assert_eq!(content(dir.path()), before);
}
