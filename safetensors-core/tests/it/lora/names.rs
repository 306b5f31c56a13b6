//! Names of other versions and libraries, and modules that are parts of others.

use std::ops::Range;

use safetensors_core::lora::Adapter;

use super::{adapter, base, write};
use crate::support::*;

const RANK: &str = ", \"r\": 1, \"lora_alpha\": 1";

/// A row of ones, so that a product repeats its other factor: 1, 2, 3 and so on.
type Tensors<'a> = &'a [(&'a str, &'a [usize])];

/// Returns the first column of a weight of `checkpoint` after the merge, less its value before.
/// The first column of a product is its first factor.
fn added(checkpoint: Tensors<'_>, adapter: &Adapter, name: &str) -> Vec<f32> {
    let plain = base(checkpoint).tensor(name).unwrap().read().unwrap();
    let merged = base(checkpoint).merged([adapter.clone()]).unwrap();
    let sum = merged.tensor(name).unwrap().read().unwrap();
    let columns = plain.shape().iter().skip(1).product();
    let pairs = sum.as_slice::<f32>().unwrap().iter().zip(plain.as_slice::<f32>().unwrap());
    pairs.step_by(columns).map(|(sum, plain)| sum - plain).collect()
}

#[test]
fn names_of_wrappers_and_adapters_are_dropped() {
    let checkpoint: Tensors<'_> = &[("layers.0.q.weight", &[2, 3])];
    for (down, up) in [
        ("layers.0.q.lora_A.default.weight", "layers.0.q.lora_B.default.weight"),
        ("_orig_mod.layers.0.q.lora_A.weight", "layers.0._orig_mod.q.lora_B.weight"),
    ] {
        let names = [down, up].map(|name| format!("base_model.model.{name}"));
        let adapter = adapter(Some(RANK), &[(&names[0], &[1, 3]), (&names[1], &[2, 1])]).unwrap();
        assert_eq!(added(checkpoint, &adapter, "layers.0.q.weight"), [1.0, 2.0], "{down}");
    }
    let whole = "base_model.model.head.modules_to_save.default.weight";
    let merged = base(&[("head.weight", &[2, 2])]);
    let merged = merged.merged([adapter(Some(RANK), &[(whole, &[2, 2])]).unwrap()]).unwrap();
    assert_eq!(merged.len(), 1);
}

#[test]
fn prefixes_of_both_versions_of_transformers_are_matched() {
    let text = "layers.0.self_attn.q_proj";
    let starts = ["model.language_model.", "language_model.model.", "model.", ""];
    for (from, to) in starts.iter().flat_map(|from| starts.map(|to| (*from, to))) {
        let names = ["A", "B"].map(|it| format!("base_model.model.{from}{text}.lora_{it}.weight"));
        let vision = ["A", "B"].map(|it| {
            let start = if from.starts_with("model.l") { "model.visual" } else { "visual" };
            format!("base_model.model.{start}.blocks.0.proj.lora_{it}.weight")
        });
        let tensors: Tensors<'_> = &[
            (&names[0], &[1, 3]),
            (&names[1], &[2, 1]),
            (&vision[0], &[1, 3]),
            (&vision[1], &[4, 1]),
        ];
        let adapter = adapter(Some(RANK), tensors).unwrap();
        let weight = format!("{to}{text}.weight");
        let visual = if to.starts_with("model.l") { "model.visual" } else { "visual" };
        let visual = format!("{visual}.blocks.0.proj.weight");
        let checkpoint: Tensors<'_> = &[(&weight, &[2, 3]), (&visual, &[4, 3])];
        assert_eq!(added(checkpoint, &adapter, &weight), [1.0, 2.0], "{from} {to}");
        assert_eq!(added(checkpoint, &adapter, &visual), [1.0, 2.0, 3.0, 4.0]);
    }
}

