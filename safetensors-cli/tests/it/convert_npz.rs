//! `safetensors convert`: NumPy's files, archives with unreadable members, and hostile archives.

use std::fs;
use std::io::Write;
use std::path::Path;

use predicates::prelude::*;
use safetensors_core::{Checkpoint, Dtype};
use zip::write::SimpleFileOptions;

use crate::convert::{content, convert, list, model};
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
        ("short.npy", array("<f4", "(9,)", &[0; 4])),
        ("readme.txt", b"hello".to_vec()),
        ("folder/", Vec::new()),
    ];
    archive(&dir.path().join("in.npz"), &members);
    convert(dir.path(), &["in.npz", "out.safetensors", "-f", "a"]).success().stderr("");
    let others =
        ["--force", "--drop", "objects", "--drop", "texts", "--drop", "*.txt", "--drop", "short"];
    convert(dir.path(), &[&["in.npz", "out.safetensors"], &others[..]].concat())
        .success()
        .stderr("");
    assert_eq!(Checkpoint::open(dir.path().join("out.safetensors")).unwrap().len(), 1);
    for (member, problem) in [
        ("objects", "the NumPy type \"|O\" has no dtype in the format"),
        ("texts", "the NumPy type \"<U3\" has no dtype in the format"),
        ("short", "the array has 4 bytes, but its shape asks for 36"),
        ("readme.txt", "not a .npy file"),
    ] {
        let error = format!("error: in.npz: member {member}: {problem}; --drop leaves it out\n");
        convert(dir.path(), &["in.npz", "x.npz", "-f", member]).code(1).stderr(error);
    }
    let none = predicate::str::contains("no tensor is left");
    convert(dir.path(), &["in.npz", "x.npz", "-f", "b"]).code(1).stderr(none);
    assert_eq!(list(dir.path()), ["in.npz", "out.safetensors"]);
}

#[test]
fn an_archive_with_a_name_twice_is_refused() {
    let dir = temp_dir();
    let path = dir.path().join("in.npz");
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
        write it anew with one of them\n";
    convert(dir.path(), &["in.npz", "out.safetensors"]).code(1).stderr(error);
    // Two members of different names hold arrays of the same name.
    archive(&path, &[("a.npy", array("|u1", "(1,)", &[1])), ("a", array("|u1", "(1,)", &[2]))]);
    let twice = predicate::str::contains(
        "tensor \"a\": duplicate tensor name: a of in.npz and a of in.npz; ",
    );
    convert(dir.path(), &["in.npz", "out.npz"]).code(1).stderr(twice);
}

/// An archive whose members each claim to have nearly 2⁶³ bytes.
fn huge(path: &Path, members: usize) {
    let start = header("|u1", "(9223372036854775000,)");
    let size = 9_223_372_036_854_775_000 + start.len() as u64;
    let u16 = |value: usize| (value as u16).to_le_bytes();
    let u32 = |value: usize| (value as u32).to_le_bytes();
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for i in 0..members {
        let name = format!("a{i}.npy");
        let at = bytes.len();
        // Version 4.5, no flags, stored, no time, no checksum; the sizes are in the extra field.
        let sizes = [&u16(1)[..], &u16(16), &size.to_le_bytes(), &size.to_le_bytes()].concat();
        let common = [
            &u16(45)[..],
            &u16(0),
            &u16(0),
            &u32(0x21_0000),
            &u32(0),
            &[0xff; 8],
            &u16(6),
            &u16(20),
        ]
        .concat();
        bytes.extend([b"PK\x03\x04", &common[..], name.as_bytes(), &sizes, &start].concat());
        let rest = [&[0; 10][..], &u32(at)].concat();
        directory.extend(
            [b"PK\x01\x02", &u16(45)[..], &common, &rest, name.as_bytes(), &sizes].concat(),
        );
    }
    let (at, len) = (bytes.len(), directory.len());
    bytes.extend(directory);
    bytes.extend(
        [b"PK\x05\x06", &[0; 4][..], &u16(members), &u16(members), &u32(len), &u32(at), &[0; 2]]
            .concat(),
    );
    fs::write(path, bytes).unwrap();
}

