//! Conversion while tensors are read.

use std::collections::HashSet;
use std::io;
use std::sync::Condvar;
use std::thread::{self, ThreadId};
use std::time::Duration;

use half::bf16;
use proptest::prelude::*;
use safetensors_core::convert::can_convert;
use safetensors_core::load::read_tensors;
use safetensors_testing::read_at::NotingSource;

use crate::support::*;

/// Bytes that are valid elements of any dtype. None is NaN or out of the range of any dtype.
fn small_numbers(dtype: Dtype, elements: usize) -> Vec<u8> {
    if can_convert(Dtype::U8, dtype) {
        let numbers = repeated(elements, 11, |i| (i * 7 % 11 % 2) as u8);
        return file_bytes(&super::convert(Dtype::U8, dtype, Overflow::Ieee, &numbers).unwrap());
    }
    repeated(elements * dtype.bits() as usize / 8, 251, |i| (i * 31 % 251) as u8)
}

fn file(tensors: &[(String, Dtype, usize)]) -> Vec<u8> {
    let data: Vec<_> =
        tensors.iter().map(|(_, dtype, elements)| small_numbers(*dtype, *elements)).collect();
    let shapes: Vec<_> = tensors.iter().map(|(_, _, elements)| [*elements]).collect();
    let views = tensors.iter().zip(&shapes).zip(&data).map(|(((name, dtype, _), shape), data)| {
        (name, TensorView::new(*dtype, shape, data).unwrap())
    });
    serialize(views, &SaveOptions::new()).unwrap()
}

/// Reads all tensors converted, in every way of reading, and compares the results with conversion
/// after reading.
fn check(tensors: &[(String, Dtype, usize)], options: &LoadOptions) {
    let archive = SafeTensors::from_source(NotingSource::new(file(tensors))).unwrap();
    let lazy: Vec<_> = tensors.iter().map(|(name, ..)| archive.tensor(name).unwrap()).collect();
    archive.source().take_reads();
    let bufs = read_tensors(&lazy, options).unwrap();
    for (tensor, buf) in lazy.iter().zip(bufs) {
        let target = options.dtype_of(tensor.dtype());
        let expected = tensor.read().unwrap().convert(target, &ConvertOptions::new()).unwrap();
        assert_eq!((buf.dtype(), buf.shape()), (target, tensor.shape()), "{}", tensor.name());
        assert!(
            buf.bytes() == expected.bytes(),
            "{} {} to {target}",
            tensor.name(),
            tensor.dtype()
        );
        let alone = tensor.read_with(&LoadOptions::new().all_as(target)).unwrap();
        assert!(
            alone.bytes() == expected.bytes(),
            "{} {} to {target}",
            tensor.name(),
            tensor.dtype()
        );
    }
}

#[test]
fn large_tensors_are_converted_in_pieces() {
    // Each tensor has more than two pieces of the loader, and a last piece that is not full.
    for (from, to) in [
        (Dtype::BF16, Dtype::F32),
        (Dtype::F32, Dtype::F8_E4M3),
        (Dtype::F64, Dtype::F16),
        (Dtype::F4, Dtype::F64),
        (Dtype::F6_E2M3, Dtype::BF16),
        (Dtype::F6_E3M2, Dtype::F64),
    ] {
        let elements = (9 << 20) * 8 / to.bits() as usize + 12;
        check(&[("w".into(), from, elements)], &LoadOptions::new().threads(2).floats_as(to));
    }
    let wide = LoadOptions::new().threads(3).all_as(Dtype::I64);
    check(&[("ids".into(), Dtype::U8, 1_200_001)], &wide);
}

#[test]
fn the_source_tensor_is_never_entirely_in_memory() {
    let archive =
        SafeTensors::from_source(NotingSource::new(file(&[("w".into(), Dtype::F64, 1 << 20)])));
    let archive = archive.unwrap();
    let tensor = archive.tensor("w").unwrap();
    archive.source().take_reads();
    tensor.read_with(&LoadOptions::new().all_as(Dtype::F8_E5M2)).unwrap();
    read_tensors(&[tensor], &LoadOptions::new().floats_as(Dtype::F8_E5M2)).unwrap();
    let longest = archive.source().take_reads().iter().map(|&(_, len)| len).max().unwrap();
    assert!((256 << 10..=1 << 20).contains(&longest), "{longest}");
}

/// A file in memory with first reads that wait until the expected number of threads are reading.
struct Gathering {
    bytes: Vec<u8>,
    expected: AtomicUsize,
    readers: Mutex<HashSet<ThreadId>>,
    arrived: Condvar,
}

impl ReadAt for Gathering {
    fn byte_len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut readers = self.readers.lock().unwrap();
        readers.insert(thread::current().id());
        self.arrived.notify_all();
        let is_lacking =
            |readers: &mut HashSet<_>| readers.len() < self.expected.load(Ordering::Relaxed);
        drop(
            self.arrived.wait_timeout_while(readers, Duration::from_secs(10), is_lacking).unwrap(),
        );
        self.bytes.read_exact_at(buf, offset)
    }
}

