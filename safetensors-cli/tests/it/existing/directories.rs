//! The files that an output in a directory replaces.

use safetensors_delta::Encoding;

use super::{Make, Must, check, delta, file, inputs, writers};
use crate::fixtures::*;

#[test]
fn a_directory_is_replaced_only_as_the_rule_allows() {
    let states: [(&str, Make, Must); 9] = [
        ("absent", |_| {}, Must::Write),
        ("empty", |out| fs::create_dir(out).unwrap(), Must::Write),
        (
            "one file",
            |out| {
                fs::create_dir(out).unwrap();
                file(out, "model.safetensors", &["w", "b"], 2.0);
            },
            Must::Force,
        ),
        (
            "shards",
            |out| {
                fs::create_dir(out).unwrap();
                sharded(out);
            },
            Must::Force,
        ),
        (
            "a shard without its index",
            |out| {
                fs::create_dir(out).unwrap();
                file(out, "model-00003-of-00009.safetensors", &["c"], 2.0);
            },
            Must::Force,
        ),
        (
            "a file of another name, which is hidden",
            |out| {
                fs::create_dir(out).unwrap();
                file(out, "weights.safetensors", &["c"], 2.0);
            },
            Must::Force,
        ),
        (
            "files that stay",
            |out| {
                fs::create_dir(out).unwrap();
                fs::write(out.join("notes.txt"), "a text").unwrap();
            },
            Must::Write,
        ),
        (
            "a delta",
            |out| {
                delta(out, Encoding::Overwrite);
                fs::write(out.join("notes.txt"), "a text").unwrap();
            },
            Must::Force,
        ),
        ("a file", |out| fs::write(out, "a text").unwrap(), Must::Refuse(1, "ot a directory")),
    ];
    for writer in writers().iter().filter(|it| it.name.is_none()) {
        for (name, make, must) in &states {
            let dir = temp_dir();
            inputs(dir.path());
            make(&dir.at("o"));
            let must = match (*name, *must) {
                // The pages are files of other names.
                (_, Must::Force) if writer.is("manual") => Must::Write,
                (_, Must::Refuse(code, _)) if writer.is("manual") => Must::Refuse(code, "o: "),
                // A delta replaces only a delta, and a checkpoint only a checkpoint.
                ("a delta", _) if writer.is("delta apply") => Must::Refuse(1, "is a delta"),
                (it, Must::Force)
                    if it != "a delta" && writer.is("delta") && !writer.is("delta apply") =>
                {
                    Must::Refuse(1, "o: ")
                }
                (_, must) => must,
            };
            check(writer, dir.path(), "o", must, true);
            if matches!(*name, "files that stay" | "a delta") {
                assert_eq!(dir.read("o/notes.txt"), b"a text");
            }
        }
    }
}

#[cfg(unix)]
#[test]
fn a_dry_run_fails_in_a_directory_that_cannot_be_written() {
    use std::os::unix::fs::PermissionsExt;

    let dir = temp_dir();
    inputs(dir.path());
    fs::create_dir(dir.at("locked")).unwrap();
    let mode = |mode| {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(dir.at("locked"), permissions).unwrap();
    };
    mode(0o555);
    fs::set_permissions(dir.at("key.pem"), fs::Permissions::from_mode(0o644)).ok();
    for writer in writers() {
        let out = format!("locked/{}", writer.name.unwrap_or("o"));
        check(&writer, dir.path(), &out, Must::Refuse(1, "ermission denied"), false);
    }
    mode(0o755);
}