/// Makes an adapter of rank 1 with modules of so many outputs, and 3 inputs.
fn of_modules(modules: &[(&str, usize)]) -> Result<Adapter> {
    let names: Vec<_> = modules
        .iter()
        .flat_map(|(name, outputs)| {
            let name = format!("base_model.model.a.0.{name}");
            let up = vec![*outputs, 1];
            [(format!("{name}.lora_A.weight"), vec![1, 3]), (format!("{name}.lora_B.weight"), up)]
        })
        .collect();
    let tensors: Vec<_> = names.iter().map(|(name, shape)| (&**name, &**shape)).collect();
    adapter(Some(RANK), &tensors)
}

#[test]
fn modules_of_a_fused_weight_change_their_rows() {
    for (fused, rows, modules, expected) in [
        ("qkv_proj", 8, &[("q_proj", 4), ("k_proj", 2), ("v_proj", 2)][..], "12341212"),
        ("qkv_proj", 8, &[("q_proj", 4), ("v_proj", 2)], "12340012"),
        ("qkv_proj", 8, &[("k_proj", 2), ("q_proj", 4)], "12341200"),
        ("to_qkv", 6, &[("to_q", 2), ("to_k", 2)], "121200"),
        ("to_qkv", 6, &[("to_v", 2)], "000012"),
        ("gate_up_proj", 4, &[("up_proj", 2)], "0012"),
        ("gate_up_proj", 4, &[("gate_proj", 2), ("up_proj", 2)], "1212"),
    ] {
        let name = format!("model.a.0.{fused}.weight");
        let adapter = of_modules(modules).unwrap();
        let found = added(&[(&name, &[rows, 3])], &adapter, &name);
        let found: String = found.iter().map(f32::to_string).collect();
        assert_eq!(found, expected, "{modules:?}");
    }
    for (fused, rows, modules) in [
        ("qkv_proj", 8, &[("q_proj", 4), ("v_proj", 3)][..]),
        ("qkv_proj", 8, &[("q_proj", 5), ("k_proj", 1)]),
        ("qkv_proj", 8, &[("q_proj", 2), ("k_proj", 3)]),
        ("qkv_proj", 8, &[("q_proj", 2), ("k_proj", 1)]),
        ("to_qkv", 8, &[("to_q", 2)]),
        ("to_qkv", 8, &[("to_q", 4), ("to_k", 2)]),
        ("gate_up_proj", 4, &[("up_proj", 3)]),
        ("gate_up_proj", 5, &[("up_proj", 2)]),
        ("gate_up_proj", 4, &[("gate_proj", 1)]),
    ] {
        let name = format!("a.0.{fused}.weight");
        let adapter = of_modules(modules).unwrap();
        let error = base(&[(&name, &[rows, 3])]).merged([adapter]).unwrap_err().to_string();
        assert!(error.contains("expected a product of shape"), "{modules:?}: {error}");
    }
}

