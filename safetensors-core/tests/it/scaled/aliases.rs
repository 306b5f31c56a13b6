//! Scales of weights that are saved once for several names.

use super::{codes, is_of_codes, scales, tied};
use crate::support::*;

#[test]
fn scales_named_after_an_alias_belong_to_the_weight() {
    let floats = LoadOptions::new().floats_as(Dtype::F32);
    for alias in ["a", "z"] {
        for suffix in ["_scale_inv", "_scale"] {
            let tensors = [("m", codes()), (&*format!("{alias}{suffix}"), scales(&[1]))];
            let aliases = ["a", "q", "z"].map(|alias| (alias, "m"));
            let (_directory, checkpoint) = tied(&tensors, &aliases);
            for name in ["m", "a", "q", "z"] {
                let error = checkpoint.read_named([name], &floats).unwrap_err();
                assert!(is_of_codes(&error), "{error}");
            }
            let numbers = checkpoint.dequantized().unwrap();
            assert_eq!(numbers.tensors().map(|it| it.name()).collect::<Vec<_>>(), ["m"]);
            for name in ["m", "a", "q", "z"] {
                let read = numbers.tensor(name).unwrap().read().unwrap();
                assert_eq!(read.as_slice::<f32>().unwrap(), [0.5, 1.0], "{name}");
            }
        }
    }
    let (_directory, without) = tied(&[("m", codes()), ("b_scale", scales(&[1]))], &[("a", "m")]);
    assert_eq!(without.read_named(["a"], &floats).unwrap()[0].as_slice::<f32>().unwrap(), [1., 2.]);
}

#[test]
fn one_tensor_of_scales_may_have_several_names_too() {
    let tensors = [("b", codes()), ("a_scale_inv", scales(&[1]))];
    let (_directory, checkpoint) = tied(&tensors, &[("a", "b"), ("b_scale_inv", "a_scale_inv")]);
    let numbers = checkpoint.dequantized().unwrap();
    for name in ["a", "b"] {
        let read = numbers.tensor(name).unwrap().read().unwrap();
        assert_eq!(read.as_slice::<f32>().unwrap(), [0.5, 1.0]);
    }
    assert!(numbers.get("b_scale_inv").is_none());
}

#[test]
fn different_scales_of_two_names_are_an_error() {
    // Next to the name in the file and an alias, next to two aliases, and two with the same name.
    let cases = [
        ("m_scale_inv", "a_scale_inv"),
        ("m_scale", "z_scale_inv"),
        ("a_scale", "z_scale"),
        ("m_scale", "m_scale_inv"),
    ];
    for (first, second) in cases {
        let tensors = [("m", codes()), (first, scales(&[1])), (second, scales(&[1]))];
        let (_directory, checkpoint) = tied(&tensors, &[("a", "m"), ("z", "m")]);
        for error in [
            checkpoint.quantized_weights().unwrap_err(),
            checkpoint.tensor("a").unwrap().refuse_codes().unwrap_err(),
        ] {
            assert!(is_of_codes(&error), "{error}");
            let message = error.to_string();
            assert!(message.contains(first) || message.contains(second), "{message}");
            assert_eq!(error.tensor(), Some("m"), "{message}");
        }
        // As they are stored, they can be read.
        assert_eq!(checkpoint.read_all(&LoadOptions::new()).unwrap().len(), 3);
    }
}