#[test]
fn sizes_that_add_up_to_more_than_there_are_numbers_are_an_error() {
    let dir = temp_dir();
    huge(&dir.path().join("in.npz"), 3);
    for output in ["out.safetensors", "out.npz", "out"] {
        for dry_run in [&[][..], &["-n"]] {
            let result = convert(dir.path(), &[&["in.npz", output], dry_run].concat()).code(1);
            let error = text(&result.get_output().stderr).to_owned();
            assert!(
                error.starts_with(&format!("error: {output}: ")) && !error.contains("panicked"),
                "{error}"
            );
        }
    }
    assert_eq!(list(dir.path()), ["in.npz"]);
}

#[test]
fn a_plan_refuses_a_name_that_cannot_be_read_back() {
    let dir = temp_dir();
    archive(&dir.path().join("in.npz"), &[("__metadata__.npy", array("|u1", "(1,)", &[1]))]);
    small_file(dir.path(), "in.safetensors");
    for output in ["out.safetensors", "out", "out.npz", "out.npy"] {
        for input in
            [&["in.npz"][..], &["in.safetensors", "-f", "mask", "--rename", ".*", "__metadata__"]]
        {
            for dry_run in [&[][..], &["-n"]] {
                let args = [&input[..1], &[output], &input[1..], dry_run].concat();
                let refused = convert(dir.path(), &args).code(1).stdout("");
                refused.stderr(predicate::str::contains(
                    "the name __metadata__ is reserved by the format",
                ));
            }
        }
    }
}

#[test]
fn arrays_in_any_layout_are_what_they_are() {
    let dir = temp_dir();
    // [[1, 2, 3], [4, 5, 6]]: column by column, the first byte of each number the most significant.
    let text = "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }";
    let data: Vec<u8> = [1_i16, 4, 2, 5, 3, 6].into_iter().flat_map(i16::to_be_bytes).collect();
    let array = [b"\x93NUMPY\x01\x00\x76\x00", format!("{text:<117}\n").as_bytes(), &data].concat();
    fs::write(dir.path().join("w.npy"), &array).unwrap();
    archive(&dir.path().join("in.npz"), &[("w.npy", array)]);
    for (input, output) in [("w.npy", "a.safetensors"), ("in.npz", "b.safetensors")] {
        convert(dir.path(), &[input, output]).success().stderr("");
        let checkpoint = Checkpoint::open(dir.path().join(output)).unwrap();
        let tensor = checkpoint.tensor("w").unwrap();
        assert_eq!(tensor.shape(), [2, 3]);
        assert_eq!(tensor.read().unwrap().into_vec::<i16>().unwrap(), [1, 2, 3, 4, 5, 6]);
    }
    // As an array again, it has the layout that every reader knows.
    convert(dir.path(), &["in.npz", "out.npy"]).success();
    let array = fs::read(dir.path().join("out.npy")).unwrap();
    assert!(array.ends_with(&[1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0]));
}

#[test]
fn headers_that_numpy_refuses_are_refused() {
    let dir = temp_dir();
    let rest = "'fortran_order': False, 'shape': (1,), }";
    for (header, problem) in [
        (
            "{'descr': '<f4', 'fortran_order': Falsehood, 'shape': (1,), }",
            "the .npy header, at its byte 34: expected a string, an integer, True, False, None, \
             '(', '[' or '{', found \"Falsehood\"",
        ),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1), }",
            "shape of the .npy header should be a tuple, found an integer",
        ),
        (
            &format!("{{'descr': '<f4' {rest}"),
            "the .npy header, at its byte 16: expected ',' or '}', found \"'\"",
        ),
        (&format!("{{'descr': '<f4', 'descr': '<f4', {rest}"), "the .npy header has descr twice"),
        (
            &format!("{{'descr': '<c16', {rest}"),
            "the NumPy type \"<c16\" has no dtype in the format; c8 has one, and so have the real \
             and the imaginary part",
        ),
    ] {
        let text = format!("{header:<117}\n");
        let array = [b"\x93NUMPY\x01\x00\x76\x00", text.as_bytes(), &[0, 0, 0, 0]].concat();
        fs::write(dir.path().join("a.npy"), array).unwrap();
        let error = format!("error: a.npy: {problem}\n");
        convert(dir.path(), &["a.npy", "out.safetensors"]).code(1).stderr(error);
    }
    assert_eq!(list(dir.path()), ["a.npy"]);
}