/// One module does not show how many rows belong to the others.
#[test]
fn the_settings_of_the_checkpoint_show_the_heads_of_a_fused_weight() {
    let weight: (&str, &[usize]) = ("a.0.qkv_proj.weight", &[8, 3]);
    let merged = |config: Option<&str>, modules: &[(&str, usize)]| {
        let directory = tempdir().unwrap();
        write(&directory.path().join("model.safetensors"), &[weight]);
        if let Some(config) = config {
            fs::write(directory.path().join("config.json"), config).unwrap();
        }
        let base = Checkpoint::open(directory.path()).unwrap();
        base.merged([of_modules(modules).unwrap()]).map(|merged| {
            let read = merged.tensor(weight.0).unwrap().read().unwrap().into_vec::<f32>().unwrap();
            let plain = (0..8).map(|row| (3 * row + 1) as f32);
            read.iter()
                .step_by(3)
                .zip(plain)
                .map(|(sum, plain)| (sum - plain).to_string())
                .collect()
        })
    };
    let grouped = r#"{"num_attention_heads": 4, "num_key_value_heads": 2}"#;
    let of_text = r#"{"text_config": {"num_attention_heads": 6, "num_key_value_heads": 1}}"#;
    let ends = [(grouped, "v_proj", 2, "00000012"), (grouped, "q_proj", 4, "12340000")];
    let ends = ends.into_iter().chain([(of_text, "q_proj", 6, "12345600")]);
    for (config, module, rows, expected) in ends {
        let found: String = merged(Some(config), &[(module, rows)]).unwrap();
        assert_eq!(found, expected);
    }
    for (config, modules, expected) in [
        (None, &[("k_proj", 2)][..], "expected num_attention_heads in config.json"),
        (Some("{}"), &[("q_proj", 4)], "expected num_attention_heads in config.json"),
        (Some(of_text), &[("q_proj", 4), ("k_proj", 2)], "expected a product of shape [8, 3]"),
        (Some(r#"{"num_attention_heads": 4}"#), &[("q_proj", 4)], "expected a product of shape"),
        (Some(r#"{"num_attention_heads": 0}"#), &[("q_proj", 4)], "expected a product of shape"),
        (Some("{"), &[("q_proj", 4)], "config.json: expected JSON"),
    ] {
        let error = merged(config, modules).unwrap_err().to_string();
        assert!(error.contains(expected), "{modules:?}: {error}");
    }
}

#[test]
fn a_fused_module_changes_its_parts() {
    let checkpoint: Tensors<'_> = &[
        ("model.a.0.q_proj.weight", &[4, 3]),
        ("model.a.0.k_proj.weight", &[2, 3]),
        ("model.a.0.v_proj.weight", &[2, 3]),
    ];
    let adapter = of_modules(&[("qkv_proj", 8)]).unwrap();
    for ((name, _), expected) in checkpoint.iter().zip(["1234", "56", "78"]) {
        let found: String = added(checkpoint, &adapter, name).iter().map(f32::to_string).collect();
        assert_eq!(found, expected, "{name}");
    }
    for outputs in [7, 9] {
        let error = base(checkpoint).merged([of_modules(&[("qkv_proj", outputs)]).unwrap()]);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("expected a product of shape [2, 3]"), "{error}");
    }
    let error = base(&checkpoint[..2]).merged([adapter]).unwrap_err().to_string();
    assert!(error.contains("the LoRA changes \"a.0.qkv_proj.weight\""), "{error}");
}

/// The factors of DoRA belong to the rows of a module, wherever these are.
#[test]
fn dora_is_the_same_fused_and_divided() {
    let names = ["A.weight", "B.weight", "magnitude_vector"];
    let names = names.map(|end| format!("base_model.model.qkv_proj.lora_{end}"));
    let tensors: Tensors<'_> = &[(&names[0], &[1, 3]), (&names[1], &[4, 1]), (&names[2], &[4])];
    let settings = format!("{RANK}, \"use_dora\": true");
    let fused = adapter(Some(&settings), tensors).unwrap();
    let parts: Tensors<'_> =
        &[("q_proj.weight", &[2, 3]), ("k_proj.weight", &[1, 3]), ("v_proj.weight", &[1, 3])];
    let (_directory, path) = place("model.safetensors");
    let rows: Vec<f32> = (1..=12).map(|value| ((value - 1) % 6 + 1) as f32).collect();
    let rows = |range: Range<usize>| {
        let values = rows[range.start * 3..range.end * 3].to_vec();
        TensorBuf::from_vec(vec![range.len(), 3], values).unwrap()
    };
    save(&path, [("qkv_proj.weight", rows(0..4))], &SaveOptions::new().durable(false)).unwrap();
    let whole = Checkpoint::open(&path).unwrap().merged([fused.clone()]).unwrap();
    let whole = whole.tensor("qkv_proj.weight").unwrap().read().unwrap();
    let ranges = [0..2, 2..3, 3..4];
    let tensors = parts.iter().zip(&ranges).map(|((name, _), range)| (*name, rows(range.clone())));
    save(&path, tensors.collect::<Vec<_>>(), &SaveOptions::new().durable(false)).unwrap();
    let divided = Checkpoint::open(&path).unwrap().merged([fused]).unwrap();
    for ((name, _), range) in parts.iter().zip(ranges) {
        let part = divided.tensor(name).unwrap().read().unwrap();
        let expected = &whole.as_slice::<f32>().unwrap()[range.start * 3..range.end * 3];
        assert_eq!(part.as_slice::<f32>().unwrap(), expected, "{name}");
    }
}

#[test]
fn modules_of_another_model_of_the_pipeline_are_left() {
    let tensors: Tensors<'_> = &[
        ("lora_unet_mid_q.lora_down.weight", &[1, 3]),
        ("lora_unet_mid_q.lora_up.weight", &[2, 1]),
        ("lora_te_text_model_fc1.lora_down.weight", &[1, 5]),
        ("lora_te_text_model_fc1.lora_up.weight", &[5, 1]),
    ];
    let file = adapter(None, tensors).unwrap();
    let unet: Tensors<'_> = &[("mid.q.weight", &[2, 3])];
    assert_eq!(added(unet, &file, "mid.q.weight"), [1.0, 2.0]);
    assert_eq!(file.left(&base(unet)).unwrap(), ["text_model_fc1"]);
    let encoder: Tensors<'_> = &[("text_model.fc1.weight", &[5, 5])];
    assert_eq!(file.left(&base(encoder)).unwrap(), ["mid_q"]);
    assert_eq!(file.left(&base(&[unet[0], encoder[0]])).unwrap(), [""; 0]);
    let error = base(&[("other.weight", &[2, 3])]).merged([file.clone()]).unwrap_err().to_string();
    assert!(error.contains("the LoRA changes"), "{error}");
    // A prefix shows a checkpoint of the whole pipeline, which must have all groups.
    let pipeline = base(&[("cond.text_model.fc1.weight", &[5, 5]), ("net.input.weight", &[2, 3])]);
    let error = pipeline.merged([file.clone()]).unwrap_err().to_string();
    assert!(error.contains("the LoRA changes \"mid_q_weight\""), "{error}");
    // A model that has some modules of a group must have all.
    let more: Tensors<'_> = &[
        tensors[0],
        tensors[1],
        ("lora_unet_mid_k.lora_down.weight", &[1, 3]),
        ("lora_unet_mid_k.lora_up.weight", &[2, 1]),
    ];
    let error = base(unet).merged([adapter(None, more).unwrap()]).unwrap_err().to_string();
    assert!(error.contains("the LoRA changes \"mid_k_weight\""), "{error}");
}

