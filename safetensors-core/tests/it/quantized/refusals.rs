//! Schemes that are known and not read: by the names and dtypes of their tensors, and by the
//! settings. Each is an error that names the scheme; codes are never returned as numbers.

use safetensors_core::error::QuantizationProblem;

use super::checkpoint;
use crate::support::*;

type Stored = (&'static str, Dtype, &'static [usize]);

fn buf(name: &str, dtype: Dtype, shape: &[usize]) -> TensorBuf {
    let len = shape.iter().product::<usize>() * dtype.bits() as usize / 8;
    let mut bytes = vec![0; len];
    let json: &[u8] = match name {
        "l.comfy_quant" => br#"{"format": "awq_w4a16"}"#,
        "r.comfy_quant" => br#"{"format": "int8_tensorwise", "convrot": true}"#,
        _ => &[],
    };
    bytes[..json.len()].copy_from_slice(json);
    bytes[json.len()..].fill(if json.is_empty() { 1 } else { b' ' });
    TensorBuf::from_view(&TensorView::new(dtype, shape, &bytes).unwrap()).unwrap()
}

/// The error of opening these tensors as numbers.
fn refused(config: Option<&str>, tensors: &[Stored]) -> (QuantizationProblem, String) {
    let tensors: Vec<_> =
        tensors.iter().map(|(name, dtype, shape)| (*name, buf(name, *dtype, shape))).collect();
    let (_directory, checkpoint) = checkpoint(config, &tensors);
    let error = checkpoint.dequantized().expect_err(&format!("{config:?} {tensors:?}"));
    let text = error.to_string();
    match error.into_kind() {
        ErrorKind::Quantization { problem } => (problem, text),
        other => panic!("{other}"),
    }
}

