//! Weights that are multiplied by their scales while they are saved, and which scales stay.

use safetensors_core::convert::{Converted, ScaledWeights};
use safetensors_core::ranks::RankRules;
use safetensors_core::slice::Index;
use safetensors_core::{
    Checkpoint, ConvertOptions, Dtype, ErrorKind, LoadOptions, ReadAt, Result, Rewrite,
    SafeTensors, SaveOptions, ShardOptions, TensorBuf, TensorSource, TensorView, save, serialize,
};
use safetensors_testing::tensors::file_bytes;

use super::{checkpoint, dequantize, dequantize_blocks, fixture};

fn scaled() -> ConvertOptions {
    ConvertOptions::new().scaled_weights(ScaledWeights::Dequantize).scale_block(4, 8)
}

/// The codes of 1 and 2.
fn codes() -> TensorBuf {
    let view = TensorView::new(Dtype::F8_E4M3, &[1, 2], &[0x38, 0x40]).unwrap();
    TensorBuf::from_view(&view).unwrap()
}

fn scale() -> TensorBuf {
    TensorBuf::from_vec(vec![1, 1], vec![0.5_f32]).unwrap()
}

/// Saves a rewrite, and opens what was saved.
fn rewritten(rewrite: Rewrite<'_, impl ReadAt>) -> Checkpoint<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new.safetensors");
    rewrite.save(&path, &SaveOptions::new()).unwrap();
    Checkpoint::from_source(std::fs::read(path).unwrap(), "new").unwrap()
}

fn names(checkpoint: &Checkpoint<Vec<u8>>) -> Vec<&str> {
    checkpoint.tensors().map(|tensor| tensor.name()).collect()
}

/// Casts floats of 8 bits to F32.
fn to_f32<'a, S: ReadAt>(
    rewrite: Rewrite<'a, S>,
    options: &ConvertOptions,
) -> Result<Rewrite<'a, S>> {
    let is_small = |dtype: Dtype| dtype.is_float() && dtype.bits() == 8;
    rewrite.cast(options, |_, tensor| is_small(tensor.dtype()).then_some(Dtype::F32))
}

#[test]
fn a_rewrite_multiplies_as_a_load_does() {
    let input = Checkpoint::open(fixture("small.safetensors")).unwrap();
    let output = rewritten(to_f32(Rewrite::of(&input), &scaled()).unwrap());
    let mut weights = 0;
    for weight in input.tensors().filter(|tensor| tensor.scales().is_some()) {
        let options = dequantize_blocks(4, 8).floats_as(Dtype::F32);
        let expected = weight.read_with(&options).unwrap();
        let found = output.tensor(weight.name()).unwrap().read().unwrap();
        assert_eq!(found.bytes(), expected.bytes(), "{}", weight.name());
        assert!(output.get(weight.scales().unwrap().name()).is_none(), "{}", weight.name());
        weights += 1;
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
            let source = Converted::new(slice, Dtype::F32, &scaled()).unwrap();
            let file = serialize([("w", source)], &SaveOptions::new()).unwrap();
            let found = SafeTensors::parse(&file).unwrap();
            assert_eq!(found.view("w").unwrap().data(), file_bytes(&expected), "{}", weight.name());
        }
    }
    assert!(weights > 2);
}

#[test]
fn scales_stay_as_long_as_a_weight_needs_them() {
    let (_directory, input) = checkpoint(&[
        ("a", codes()),
        ("a_scale", scale()),
        ("b", codes()),
        ("b_scale", scale()),
        ("c_scale", scale()),
    ]);
    let cast = |options: &ConvertOptions, which: &[&str]| {
        let to = |name: &str| which.contains(&name).then_some(Dtype::BF16);
        Rewrite::of(&input).cast(options, |name, _| to(name)).map(rewritten)
    };
    let error = cast(&ConvertOptions::new(), &["a"]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NeedsScales { .. }), "{error}");
    assert_eq!(names(&cast(&scaled(), &["a"]).unwrap()), ["b_scale", "c_scale", "a", "b"]);
    assert_eq!(names(&cast(&scaled(), &["a", "b"]).unwrap()), ["c_scale", "a", "b"]);
    let raw = ConvertOptions::new().scaled_weights(ScaledWeights::Raw);
    assert_eq!(cast(&raw, &["a", "b"]).unwrap().len(), 5);
    // Scales that are cast themselves are no weights.
    assert_eq!(cast(&ConvertOptions::new(), &["a_scale"]).unwrap().len(), 5);
}

