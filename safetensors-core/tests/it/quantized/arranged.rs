//! Quantised weights that are arranged: the same numbers as their numbers arranged.

use safetensors_core::checkpoint::Arranged;
use safetensors_core::error::QuantizationProblem;
use safetensors_core::slice::Index;

use super::checkpoint;
use crate::support::*;

fn t(name: &str) -> Arranged {
    Arranged::tensor(name)
}

/// Bytes that are different finite numbers in the dtypes of codes and scales.
fn bytes(dtype: Dtype, shape: &[usize], seed: u8) -> TensorBuf {
    TensorBuf::filled_by(dtype, shape.to_vec(), |bytes| {
        for (i, byte) in bytes.iter_mut().enumerate() {
            let code = (i as u8).wrapping_mul(37).wrapping_add(seed.wrapping_mul(11));
            *byte = if dtype == Dtype::U8 { code } else { code & 0x77 };
        }
        Ok(())
    })
    .unwrap()
}

fn exponents(shape: &[usize], seed: u8) -> TensorBuf {
    let count = shape.iter().product::<usize>();
    let values = (0..count).map(|i| 120 + (i as u8 * 5 + seed) % 12).collect();
    TensorBuf::from_vec(shape.to_vec(), values).unwrap()
}

fn floats(shape: &[usize], seed: u8) -> TensorBuf {
    let count = shape.iter().product::<usize>();
    let values = (0..count).map(|i| 0.25 * (1 + i + usize::from(seed)) as f32).collect();
    TensorBuf::from_vec(shape.to_vec(), values).unwrap()
}

type Tensors = Vec<(String, TensorBuf)>;

fn opened(config: Option<&str>, tensors: &Tensors) -> (TempDir, Checkpoint) {
    let tensors: Vec<_> = tensors.iter().map(|(name, buf)| (&**name, buf.clone())).collect();
    checkpoint(config, &tensors)
}

/// Compares the numbers of arranged weights with arranged numbers, and returns the names of the
/// tensors.
#[track_caller]
fn check(config: Option<&str>, tensors: &Tensors, arranged: &[(&str, Arranged)]) -> Vec<String> {
    let open = || opened(config, tensors);
    let (_one, by_weights) = open();
    let by_weights = by_weights.arranged_weights(arranged.iter().cloned()).unwrap();
    let mut names: Vec<_> = by_weights.tensors().map(|it| it.name().to_owned()).collect();
    names.sort();
    let by_weights = by_weights.dequantized().unwrap();
    let (_two, by_numbers) = open();
    let by_numbers = by_numbers.dequantized().unwrap();
    let by_numbers = by_numbers.arranged(arranged.iter().cloned()).unwrap();
    assert_eq!(by_weights.len(), by_numbers.len());
    for tensor in by_numbers.tensors() {
        let found = by_weights.tensor(tensor.name()).unwrap();
        assert_eq!(found.shape(), tensor.shape(), "{}", tensor.name());
        let (numbers, expected) = (found.read().unwrap(), tensor.read().unwrap());
        assert_eq!(numbers.bytes(), expected.bytes(), "{}", tensor.name());
        check_parts(found, tensor.name());
    }
    names
}

#[track_caller]
fn check_refused(config: Option<&str>, tensors: &Tensors, arranged: Arranged, problem: &str) {
    let (_directory, checkpoint) = opened(config, tensors);
    let error = checkpoint.arranged_weights([("new.weight", arranged)]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Quantization { .. }), "{error}");
    assert!(error.to_string().contains(problem), "{error}");
}

