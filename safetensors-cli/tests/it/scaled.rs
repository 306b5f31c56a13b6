//! Quantised weights with scales in another tensor.

use safetensors_core::LoadOptions;
use safetensors_testing::quantized::Quantized;

use crate::convert::content;
use crate::fixtures::*;

/// A file with the weight `l.weight`, which is 0.5, 0.5, 1, 1: the codes of 1, 1, 2, 2, and their
/// scale.
fn weight(dir: &Path, scales: &str) {
    let codes = TensorView::new(Dtype::F8_E4M3, &[2, 2], &[0x38, 0x38, 0x40, 0x40]).unwrap();
    let scale = array(&[1, 1], &[0.5_f32]);
    let norm = array(&[2], &[1.0_f32, 2.0]);
    let tensors = [("l.weight", codes), (scales, scale), ("norm", norm)];
    save(dir.at("in.safetensors"), tensors, &SaveOptions::new()).unwrap();
}

fn values(path: &Path) -> Vec<f32> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let weight = checkpoint.tensor("l.weight").unwrap();
    weight.read_with(&LoadOptions::new().all_as(Dtype::F32)).unwrap().into_vec().unwrap()
}

/// Fixtures of some schemes. `dev/tests/it/conformance/quantised.rs` reads and rewrites all.
fn some() -> impl Iterator<Item = Quantized> {
    Quantized::all().into_iter().step_by(4)
}

/// The names and dtypes of a file, in one line.
fn dtypes(path: &Path) -> String {
    let all = content(path.to_owned()).into_iter().map(|(name, dtype)| format!("{name}={dtype}"));
    all.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_weight_is_converted_with_its_scales_or_kept_with_them() {
    let dir = temp_dir();
    let out = dir.at("out.safetensors");
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
            dir.convert(&line).quiet();
            assert_eq!(dtypes(&out), expected, "{options}");
            if expected != kept {
                assert_eq!(values(&out), [0.5, 0.5, 1.0, 1.0], "{options}");
            }
        }
    }
    // Scales stay unchanged next to an unchanged weight, unless they are named.
    weight(dir.path(), "l.weight_scale_inv");
    for (option, expected) in [
        ("--dtype f8_e4m3", "l.weight=F8_E4M3 l.weight_scale_inv=F32 norm=F8_E4M3"),
        ("--cast '*_inv=f16'", "l.weight=F8_E4M3 l.weight_scale_inv=F16 norm=F32"),
    ] {
        let line = format!("in.safetensors out.safetensors --force {option}");
        dir.convert(&line).success();
        assert_eq!(dtypes(&out), expected);
    }
    // Through the parts of ranks, which are gathered first.
    let ranks = "in.safetensors parts --ranks 2 --rule l.weight=split:1 --rule '*=replicate'";
    dir.convert(ranks).success();
    for option in ["--dtype", "--dequantize"] {
        dir.convert(&format!("parts out.safetensors {option} f16 --force")).success();
        assert_eq!(values(&out), [0.5, 0.5, 1.0, 1.0]);
    }
}

#[test]
fn commands_that_show_values_multiply_by_the_scales() {
    let dir = temp_dir();
    weight(dir.path(), "l.weight_scale");
    dir.convert("in.safetensors plain.safetensors --dequantize f32").success();
    dir.run("diff in.safetensors plain.safetensors").quiet();
    let show = |file, name| dir.run(&["show", file, name, "--csv"]).quiet();
    assert_eq!(show("in.safetensors", "l.weight").out(), "0.5,0.5\n1.0,1.0\n");
    // The scales themselves can be shown, too.
    assert_eq!(show("in.safetensors", "l.weight_scale").out(), "0.5\n");
    // A weight is written as the numbers that are shown, or its codes are, if bytes are asked for.
    for (file, options) in [("w.safetensors", &[][..]), ("w.npy", &[]), ("w.bin", &["--raw"])] {
        let extract = ["extract", "in.safetensors", "l.weight", "-o", file];
        dir.run(&[&extract, options].concat()).quiet();
    }
    assert_eq!(values(&dir.at("w.safetensors")), [0.5, 0.5, 1.0, 1.0]);
    assert_eq!(show("w.npy", "w").out(), "0.5,0.5\n1.0,1.0\n");
    assert_eq!(dir.read("w.bin"), [0x38, 0x38, 0x40, 0x40]);
    let stats = |file| dir.run(&["stats", file, "--json"]).quiet().out();
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
    for fixture in some() {
        let weights = fixture.open().quantized_weights().unwrap();
        let path = ["inspect", "model.safetensors", "--flat"];
        let flat = run_in(&fixture.directory, &path).quiet().out();
        assert!(flat.contains("bits each"), "{}: {flat}", fixture.name);
        assert!(weights.iter().all(|weight| flat.contains(&weight.name)), "{flat}");
        let all = run_in(&fixture.directory, &path[..2]).quiet().out();
        assert!(all.contains(weights[0].scheme), "{}: {all}", fixture.name);
    }
    let fixture = Quantized::named("ct-nvfp4");
    let all = run_in(&fixture.directory, "inspect model.safetensors").success().out();
    assert!(all.contains("4.5"), "{all}");
}

