//! Quantised weights whose scales are another tensor.

use std::path::Path;

use predicates::prelude::*;
use safetensors_core::{Checkpoint, Dtype, LoadOptions, SaveOptions, TensorView, save};
use safetensors_testing::quantized::Quantized;

use crate::convert::{content, convert};
use crate::fixtures::*;

/// A file with the weight `l.weight`, which is 0.5, 0.5, 1, 1: the codes of 1, 1, 2, 2, and their
/// scale.
fn weight(dir: &Path, scales: &str) {
    let codes = TensorView::new(Dtype::F8_E4M3, &[2, 2], &[0x38, 0x38, 0x40, 0x40]).unwrap();
    let scale = TensorView::from_slice(&[1, 1], &[0.5_f32]).unwrap();
    let norm = TensorView::from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    let tensors = [("l.weight", codes), (scales, scale), ("norm", norm)];
    save(dir.join("in.safetensors"), tensors, &SaveOptions::new()).unwrap();
}

fn values(path: &Path) -> Vec<f32> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let weight = checkpoint.tensor("l.weight").unwrap();
    weight.read_with(&LoadOptions::new().all_as(Dtype::F32)).unwrap().into_vec().unwrap()
}

/// The names and dtypes of a file, in one line.
fn dtypes(path: &Path) -> String {
    let all = content(path.to_owned()).into_iter().map(|(name, dtype)| format!("{name}={dtype}"));
    all.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_weight_is_converted_with_its_scales_or_kept_with_them() {
    let dir = temp_dir();
    let out = dir.path().join("out.safetensors");
    for scales in ["l.weight_scale_inv", "l.weight_scale", "l.scale_weight"] {
        weight(dir.path(), scales);
        let kept = ["l.weight=F8_E4M3".to_owned(), format!("{scales}=F32"), "norm=BF16".to_owned()];
        let mut kept = kept.to_vec();
        kept.sort();
        let kept = kept.join(" ");
        for (options, expected) in [
            ("--dtype bf16", "l.weight=BF16 norm=BF16"),
            ("--cast 'l.*=bf16' --cast norm=bf16", "l.weight=BF16 norm=BF16"),
            ("--dequantize bf16 --dtype bf16", "l.weight=BF16 norm=BF16"),
            ("--dequantize bf16", "l.weight=BF16 norm=F32"),
            // The codes have this dtype, too.
            ("--dequantize f8_e4m3", "l.weight=F8_E4M3 norm=F32"),
            ("--dtype bf16 --cast l.weight=keep", &kept),
            ("--dtype bf16 --keep-quantized", &kept),
        ] {
            let line = format!("in.safetensors out.safetensors --force {options}");
            convert(dir.path(), &line).success().stderr("");
            assert_eq!(dtypes(&out), expected, "{options}");
            if expected != kept {
                assert_eq!(values(&out), [0.5, 0.5, 1.0, 1.0], "{options}");
            }
        }
    }
    // Scales stay as they are beside a weight that does, unless they are named.
    weight(dir.path(), "l.weight_scale_inv");
    for (option, expected) in [
        ("--dtype f8_e4m3", "l.weight=F8_E4M3 l.weight_scale_inv=F32 norm=F8_E4M3"),
        ("--cast '*_inv=f16'", "l.weight=F8_E4M3 l.weight_scale_inv=F16 norm=F32"),
    ] {
        let line = format!("in.safetensors out.safetensors --force {option}");
        convert(dir.path(), &line).success();
        assert_eq!(dtypes(&out), expected);
    }
    // Through the parts of ranks, which are gathered first.
    let ranks = "in.safetensors parts --ranks 2 --rule l.weight=split:1 --rule '*=replicate'";
    convert(dir.path(), ranks).success();
    for option in ["--dtype", "--dequantize"] {
        convert(dir.path(), &format!("parts out.safetensors {option} f16 --force")).success();
        assert_eq!(values(&out), [0.5, 0.5, 1.0, 1.0]);
    }
}

#[test]
fn commands_that_show_values_multiply_by_the_scales() {
    let dir = temp_dir();
    weight(dir.path(), "l.weight_scale");
    convert(dir.path(), "in.safetensors plain.safetensors --dequantize f32").success();
    run_in(dir.path(), "diff in.safetensors plain.safetensors").success().stderr("");
    let show = |file, name| run_in(dir.path(), &["show", file, name, "--csv"]).success().stderr("");
    assert_eq!(show("in.safetensors", "l.weight").out(), "0.5,0.5\n1.0,1.0\n");
    // The scales themselves can be shown, too.
    assert_eq!(show("in.safetensors", "l.weight_scale").out(), "0.5\n");
    // A weight is written as the numbers that are shown, or its codes are, if bytes are asked for.
    for (file, options) in [("w.safetensors", &[][..]), ("w.npy", &[]), ("w.bin", &["--raw"])] {
        let extract = ["extract", "in.safetensors", "l.weight", "-o", file];
        run_in(dir.path(), &[&extract, options].concat()).success().stderr("");
    }
    assert_eq!(values(&dir.path().join("w.safetensors")), [0.5, 0.5, 1.0, 1.0]);
    assert_eq!(show("w.npy", "w").out(), "0.5,0.5\n1.0,1.0\n");
    assert_eq!(std::fs::read(dir.path().join("w.bin")).unwrap(), [0x38, 0x38, 0x40, 0x40]);
    let stats = |file| run_in(dir.path(), &["stats", file, "--json"]).success().stderr("").out();
    // The files have their tensors in another order.
    let sorted = |text: String| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(sorted(stats("in.safetensors")), sorted(stats("plain.safetensors")));
}

#[test]
fn inspect_shows_how_weights_are_stored() {
    for fixture in Quantized::all() {
        let weights = fixture.open().quantized_weights().unwrap();
        let path = ["inspect", "model.safetensors", "--flat"];
        let flat = run_in(&fixture.directory, &path).success().stderr("").out();
        assert!(flat.contains("bits each"), "{}: {flat}", fixture.name);
        assert!(weights.iter().all(|weight| flat.contains(&weight.name)), "{flat}");
        let all = run_in(&fixture.directory, &path[..2]).success().stderr("").out();
        assert!(all.contains(weights[0].scheme), "{}: {all}", fixture.name);
    }
    let fixture = Quantized::named("ct-nvfp4");
    let all = run_in(&fixture.directory, "inspect model.safetensors").success().out();
    assert!(all.contains("4.5"), "{all}");
}

/// Each scheme becomes numbers, equal to its reference, and stays what it is where it is kept.
#[test]
fn every_scheme_is_converted_or_kept() {
    let dir = temp_dir();
    let out = dir.path().join("out.safetensors");
    for fixture in Quantized::all() {
        let model = fixture.model();
        let model = model.to_str().unwrap();
        convert(dir.path(), &[model, "out.safetensors", "--dtype", "f32"]).success().stderr("");
        let converted = Checkpoint::open(&out).unwrap();
        for tensor in fixture.expected().tensors() {
            let found = converted.tensor(tensor.name()).unwrap();
            let values = found.read_with(&LoadOptions::new().all_as(Dtype::F32)).unwrap();
            fixture.compare(tensor.name(), found.shape(), values.as_slice().unwrap());
        }
        assert_eq!(converted.len(), fixture.expected().len(), "{}", fixture.name);
        let kept = [model, "out.safetensors", "--dtype", "f16", "--keep-quantized", "--force"];
        convert(dir.path(), &kept).success().stderr("");
        let (kept, stored) = (Checkpoint::open(&out).unwrap(), fixture.open());
        let weights = stored.quantized_weights().unwrap();
        for name in weights.iter().flat_map(|weight| &weight.tensors) {
            let (tensor, same) = (stored.tensor(name).unwrap(), kept.tensor(name).unwrap());
            assert_eq!(same.dtype(), tensor.dtype(), "{}: {}", fixture.name, tensor.name());
            assert_eq!(same.read().unwrap().bytes(), tensor.read().unwrap().bytes());
        }
        std::fs::remove_file(&out).unwrap();
    }
}

#[test]
fn settings_that_still_describe_quantised_weights_are_named() {
    let dir = temp_dir();
    let fixture = Quantized::named("gptq-v1-4bits");
    for file in ["model.safetensors", "config.json"] {
        std::fs::copy(fixture.directory.join(file), dir.path().join(file)).unwrap();
    }
    std::fs::write(dir.path().join("quanto_qmap.json"), "{}").unwrap();
    convert(dir.path(), "model.safetensors model.safetensors --dtype bf16 --force")
        .success()
        .stderr(
            predicate::str::contains("config.json still describes quantised weights")
                .and(predicate::str::contains("quanto_qmap.json: it describes other weights")),
        );
}

/// Codes under a config.json of plain weights, and plain weights under one of codes.
#[test]
fn settings_that_do_not_describe_what_is_copied_are_named() {
    let dir = temp_dir();
    let fixture = Quantized::named("gptq-v1-4bits");
    let directory = |name: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    };
    let codes = directory("codes");
    for file in ["model.safetensors", "config.json"] {
        std::fs::copy(fixture.directory.join(file), codes.join(file)).unwrap();
    }
    std::fs::write(directory("plain").join("config.json"), "{\"a\": 1}").unwrap();
    let [plain, codes] = ["plain/config.json", "codes/config.json"].map(native);
    convert(dir.path(), "codes plain --keep-quantized").success().stderr(
        predicate::str::contains(format!("{plain} does not describe the quantised weights"))
            .and(predicate::str::contains(&codes)),
    );
    convert(dir.path(), "codes codes").success().stderr("");
    weight(dir.path(), "other");
    convert(dir.path(), "in.safetensors codes -f norm --force")
        .warns(format!("{codes} still describes quantised weights"));
}