/// The encoders of SDXL have the same names, and other sizes or fewer layers.
#[test]
fn a_group_that_does_not_fit_is_left() {
    let pair = |group: &str, layer: usize, size: usize| {
        let name = |end| format!("lora_{group}_text_model_{layer}.lora_{end}.weight");
        [(name("down"), vec![1, size]), (name("up"), vec![2, 1])]
    };
    let groups = [pair("te1", 0, 3), pair("te2", 0, 5), pair("te2", 1, 5)].concat();
    let same = [pair("te1", 0, 3), pair("te2", 0, 3), pair("te2", 1, 3)].concat();
    let first: Tensors<'_> = &[("text_model.0.weight", &[2, 3])];
    let second: Tensors<'_> = &[("text_model.0.weight", &[2, 5]), ("text_model.1.weight", &[2, 5])];
    for (tensors, encoder, left) in [
        (&groups, first, &["text_model_0", "text_model_1"][..]),
        (&groups, second, &["text_model_0"]),
        // The second group is not found in full.
        (&same, first, &["text_model_0", "text_model_1"]),
    ] {
        let tensors: Vec<_> = tensors.iter().map(|(name, shape)| (&**name, &**shape)).collect();
        let file = adapter(None, &tensors).unwrap();
        assert_eq!(file.left(&base(encoder)).unwrap(), left);
        assert_eq!(added(encoder, &file, encoder[0].0), [1.0, 2.0]);
    }
    let tensors: Vec<_> = groups.iter().map(|(name, shape)| (&**name, &**shape)).collect();
    let other = base(&[("text_model.0.weight", &[2, 4])]);
    let error = other.merged([adapter(None, &tensors).unwrap()]).unwrap_err().to_string();
    assert!(error.contains("expected a product of shape [2, 4]"), "{error}");
}

