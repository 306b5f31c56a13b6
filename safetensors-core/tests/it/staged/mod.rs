//! Tensors that a device copies from a few slots: they arrive whole, and every failure ends the
//! load.

pub(crate) mod device;
mod failing;

use std::time::{Duration, Instant};

use device::{Device, Wide, check};
use safetensors_core::convert::can_convert;
use safetensors_core::framework::{StagingBuffers, read_staged};
use safetensors_core::load::QuantizedWeights;
use safetensors_testing::read_at::NotingSource;

use crate::support::*;

const SMALL: StagingBuffers = StagingBuffers { slots: 3, slot_bytes: 256 };

/// Values that every conversion of the tests takes: small numbers without fraction.
pub(crate) fn small_numbers(dtype: Dtype, shape: &[usize]) -> TensorBuf {
    let count = shape.iter().product();
    let values: Vec<u8> = (0..count).map(|i| (i * 7 % 2) as u8).collect();
    let buf = TensorBuf::from_vec(shape.to_vec(), values).unwrap();
    if dtype != Dtype::U8 && can_convert(Dtype::U8, dtype) {
        return buf.convert(dtype, &Default::default()).unwrap();
    }
    TensorBuf::filled_by(dtype, shape.to_vec(), |bytes| {
        bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 37 % 61) as u8);
        Ok(())
    })
    .unwrap()
}

pub(crate) fn saved(path: &Path, tensors: &[(String, TensorBuf)]) -> Checkpoint {
    let tensors = tensors.iter().map(|(name, buf)| (name, buf));
    save(path, tensors, &SaveOptions::new().durable(false)).unwrap();
    Checkpoint::open(path).unwrap()
}

#[test]
fn every_dtype_arrives_as_it_is_loaded() {
    let dir = tempdir().unwrap();
    let shapes: [&[usize]; 6] = [&[8], &[0, 4], &[1000], &[3, 8, 11], &[1, 1, 40], &[4, 0]];
    let mut tensors = Vec::new();
    for dtype in Dtype::ALL {
        for (i, shape) in shapes.iter().enumerate() {
            tensors.push((format!("{dtype}.{i}"), small_numbers(*dtype, shape)));
        }
    }
    let checkpoint = saved(&dir.path().join("a.safetensors"), &tensors);
    let plain = LoadOptions::new();
    let framework = plain.clone().for_framework::<Wide>();
    for options in [
        plain.clone(),
        plain.floats_as(Dtype::F32),
        framework.clone(),
        framework.clone().floats_as(Dtype::BF16),
        framework.clone().floats_as(Dtype::F8_E5M2),
        framework.clone().floats_as(Dtype::F64),
        framework.all_as(Dtype::F32),
    ] {
        let rings = [(1, 1, 128), (2, 2, 200), (4, 5, 1021), (1, 5, 1021), (4, 16, 1 << 20)];
        for (threads, slots, slot_bytes) in rings {
            let options = options.clone().threads(threads);
            check(&checkpoint, &options, StagingBuffers { slots, slot_bytes });
        }
    }
}

#[test]
fn one_dtype_for_all_arrives_complex_numbers_too() {
    let dir = tempdir().unwrap();
    let dtypes = Dtype::ALL.iter().filter(|dtype| can_convert(**dtype, Dtype::F64));
    let tensors: Vec<_> = dtypes
        .chain([&Dtype::C64])
        .map(|dtype| (dtype.to_string(), small_numbers(*dtype, &[3, 104])))
        .collect();
    let checkpoint = saved(&dir.path().join("a.safetensors"), &tensors);
    for dtype in [Dtype::F64, Dtype::F32, Dtype::BF16] {
        let options = LoadOptions::new().for_framework::<Wide>().all_as(dtype);
        for (slots, slot_bytes) in [(1, 0), (2, 136), (4, 4096)] {
            check(&checkpoint, &options, StagingBuffers { slots, slot_bytes });
        }
    }
}

/// Weights of 8 bits with scales for blocks, channels and the whole weight.
fn quantised(path: &Path) -> Checkpoint {
    let scales = |shape: &[usize]| {
        let count: usize = shape.iter().product();
        let values = (0..count).map(|i| 0.5 + i as f32 / 8.0).collect();
        TensorBuf::from_vec(shape.to_vec(), values).unwrap()
    };
    let tensors = [
        ("blocks", small_numbers(Dtype::F8_E4M3, &[200, 301])),
        ("blocks_scale_inv", scales(&[2, 3])),
        ("channels", small_numbers(Dtype::F8_E4M3, &[50, 70])),
        ("channels_scale", scales(&[50, 1])),
        ("whole", small_numbers(Dtype::F8_E5M2, &[1000])),
        ("whole_scale", scales(&[])),
        ("without", small_numbers(Dtype::F8_E4M3, &[200])),
    ];
    saved(path, &tensors.map(|(name, buf)| (name.to_string(), buf)))
}

#[test]
fn quantised_weights_arrive_with_their_scales_applied() {
    let dir = tempdir().unwrap();
    let numbers = quantised(&dir.path().join("a.safetensors")).dequantized().unwrap();
    for options in [LoadOptions::new(), LoadOptions::new().for_framework::<Wide>()] {
        for options in [options.clone(), options.floats_as(Dtype::BF16)] {
            for (slots, slot_bytes) in [(1, 128), (3, 1000), (4, 1 << 20)] {
                check(&numbers, &options, StagingBuffers { slots, slot_bytes });
            }
        }
    }
    let checkpoint = quantised(&dir.path().join("b.safetensors"));
    let stored = LoadOptions::new().quantized(QuantizedWeights::Stored).floats_as(Dtype::F32);
    check(&checkpoint, &stored, SMALL);

    let tensors: Vec<_> = checkpoint.tensors().collect();
    let mut device = Device::default();
    let refused = LoadOptions::new().floats_as(Dtype::F32);
    let error = refused!(
        read_staged(&tensors, &refused, SMALL, &mut device),
        ErrorKind::Quantization { .. }
    );
    assert_eq!((error.tensor(), device.slots), (Some("blocks"), 0));
}

