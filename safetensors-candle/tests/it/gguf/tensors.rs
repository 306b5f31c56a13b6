//! Tensors by their names, and all at once.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use candle_core::quantized::GgmlDType::{self, *};
use candle_core::{DType, Device};
use safetensors_candle::gguf::GgufFile;
use safetensors_core::{ErrorKind, LoadOptions, ReadAt};
use safetensors_testing::process::command_of;

use super::{assert_same, by_candle, far, of_bytes, open, quantised, written};

use crate::common::place;

/// The types that candle has and files have, with their names there.
const TYPES: [(&str, GgmlDType); 14] = [
    ("F32", F32),
    ("F16", F16),
    ("BF16", BF16),
    ("Q4_0", Q4_0),
    ("Q4_1", Q4_1),
    ("Q5_0", Q5_0),
    ("Q5_1", Q5_1),
    ("Q8_0", Q8_0),
    ("Q2_K", Q2K),
    ("Q3_K", Q3K),
    ("Q4_K", Q4K),
    ("Q5_K", Q5K),
    ("Q6_K", Q6K),
    ("Q8_K", Q8K),
];

#[test]
fn every_type_is_read_like_candle() {
    let tensors = TYPES.map(|(name, dtype)| (name, quantised(dtype, &[3, 512])));
    let tensors = tensors.each_ref().map(|(name, tensor)| (*name, tensor));
    let bytes = written(&[], &tensors);
    let file = open(&bytes);
    assert_eq!(file.names().collect::<Vec<_>>(), TYPES.map(|(name, _)| name));
    let all = file.load(&Device::Cpu).unwrap();
    assert_eq!(all.len(), TYPES.len());
    for (name, written) in tensors {
        let found = file.qtensor(name, &Device::Cpu).unwrap();
        assert_same(&found, written);
        assert_same(&all[name], written);
        // candle's reader refuses the one type that it only computes with.
        if written.dtype() == Q8K {
            continue;
        }
        let expected = by_candle(&bytes, name);
        assert_same(&found, &expected);
        let numbers = |tensor: &candle_core::quantized::QTensor| {
            let numbers = tensor.dequantize(&Device::Cpu).unwrap();
            assert_eq!(numbers.dtype(), DType::F32);
            let numbers = numbers.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&found), numbers(&expected), "{name}");
    }
}

#[test]
fn bytes_in_memory_are_lent_wherever_they_begin() {
    struct Shifted(Vec<u8>, usize);
    impl AsRef<[u8]> for Shifted {
        fn as_ref(&self) -> &[u8] {
            &self.0[self.1..]
        }
    }

    let tensors = TYPES.map(|(name, dtype)| (name, of_bytes(dtype, &[2, 512])));
    let tensors = tensors.each_ref().map(|(name, tensor)| (*name, tensor));
    let bytes = written(&[], &tensors);
    for shift in 0..4 {
        let shifted = Shifted([&[0; 4][..shift], &bytes].concat(), shift);
        let file = GgufFile::from_source(shifted, "model.gguf").unwrap();
        let all = file.load(&Device::Cpu).unwrap();
        for (name, written) in tensors {
            assert_same(&all[name], written);
            assert_same(&file.qtensor(name, &Device::Cpu).unwrap(), written);
        }
    }
}