#[test]
fn scales_in_another_input_are_not_lost() {
    let dir = temp_dir();
    weight(dir.path(), "l.weight_scale_inv");
    for (file, pattern) in [("1.safetensors", "l.weight"), ("2.safetensors", "*_inv")] {
        convert(dir.path(), &["in.safetensors", file, "-f", pattern]).success();
    }
    let both = ["1.safetensors", "2.safetensors", "out.safetensors"];
    convert(dir.path(), &[&both[..], &["--dtype", "bf16"]].concat())
        .fails(1, "put their files into one directory");
    assert!(!dir.path().join("out.safetensors").exists());
    convert(dir.path(), &[&both[..], &["--dtype", "bf16", "--keep-quantized"]].concat())
        .warns("all floats stay as they are");
    let kept = content(dir.path().join("out.safetensors"));
    assert_eq!(kept.iter().map(|(_, it)| *it).collect::<Vec<_>>(), [Dtype::F8_E4M3, Dtype::F32]);
    convert(dir.path(), &[&both[..], &["--force"]].concat()).success();
    convert(dir.path(), "out.safetensors numbers.safetensors --dtype bf16").success();
    assert_eq!(values(&dir.path().join("numbers.safetensors")), [0.5, 0.5, 1.0, 1.0]);
}

const KEEP: &str = "; --keep-quantized copies the tensors as they are stored\n";

