//! `safetensors convert`: NumPy's files, archives with unreadable members, and hostile archives.

use std::io::Write;

use zip::write::SimpleFileOptions;

use crate::convert::{content, model};
use crate::fixtures::*;

/// A `.npy` header for an array of this type and shape.
fn header(descr: &str, shape: &str) -> Vec<u8> {
    let text = format!(
        "{:<117}\n",
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}")
    );
    [b"\x93NUMPY\x01\x00\x76\x00", text.as_bytes()].concat()
}

fn array(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    [&header(descr, shape), data].concat()
}

fn archive(path: &Path, members: &[(&str, Vec<u8>)]) {
    let mut archive = zip::ZipWriter::new(fs::File::create(path).unwrap());
    for (name, bytes) in members {
        archive.start_file(*name, SimpleFileOptions::default()).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap();
}

#[test]
fn members_that_are_not_taken_need_not_be_arrays() {
    let dir = temp_dir();
    let members = [
        ("a.npy", array("<f4", "(1,)", &[0; 4])),
        ("objects.npy", array("|O", "()", b"pickled")),
        ("texts.npy", array("<U3", "(1,)", &[0; 12])),
        ("readme.txt", b"hello".to_vec()),
        ("folder/", Vec::new()),
    ];
    archive(&dir.at("in.npz"), &members);
    dir.convert("in.npz out.safetensors -f a").quiet();
    let others = ["--force", "--drop", "objects", "--drop", "texts", "--drop", "*.txt"];
    dir.convert(&[&["in.npz", "out.safetensors"], &others[..]].concat()).quiet();
    assert_eq!(dir.open("out.safetensors").len(), 1);
    for (member, problem) in [
        ("objects", "the NumPy type \"|O\" has no dtype in the format"),
        ("texts", "the NumPy type \"<U3\" has no dtype in the format"),
        ("readme.txt", "not a .npy file"),
    ] {
        let error =
            format!("error: in.npz: tensor {member:?}: not read: {problem}; --drop skips it\n");
        dir.convert(&["in.npz", "x.npz", "-f", member]).code(1).stderr(error);
    }
    dir.convert("in.npz x.npz -f b").fails(1, "no tensor matches --filter 'b'");
    // The others are shown, too.
    dir.run("inspect in.npz").shows("unread");
    let verified = dir.run("verify in.npz").success();
    verified.stderr(contains("tensor \"objects\" is |O, which cannot be read"));
    // Bytes that are missing are damage, also of a member that is not taken.
    archive(&dir.at("cut.npz"), &[("a.npy", array("<f4", "(9,)", &[0; 4]))]);
    for args in ["verify cut.npz", "convert cut.npz x.npz -f b"] {
        dir.run(args).fails(1, "the array has 4 bytes, but its shape asks for 36");
    }
    assert_eq!(names_in(dir.path()), ["cut.npz", "in.npz", "out.safetensors"]);
}

#[test]
fn an_archive_with_a_name_twice_is_refused() {
    let dir = temp_dir();
    let path = dir.at("in.npz");
    archive(&path, &[("a.npy", array("|u1", "(1,)", &[1])), ("b.npy", array("|u1", "(1,)", &[2]))]);
    // Python's zipfile writes such an archive, with a warning.
    let bytes: Vec<u8> = fs::read(&path).unwrap();
    let mut same = bytes.clone();
    for at in 0..bytes.len() - 5 {
        if &bytes[at..at + 5] == b"b.npy" {
            same[at] = b'a';
        }
    }
    fs::write(&path, same).unwrap();
    let error = "error: in.npz: two members of the archive have the same name; \
        write it again with one of them\n";
    dir.convert("in.npz out.safetensors").code(1).stderr(error);
    // Two members of different names hold arrays of the same name.
    archive(&path, &[("a.npy", array("|u1", "(1,)", &[1])), ("a", array("|u1", "(1,)", &[2]))]);
    let error = "error: in.npz: tensor \"a\": duplicate tensor name\n";
    dir.convert("in.npz out.npz").code(1).stderr(error);
}

#[test]
fn a_plan_refuses_a_name_that_cannot_be_read_back() {
    let dir = temp_dir();
    archive(&dir.at("in.npz"), &[("__metadata__.npy", array("|u1", "(1,)", &[1]))]);
    small_file(dir.path(), "in.safetensors");
    for output in ["out.safetensors", "out", "out.npz", "out.npy"] {
        for input in
            [&["in.npz"][..], &["in.safetensors", "-f", "mask", "--rename", ".*", "__metadata__"]]
        {
            for dry_run in [&[][..], &["-n"]] {
                let args = [&input[..1], &[output], &input[1..], dry_run].concat();
                let refused = dir.convert(&args).code(1).stdout("");
                refused.stderr(contains("the name __metadata__ is reserved by the format"));
            }
        }
    }
}

#[test]
fn an_archive_that_claims_too_much_is_refused_before_anything_is_written() {
    let dir = temp_dir();
    let path = dir.at("in.npz");
    archive(&path, &[("a.npy", array("|u1", "(4000000000,)", &[0; 9]))]);
    let mut bytes = fs::read(&path).unwrap();
    let entry = bytes.windows(4).position(|four| four == b"PK\x01\x02").unwrap();
    bytes[entry + 24..entry + 28].copy_from_slice(&4_000_000_128_u32.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    for dry_run in [&[][..], &["-n"]] {
        let refused = dir.convert(&[&["in.npz", "out.safetensors"], dry_run].concat());
        let problem = "error: in.npz: tensor \"a\": the member claims 4000000128 bytes, but its ";
        refused.code(1).stdout("").stderr(starts_with(problem));
    }
    assert_eq!(names_in(dir.path()), ["in.npz"]);
}

#[test]
fn a_warning_names_the_metadata_that_numpy_files_omit() {
    let dir = temp_dir();
    model(dir.path(), "a.safetensors");
    let warning = |name: &str| {
        format!("warning: {name}: NumPy's files hold no metadata; omitted: by, format\n")
    };
    dir.convert("a.safetensors a.npz").success().stderr(warning("a.npz"));
    dir.convert("a.safetensors ids.npy -f ids -n").success().stderr(warning("ids.npy"));
    dir.convert("a.npz b.npz").quiet();
    dir.convert("a.npz b.safetensors").quiet();
}

#[test]
fn numpy_files_are_converted_both_ways() {
    let dir = temp_dir();
    model(dir.path(), "a.safetensors");
    dir.convert("a.safetensors a.npz").success();
    dir.convert("a.npz b.safetensors").success();
    dir.run("diff --ignore-metadata a.safetensors b.safetensors").success();
    dir.convert("a.safetensors ids.npy -f ids").success();
    dir.convert("ids.npy a.npz c.safetensors --drop 'm.[01].*' -f 'm.*' -f ids").code(1);
    dir.convert("ids.npy a.npz c.safetensors -f 'm.2.*' --cast 'm.*=f64'").success();
    assert_eq!(content(dir.at("c.safetensors"))[1], ("m.2.weight".to_owned(), Dtype::F64));
    dir.convert("a.safetensors all.npy").fails(1, "holds one tensor, not 7");
    dir.convert("a.safetensors x.npz --dtype bf16")
        .fails(1, "NumPy has no type for BF16; add --dtype f32");
    assert!(!dir.at("x.npz").exists() && !dir.at("all.npy").exists());
}

#[cfg(unix)]
#[test]
fn messages_about_one_of_several_inputs_follow_its_part() {
    let dir = temp_dir();
    let members =
        [("a.npy", array("<f4", "(1,)", &[0; 4])), ("text.npy", array("<U3", "(1,)", &[0; 12]))];
    archive(&dir.at("in.npz"), &members);
    let line = format!("'{}' digest in.npz in.npz 2>&1", env!("CARGO_BIN_EXE_safetensors"));
    let mut shell = std::process::Command::new("sh");
    let said = shell.args(["-c", &line]).current_dir(dir.path()).output().unwrap();
    let said = text(&said.stdout);
    let begins: Vec<_> = said.lines().filter_map(|line| line.split_once(' ')).collect();
    let is_error = |(start, _): &(&str, &str)| *start == "error:";
    let errors: Vec<_> = begins.iter().map(is_error).collect();
    assert_eq!(errors, [false, true, false, true, false], "{said}");
    assert!(said.starts_with("in.npz:\n"), "{said}");
}
