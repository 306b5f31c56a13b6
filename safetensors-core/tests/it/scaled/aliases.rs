//! Scales of weights that are saved once for several names.

use safetensors_core::convert::ScaledWeights;
use safetensors_core::slice::TensorPart;
use safetensors_core::{
    Checkpoint, Dtype, ErrorKind, LoadOptions, SaveOptions, TensorView, serialize,
};

use super::{dequantize, read_part};

/// The codes of 1 and 2.
const CODES: [u8; 2] = [0x38, 0x40];

/// The weight `m`, for which the metadata records these aliases, and F32 scales.
fn checkpoint(aliases: &[&str], scales: &[(&str, f32)]) -> Checkpoint<Vec<u8>> {
    let weight = TensorView::new(Dtype::F8_E4M3, &[1, 2], &CODES).unwrap();
    let values: Vec<_> = scales.iter().map(|(name, value)| (*name, value.to_le_bytes())).collect();
    let scale = |value| TensorView::new(Dtype::F32, &[1], value).unwrap();
    let scales = values.iter().map(|(name, value)| (*name, scale(value)));
    let metadata = aliases.iter().map(|alias| (*alias, "m"));
    let tensors = scales.chain([("m", weight)]);
    let bytes = serialize(tensors, &SaveOptions::new().metadata(metadata)).unwrap();
    Checkpoint::from_source(bytes, "bytes in memory").unwrap()
}

fn scales_of<'a>(checkpoint: &'a Checkpoint<Vec<u8>>, name: &str) -> Option<&'a str> {
    checkpoint.tensor(name).unwrap().scales().map(|scales| scales.name())
}

/// What a checkpoint gives for the weight under each of these names.
fn read(checkpoint: &Checkpoint<Vec<u8>>, name: &str) -> Vec<f32> {
    let whole = checkpoint.read_named([name], &dequantize()).unwrap().remove(0);
    let part = read_part(checkpoint, name, TensorPart::Whole, &dequantize()).unwrap();
    assert_eq!(whole.bytes(), part.bytes());
    whole.into_vec().unwrap()
}

#[test]
fn scales_beside_an_alias_belong_to_the_weight() {
    for alias in ["a", "z"] {
        for suffix in ["_scale_inv", "_scale"] {
            let scales = format!("{alias}{suffix}");
            let checkpoint = checkpoint(&["a", "q", "z"], &[(&scales, 0.5)]);
            for name in ["m", "a", "q", "z"] {
                assert_eq!(scales_of(&checkpoint, name), Some(&*scales));
                assert_eq!(read(&checkpoint, name), [0.5, 1.0]);
                let refused = LoadOptions::new().floats_as(Dtype::F32);
                let error = checkpoint.read_named([name], &refused).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::NeedsScales { .. }), "{error}");
            }
            let applied = checkpoint.applied_scales(&dequantize());
            assert_eq!(applied.into_iter().collect::<Vec<_>>(), [scales]);
        }
    }
    let without = checkpoint(&["a"], &[("b_scale", 0.5), ("scale", 0.5)]);
    assert_eq!(scales_of(&without, "a"), None);
}

#[test]
fn one_tensor_of_scales_may_have_several_names_too() {
    let weight = TensorView::new(Dtype::F8_E4M3, &[1, 2], &CODES).unwrap();
    let half = 0.5_f32.to_le_bytes();
    let scales = TensorView::new(Dtype::F32, &[1], &half).unwrap();
    let tensors = [("b", weight), ("a_scale_inv", scales)];
    let tied = SaveOptions::new().metadata([("a", "b"), ("b_scale_inv", "a_scale_inv")]);
    let bytes = serialize(tensors, &tied).unwrap();
    let checkpoint = Checkpoint::from_source(bytes, "bytes in memory").unwrap();
    for name in ["a", "b"] {
        assert_eq!(scales_of(&checkpoint, name), Some("a_scale_inv"));
        assert_eq!(read(&checkpoint, name), [0.5, 1.0]);
    }
}

#[test]
fn different_scales_of_two_names_are_an_error() {
    // Beside the name in the file and an alias, and beside two aliases.
    let cases =
        [("m_scale_inv", "a_scale_inv"), ("m_scale", "z_scale_inv"), ("a_scale", "z_scale")];
    for (first, second) in cases {
        let checkpoint = checkpoint(&["a", "z"], &[(first, 0.5), (second, 0.5)]);
        for name in ["m", "a", "z"] {
            for error in [
                checkpoint.read_named([name], &dequantize()).unwrap_err(),
                checkpoint.read_all(&dequantize()).unwrap_err(),
                read_part(&checkpoint, name, TensorPart::Whole, &dequantize()).unwrap_err(),
                checkpoint.tensor(name).unwrap().dtype_plan(&dequantize()).unwrap_err(),
            ] {
                let ErrorKind::AmbiguousScales { scales, other } = error.kind() else {
                    panic!("{error}")
                };
                assert_eq!((scales.as_str(), other.as_str()), (first, second));
                assert_eq!(error.tensor(), Some("m"));
                let message = error.to_string();
                assert!(message.contains(first) && message.contains(second), "{message}");
            }
            assert_eq!(scales_of(&checkpoint, name), Some(first));
        }
        // Scales are not asked for.
        let raw = dequantize().scaled_weights(ScaledWeights::Raw).floats_as(Dtype::F32);
        let raw = checkpoint.read_named(["a"], &raw).unwrap().remove(0);
        assert_eq!(raw.as_slice::<f32>().unwrap(), [1.0, 2.0]);
        assert_eq!(checkpoint.read_all(&LoadOptions::new()).unwrap().len(), 3);
    }
    // One name has scales under both suffixes. Then the first suffix counts, as without aliases.
    let both = checkpoint(&["a"], &[("a_scale", 0.25), ("a_scale_inv", 0.5)]);
    assert_eq!(read(&both, "m"), [0.5, 1.0]);
}
