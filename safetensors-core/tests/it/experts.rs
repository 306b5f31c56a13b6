//! Experts of a mixture, split and stacked.

use std::collections::BTreeSet;

use safetensors_core::checkpoint::MaxShardSize;
use safetensors_core::framework::into_view;
use safetensors_core::load::ExpertLayout;
use safetensors_core::load::ExpertLayout::{Split, Stacked};
use safetensors_core::load::{ExpertOptions, GateUp, QuantizedWeights};
use safetensors_core::quantized::{LinearLayers, Quantization};
use safetensors_testing::experts::Mixture;
use safetensors_testing::quantized::Quantized;

use crate::support::*;

type Tensors = BTreeMap<String, TensorBuf>;

fn read(checkpoint: &Checkpoint<impl ReadAt>) -> Tensors {
    checkpoint.tensors().map(|it| (it.name().to_owned(), it.read().unwrap())).collect()
}

fn assert_equal(found: &Checkpoint<impl ReadAt>, expected: &Checkpoint<impl ReadAt>, about: &str) {
    let (found, expected) = (read(found), read(expected));
    let names = |tensors: &Tensors| tensors.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected), "{about}");
    for (name, tensor) in found {
        let other = &expected[&name];
        assert_eq!(
            (tensor.dtype(), tensor.shape()),
            (other.dtype(), other.shape()),
            "{about} {name}"
        );
        assert_eq!(tensor.bytes(), other.bytes(), "{about} {name}");
    }
}

