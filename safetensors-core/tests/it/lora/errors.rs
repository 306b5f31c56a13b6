//! A problem is an error with the expected and the found value.

use safetensors_core::lora::Adapter;

use super::{adapter, base, write};
use crate::support::*;

const DOWN: &str = "base_model.model.layers.0.q.lora_A.weight";
const UP: &str = "base_model.model.layers.0.q.lora_B.weight";
const SETTINGS: &str = ", \"r\": 2, \"lora_alpha\": 2";

#[test]
fn tensors_and_settings_of_an_adapter() {
    for (settings, tensors, expected) in [
        (None, &[(DOWN, &[2, 3][..]), (UP, &[4, 2])][..], "adapter_config.json is missing"),
        (Some(SETTINGS), &[(DOWN, &[2, 3])], "needs tensor \"layers.0.q.lora_B.weight\""),
        (Some(SETTINGS), &[(UP, &[4, 2])], "needs tensor \"layers.0.q.lora_A.weight\""),
        (
            Some(SETTINGS),
            &[(DOWN, &[3, 3]), (UP, &[4, 3])],
            "layers.0.q.lora_A.weight\": expected a rank of 2, found a rank of 3",
        ),
        (
            Some(SETTINGS),
            &[(DOWN, &[2, 3]), (UP, &[4, 1])],
            "layers.0.q.lora_B.weight\": expected a matrix that is multiplied with one of [2, 3], \
             found shape [4, 1]; groups of channels are not merged",
        ),
        (Some(SETTINGS), &[(DOWN, &[0, 3]), (UP, &[4, 0])], "none of them 0, found shape [0, 3]"),
        (Some(SETTINGS), &[(DOWN, &[2]), (UP, &[4, 2])], "at least 2 dimensions"),
        (
            Some(", \"r\": 2, \"use_dora\": true"),
            &[(DOWN, &[2, 3]), (UP, &[4, 2])],
            "needs tensor \"layers.0.q.lora_magnitude_vector\"",
        ),
        (
            Some(SETTINGS),
            &[("base_model.model.x.lokr_w2", &[1, 1, 3])],
            "lokr_w2 of a convolution with one dimension is not supported",
        ),
        (Some(", \"use_qalora\": true"), &[], "use_qalora: true is not supported"),
        (
            Some(", \"r\": 1.5"),
            &[],
            "adapter_config.json: the settings of the adapter are wrong: r",
        ),
        (None, &[("x.oft_R.weight", &[1, 1])], "tensor \"x.oft_R.weight\" of OFT is not supported"),
        (None, &[("x.vera_lambda_b", &[1])], "tensor \"x.vera_lambda_b\" of VeRA is not"),
        (None, &[("x.y", &[1])], "an adapter with tensor \"x.y\" is not"),
        (None, &[("x.hada_w1_a", &[1, 1])], "needs tensor \"x.hada_w1_b\""),
        (None, &[("x.lokr_w1", &[1, 1])], "needs tensor \"x.lokr_w2_a\""),
        (
            None,
            &[("x.hada_w1_a", &[2, 1]), ("x.lokr_w1", &[2, 1])],
            "two kinds of change or of names for module \"x\"",
        ),
        (
            None,
            &[
                ("x.hada_w1_a", &[2, 1]),
                ("x.hada_w1_b", &[1, 3]),
                ("x.hada_w2_a", &[2, 1]),
                ("x.hada_w2_b", &[1, 4]),
            ],
            "expected a product of shape [2, 3], found shape [2, 4]",
        ),
        (
            None,
            &[
                ("x.hada_w1_a", &[2, 1]),
                ("x.hada_w1_b", &[2, 3]),
                ("x.hada_t1", &[2, 3, 1, 1]),
                ("x.hada_w2_a", &[2, 1]),
                ("x.hada_w2_b", &[2, 3]),
                ("x.hada_t2", &[2, 2, 1, 1]),
            ],
            "x.hada_t1\": expected shape [2, 2] and the sizes of a kernel, found shape [2, 3, 1, 1]",
        ),
        (
            None,
            &[("x.lora_down.weight", &[2, 1]), ("x.lora_up.weight", &[1, 2]), ("x.alpha", &[2])],
            "x.alpha\": expected one number, found shape [2]",
        ),
        (None, &[("x.lora_down.weight", &[2, 1])], "needs tensor \"x.lora_up.weight\""),
        (
            None,
            &[("x.lora_down.weight", &[2, 1]), ("x.lora_A.weight", &[2, 1])],
            "two kinds of change or of names for module \"x\"",
        ),
        (None, &[("x.diff", &[2]), ("x.w_norm", &[2])], "two tensors for one end of module"),
        (
            None,
            &[("x.lokr_w1", &[1, 1]), ("x.lokr_w2", &[2, 2]), ("x.lokr_w2_a", &[2, 1])],
            "x.lokr_w2_a\": an adapter with a factor of a matrix that it also has whole is not",
        ),
        (
            None,
            &[
                ("x.hada_w1_a", &[2, 1]),
                ("x.hada_w1_b", &[1, 3]),
                ("x.hada_w2_a", &[2, 2]),
                ("x.hada_w2_b", &[2, 3]),
            ],
            "x.hada_w2_b\": expected a rank of 1, found a rank of 2",
        ),
    ] {
        let error = adapter(settings, tensors).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(error.contains("adapter_"), "{error}");
    }
}