/// One tensor of FP8 has no scales, so nothing tells which weights have which.
#[test]
fn codes_that_cannot_be_told_are_copied_or_left_out() {
    let dir = temp_dir();
    let out = dir.path().join("out.safetensors");
    let codes = |shape| TensorView::new(Dtype::F8_E4M3, shape, &[0x38, 0x38, 0x40, 0x40]).unwrap();
    let floats = TensorView::from_slice(&[1], &[0.5_f32]).unwrap();
    let tensors = [
        ("embed", codes(&[2, 2])),
        ("embed_mean", floats),
        ("l.weight", codes(&[2, 2])),
        ("l.weight_scale", floats),
        ("norm", floats),
    ];
    save(dir.path().join("in.safetensors"), tensors, &SaveOptions::new()).unwrap();
    let settings = |text: &str| std::fs::write(dir.path().join("config.json"), text).unwrap();
    let keep = &["--dtype", "bf16", "--keep-quantized"][..];
    let stored = "embed=F8_E4M3 embed_mean=F32 l.weight=F8_E4M3 l.weight_scale=F32 norm=F32";
    let floats_stay = "all floats stay as they are: scales may be among them\n";
    let fp8 = r#"{"quantization_config": {"quant_method": "fp8"}}"#;
    let cases: [(&[&str], &str, &str); 11] = [
        (&["--dtype", "bf16"], KEEP, ""),
        (&["--dequantize", "f32"], KEEP, ""),
        (&["--cast", "embed=bf16"], KEEP, ""),
        (&["--quantize", "int8-channel"], "; --drop leaves a tensor out\n", ""),
        (keep, floats_stay, stored),
        (&[], "", stored),
        (&["--dtype", "bf16", "--drop", "embed"], "", "embed_mean=F32 l.weight=BF16 norm=BF16"),
        (&["--dtype", "bf16", "-f", "l.*"], "", "l.weight=BF16"),
        (
            &["--dtype", "bf16", "--cast", "embed=keep"],
            "some weights stay quantised\n",
            "embed=F8_E4M3 embed_mean=F32 l.weight=BF16 norm=BF16",
        ),
        (
            &["--cast", "*.weight=bf16"],
            "some weights stay quantised\n",
            "embed=F8_E4M3 embed_mean=F32 l.weight=BF16 norm=F32",
        ),
        (
            &[keep, &["--drop", "embed*"]].concat(),
            "",
            "l.weight=F8_E4M3 l.weight_scale=F32 norm=BF16",
        ),
    ];
    settings(fp8);
    for (args, told, expected) in cases {
        let done = convert(dir.path(), &[&["in.safetensors", "out.safetensors"], args].concat());
        let done = done.stderr(predicate::str::ends_with(told));
        if expected.is_empty() {
            done.failure();
            continue;
        }
        done.success();
        assert_eq!(dtypes(&out), expected, "{args:?}");
        std::fs::remove_file(&out).unwrap();
    }
    // The metadata of ComfyUI names a weight that is not there.
    settings("{}");
    let layers = r#"{"layers": {"other": {"format": "float8_e4m3fn"}}}"#;
    let options = SaveOptions::new().metadata([("_quantization_metadata", layers)]);
    let tensors = [("l.weight", codes(&[2, 2])), ("l.weight_scale", floats), ("norm", floats)];
    save(dir.path().join("in.safetensors"), tensors, &options).unwrap();
    let mut all = vec!["in.safetensors", "out.safetensors", "--dtype", "bf16"];
    convert(dir.path(), &all).failure().stderr(predicate::str::ends_with(KEEP));
    all.push("--keep-quantized");
    convert(dir.path(), &all).success().stderr(predicate::str::ends_with(floats_stay));
    assert_eq!(content(out)[2], ("norm".to_owned(), Dtype::F32));
}

