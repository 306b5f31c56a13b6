//! Every fixture equals PEFT's result, by every way to read.

use std::collections::BTreeSet;

use safetensors_core::checkpoint::{Assembled, Computed};
use safetensors_core::lora::Adapter;
use safetensors_testing::dcp::save_rows;
use safetensors_testing::lora::Merge;

use super::{adapter, base};
use crate::support::*;

fn merged(fixture: &Merge) -> Checkpoint<Computed<Assembled>> {
    fixture.base().merged(fixture.adapters()).unwrap_or_else(|error| {
        panic!("{}: {error}", fixture.name);
    })
}

fn numbers(buf: TensorBuf) -> Vec<f32> {
    buf.convert(Dtype::F32, &Default::default()).unwrap().into_vec().unwrap()
}

#[test]
fn every_merged_tensor_equals_the_reference() {
    for fixture in Merge::all() {
        let (merged, base, expected) = (merged(&fixture), fixture.base(), fixture.expected());
        let names: BTreeSet<_> = merged.tensors().map(|tensor| tensor.name()).collect();
        let all = base.tensors().chain(expected.tensors());
        assert_eq!(names, all.map(|tensor| tensor.name()).collect());
        assert_eq!(merged.len(), names.len());
        for tensor in merged.tensors() {
            let stored = base.get(tensor.name()).or(expected.get(tensor.name())).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (stored.dtype(), stored.shape()));
            fixture.compare(tensor.name(), &numbers(tensor.read().unwrap()));
        }
        let read = merged.read_all(&LoadOptions::new().threads(3)).unwrap();
        for (tensor, buf) in merged.tensors().zip(read) {
            assert_eq!(buf.bytes(), tensor.read().unwrap().bytes(), "{}", fixture.name);
        }
    }
}

/// Every part of a tensor has the bits of the whole: by rank, by bytes.
#[test]
fn parts_of_merged_tensors_equal_the_whole() {
    for fixture in Merge::all() {
        let merged = merged(&fixture);
        for tensor in fixture.expected().tensors() {
            check_parts(merged.tensor(tensor.name()).unwrap(), &fixture.name);
        }
    }
}

#[test]
fn a_rewrite_writes_the_sums() {
    for fixture in Merge::all() {
        let merged = merged(&fixture);
        let (_directory, path) = place("model.safetensors");
        Rewrite::from_checkpoint(&merged).save(&path, &SaveOptions::new().durable(false)).unwrap();
        let saved = Checkpoint::open(&path).unwrap();
        assert_eq!(saved.len(), merged.len());
        for tensor in saved.tensors() {
            let expected = merged.tensor(tensor.name()).unwrap().read().unwrap();
            assert_eq!(tensor.read().unwrap().bytes(), expected.bytes(), "{}", fixture.name);
        }
    }
}

/// The sum is rounded once: to the dtype of the base, or to another, or not at all.
#[test]
fn a_sum_is_rounded_once() {
    let fixture = Merge::named("bf16");
    let exact = fixture.base().merged_as(fixture.adapters(), |_, _| Dtype::F32).unwrap();
    let narrow = merged(&fixture);
    for tensor in fixture.expected().tensors() {
        let exact = exact.tensor(tensor.name()).unwrap();
        assert_eq!(exact.dtype(), Dtype::F32);
        let rounded = exact.read_with(&LoadOptions::new().all_as(Dtype::BF16)).unwrap();
        let found = narrow.tensor(tensor.name()).unwrap().read().unwrap();
        assert_eq!((found.dtype(), found.bytes()), (Dtype::BF16, rounded.bytes()));
        // The sum has more digits than the base's dtype.
        let read = exact.read().unwrap().into_vec::<f32>().unwrap();
        assert_ne!(read, numbers(rounded));
    }
    let norm = exact.tensor("norm.weight").unwrap();
    assert_eq!(norm.dtype(), Dtype::BF16);
}

#[test]
fn a_scale_multiplies_the_product() {
    let fixture = Merge::named("exact-integers");
    let scaled = |scale| {
        let adapters = fixture.adapters().into_iter().map(|adapter| adapter.scale(scale));
        let merged = fixture.base().merged(adapters.collect::<Vec<_>>()).unwrap();
        numbers(merged.tensor("layers.0.q_proj.weight").unwrap().read().unwrap())
    };
    let (none, one, half) = (scaled(0.0), scaled(1.0), scaled(0.5));
    assert_eq!(
        none,
        numbers(fixture.base().tensor("layers.0.q_proj.weight").unwrap().read().unwrap())
    );
    for ((none, one), half) in none.iter().zip(&one).zip(half) {
        assert_eq!((none + one) / 2.0, half);
    }
}