#[test]
fn only_the_bytes_of_a_tensor_are_read() {
    let (a, b) = (of_bytes(Q4_0, &[512, 1024]), of_bytes(Q8_0, &[64, 1024]));
    let bytes = written(&[], &[("a", &a), ("b", &b), ("c", &a)]);
    let source = safetensors_testing::read_at::NotingSource::new(bytes);
    let file = GgufFile::from_source(source.clone(), "model.gguf").unwrap();
    // The header, and the end of the file, which could be an archive.
    assert!(source.take_len() < 100 << 10);
    assert_same(&file.qtensor("b", &Device::Cpu).unwrap(), &b);
    let reads = source.take_reads();
    assert_eq!(reads.iter().map(|(_, len)| len).sum::<usize>(), b.storage_size_in_bytes());
    assert_eq!(file.names().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(source.take_reads().is_empty());
}

/// Bytes in memory that begin at no aligned address, and the length of the longest read.
struct Unaligned(Vec<u8>, Arc<AtomicUsize>);

impl ReadAt for Unaligned {
    fn byte_len(&self) -> u64 {
        self.0.byte_len() - 1
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.1.fetch_max(buf.len(), Ordering::Relaxed);
        self.0.read_exact_at(buf, offset + 1)
    }

    fn lend(&self, range: Range<u64>) -> Option<&[u8]> {
        self.0.lend(range.start + 1..range.end + 1)
    }
}

#[test]
fn large_tensors_are_read_completely_from_any_source() {
    // One is over the limit of a thread's buffer, and some are read by several threads.
    let tensors =
        [&[9000, 8192][..], &[3001, 8192], &[1, 32], &[7, 0]].map(|shape| of_bytes(Q4_0, shape));
    assert!(tensors[0].storage_size_in_bytes() > 32 << 20);
    const NAMES: [&str; 4] = ["largest", "large", "small", "empty"];
    let named: Vec<_> = NAMES.into_iter().zip(&tensors).collect();
    let bytes = written(&[], &named);
    let (_dir, path) = place("model.gguf");
    std::fs::write(&path, &bytes).unwrap();
    let check = |all: &dyn Fn() -> Vec<candle_core::quantized::QTensor>| {
        all().iter().zip(&tensors).for_each(|(found, expected)| assert_same(found, expected));
    };
    fn loaded(file: &GgufFile) -> Vec<candle_core::quantized::QTensor> {
        let mut all = file.load(&Device::Cpu).unwrap();
        NAMES.map(|name| all.remove(name).unwrap()).into()
    }
    let near = GgufFile::open(&path).unwrap();
    check(&|| loaded(&near));
    check(&|| NAMES.map(|name| near.qtensor(name, &Device::Cpu).unwrap()).into());
    let longest = Arc::new(AtomicUsize::new(0));
    let unaligned = Unaligned([&[0], &bytes[..]].concat(), Arc::clone(&longest));
    let unaligned = GgufFile::from_source(unaligned, "unaligned.gguf").unwrap();
    check(&|| loaded(&unaligned));
    // No thread has a buffer for the largest.
    assert!(longest.load(Ordering::Relaxed) < 32 << 20);
    let far = GgufFile::from_source(far(bytes), "far.gguf").unwrap();
    check(&|| loaded(&far));
    check(&|| NAMES.map(|name| far.qtensor(name, &Device::Cpu).unwrap()).into());

    // Each way reports all bytes, and can be cancelled midway.
    let total: usize = tensors.iter().map(|tensor| tensor.storage_size_in_bytes()).sum();
    watched(&near, total as u64);
    watched(&unaligned, total as u64);
    watched(&far, total as u64);
}

/// Loads with a callback, and once more with one that cancels.
fn watched(file: &GgufFile, total: u64) {
    for threads in [1, 3] {
        let told = Arc::new(AtomicU64::new(0));
        let telling = Arc::clone(&told);
        let options = LoadOptions::new().threads(threads).progress(move |progress| {
            assert_eq!(progress.bytes_total, total);
            telling.fetch_max(progress.bytes_done, Ordering::Relaxed);
            ControlFlow::Continue(())
        });
        file.load_with(&Device::Cpu, &options).unwrap();
        assert_eq!(told.swap(0, Ordering::Relaxed), total);

        let telling = Arc::clone(&told);
        let options = LoadOptions::new().threads(threads).progress(move |progress| {
            telling.fetch_max(progress.bytes_done, Ordering::Relaxed);
            ControlFlow::Break(())
        });
        let error = file.load_with(&Device::Cpu, &options).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
        assert!(told.load(Ordering::Relaxed) < total, "{told:?}");
    }
}

#[test]
fn the_environment_sets_the_threads_for_a_file_that_is_far_away() {
    const VARIABLE: &str = "SAFETENSORS_THREADS";
    if std::env::var(VARIABLE).as_deref() != Ok("1") {
        let mut alone = command_of(the_environment_sets_the_threads_for_a_file_that_is_far_away);
        let output = alone.env(VARIABLE, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    // Each has more than a mebibyte, after which the progress is reported.
    let tensor = of_bytes(Q4_0, &[1024, 2048]);
    let bytes = written(&[], &["a", "b", "c", "d", "e", "f"].map(|name| (name, &tensor)));
    let file = GgufFile::from_source(far(bytes), "far.gguf").unwrap();
    let caller = std::thread::current().id();
    let options = LoadOptions::new().progress(move |_| {
        assert_eq!(std::thread::current().id(), caller);
        ControlFlow::Continue(())
    });
    assert_eq!(file.load_with(&Device::Cpu, &options).unwrap().len(), 6);
}