#[test]
fn no_tensors_and_no_elements_need_no_slot() {
    let dir = tempdir().unwrap();
    let checkpoint = saved(&dir.path().join("a.safetensors"), &[]);
    assert_eq!(check(&checkpoint, &LoadOptions::new(), SMALL).slots, 0);
    let none = [("none".to_string(), small_numbers(Dtype::F32, &[0, 7]))];
    let checkpoint = saved(&dir.path().join("b.safetensors"), &none);
    assert_eq!(check(&checkpoint, &LoadOptions::new(), SMALL).slots, 0);
    // A ring of no slots has one all the same.
    let some = [("some".to_string(), small_numbers(Dtype::F32, &[300]))];
    let checkpoint = saved(&dir.path().join("c.safetensors"), &some);
    let device =
        check(&checkpoint, &LoadOptions::new(), StagingBuffers { slots: 0, slot_bytes: 0 });
    assert_eq!((device.slots, device.begun), (1, 1200_usize.div_ceil(128)));
}

#[test]
fn shards_arrive_together() {
    let dir = tempdir().unwrap();
    let mut entries = Vec::new();
    for shard in 0..3 {
        let name = format!("t{shard}");
        let file = format!("{shard}.safetensors");
        saved(&dir.path().join(&file), &[(name.clone(), small_numbers(Dtype::BF16, &[500]))]);
        entries.push(format!(r#""{name}":"{file}""#));
    }
    let index = format!(r#"{{"metadata":{{}},"weight_map":{{{}}}}}"#, entries.join(","));
    fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    check(&checkpoint, &LoadOptions::new().floats_as(Dtype::F32), SMALL);
}

#[test]
fn progress_counts_every_byte_once() {
    let dir = tempdir().unwrap();
    let zeros = TensorBuf::filled_by(Dtype::BF16, vec![3 << 20], |_| Ok(())).unwrap();
    let tensors = [("w".to_string(), zeros)];
    let checkpoint = saved(&dir.path().join("a.safetensors"), &tensors);
    let tensors: Vec<_> = checkpoint.tensors().collect();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let options = LoadOptions::new().floats_as(Dtype::F32).progress(move |progress| {
        noted.lock().unwrap().push((progress.bytes_done, progress.bytes_total));
        ControlFlow::Continue(())
    });
    let mut device = Device::with([12 << 20].into_iter());
    read_staged(&tensors, &options, StagingBuffers { slots: 4, slot_bytes: 1 << 20 }, &mut device)
        .unwrap();
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_unstable();
    let expected: Vec<(u64, u64)> = (1..=12).map(|mib| (mib << 20, 12 << 20)).collect();
    assert_eq!(seen, expected);
}

fn noting(tensors: &[(String, TensorBuf)]) -> (Checkpoint<NotingSource>, NotingSource) {
    let tensors = tensors.iter().map(|(name, buf)| (name, buf));
    let source = NotingSource::new(serialize(tensors, &SaveOptions::new()).unwrap());
    let open = |_: &Path| Ok(source.clone());
    let checkpoint = Checkpoint::open_by("a.safetensors", &Limits::default(), open).unwrap();
    source.take_calls();
    (checkpoint, source)
}

#[test]
fn small_neighbours_share_a_slot_and_a_read() {
    let tensors: Vec<_> =
        (0..1000).map(|i| (format!("{i:04}"), small_numbers(Dtype::F32, &[16]))).collect();
    let (checkpoint, source) = noting(&tensors);
    let tensors: Vec<_> = checkpoint.tensors().collect();
    let mut device = Device::with([64].into_iter().cycle().take(1000));
    let ring = StagingBuffers { slots: 4, slot_bytes: 6400 };
    read_staged(&tensors, &LoadOptions::new(), ring, &mut device).unwrap();
    let calls = source.take_calls();
    assert_eq!((device.begun, calls.len()), (10, 10));
    let ranges = calls.iter().flatten();
    assert_eq!(ranges.map(|range| range.end - range.start).sum::<u64>(), 64_000);
    let expected = small_numbers(Dtype::F32, &[16]);
    assert!(device.tensors.iter().all(|bytes| bytes == expected.bytes()));
}

#[test]
fn threads_read_on_while_the_device_copies() {
    let tensors = [("w".to_string(), small_numbers(Dtype::U8, &[64 * 256]))];
    let (checkpoint, source) = noting(&tensors);
    let tensors: Vec<_> = checkpoint.tensors().collect();
    let mut device = Device::new(&tensors, &LoadOptions::new());
    source.take_calls();
    let ring = StagingBuffers { slots: 4, slot_bytes: 256 };
    // Each copy lasts until the other slots are filled too.
    let mut calls = 0;
    device.before_waiting = Some(Box::new(move |begun| {
        let filled = (begun.max(ring.slots)).min(64);
        let began = Instant::now();
        loop {
            calls += source.take_calls().len();
            if calls >= filled {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(20), "nothing is read meanwhile");
            std::thread::yield_now();
        }
    }));
    read_staged(&tensors, &LoadOptions::new().threads(2), ring, &mut device).unwrap();
    assert_eq!((device.begun, device.slots), (64, 4));
}