/// PEFT adds the changes of both modules to the weight that they share.
#[test]
fn both_names_of_a_tied_weight() {
    let (_directory, path) = place("model.safetensors");
    let zeros = TensorBuf::from_vec(vec![2, 3], vec![0.0_f32; 6]).unwrap();
    let options = SaveOptions::new().durable(false).metadata([("lm_head.weight", "wte.weight")]);
    save(&path, [("wte.weight", zeros)], &options).unwrap();
    let prefix = "base_model.model.";
    let names = ["wte.lora_embedding_A", "wte.lora_embedding_B", "lm_head.lora_A.weight"];
    let names = names.map(|name| format!("{prefix}{name}"));
    let up = format!("{prefix}lm_head.lora_B.weight");
    let tensors: Tensors<'_> =
        &[(&names[0], &[1, 2]), (&names[1], &[3, 1]), (&names[2], &[1, 3]), (&up, &[2, 1])];
    let both = adapter(Some(RANK), tensors).unwrap();
    let merged = Checkpoint::open(&path).unwrap().merged([both]).unwrap();
    for name in ["wte.weight", "lm_head.weight"] {
        let sum = merged.tensor(name).unwrap().read().unwrap().into_vec::<f32>().unwrap();
        assert_eq!(sum, [2.0, 4.0, 6.0, 4.0, 8.0, 12.0], "{name}");
    }
}

