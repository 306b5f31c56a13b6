//! Files of GGUF, for every command that reads a checkpoint. The fixtures come from
//! `safetensors-formats`.

use crate::fixtures::*;
use crate::other_formats::{assert_tensors_equal, fixture, output, with};

#[test]
fn quantised_tensors_are_listed_with_their_types_and_sizes() {
    let dir = with(&["gguf/quantised.gguf"]);
    let shown = output(dir.path(), "inspect quantised.gguf");
    for row in [
        "├─ Q4_K     Q4_K     [1, 256]        1         256   144 B\n",
        "├─ IQ2_XXS  IQ2_XXS  [1, 256]        1         256    66 B\n",
        "Q4_K           1         256   144 B\n",
    ] {
        assert!(shown.contains(row), "{row}{shown}");
    }
    let json = dir.run("inspect --json -f '*Q4_K' quantised.gguf").quiet().json();
    assert_eq!(json["tensors"][0]["dtype"], "Q4_K");
    assert_eq!(json["tensors"][0]["bytes"], 144);
    assert_eq!(json["dtypes"]["Q4_K"]["parameters"], 256);
}

#[test]
fn quantised_tensors_are_numbers_by_default() {
    let dir = with(&["gguf/quantised.gguf", "gguf/quantised.safetensors"]);
    let commands = [
        &["show", "quantised.gguf", "of.Q8_0"][..],
        &["stats", "quantised.gguf", "-f", "of.Q8_0"],
        &["extract", "quantised.gguf", "of.Q8_0", "-o", "x.npy"],
        &["diff", "quantised.gguf", "quantised.gguf", "-f", "of.Q8_0"],
    ];
    for args in commands {
        dir.run(&[args, &["--stored"]].concat()).failure().code(trouble(args)).stderr(
            contains("quantised.gguf: tensor \"of.")
                .and(contains("convert IN OUT --dequantize f32")),
        );
    }
    dir.run("extract quantised.gguf of.Q8_0 --raw -o x.npy").fails(1, "--dequantize f32");
    assert!(!dir.at("x.npy").exists());
    for args in commands {
        dir.run(args).quiet();
    }
    assert!(dir.at("x.npy").exists());

    // The numbers are those of the Python package `gguf`.
    let shown = |file: &str| dir.run(&["show", file, "of.Q4_K", "--json"]).quiet().json();
    assert_eq!(shown("quantised.gguf"), shown("quantised.safetensors"));
    let known = "of.{Q[2-6]*,Q8_0,TQ*,IQ*,MX*}";
    let files = ["diff", "quantised.gguf", "quantised.safetensors"];
    let options = ["-f", known, "--ignore-metadata", "--ignore-dtype"];
    dir.run(&[&files[..], &options].concat()).quiet();

    // A type that has no known numbers hinders no other one.
    let told = dir.run("stats quantised.gguf --json").code(1);
    let json = told.json();
    let tensors = json["tensors"].as_array().unwrap();
    let mut unread: Vec<_> = tensors.iter().filter(|it| !it["error"].is_null()).collect();
    unread.sort_by_key(|it| it["name"].as_str());
    let unread: Vec<_> = unread.iter().map(|it| &it["name"]).collect();
    assert_eq!((tensors.len(), unread), (26, vec![&"of.Q8_1".into(), &"of.Q8_K".into()]));
}

#[test]
fn map_shows_quantised_tensors_with_their_types_and_sizes() {
    let dir = with(&["gguf/quantised.gguf"]);
    let data = crate::page::data(dir.path(), &["quantised.gguf"]);
    let of = |list: &str, name: &str| {
        let mut found = data[list].as_array().unwrap().iter().filter(|it| it[0] == name);
        (found.next().cloned().unwrap(), found.count())
    };
    assert_eq!(of("dtypes", "Q4_K"), (serde_json::json!(["Q4_K", 1, 256.0, 144.0]), 0));
    let at = data["dtypes"].as_array().unwrap().iter().position(|it| it[0] == "IQ4_NL").unwrap();
    let kinds = data["kinds"].as_array().unwrap();
    // Several types have this shape, and the number of bytes of each is its own.
    assert_eq!(kinds.len(), 26);
    assert!(kinds.contains(&serde_json::json!([at, "[1, 96]", 96, 54])), "{kinds:?}");
    let file_len = fs::metadata(fixture("gguf/quantised.gguf")).unwrap().len();
    assert_eq!(data["files"], serde_json::json!([["quantised.gguf", 26, file_len]]));
    assert_eq!((&data["parameters"], &data["bytes"]), (&"5,440".into(), &2549.0.into()));
}