/// A few bytes of text may be megabytes once they are compiled.
#[test]
fn patterns_of_settings_have_a_size_and_a_number() {
    let many = |count: usize, pattern: &str| -> String {
        let patterns = (0..count).map(|i| format!("\"{pattern}{i}\": 4"));
        patterns.collect::<Vec<_>>().join(", ")
    };
    let long = format!("\"{}\": 4", "a|".repeat(600));
    for (setting, patterns, expected) in [
        (
            "rank_pattern",
            "\"x[ab]{900000}\": 4",
            "regular expressions, at pattern \"x[ab]{900000}\"",
        ),
        (
            "rank_pattern",
            &*many(20, "(?:\\\\w{40})"),
            "over the limit of 4194304 bytes for compiled",
        ),
        ("alpha_pattern", &*many(300, "x[ab]"), "200 regular expressions, at pattern \"x[ab]200\""),
        ("alpha_pattern", &*long, "has 1200 bytes, over the limit of 1000"),
        ("rank_pattern", "\"x(\": 4", "pattern \"x(\" is no regular expression: error: unclosed"),
    ] {
        let settings = format!("{SETTINGS}, \"{setting}\": {{{patterns}}}");
        let tensors = [(DOWN, &[2, 3][..]), (UP, &[4, 2])];
        let error = adapter(Some(&settings), &tensors).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(error.contains("adapter_config.json") && error.contains(setting), "{error}");
    }
}

#[test]
fn an_adapter_that_does_not_fit_the_checkpoint() {
    const WEIGHT: &str = "layers.0.q.weight";
    let module = [(DOWN, &[2, 3][..]), (UP, &[4, 2])];
    let with = |more: (&'static str, &'static [usize])| [module[0], module[1], more];
    let norm = "base_model.model.norm.weight";
    for (tensors, checkpoint, expected) in [
        (
            &module[..],
            &[("layers.0.k.weight", &[4, 3][..])][..],
            "q.lora_B.weight\": the LoRA changes \"layers.0.q.weight\", which the checkpoint \
             lacks; did you mean \"layers.0.k.weight\"?",
        ),
        (
            &module,
            &[("a.layers.0.q.weight", &[4, 3]), ("b.layers.0.q.weight", &[4, 3])],
            "the tensor may change \"a.layers.0.q.weight\" or \"b.layers.0.q.weight\" of the",
        ),
        (
            &module,
            &[(WEIGHT, &[4, 4])],
            "expected a product of shape [4, 4], found [4, 3] for \"layers.0.q.weight\"",
        ),
        (&module, &[(WEIGHT, &[])], "a weight with dimensions"),
        (
            &with((norm, &[3])),
            &[(WEIGHT, &[4, 3]), ("norm.weight", &[4])],
            "norm.weight\": expected shape [4] of \"norm.weight\", found shape [3]",
        ),
        (
            &with(("base_model.model.layers.0.q.lora_B.bias", &[4])),
            &[(WEIGHT, &[4, 3])],
            "the LoRA changes \"layers.0.q.bias\"",
        ),
        (
            &with(("base_model.model.layers.0.q.lora_magnitude_vector", &[3])),
            &[(WEIGHT, &[4, 3])],
            "expected 4 numbers, found shape [3]",
        ),
    ] {
        let adapter = adapter(Some(SETTINGS), tensors).unwrap();
        let error = base(checkpoint).merged([adapter]).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(error.contains("adapter_model.safetensors"), "{error}");
    }
}

#[test]
fn two_adapters_that_replace_one_tensor() {
    let one = || adapter(Some(""), &[("base_model.model.norm.weight", &[3])]).unwrap();
    let error = base(&[("norm.weight", &[3])]).merged([one(), one()]).unwrap_err().to_string();
    assert!(error.contains("which another tensor of the adapters changes, too"), "{error}");
}

