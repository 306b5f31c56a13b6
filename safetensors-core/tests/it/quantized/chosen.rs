//! Only weights that other programs read as codes are quantised, and `config.json` lists the
//! others.

use safetensors_core::quantized::{LinearLayers, Quantization};
use safetensors_core::save::Sink;
use serde_json::Value;

use super::checkpoint;
use crate::support::*;

const NVFP4: Quantization = Quantization::Nvfp4;

/// A tensor of F32 with numbers up to this one.
fn floats(shape: &[usize], largest: f32) -> TensorBuf {
    let len: usize = shape.iter().product();
    let values = (0..len).map(|i| largest * ((i + 1) as f32 / len as f32)).collect();
    TensorBuf::from_vec::<f32>(shape.to_vec(), values).unwrap()
}

/// The rewrite of a checkpoint where the layers decide, and other answers go before.
fn quantised<'a>(
    from: &'a Checkpoint,
    how: Quantization,
    config: &str,
    given: &[(&str, bool)],
) -> Rewrite<'a> {
    let layers = LinearLayers::new().config(config).unwrap();
    let answer = |name: &str| given.iter().find(|(it, _)| *it == name).map(|(_, answer)| *answer);
    Rewrite::from_checkpoint(from)
        .quantize(how, &ConvertOptions::new(), &layers, |name, _| answer(name))
        .unwrap()
}

/// Returns the names of the quantised tensors, and of the others.
fn names(rewrite: &Rewrite<'_>) -> (Vec<String>, Vec<String>) {
    let (codes, plain): (Vec<_>, Vec<_>) =
        rewrite.tensors().partition(|(_, tensor)| tensor.is_quantized());
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    (
        sorted(codes.into_iter().map(|(name, _)| name.to_owned()).collect()),
        sorted(plain.into_iter().map(|(name, _)| name.to_owned()).collect()),
    )
}

#[test]
fn only_linear_layers_are_quantised_by_default() {
    let (none, llama) = ("{}", r#"{"model_type": "llama"}"#);
    let gpt2 = r#"{"model_type": "gpt2"}"#;
    let bigcode = r#"{"model_type": "gpt_bigcode"}"#;
    let of_images =
        r#"{"model_type": "vision-encoder-decoder", "decoder": {"model_type": "gpt2"}}"#;
    for (config, name, is_linear) in [
        (llama, "model.layers.0.self_attn.q_proj.weight", true),
        (llama, "model.layers.0.mlp.experts.7.w1.weight", true),
        (llama, "bert.encoder.layer.0.attention.self.query.weight", true),
        // Embeddings.
        (llama, "model.embed_tokens.weight", false),
        (llama, "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", false),
        (none, "block.0.layer.0.SelfAttention.relative_attention_bias.weight", false),
        (llama, "shared.weight", false),
        (gpt2, "transformer.wte.weight", false),
        (gpt2, "wpe.weight", false),
        (none, "query.weight", false),
        (none, "mask_decoder.mask_tokens.weight", false),
        (none, "visual.patch_embed.proj.weight", false),
        // Routers and heads.
        (llama, "model.layers.0.mlp.gate.weight", false),
        (llama, "model.layers.0.mlp.gate.wg.weight", false),
        (llama, "model.layers.0.mlp.gate_proj.weight", true),
        (llama, "model.layers.0.feed_forward.router.weight", false),
        (llama, "language_model.lm_head.weight", false),
        (none, "cls.predictions.decoder.weight", false),
        (none, "output.weight", false),
        // Layers of GPT-2 are transposed, in others these names are linear layers.
        (gpt2, "h.0.attn.c_attn.weight", false),
        (gpt2, "h.0.mlp.c_fc.weight", false),
        (of_images, "decoder.transformer.h.0.crossattention.q_attn.weight", false),
        (of_images, "encoder.encoder.layer.0.output.dense.weight", true),
        (bigcode, "transformer.h.0.attn.c_attn.weight", true),
        (llama, "h.0.mlp.c_proj.weight", true),
        (none, "h.0.mlp.c_proj.weight", false),
        // Not weights.
        (llama, "model.layers.0.mlp.experts.gate_up_proj", false),
        (llama, "model.layers.0.self_attn.q_proj.bias", false),
    ] {
        let layers = LinearLayers::new().config(config).unwrap();
        assert_eq!(layers.suits(NVFP4, name, &[32, 32]), is_linear, "{name} of {config}");
        assert!(!layers.suits(NVFP4, name, &[32, 33]), "{name}");
        assert!(!layers.suits(Quantization::Int8Channel, name, &[2, 32, 32]), "{name}");
    }
    for wrong in ["[]", "3", "", "{\"model_type\": }"] {
        let error = LinearLayers::new().config(wrong).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Quantization { .. }), "{wrong}: {error}");
    }
}

