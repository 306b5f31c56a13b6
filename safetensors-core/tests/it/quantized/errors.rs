//! Bad quantised weights are errors that name the tensor, the expected and the found value, before
//! anything is read.

use std::io;

use safetensors_core::checkpoint::store::{FileKind, MemoryFile, Store, StoreEntry};
use safetensors_core::error::QuantizationProblem;

use Dtype::{C64, F8_E4M3, F16, F32, I8, I32, U8, U32};
use safetensors_testing::quantized::raw;

use super::checkpoint;
use crate::support::*;

/// The problem of opening these tensors as numbers, and the whole message.
fn problem(
    config: Option<&str>,
    tensors: &[(&str, Dtype, &[usize])],
) -> (QuantizationProblem, String) {
    let tensors: Vec<_> =
        tensors.iter().map(|(name, dtype, shape)| (*name, raw(*dtype, shape, &[0]))).collect();
    let (_directory, checkpoint) = checkpoint(config, &tensors);
    let error = checkpoint.dequantized().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("model.safetensors") || text.contains("config.json"), "{text}");
    match error.into_kind() {
        ErrorKind::Quantization { problem } => (problem, text),
        other => panic!("{other}"),
    }
}

const GPTQ: Option<&str> = Some(r#"{"quant_method": "gptq", "bits": 4, "group_size": 8}"#);

#[test]
fn a_tensor_that_is_missing_is_named() {
    for (config, tensors, missing) in [
        (GPTQ, vec![("a.qweight", I32, &[4, 8][..])], "a.scales"),
        (GPTQ, vec![("a.qweight", I32, &[4, 8][..]), ("a.scales", F16, &[4, 8])], "a.qzeros"),
        (
            Some(r#"{"quant_method": "fp8"}"#),
            vec![("a.weight", F8_E4M3, &[4, 8][..])],
            "a.weight_scale",
        ),
        (None, vec![("a.weight_packed", U8, &[4, 8][..])], "a.weight_scale"),
        (Some(r#"{"quant_method": "mxfp4"}"#), vec![("a_blocks", U8, &[4, 1, 16][..])], "a_scales"),
        (None, vec![("a.W_q", U8, &[4, 8][..]), ("a.zero", F16, &[4, 1])], "a.scale"),
    ] {
        let (problem, text) = problem(config, &tensors);
        let is_right = matches!(
            &problem, QuantizationProblem::Missing { expected, .. } if expected == missing
        );
        assert!(is_right && text.contains("tensor \"a"), "{text}");
    }
}

#[test]
fn shapes_and_settings_that_contradict_each_other_are_refused() {
    let gptq = |scales: &'static [usize], zeros: &'static [usize]| {
        vec![("a.qweight", I32, &[4, 8][..]), ("a.scales", F16, scales), ("a.qzeros", I32, zeros)]
    };
    let three_bits = Some(r#"{"quant_method": "gptq", "bits": 3, "group_size": 8}"#);
    let groups_of_64 = Some(r#"{"quant_method": "gptq", "bits": 4, "group_size": 64}"#);
    let awq = Some(r#"{"quant_method": "awq", "bits": 4, "group_size": 64}"#);
    let mlx = Some(r#"{"quant_method": "mlx", "bits": 4, "group_size": 64}"#);
    let quanto = Some(r#"{"quant_method": "quanto", "weights": "int2"}"#);
    let gemma = Some(r#"{"quant_method": "gemma", "num_bits": 8}"#);
    for (config, tensors) in [
        // The settings say another number of bits.
        (three_bits, gptq(&[4, 8], &[4, 1])),
        // The settings say another size of groups.
        (groups_of_64, gptq(&[4, 8], &[4, 1])),
        (
            awq,
            vec![
                ("a.qweight", I32, &[32, 1][..]),
                ("a.scales", F16, &[4, 8]),
                ("a.qzeros", I32, &[4, 1]),
            ],
        ),
        (
            mlx,
            vec![
                ("a.weight", U32, &[4, 8][..]),
                ("a.scales", F16, &[4, 2]),
                ("a.biases", F16, &[4, 2]),
            ],
        ),
        // The settings say other bits.
        (
            quanto,
            vec![
                ("a.weight._data._data", U8, &[4, 50][..]),
                ("a.weight._scale", F32, &[8, 1]),
                ("a.weight._shift", F32, &[8, 1]),
            ],
        ),
        (gemma, vec![("a.weight", U8, &[4, 8][..]), ("a.weight_scale", F32, &[4, 1])]),
        // Zero points that are fewer than scales, and packed for other bits.
        (
            None,
            vec![
                ("a.weight", I8, &[4, 8][..]),
                ("a.weight_scale", F32, &[4, 1]),
                ("a.weight_zero_point", I8, &[3, 1]),
            ],
        ),
        // Zero points of another shape.
        (GPTQ, gptq(&[4, 8], &[3, 1])),
        // Scales that fit neither GPTQ nor AWQ.
        (GPTQ, gptq(&[4, 9], &[4, 1])),
        // Groups that do not divide the columns.
        (None, vec![("a.weight", F8_E4M3, &[4, 9][..]), ("a.weight_scale", F32, &[4, 2])]),
        (None, vec![("a.weight", F8_E4M3, &[4, 8][..]), ("a.weight_scale", C64, &[4, 1])]),
        (
            None,
            vec![
                ("a.weight_packed", U8, &[4, 16][..]),
                ("a.weight_scale", F8_E4M3, &[4, 1]),
                ("a.weight_global_scale", F32, &[1]),
            ],
        ),
    ] {
        let (problem, text) = problem(config, &tensors);
        assert!(matches!(problem, QuantizationProblem::Mismatch { .. }), "{text}");
        assert!(text.contains("found"), "{text}");
    }
}

#[test]
fn settings_with_another_size_of_groups_are_refused() {
    let tensors = [
        ("a.weight_packed", raw(I32, &[4, 8], &[0])),
        ("a.weight_scale", raw(F16, &[4, 2], &[0])),
        ("a.weight_shape", TensorBuf::from_vec(vec![2], vec![4_i64, 64]).unwrap()),
    ];
    for (size, is_right) in [(32, true), (16, false), (64, false)] {
        let config = format!(
            "{{\"quant_method\": \"compressed-tensors\", \"config_groups\": {{\"a\": \
             {{\"weights\": {{\"num_bits\": 4, \"group_size\": {size}}}}}}}}}"
        );
        let (_directory, checkpoint) = checkpoint(Some(&config), &tensors);
        let found = checkpoint.quantized_weights().map_err(|error| error.to_string());
        assert_eq!(found.is_ok(), is_right, "{found:?}");
        if let Err(text) = found {
            assert!(text.contains("a.weight_scale") && text.contains("found 2 groups"), "{text}");
        }
    }
}

/// A group of layers without a size of groups has one scale for each row.
#[test]
fn settings_may_mix_entire_rows_and_groups() {
    let config = r#"{"quant_method": "compressed-tensors", "config_groups": {
        "a": {"weights": {"num_bits": 4, "strategy": "channel", "group_size": null}},
        "b": {"weights": {"num_bits": 4, "strategy": "group", "group_size": 32}},
        "c": {"weights": null}}}"#;
    for (groups, is_right) in [(1, true), (2, true), (4, false)] {
        let tensors = [
            ("a.weight_packed", raw(I32, &[4, 8], &[0])),
            ("a.weight_scale", raw(F16, &[4, groups], &[0])),
            ("a.weight_shape", TensorBuf::from_vec(vec![2], vec![4_i64, 64]).unwrap()),
        ];
        let (_directory, checkpoint) = checkpoint(Some(config), &tensors);
        let found = checkpoint.quantized_weights().map_err(|error| error.to_string());
        assert_eq!(found.is_ok(), is_right, "{found:?}");
    }
}

/// Groups of Quanto may be whole rows, or several make one: the codes alone do not show it.
#[test]
fn the_shape_of_a_weight_is_not_guessed() {
    let codes = ("a.q_proj.weight._data._data", U8, &[4, 128][..]);
    let scales = ("a.q_proj.weight._scale", F32, &[8, 1][..]);
    let shifts = ("a.q_proj.weight._shift", F32, &[8, 1][..]);
    let (unknown, text) = problem(None, &[codes, scales, shifts]);
    assert!(matches!(unknown, QuantizationProblem::Config { .. }), "{text}");
    assert!(text.contains("a.q_proj.weight") && text.contains("shape"), "{text}");
    let bias = ("a.q_proj.bias", F32, &[3][..]);
    let (wrong, text) = problem(None, &[codes, scales, shifts, bias]);
    assert!(matches!(wrong, QuantizationProblem::Mismatch { .. }), "{text}");
    assert!(text.contains("3 rows") && text.contains("8 groups of 128"), "{text}");
}

/// The order of patterns in a JSON object is no order, so only one may be found first.
#[test]
fn the_first_matching_pattern_determines_the_bits() {
    let tensors = [
        ("layers.0.mlp.up.weight", U8, &[4, 8][..]),
        ("layers.0.mlp.up.weight_scale", F32, &[4, 1]),
    ];
    let config = |patterns: &str| {
        format!(
            "{{\"quant_method\": \"gemma\", \"num_bits\": 4, \"module_quant_configs\": {patterns}}}"
        )
    };
    for (patterns, columns) in [
        (r#"{"other": {"num_bits": 2}}"#, 16),
        (r#"{"mlp": {"num_bits": 4}, "layers\\.\\d+\\.": {"num_bits": 2}}"#, 32),
        (r#"{"layers": {"num_bits": 4}, "mlp": {"num_bits": 2}}"#, 16),
        (r#"{"mlp": {}, "mlp.": {"num_bits": 2}, "^layers": {"num_bits": 2}}"#, 32),
    ] {
        let bufs = tensors.map(|(name, dtype, shape)| (name, raw(dtype, shape, &[0])));
        let (_directory, checkpoint) = checkpoint(Some(&config(patterns)), &bufs);
        let weights = checkpoint.quantized_weights().unwrap();
        assert_eq!(weights[0].shape, [4, columns], "{patterns}");
    }
    for patterns in [
        r#"{"layers": {"num_bits": 4}, "layers\\.0": {"num_bits": 2}}"#,
        r#"{"(?<!a)mlp": {"num_bits": 2}}"#,
    ] {
        let (problem, text) = problem(Some(&config(patterns)), &tensors);
        assert!(matches!(problem, QuantizationProblem::Config { .. }), "{text}");
        assert!(text.contains("layers.0.mlp.up.weight"), "{text}");
    }
    // A few bytes of text may be megabytes once they are compiled.
    let many: Vec<_> = (0..300).map(|i| format!("\"x{i}\": {{}}")).collect();
    for (patterns, expected) in [
        ("\"x[ab]{900000}\": {}", "regular expressions, at pattern \"x[ab]{900000}\""),
        (&*many.join(", "), "over the limit of 200 regular expressions, at pattern"),
    ] {
        let (_, text) = problem(Some(&config(&format!("{{{patterns}}}"))), &tensors);
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("config.json") && text.contains("module_quant_configs"), "{text}");
    }
}

/// The two versions of GPTQ have the same tensors and other numbers.
#[test]
fn gptq_is_not_guessed_without_its_settings() {
    let tensors =
        [("a.qweight", I32, &[4, 8][..]), ("a.scales", F16, &[4, 8]), ("a.qzeros", I32, &[4, 1])];
    let (problem, text) = problem(None, &tensors);
    assert!(matches!(problem, QuantizationProblem::Config { .. }), "{text}");
    assert!(text.contains("a.qweight") && text.contains("config.json"), "{text}");
}

/// A store may refuse to look for settings, as one with signed addresses does. An error of another
/// kind is reported: the settings may be there.
#[test]
fn settings_that_a_store_refuses_are_absent() {
    struct Refusing(MemoryStore<Vec<u8>>, io::ErrorKind);
    impl Store for Refusing {
        type File = MemoryFile<Vec<u8>>;

        fn open(&self, path: &Path) -> Result<Self::File> {
            self.0.open(path)
        }

        fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
            match path.extension() {
                Some(end) if end == "json" => Err(ErrorKind::Io(self.1.into()).into()),
                _ => self.0.kind(path),
            }
        }

        fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
            self.0.list(directory)
        }
    }
    for (kind, is_absent) in
        [(io::ErrorKind::PermissionDenied, true), (io::ErrorKind::TimedOut, false)]
    {
        let weight = raw(F8_E4M3, &[2, 2], &[0]);
        let scale = TensorBuf::from_vec(vec![1], vec![0.5_f32]).unwrap();
        let tensors = [("a.weight", &weight), ("a.weight_scale", &scale)];
        let file = serialize(tensors, &SaveOptions::new()).unwrap();
        let store = MemoryStore::from_iter([("m/model.safetensors", file)]);
        let path = "m/model.safetensors";
        let checkpoint =
            Checkpoint::open_in(Refusing(store, kind), path, &Limits::default()).unwrap();
        assert_eq!(checkpoint.quantized_weights().is_ok(), is_absent);
    }
}

#[test]
fn a_config_that_is_no_json_is_named() {
    let (problem, text) = problem(Some("{"), &[("a", U8, &[1])]);
    assert!(matches!(problem, QuantizationProblem::Config { .. }), "{text}");
    assert!(text.contains("config.json"), "{text}");
}

#[test]
fn a_group_that_does_not_exist_is_an_error_when_it_is_read() {
    let index = TensorBuf::from_vec(vec![8], vec![0_i32, 1, 2, -1, 0, 0, 0, 0]).unwrap();
    let tensors = [
        ("a.qweight", raw(I32, &[1, 8], &[0])),
        ("a.scales", raw(F16, &[2, 8], &[0])),
        ("a.qzeros", raw(I32, &[2, 1], &[0])),
        ("a.g_idx", index),
    ];
    let groups_of_four = Some(r#"{"quant_method": "gptq", "bits": 4, "group_size": 4}"#);
    let (_directory, checkpoint) = checkpoint(groups_of_four, &tensors);
    let checkpoint = checkpoint.dequantized().unwrap();
    let error = checkpoint.tensor("a.weight").unwrap().read().unwrap_err().to_string();
    assert!(error.contains("a.g_idx") && error.contains("found 2"), "{error}");
}
