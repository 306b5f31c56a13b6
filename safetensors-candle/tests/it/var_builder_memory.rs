//! Building a model takes the memory of its tensors, 32 MiB, and the bytes read ahead at most. So
//! do parts of tensors, and weights that are multiplied by their scales.

use candle_core::{DType, Device, Tensor};
use candle_nn::var_builder::Shard;
use safetensors_candle::{CheckpointBackend, TensorParallelBackend};
use safetensors_core::load::QuantizedWeights;
use safetensors_core::{Checkpoint, Dtype, LoadOptions};
use safetensors_testing::files::write_hole;
use safetensors_testing::memory::{growth, resident};
use safetensors_testing::process::is_alone;

use crate::common::place;

const MIB: u64 = 1 << 20;

#[track_caller]
fn assert_within(taken: u64, tensors: u64, ahead: u64) {
    let most = tensors + ahead + 32 * MIB;
    assert!(taken <= most, "{} MiB, at most {} MiB", taken / MIB, most / MIB);
}

/// Parts of tensors that are kept until a model asks for them take only their own memory.
#[test]
fn parts_take_their_own_memory() {
    if !is_alone(parts_take_their_own_memory) {
        return;
    }
    let (_dir, path) = place("model.safetensors");
    let before = resident();
    let tensors: Vec<_> =
        (0..16).map(|i| (format!("h.{i}"), Dtype::BF16, vec![2048, 2048])).collect();
    let parts = write_hole(&path, tensors.clone()) / 2;
    for dim in [0, 1] {
        let wanted = || {
            let half = Shard { dim, rank: 1, world_size: 2 };
            tensors.iter().map(move |(name, ..)| (name, half))
        };
        let (model, taken) = growth(before, || {
            let backend = TensorParallelBackend::new(Checkpoint::open(&path).unwrap());
            backend.prefetch(wanted(), DType::BF16, &Device::Cpu).unwrap();
            let builder = backend.var_builder(DType::BF16, &Device::Cpu);
            let get = |(name, half): (&String, _)| builder.get_with_hints((), name, half).unwrap();
            wanted().map(get).collect::<Vec<_>>()
        });
        assert!(model.len() == 16 && taken >= parts, "{} MiB", taken / MIB);
        assert_within(taken, parts, 0);
    }
}

/// Weights that are multiplied by their scales while they are read: neither the codes nor the
/// scales of all of them are in memory at once.
#[test]
fn dequantised_weights_take_their_own_memory() {
    if !is_alone(dequantised_weights_take_their_own_memory) {
        return;
    }
    let (_dir, path) = place("model.safetensors");
    let before = resident();
    let layer = |i| {
        let weight = (format!("h.{i}.weight"), Dtype::F8_E4M3, vec![2048, 2048]);
        [weight, (format!("h.{i}.weight_scale_inv"), Dtype::F32, vec![16, 16])]
    };
    write_hole(&path, (0..16).flat_map(layer));
    let size = 16 * 2048 * 2048 * 2;
    for (ahead, is_prefetched) in [(0, false), (64 * MIB, false), (0, true)] {
        let (model, taken) = growth(before, || {
            let numbers = LoadOptions::new().quantized(QuantizedWeights::Numbers);
            let checkpoint = Checkpoint::open(&path).unwrap();
            let backend = CheckpointBackend::new_with(checkpoint, &numbers).unwrap();
            let backend = backend.read_ahead(ahead);
            if is_prefetched {
                assert_eq!(backend.prefetch("", DType::BF16).unwrap(), 16);
            }
            let builder = backend.var_builder(DType::BF16, &Device::Cpu);
            let get = |i| builder.get((2048, 2048), &format!("h.{i}.weight")).unwrap();
            (0..16).map(get).collect::<Vec<Tensor>>()
        });
        assert!(model.len() == 16 && taken >= size, "{} MiB", taken / MIB);
        assert_within(taken, size, 0);
    }
}

#[test]
fn memory_stays_within_the_bounds() {
    if !is_alone(memory_stays_within_the_bounds) {
        return;
    }
    let (_dir, path) = place("model.safetensors");
    // 48 layers of a tensor of 4 MiB and one of 64 KiB.
    let names = (0..48).flat_map(|layer| ["large", "small"].map(|n| format!("h.{layer}.{n}")));
    let names: Vec<String> = names.collect();
    let elements = [2 * MIB, 32 * 1024].into_iter().cycle();
    let tensors =
        names.iter().zip(elements).map(|(name, len)| (name.clone(), Dtype::BF16, vec![len]));
    let end = write_hole(&path, tensors);
    let open = || CheckpointBackend::new(Checkpoint::open(&path).unwrap());

    // The work that needs least comes first, because freed memory may stay with the process.
    let before = resident();

    // A model that drops each tensor before it asks for the next: the bytes read ahead, not more.
    for ahead in [0, 16 * MIB, 64 * MIB] {
        let ((), taken) = growth(before, || {
            let builder = open().read_ahead(ahead).var_builder(DType::BF16, &Device::Cpu);
            names.iter().for_each(|name| drop(builder.get_unchecked(name).unwrap()));
        });
        assert!(taken >= ahead / 4 * 3, "{} MiB", taken / MIB);
        assert_within(taken, 4 * MIB, ahead);
    }

    // A model that holds all of its tensors: only these, because tensors that are read ahead are
    // handed out without a copy.
    for (dtype, size) in [(DType::BF16, end), (DType::F32, 2 * end)] {
        for is_prefetched in [false, true] {
            let (model, taken) = growth(before, || {
                let backend = open();
                if is_prefetched {
                    assert_eq!(backend.prefetch("", dtype).unwrap(), 96);
                }
                let builder = backend.var_builder(dtype, &Device::Cpu);
                let get = |name: &String| builder.get_unchecked(name).unwrap();
                names.iter().map(get).collect::<Vec<Tensor>>()
            });
            assert_eq!(model.len(), 96);
            assert!(taken >= size, "{} MiB", taken / MIB);
            assert_within(taken, size, 0);
        }
    }
}