const BLOCKS: Option<&str> = Some(r#"{"quant_method": "fp8", "weight_block_size": [2, 4]}"#);
const FP8: Option<&str> = Some(r#"{"quant_method": "fp8"}"#);

/// Experts with `ends` of names, and tensors of these shapes.
fn experts(part: &str, tensors: &[(&str, &dyn Fn(u8) -> TensorBuf)]) -> Tensors {
    let of = |i: u8| {
        let name = move |end: &str| format!("experts.{i}.{part}{end}");
        tensors.iter().map(move |(end, make)| (name(end), make(i)))
    };
    (0..3).flat_map(of).collect()
}

/// A stack of the experts' gates and ups, one after another.
fn fused() -> Arranged {
    Arranged::stack((0..3).map(|i| {
        let parts = ["gate", "up"].map(|part| t(&format!("experts.{i}.{part}.weight")));
        Arranged::concat(0, parts)
    }))
}

fn both(tensors: &[(&str, &dyn Fn(u8) -> TensorBuf)]) -> Tensors {
    [experts("gate", tensors), experts("up", tensors)].concat()
}

#[test]
fn blocks_of_fp8_are_stacked_and_split() {
    // The last block of columns is not full.
    let codes = |i| bytes(Dtype::F8_E4M3, &[4, 10], i);
    let scales = |i| floats(&[2, 3], i);
    let stored: Tensors = both(&[(".weight", &codes), (".weight_scale_inv", &scales)]);
    let names = check(BLOCKS, &stored, &[("experts.gate_up_proj", fused())]);
    assert_eq!(names, ["experts.gate_up_proj", "experts.gate_up_proj_scale_inv"]);

    let stack = ("experts.w".into(), bytes(Dtype::F8_E4M3, &[3, 8, 10], 1));
    let stack = vec![stack, ("experts.w_scale_inv".into(), floats(&[3, 4, 3], 9))];
    let expert = |i: usize| t("experts.w").slice(0, i);
    let split =
        [("0.gate.weight", expert(0).slice(0, ..4)), ("2.up.weight", expert(2).slice(0, 4..8))];
    let names = check(BLOCKS, &stack, &split);
    let of = |name: &str| [name.to_owned(), format!("{name}_scale_inv")];
    assert_eq!(names, [of("0.gate.weight"), of("2.up.weight")].concat());
    check(BLOCKS, &stack, &[("a.weight", expert(1).slice(1, 4..))]);
    for (inside, problem) in [
        (expert(0).slice(0, 1..4), "begins or ends inside a block"),
        (expert(0).slice(1, ..6), "begins or ends inside a block"),
        (expert(0).slice(0, Index::ALL.step(2)), "begins or ends inside a block"),
        (expert(0).transposed(), "it would be transposed"),
        (Arranged::interleaved(0, [expert(0), expert(1)]), "one scale for several"),
        (Arranged::concat(1, [expert(0), expert(1)]), "one scale for several"),
    ] {
        check_refused(BLOCKS, &stack, inside, problem);
    }
    let square = Some(r#"{"quant_method": "fp8", "weight_block_size": [2, 2]}"#);
    let weight = vec![
        ("w".into(), bytes(Dtype::F8_E4M3, &[3, 8, 10], 1)),
        ("w_scale_inv".into(), floats(&[3, 4, 5], 9)),
    ];
    check(square, &weight, &[("v", t("w").transposed())]);
}

#[test]
fn scales_of_rows_and_of_weights() {
    let codes = |i| bytes(Dtype::F8_E4M3, &[4, 6], i);
    for (of_rows, shape) in [(true, &[4, 1][..]), (true, &[4]), (false, &[1]), (false, &[])] {
        let scales = |i| floats(shape, i);
        let input = |i| floats(&[], i);
        let ends: [(&str, &dyn Fn(u8) -> TensorBuf); 3] =
            [(".weight", &codes), (".weight_scale", &scales), (".input_scale", &input)];
        let up = experts("up", &ends);
        let stack = || Arranged::stack((0..3).map(|i| t(&format!("experts.{i}.up.weight"))));
        let names = check(FP8, &up, &[("w", stack())]);
        assert_eq!(names, ["w", "w_input_scale", "w_scale"]);
        check(FP8, &up, &[("a.weight", t("experts.1.up.weight").slice(0, 1..3))]);
        let without: Vec<_> = both(&ends[..2]);
        match of_rows {
            true => drop(check(FP8, &without, &[("w", fused())])),
            false => check_refused(FP8, &without, fused(), "one scale for several of them"),
        }
    }
    // An expert of a stack has its own scale.
    for shape in [&[3, 4, 1][..], &[3, 4], &[3, 1, 1], &[3]] {
        let stack = vec![
            ("w".into(), bytes(Dtype::F8_E4M3, &[3, 4, 6], 0)),
            ("w_scale".into(), floats(shape, 0)),
            ("w_input_scale".into(), floats(&[3], 0)),
        ];
        let names = check(
            FP8,
            &stack,
            &[("e.weight", t("w").slice(0, 1)), ("f.weight", t("w").slice(0, 2))],
        );
        assert!(names.contains(&"e.input_scale".to_owned()), "{names:?}");
    }
}

#[test]
fn packed_codes() {
    let config = Some(r#"{"quant_method": "mxfp4"}"#);
    // transformers' names of gpt-oss: inputs are rows, gate and up alternate.
    let blocks = vec![
        ("e.gate_up_proj_blocks".into(), bytes(Dtype::U8, &[2, 6, 2, 16], 3)),
        ("e.gate_up_proj_scales".into(), exponents(&[2, 6, 2], 1)),
    ];
    let expert = t("e.gate_up_proj").slice(0, 1);
    let gate = || expert.clone().slice(1, Index::ALL.step(2));
    let names = check(config, &blocks, &[("1.gate", gate()), ("1.up.weight", gate().transposed())]);
    let expected = ["1.gate_blocks", "1.gate_scales", "1.up.weight.blocks", "1.up.weight.scales"];
    assert_eq!(names, expected);
    let again = Arranged::stack([expert.clone().slice(0, 32..), expert.clone().slice(0, ..32)]);
    check(config, &blocks, &[("x", again)]);
    check_refused(config, &blocks, expert.slice(0, 1..33), "inside a block");

    let packed = |i| bytes(Dtype::U8, &[4, 16], i);
    let scales = |i| bytes(Dtype::F8_E4M3, &[4, 2], i);
    let global = |i| floats(&[1], i);
    let tensors: [(&str, &dyn Fn(u8) -> TensorBuf); 3] = [
        (".weight_packed", &packed),
        (".weight_scale", &scales),
        (".weight_global_scale", &global),
    ];
    let nvfp4 = experts("up", &tensors);
    let config =
        Some(r#"{"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}"#);
    let stack = Arranged::stack((0..3).map(|i| t(&format!("experts.{i}.up.weight"))));
    let names = check(config, &nvfp4, &[("w", stack)]);
    assert_eq!(names, ["w_global_scale", "w_packed", "w_scale"]);
    let up = t("experts.0.up.weight");
    check(
        config,
        &nvfp4,
        &[("a.weight", up.clone().slice(1, 16..)), ("b.weight", up.clone().slice(0, ..2))],
    );
    check_refused(config, &nvfp4, up.clone().slice(1, 8..24), "inside a block");
    check_refused(config, &nvfp4, up.transposed(), "it would be transposed");
    check_refused(config, &both(&tensors), fused(), "one scale for several of them");
}

#[test]
fn other_schemes_and_mixtures_are_refused() {
    let gptq = vec![
        ("a.qweight".into(), TensorBuf::from_vec(vec![4, 8], vec![7_i32; 32]).unwrap()),
        ("a.qzeros".into(), TensorBuf::from_vec(vec![1, 1], vec![7_i32; 1]).unwrap()),
        (
            "a.scales".into(),
            floats(&[1, 8], 0).convert(Dtype::F16, &ConvertOptions::new()).unwrap(),
        ),
        ("b.weight".into(), floats(&[8, 32], 0)),
    ];
    let config = Some(r#"{"quant_method": "gptq", "bits": 4, "group_size": 32}"#);
    check_refused(config, &gptq, t("a.weight").slice(0, ..4), "GPTQ cannot be arranged");
    let fp8 = vec![
        ("a.weight".into(), bytes(Dtype::F8_E4M3, &[4, 6], 0)),
        ("a.weight_scale".into(), floats(&[4], 0)),
        ("b.weight".into(), floats(&[4, 6], 0)),
    ];
    let both = Arranged::stack([t("a.weight"), t("b.weight")]);
    check_refused(None, &fp8, both, "it is joined with one stored otherwise");
    // A plain tensor next to quantised ones.
    check(None, &fp8, &[("c", t("b.weight").slice(0, 1)), ("d.weight", t("a.weight"))]);
    let (_directory, checkpoint) = opened(config, &gptq);
    let error = refused!(
        checkpoint.arranged_weights([("n", t("a.qweight"))]),
        ErrorKind::Quantization { problem: QuantizationProblem::Codes { .. } }
    );
    assert_eq!(error.tensor(), Some("a.qweight"));
}