/// Shards, one without a changing weight, and a tied weight.
#[test]
fn shards_and_other_names_of_a_weight() {
    let directory = tempdir().unwrap();
    let values = [1.0_f32, 2.0, 3.0, 4.0];
    let weight = TensorBuf::from_vec(vec![2, 2], values.to_vec()).unwrap();
    let tensors = ["embed.weight", "norm", "q.weight"].map(|name| (name, &weight));
    let options = ShardOptions::new().max_shard_size(16.into());
    let options = options.metadata([("head.weight", "embed.weight")]);
    save_sharded(directory.path(), tensors, &options).unwrap();
    let adapter = adapter(
        Some(", \"r\": 1, \"lora_alpha\": 1"),
        &[
            ("base_model.model.head.lora_A.weight", &[1, 2]),
            ("base_model.model.head.lora_B.weight", &[2, 1]),
        ],
    );
    let adapter = adapter.unwrap();
    assert_eq!(adapter.modules().collect::<Vec<_>>(), ["head"]);
    let merged = Checkpoint::open(directory.path()).unwrap().merged([adapter]).unwrap();
    for name in ["embed.weight", "head.weight"] {
        let read = merged.tensor(name).unwrap().read().unwrap();
        assert_eq!(read.as_slice::<f32>().unwrap(), [2.0, 4.0, 5.0, 8.0]);
    }
    let read = merged.tensor("q.weight").unwrap().read().unwrap();
    assert_eq!(read.as_slice::<f32>().unwrap(), values);
    merged.check_unchanged().unwrap();
}

/// A module that PEFT saved whole is a copy: the other names of a tied weight stay as they are.
#[test]
fn a_tensor_of_an_adapter_replaces_one_name_of_a_tied_weight() {
    let settings = ", \"r\": 1, \"lora_alpha\": 1, \"modules_to_save\": [\"head\", \"embed\"]";
    let adapter = |tensors: &[(&str, &[usize])]| adapter(Some(settings), tensors).unwrap();
    let head = || adapter(&[("base_model.model.head.weight", &[2, 2])]);
    let embed = || adapter(&[("base_model.model.embed.weight", &[2, 2])]);
    let both = || {
        let names = ["base_model.model.embed.weight", "base_model.model.head.weight"];
        adapter(&names.map(|name| (name, &[2, 2][..])))
    };
    let product = || {
        let names = ["base_model.model.head.lora_A.weight", "base_model.model.head.lora_B.weight"];
        adapter(&[(names[0], &[1, 2]), (names[1], &[2, 1])])
    };
    let (old, new, sum) = ([5.0, 6.0, 7.0, 8.0], [1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 5.0, 8.0]);
    let (directory, out) = (tempdir().unwrap(), tempfile::tempdir().unwrap());
    let weight = TensorBuf::from_vec(vec![2, 2], old.to_vec()).unwrap();
    let tensors = ["embed.weight", "norm", "q.weight"].map(|name| (name, &weight));
    for shard_size in [16, 1 << 20] {
        let options = ShardOptions::new().max_shard_size(shard_size.into());
        let names = ["head.weight", "other.weight"].map(|alias| (alias, "embed.weight"));
        save_sharded(directory.path(), tensors, &options.metadata(names)).unwrap();
        let base = || Checkpoint::open(directory.path()).unwrap();
        for (adapters, in_head, in_embed) in [
            (vec![head()], new, old),
            (vec![embed()], old, new),
            (vec![both()], new, new),
            (vec![head(), embed()], new, new),
            (vec![head(), product()], sum, old),
        ] {
            let merged = base().merged(adapters).unwrap();
            assert_eq!((merged.len(), merged.aliases().count()), (5, 0));
            let path = out.path().join("model.safetensors");
            Rewrite::from_checkpoint(&merged)
                .save(&path, &SaveOptions::new().durable(false))
                .unwrap();
            let saved = Checkpoint::open(&path).unwrap();
            let all = [("head", in_head), ("embed", in_embed), ("other", old), ("q", old)];
            for (name, expected) in all.map(|(module, it)| (format!("{module}.weight"), it)) {
                assert_eq!(numbers(merged.tensor(&name).unwrap().read().unwrap()), expected);
                assert_eq!(numbers(saved.tensor(&name).unwrap().read().unwrap()), expected);
            }
        }
        let error = base().merged([product(), head()]).unwrap_err().to_string();
        assert!(error.contains("which another tensor of the adapters changes, too"), "{error}");
    }
}

