//! `convert --experts`.

use std::collections::BTreeMap;

use safetensors_core::ConvertOptions;
use safetensors_testing::experts::Mixture;
use safetensors_testing::quantized::Quantized;

use crate::fixtures::*;

/// Makes a directory with one file of a fixture, and its config.json.
fn model(dir: &Path, file: &Path, name: &str) {
    fs::create_dir_all(dir.at("model")).unwrap();
    fs::copy(file, dir.at("model").join(name)).unwrap();
    fs::copy(file.with_file_name("config.json"), dir.at("model/config.json")).unwrap();
}

fn tensors(checkpoint: &Checkpoint) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let read = checkpoint.tensors().map(|tensor| {
        let read = tensor.read().unwrap();
        (tensor.name().to_owned(), (read.shape().to_vec(), read.bytes().to_vec()))
    });
    read.collect()
}

#[test]
fn models_are_split_and_stacked_with_their_settings() {
    for name in ["mixtral", "qwen3_moe", "gpt_oss", "llama4_text", "hy_v3"] {
        let fixture = Mixture::named(name);
        let (split, stacked) = (&fixture.split, &fixture.stacked);
        for (layout, from, to) in [("stacked", split, stacked), ("split", stacked, split)] {
            let dir = temp_dir();
            model(dir.path(), from, "model.safetensors");
            let args = ["model", "out", "--experts", layout, "--max-shard-size", "500"];
            dir.convert(&args)
                .quiet()
                .stdout(contains(format!(", with config.json, experts {layout}")));
            assert!(dir.at("out/model.safetensors.index.json").exists());
            assert!(tensors(&dir.open("out")) == tensors(&Checkpoint::open(to).unwrap()), "{name}");
            assert_eq!(dir.text("out/config.json"), dir.text("model/config.json"));
            // Back, in one file next to the config.json.
            let back = if layout == "split" { "stacked" } else { "split" };
            dir.convert(&["out", "back", "--experts", back]).success();
            assert!(
                tensors(&dir.open("back")) == tensors(&Checkpoint::open(from).unwrap()),
                "{name}"
            );
        }
    }
}