/// A file of tensors: names, shapes with the outermost dimension first, types and bytes.
fn gguf(tensors: &[(&str, &[u64], u32, &[u8])]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    let mut offset = 0_u64;
    for (name, shape, kind, data) in tensors {
        bytes.extend(text(name));
        bytes.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|dim| bytes.extend(dim.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        offset += data.len().next_multiple_of(32) as u64;
    }
    for (_, _, _, data) in tensors {
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(*data);
    }
    bytes
}

#[test]
fn unknown_types_are_listed_and_leave_other_tensors_readable() {
    let dir = temp_dir();
    let ones = 1_f32.to_le_bytes();
    let file = gguf(&[("a", &[3, 2], 142, &[7; 64]), ("b", &[1], 0, &ones)]);
    dir.write("m.gguf", file);
    let shown = output(dir.path(), "inspect m.gguf");
    assert!(shown.contains("a       type 142  [3, 2]        1           6  64 B\n"), "{shown}");
    assert!(shown.contains("type 142        1           6  64 B\n"), "{shown}");
    let json = dir.run("inspect --json -f a m.gguf").quiet().json();
    assert_eq!(
        (&json["tensors"][0]["dtype"], &json["tensors"][0]["bytes"]),
        (&"type 142".into(), &64.into())
    );

    let says = "tensor \"a\": the tensor is quantised as type 142, which cannot be \
                dequantised here";
    let convert = ["convert", "m.gguf", "out.safetensors"];
    for args in [
        &convert[..],
        &[&convert[..], &["--dequantize", "f32"]].concat(),
        &["show", "m.gguf", "a"],
        &["extract", "m.gguf", "a", "-o", "a.npy"],
    ] {
        dir.run(args).fails(1, says);
    }
    assert!(!dir.at("out.safetensors").exists());
    dir.run(&[&convert[..], &["--drop", "a"]].concat()).success();
    assert_eq!(dir.open("out.safetensors").len(), 1);
    dir.run("verify m.gguf").warns("tensor \"a\" is type 142, which cannot be read");
}

#[test]
fn a_weight_of_nvfp4_is_multiplied_by_its_scale() {
    let dir = temp_dir();
    let block = [&[0x38; 4][..], &[0x22; 32]].concat();
    let (scale, input) = (0.25_f32.to_le_bytes(), 7_f32.to_le_bytes());
    let tensors = |scale_kind: u32| {
        gguf(&[
            ("up.weight", &[1, 64], 40, &block),
            ("up.scale", &[1], scale_kind, &scale),
            ("up.input_scale", &[1], 0, &input),
        ])
    };
    let convert = ["convert", "m.gguf", "out.safetensors", "--dequantize", "f32"];
    dir.write("m.gguf", tensors(0));
    dir.run(&convert).success();
    let converted = dir.open("out.safetensors");
    let numbers = converted.tensor("up.weight").unwrap().read().unwrap().into_vec::<f32>();
    assert_eq!((converted.len(), numbers.unwrap()), (1, vec![0.25; 64]));
    for (name, value) in [("up.weight", 0.25), ("up.scale", 0.25), ("up.input_scale", 7.0)] {
        let json = dir.run(&["show", "m.gguf", name, "--csv"]).quiet();
        assert!(json.out().starts_with(&format!("{value}")), "{name}");
    }

    dir.write("m.gguf", tensors(26));
    dir.run(&[&convert[..], &["--force"]].concat()).fails(
        1,
        "m.gguf: tensor \"up.weight\": \"up.scale\" should be F32 [1], found I32 [1], so the \
         numbers of this tensor are not known; --drop skips it",
    );
}

#[cfg(unix)]
#[test]
fn browse_shows_quantised_tensors_with_their_types_and_sizes() {
    let dir = with(&["gguf/quantised.gguf", "pytorch/strided.pt"]);
    let session = crate::pty::Session::start(dir.path(), &["browse", "quantised.gguf"], (60, 100));
    let start = session.wait_for("q quit");
    for shown in ["size        2.5 kB", "IQ2_XXS     1 tensor, 66 B", "26 tensors, 4.3 kB, GGUF"] {
        assert!(start.contains(shown), "no {shown:?} on:\n{start}");
    }
    session.send("/Q4_K\r");
    let tensor = session.wait_for("shape ");
    for shown in [
        "Q4_K [1, 256]     144 B",
        "dtype       Q4_K\n",
        "shape       [1, 256]\n",
        "parameters  256\n",
        "size        144 bytes\n",
        "share       5.65%\n",
        "file        quantised.gguf\n",
    ] {
        assert!(tensor.contains(shown), "no {shown:?} on:\n{tensor}");
    }
    assert!(!tensor.contains("offsets"), "{tensor}");
    session.send("s");
    session.wait_for("infinite ");
}

#[test]
fn convert_dequantises_by_option() {
    let dir = with(&["gguf/quantised.gguf"]);
    let convert = |args: &[&str]| {
        dir.run(&[&["convert", "quantised.gguf", "out.safetensors", "--force"], args].concat())
    };
    let unknown = ["--drop", "of.Q8_[1K]"];
    convert(&unknown).fails(
        1,
        "quantised.gguf: tensor \"of.IQ1_M\" is quantised as IQ1_M; --dtype bf16 makes numbers of it",
    );
    convert(&["--dequantize", "f32"]).fails(
        1,
        "quantised.gguf: tensor \"of.Q8_1\": the tensor is quantised as Q8_1, which cannot be \
         dequantised here; --drop skips it",
    );
    assert!(!dir.at("out.safetensors").exists());

    let expected = Checkpoint::open(fixture("gguf/quantised.safetensors")).unwrap();
    convert(&[&unknown[..], &["--dequantize", "f32"]].concat()).quiet();
    let converted = dir.open("out.safetensors");
    assert_eq!(converted.len(), 24);
    for tensor in converted.tensors() {
        let same = expected.tensor(tensor.name()).unwrap().read().unwrap();
        assert_eq!(tensor.read().unwrap().bytes(), same.bytes(), "{}", tensor.name());
    }
    assert_eq!(converted.metadata()["general.architecture"], "llama");

    // Tensors that no option converts to numbers are refused, also if one converts others.
    for options in [&["--cast", "*Q4_K=f16"], &["--cast", "*=keep"]] {
        convert(&[&unknown[..], options].concat()).fails(1, "tensor \"of.IQ1_M\" is quantised");
    }
    convert(&["-f", "*Q4_K", "--cast", "*Q4_K=half"]).quiet();
    assert_eq!(dir.open("out.safetensors").tensor("of.Q4_K").unwrap().dtype(), Dtype::F16);
    convert(&[&unknown[..], &["--dtype", "bfloat16"]].concat()).quiet();
    assert!(dir.open("out.safetensors").tensors().all(|it| it.dtype() == Dtype::BF16));

    let args = ["--dequantize", "bf16", "--cast", "*Q4_K=f16"];
    convert(&[&unknown[..], &args].concat()).quiet();
    let converted = dir.open("out.safetensors");
    let dtype = |name: &str| converted.tensor(name).unwrap().dtype();
    assert_eq!((dtype("of.Q4_K"), dtype("of.Q6_K")), (Dtype::F16, Dtype::BF16));
}

#[test]
fn plain_tensors_of_gguf_need_no_option() {
    let dir = with(&["gguf/plain.gguf", "gguf/plain.safetensors"]);
    dir.run("convert plain.gguf out.safetensors").quiet();
    for file in ["plain.gguf", "out.safetensors"] {
        let equal = contains("8 tensors equal");
        dir.run(&["diff", file, "plain.safetensors"]).stdout(equal);
    }
}

#[test]
fn the_parts_of_a_split_gguf_file_are_one_input() {
    let parts = ["00001", "00002", "00003"].map(|part| format!("gguf/split-{part}-of-00003.gguf"));
    let dir = with(&[&parts[0], &parts[1], &parts[2], "gguf/plain.gguf"]);
    // Only by its name.
    let alone = dir.at("plain-00001-of-00002.gguf");
    fs::rename(dir.at("plain.gguf"), &alone).unwrap();
    fs::copy(&alone, dir.at("plain-00002-of-00002.gguf")).unwrap();
    let names = ["00003", "00001", "00002"].map(|part| format!("split-{part}-of-00003.gguf"));
    let others = ["plain-00001-of-00002.gguf", "plain-00002-of-00002.gguf"];
    let names = names.iter().map(String::as_str).chain(others);
    let args: Vec<_> = ["verify", "--json"].into_iter().chain(names).collect();
    let json: serde_json::Value = serde_json::from_str(&output(dir.path(), &args)).unwrap();
    let paths: Vec<_> =
        json["results"].as_array().unwrap().iter().map(|it| it["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["split-00003-of-00003.gguf", others[0], others[1]]);
}

#[test]
fn a_part_of_a_split_gguf_file_opens_all_parts() {
    let parts = ["00001", "00002", "00003"].map(|part| format!("gguf/split-{part}-of-00003.gguf"));
    let dir = with(&parts.each_ref().map(String::as_str));
    let part = "split-00002-of-00003.gguf";
    dir.run(&["convert", part, "all.safetensors"]).quiet();
    assert_tensors_equal(
        dir.path(),
        "all.safetensors",
        "gguf/split.safetensors",
        "3 tensors equal",
    );
    let shown = output(dir.path(), &["inspect", "--flat", part]);
    assert!(
        shown.contains("blk.2.weight") && shown.contains("split-00003-of-00003.gguf"),
        "{shown}"
    );

    fs::remove_file(dir.at("split-00003-of-00003.gguf")).unwrap();
    for args in [&["inspect", part][..], &["verify", part], &["convert", part, "part.safetensors"]]
    {
        dir.run(args).fails(
            1,
            "split-00002-of-00003.gguf: the split GGUF file: of 3 parts, \
             split-00003-of-00003.gguf is missing",
        );
    }
    assert!(!dir.at("part.safetensors").exists());
}