#[test]
fn an_archive_that_claims_too_much_is_refused_before_anything_is_written() {
    let dir = temp_dir();
    let path = dir.path().join("in.npz");
    archive(&path, &[("a.npy", array("|u1", "(4000000000,)", &[0; 9]))]);
    let mut bytes = fs::read(&path).unwrap();
    let entry = bytes.windows(4).position(|four| four == b"PK\x01\x02").unwrap();
    bytes[entry + 24..entry + 28].copy_from_slice(&4_000_000_128_u32.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    for dry_run in [&[][..], &["-n"]] {
        let refused = convert(dir.path(), &[&["in.npz", "out.safetensors"], dry_run].concat());
        let problem = "error: in.npz: member a: the member claims 4000000128 bytes, but its ";
        refused.code(1).stdout("").stderr(predicate::str::starts_with(problem));
    }
    assert_eq!(list(dir.path()), ["in.npz"]);
}

#[test]
fn numpy_files_without_metadata_say_so() {
    let dir = temp_dir();
    model(dir.path(), "a.safetensors");
    let warning = |name: &str| {
        format!("warning: {name}: NumPy's files hold no metadata; this is left out: by, format\n")
    };
    convert(dir.path(), &["a.safetensors", "a.npz"]).success().stderr(warning("a.npz"));
    convert(dir.path(), &["a.safetensors", "ids.npy", "-f", "ids", "-n"])
        .success()
        .stderr(warning("ids.npy"));
    convert(dir.path(), &["a.npz", "b.npz"]).success().stderr("");
    convert(dir.path(), &["a.npz", "b.safetensors"]).success().stderr("");
}

#[test]
fn numpy_files_there_and_back() {
    let dir = temp_dir();
    let path = model(dir.path(), "a.safetensors");
    convert(dir.path(), &["a.safetensors", "a.npz"]).success();
    convert(dir.path(), &["a.npz", "b.safetensors"]).success();
    safetensors()
        .arg("diff")
        .arg(&path)
        .arg(dir.path().join("b.safetensors"))
        .arg("--ignore-metadata")
        .assert()
        .success();
    convert(dir.path(), &["a.safetensors", "ids.npy", "-f", "ids"]).success();
    convert(
        dir.path(),
        &["ids.npy", "a.npz", "c.safetensors", "--drop", "m.[01].*", "-f", "m.*", "-f", "ids"],
    )
    .code(1);
    convert(dir.path(), &["ids.npy", "a.npz", "c.safetensors", "-f", "m.2.*", "--cast", "m.*=f64"])
        .success();
    assert_eq!(content(dir.path().join("c.safetensors"))[1], ("m.2.weight".to_owned(), Dtype::F64));
    convert(dir.path(), &["a.safetensors", "all.npy"])
        .code(1)
        .stderr(predicate::str::contains("holds one tensor, not 7"));
    let no_type = predicate::str::contains("NumPy has no type for BF16; add --dtype f32");
    convert(dir.path(), &["a.safetensors", "x.npz", "--dtype", "bf16"]).code(1).stderr(no_type);
    assert!(!dir.path().join("x.npz").exists() && !dir.path().join("all.npy").exists());
}

#[test]
fn a_compressed_archive_that_is_damaged_is_an_error() {
    let dir = temp_dir();
    let mut array = b"\x93NUMPY\x01\x00\x46\x00".to_vec();
    array.extend(
        format!("{:<69}\n", "{'descr': '<u2', 'fortran_order': False, 'shape': (5000,), }")
            .as_bytes(),
    );
    array.extend((0..5000_u16).flat_map(u16::to_le_bytes));
    let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    archive.start_file("folder/w.npy", options).unwrap();
    archive.write_all(&array).unwrap();
    let mut bytes = archive.finish().unwrap().into_inner();
    fs::write(dir.path().join("a.npz"), &bytes).unwrap();
    convert(dir.path(), &["a.npz", "a.safetensors"]).success();
    let checkpoint = Checkpoint::open(dir.path().join("a.safetensors")).unwrap();
    let values = checkpoint.tensor("folder/w").unwrap().read().unwrap().into_vec::<u16>().unwrap();
    assert_eq!(values, (0..5000).collect::<Vec<u16>>());
    bytes[3000] ^= 0x55;
    fs::write(dir.path().join("a.npz"), &bytes).unwrap();
    convert(dir.path(), &["a.npz", "a.safetensors"])
        .code(1)
        .stderr(predicate::str::starts_with("error: "));
    assert_eq!(list(dir.path()), ["a.npz", "a.safetensors"]);
    assert_eq!(Checkpoint::open(dir.path().join("a.safetensors")).unwrap().len(), 1);
}