/// PyTorch's attention uses the weight of its last layer directly, without calling the layer.
#[test]
fn the_output_of_an_attention_of_pytorch_is_not_quantised() {
    let (_dir, from) = checkpoint(
        None,
        &[
            ("a.in_proj_weight", floats(&[48, 16], 1.0)),
            ("a.out_proj.weight", floats(&[16, 16], 1.0)),
            ("b.out_proj.weight", floats(&[16, 16], 1.0)),
            ("ids.weight", TensorBuf::from_vec(vec![1, 16], vec![1_i64; 16]).unwrap()),
        ],
    );
    let rewrite = quantised(&from, Quantization::Int8Channel, "{}", &[]);
    let (codes, plain) = names(&rewrite);
    assert_eq!(codes, ["b.out_proj.weight", "b.out_proj.weight_scale"]);
    assert_eq!(plain, ["a.in_proj_weight", "a.out_proj.weight", "ids.weight"]);
}

/// The tensor may have the name of the linear layer in its file, and the embedding be the alias.
#[test]
fn an_embedding_is_not_quantised_under_the_name_of_a_linear_layer() {
    let (dir, path) = place("model.safetensors");
    for (own, alias) in [("a.proj", "a.embed"), ("a.embed", "a.proj")] {
        let [own, alias] = [own, alias].map(|module| format!("{module}.weight"));
        let options = SaveOptions::new().metadata([(&alias, &own)]);
        save(&path, [(&own, floats(&[2, 16], 1.0))], &options).unwrap();
        let from = Checkpoint::open(&path).unwrap();
        let quantised = |given: &[_]| quantised(&from, Quantization::Fp8Tensor, "{}", given);
        let rewrite = quantised(&[]);
        let (codes, plain) = names(&rewrite);
        assert_eq!(
            (codes.len(), &plain[..]),
            (0, &["a.embed.weight", "a.proj.weight"].map(String::from)[..])
        );
        assert!(rewrite.quantized_config("{}").unwrap().contains("a.proj"));
        // If it is asked for, the layer is quantised, and the embedding becomes a separate tensor.
        let rewrite = quantised(&[("a.proj.weight", true)]);
        let (codes, plain) = names(&rewrite);
        assert_eq!(codes, ["a.proj.weight", "a.proj.weight_scale"]);
        assert_eq!(plain, ["a.embed.weight"]);
        let out = dir.path().join("out.safetensors");
        rewrite.save(&out, &SaveOptions::new()).unwrap();
        let out = Checkpoint::open(&out).unwrap();
        assert_eq!(out.tensor("a.embed.weight").unwrap().dtype(), Dtype::F32);
        assert_eq!(out.len(), 3);
    }
}

