//! `safetensors verify` of files that are none of safetensors, or that are something else, too.

use safetensors_core::serialize;

use crate::fixtures::*;
use crate::other_formats::{fixture, with};

const OTHERS: [(&str, &str, &str); 5] = [
    ("pytorch/tied.pt", "PyTorch", "pytorch"),
    ("pytorch/strided_legacy.pt", "PyTorch", "pytorch"),
    ("gguf/plain.gguf", "GGUF", "gguf"),
    ("stored.npz", "NumPy .npz", "npz"),
    ("npy/i4_big_fortran.npy", "NumPy .npy", "npy"),
];

fn verify(dir: &Path, args: impl Words) -> assert_cmd::assert::Assert {
    let mut command = safetensors();
    command.current_dir(dir).arg("verify").args(args.words()).assert()
}

/// A check before a load must not let a pickle through under another name.
#[test]
fn a_file_of_another_format_is_not_sound_under_the_name_of_a_safetensors_file() {
    for (name, format, option) in OTHERS {
        let dir = temp_dir();
        for named in ["model.safetensors", "blob", "model.SafeTensors", "model.pkl"] {
            fs::copy(fixture(name), dir.at(named)).unwrap();
            let error = format!(
                "error: {named}: expected a safetensors file, found a file of {format}; \
                 --format {option} checks it as one\n"
            );
            verify(dir.path(), &[named]).code(1).stdout("").stderr(error);
            verify(dir.path(), &["--format", "safetensors", named]).code(1);
            verify(dir.path(), &["--format", option, named])
                .quiet()
                .stdout(contains(format!("; {format}: its structure")));
        }
        // Also where it is found and not named.
        let found = native("./model.safetensors: expected a safetensors file");
        verify(dir.path(), ".").fails(1, found);
        let wrong = if option == "gguf" { "model.pt" } else { "model.gguf" };
        fs::copy(fixture(name), dir.at(wrong)).unwrap();
        let found = format!("found a file of {format}");
        verify(dir.path(), &[wrong]).fails(1, found);
        let warning = format!("warning: {wrong}: a file of {format} under the name of a file of");
        dir.run(&["inspect", wrong]).success().stderr(starts_with(warning));
    }
}

#[test]
fn a_safetensors_file_is_ok_under_any_name_unless_a_format_is_given() {
    let dir = temp_dir();
    for (name, format) in [
        ("model", None),
        ("model.safetensors", None),
        ("model.bin", Some("PyTorch")),
        ("model.pt", Some("PyTorch")),
        ("model.npz", Some("NumPy .npz")),
        ("model.gguf", Some("GGUF")),
        ("model.onnx", Some("ONNX")),
    ] {
        small_file(dir.path(), name);
        let warning = format.map(|format| {
            format!("{name}: a safetensors file under the name of a file of {format}\n")
        });
        let warning = warning.unwrap_or_default();
        let says = ends_with(warning.clone());
        verify(dir.path(), &[name]).success().stderr(says);
        verify(dir.path(), &["--strict", name]).code(i32::from(format.is_some()));
        if format == Some("GGUF") {
            continue;
        }
        verify(dir.path(), &["--format", "safetensors", name]).success();
        let error = format!(
            "error: {name}: expected a file of GGUF, found a safetensors file; --format \
             safetensors checks it as one\n"
        );
        verify(dir.path(), &["--format", "gguf", name]).code(1).stderr(error);
    }
    let missing = verify(dir.path(), "--format onnx model").code(2);
    missing.stderr(contains("safetensors, pytorch, gguf, burn, burnpack, npy, npz"));
}