#[test]
fn the_number_of_threads_is_the_one_in_the_options() {
    let bytes = file(&[("w".into(), Dtype::BF16, 8 << 20)]);
    let (expected, readers, arrived) = (AtomicUsize::new(1), Mutex::default(), Condvar::new());
    let source = Gathering { bytes, expected, readers, arrived };
    let archive = SafeTensors::from_source(source).unwrap();
    let tensor = archive.tensor("w").unwrap();
    let narrow = tensor.read().unwrap();
    let wide = narrow.clone().convert(Dtype::F32, &ConvertOptions::new()).unwrap();
    for threads in [1, 3] {
        let load = LoadOptions::new().threads(threads);
        let check = |read: &dyn Fn() -> Result<TensorBuf>, expected: &TensorBuf| {
            archive.source().readers.lock().unwrap().clear();
            archive.source().expected.store(threads, Ordering::Relaxed);
            assert!(read().unwrap().bytes() == expected.bytes());
            assert_eq!(archive.source().readers.lock().unwrap().len(), threads);
        };
        check(&|| tensor.read_with(&load.clone().all_as(Dtype::F32)), &wide);
        check(&|| tensor.read_with(&load), &narrow);
        check(&|| tensor.read_with(&load.clone().floats_as(Dtype::F32)), &wide);
    }
    let cancelled = LoadOptions::new().progress(|_| ControlFlow::Break(()));
    refused!(tensor.read_with(&cancelled), ErrorKind::Cancelled);
}

#[test]
fn only_the_chosen_dtypes_are_converted() {
    let options = LoadOptions::new().floats_as(Dtype::F32);
    for &dtype in Dtype::ALL {
        let expected = if dtype.is_float() { Dtype::F32 } else { dtype };
        assert_eq!(options.dtype_of(dtype), expected);
        assert_eq!(LoadOptions::new().dtype_of(dtype), dtype);
    }
}

#[test]
fn errors_name_file_tensor_and_element() {
    let (_directory, path) = place("model.safetensors");
    let mut weights = 1.0_f32.to_le_bytes().repeat(3_000_000);
    weights[4 * 2_999_999..].copy_from_slice(&1e9_f32.to_le_bytes());
    let tensors = [
        ("a", TensorView::new(Dtype::F32, &[1], &[0, 0, 0x80, 0x3f]).unwrap()),
        ("b", TensorView::new(Dtype::F32, &[3_000_000], &weights).unwrap()),
    ];
    save(&path, tensors, &SaveOptions::new()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let strict = ConvertOptions::new().overflow(Overflow::Error);
    for threads in [1, 2, 5] {
        let options =
            LoadOptions::new().threads(threads).floats_as(Dtype::F16).convert_options(strict);
        let error = refused!(
            checkpoint.read_all(&options),
            ErrorKind::DoesNotFit { index: 2_999_999, to: Dtype::F16, .. }
        );
        assert_eq!((error.tensor(), error.file()), (Some("b"), path.to_str()));
    }
    let error = refused!(
        checkpoint
            .tensor("b")
            .unwrap()
            .read_with(&LoadOptions::new().all_as(Dtype::F16).convert_options(strict)),
        ErrorKind::DoesNotFit { index: 2_999_999, .. }
    );
    assert_eq!((error.tensor(), error.file()), (Some("b"), path.to_str()));

    let error = refused!(
        checkpoint.read_all(&LoadOptions::new().floats_as(Dtype::F4)),
        ErrorKind::NoConversion { from: Dtype::F32, to: Dtype::F4 }
    );
    assert_eq!((error.tensor(), error.file()), (Some("a"), path.to_str()));

    // If a file becomes shorter, the error names the tensor with the missing bytes.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1_000_000).unwrap();
    let error =
        refused!(checkpoint.read_all(&LoadOptions::new().floats_as(Dtype::F64)), ErrorKind::Io(_));
    assert_eq!(error.tensor(), Some("b"));
}

#[test]
fn booleans_are_checked_while_they_are_converted() {
    let mut bytes = file(&[("mask".into(), Dtype::BOOL, 1_000)]);
    *bytes.last_mut().unwrap() = 7;
    let archive = SafeTensors::from_source(bytes).unwrap();
    let error = refused!(
        archive.tensor("mask").unwrap().read_with(&LoadOptions::new().all_as(Dtype::F32)),
        ErrorKind::InvalidBool { index: 999, found: 7 }
    );
    assert_eq!(error.tensor(), Some("mask"));
}

#[test]
fn a_converted_tensor_reads_as_its_values() {
    let weights = [1.5, -2.0, 3e38].map(bf16::from_f32);
    let buf = TensorBuf::from_vec(vec![3], weights.to_vec()).unwrap();
    let file = serialize([("w", buf)], &SaveOptions::new()).unwrap();
    let archive = SafeTensors::from_source(file).unwrap();
    let wide =
        archive.tensor("w").unwrap().read_with(&LoadOptions::new().all_as(Dtype::F32)).unwrap();
    assert_eq!(wide.into_vec::<f32>().unwrap(), weights.map(bf16::to_f32));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn converting_during_a_read_equals_converting_afterwards(
        tensors in prop::collection::vec((0..Dtype::ALL.len(), 0..30_000_usize), 0..12),
        to in prop::sample::select(vec![Dtype::F64, Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F8_E4M3]),
        all in prop::option::of(prop::sample::select(vec![Dtype::F64, Dtype::F32, Dtype::BF16])),
        threads in 1..6_usize,
    ) {
        let describe = |(i, (dtype, elements)): (usize, (usize, usize))| {
            (format!("t{i}"), Dtype::ALL[dtype], elements.next_multiple_of(4))
        };
        let mut tensors: Vec<_> = tensors.into_iter().enumerate().map(describe).collect();
        // Complex numbers have no conversion.
        tensors.retain(|(_, dtype, _)| all.is_none() || *dtype != Dtype::C64);
        let options = LoadOptions::new().threads(threads).floats_as(to);
        check(&tensors, &all.map_or(options.clone(), |all| options.all_as(all)));
    }
}