#[test]
fn scales_are_found_under_whatever_names_the_rewrite_has() {
    let (_directory, input) = checkpoint(&[("a", codes()), ("a_scale", scale())]);
    let rewrite = Rewrite::of(&input).rename(|name| format!("{}.x", name.replace("_scale", "")));
    let rewrite = rewrite.rename(|name| name.to_owned());
    let error = to_f32(rewrite, &ConvertOptions::new()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NeedsScales { .. }), "{error}");
    // Scales that are left out can still be read.
    let rewrite = Rewrite::of(&input).select(|name, _| name == "a");
    let output = rewritten(to_f32(rewrite, &scaled()).unwrap());
    assert_eq!(output.tensor("a").unwrap().read().unwrap().as_slice::<f32>().unwrap(), [0.5, 1.0]);
}

#[test]
fn scales_of_one_checkpoint_are_not_those_of_another() {
    let (_first, first) = checkpoint(&[("a", codes()), ("a_scale", scale())]);
    let (_second, second) = checkpoint(&[("a", codes())]);
    let rewrite = Rewrite::of(&first).rename(|name| format!("1.{name}"));
    let output = rewritten(to_f32(rewrite.merge(&second), &scaled()).unwrap());
    let values = |name: &str| output.tensor(name).unwrap().read().unwrap().into_vec::<f32>();
    assert_eq!(names(&output).len(), 2);
    assert_eq!((values("1.a").unwrap(), values("a").unwrap()), (vec![0.5, 1.0], vec![1.0, 2.0]));
}

#[test]
fn an_alias_of_the_scales_goes_with_them() {
    let options = SaveOptions::new().metadata([("b_scale", "a_scale"), ("b", "a")]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    save(&path, [("a", codes()), ("a_scale", scale())], &options).unwrap();
    let input = Checkpoint::open(&path).unwrap();
    let output = rewritten(to_f32(Rewrite::of(&input), &scaled()).unwrap());
    assert_eq!(names(&output), ["a"]);
    let aliases: Vec<_> = output.aliases().map(|(alias, _)| alias).collect();
    assert_eq!(aliases, ["b"]);
}

#[test]
fn scales_in_another_shard_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let (_input, input) = checkpoint(&[("a", codes()), ("a_scale_inv", scale())]);
    let options = ShardOptions::new().max_shard_size(2.into());
    let saved = Rewrite::of(&input).save_sharded(directory.path(), &options).unwrap();
    assert_eq!(saved.files.len(), 2);
    let shards = Checkpoint::open(directory.path()).unwrap();
    let refused = to_f32(Rewrite::of(&shards), &ConvertOptions::new()).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NeedsScales { .. }), "{refused}");
    let output = rewritten(to_f32(Rewrite::of(&shards), &scaled()).unwrap());
    assert_eq!(output.tensor("a").unwrap().read().unwrap().as_slice::<f32>().unwrap(), [0.5, 1.0]);
}

#[test]
fn the_name_that_comfyui_gives_scales_is_known() {
    let scalar = TensorBuf::from_vec(vec![], vec![0.25_f32]).unwrap();
    let (_directory, input) =
        checkpoint(&[("m.weight", codes()), ("m.scale_weight", scalar), ("m.bias", scale())]);
    let refused = to_f32(Rewrite::of(&input), &ConvertOptions::new()).unwrap_err();
    let ErrorKind::NeedsScales { scales, to: Dtype::F32 } = refused.kind() else {
        panic!("{refused}")
    };
    assert_eq!((scales.as_str(), refused.tensor()), ("m.scale_weight", Some("m.weight")));
    let output = rewritten(to_f32(Rewrite::of(&input), &scaled()).unwrap());
    assert_eq!(names(&output), ["m.bias", "m.weight"]);
    let weight = output.tensor("m.weight").unwrap().read().unwrap();
    assert_eq!(weight.as_slice::<f32>().unwrap(), [0.25, 0.5]);
}

