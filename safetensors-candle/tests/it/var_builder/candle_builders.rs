//! Equal bits to candle's own loaders.
#![allow(unsafe_code, reason = "candle's own loader maps the file, and one of ours can")]

use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use safetensors_candle::{Candle, to_candle_dtype, var_builder, var_builder_from};
use safetensors_core::framework::{Framework, Support};
use safetensors_core::{Checkpoint, Dtype, TensorBuf};
use tempfile::TempDir;

use crate::common::{bytes, patterned, place, save_bufs};

/// Shapes that every dtype can have.
const SHAPES: [&[usize]; 3] = [&[2, 3, 4], &[16], &[0, 3]];

/// A file with a tensor of each shape and of each dtype that candle has, and their names.
fn every_dtype() -> (TempDir, PathBuf, Vec<(String, Dtype)>) {
    let (dir, path) = place("model.safetensors");
    let dtypes = Dtype::ALL.iter().filter(|&&dtype| Candle::support(dtype) == Support::Exact);
    let tensors: Vec<_> = dtypes
        .flat_map(|&dtype| SHAPES.map(|shape| (dtype, shape)))
        .map(|(dtype, shape)| (format!("{dtype}.{}", shape.len()), patterned(dtype, shape)))
        .collect();
    let named: Vec<_> = tensors.iter().map(|(name, buf)| (&**name, buf.clone())).collect();
    save_bufs(&path, &named);
    let names = tensors.into_iter().map(|(name, buf)| (name, buf.dtype())).collect();
    (dir, path, names)
}

/// candle's builders over a file, and ours.
fn builders(path: &Path, file: &[u8], dtype: DType) -> [Vec<VarBuilder<'static>>; 2] {
    let device = Device::Cpu;
    // SAFETY: nothing changes the file while it is mapped.
    let mapped = unsafe { VarBuilder::from_mmaped_safetensors(&[path], dtype, &device) };
    let buffered = VarBuilder::from_buffered_safetensors(file.to_vec(), dtype, &device);
    // SAFETY: nothing changes the file while it is mapped.
    let checkpoint = unsafe { Checkpoint::mmap(path) }.unwrap();
    let ours = [
        var_builder(path, dtype, &device).unwrap(),
        var_builder_from(Checkpoint::open_files([path]).unwrap(), dtype, &device),
        var_builder_from(
            Checkpoint::from_source(file.to_vec(), "bytes in memory").unwrap(),
            dtype,
            &device,
        ),
        var_builder_from(checkpoint, dtype, &device),
    ];
    [[mapped.unwrap(), buffered.unwrap()].into(), ours.into()]
}

#[test]
fn builders_give_the_bits_of_candles_own_for_every_dtype() {
    let (_dir, path, names) = every_dtype();
    assert_eq!(names.len(), 14 * SHAPES.len());
    let file = std::fs::read(&path).unwrap();
    let slice = VarBuilder::from_slice_safetensors(&file, DType::F32, &Device::Cpu).unwrap();
    let [theirs, ours] = builders(&path, &file, DType::F32);
    for (name, dtype) in names {
        let dtype = to_candle_dtype(dtype).unwrap();
        let expected = slice.get_unchecked_dtype(&name, dtype).unwrap();
        for builder in theirs.iter().chain(&ours) {
            let tensor = builder.get_unchecked_dtype(&name, dtype).unwrap();
            assert_eq!((tensor.dtype(), tensor.dims()), (dtype, expected.dims()), "{name}");
            assert!(bytes(&tensor) == bytes(&expected), "{name}");
        }
    }
}

/// Values that all float dtypes have in their range: most are rounded in the narrow ones.
fn floats() -> Vec<f64> {
    let values = (0..2000).map(|i: i32| f64::from(i * 7919 % 4001 - 2000) / 7.0);
    values.chain([0.0, -0.0, 448.0, -448.0, 0.001953125, 1e-3, 1.0 / 3.0]).collect()
}

#[test]
fn conversions_between_floats_give_the_bits_of_candles_own() {
    let (_dir, path) = place("model.safetensors");
    let wide = TensorBuf::from_vec(vec![2007], floats()).unwrap();
    let dtypes = [Dtype::F64, Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F8_E4M3];
    let options = |dtype| safetensors_core::LoadOptions::new().all_as(dtype);
    save_bufs(&path, &[("wide", wide)]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let tensors = dtypes.map(|dtype| {
        let bufs = checkpoint.read_named(["wide"], &options(dtype)).unwrap();
        (dtype.name(), bufs.into_iter().next().unwrap())
    });
    save_bufs(&path, &tensors);

    let file = std::fs::read(&path).unwrap();
    for to in dtypes {
        let dtype = to_candle_dtype(to).unwrap();
        let [theirs, ours] = builders(&path, &file, dtype);
        for from in dtypes {
            if (from, to) == (Dtype::F8_E4M3, Dtype::F64) {
                // candle 0.11 overflows the stack.
                continue;
            }
            let expected = theirs[0].get(2007, from.name()).unwrap();
            for builder in theirs.iter().chain(&ours) {
                let tensor = builder.get(2007, from.name()).unwrap();
                assert_eq!(tensor.dtype(), dtype);
                assert!(bytes(&tensor) == bytes(&expected), "{from} to {to}");
            }
        }
    }
}