#[test]
fn other_options_apply_to_the_new_tensors() {
    let dir = temp_dir();
    let fixture = Mixture::named("mixtral");
    model(dir.path(), &fixture.stacked, "model.safetensors");
    let split = ["model", "out", "--experts", "split"];
    dir.convert(&[&split[..], &["--dry-run"]].concat())
        .quiet()
        .stdout(contains("block_sparse_moe.experts.2.w1.weight  BF16   [6, 8]"))
        .stdout(contains("would write out"));
    assert!(!dir.at("out").exists());
    dir.write(
        "model/config.json",
        "{\"model_type\": \"mixtral\",  \"quantization_config\": {\"quant_method\": \"fp8\", \
         \"modules_to_not_convert\": [\"model.layers.1.mlp.gate\"]}}\n",
    );
    let other = r#"{"quantization": {"exclude_modules": ["model.layers.1.mlp.gate"]}}"#;
    dir.write("model/hf_quant_config.json", other);
    let cast = ["--dtype", "f32", "--drop", "*.w2.*", "--cast", "*.experts.0.*=keep"];
    dir.convert(&[&split[..], &cast].concat()).quiet();
    assert_eq!(
        dir.text("out/config.json"),
        "{\"model_type\": \"mixtral\",  \"quantization_config\": {\n    \
         \"modules_to_not_convert\": [\"model.layers.1.block_sparse_moe.gate\"],\n    \
         \"quant_method\": \"fp8\"\n  }}\n"
    );
    let other = dir.text("out/hf_quant_config.json");
    assert!(other.contains(r#"["model.layers.1.block_sparse_moe.gate"]"#), "{other}");
    let out = dir.open("out");
    let dtype = |name: &str| {
        out.get(&format!("model.layers.1.block_sparse_moe.{name}.weight")).map(|it| it.dtype())
    };
    assert_eq!(dtype("experts.0.w1"), Some(Dtype::BF16));
    assert_eq!(dtype("experts.1.w1"), Some(Dtype::F32));
    assert_eq!(dtype("experts.1.w2"), None);
    assert_eq!(dtype("gate"), Some(Dtype::F32));
    // An adapter for one expert is merged into a stack, once that is split.
    let module = "model.layers.1.block_sparse_moe.experts.1.w1";
    let adapter = crate::lora::one_module(dir.path(), module, [6, 8], 1.0);
    dir.convert(&["model", "merged", "--experts", "split", "--lora", &adapter])
        .quiet()
        .stdout(contains(", experts split, 1 tensor changed by 1 adapter"));
    let merged = tensors(&dir.open("merged"));
    let plain = tensors(&Checkpoint::open(&fixture.split).unwrap());
    let changed = plain.iter().filter(|(name, tensor)| merged[*name] != **tensor);
    assert_eq!(
        changed.map(|(name, _)| name.clone()).collect::<Vec<_>>(),
        [format!("{module}.weight")]
    );
}

#[test]
fn experts_of_other_formats_and_ranks_are_converted() {
    let dir = temp_dir();
    let fixture = Mixture::named("mixtral");
    model(dir.path(), &fixture.split.with_extension("bin"), "pytorch_model.bin");
    dir.convert("model out --experts stacked").quiet();
    let stacked = tensors(&Checkpoint::open(&fixture.stacked).unwrap());
    assert!(tensors(&dir.open("out")) == stacked);
    // Ranks, and whole again.
    let rule = "--ranks 3 --rule *.experts.*=split:0 --rule *=replicate";
    dir.convert(format!("model parts --experts stacked {rule}").as_str()).success();
    dir.convert("parts whole.safetensors").quiet();
    assert!(tensors(&dir.open("whole.safetensors")) == stacked);
    if cfg!(feature = "remote") {
        let address = format!("file://{}", dir.at("model").display());
        dir.convert(&[&*address, "remote", "--experts", "stacked"]).quiet();
        assert!(tensors(&dir.open("remote")) == stacked);
    }
    let values = [1.0_f32];
    save(dir.at("a.safetensors"), [("a", array(&[1], &values))], &quick()).unwrap();
    dir.convert("a.safetensors a.npz").success();
    dir.convert("a.npz out --experts split")
        .fails(1, "a.npz: there are no experts: expected tensors such as ");
}

#[test]
fn an_unknown_order_is_refused_with_the_option_that_sets_it() {
    let dir = temp_dir();
    let fixture = Mixture::named("qwen3_moe");
    model(dir.path(), &fixture.split, "model.safetensors");
    fs::write(dir.at("model/config.json"), r#"{"model_type": "new_moe"}"#).unwrap();
    dir.convert("model out --experts stacked").fails(
        1,
        "the order of gate and up in stacked experts is not known: config.json has the model_type \
         \"new_moe\"; --gate-up sets it: first, last or interleaved; --transposed, if outputs are \
         columns\n",
    );
    assert!(!dir.at("out").exists());
    dir.convert("model out --experts stacked --gate-up last --transposed").quiet();
    let out = dir.open("out");
    assert_eq!(out.tensor("model.layers.1.mlp.experts.gate_up_proj").unwrap().shape(), [3, 8, 12]);
    dir.convert("out back --experts split --gate-up last").quiet();
    assert!(tensors(&dir.open("back")) == tensors(&Checkpoint::open(&fixture.split).unwrap()));
    dir.convert("model out --gate-up last").fails(2, "--experts <LAYOUT>");
    // A dense model, and one that lacks an expert.
    let values = [1.0_f32];
    fs::write(dir.at("config.json"), r#"{"model_type": "mixtral"}"#).unwrap();
    save(dir.at("a.safetensors"), [("a", array(&[1], &values))], &quick()).unwrap();
    dir.convert("a.safetensors new --experts split").fails(1, "there are no experts: expected");
    fs::copy(fixture.split.with_file_name("config.json"), dir.at("model/config.json")).unwrap();
    let lacking = ["model", "lacking", "--drop", "*.1.up_proj.*"];
    dir.convert(&lacking).success();
    dir.convert("lacking new --experts stacked").fails(
        1,
        "tensor \"model.layers.1.mlp.experts.1.up_proj.weight\" is missing, one of 3 experts",
    );
    assert!(!dir.at("new").exists());
}

/// GPTQ packs numbers of several inputs into a code, in another order.
#[test]
fn codes_that_cannot_be_stacked_become_numbers() {
    let dir = temp_dir();
    fs::create_dir(dir.at("model")).unwrap();
    assert!(Quantized::named("gptq-v1-4bits").write_experts(&dir.at("model")));
    let stacked = "model out --experts stacked";
    let refused = "GPTQ cannot be arranged so: this form of it is not known; --dequantize f32 \
                   makes numbers of the weights\n";
    dir.convert(stacked).fails(1, refused);
    let kept = "--dequantize bf16 --cast *.down_proj*=keep";
    dir.convert(format!("{stacked} {kept}").as_str()).fails(1, refused);
    dir.convert(format!("{stacked} --dequantize bf16").as_str()).success();
    let out = dir.open("out");
    let dequantized = dir.open("model").dequantized().unwrap();
    let matrix = "model.layers.0.mlp.experts.1.down_proj.weight";
    let matrix = dequantized.tensor(matrix).unwrap().read().unwrap();
    let matrix = matrix.convert(Dtype::BF16, &ConvertOptions::new()).unwrap();
    let down = out.tensor("model.layers.0.mlp.experts.down_proj").unwrap();
    assert_eq!(down.slice((1,)).unwrap().read().unwrap().bytes(), matrix.bytes());
    assert_eq!((out.len(), down.dtype()), (2, Dtype::BF16));
    assert!(!dir.text("out/config.json").contains("quantization_config"));
    dir.convert("model model out --experts stacked").fails(2, "--experts is for one IN");
}
