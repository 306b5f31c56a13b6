//! LoRA adapters that are merged while a checkpoint is converted.

use safetensors_core::quantized::{LinearLayers, Quantization};
use safetensors_core::{ConvertOptions, LoadOptions, Rewrite, TensorBuf};
use safetensors_testing::lora::Merge;
use safetensors_testing::quantized::Quantized;

use crate::fixtures::*;

/// The options that merge the adapters of a fixture.
fn loras(fixture: &Merge) -> Vec<String> {
    let option = |path: &PathBuf| ["--lora".to_owned(), text(path)];
    fixture.paths().iter().flat_map(option).collect()
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Converts the checkpoint of a fixture.
fn merge(dir: &Path, fixture: &Merge, more: &[&str]) -> assert_cmd::assert::Assert {
    let (model, loras) = (text(&fixture.model()), loras(fixture));
    let mut args = vec![&*model, "out.safetensors"];
    args.extend(loras.iter().map(String::as_str).chain(more.iter().copied()));
    dir.convert(&args)
}

#[test]
fn every_kind_of_adapter_equals_the_reference() {
    for fixture in Merge::all() {
        let dir = temp_dir();
        let adapters = match fixture.paths().len() {
            1 => "1 adapter".to_owned(),
            more => format!("{more} adapters"),
        };
        merge(dir.path(), &fixture, &[])
            .quiet()
            .stdout(ends_with(format!(" changed by {adapters}\n")));
        let out = dir.open("out.safetensors");
        let merged = fixture.base().merged(fixture.adapters()).unwrap();
        assert_eq!(out.len(), merged.len());
        for tensor in out.tensors() {
            assert_eq!(tensor.dtype(), fixture.tensor(tensor.name()).dtype());
            let found = tensor.read_with(&LoadOptions::new().all_as(Dtype::F32)).unwrap();
            fixture.compare(tensor.name(), found.as_slice().unwrap());
        }
    }
}

#[test]
fn a_scaled_adapter_is_merged_into_parts_of_ranks() {
    let (dir, fixture) = (temp_dir(), Merge::named("exact-integers"));
    let adapter = format!("{}:0.5", text(&fixture.paths()[0]));
    let model = text(&fixture.model());
    let ranks = ["--ranks", "2", "--rule", "*q_proj.weight=split:0", "--rule", "*=replicate"];
    dir.convert(&[&[&*model, "parts", "--lora", &adapter], &ranks[..]].concat()).success();
    dir.convert("parts out.safetensors").success();
    let adapters = fixture.adapters().into_iter().map(|adapter| adapter.scale(0.5));
    let expected = fixture.base().merged(adapters.collect::<Vec<_>>()).unwrap();
    let out = dir.open("out.safetensors");
    for tensor in expected.tensors() {
        let found = out.tensor(tensor.name()).unwrap().read().unwrap();
        assert_eq!(found.bytes(), tensor.read().unwrap().bytes(), "{}", tensor.name());
    }
}

/// PEFT ignores the setting for linear layers, of which one is square here.
#[test]
fn a_wrong_fan_in_fan_out_does_not_transpose_a_linear_layer() {
    let (dir, fixture) = (temp_dir(), Merge::named("linear"));
    fs::create_dir(dir.at("adapter")).unwrap();
    let adapter = |name: &str| fixture.directory.join("adapter-1").join(name);
    let weights = "adapter_model.safetensors";
    fs::copy(adapter(weights), dir.at("adapter").join(weights)).unwrap();
    let config = fs::read_to_string(adapter("adapter_config.json")).unwrap();
    let wrong = config.replace("\"fan_in_fan_out\": false", "\"fan_in_fan_out\": true");
    assert_ne!(wrong, config);
    fs::write(dir.at("adapter/adapter_config.json"), wrong).unwrap();
    dir.convert(&[&*text(&fixture.model()), "out.safetensors", "--lora", "adapter"]).quiet();
    for tensor in dir.open("out.safetensors").tensors() {
        fixture.compare(tensor.name(), tensor.read().unwrap().as_slice().unwrap());
    }
}

/// A merged model is meant to be used, which needs the settings of the base.
#[test]
fn a_directory_gets_the_config_of_the_base() {
    let (dir, fixture) = (temp_dir(), Merge::named("linear"));
    let model = dir.at("model");
    fs::create_dir(&model).unwrap();
    fs::copy(fixture.model(), model.join("model.safetensors")).unwrap();
    // Byte for byte, including its entries about quantised weights, which stay unchanged.
    let config =
        "{\"model_type\":\"llama\",  \"quantization_config\": {\"quant_method\": \"fp8\"}}\n";
    fs::write(model.join("config.json"), config).unwrap();
    let adapter = text(&fixture.paths()[0]);
    let merge = |more: &[&str]| {
        dir.convert(&[&["model", "out", "--lora", &*adapter], more].concat()).quiet()
    };
    merge(&["--dry-run"]).stdout(contains(", with config.json"));
    merge(&[]).stdout(contains(", with config.json"));
    let found = dir.text("out/config.json");
    assert_eq!(found, config);
}

/// Makes an adapter of a module: 1 to `columns`, times 1 to `rows`, times this scale.
pub(crate) fn one_module(
    dir: &Path,
    module: &str,
    [rows, columns]: [usize; 2],
    scale: f32,
) -> String {
    let count = |shape: [usize; 2], by: f32| {
        let values = (1..=shape[0] * shape[1]).map(|value| value as f32 * by).collect();
        TensorBuf::from_vec(shape.to_vec(), values).unwrap()
    };
    let tensors = [
        (format!("{module}.lora_A.weight"), count([1, columns], scale)),
        (format!("{module}.lora_B.weight"), count([rows, 1], 1.0)),
    ];
    let path = dir.at("lora.safetensors");
    save(&path, tensors, &quick()).unwrap();
    text(&path)
}

/// Makes a file of matrices of these dtypes, filled with `value`.
fn filled(dir: &Path, name: &str, tensors: &[(&str, [usize; 2], Dtype)], value: f32) -> String {
    let tensors = tensors.iter().map(|&(name, shape, dtype)| {
        let values = TensorBuf::from_vec(shape.to_vec(), vec![value; shape[0] * shape[1]]);
        (name, values.unwrap().convert(dtype, &ConvertOptions::new()).unwrap())
    });
    let options = quick().metadata([("head.weight", "w.weight")]);
    let path = dir.at(name);
    save(&path, tensors.collect::<Vec<_>>(), &options).unwrap();
    text(&path)
}

/// The numbers of a tensor, and the dtype that they are stored in.
fn stored(path: impl AsRef<Path>, name: &str) -> (Dtype, Vec<f32>) {
    let tensor = Checkpoint::open(path).unwrap().tensor(name).unwrap().read().unwrap();
    let dtype = tensor.dtype();
    let numbers = tensor.convert(Dtype::F32, &ConvertOptions::new()).unwrap();
    (dtype, numbers.into_vec().unwrap())
}

/// The sum is quantised, not its rounding to the dtype of the base.
#[test]
fn a_sum_is_quantised_without_being_rounded_before() {
    let fixture = Merge::named("bf16");
    for how in [Quantization::Int8Channel, Quantization::Fp8Tensor] {
        let dir = temp_dir();
        merge(dir.path(), &fixture, &["--quantize", &how.to_string()]).success();
        let out = dir.open("out.safetensors");
        let expected = |dtype| {
            let path = dir.at("expected.safetensors");
            let merged = fixture.base().merged_as(fixture.adapters(), |_, _| dtype).unwrap();
            Rewrite::from_checkpoint(&merged)
                .quantize(how, &ConvertOptions::new(), &LinearLayers::new(), |_, _| None)
                .and_then(|quantized| quantized.save(&path, &quick()))
                .unwrap();
            Checkpoint::open(&path).unwrap()
        };
        let differs = |expected: &Checkpoint| {
            let bytes = |from: &Checkpoint, name: &str| {
                from.tensor(name).unwrap().read().unwrap().bytes().to_vec()
            };
            let same = |name: &str| bytes(&out, name) == bytes(expected, name);
            expected.tensors().any(|it| it.dtype() != Dtype::BF16 && !same(it.name()))
        };
        assert!(!differs(&expected(Dtype::F32)), "{how}");
        assert!(differs(&expected(Dtype::BF16)), "{how}: the test shows nothing");
        assert_eq!(out.tensor("norm.weight").unwrap().dtype(), Dtype::BF16);
    }
}

#[test]
fn a_kept_name_of_a_tied_weight_has_the_dtype_of_the_base() {
    let dir = temp_dir();
    let adapter = one_module(dir.path(), "w", [2, 2], 1.0);
    let model = filled(dir.path(), "model.safetensors", &[("w.weight", [2, 2], Dtype::BF16)], 1.0);
    let args = [&*model, "out.safetensors", "--lora", &*adapter, "--dtype", "f16"];
    dir.convert(&[&args[..], &["--cast", "head.*=keep"]].concat())
        .quiet()
        .stdout(ends_with(", 1 tensor changed by 1 adapter\n"));
    let out = dir.at("out.safetensors");
    let sums = vec![2.0, 3.0, 3.0, 5.0];
    assert_eq!(stored(&out, "w.weight"), (Dtype::F16, sums.clone()));
    assert_eq!(stored(&out, "head.weight"), (Dtype::BF16, sums));
}

#[test]
fn the_summary_counts_the_changed_tensors_that_are_written() {
    let dir = temp_dir();
    let adapter = one_module(dir.path(), "w", [2, 2], 1.0);
    let tensors = [("w.weight", [2, 2], Dtype::F32), ("other", [2, 2], Dtype::F32)];
    let model = filled(dir.path(), "model.safetensors", &tensors, 1.0);
    let args = [&*model, "out.safetensors", "--force", "--lora", &*adapter];
    for (options, count) in [
        (&[][..], "1 tensor"),
        (&["-f", "w.*", "--rename", "^w", "x"], "1 tensor"),
        (&["-f", "head.*"], "1 tensor"),
        (&["--drop", "w.*"], "0 tensors"),
        (&["-f", "other", "--dry-run"], "0 tensors"),
    ] {
        let told = dir.convert(&[&args[..], options].concat()).quiet().out();
        assert!(told.ends_with(&format!(", {count} changed by 1 adapter\n")), "{told}");
    }
}

#[test]
fn the_overflow_option_determines_sums_that_are_too_large() {
    let dir = temp_dir();
    let out = dir.at("out.safetensors");
    for (dtype, largest) in [(Dtype::F8_E4M3, 448.0), (Dtype::F16, 65504.0)] {
        let tensors = [("w.weight", [2, 2], dtype)];
        let model = filled(dir.path(), "model.safetensors", &tensors, largest);
        let adapter = one_module(dir.path(), "w", [2, 2], largest);
        let convert = |how| {
            let args = [&*model, "out.safetensors", "--force", "--lora", &*adapter];
            dir.convert(&[&args[..], &["--overflow", how]].concat())
        };
        convert("error").fails(1, "w.weight");
        assert!(!out.exists());
        convert("saturate").success();
        assert_eq!(stored(&out, "w.weight"), (dtype, vec![largest; 4]));
        convert("ieee").success();
        assert!(stored(&out, "w.weight").1.iter().all(|value| !value.is_finite()));
        fs::remove_file(&out).unwrap();
    }
}

#[test]
fn adapters_that_do_not_fit_are_refused_before_writing() {
    let (dir, fixture) = (temp_dir(), Merge::named("linear"));
    let (model, adapter) = (text(&fixture.model()), text(&fixture.paths()[0]));
    let other = Quantized::named("gptq-v1-4bits");
    let quantised = text(&other.model());
    let missing = dir.at("missing");
    let codes = text(&dir.at("codes"));
    dir.convert(&[&*model, &*codes, "--quantize", "int8-channel"]).success();
    let cases: [(&[&str], &str); 8] = [
        (&[&*codes, "out.safetensors"], " as int8; --dequantize f32 does that\n"),
        (&[&*quantised, "out.safetensors"], "which the checkpoint lacks"),
        (&[&*model, &*model, "out.safetensors"], "--lora needs exactly one IN"),
        (&[&*model, "out.safetensors", "--lora", missing.to_str().unwrap()], "missing"),
        (&[&*model, "out.safetensors", "--lora", &model], "is not supported"),
        (&["a.npy", "out.safetensors"], "which the checkpoint lacks"),
        (&["a.npz", "out.safetensors"], "which the checkpoint lacks"),
        (&[&*model, "out.safetensors", "--dry-run"], ""),
    ];
    dir.write("a.npy", npy());
    dir.convert("a.npy a.npz").quiet();
    for (args, expected) in cases {
        let done = dir.convert(&[args, &["--lora", &*adapter]].concat());
        if expected.is_empty() {
            done.success()
                .stdout(contains("would write out.safetensors (").and(ends_with("adapter)\n")));
        } else {
            done.failure().stderr(contains(expected));
        }
        assert!(!dir.at("out.safetensors").exists());
    }
}

#[test]
fn a_larger_vocabulary_is_padded_by_option() {
    let dir = temp_dir();
    let adapter = one_module(dir.path(), "lm_head", [3, 2], 1.0);
    let tensors = [("lm_head.weight", [2, 2], Dtype::F32)];
    let model = filled(dir.path(), "model.safetensors", &tensors, 1.0);
    let args = [&*model, "out.safetensors", "--lora", &*adapter];
    dir.convert(&args).fails(1, "the checkpoint lacks rows 2 to 2; pad-vocab adds them");
    assert!(!dir.at("out.safetensors").exists());
    dir.convert(&[&args[..], &["--pad-vocab"]].concat())
        .success()
        .stderr(contains("set vocab_size of config.json to 3"));
    let expected = vec![2.0, 3.0, 3.0, 5.0, 3.0, 6.0];
    assert_eq!(stored(dir.at("out.safetensors"), "lm_head.weight"), (Dtype::F32, expected));
    dir.convert(&[&*model, "out.safetensors", "--pad-vocab"]).fails(2, "--lora");
}

#[test]
fn modules_of_another_model_are_named() {
    let dir = temp_dir();
    let tensors = ["lora_unet_w", "lora_te_fc1"].map(|module| {
        [("down", vec![1, 2]), ("up", vec![2, 1])].map(|(end, shape)| {
            let ones = TensorBuf::from_vec(shape, vec![1.0_f32; 2]).unwrap();
            (format!("{module}.lora_{end}.weight"), ones)
        })
    });
    save(dir.at("lora.safetensors"), tensors.concat(), &quick()).unwrap();
    let model = filled(dir.path(), "model.safetensors", &[("w.weight", [2, 2], Dtype::F32)], 1.0);
    dir.convert(&[&*model, "out.safetensors", "--lora", "lora.safetensors"])
        .success()
        .stderr(contains("modules of another model are skipped: fc1"));
    assert_eq!(stored(dir.at("out.safetensors"), "w.weight").1, [2.0; 4]);
}

#[test]
fn the_dimension_of_experts_is_an_option() {
    let dir = temp_dir();
    fs::create_dir(dir.at("adapter")).unwrap();
    let tensors = [("A", vec![1, 2], 2.0), ("B", vec![2, 1], 3.0)].map(|(end, shape, second)| {
        let matrix = TensorBuf::from_vec(shape, vec![1.0_f32, second]).unwrap();
        (format!("experts.lora_{end}.weight"), matrix)
    });
    save(dir.at("adapter/adapter_model.safetensors"), tensors, &quick()).unwrap();
    let config = r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 1,
        "target_parameters": ["experts.down_proj"], "peft_version": "0.21.2"}"#;
    fs::write(dir.at("adapter/adapter_config.json"), config).unwrap();
    let experts = TensorBuf::from_vec(vec![1, 2, 2], vec![0.0_f32, 0.0, 0.0, 0.0]).unwrap();
    save(dir.at("model.safetensors"), [("experts.down_proj", experts)], &quick()).unwrap();
    let args = "model.safetensors out.safetensors --force --lora adapter";
    dir.convert(args).fails(1, "the dimension of the experts that lora_A multiplies");
    for (dimension, expected) in [("last", [1.0, 2.0, 3.0, 6.0]), ("middle", [1.0, 3.0, 2.0, 6.0])]
    {
        dir.convert(&*format!("{args} --lora-experts {dimension}")).quiet();
        let sum = stored(dir.at("out.safetensors"), "experts.down_proj").1;
        assert_eq!(sum, expected);
    }
}