#[test]
fn every_architecture_is_split_and_stacked_as_in_transformers() {
    for Mixture { name, split, stacked } in Mixture::all() {
        let open = |path| Checkpoint::open(path).unwrap();
        let of = |path, layout| {
            open(path)
                .experts(layout, &ExpertOptions::new())
                .unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        assert_equal(&of(&stacked, Split), &open(&split), &name);
        assert_equal(&of(&split, Stacked), &open(&stacked), &name);
        // A layout that is there already, and round.
        assert_equal(&of(&split, Split), &open(&split), &name);
        assert_equal(&of(&stacked, Stacked), &open(&stacked), &name);
        let round = of(&split, Stacked).experts(Split, &ExpertOptions::new()).unwrap();
        assert_equal(&round, &open(&split), &name);
    }
}

/// Tensors with one byte an element, numbered from 0, without a config.json.
fn numbered(tensors: &[(&str, &[usize])]) -> Checkpoint<Vec<u8>> {
    let mut next = 0_u8;
    let bufs = tensors.iter().map(|(name, shape)| {
        let values: Vec<u8> =
            (0..shape.iter().product::<usize>()).map(|i| next.wrapping_add(i as u8)).collect();
        next = next.wrapping_add(values.len() as u8);
        (*name, TensorBuf::from_vec(shape.to_vec(), values).unwrap())
    });
    let bytes = serialize(bufs.collect::<Vec<_>>(), &SaveOptions::new()).unwrap();
    Checkpoint::from_source(bytes, "bytes in memory").unwrap()
}

/// A matrix of 2 x 1 for gate and for up each, which turn up in a stack in this order.
#[test]
fn options_set_the_order_of_an_unknown_architecture() {
    let split = || {
        numbered(&[
            ("e.experts.0.gate_proj.weight", &[2, 1]),
            ("e.experts.0.up_proj.weight", &[2, 1]),
            ("e.experts.0.down_proj.weight", &[1, 2]),
            ("e.experts.0.gate_proj.bias", &[2]),
            ("e.experts.0.up_proj.bias", &[2]),
        ])
    };
    let error = split().experts(Stacked, &ExpertOptions::new()).unwrap_err();
    let expected = "bytes in memory: the order of gate and up in stacked experts is not known: \
                    there is no config.json; ExpertOptions::gate_up sets it";
    assert_eq!(error.to_string(), expected);
    for (order, bytes) in [
        (GateUp::First, [0, 1, 2, 3]),
        (GateUp::Last, [2, 3, 0, 1]),
        (GateUp::Interleaved, [0, 2, 1, 3]),
    ] {
        for is_transposed in [false, true] {
            let options = ExpertOptions::new().gate_up(order).transposed(is_transposed);
            let stacked = split().experts(Stacked, &options).unwrap();
            let gate_up = stacked.tensor("e.experts.gate_up_proj").unwrap();
            assert_eq!(gate_up.read().unwrap().bytes(), bytes);
            assert_eq!(gate_up.shape(), if is_transposed { [1, 1, 4] } else { [1, 4, 1] });
            let bias = stacked.tensor("e.experts.gate_up_proj_bias").unwrap();
            assert_eq!(bias.shape(), [1, 4]);
            // The shapes show whether it is transposed.
            let options = ExpertOptions::new().gate_up(order);
            assert_equal(&stacked.experts(Split, &options).unwrap(), &split(), "{order:?}");
        }
    }
}

#[test]
fn experts_are_in_the_order_of_their_numbers() {
    let names: Vec<_> = (0..12)
        .rev()
        .flat_map(|i| ["w1", "w3", "w2"].map(|w| format!("moe.experts.{i}.{w}.weight")))
        .collect();
    let tensors: Vec<(&str, &[usize])> = names.iter().map(|name| (&**name, &[1, 1][..])).collect();
    let options = ExpertOptions::new().gate_up(GateUp::First);
    let stacked = numbered(&tensors).experts(Stacked, &options).unwrap();
    let down = stacked.tensor("moe.experts.down_proj").unwrap().read().unwrap();
    let expected: Vec<u8> = (0..12).rev().map(|i| i * 3 + 2).collect();
    assert_eq!(down.bytes(), expected);
}

/// The error names the tensor, the number that is expected and the one that is found.
#[test]
fn experts_that_do_not_fit_are_refused() {
    const GATE_UP: &str = "mlp.experts.gate_up_proj";
    const DOWN: &str = "mlp.experts.down_proj";
    let huge = format!("mlp.experts.{}.up_proj.weight", usize::MAX);
    let split = |last: &'static str, shape: &'static [usize]| {
        let mut tensors = vec![
            ("mlp.experts.0.gate_proj.weight", &[2, 1][..]),
            ("mlp.experts.0.up_proj.weight", &[2, 1]),
            ("mlp.experts.0.down_proj.weight", &[1, 2]),
            ("mlp.experts.1.gate_proj.weight", &[2, 1]),
            ("mlp.experts.1.down_proj.weight", &[1, 2]),
        ];
        tensors.push((last, shape));
        numbered(&tensors)
    };
    for (checkpoint, layout, expected) in [
        (
            numbered(&[("mlp.experts", &[1])]),
            Split,
            "there are no experts: expected tensors such as",
        ),
        (
            numbered(&[("mlp.gate.weight", &[1])]),
            Stacked,
            "\"model.layers.0.experts.gate_up_proj\"",
        ),
        (
            split("x", &[1]),
            Stacked,
            "\"mlp.experts.1.up_proj.weight\" is missing, one of 2 experts",
        ),
        (split("mlp.experts.01.up_proj.weight", &[2, 1]), Stacked, "experts.1.up_proj.weight\" is"),
        (split("mlp.experts.1.up_proj.weight", &[1, 1]), Stacked, "shape"),
        (
            numbered(&[(&huge, &[1, 1])]),
            Stacked,
            "experts.0.gate_proj.weight\" is missing, one of 1",
        ),
        (numbered(&[(GATE_UP, &[1, 4, 3])]), Split, "\"mlp.experts.down_proj\" is missing"),
        (numbered(&[(DOWN, &[1, 4, 3])]), Split, "\"mlp.experts.gate_up_proj\" is missing"),
        (numbered(&[(GATE_UP, &[4, 3]), (DOWN, &[3, 2])]), Split, "there are no experts"),
        (numbered(&[(GATE_UP, &[1, 1, 4, 3]), (DOWN, &[3, 2])]), Split, "found [1, 1, 4, 3]"),
        (
            numbered(&[
                ("0.mlp.experts.gate_up_proj", &[65536, 2, 1]),
                ("0.mlp.experts.down_proj", &[65536, 1, 1]),
                ("1.mlp.experts.gate_up_proj", &[65536, 2, 1]),
                ("1.mlp.experts.down_proj", &[65536, 1, 1]),
            ]),
            Split,
            "\"1.mlp.experts.gate_up_proj\": expected 262144 matrices or fewer of all layers",
        ),
        (numbered(&[(GATE_UP, &[2, 4, 0]), (DOWN, &[2, 0, 2])]), Split, "found [2, 4, 0]"),
        (numbered(&[(GATE_UP, &[99999, 0, 1]), (DOWN, &[1])]), Split, "found [99999, 0, 1]"),
        (
            numbered(&[(GATE_UP, &[1, 4, 3]), (DOWN, &[1, 3, 3])]),
            Split,
            "tensor \"mlp.experts.down_proj\": expected [1, 3, 2] in a stack of experts, found [1, 3, 3]",
        ),
        (
            numbered(&[
                (GATE_UP, &[1, 4, 3]),
                (DOWN, &[1, 3, 2]),
                ("mlp.experts.down_proj_bias", &[1, 2]),
            ]),
            Split,
            "tensor \"mlp.experts.down_proj_bias\": expected [1, 3] in a stack of experts, found [1, 2]",
        ),
    ] {
        let options = ExpertOptions::new().gate_up(GateUp::First);
        let error = checkpoint.experts(layout, &options).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\n{expected}");
    }
}

/// The shared experts of Granite 4 are matrices with the names of stacks.
#[test]
fn matrices_with_names_of_stacks_are_kept() {
    let (dir, path) = place("model.safetensors");
    write(dir.path(), "config.json", r#"{"model_type": "granitemoehybrid"}"#);
    let tensor = |shape: &[usize]| {
        TensorBuf::from_vec(shape.to_vec(), vec![1_u8; shape.iter().product()]).unwrap()
    };
    let tensors = [
        ("l.0.block_sparse_moe.input_linear.weight", tensor(&[1, 4, 3])),
        ("l.0.block_sparse_moe.output_linear.weight", tensor(&[1, 3, 2])),
        ("l.0.shared_mlp.input_linear.weight", tensor(&[4, 3])),
        ("l.0.shared_mlp.output_linear.weight", tensor(&[3, 2])),
    ];
    save(&path, tensors, &SaveOptions::new()).unwrap();
    let split = Checkpoint::open(&path).unwrap().experts(Split, &ExpertOptions::new()).unwrap();
    assert_eq!(split.len(), 5);
    assert_eq!(split.tensor("l.0.shared_mlp.input_linear.weight").unwrap().shape(), [4, 3]);
}

/// Two layers share their experts: the file has these once, and the other name in its metadata.
#[test]
fn experts_with_another_name_are_split_for_both() {
    let tensors = [("l.0.experts.gate_up_proj", [1, 2, 2]), ("l.0.experts.down_proj", [1, 2, 1])];
    let tensors = tensors.map(|(name, shape): (_, [usize; 3])| {
        let values = vec![1_u8; shape.iter().product()];
        (name, TensorBuf::from_vec(shape.to_vec(), values).unwrap())
    });
    let names = [
        ("l.1.experts.gate_up_proj", "l.0.experts.gate_up_proj"),
        ("l.1.experts.down_proj", "l.0.experts.down_proj"),
    ];
    let bytes = serialize(tensors, &SaveOptions::new().metadata(names)).unwrap();
    let options = ExpertOptions::new().gate_up(GateUp::First);
    let shared = Checkpoint::from_source(bytes, "shared").unwrap();
    let split = shared.experts(Split, &options).unwrap();
    assert_eq!(split.len(), 6);
    assert_eq!(split.tensor("l.1.experts.0.up_proj.weight").unwrap().shape(), [1, 2]);
}

/// A file of two layers, of which one is stacked already, such as one for several tokens.
#[test]
fn layers_of_the_other_layout_alone_are_changed() {
    let mixed = numbered(&[
        ("l.0.experts.0.gate_proj.weight", &[2, 1]),
        ("l.0.experts.0.up_proj.weight", &[2, 1]),
        ("l.0.experts.0.down_proj.weight", &[1, 2]),
        ("l.1.experts.gate_up_proj", &[1, 4, 1]),
        ("l.1.experts.down_proj", &[1, 1, 2]),
    ]);
    let options = ExpertOptions::new().gate_up(GateUp::First);
    let stacked = mixed.experts(Stacked, &options).unwrap();
    let shapes: Vec<_> = stacked.tensors().map(|tensor| tensor.shape().to_vec()).collect();
    assert_eq!(shapes, [[1, 1, 2], [1, 4, 1], [1, 1, 2], [1, 4, 1]]);
}

#[test]
fn a_rewrite_saves_experts_in_shards() {
    let Mixture { split, stacked, .. } = Mixture::named("gpt_oss");
    let (_directory, path) = place("model");
    let view = Checkpoint::open(&split).unwrap().experts(Stacked, &ExpertOptions::new()).unwrap();
    let options = ShardOptions::new().max_shard_size(MaxShardSize(300));
    Rewrite::from_checkpoint(&view).save_sharded(&path, &options).unwrap();
    let saved = Checkpoint::open(&path).unwrap();
    assert!(saved.files().len() > 2);
    assert_equal(&saved, &Checkpoint::open(&stacked).unwrap(), "saved");
}

fn as_numbers(layout: ExpertLayout) -> LoadOptions {
    let numbers = LoadOptions::new().quantized(QuantizedWeights::Numbers);
    numbers.experts(layout, ExpertOptions::new())
}

/// Each scheme, and whether a stack of its weights is one that can be read.
#[test]
fn quantised_experts_move_with_their_scales() {
    let (dir, path) = place("model.safetensors");
    let values = |seed: usize| (0..128 * 256).map(move |i| ((seed * 31 + i * 7) as f32).sin());
    let names = (0..2).flat_map(|expert| {
        ["gate", "up", "down"].map(|it| format!("mlp.experts.{expert}.{it}_proj.weight"))
    });
    let tensor = |seed| {
        // Blocks of 128 by 128 have several scales.
        let shape = if seed % 3 == 2 { [128, 256] } else { [256, 128] };
        TensorBuf::from_vec(shape.to_vec(), values(seed).collect()).unwrap()
    };
    let floats = names.enumerate().map(|(seed, name)| (name, tensor(seed)));
    let bytes = serialize(floats.collect::<Vec<_>>(), &SaveOptions::new()).unwrap();
    let floats = Checkpoint::from_source(bytes, "floats").unwrap();
    let mut refused = Vec::new();
    for how in Quantization::ALL {
        let layers = LinearLayers::new();
        let rewrite = Rewrite::from_checkpoint(&floats);
        let rewrite = rewrite.quantize(how, &ConvertOptions::new(), &layers, |_, _| None).unwrap();
        let config = rewrite.quantized_config(r#"{"model_type": "qwen3_moe"}"#).unwrap();
        write(dir.path(), "config.json", config);
        rewrite.save(&path, &SaveOptions::new()).unwrap();
        let open = || Checkpoint::open(&path).unwrap();
        let numbers = open().dequantized().unwrap().experts(Stacked, &ExpertOptions::new());
        let numbers = numbers.unwrap();
        // Also if the codes have no such form.
        let view = into_view(open(), &as_numbers(Stacked)).unwrap();
        assert_equal(&view, &numbers, &how.to_string());
        let stacked = match open().experts(Stacked, &ExpertOptions::new()) {
            Ok(stacked) => stacked,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Quantization { .. }), "{how}: {error}");
                refused.push(how);
                continue;
            }
        };
        assert!(stacked.tensors().all(|it| it.shape().first() == Some(&2)), "{how}");
        assert_equal(&stacked.clone().dequantized().unwrap(), &numbers, &how.to_string());
        let split = into_view(stacked.clone(), &as_numbers(Split)).unwrap();
        assert_equal(&split, &open().dequantized().unwrap(), &how.to_string());
        assert_equal(
            &stacked.experts(Split, &ExpertOptions::new()).unwrap(),
            &open(),
            &how.to_string(),
        );
    }
    assert_eq!(refused, [Quantization::Fp8Tensor, Quantization::Nvfp4]);
}