#[test]
fn wrong_scales_are_found_before_anything_is_written() {
    let wrong = TensorBuf::from_vec(vec![3], vec![0.5_f32; 3]).unwrap();
    let (_directory, input) = checkpoint(&[("a", codes()), ("a_scale", wrong)]);
    let error = to_f32(Rewrite::of(&input), &scaled()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WrongScales { .. }), "{error}");
    let integers = TensorBuf::from_vec(vec![1], vec![1_u8]).unwrap();
    let (_directory, input) = checkpoint(&[("a", codes()), ("a_scale", integers)]);
    let error = to_f32(Rewrite::of(&input), &scaled()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WrongDtype { .. }), "{error}");
    assert_eq!(error.tensor(), Some("a_scale"));
}

#[test]
fn parts_of_ranks_are_multiplied_as_whole_tensors() {
    let weight = TensorBuf::from_view(
        &TensorView::new(Dtype::F8_E4M3, &[2, 2], &[0x38, 0x40, 0x38, 0x40]).unwrap(),
    );
    let rows = TensorBuf::from_vec(vec![2, 1], vec![0.5_f32, 2.0]).unwrap();
    let (_directory, input) = checkpoint(&[("w", weight.unwrap()), ("w_scale", rows)]);
    for (rule, of_scales) in [("w=split:1", "w_scale=replicate"), ("w=split:0", "w_*=split:0")] {
        let directory = tempfile::tempdir().unwrap();
        let rules = RankRules::new().parse_rule(rule).and_then(|it| it.parse_rule(of_scales));
        let rules = rules.unwrap();
        let rewrite = Rewrite::of(&input);
        let plan = rewrite.plan_ranks(&rules, 2, &SaveOptions::new()).unwrap();
        rewrite.save_ranks(directory.path(), &plan, "1", &ShardOptions::new()).unwrap();
        let divided = Checkpoint::open_whole(directory.path()).unwrap();

        let weight = divided.tensor("w").unwrap();
        let floats = dequantize().floats_as(Dtype::F32);
        let values = weight.read_with(&floats).unwrap();
        assert_eq!(values.as_slice::<f32>().unwrap(), [0.5, 1.0, 2.0, 4.0], "{rule}");
        // A rank gets its own numbers, whatever parts its weights and its scales were saved in.
        let parts = plan.read(&divided, 1, &floats).unwrap();
        let part = &parts[plan.tensors().position(|tensor| tensor.name() == "w").unwrap()];
        let expected = if rule == "w=split:1" { [1.0, 4.0] } else { [2.0, 4.0] };
        assert_eq!(part.as_slice::<f32>().unwrap(), expected, "{rule}");
        let refused = LoadOptions::new().floats_as(Dtype::F32);
        let error = plan.read(&divided, 0, &refused).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NeedsScales { .. }), "{error}");
        plan.read(&divided, 0, &Default::default()).unwrap();

        let refused = to_f32(Rewrite::of(&divided), &ConvertOptions::new());
        assert!(matches!(refused.unwrap_err().kind(), ErrorKind::NeedsScales { .. }), "{rule}");
        let whole = to_f32(Rewrite::of(&divided), &scaled()).unwrap();
        let output = rewritten(whole);
        assert_eq!(names(&output), ["w"]);
        let values = output.tensor("w").unwrap().read().unwrap();
        assert_eq!(values.as_slice::<f32>().unwrap(), [0.5, 1.0, 2.0, 4.0], "{rule}");
    }
}

#[test]
fn an_empty_weight_is_converted() {
    let empty = TensorBuf::from_view(&TensorView::new(Dtype::F8_E4M3, &[0, 300], &[]).unwrap());
    let scales = TensorBuf::from_vec(vec![0, 3], Vec::<f32>::new()).unwrap();
    let (_directory, input) =
        checkpoint(&[("a", empty.unwrap()), ("a_scale_inv", scales), ("b", scale())]);
    let options = ConvertOptions::new().scaled_weights(ScaledWeights::Dequantize);
    let output = rewritten(to_f32(Rewrite::of(&input), &options).unwrap());
    assert_eq!(names(&output), ["a", "b"]);
    assert_eq!(output.tensor("a").unwrap().shape(), [0, 300]);
}

