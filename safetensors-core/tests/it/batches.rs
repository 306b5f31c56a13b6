//! Tensors read onto a device in batches: the same tensors, with bounded memory in between.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;

use safetensors_core::framework::{Framework, Support, load, read_in_batches};
use safetensors_core::load::QuantizedWeights;

use crate::support::*;

/// The bytes that were moved onto the device so far, and the tensor that does not fit.
#[derive(Default)]
struct Device {
    moved: Arc<AtomicU64>,
    refused: Cell<Option<u64>>,
}

/// A framework with a device that has separate memory.
struct Apart;

impl Framework for Apart {
    const NAME: &'static str = "apart";
    type Tensor = Arc<TensorBuf>;
    type Device = Device;

    fn support(dtype: Dtype) -> Support {
        match dtype {
            Dtype::C64 => Support::Unsupported,
            Dtype::I8 => Support::Widened(Dtype::I16),
            _ => Support::Exact,
        }
    }

    fn from_exact(buf: TensorBuf, device: &Device) -> Result<Arc<TensorBuf>> {
        let before = device.moved.fetch_add(buf.bytes().len() as u64, Ordering::SeqCst);
        if device.refused.get() == Some(before) {
            return Err(Error::framework::<Self>(std::fmt::Error));
        }
        Ok(Arc::new(buf))
    }

    fn source(tensor: &Arc<TensorBuf>) -> Result<impl TensorSource + '_> {
        Ok(&**tensor)
    }
}

const MIB: u64 = 1 << 20;

/// Ten tensors of 1 MiB, and one of 8 MiB in their middle.
fn saved(path: &Path) -> Checkpoint {
    let tensors: Vec<_> = (0..11_u8)
        .map(|i| {
            let len = if i == 5 { 8 * MIB } else { MIB } as usize;
            (format!("t{i:02}"), TensorBuf::from_vec(vec![len / 2, 2], vec![i; len]).unwrap())
        })
        .collect();
    let options = SaveOptions::new().durable(false);
    save(path, tensors.iter().map(|(name, buf)| (name, buf)), &options).unwrap();
    Checkpoint::open(path).unwrap()
}

#[test]
fn batches_are_the_tensors_in_order_and_hold_no_more_than_they_may() {
    let dir = tempdir().unwrap();
    let checkpoint = saved(&dir.path().join("a.safetensors"));
    let tensors: Vec<_> = checkpoint.tensors().collect();
    // The bytes of a batch, and the most that are ever read and not yet moved.
    for (batch, most) in [(0, 8), (1, 8), (3, 8), (9, 9), (10, 10), (u64::MAX, 18)] {
        let device = Device::default();
        let moved = Arc::clone(&device.moved);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        let options = LoadOptions::new().threads(2).progress(move |progress| {
            let held = progress.bytes_done - moved.load(Ordering::SeqCst);
            noted.lock().unwrap().push((progress.bytes_done, held, progress.bytes_total));
            ControlFlow::Continue(())
        });
        let batch = batch.saturating_mul(MIB);
        let loaded = read_in_batches::<Apart, _>(&tensors, &device, &options, batch).unwrap();
        for (tensor, loaded) in tensors.iter().zip(&loaded) {
            let expected = tensor.read().unwrap();
            assert_eq!(loaded.shape(), expected.shape());
            assert!(loaded.bytes() == expected.bytes());
        }
        let mut seen = seen.lock().unwrap().clone();
        seen.sort_unstable();
        // Progress goes on from batch to batch.
        assert_eq!(seen.last().map(|last| (last.0, last.2)), Some((18 * MIB, 18 * MIB)));
        assert!(seen.is_sorted_by(|a, b| a.0 < b.0));
        assert!(seen.iter().all(|(_, held, _)| *held <= most * MIB), "{batch}: {seen:?}");
    }
}

#[test]
fn everything_is_checked_before_the_first_batch() {
    let (_dir, path) = place("a.safetensors");
    let fine = TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0]).unwrap();
    let complex = TensorBuf::filled_by(Dtype::C64, vec![2], |_| Ok(())).unwrap();
    let small = TensorBuf::from_vec(vec![2], vec![1_i8, -1]).unwrap();
    let options = SaveOptions::new().durable(false);

    save(&path, [("fine", &fine), ("fine2", &fine), ("last", &complex)], &options).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let tensors: Vec<_> = checkpoint.tensors().collect();
    let device = Device::default();
    let read = |options: &LoadOptions| {
        read_in_batches::<Apart, _>(&tensors, &device, options, 0).unwrap_err()
    };
    let error = read(&LoadOptions::new());
    assert!(matches!(error.kind(), ErrorKind::UnsupportedDtype { .. }), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some("last"), path.to_str()));
    assert_eq!(device.moved.load(Ordering::SeqCst), 0);

    // Integers are widened, and counted as they are in memory.
    save(&path, [("fine", &fine), ("small", &small)], &options).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let loaded = load::<Apart>(&checkpoint, &device, &LoadOptions::new()).unwrap();
    assert_eq!(loaded["small"].as_slice::<i16>().unwrap(), [1, -1]);
    assert_eq!(device.moved.load(Ordering::SeqCst), 12);
}

#[test]
fn scales_are_applied_and_missing_scales_fail_before_the_first_batch() {
    let (_dir, path) = place("a.safetensors");
    let fine = TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0]).unwrap();
    // The codes of 1 and 2.
    let codes = TensorBuf::filled_by(Dtype::F8_E4M3, vec![1, 2], |bytes| {
        bytes.copy_from_slice(&[0x38, 0x40]);
        Ok(())
    });
    let codes = codes.unwrap();
    let scale = TensorBuf::from_vec(vec![1], vec![0.5_f32]).unwrap();
    let tensors = [("a", &fine), ("w", &codes), ("w_scale", &scale)];
    save(&path, tensors, &SaveOptions::new().durable(false)).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let tensors = ["a", "w", "w_scale"].map(|name| checkpoint.tensor(name).unwrap());

    let device = Device::default();
    let options = LoadOptions::new().floats_as(Dtype::F32);
    let error = read_in_batches::<Apart, _>(&tensors, &device, &options, 0);
    let error = refused!(error, ErrorKind::Quantization { .. });
    assert_eq!((error.tensor(), device.moved.load(Ordering::SeqCst)), (Some("w"), 0));

    let stored = LoadOptions::new().quantized(QuantizedWeights::Stored);
    let read = read_in_batches::<Apart, _>(&tensors, &device, &stored, 0).unwrap();
    assert_eq!(read[1].bytes(), [0x38, 0x40]);
    let options = LoadOptions::new().quantized(QuantizedWeights::Numbers);
    let loaded = load::<Apart>(&checkpoint, &device, &options).unwrap();
    assert_eq!(loaded["w"].as_slice::<f32>().unwrap(), [0.5, 1.0]);
    assert_eq!(loaded.keys().collect::<Vec<_>>(), ["a", "w"]);
}

#[test]
fn a_tensor_that_the_device_refuses_is_named() {
    let (_dir, path) = place("a.safetensors");
    let checkpoint = saved(&path);
    let tensors: Vec<_> = checkpoint.tensors().collect();
    for batch in [MIB, 4 * MIB, 100 * MIB] {
        let device = Device { refused: Cell::new(Some(3 * MIB)), ..Device::default() };
        let error = read_in_batches::<Apart, _>(&tensors, &device, &LoadOptions::new(), batch);
        let error = error.unwrap_err();
        assert_eq!((error.tensor(), error.file()), (Some("t03"), path.to_str()));
    }
}
