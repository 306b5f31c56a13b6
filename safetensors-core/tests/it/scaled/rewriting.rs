//! Weights that become numbers while they are saved, and codes that a rewrite refuses.

use safetensors_core::convert::Converted;
use safetensors_core::quantized::{LinearLayers, Quantization};
use safetensors_core::ranks::RankRules;
use safetensors_core::slice::Index;

use super::{checkpoint, codes, fp8, is_of_codes, numbers, scales, tied};
use crate::support::*;

/// Saves a rewrite, and opens the output.
fn rewritten(rewrite: Rewrite<'_, impl ReadAt>) -> Checkpoint<Vec<u8>> {
    let (_directory, path) = place("new.safetensors");
    rewrite.save(&path, &SaveOptions::new()).unwrap();
    Checkpoint::from_source(fs::read(path).unwrap(), "new").unwrap()
}

/// Casts floats to BF16.
fn to_bf16<S: ReadAt>(rewrite: Rewrite<'_, S>) -> Result<Rewrite<'_, S>> {
    rewrite.cast(&ConvertOptions::new(), |_, tensor| {
        tensor.source_dtype().is_float().then_some(Dtype::BF16)
    })
}

fn refused<S: ReadAt>(rewrite: Rewrite<'_, S>) {
    let error = to_bf16(rewrite).map(drop).unwrap_err();
    assert!(is_of_codes(&error), "{error}");
}

#[test]
fn a_rewrite_has_the_numbers_of_a_load() {
    let input = numbers("small", [4, 8]);
    let output = rewritten(to_bf16(Rewrite::from_checkpoint(&input)).unwrap());
    let options = LoadOptions::new().floats_as(Dtype::BF16);
    for weight in input.tensors() {
        let expected = weight.read_with(&options).unwrap();
        let found = output.tensor(weight.name()).unwrap().read().unwrap();
        assert_eq!(found.bytes(), expected.bytes(), "{}", weight.name());
        if weight.shape().len() != 2 || weight.shape().iter().any(|&len| len < 5) {
            continue;
        }
        // Slices of any part and step, saved as they are read.
        for slice in [
            weight.slice((1.., ..)).unwrap(),
            weight.slice((2, 1..)).unwrap(),
            weight.slice((.., 3)).unwrap(),
            weight.slice((Index::from(1..5).step(2), Index::from(..).step(3))).unwrap(),
            weight.slice((3..3, ..)).unwrap(),
        ] {
            let expected = slice.read_with(&options).unwrap();
            let source = Converted::new(slice, Dtype::BF16, &ConvertOptions::new()).unwrap();
            let file = serialize([("w", source)], &SaveOptions::new()).unwrap();
            let found = SafeTensors::parse(&file).unwrap();
            assert_eq!(found.view("w").unwrap().data(), file_bytes(&expected), "{}", weight.name());
        }
    }
    assert_eq!(output.len(), input.len());
}

#[test]
fn codes_are_refused_under_whatever_names_the_rewrite_has() {
    let tensors = [
        ("a", codes()),
        ("a_scale", scales(&[1, 1])),
        ("m.weight", codes()),
        ("m.scale_weight", scales(&[])),
    ];
    let (_directory, input) = checkpoint(&tensors);
    refused(Rewrite::from_checkpoint(&input));
    refused(
        Rewrite::from_checkpoint(&input).rename(|name| format!("{}.x", name.replace("_scale", ""))),
    );
    for name in ["a", "m.weight"] {
        refused(Rewrite::from_checkpoint(&input).select(|it, _| it == name));
    }
    // Scales are numbers, and a copy has both.
    let only = Rewrite::from_checkpoint(&input)
        .cast(&ConvertOptions::new(), |name, _| (name == "a_scale").then_some(Dtype::BF16));
    assert_eq!(rewritten(only.unwrap()).len(), 4);
    let numbers = input.dequantized().unwrap();
    let output = rewritten(to_bf16(Rewrite::from_checkpoint(&numbers)).unwrap());
    let mut names: Vec<_> = output.tensors().map(|it| it.name().to_owned()).collect();
    names.sort();
    assert_eq!(names, ["a", "m.weight"]);
}

#[test]
fn scales_of_another_checkpoint_are_not_applied_and_not_lost() {
    let (_first, first) = checkpoint(&[("a", codes())]);
    let (_second, second) = checkpoint(&[("a_scale_inv", scales(&[1, 1]))]);
    let error =
        to_bf16(Rewrite::from_checkpoint(&first).merge(&second)).map(drop).unwrap_err().to_string();
    assert!(error.contains("several checkpoints"), "{error}");
    let (layers, options) = (LinearLayers::new(), ConvertOptions::new());
    let int8 = Quantization::Int8Channel;
    let both = Rewrite::from_checkpoint(&first)
        .merge(&second)
        .rename(|name| name.replacen('a', "a.weight", 1));
    let error = both.quantize(int8, &options, &layers, |_, _| None).map(drop).unwrap_err();
    assert!(error.to_string().contains("several checkpoints"), "{error}");
    // Neither are tensors that are added with it.
    let weight = codes();
    let added = || Rewrite::new().add("w", &weight).unwrap();
    refused(added().add("w_scale", scales(&[1])).unwrap());
    // Two names of a storage, one with scales next to it.
    refused(added().add("v", &weight).unwrap().add("v_scale", scales(&[1])).unwrap());
    // Without any scales these are numbers.
    assert_eq!(rewritten(to_bf16(added()).unwrap()).len(), 1);
    let (_third, third) = checkpoint(&[("b", scales(&[1]))]);
    assert_eq!(
        rewritten(to_bf16(Rewrite::from_checkpoint(&first).merge(&third)).unwrap()).len(),
        2
    );
}

/// Saves a checkpoint for ranks by these rules, opens it as a whole, and reads the numbers.
fn divided(input: &Checkpoint, world_size: usize, rules: &[&str]) {
    let directory = tempdir().unwrap();
    let rules_of = rules.iter().try_fold(RankRules::new(), |all, rule| all.parse_rule(rule));
    let rewrite = Rewrite::from_checkpoint(input);
    let plan = rewrite.plan_ranks(&rules_of.unwrap(), world_size, &SaveOptions::new()).unwrap();
    rewrite.save_ranks(directory.path(), &plan, "1", &ShardOptions::new()).unwrap();
    let whole = Checkpoint::open(directory.path()).unwrap();
    let floats = LoadOptions::new().floats_as(Dtype::F32);
    let error = plan.read(&whole, 0, &floats).map(drop).unwrap_err();
    assert!(is_of_codes(&error), "{rules:?}: {error}");
    plan.read(&whole, 0, &LoadOptions::new()).unwrap();
    refused(Rewrite::from_checkpoint(&whole));
    let numbers = whole.dequantized().unwrap();
    let values = numbers.tensor("w").unwrap().read().unwrap();
    assert_eq!(values.as_slice::<f32>().unwrap(), [0.5, 1.0, 2.0, 4.0], "{rules:?}");
    assert_eq!(numbers.len(), 1, "{rules:?}");
}

#[test]
fn parts_of_ranks_are_dequantised_like_whole_tensors() {
    let weight = || fp8(&[2, 2], &[0x38, 0x40, 0x38, 0x40]);
    let rows = || TensorBuf::from_vec(vec![2, 1], vec![0.5_f32, 2.0]).unwrap();
    let both = [("w", weight()), ("w_scale", rows())];
    let of_alias = [("w", weight()), ("v_scale", rows())];
    for (tensors, alias, rules) in [
        (&both, None, ["w=split:1", "w_scale=replicate"]),
        (&both, None, ["w=split:0", "w_*=split:0"]),
        (&both, None, ["w=replicate", "w_scale=split:0"]),
        // Beside another name of the weight, and under another name of the scales.
        (&of_alias, Some(("v", "w")), ["w=split:0", "v_scale=replicate"]),
        (&of_alias, Some(("v", "w")), ["w=split:0", "v_scale=split:0"]),
        (&of_alias, Some(("w_scale", "v_scale")), ["w=split:0", "v_scale=split:0"]),
    ] {
        let aliases: Vec<_> = alias.into_iter().collect();
        let (_directory, input) = tied(tensors, &aliases);
        divided(&input, 2, &rules);
    }
}