/// vLLM takes one for all weights that it puts into one matrix.
#[test]
fn weights_of_one_matrix_share_their_global_scale() {
    let names = [
        ("m.0.q_proj", 1.0, 4.0),
        ("m.0.k_proj", 4.0, 4.0),
        ("m.0.v_proj", 2.0, 4.0),
        ("m.0.o_proj", 0.5, 0.5),
        ("m.1.q_proj", 8.0, 8.0),
        ("m.1.w1", 3.0, 3.0),
        ("m.1.w2", 7.0, 7.0),
        ("m.1.w3", 2.0, 3.0),
        ("m.2.gate_proj", 0.25, 5.0),
        ("m.2.up_proj", 5.0, 5.0),
        ("m.2.down_proj", 1.0, 1.0),
        ("m.3.q_a_proj", 6.0, 6.0),
        ("m.3.kv_a_proj_with_mqa", 1.0, 6.0),
        ("qkv_proj", 1.0, 1.0),
    ];
    let tensors = names.map(|(name, largest, _)| {
        (format!("{name}.weight"), floats(&[if name.len() % 2 == 0 { 3 } else { 2 }, 32], largest))
    });
    let tensors: Vec<_> = tensors.iter().map(|(name, it)| (&**name, it.clone())).collect();
    let (dir, from) = checkpoint(None, &tensors);
    let out = dir.path().join("out.safetensors");
    quantised(&from, NVFP4, "{}", &[]).save(&out, &SaveOptions::new()).unwrap();
    let stored = Checkpoint::open(&out).unwrap();
    let numbers = Checkpoint::open(&out).unwrap().dequantized().unwrap();
    for (name, largest, of_all) in names {
        let global = stored.tensor(&format!("{name}.weight_global_scale")).unwrap().read().unwrap();
        assert_eq!(global.as_slice::<f32>().unwrap(), [448.0 * 6.0 / of_all], "{name}");
        let name = format!("{name}.weight");
        let read =
            |from: &dyn Fn() -> Result<TensorBuf>| from().unwrap().into_vec::<f32>().unwrap();
        let after = read(&|| numbers.tensor(&name)?.read());
        let before = read(&|| from.tensor(&name)?.read());
        for (after, before) in after.iter().zip(before) {
            assert!((after - before).abs() < largest / 5.0, "{name}: {after} {before}");
        }
    }
    // Alone, or by other schemes, nothing is shared.
    let given = [("m.0.k_proj.weight", false)];
    quantised(&from, NVFP4, "{}", &given).save(&out, &SaveOptions::new()).unwrap();
    let global = Checkpoint::open(&out).unwrap();
    let global = global.tensor("m.0.q_proj.weight_global_scale").unwrap().read().unwrap();
    assert_eq!(global.as_slice::<f32>().unwrap(), [448.0 * 6.0 / 2.0]);
}

/// A tied weight is in two matrices, which both share its scale.
#[test]
fn a_tied_weight_joins_the_matrices_of_its_names() {
    let (dir, path) = place("model.safetensors");
    let options = SaveOptions::new().metadata([("b.k_proj.weight", "a.k_proj.weight")]);
    let tensors = [("a.q_proj.weight", 1.0), ("a.k_proj.weight", 2.0), ("b.q_proj.weight", 4.0)];
    let tensors = tensors.map(|(name, largest)| (name, floats(&[1, 16], largest)));
    save(&path, tensors, &options).unwrap();
    let from = Checkpoint::open(&path).unwrap();
    let out = dir.path().join("out.safetensors");
    quantised(&from, NVFP4, "{}", &[]).save(&out, &SaveOptions::new()).unwrap();
    let out = Checkpoint::open(&out).unwrap();
    for name in ["a.q_proj", "a.k_proj", "b.q_proj", "b.k_proj"] {
        let name = format!("{name}.weight_global_scale");
        let scale = match out.get(&name) {
            Some(tensor) => tensor,
            None => out.aliases().find(|(alias, _)| *alias == name).unwrap().1,
        };
        assert_eq!(scale.read().unwrap().as_slice::<f32>().unwrap(), [448.0 * 6.0 / 4.0], "{name}");
    }
}

