//! Adapters of stacked weights of experts, which PEFT calls parameters.

use safetensors_core::lora::ExpertsInput;

use super::{adapter, base};

const A: &str = "base_model.model.experts.lora_A.weight";
const B: &str = "base_model.model.experts.lora_B.weight";
const INNER_A: &str = "base_model.model.experts.base_layer.lora_A.weight";
const INNER_B: &str = "base_model.model.experts.base_layer.lora_B.weight";

fn settings(version: &str, targets: &str) -> String {
    format!(
        ", \"r\": 1, \"lora_alpha\": 1, \"peft_version\": \"{version}\", \"target_parameters\": \
         [{targets}]"
    )
}

/// The version shows the layout of squares before 0.19 only; other weights of the adapter show it,
/// or the caller.
#[test]
fn equal_lengths_leave_the_layout_open() {
    let square: [(&str, &[usize]); 2] = [(A, &[2, 3]), (B, &[3, 2])];
    let checkpoint = || base(&[("experts.down_proj", &[2, 3, 3])]);
    let first_row = |adapter| {
        let merged = checkpoint().merged([adapter]).unwrap();
        let read = merged.tensor("experts.down_proj").unwrap().read().unwrap();
        let values: Vec<_> = read.as_slice::<f32>().unwrap()[..3].to_vec();
        [values[0] - 1.0, values[1] - 2.0, values[2] - 3.0]
    };
    // The first expert has [1, 2, 3] and [1, 3, 5].
    let (last, middle) = ([1.0, 2.0, 3.0], [1.0, 3.0, 5.0]);
    let open = |version| adapter(Some(&settings(version, "\"down_proj\"")), &square).unwrap();
    assert_eq!(first_row(open("0.18.1.dev0")), middle);
    for version in ["0.19.0", "0.21.2", "1.0", ""] {
        let error = checkpoint().merged([open(version)]).unwrap_err().to_string();
        assert!(error.contains("the dimension of the experts that lora_A multiplies"), "{error}");
        assert_eq!(first_row(open(version).experts_input(ExpertsInput::Last)), last);
        assert_eq!(first_row(open(version).experts_input(ExpertsInput::Middle)), middle);
    }
}

#[test]
fn adapters_of_other_experts_are_errors() {
    let both = "\"experts.down_proj\", \"experts.gate_up_proj\"";
    let one = "\"experts.down_proj\"";
    for (targets, tensors, checkpoint, expected) in [
        // Other numbers and sizes of experts.
        (one, &[(A, &[2, 3][..]), (B, &[4, 2])][..], &[4, 4, 3][..], "expected a product of shape"),
        (one, &[(A, &[4, 3]), (B, &[4, 4])], &[2, 4, 3], "expected a product of shape [2, 4, 3]"),
        (one, &[(A, &[2, 5]), (B, &[4, 2])], &[2, 4, 3], "found [2, 4, 5]"),
        (one, &[(A, &[2, 3]), (B, &[4, 2])], &[4, 3], "expected a product of shape [4, 3]"),
        // Fewer or more pairs of matrices than parameters.
        (both, &[(A, &[2, 3]), (B, &[4, 2])], &[2, 4, 3], "has 1 pairs of matrices for it"),
        (
            one,
            &[(A, &[2, 3]), (B, &[4, 2]), (INNER_A, &[2, 3]), (INNER_B, &[4, 2])],
            &[2, 4, 3],
            "has 2 pairs of matrices for it",
        ),
        ("\"experts.a\", \"experts.b\"", &[(A, &[2, 3]), (INNER_A, &[2, 3])], &[2, 4, 3], "has 2"),
        ("", &[(INNER_A, &[2, 3]), (INNER_B, &[4, 2])], &[2, 4, 3], "[] for module \"experts\""),
    ] {
        let merged = adapter(Some(&settings("0.21.2", targets)), tensors)
            .and_then(|adapter| base(&[("experts.down_proj", checkpoint)]).merged([adapter]));
        let error = merged.unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

/// A parameter that is one matrix is like the weight of a layer.
#[test]
fn a_parameter_may_be_a_matrix() {
    let tensors: [(&str, &[usize]); 2] = [(A, &[1, 3]), (B, &[2, 1])];
    let adapter = adapter(Some(&settings("0.21.2", "\"experts.weight\"")), &tensors).unwrap();
    let merged = base(&[("experts.weight", &[2, 3])]).merged([adapter]).unwrap();
    let read = merged.tensor("experts.weight").unwrap().read().unwrap();
    assert_eq!(read.as_slice::<f32>().unwrap(), [2.0, 4.0, 6.0, 6.0, 9.0, 12.0]);
}
