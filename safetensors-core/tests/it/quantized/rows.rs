//! Small checkpoints as public tools write them: each is read right, or refused by its name, or plain.

use safetensors_testing::quantized::{Case, ONE, TWO, floats, raw};

use super::{checkpoint, with_metadata};
use Dtype::{BF16, BOOL, F8_E4M3, F8_E8M0, F16, F32, I8, I16, I32, I64, U8};

use crate::support::*;

/// Returns the names of a file of numbers, and the values of a tensor.
fn numbers(checkpoint: Checkpoint, name: &str) -> Result<(Vec<String>, Vec<f32>), String> {
    let checkpoint = checkpoint.dequantized().map_err(|error| error.to_string())?;
    let mut names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name().to_owned()).collect();
    names.sort_unstable();
    let tensor = checkpoint.tensor(name).map_err(|error| error.to_string())?;
    let read = tensor.read_with(&LoadOptions::new().all_as(F32));
    let read = read.map_err(|error| error.to_string())?;
    Ok((names, read.into_vec().unwrap()))
}

#[test]
fn every_case_is_read_right_or_refused_by_name() {
    for case in Case::all() {
        let directory = tempdir().unwrap();
        let checkpoint = case.write(directory.path()).open();
        let listed = checkpoint.quantized_weights().map(|_| ()).map_err(|error| error.to_string());
        let found = numbers(checkpoint, case.weight);
        case.check("dequantized", found.as_ref().map(|(_, values)| &**values).map_err(|it| &**it));
        assert_eq!(listed, found.as_ref().map(|_| ()).map_err(Clone::clone), "{}", case.about);
        if let Ok((names, _)) = found {
            assert_eq!(names, case.names, "{}", case.about);
        }
    }
}

#[test]
fn a_plain_tensor_is_plain_whatever_it_is_called() {
    let names = "attn.W_q net.num_blocks rvq.codebooks a.trellis a._data a.bitmask a_blocks \
        a.blocks a.qweight a.weight_packed a._weight_qdata a.B a.meta a.codes a.theta \
        a.svdquant_lora_a a.embedding_quantized w13_weight a.weight_scale a.scale";
    let all = |dtype: Dtype| -> Vec<_> {
        names.split(' ').map(|name| (name, raw(dtype, &[2, 2], &[1]))).collect()
    };
    for dtype in [F32, F16, BF16, I64, BOOL] {
        for method in ["", "fp8", "gptq", "mlx", "bitnet", "compressed-tensors", "modelopt"] {
            let config = format!("{{\"quant_method\": \"{method}\", \"bits\": 4}}");
            let config = (!method.is_empty()).then_some(&*config);
            let (_directory, checkpoint) = checkpoint(config, &all(dtype));
            let weights = checkpoint.quantized_weights().map_err(|error| error.to_string());
            assert_eq!(weights, Ok(vec![]), "{dtype} {method}");
        }
    }
    // Of dtypes that codes have, without companions.
    for (method, name, dtype, shape) in [
        ("", "attn.W_q", U8, &[2, 2][..]),
        ("", "a.bitmask", U8, &[2, 2]),
        ("", "a.trellis", I16, &[2, 2]),
        ("", "a._data", I8, &[2, 2]),
        ("", "a_blocks", U8, &[2, 2, 16]),
        ("", "a.weight", F8_E4M3, &[2, 2]),
        ("", "a.weight", I8, &[2, 2]),
        ("", "a.weight_scale", F8_E8M0, &[2, 2]),
        ("", "tokens.offsets", I32, &[2, 2]),
        ("fp8", "spiece_model", U8, &[100]),
        ("fp8", "position_ids", I32, &[1, 77]),
        ("gptq", "h.0.attn.bias", U8, &[1, 1, 8, 8]),
        ("bitnet", "spiece_model", U8, &[100]),
        ("bitnet", "position_ids", I32, &[1, 77]),
    ] {
        let config = format!("{{\"quant_method\": \"{method}\"}}");
        let config = (!method.is_empty()).then_some(&*config);
        let (_directory, checkpoint) = checkpoint(config, &[(name, raw(dtype, shape, &[1]))]);
        let weights = checkpoint.quantized_weights().map_err(|error| error.to_string());
        assert_eq!(weights, Ok(vec![]), "{name} {dtype} {method}");
    }
}

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
        fs::rename(directory.path().join("model.safetensors"), &shard).unwrap();
        assert_eq!(Checkpoint::open(&shard).unwrap().quantized_weights().unwrap().len(), 1);
    }
}

/// Its scales may be in another shard.
#[test]
fn one_shard_alone_has_no_plain_weight_of_codes() {
    let (directory, plain) = checkpoint(None, &[("a.weight", raw(F8_E4M3, &[2, 2], &[ONE]))]);
    assert_eq!(plain.quantized_weights().unwrap(), []);
    let shard = directory.path().join("model-00001-of-00002.safetensors");
    fs::rename(directory.path().join("model.safetensors"), &shard).unwrap();
    let read = |options: &LoadOptions| {
        Checkpoint::open(&shard).unwrap().tensor("a.weight").unwrap().read_with(options)
    };
    let error = read(&LoadOptions::new().all_as(F32)).unwrap_err().to_string();
    assert!(error.contains("a.weight") && error.contains("open the directory"), "{error}");
    assert_eq!(read(&LoadOptions::new()).unwrap().bytes(), [ONE; 4]);
}

/// Plain data has offsets, too.
#[test]
fn integers_next_to_integers_are_plain() {
    let tensors = [
        ("bag", raw(I32, &[2, 2], &[1])),
        ("bag_offsets", raw(I32, &[2], &[1])),
        ("a.weight", raw(I32, &[2, 2], &[1])),
        ("a.perm", raw(I32, &[2], &[1])),
    ];
    let (_directory, checkpoint) = checkpoint(None, &tensors);
    assert_eq!(checkpoint.quantized_weights().unwrap(), []);
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

/// msmodelslim describes its weights in a separate file.
#[test]
fn the_settings_of_msmodelslim_name_it() {
    let tensors = [("a.weight", raw(I8, &[2, 2], &[1]))];
    let (directory, checkpoint) = checkpoint(None, &tensors);
    assert_eq!(checkpoint.quantized_weights().unwrap(), []);
    let description = directory.path().join("quant_model_description.json");
    fs::write(description, r#"{"a.weight": "W8A8"}"#).unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let error = checkpoint.quantized_weights().unwrap_err().to_string();
    assert!(error.contains("msmodelslim") && error.contains("a.weight"), "{error}");
}