#[test]
fn a_weight_that_is_cast_back_has_its_scales_again() {
    let (_directory, input) = checkpoint(&[("a", codes()), ("a_scale", scale())]);
    let rewrite = to_f32(Rewrite::of(&input), &scaled()).unwrap();
    let rewrite = rewrite.rename(|name| format!("m.{name}"));
    let back = |name: &str| (name == "m.a").then_some(Dtype::F8_E4M3);
    let output = rewritten(rewrite.cast(&scaled(), |name, _| back(name)).unwrap());
    assert_eq!(names(&output), ["m.a_scale", "m.a"]);
    assert_eq!(output.tensor("m.a").unwrap().read().unwrap().bytes(), [0x38, 0x40]);
}

#[test]
fn what_only_looks_like_an_alias_brings_no_scales() {
    // `b` is a tensor, so the entry is no alias of `a`.
    let options = SaveOptions::new().metadata([("b", "a")]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let tensors = [("a", codes()), ("b", codes()), ("b_scale", scale())];
    save(&path, tensors, &options).unwrap();
    let input = Checkpoint::open(&path).unwrap();
    assert!(input.tensor("a").unwrap().scales().is_none());
    let divided = directory.path().join("divided");
    let rules = RankRules::new().parse_rule("?=split:1").unwrap().parse_rule("*=replicate");
    let rewrite = Rewrite::of(&input);
    let plan = rewrite.plan_ranks(&rules.unwrap(), 2, &SaveOptions::new()).unwrap();
    rewrite.save_ranks(&divided, &plan, "1", &ShardOptions::new()).unwrap();
    let (input, divided) = (Checkpoint::open_whole(&path), Checkpoint::open_whole(&divided));
    for checkpoint in [input.unwrap(), divided.unwrap()] {
        let rewrite = Rewrite::of(&checkpoint);
        let output = rewritten(to_f32(rewrite, &scaled()).unwrap());
        let a = output.tensor("a").unwrap().read().unwrap();
        assert_eq!(a.as_slice::<f32>().unwrap(), [1.0, 2.0]);
        let b = output.tensor("b").unwrap().read().unwrap();
        assert_eq!(b.as_slice::<f32>().unwrap(), [0.5, 1.0]);
    }
}

#[test]
fn scales_of_another_input_are_found() {
    let (_first, first) = checkpoint(&[("a", codes())]);
    let (_second, second) = checkpoint(&[("a_scale_inv", scale())]);
    let both = || Rewrite::of(&first).merge(&second);
    let refused = to_f32(both(), &ConvertOptions::new()).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NeedsScales { .. }), "{refused}");
    let renamed = both().rename(|name| format!("{}.1", name.replace("_scale_inv", "")));
    for rewrite in [both(), both().exclude(|name, _| name == "a_scale_inv"), renamed] {
        let output = rewritten(to_f32(rewrite, &scaled()).unwrap());
        let weights: Vec<_> = output.tensors().filter(|it| it.name().starts_with('a')).collect();
        assert_eq!(weights.len(), 1);
        assert_eq!(weights[0].read().unwrap().as_slice::<f32>().unwrap(), [0.5, 1.0]);
    }
}

#[test]
fn added_weights_keep_the_scales_that_were_added_with_them() {
    let added = || Rewrite::new().add("w", codes()).unwrap().add("w_scale", scale()).unwrap();
    let values = |rewrite: Rewrite<'_>, name: &str| {
        rewritten(rewrite).tensor(name).unwrap().read().unwrap().into_vec::<f32>().unwrap()
    };
    let left_out = added().exclude(|name, _| name == "w_scale");
    let refused = to_f32(left_out, &ConvertOptions::new()).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NeedsScales { .. }), "{refused}");
    // Cast twice.
    let twice = to_f32(added(), &scaled()).unwrap();
    let twice = twice.cast(&ConvertOptions::new(), |name, _| (name == "w").then_some(Dtype::F64));
    assert!(matches!(twice.unwrap_err().kind(), ErrorKind::NeedsScales { .. }));
    // Two weights of one name.
    let other = TensorBuf::from_vec(vec![1, 1], vec![4.0_f32]).unwrap();
    let two = added().rename(|name| format!("1.{name}"));
    let two = two.add("w", codes()).unwrap().add("w_scale", other).unwrap();
    let two = || to_f32(two, &scaled());
    let output = rewritten(two().unwrap());
    let read = |name: &str| output.tensor(name).unwrap().read().unwrap().into_vec::<f32>();
    assert_eq!(names(&output).len(), 2);
    assert_eq!(read("1.w").unwrap(), [0.5, 1.0]);
    assert_eq!(read("w").unwrap(), [4.0, 8.0]);
    // Two names of one storage, one of which has scales beside it.
    let weight = codes();
    let tied = Rewrite::new().add("a", &weight).unwrap().add("b", &weight).unwrap();
    let tied = to_f32(tied.add("b_scale", scale()).unwrap(), &scaled()).unwrap();
    assert_eq!(values(tied, "a"), [0.5, 1.0]);
}