#[test]
fn two_modules_of_an_adapter_for_the_same_rows() {
    let tensors: Tensors<'_> = &[
        ("lora_te1_fc1.lora_down.weight", &[1, 3]),
        ("lora_te1_fc1.lora_up.weight", &[2, 1]),
        ("lora_te2_fc1.lora_down.weight", &[1, 3]),
        ("lora_te2_fc1.lora_up.weight", &[2, 1]),
    ];
    let groups = adapter(None, tensors).unwrap();
    let fused = of_modules(&[("gate_up_proj", 6), ("up_proj", 3)]).unwrap();
    for (file, weight, rows) in [(groups, "fc1.weight", 2), (fused, "a.0.gate_up_proj.weight", 6)] {
        let error = base(&[(weight, &[rows, 3])]).merged([file]).unwrap_err().to_string();
        let expected = format!("{weight:?}, which another tensor of the adapters changes, too");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn a_larger_vocabulary_is_an_error_or_padded() {
    let checkpoint: Tensors<'_> =
        &[("model.embed_tokens.weight", &[4, 2]), ("lm_head.weight", &[4, 2])];
    let prefix = "base_model.model.";
    let [embedding, head, down, up, embedding_a, embedding_b] = [
        "model.embed_tokens.weight",
        "lm_head.weight",
        "lm_head.lora_A.weight",
        "lm_head.lora_B.weight",
        "model.embed_tokens.lora_embedding_A",
        "model.embed_tokens.lora_embedding_B",
    ]
    .map(|name| format!("{prefix}{name}"));
    for (tensors, changed, expected) in [
        (&[(&*embedding, &[6, 2][..])][..], 0, [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]),
        (&[(&head, &[6, 2])], 1, [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]),
        (&[(&down, &[1, 2]), (&up, &[6, 1])], 1, [2.0, 5.0, 8.0, 11.0, 5.0, 6.0]),
        (&[(&embedding_a, &[1, 6]), (&embedding_b, &[2, 1])], 0, [2.0, 5.0, 8.0, 11.0, 5.0, 6.0]),
    ] {
        let adapter = adapter(Some(RANK), tensors).unwrap();
        let error = base(checkpoint).merged([adapter.clone()]).unwrap_err().to_string();
        assert!(error.contains("lacks rows 4 to 5; pad-vocab adds them"), "{error}");
        let merged = base(checkpoint).merged([adapter.pad_vocab(true)]).unwrap();
        let tensor = merged.tensor(checkpoint[changed].0).unwrap();
        assert_eq!(tensor.shape(), [6, 2]);
        let read = tensor.read().unwrap();
        let column: Vec<_> = read.as_slice::<f32>().unwrap().iter().step_by(2).copied().collect();
        assert_eq!(column, expected, "{tensors:?}");
        let row =
            merged.tensor(checkpoint[changed].0).unwrap().slice((5,)).unwrap().read().unwrap();
        assert_eq!(row.as_slice::<f32>().unwrap()[0], expected[5]);
        let other = merged.tensor(checkpoint[1 - changed].0).unwrap();
        assert_eq!(other.shape(), [4, 2]);
    }
    // A weight that is no vocabulary does not grow.
    let adapter = of_modules(&[("q_proj", 6)]).unwrap().pad_vocab(true);
    let error = base(&[("a.0.q_proj.weight", &[4, 3])]).merged([adapter]).unwrap_err().to_string();
    assert!(error.contains("expected a product of shape [4, 3]"), "{error}");
}

/// Each adapter changes the rows that it has, in any order.
#[test]
fn adapters_of_several_vocabularies() {
    let of_rows = |rows: usize| {
        let tensors: Tensors<'_> =
            &[("lm_head.lora_A.weight", &[1, 2]), ("lm_head.lora_B.weight", &[rows, 1])];
        adapter(None, tensors).unwrap().pad_vocab(true)
    };
    for order in [[2, 3, 4], [4, 2, 3], [3, 4, 2]] {
        let merged = base(&[("lm_head.weight", &[2, 2])]).merged(order.map(of_rows)).unwrap();
        let sum = merged.tensor("lm_head.weight").unwrap().read().unwrap();
        assert_eq!(sum.shape(), [4, 2]);
        let sum = sum.into_vec::<f32>().unwrap();
        assert_eq!(sum, [4.0, 8.0, 9.0, 16.0, 6.0, 12.0, 4.0, 8.0], "{order:?}");
    }
    let error = base(&[("lm_head.weight", &[3, 2])]).merged([of_rows(2)]).unwrap_err().to_string();
    assert!(error.contains("expected a product of shape [3, 2], found [2, 2]"), "{error}");
    // The rows after a tensor that replaced the smaller one are zeros, too.
    let whole = "base_model.model.lm_head.weight";
    let whole = adapter(Some(RANK), &[(whole, &[3, 2])]).unwrap().pad_vocab(true);
    let merged = base(&[("lm_head.weight", &[2, 2])]).merged([whole, of_rows(4)]).unwrap();
    let sum = merged.tensor("lm_head.weight").unwrap().read().unwrap().into_vec::<f32>().unwrap();
    assert_eq!(sum, [2.0, 4.0, 5.0, 8.0, 8.0, 12.0, 4.0, 8.0]);
}

/// A Kronecker product has many more rows than its factors.
#[test]
fn a_vocabulary_is_no_longer_than_the_numbers_of_its_adapter() {
    let tensors: Tensors<'_> = &[("lm_head.lokr_w1", &[64, 1]), ("lm_head.lokr_w2", &[64, 2])];
    let adapter = adapter(None, tensors).unwrap().pad_vocab(true);
    let error = base(&[("lm_head.weight", &[2, 2])]).merged([adapter]).unwrap_err().to_string();
    assert!(error.contains("expected at most 192 rows of \"lm_head.weight\""), "{error}");
    assert!(error.contains("found 4096"), "{error}");
}

/// mlx-lm has the same file for weights that were trained completely.
#[test]
fn a_full_training_of_mlx_replaces_weights() {
    let directory = tempdir().unwrap();
    write(&directory.path().join("adapters.safetensors"), &[("model.norm.weight", &[3])]);
    let settings = r#"{"fine_tune_type": "full", "lora_parameters": {"rank": 8}}"#;
    fs::write(directory.path().join("adapter_config.json"), settings).unwrap();
    let merged = base(&[("model.norm.weight", &[3]), ("model.q.weight", &[2, 2])]);
    let merged = merged.merged([Adapter::open(directory.path()).unwrap()]).unwrap();
    let norm = merged.tensor("model.norm.weight").unwrap().read().unwrap();
    assert_eq!(norm.as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0]);
}