/// A scheme becomes numbers, equal to its reference, and stays unchanged where it is kept.
#[test]
fn schemes_are_converted_or_kept() {
    let dir = temp_dir();
    let out = dir.at("out.safetensors");
    for fixture in some() {
        let model = fixture.model();
        let model = model.to_str().unwrap();
        dir.convert(&[model, "out.safetensors", "--dtype", "f32"]).quiet();
        let converted = Checkpoint::open(&out).unwrap();
        for tensor in fixture.expected().tensors() {
            let found = converted.tensor(tensor.name()).unwrap();
            let values = found.read_with(&LoadOptions::new().all_as(Dtype::F32)).unwrap();
            fixture.compare(tensor.name(), found.shape(), values.as_slice().unwrap());
        }
        assert_eq!(converted.len(), fixture.expected().len(), "{}", fixture.name);
        let kept = [model, "out.safetensors", "--dtype", "f16", "--keep-quantized", "--force"];
        dir.convert(&kept).quiet();
        let (kept, stored) = (Checkpoint::open(&out).unwrap(), fixture.open());
        let weights = stored.quantized_weights().unwrap();
        for name in weights.iter().flat_map(|weight| &weight.tensors) {
            let (tensor, same) = (stored.tensor(name).unwrap(), kept.tensor(name).unwrap());
            assert_eq!(same.dtype(), tensor.dtype(), "{}: {}", fixture.name, tensor.name());
            assert_eq!(same.read().unwrap().bytes(), tensor.read().unwrap().bytes());
        }
        fs::remove_file(&out).unwrap();
    }
}

/// A scheme's codes need all of the tensors that store the weight, under names that belong together.
#[test]
fn tensors_that_codes_need_are_not_dropped_or_renamed_in_silence() {
    let dir = temp_dir();
    for fixture in some() {
        let model = fixture.model();
        let model = model.to_str().unwrap();
        let stored = fixture.open();
        let weights = stored.quantized_weights().unwrap();
        let weight = weights.iter().find(|weight| weight.tensors.len() > 1).unwrap();
        let (codes, companion) = (&*weight.tensors[0], &**weight.tensors.last().unwrap());
        let convert =
            |options: &[&str]| dir.convert(&[&[model, "out.safetensors", "-n"], options].concat());
        let renamed = format!("^{}$", regex_escaped(companion));
        let needed = "dropped or renamed, and needed to read quantised weights: ";
        for options in [
            &["--drop", companion][..],
            &["-f", codes],
            &["--rename", &renamed, "other"],
            &["--drop", companion, "--prefix", "model."],
        ] {
            let warned = convert(options).success().err();
            assert!(warned.contains(needed), "{}: {options:?}: {warned}", fixture.name);
            let is_named = warned.contains(companion) || options[0] == "-f";
            assert!(is_named, "{}: {options:?}: {warned}", fixture.name);
        }
        for options in [&["--prefix", "model."][..], &["--rename", "^", "model."]] {
            convert(options).quiet();
        }
        if weights.len() > 1 {
            let all = weight.tensors.iter().flat_map(|name| ["--drop", name]);
            let warned = convert(&all.collect::<Vec<_>>()).success().err();
            assert!(!warned.contains(codes), "{}: {warned}", fixture.name);
        }
    }
}

/// A regular expression that matches only this name.
fn regex_escaped(name: &str) -> String {
    name.replace('.', "\\.")
}

#[test]
fn settings_that_still_describe_quantised_weights_are_named() {
    let dir = temp_dir();
    let fixture = Quantized::named("gptq-v1-4bits");
    for file in ["model.safetensors", "config.json"] {
        fs::copy(fixture.directory.join(file), dir.at(file)).unwrap();
    }
    dir.write("quanto_qmap.json", "{}");
    dir.convert("model.safetensors model.safetensors --dtype bf16 --force").success().stderr(
        contains("config.json still describes quantised weights")
            .and(contains("quanto_qmap.json: it describes other weights")),
    );
}