/// A source that counts how often it is read.
struct Counted(TensorBuf, Arc<AtomicUsize>);

impl TensorSource for Counted {
    fn dtype(&self) -> Dtype {
        self.0.dtype()
    }

    fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.write_to(sink)
    }
}

#[test]
fn weights_of_one_matrix_are_read_three_times_each() {
    let dir = tempdir().unwrap();
    let names = ["q_proj", "k_proj", "v_proj", "o_proj"];
    let counts = names.map(|_| Arc::new(AtomicUsize::new(0)));
    let mut rewrite = Rewrite::new();
    for (name, count) in names.iter().zip(&counts) {
        let source = Counted(floats(&[16, 32], 1.0), Arc::clone(count));
        rewrite = rewrite.add(format!("{name}.weight"), source).unwrap();
    }
    rewrite
        .quantize(NVFP4, &ConvertOptions::new(), &LinearLayers::new(), |_, _| None)
        .unwrap()
        .save(dir.path().join("out.safetensors"), &SaveOptions::new())
        .unwrap();
    assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [3; 4]);
}

#[test]
fn the_infinite_weight_is_named_among_fused_weights() {
    let tensors = [
        ("q_proj.weight", floats(&[1, 16], 1.0)),
        ("k_proj.weight", floats(&[1, 16], f32::INFINITY)),
    ];
    let (dir, from) = checkpoint(None, &tensors);
    let out = dir.path().join("out.safetensors");
    let error = refused!(
        quantised(&from, NVFP4, "{}", &[]).save(&out, &SaveOptions::new()),
        ErrorKind::DoesNotFit { index: 0, .. }
    );
    assert_eq!(error.tensor(), Some("k_proj.weight"));
    assert!(error.file().unwrap().ends_with("model.safetensors") && !out.exists(), "{error}");
}

