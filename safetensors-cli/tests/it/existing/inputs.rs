//! Inputs that are their own outputs.

use super::{content, file};
use crate::fixtures::*;

#[test]
fn an_input_is_replaced_where_nothing_is_lost() {
    let dir = temp_dir();
    file(dir.path(), "a.safetensors", &["x", "y", "w.weight"], 1.0);
    file(dir.path(), "b.safetensors", &["z"], 1.0);
    let file = "a.safetensors";
    let lost = |what: &str| format!("error: {file} is an input, and {what}; --force replaces it\n");
    for (args, problem) in [
        (&[file, file][..], None),
        (&[file, file, "--dtype", "f64"], None),
        (&[file, file, "--prefix", "p."], None),
        (&["b.safetensors", file, file], None),
        (
            &[file, file, "--dtype", "bf16"],
            Some("3 of its 3 tensors would lose precision: w.weight, x, y"),
        ),
        (&[file, file, "--cast", "x=i8"], Some("1 of its 3 tensors would lose precision: x")),
        (&[file, file, "--drop", "x"], Some("1 of its 3 tensors would be lost: x")),
        (&[file, file, "-f", "x"], Some("2 of its 3 tensors would be lost: w.weight, y")),
    ] {
        let before = content(dir.path());
        let run = dir.convert(&[args, &["-n"]].concat());
        match problem {
            None => run.success(),
            Some(problem) => run.code(1).stdout("").stderr(lost(problem)),
        };
        assert_eq!(content(dir.path()), before);
        if let Some(problem) = problem {
            dir.convert(args).code(1).stdout("").stderr(lost(problem));
            assert_eq!(content(dir.path()), before);
        }
    }
    // Digests are metadata that is not kept, and of two values for one key the first is.
    dir.run(&["digest", "--record", file]).success();
    let digests = lost("1 of its 3 metadata keys would be lost: safetensors_bridge.xxh3_128");
    dir.convert(&[file, file]).code(1).stderr(digests);
    dir.run(&["metadata", "remove", file, "safetensors_bridge.xxh3_128"]).success();
    dir.run(&["metadata", "set", file, "a=2"]).success();
    let other = lost("1 of its 2 metadata keys would be lost: a");
    dir.convert(&["b.safetensors", file, file]).code(1).stderr(other);
    dir.convert(&[file, file, "--dtype", "f64"]).success();

    let shards = temp_dir();
    sharded(shards.path());
    shards.convert(". . --prefix p.").success();
    let error =
        "error: . is an input, and 1 of its 2 tensors would be lost: p.b; --force replaces it\n";
    shards.convert(". . -f p.a").code(1).stderr(error);
    let parts = ["--ranks", "2", "--rule", "*=uneven:0"];
    shards.convert(&[&[".", "parts"], &parts[..]].concat()).success();
    shards.convert("parts parts").success();
    assert_eq!(names_in(&shards.path().join("parts")), ["model.safetensors"]);
}