#[test]
fn an_output_that_says_nothing_of_codes_has_them_only_if_that_is_asked_for() {
    let dir = temp_dir();
    let fixture = Quantized::named("gptq-v1-4bits");
    let model = fixture.model();
    let model = model.to_str().unwrap();
    let advice = "; --dequantize f32 makes numbers of it, --keep-quantized copies the tensors as they \
                  are stored\n";
    for out in ["out.npz", "out.bpk", "out.npy"] {
        convert(dir.path(), &[model, out])
            .fails(1, "cannot say that weights are quantised: ")
            .stderr(predicate::str::contains(
                "it has codes of the weight \"layer.weight\", stored as GPTQ; --",
            ))
            .stderr(predicate::str::ends_with(advice));
    }
    for out in ["out.npz", "out.bpk"] {
        let kept = [model, out, "--keep-quantized", "--dtype", "f32"];
        convert(dir.path(), &kept).success();
        convert(dir.path(), &[model, &format!("n-{out}"), "--dtype", "f32"]).success();
    }
    // Codes that are cast by their own name, and a weight that is kept by its name.
    let cast = [model, "out.safetensors", "--cast", "*.qweight=f32"];
    convert(dir.path(), &cast).failure().stderr(predicate::str::ends_with(advice));
    let weight = &fixture.open().quantized_weights().unwrap()[0].name;
    let keep = ["--dtype", "bf16", "--cast", &format!("{weight}=keep")];
    convert(dir.path(), &[&[model, "out.safetensors"], &keep[..]].concat()).success().stderr("");
    // A file of another format is read with the settings beside it.
    let read = ["out.bpk", "numbers.safetensors", "--dtype", "f32"];
    convert(dir.path(), &read)
        .failure()
        .stderr(predicate::str::contains("GPTQ needs").and(predicate::str::ends_with(KEEP)));
    let settings = fixture.directory.join("config.json");
    std::fs::copy(settings, dir.path().join("config.json")).unwrap();
    convert(dir.path(), &read).success();
    let numbers = Checkpoint::open(dir.path().join("numbers.safetensors")).unwrap();
    for tensor in fixture.expected().tensors() {
        let found = numbers.tensor(tensor.name()).unwrap();
        let found = (found.shape(), found.read().unwrap().into_vec::<f32>().unwrap());
        fixture.compare(tensor.name(), found.0, &found.1);
    }
}
