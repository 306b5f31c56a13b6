//! Marks in the files, and settings beside them.

use safetensors_core::Checkpoint;
use safetensors_core::Dtype::{F8_E4M3, I8, U8};

use super::parts::{ONE, TWO, floats, numbers, raw};
use super::{checkpoint, with_metadata};

/// Marks are meant for modules with or without the prefix of a diffusion model.
#[test]
fn marks_of_comfyui_have_a_prefix_or_none() {
    let one = || floats(&[], &[0.5]);
    let tensors = |module: &str| {
        vec![
            (format!("{module}.weight"), raw(U8, &[16, 8], &[0x24])),
            (format!("{module}.weight_scale"), raw(F8_E4M3, &[128, 4], &[ONE])),
            (format!("{module}.weight_scale_2"), one()),
        ]
    };
    for (stored, marked, is_right) in [
        ("a.b", "a.b", true),
        ("model.diffusion_model.a.b", "a.b", true),
        ("a.b", "model.diffusion_model.a.b", true),
        ("net.a.b", "a.b", true),
        ("a.b", "a.c", false),
    ] {
        let tensors = tensors(stored);
        let tensors: Vec<_> = tensors.iter().map(|(name, buf)| (&**name, buf.clone())).collect();
        let layers = format!("{{\"layers\": {{\"{marked}\": {{\"format\": \"nvfp4\"}}}}}}");
        let (_directory, checkpoint) =
            with_metadata(None, &tensors, &[("_quantization_metadata", &layers)]);
        let found = numbers(checkpoint, &format!("{stored}.weight"));
        match is_right {
            // The high half is first: 2 is 1, and 4 is 2.
            true => {
                let (names, values) = found.unwrap();
                assert_eq!(names, [format!("{stored}.weight")]);
                assert_eq!(values[..2], [0.5, 1.0]);
            }
            false => assert!(found.unwrap_err().contains("ComfyUI"), "{stored} {marked}"),
        }
    }
}

/// torchao's metadata lists the tensors, of all shards.
#[test]
fn a_name_that_torchao_lists_is_there_unless_the_file_is_a_shard() {
    let tensors = [
        ("a._weight_qdata", raw(I8, &[1, 2], &[10, 20])),
        ("a._weight_scale", floats(&[1, 1], &[0.5])),
    ];
    for (listed, is_right) in [("[\"a.weight\"]", true), ("[\"a.weight\", \"b.weight\"]", false)] {
        let (directory, checkpoint) = with_metadata(None, &tensors, &[("tensor_names", listed)]);
        assert_eq!(checkpoint.quantized_weights().is_ok(), is_right, "{listed}");
        let shard = directory.path().join("model-00001-of-00002.safetensors");
        std::fs::rename(directory.path().join("model.safetensors"), &shard).unwrap();
        assert_eq!(Checkpoint::open(&shard).unwrap().quantized_weights().unwrap().len(), 1);
    }
}

/// Python writes words that JSON does not have.
#[test]
fn settings_may_have_numbers_that_are_not_finite() {
    let tensors = [
        ("a.weight", raw(F8_E4M3, &[1, 2], &[ONE, TWO])),
        ("a.weight_scale", floats(&[1], &[0.5])),
    ];
    let config = r#"{"quant_method": "fp8", "limit": [0.0, Infinity, -Infinity, NaN]}"#;
    let (_directory, checkpoint) = checkpoint(Some(config), &tensors);
    assert_eq!(numbers(checkpoint, "a.weight").unwrap().1, [0.5, 1.0]);
}

/// msmodelslim describes its weights in a file of its own.
#[test]
fn the_settings_of_msmodelslim_name_it() {
    let tensors = [("a.weight", raw(I8, &[2, 2], &[1]))];
    let (directory, checkpoint) = checkpoint(None, &tensors);
    assert_eq!(checkpoint.quantized_weights().unwrap(), []);
    let description = directory.path().join("quant_model_description.json");
    std::fs::write(description, r#"{"a.weight": "W8A8"}"#).unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let error = checkpoint.quantized_weights().unwrap_err().to_string();
    assert!(error.contains("msmodelslim") && error.contains("a.weight"), "{error}");
}
