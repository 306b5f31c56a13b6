//! Models that take their weights from a checkpoint with LoRA adapters merged into it.

use candle_core::{DType, Device, Tensor};
use candle_nn::var_builder::Shard;
use safetensors_candle::{CheckpointBackend, TensorParallelBackend, var_builder_from};
use safetensors_core::{Dtype, LoadOptions};
use safetensors_testing::lora::Merge;

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn a_var_builder_merges_while_it_loads() {
    for fixture in Merge::all() {
        let merged = || fixture.base().merged(fixture.adapters()).unwrap();
        let builder = var_builder_from(merged(), DType::F32, &Device::Cpu);
        let backend = CheckpointBackend::new(merged());
        backend.prefetch("", DType::F32).unwrap();
        let prefetched = backend.var_builder(DType::F32, &Device::Cpu);
        for tensor in fixture.base().tensors() {
            let (shape, name) = (tensor.shape().to_vec(), tensor.name());
            let read = numbers(&builder.get(shape.clone(), name).unwrap());
            fixture.compare(name, &read);
            assert_eq!(numbers(&prefetched.get(shape, name).unwrap()), read);
        }
    }
}

/// A rank gets its part of the sum.
#[test]
fn tensor_parallelism_merges_the_part_of_a_rank() {
    for fixture in Merge::all() {
        let merged = || fixture.base().merged(fixture.adapters()).unwrap();
        let backend = TensorParallelBackend::new(merged());
        let builder = backend.var_builder(DType::F32, &Device::Cpu);
        let all = merged();
        let whole = |name: &str| {
            let read = all.tensor(name).unwrap().read_with(&LoadOptions::new().all_as(Dtype::F32));
            read.unwrap().into_vec::<f32>().unwrap()
        };
        for tensor in fixture.expected().tensors() {
            let (shape, name) = (tensor.shape().to_vec(), tensor.name());
            let half = shape[0] / 2;
            if !shape[0].is_multiple_of(2) {
                continue;
            }
            let shard = Shard { dim: 0, rank: 1, world_size: 2 };
            let part = builder.get_with_hints(shape.clone(), name, shard).unwrap();
            assert_eq!(part.dims()[0], half, "{}: {name}", fixture.name);
            let whole = whole(name);
            assert_eq!(numbers(&part), whole[whole.len() / 2..], "{}: {name}", fixture.name);
        }
    }
}