/// Returns an array with a single number.
fn npy() -> Vec<u8> {
    let mut header = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }";
    header.extend(format!("{text:<117}\n").bytes());
    header.extend(1.0_f32.to_le_bytes());
    header
}

/// Each step has a merge with the same bytes; the last names need the model.
#[test]
fn an_adapter_goes_through_the_formats_of_trainers() {
    let (dir, fixture) = (temp_dir(), Merge::named("exact-rank-1"));
    let model = text(&fixture.model());
    merge(dir.path(), &fixture, &[]).quiet();
    let adapter = text(&fixture.paths()[0]);
    for (from, to, format, name) in [
        (&*adapter, "mlx", "mlx", "mlx/adapters.safetensors"),
        ("mlx", "kohya.safetensors", "kohya", "kohya.safetensors"),
        ("kohya.safetensors", "peft", "peft", "peft/adapter_model.safetensors"),
    ] {
        let args = [from, to, "--lora-format", format, "--lora-base", &model];
        dir.convert(&[&args[..], &["--dry-run"]].concat()).quiet();
        assert!(!dir.at(to).exists());
        dir.convert(&args).quiet().stdout(contains(", in the format of "));
        assert!(dir.at(name).is_file());
        assert_eq!(dir.at(to).join("adapter_config.json").is_file(), format != "kohya");
        dir.convert(&[&*model, "other.safetensors", "--force", "--lora", to]).quiet();
        let (expected, found) = (dir.open("out.safetensors"), dir.open("other.safetensors"));
        for tensor in expected.tensors() {
            let found = found.tensor(tensor.name()).unwrap().read().unwrap();
            assert_eq!(found.bytes(), tensor.read().unwrap().bytes(), "{format}");
        }
    }
    let args = ["kohya.safetensors", "out", "--lora-format", "peft"];
    dir.convert(&args).failure().stderr(contains("; --lora-base MODEL names the base"));
    assert!(!dir.at("out").exists());
    // What exists is replaced only with --force.
    let args = ["mlx", "peft", "--lora-format", "peft"];
    dir.convert(&args).failure().stderr(contains("exists"));
    dir.convert(&[&args[..], &["--force"]].concat()).success();
    // An adapter in its own place.
    dir.convert("peft peft --lora-format mlx").failure();
}

#[test]
fn wrong_uses_of_lora_format() {
    let dir = temp_dir();
    for (args, expected) in [
        ("a b.safetensors --lora-format peft", "an adapter of PEFT is a directory"),
        ("a b.gguf --lora-format peft", "cannot write a .gguf file"),
        ("a b c --lora-format peft", "--lora-format needs exactly one IN"),
        ("a b --lora-format peft --dtype f16", "cannot be used with"),
        ("a b --lora-format peft --lora c", "cannot be used with"),
        ("a b --lora-format peft --ranks 2", "cannot be used with"),
        ("a b --lora-base c", "--lora-format"),
    ] {
        dir.convert(args).code(2).stderr(contains(expected));
    }
}