#[test]
fn numbers_that_are_not_finite() {
    let module = [(DOWN, &[2, 3][..]), (UP, &[4, 2])];
    let infinite = adapter(Some(SETTINGS), &module).unwrap().scale(f64::INFINITY);
    let error = base(&[("layers.0.q.weight", &[4, 3])]).merged([infinite]).unwrap_err();
    assert!(error.to_string().contains("scale inf is not finite"), "{error}");
    let infinite = adapter(Some(", \"r\": 2, \"lora_alpha\": 1e39"), &module).unwrap();
    let error = base(&[("layers.0.q.weight", &[4, 3])]).merged([infinite]).unwrap_err();
    assert!(error.to_string().contains("q.lora_B.weight\": expected a finite factor"), "{error}");
}

/// A scalar has no first dimension that a vocabulary could add rows to.
#[test]
fn a_difference_for_a_scalar() {
    let adapter = adapter(None, &[("lm_head.diff", &[2])]).unwrap().pad_vocab(true);
    let error = base(&[("lm_head.weight", &[])]).merged([adapter]).unwrap_err().to_string();
    assert!(error.contains("lm_head.diff\": expected a weight with dimensions"), "{error}");
}

#[test]
fn magnitudes_of_stacks_and_scaled_magnitudes_of_lycoris() {
    let directory = tempdir().unwrap();
    let tensors: [(&str, &[usize]); 3] =
        [("x.lora_a", &[2, 1, 3]), ("x.lora_b", &[2, 4, 1]), ("x.m", &[8])];
    write(&directory.path().join("adapters.safetensors"), &tensors);
    let settings = r#"{"fine_tune_type": "dora", "lora_parameters": {"rank": 1, "scale": 1.0}}"#;
    fs::write(directory.path().join("adapter_config.json"), settings).unwrap();
    let stack = Adapter::open(directory.path()).unwrap();
    let error = base(&[("x.weight", &[2, 4, 3])]).merged([stack]).unwrap_err().to_string();
    assert!(error.contains("x.m\": expected no magnitude of stacked experts"), "{error}");

    let tensors: [(&str, &[usize]); 3] =
        [("x.lora_down.weight", &[1, 3]), ("x.lora_up.weight", &[2, 1]), ("x.dora_scale", &[2, 1])];
    let lycoris = adapter(None, &tensors).unwrap();
    let merged = |scale| base(&[("x.weight", &[2, 3])]).merged([lycoris.clone().scale(scale)]);
    merged(1.0).unwrap();
    let error = merged(0.5).unwrap_err().to_string();
    assert!(
        error.contains("expected a scale of 1 with dora_scale, found a scale of 0.5"),
        "{error}"
    );
}

/// A checkpoint with a weight that has no floating-point numbers, or more digits than F32.
#[test]
fn dtypes_that_cannot_be_merged() {
    let (_directory, path) = place("model.safetensors");
    for dtype in [Dtype::F64, Dtype::I32] {
        let zeros = TensorBuf::from_vec(vec![4, 3], vec![0.0_f32; 12]).unwrap();
        let zeros = zeros.convert(dtype, &Default::default()).unwrap();
        save(&path, [("layers.0.q.weight", zeros)], &SaveOptions::new().durable(false)).unwrap();
        let adapter = adapter(Some(SETTINGS), &[(DOWN, &[2, 3]), (UP, &[4, 2])]).unwrap();
        let error = Checkpoint::open(&path).unwrap().merged([adapter]).unwrap_err().to_string();
        assert!(error.contains(&format!("found {dtype} of")), "{error}");
    }
}

/// Tensors that an adapter has whole, next to their scales.
#[test]
fn codes_of_an_adapter_are_no_numbers() {
    let codes = TensorView::new(Dtype::F8_E4M3, &[1, 2], &[0x38, 0x40]).unwrap();
    let half = TensorBuf::from_vec(vec![1], vec![0.5_f32]).unwrap();
    let name = "base_model.model.head.weight";
    let codes = (name.to_owned(), TensorBuf::from_view(&codes).unwrap());
    let (directory, path) = place("adapter_model.safetensors");
    save(path, [codes, (format!("{name}_scale"), half)], &SaveOptions::new()).unwrap();
    let settings = r#"{"peft_type": "LORA", "r": 1, "modules_to_save": ["head"]}"#;
    fs::write(directory.path().join("adapter_config.json"), settings).unwrap();
    let adapter = Adapter::open(directory.path()).unwrap();
    let error = base(&[("head.weight", &[1, 2])]).merged([adapter]).unwrap_err().to_string();
    assert!(error.contains("fp8") && error.contains(name), "{error}");
}