#[test]
fn experts_of_every_scheme_are_stacked_as_codes_or_as_numbers() {
    let (mut as_codes, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for fixture in Quantized::all() {
        let dir = tempdir().unwrap();
        if !fixture.write_experts(dir.path()) {
            continue;
        }
        let open = || Checkpoint::open(dir.path()).unwrap();
        let scheme = open().quantized_weights().unwrap()[0].scheme;
        let none = ExpertOptions::new();
        let expected = open().dequantized().unwrap().experts(Stacked, &none).unwrap();
        let numbers = into_view(open(), &as_numbers(Stacked)).unwrap();
        assert_equal(&numbers, &expected, &fixture.name);
        let split = into_view(open(), &as_numbers(Split)).unwrap();
        assert_equal(&split, &open().dequantized().unwrap(), &fixture.name);
        match open().experts(Stacked, &none) {
            Ok(codes) => {
                assert_equal(&codes.dequantized().unwrap(), &expected, &fixture.name);
                as_codes.insert(scheme);
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Quantization { .. }), "{error}");
                refused.insert(scheme);
            }
        }
    }
    assert!(as_codes.len() > 3 && refused.len() > 9, "{as_codes:?} {refused:?}");
}

/// The blocks, scales and biases of gpt-oss, with a hidden size of 64 and 32 numbers inside.
#[test]
fn experts_of_gpt_oss_are_split_with_their_blocks() {
    let (dir, path) = place("model.safetensors");
    let root = "model.layers.0.mlp.experts";
    let tensor = |(seed, (name, shape)): (usize, (&str, &[usize]))| {
        let values = (0..shape.iter().product()).map(|i: usize| (i * 7 + seed) as u8 % 100 + 80);
        let values = TensorBuf::from_vec(shape.to_vec(), values.collect::<Vec<u8>>()).unwrap();
        let dtype = if name.ends_with("bias") { Dtype::F32 } else { Dtype::U8 };
        (format!("{root}.{name}"), values.convert(dtype, &ConvertOptions::new()).unwrap())
    };
    let shapes: [(&str, &[usize]); 6] = [
        ("gate_up_proj_blocks", &[2, 64, 2, 16]),
        ("gate_up_proj_scales", &[2, 64, 2]),
        ("gate_up_proj_bias", &[2, 64]),
        ("down_proj_blocks", &[2, 64, 1, 16]),
        ("down_proj_scales", &[2, 64, 1]),
        ("down_proj_bias", &[2, 64]),
    ];
    save(&path, shapes.into_iter().enumerate().map(tensor), &SaveOptions::new()).unwrap();
    let config = r#"{"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}"#;
    write(dir.path(), "config.json", config);
    let open = || Checkpoint::open(&path).unwrap();
    let none = ExpertOptions::new();
    let split = open().experts(Split, &none).unwrap();
    let up = split.tensor(&format!("{root}.1.up_proj.weight.blocks")).unwrap();
    assert_eq!(up.shape(), [32, 2, 16]);
    let numbers = open().dequantized().unwrap().experts(Split, &none).unwrap();
    assert_equal(&split.clone().dequantized().unwrap(), &numbers, "numbers");
    assert_equal(&split.experts(Stacked, &none).unwrap(), &open(), "round");
}