#[test]
fn the_settings_name_unquantised_weights() {
    let tensors = [
        ("model.embed_tokens.weight", floats(&[4, 32], 1.0)),
        ("model.layers.0.mlp.gate.weight", floats(&[2, 32], 1.0)),
        ("model.layers.0.mlp.experts.gate_up_proj", floats(&[2, 4, 32], 1.0)),
        ("model.layers.0.mlp.experts.down_proj", floats(&[2, 32, 2], 1.0)),
        ("model.layers.0.self_attn.q_proj.weight", floats(&[2, 32], 1.0)),
        ("model.layers.0.self_attn.conv.weight", floats(&[2, 1, 32], 1.0)),
        ("h.0.c_attn.weight", floats(&[2, 32], 1.0)),
    ];
    let (_dir, from) = checkpoint(None, &tensors);
    for how in Quantization::ALL {
        let rewrite = quantised(&from, how, r#"{"model_type": "gpt2"}"#, &[]);
        let experts: Vec<_> = rewrite.stacked_experts().map(|(name, _)| name).collect();
        assert_eq!(experts.len(), 2);
        assert!(experts.contains(&"model.layers.0.mlp.experts.down_proj"), "{experts:?}");
        let bytes = |tensors: &[(&str, TensorBuf)]| -> u64 {
            tensors.iter().map(|(_, it)| it.bytes().len() as u64).sum()
        };
        assert_eq!(rewrite.quantized_bytes(), (bytes(&tensors[4..5]), bytes(&tensors)));
        let config = rewrite.quantized_config("{}").unwrap();
        let config: Value = serde_json::from_str(&config).unwrap();
        let settings = &config["quantization_config"];
        let mut expected = vec![
            "h.0.c_attn",
            "lm_head",
            "model.embed_tokens",
            "model.layers.0.mlp.experts",
            "model.layers.0.mlp.gate",
        ];
        let mut key = "modules_to_not_convert";
        if how != Quantization::Fp8Block128 {
            key = "ignore";
            // vLLM asks for the layers of each expert.
            expected.push(r"re:model\.layers\.0\.mlp\.experts\..*");
        }
        assert_eq!(settings[key], serde_json::json!(expected), "{how}");
    }
}

#[test]
fn the_dtype_in_a_config_follows_the_floats() {
    let half = floats(&[8], 1.0).convert(Dtype::F16, &ConvertOptions::new()).unwrap();
    let tensors = [("a.weight", floats(&[4, 32], 1.0)), ("b.norm", half)];
    let (_dir, from) = checkpoint(None, &tensors);
    let cast = |to: Option<Dtype>| {
        Rewrite::from_checkpoint(&from).cast(&ConvertOptions::new(), |_, _| to).unwrap()
    };
    let of = |dtype: &str| format!("{{\"torch_dtype\": \"{dtype}\",\n \"x\": [ 1e-05]}}");
    for (to, expected) in [
        (None, "float64"),
        (Some(Dtype::BF16), "bfloat16"),
        (Some(Dtype::F16), "float16"),
        // One tensor is converted, and most bytes are these.
        (Some(Dtype::F32), "float32"),
        // There is no such model.
        (Some(Dtype::F8_E4M3), "float64"),
    ] {
        assert_eq!(cast(to).config(&of("float64")).unwrap(), of(expected), "{to:?}");
    }
    let bf16 = cast(Some(Dtype::BF16));
    for (config, expected) in [
        ("{}", "{}"),
        (r#"{"dtype": null, "a": ["float32"]}"#, r#"{"dtype": null, "a": ["float32"]}"#),
        (r#"{"dtype": {"text": "x"}}"#, r#"{"dtype": {"text": "x"}}"#),
        // Parts of the model that are alike, and one that is not.
        (
            r#"{"a": {"torch_dtype": "float32"}, "b": {"dtype": "float16"}, "dtype": "float32", "l": [0.0, -Infinity]}"#,
            r#"{"a": {"torch_dtype": "bfloat16"}, "b": {"dtype": "float16"}, "dtype": "bfloat16", "l": [0.0, -Infinity]}"#,
        ),
        (r#"{"text_config": {"dtype": "float32"}}"#, r#"{"text_config": {"dtype": "bfloat16"}}"#),
    ] {
        assert_eq!(bf16.config(config).unwrap(), expected);
    }
    for wrong in ["[]", "", "{"] {
        for error in [bf16.config(wrong), bf16.quantized_config(wrong)] {
            assert!(error.unwrap_err().to_string().contains("not a JSON object"), "{wrong}");
        }
    }
    // Numbers that were codes have a dtype, too.
    let numbers = r#"{"dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}"#;
    assert_eq!(cast(None).quantized_config(numbers).unwrap(), "{\n  \"dtype\": \"float32\"\n}\n");
    // Codes and scales do not count.
    let rewrite = quantised(&from, Quantization::Fp8Tensor, "{}", &[]);
    let rewrite = rewrite.cast(&ConvertOptions::new(), |_, _| Some(Dtype::BF16)).unwrap();
    let config = rewrite.quantized_config(&of("float32")).unwrap();
    assert!(config.contains("\"torch_dtype\": \"bfloat16\""), "{config}");
}

/// Python writes such numbers, and reads no others.
#[test]
fn numbers_of_python_stay_in_a_config() {
    let config = concat!(
        r#"{"time_step_limit": [0.0, Infinity], "b": -Infinity, "text_config": "#,
        r#"{"c": NaN, "quantization_config": {"d": NaN}}, "quantization": {"bits": 4, "e": NaN}}"#
    );
    LinearLayers::new().config(config).unwrap();
    let expected = concat!(
        "{\n  \"b\": -Infinity,\n  \"text_config\": {\n    \"c\": NaN\n  },\n",
        "  \"time_step_limit\": [0.0, Infinity]\n}\n"
    );
    assert_eq!(Rewrite::new().quantized_config(config).unwrap(), expected);
    assert_eq!(Rewrite::new().config(config).unwrap(), config);
}
