//! A failure, a cancelled load and a panic: the load ends, with the right error.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use safetensors_core::framework::{StagingBuffers, read_staged};

use super::device::{Device, Fault, Wide};
use super::{SMALL, saved, small_numbers};
use crate::support::*;

/// A load of 40 slots that this device takes part in.
fn load(device: &mut Device, options: &LoadOptions) -> Result<()> {
    let dir = tempdir().unwrap();
    let tensors = [("w".to_string(), small_numbers(Dtype::F32, &[40, 64]))];
    let checkpoint = saved(&dir.path().join("a.safetensors"), &tensors);
    let tensors: Vec<_> = checkpoint.tensors().collect();
    device.tensors = vec![vec![0xee; 40 * 256]];
    read_staged(&tensors, options, SMALL, device)
}

#[test]
fn a_device_that_fails_ends_the_load() {
    for threads in [1, 2, 8] {
        let options = LoadOptions::new().threads(threads);
        for fault in [0, 1, 2].map(Fault::NewSlot).into_iter().chain(
            [0, 1, 2, 17, 39].into_iter().flat_map(|n| [Fault::BeginCopy(n), Fault::FinishCopy(n)]),
        ) {
            let mut device = Device { fault: Some(fault), ..Device::default() };
            let result = load(&mut device, &options);
            // A load may need fewer slots than the ring has.
            if matches!(fault, Fault::NewSlot(1 | 2)) && result.is_ok() {
                continue;
            }
            let error = result.unwrap_err().to_string();
            assert!(error.contains("the device failed"), "{fault:?}: {error}");
            if let Fault::BeginCopy(n) = fault {
                assert_eq!(device.begun, n);
            }
        }
        let mut device = Device::default();
        load(&mut device, &options).unwrap();
        assert_eq!(device.finished, 40);
    }
}

#[test]
fn a_panic_of_the_device_goes_on_in_the_caller() {
    for n in [0, 1, 20] {
        let mut device = Device { fault: Some(Fault::PanicInCopy(n)), ..Device::default() };
        let options = LoadOptions::new().threads(4);
        let panic = catch_unwind(AssertUnwindSafe(|| load(&mut device, &options))).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"the device panics"));
        assert_eq!(device.begun, n);
    }
}

/// Loads with slots of 1 MiB, so that progress is reported for each.
fn load_mibs(options: &LoadOptions) -> (Result<()>, usize) {
    let dir = tempdir().unwrap();
    let bytes = TensorBuf::from_vec(vec![24 << 20], vec![7_u8; 24 << 20]).unwrap();
    let tensors = [("w".to_string(), bytes)];
    let checkpoint = saved(&dir.path().join("a.safetensors"), &tensors);
    let tensors: Vec<_> = checkpoint.tensors().collect();
    let mut device = Device::with([24 << 20].into_iter());
    let ring = StagingBuffers { slots: 2, slot_bytes: 1 << 20 };
    (read_staged(&tensors, options, ring, &mut device), device.begun)
}

#[test]
fn a_cancelled_load_ends_soon() {
    for threads in [1, 2, 8] {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let options = LoadOptions::new().threads(threads).progress(move |_| {
            match counted.fetch_add(1, Ordering::SeqCst) {
                ..3 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        });
        let (result, begun) = load_mibs(&options);
        assert!(matches!(result.unwrap_err().kind(), ErrorKind::Cancelled));
        // The slots that were filled before, and no others.
        assert!(begun <= 4 && calls.load(Ordering::SeqCst) <= 5, "{begun} {calls:?}");
    }
}

#[test]
fn a_panic_of_a_thread_that_reads_goes_on_in_the_caller() {
    for (threads, at) in [(1, 0), (1, 5), (2, 0), (8, 0), (8, 9)] {
        let calls = AtomicUsize::new(0);
        let options = LoadOptions::new().threads(threads).progress(move |_| {
            assert!(calls.fetch_add(1, Ordering::SeqCst) != at, "the callback panics");
            ControlFlow::Continue(())
        });
        let panic = catch_unwind(AssertUnwindSafe(|| load_mibs(&options))).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"the callback panics"));
    }
}

#[test]
fn the_first_tensor_that_cannot_be_read_is_named_and_the_element_counted_over_it() {
    let (_dir, path) = place("a.safetensors");
    let mut flags = vec![0_u8; 5000];
    (flags[4321], flags[4999]) = (2, 3);
    let mut seeds = vec![1_u64; 5000];
    seeds[4567] = 1 << 63;
    let view = |bytes| TensorView::new(Dtype::BOOL, &[5000], bytes).unwrap();
    let seeds = TensorBuf::from_vec(vec![5000], seeds).unwrap();
    let options = SaveOptions::new().durable(false);
    let load = |threads: usize| {
        let checkpoint = Checkpoint::open(&path).unwrap();
        let tensors: Vec<_> = checkpoint.tensors().collect();
        let lens = tensors.iter().map(|tensor| tensor.byte_len() as usize);
        let options = LoadOptions::new().for_framework::<Wide>().threads(threads);
        read_staged(&tensors, &options, SMALL, &mut Device::with(lens)).unwrap_err()
    };
    for threads in [1, 3, 8] {
        save(&path, [("good", view(&[1; 5000])), ("bad", view(&flags))], &options).unwrap();
        let error = load(threads);
        let found = ErrorKind::InvalidBool { index: 4321, found: 2 }.to_string();
        assert!(error.to_string().contains(&found), "{error}");
        assert_eq!((error.tensor(), error.file()), (Some("bad"), path.to_str()));

        save(&path, [("seeds", &seeds)], &options).unwrap();
        let error = load(threads);
        assert!(matches!(error.kind(), ErrorKind::DoesNotFit { index: 4567, .. }), "{error}");
        assert_eq!((error.tensor(), error.file()), (Some("seeds"), path.to_str()));
    }
}

#[test]
fn a_missing_conversion_is_reported_before_a_slot_is_made() {
    let dir = tempdir().unwrap();
    let tensors = [Dtype::F32, Dtype::C64].map(|d| (d.to_string(), small_numbers(d, &[100])));
    let checkpoint = saved(&dir.path().join("a.safetensors"), &tensors);
    let tensors: Vec<_> = checkpoint.tensors().collect();
    let mut device = Device::default();
    let options = LoadOptions::new().all_as(Dtype::F32);
    let error = refused!(
        read_staged(&tensors, &options, SMALL, &mut device),
        ErrorKind::NoConversion { .. }
    );
    assert_eq!((error.tensor(), device.slots), (Some("C64"), 0));
}

#[test]
fn a_file_that_has_changed_or_ends_early_is_an_error() {
    let (_dir, path) = place("a.safetensors");
    let names = ["a", "b", "c"];
    let tensors = names.map(|name| (name.to_string(), small_numbers(Dtype::F32, &[64])));
    let load = |checkpoint: &Checkpoint| {
        let tensors: Vec<_> = checkpoint.tensors().collect();
        let mut device = Device::with([256; 3].into_iter());
        let ring = StagingBuffers { slots: 2, slot_bytes: 1024 };
        read_staged(&tensors, &LoadOptions::new(), ring, &mut device).unwrap_err()
    };
    let checkpoint = saved(&path, &tensors);
    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::End(-1)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    file.write_all(b"x").unwrap();
    let error = load(&checkpoint);
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
    assert_eq!(error.file(), path.to_str());

    // All three come in one read, and the error names the one that is cut off.
    let checkpoint = saved(&path, &tensors);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(std::fs::metadata(&path).unwrap().len() - 300).unwrap();
    assert_eq!(load(&checkpoint).tensor(), Some("b"));
}