/// The scheme, its settings, and the tensors that have its name.
type Case = (&'static str, Option<&'static str>, &'static [Stored]);

#[test]
fn schemes_that_are_not_read_are_named() {
    use Dtype::{BF16, F8_E4M3, F16, F32, I8, I16, I32, I64, U8};
    const GPTQ: &[Stored] =
        &[("l.qweight", I32, &[4, 8]), ("l.scales", F16, &[4, 8]), ("l.qzeros", I32, &[4, 1])];
    const AWQ: &[Stored] =
        &[("l.qweight", I32, &[32, 1]), ("l.scales", F16, &[4, 8]), ("l.qzeros", I32, &[4, 1])];
    let cases: &[Case] = &[
        ("EXL3", None, &[("l.trellis", I16, &[4, 8]), ("l.suh", F16, &[8])]),
        ("EXL2", None, &[("l.q_weight", I32, &[4, 8]), ("l.q_scale_max", F16, &[4])]),
        ("AQLM", None, &[("l.codes", I8, &[4, 8, 1]), ("l.codebooks", F16, &[1, 256, 1, 8])]),
        ("VPTQ", None, &[("l.indices", I32, &[4, 8]), ("l.centroids.weight", F16, &[1, 8])]),
        ("HIGGS", None, &[("l.weight", I16, &[4, 8]), ("l.tables2", F16, &[4, 8])]),
        (
            "FP-Quant",
            None,
            &[("l.qweight", U8, &[4, 8]), ("l.forward_hadamard_matrix", F16, &[8, 8])],
        ),
        ("SpQR", None, &[("l.dense_weights", I64, &[4, 8]), ("l.row_offsets", I32, &[9])]),
        ("QQQ", None, &[("l.B", I32, &[4, 8]), ("l.s_channel", F32, &[1, 8])]),
        ("Marlin", None, &[("l.B", I32, &[4, 8]), ("l.s", F16, &[4, 8])]),
        ("Marlin 2:4", None, &[("l.B_24", I32, &[4, 8]), ("l.s", F16, &[4, 8])]),
        ("ParoQuant", None, &[("l.theta", F16, &[4, 8]), ("l.pairs", I16, &[4, 8])]),
        ("EETQ", None, &[("l.weight", I8, &[4, 8]), ("l.weight_scales", F16, &[8])]),
        ("SVDQuant", None, &[("l.weight", U8, &[4, 8]), ("l.svdquant_lora_a", BF16, &[4, 8])]),
        ("SVDQuant", None, &[("l.qweight", I8, &[4, 8]), ("l.wscales", BF16, &[1, 4])]),
        ("SVDQuant", None, &[("l.qweight", I32, &[4, 8]), ("l.wscales", BF16, &[1, 4])]),
        (
            "msmodelslim",
            None,
            &[
                ("l.weight", I8, &[4, 8]),
                ("l.weight_scale", F32, &[4, 1]),
                ("l.weight_offset", F32, &[4, 1]),
            ],
        ),
        (
            "compressed-tensors' sparse-bitmask",
            None,
            &[("l.compressed", F16, &[8]), ("l.bitmask", U8, &[4, 1])],
        ),
        (
            "compressed-tensors' marlin-24",
            None,
            &[("l.scale_packed", F16, &[4, 8]), ("l.meta", I16, &[4, 8])],
        ),
        (
            "compressed-tensors",
            Some(r#"{"quant_method": "compressed-tensors", "transform_config": {"a": {}}}"#),
            &[("l.weight", F8_E4M3, &[4, 8]), ("l.weight_scale", F32, &[4, 1])],
        ),
        ("GPTQ", Some(r#"{"quant_method": "gptq", "checkpoint_format": "gptq_p"}"#), GPTQ),
        ("GPTQ", Some(r#"{"quant_method": "gptq", "checkpoint_format": "marlin"}"#), GPTQ),
        ("AWQ", Some(r#"{"quant_method": "awq", "version": "gemv"}"#), AWQ),
        ("AWQ", Some(r#"{"quant_method": "awq", "version": "llm-awq"}"#), AWQ),
        (
            "bitsandbytes",
            None,
            &[("l.weight", I8, &[4, 8]), ("l.SCB", F32, &[4]), ("l.weight_format", U8, &[])],
        ),
        (
            "ComfyUI",
            None,
            &[
                ("l.weight", I8, &[4, 8]),
                ("l.weight_scale", F32, &[]),
                ("l.comfy_quant", U8, &[40]),
            ],
        ),
        (
            "ComfyUI",
            None,
            &[
                ("r.weight", I8, &[4, 8]),
                ("r.weight_scale", F32, &[]),
                ("r.comfy_quant", U8, &[64]),
            ],
        ),
        (
            "MLX",
            Some(r#"{"quant_method": "mlx", "bits": 4, "mode": "another"}"#),
            &[("l.weight", Dtype::U32, &[4, 4]), ("l.scales", U8, &[4, 1])],
        ),
        (
            "Quark",
            Some(r#"{"quant_method": "quark"}"#),
            &[("l.weight", U8, &[4, 24]), ("l.weight_scale", U8, &[4, 1])],
        ),
        (
            "quark",
            Some(r#"{"quant_method": "quark"}"#),
            &[("l.weight", I32, &[32, 1]), ("l.weight_scale", F32, &[1, 8])],
        ),
        (
            "Gemma",
            Some(r#"{"quant_method": "gemma", "num_bits": 3}"#),
            &[("l.weight", U8, &[4, 6]), ("l.weight_scale", F32, &[4, 1])],
        ),
        // Words without any settings.
        (
            "a scheme that is not known",
            None,
            &[("l.weight", I32, &[4, 8]), ("l.scale", F16, &[4, 1])],
        ),
        ("a scheme that is not known", None, &[("l.embedding_quantized", U8, &[4, 8])]),
    ];
    for (scheme, config, tensors) in cases {
        let (problem, text) = refused(*config, tensors);
        let is_right = matches!(
            &problem, QuantizationProblem::Unsupported { scheme: found, .. } if found == scheme
        );
        assert!(is_right, "{scheme}: {text}");
        assert!(text.contains("model.safetensors"), "{text}");
    }
}

/// Every `quant_method` that transformers knows is read or refused by its name, if there is anything
/// that may be codes.
#[test]
fn every_method_of_transformers_is_read_or_refused() {
    let known = "bitsandbytes gptq awq quanto hqq compressed-tensors fbgemm_fp8 torchao fp8 \
        quark auto-round mxfp4 mxfp8 metal gemma mlx modelopt";
    for method in known.split(' ') {
        let config = format!("{{\"quant_method\": \"{method}\"}}");
        let (_directory, checkpoint) =
            checkpoint(Some(&config), &[("a", buf("a", Dtype::F32, &[1]))]);
        assert_eq!(checkpoint.quantized_weights().unwrap(), [], "{method}");
    }
    let named = "aqlm vptq eetq higgs gguf bitnet spqr fp_quant nvfp4 fouroversix sinq";
    for method in named.split(' ') {
        let config = format!("{{\"quant_method\": \"{method}\"}}");
        let plain = [("a.weight", buf("a.weight", Dtype::F32, &[4, 8]))];
        let (_directory, plain) = checkpoint(Some(&config), &plain);
        assert_eq!(plain.quantized_weights().unwrap(), [], "{method}");
        let (problem, text) = refused(Some(&config), &[("a.weight", Dtype::U8, &[4, 8])]);
        let is_named = matches!(
            &problem, QuantizationProblem::Unsupported { scheme, .. } if scheme == method
        );
        assert!(is_named, "{text}");
    }
}

/// One scale for codes of four bits is BitNet's. Its codes differ from ModelOpt's.
#[test]
fn codes_with_one_scale_are_not_read_as_codes_with_groups() {
    let tensors = [("l.weight", Dtype::U8, &[4, 8][..]), ("l.weight_scale", Dtype::BF16, &[1])];
    let (problem, text) = refused(None, &tensors);
    assert!(matches!(problem, QuantizationProblem::Mismatch { .. }), "{text}");
    assert!(text.contains("l.weight_scale") && text.contains("[8, groups]"), "{text}");
}