/// Codes under a config.json of plain weights, and plain weights under one of codes.
#[test]
fn settings_that_do_not_match_the_copied_tensors_are_named() {
    let dir = temp_dir();
    let fixture = Quantized::named("gptq-v1-4bits");
    let directory = |name: &str| {
        let path = dir.at(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let codes = directory("codes");
    for file in ["model.safetensors", "config.json"] {
        fs::copy(fixture.directory.join(file), codes.join(file)).unwrap();
    }
    fs::write(directory("plain").join("config.json"), "{\"a\": 1}").unwrap();
    let [plain, codes] = ["plain/config.json", "codes/config.json"].map(native);
    dir.convert("codes plain --keep-quantized --no-other-files").success().stderr(
        contains(format!("{plain} does not describe the quantised weights")).and(contains(&codes)),
    );
    dir.convert("codes codes").quiet();
    weight(dir.path(), "other");
    dir.convert("in.safetensors codes -f norm --force")
        .warns(format!("{codes} still describes quantised weights"));
}

#[test]
fn scales_in_another_input_are_not_lost() {
    let dir = temp_dir();
    weight(dir.path(), "l.weight_scale_inv");
    for (file, pattern) in [("1.safetensors", "l.weight"), ("2.safetensors", "*_inv")] {
        dir.convert(&["in.safetensors", file, "-f", pattern]).success();
    }
    let both = ["1.safetensors", "2.safetensors", "out.safetensors"];
    dir.convert(&[&both[..], &["--dtype", "bf16"]].concat())
        .fails(1, "put their files into one directory");
    assert!(!dir.at("out.safetensors").exists());
    dir.convert(&[&both[..], &["--dtype", "bf16", "--keep-quantized"]].concat())
        .warns("all floats stay unchanged");
    let kept = content(dir.at("out.safetensors"));
    assert_eq!(kept.iter().map(|(_, it)| *it).collect::<Vec<_>>(), [Dtype::F8_E4M3, Dtype::F32]);
    dir.convert(&[&both[..], &["--force"]].concat()).success();
    dir.convert("out.safetensors numbers.safetensors --dtype bf16").success();
    assert_eq!(values(&dir.at("numbers.safetensors")), [0.5, 0.5, 1.0, 1.0]);
}

const KEEP: &str = "; --keep-quantized copies the tensors as they are stored\n";

/// One tensor of FP8 has no scales, so nothing shows which weights have which.
#[test]
fn unclear_codes_are_copied_or_dropped() {
    let dir = temp_dir();
    let out = dir.at("out.safetensors");
    let codes = |shape| TensorView::new(Dtype::F8_E4M3, shape, &[0x38, 0x38, 0x40, 0x40]).unwrap();
    let floats = array(&[1], &[0.5_f32]);
    let tensors = [
        ("embed", codes(&[2, 2])),
        ("embed_mean", floats),
        ("l.weight", codes(&[2, 2])),
        ("l.weight_scale", floats),
        ("norm", floats),
    ];
    save(dir.at("in.safetensors"), tensors, &SaveOptions::new()).unwrap();
    let settings = |text: &str| dir.write("config.json", text);
    let stored = "embed=F8_E4M3 embed_mean=F32 l.weight=F8_E4M3 l.weight_scale=F32 norm=F32";
    let floats_stay = "all floats stay unchanged: scales may be among them\n";
    let some = "some weights stay quantised\n";
    let fp8 = r#"{"quantization_config": {"quant_method": "fp8"}}"#;
    let cases = [
        ("--dtype bf16", KEEP, ""),
        ("--dequantize f32", KEEP, ""),
        ("--cast embed=bf16", KEEP, ""),
        ("--quantize int8-channel", "; --drop skips a tensor\n", ""),
        ("--dtype bf16 --keep-quantized", floats_stay, stored),
        ("", "", stored),
        ("--dtype bf16 --drop embed", "", "embed_mean=F32 l.weight=BF16 norm=BF16"),
        ("--dtype bf16 -f 'l.*'", "", "l.weight=BF16"),
        (
            "--dtype bf16 --cast embed=keep",
            some,
            "embed=F8_E4M3 embed_mean=F32 l.weight=BF16 norm=BF16",
        ),
        ("--cast '*.weight=bf16'", some, "embed=F8_E4M3 embed_mean=F32 l.weight=BF16 norm=F32"),
        (
            "--dtype bf16 --keep-quantized --drop 'embed*'",
            "",
            "l.weight=F8_E4M3 l.weight_scale=F32 norm=BF16",
        ),
    ];
    settings(fp8);
    for (args, told, expected) in cases {
        let done = dir.convert(&format!("in.safetensors out.safetensors {args}"));
        let done = done.stderr(ends_with(told));
        if expected.is_empty() {
            done.failure();
            continue;
        }
        done.success();
        assert_eq!(dtypes(&out), expected, "{args:?}");
        fs::remove_file(&out).unwrap();
    }
    // The metadata of ComfyUI names a weight that is not there.
    settings("{}");
    let layers = r#"{"layers": {"other": {"format": "float8_e4m3fn"}}}"#;
    let options = SaveOptions::new().metadata([("_quantization_metadata", layers)]);
    let tensors = [("l.weight", codes(&[2, 2])), ("l.weight_scale", floats), ("norm", floats)];
    save(dir.at("in.safetensors"), tensors, &options).unwrap();
    let all = "in.safetensors out.safetensors --dtype bf16";
    dir.convert(all).failure().stderr(ends_with(KEEP));
    dir.convert(&format!("{all} --keep-quantized")).success().stderr(ends_with(floats_stay));
    assert_eq!(content(out)[2], ("norm".to_owned(), Dtype::F32));
}

#[test]
fn an_output_without_settings_gets_codes_only_by_option() {
    let dir = temp_dir();
    let fixture = Quantized::named("gptq-v1-4bits");
    let model = fixture.model();
    let model = model.to_str().unwrap();
    let advice = "; --dequantize f32 makes numbers of it, --keep-quantized copies the tensors as they \
                  are stored\n";
    for out in ["out.npz", "out.bpk", "out.npy"] {
        dir.convert(&[model, out])
            .fails(1, "cannot say that weights are quantised: ")
            .stderr(contains("codes of the weight \"layer.weight\", stored as GPTQ; --"))
            .stderr(ends_with(advice));
    }
    for out in ["out.npz", "out.bpk"] {
        let kept = [model, out, "--keep-quantized", "--dtype", "f32"];
        dir.convert(&kept).success();
        dir.convert(&[model, &format!("n-{out}"), "--dtype", "f32"]).success();
    }
    // Codes that are cast by their own name, and a weight that is kept by its name.
    let cast = [model, "out.safetensors", "--cast", "*.qweight=f32"];
    dir.convert(&cast).failure().stderr(ends_with(advice));
    let weight = &fixture.open().quantized_weights().unwrap()[0].name;
    let keep = ["--dtype", "bf16", "--cast", &format!("{weight}=keep")];
    dir.convert(&[&[model, "out.safetensors"], &keep[..]].concat()).quiet();
    // A file of another format is read with the settings next to it.
    let read = ["out.bpk", "numbers.safetensors", "--dtype", "f32"];
    dir.convert(&read).failure().stderr(contains("GPTQ needs").and(ends_with(KEEP)));
    let settings = fixture.directory.join("config.json");
    fs::copy(settings, dir.at("config.json")).unwrap();
    dir.convert(&read).success();
    let numbers = dir.open("numbers.safetensors");
    for tensor in fixture.expected().tensors() {
        let found = numbers.tensor(tensor.name()).unwrap();
        let found = (found.shape(), found.read().unwrap().into_vec::<f32>().unwrap());
        fixture.compare(tensor.name(), found.0, &found.1);
    }
}

/// The output would otherwise lack the weight, or have it in another dtype, and nobody would know.
#[test]
fn a_pattern_of_scales_that_become_numbers_names_their_weight() {
    let dir = temp_dir();
    weight(dir.path(), "l.weight_scale");
    for (options, option) in [
        ("-f *_scale -f norm", "--filter"),
        ("--drop *_scale", "--drop"),
        ("--cast *_scale=keep", "--cast"),
    ] {
        let says = format!(
            "{option} '*_scale' matches only codes and scales, which become numbers under the names \
             of weights: l.weight; --keep-quantized takes them as stored; --ignore-unmatched \
             allows it\n"
        );
        let line = format!("in.safetensors out.safetensors --force {options}");
        for dtype in ["--dtype bf16", "--dequantize f32"] {
            dir.convert(&format!("{line} {dtype}")).fails(1, says.as_str());
            assert!(!dir.at("out.safetensors").exists(), "{line}");
        }
        dir.convert(&format!("{line} --dtype bf16 --ignore-unmatched")).success();
        // Stored as they are, they are tensors like all others.
        dir.convert(&format!("{line} --dtype bf16 --keep-quantized")).success();
        fs::remove_file(dir.at("out.safetensors")).unwrap();
    }
    dir.convert("in.safetensors out.safetensors --dtype bf16 -f *_scales")
        .fails(1, "no tensor matches --filter '*_scales'; ");
    // Codes have the name of the weight.
    dir.convert("in.safetensors out.safetensors --dtype bf16 -f l.weight -f norm").quiet();
    assert_eq!(dtypes(&dir.at("out.safetensors")), "l.weight=BF16 norm=BF16");
}