#[test]
fn a_conversion_to_the_own_dtype_still_has_scales() {
    let (_directory, input) = checkpoint(&[("a", codes()), ("a_scale", scale())]);
    let weight = input.tensor("a").unwrap();
    let same = Converted::new(weight, Dtype::F8_E4M3, &ConvertOptions::new()).unwrap();
    let error = Converted::new(&same, Dtype::BF16, &ConvertOptions::new()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NeedsScales { .. }), "{error}");
    let multiplied = Converted::new(&same, Dtype::F32, &scaled()).unwrap();
    Converted::new(&multiplied, Dtype::BF16, &ConvertOptions::new()).unwrap();
}

#[test]
fn weights_and_scales_that_ranks_divided_in_other_ways_are_converted() {
    let weight = TensorView::new(Dtype::F8_E4M3, &[4, 2], &[0x38; 8]).unwrap();
    let weight = TensorBuf::from_view(&weight).unwrap();
    let rows = TensorBuf::from_vec(vec![4, 1], vec![0.5_f32; 4]).unwrap();
    let divided = |tensors: &[(&str, TensorBuf)], alias: Option<(&str, &str)>, rules: &[&str]| {
        let (_directory, input) = checkpoint(tensors);
        let directory = tempfile::tempdir().unwrap();
        let mut all = RankRules::new();
        for rule in rules {
            all = all.parse_rule(rule).unwrap();
        }
        let mut rewrite = Rewrite::of(&input);
        rewrite.metadata_mut().extend(alias.map(|(key, value)| (key.into(), value.into())));
        let plan = rewrite.plan_ranks(&all, 4, &SaveOptions::new()).unwrap();
        rewrite.save_ranks(directory.path(), &plan, "1", &ShardOptions::new()).unwrap();
        let divided = Checkpoint::open_whole(directory.path()).unwrap();
        let floats = LoadOptions::new().floats_as(Dtype::F32);
        let error = plan.read(&divided, 0, &floats).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NeedsScales { .. }), "{rules:?}: {error}");
        let refused = to_f32(Rewrite::of(&divided), &ConvertOptions::new());
        let error = refused.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NeedsScales { .. }), "{rules:?}: {error}");
        let whole = to_f32(Rewrite::of(&divided), &scaled()).unwrap();
        let output = rewritten(whole);
        let values = output.tensor("w").unwrap().read().unwrap().into_vec::<f32>().unwrap();
        assert_eq!(values, [0.5; 8], "{rules:?}");
    };
    let both = [("w", weight.clone()), ("w_scale", rows.clone())];
    divided(&both, None, &["w=split:0", "w_scale=shared:0:2"]);
    divided(&both, None, &["w=replicate", "w_scale=split:0"]);
    divided(&both, None, &["w=split:0", "w_scale=replicate"]);
    // Beside another name of the weight, and under another name of the scales.
    let beside_alias = [("w", weight.clone()), ("v_scale", rows.clone())];
    divided(&beside_alias, Some(("v", "w")), &["w=split:0", "v_scale=replicate"]);
    divided(&beside_alias, Some(("v", "w")), &["w=split:0", "v_scale=split:0"]);
    let of_alias = [("w", weight), ("v_scale", rows)];
    divided(&of_alias, Some(("w_scale", "v_scale")), &["w=split:0", "v_scale=split:0"]);
}