/// PEFT has a magnitude for each output, also of a convolution with as many inputs.
#[test]
fn dora_of_a_square_convolution_has_outputs() {
    let names = ["A.weight", "B.weight", "magnitude_vector"];
    let names = names.map(|end| format!("base_model.model.x.lora_{end}"));
    let tensors: [(&str, &[usize]); 3] =
        [(&names[0], &[1, 2, 1, 3]), (&names[1], &[2, 1, 1, 1]), (&names[2], &[1, 2, 1, 1])];
    let adapter = adapter(Some(", \"r\": 1, \"lora_alpha\": 1, \"use_dora\": true"), &tensors);
    let merged = base(&[("x.weight", &[2, 2, 1, 3])]).merged([adapter.unwrap()]).unwrap();
    let sums = numbers(merged.tensor("x.weight").unwrap().read().unwrap());
    for (row, magnitude) in sums.chunks(6).zip([1.0, 2.0]) {
        let norm = row.iter().map(|it| it * it).sum::<f32>().sqrt();
        assert!((norm - magnitude).abs() < 1e-5, "{norm} {magnitude}");
    }
}

/// diffusers records its settings in the metadata of the file.
#[test]
fn settings_of_diffusers() {
    let base = || base(&[("blocks.0.q.weight", &[2, 2])]);
    let ones = |shape: &[usize]| TensorBuf::from_vec(shape.to_vec(), vec![1.0_f32; 2]).unwrap();
    let (_directory, path) = place("lora.safetensors");
    let tensors = [
        ("transformer.blocks.0.q.lora_A.weight", ones(&[1, 2])),
        ("transformer.blocks.0.q.lora_B.weight", ones(&[2, 1])),
    ];
    let merged = |metadata: &[(&str, &str)]| {
        let options = SaveOptions::new().durable(false).metadata(metadata.iter().copied());
        save(&path, tensors.each_ref().map(|(name, buf)| (*name, buf)), &options).unwrap();
        let merged = base().merged([Adapter::open(&path).unwrap()]).unwrap();
        numbers(merged.tensor("blocks.0.q.weight").unwrap().read().unwrap())
    };
    assert_eq!(merged(&[]), [2.0, 3.0, 4.0, 5.0]);
    let settings =
        r#"{"transformer.r": 1, "transformer.lora_alpha": 3, "transformer.bias": "none"}"#;
    assert_eq!(merged(&[("lora_adapter_metadata", settings)]), [4.0, 5.0, 6.0, 7.0]);
}

/// Quantised weights are merged as numbers.
#[test]
fn a_quantised_base_is_dequantised_first() {
    let (_directory, path) = place("model.safetensors");
    let codes = TensorView::new(Dtype::F8_E4M3, &[2, 2], &[0x38; 4]).unwrap();
    let half = 0.5_f32.to_le_bytes();
    let scales = TensorView::new(Dtype::F32, &[1], &half).unwrap();
    save(&path, [("q.weight", codes), ("q.weight_scale", scales)], &SaveOptions::new()).unwrap();
    let adapter = || {
        let names = ["q.lora_A.weight", "q.lora_B.weight"];
        adapter(None, &[(names[0], &[1, 2]), (names[1], &[2, 1])]).unwrap()
    };
    let error = Checkpoint::open(&path).unwrap().merged([adapter()]).unwrap_err().to_string();
    assert!(error.contains("dequantise it first"), "{error}");
    let merged = Checkpoint::open(&path).unwrap().dequantized().unwrap();
    let merged = merged.merged([adapter()]).unwrap();
    let read = merged.tensor("q.weight").unwrap().read().unwrap();
    assert_eq!(read.as_slice::<f32>().unwrap(), [1.5, 2.5, 2.5, 4.5]);
}

/// A directory to which ranks of PyTorch have saved opens as their adapter.
#[test]
fn an_adapter_in_parts() {
    let directory = tempdir().unwrap();
    let names = ["head.lora_A.weight", "head.lora_B.weight"];
    let whole = base(&[(names[0], &[2, 3]), (names[1], &[4, 2])]);
    save_rows(directory.path(), &whole);
    let settings = r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 2}"#;
    fs::write(directory.path().join("adapter_config.json"), settings).unwrap();
    let merged = base(&[("head.weight", &[4, 3])]);
    let merged = merged.merged([Adapter::open(directory.path()).unwrap()]).unwrap();
    // B and A count up from 1, and so does the base, to which their product is added.
    let product = [9, 12, 15, 19, 26, 33, 29, 40, 51, 39, 54, 69];
    let expected: Vec<_> = product.iter().zip(1..).map(|(sum, base)| (sum + base) as f32).collect();
    assert_eq!(numbers(merged.tensor("head.weight").unwrap().read().unwrap()), expected);
}