/// The first bytes determine it, with any name.
#[test]
fn files_of_unsupported_formats_are_named() {
    let dir = temp_dir();
    let mut nemo = b"./\0".to_vec();
    nemo.resize(257, 0);
    nemo.extend(b"ustar\x0000");
    for (named, start, says) in [
        ("ggml-base.bin", &b"lmgg\x98\xca\0\0\xdc\x05\0\0"[..], "a ggml file (.bin), as whisper"),
        ("model.bin", b"\x06\0\0\0\x0c\0WhisperSpec\0\x03", "a model of CTranslate2"),
        ("model.onnx", b"\x08\x07\x12\x07pytorch\x1a\x032.1", "an ONNX model"),
        ("model.tflite", b"\x1c\0\0\0TFL3\x14\0\x20\0", "a TensorFlow Lite model"),
        ("flax_model.msgpack", b"\x82\xa6params\x81\xa5Dense", "MessagePack, as Flax"),
        ("train.parquet", b"PAR1\x15\x04\x15\xc0\x01\x15", "a Parquet table"),
        ("data.arrow", b"ARROW1\0\0\xff\xff\xff\xff", "an Arrow table"),
        ("model.nemo", &nemo, "a tar archive, as .nemo models are"),
        ("model.h5", b"\x89HDF\r\n\x1a\n\0", "an HDF5 file"),
        ("model.zst", b"\x28\xb5\x2f\xfd\x04\x58", "a zstd file"),
        ("pointer", b"# xet version 0\nfilesize = 3\nhash = '0'\n", "an Xet pointer instead"),
        ("lfs.bin", b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer instead"),
        ("page.gguf", b"<!doctype html><title>Sign in</title>", "an HTML page"),
    ] {
        for named in [named, "model.safetensors"] {
            dir.write(named, start);
            for command in ["inspect", "verify"] {
                dir.run(&[command, named]).fails(1, says).stdout("");
            }
        }
    }
    // Also in a directory, and behind an index.
    let model = dir.at("model");
    fs::create_dir(&model).unwrap();
    small_file(dir.path(), "small");
    let safetensors = dir.read("small");
    for (start, says) in [
        (&b"version https://git-lfs.github.com/spec/v1\n"[..], "a Git LFS pointer instead"),
        (&safetensors, "a safetensors file under another name"),
    ] {
        for (file, index) in [
            ("pytorch_model.bin", None),
            ("pytorch_model-00001-of-00001.bin", Some("pytorch_model.bin.index.json")),
        ] {
            fs::write(model.join(file), start).unwrap();
            if let Some(index) = index {
                let json = format!(r#"{{"metadata":{{}},"weight_map":{{"w":"{file}"}}}}"#);
                fs::write(model.join(index), json).unwrap();
            }
            for command in ["inspect", "verify"] {
                let error = contains(says).and(contains(file));
                dir.run(&[command, "model"]).code(1).stderr(error);
            }
            fs::remove_file(model.join(file)).unwrap();
        }
        fs::remove_file(model.join("pytorch_model.bin.index.json")).unwrap();
    }
    for (named, from, kind) in [
        ("cut.npz", "stored.npz", "a NumPy archive (.npz)"),
        ("cut.pt", "pytorch/tied.pt", "a PyTorch checkpoint"),
    ] {
        let whole = fs::read(fixture(from)).unwrap();
        dir.write(named, &whole[..whole.len() - 9]);
        for command in ["inspect", "verify"] {
            let begin = starts_with(format!("error: {named}: truncated after "));
            let error = begin.and(contains(format!(" at the end of {kind}")));
            dir.run(&[command, named]).code(1).stderr(error);
        }
    }
}

#[test]
fn the_shards_of_an_index_are_judged_by_their_names() {
    let names = ["00001-of-00002.bin", "00002-of-00002.bin"]
        .map(|name| format!("pytorch/sharded/pytorch_model-{name}"));
    let dir = with(&[&names[0], &names[1], "pytorch/sharded/pytorch_model.bin.index.json"]);
    verify(dir.path(), "pytorch_model.bin.index.json").quiet();
    let index = dir.at("pytorch_model.bin.index.json");
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replace("00002-of-00002.bin", "00002-of-00002.gguf")).unwrap();
    let shard = dir.at("pytorch_model-00002-of-00002.bin");
    fs::rename(&shard, shard.with_extension("gguf")).unwrap();
    verify(dir.path(), "pytorch_model.bin.index.json")
        .fails(1, "00002-of-00002.gguf: expected a file of GGUF, found a file of");
}

#[test]
fn a_file_of_two_formats_is_refused_by_name() {
    let dir = temp_dir();
    let path = |name: &str| dir.at(name);
    let zip = fs::read(fixture("stored.npz")).unwrap();
    let small = fs::read(small_file(dir.path(), "small.safetensors")).unwrap();
    let refused = |args: &[&str], says: &str| {
        let error = verify(dir.path(), args).code(1);
        error.stderr(contains(says));
    };
    let both = "x.safetensors: it is a safetensors file and a ZIP archive (bytes ";
    for file in [[&small[..], &zip].concat(), [&zip[..], &small].concat()] {
        fs::write(path("x.safetensors"), file).unwrap();
        for args in [&["x.safetensors"][..], &["--strict", "x.safetensors"], &["."]] {
            refused(args, both);
        }
        refused(&["--format", "npz", "x.safetensors"], both);
    }
    // Every value is allowed, so this one keeps all rules of the format.
    let shape = [zip.len()];
    let data = array(&shape, &zip);
    let hidden = serialize([("data", data)], &SaveOptions::new()).unwrap();
    fs::write(path("x.safetensors"), hidden).unwrap();
    refused(&["x.safetensors"], both);
    dir.run("inspect x.safetensors").quiet();

    for (name, other) in [("gguf/plain.gguf", "a GGUF file"), ("pytorch/tied.pt", "a PyTorch")] {
        let file = fs::read(fixture(name)).unwrap();
        fs::write(path("x.gguf"), [&file[..], &zip].concat()).unwrap();
        let format = if other == "a GGUF file" { "gguf" } else { "npz" };
        refused(&["--format", format, "x.gguf"], &format!("x.gguf: it is {other}"));
    }
    // Something before an archive that is no format at all.
    fs::write(path("x.npz"), [&[0; 20][..], &zip].concat()).unwrap();
    let other = "x.npz: it is other bytes and a ZIP archive (bytes 20 to ";
    for command in ["verify", "inspect", "stats"] {
        dir.run(&[command, "x.npz"]).fails(1, other);
    }
}

#[test]
fn a_wrong_checksum_hides_no_other_fault() {
    let dir = with(&["pytorch/tied.pt"]);
    dir.run("convert tied.pt out.safetensors").success();
    let head = dir.open("out.safetensors").tensor("lm_head.weight").unwrap().read().unwrap();
    let mut bytes = dir.read("tied.pt");
    let at = bytes.windows(48).position(|it| it == head.bytes()).unwrap();
    bytes[at..at + 4].fill(0xff);
    dir.write("tied.pt", &bytes);
    let json = dir.run("verify --digests --finite --json tied.pt").code(1).json();
    let faults = json["results"][0]["faults"].as_array().unwrap().iter();
    let kinds: Vec<_> = faults.map(|fault| fault["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["format", "not_finite"], "{json:#}");
}
