//! Loads of a remote file: progress, cancellation, conversion, panics.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use safetensors_core::{Dtype, ErrorKind, LoadOptions, SaveOptions, TensorBuf, serialize};

use super::server::Server;
use super::{MIB, file, options, tensors};

#[test]
fn progress_reaches_the_total() {
    let tensors = tensors(&[("a", 20 * MIB), ("b", 1000)]);
    let server = Server::new().with("m.safetensors", file(&tensors));
    let checkpoint = options().open(&server.address("m.safetensors")).unwrap();
    let most = Arc::new(AtomicU64::new(0));
    let noted = Arc::clone(&most);
    let load = LoadOptions::new().progress(move |progress| {
        assert_eq!(progress.bytes_total, 20 * MIB as u64 + 1000);
        noted.fetch_max(progress.bytes_done, Ordering::Relaxed);
        ControlFlow::Continue(())
    });
    checkpoint.read_all(&load).unwrap();
    assert_eq!(most.load(Ordering::Relaxed), 20 * MIB as u64 + 1000);
}

#[test]
fn a_load_that_is_cancelled_ends_soon() {
    // 120 MiB at 20 MB/s, with two calls of 8 MiB under way.
    let tensors = tensors(&[("a", 60 * MIB), ("b", 60 * MIB)]);
    let server = Server::new().with("m.safetensors", file(&tensors));
    let checkpoint = options().open(&server.address("m.safetensors")).unwrap();
    server.slow_down(Duration::ZERO, 20_000_000);
    let load = LoadOptions::new().threads(2).progress(|_| ControlFlow::Break(()));
    let begin = Instant::now();
    let error = checkpoint.read_all(&load).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    assert!(server.take_sent() < 40 * MIB);
}

#[test]
fn elements_are_converted_on_the_way() {
    let values: Vec<f32> = (0..3 << 20).map(|i| i as f32).collect();
    let buf = TensorBuf::from_vec(vec![values.len()], values.clone()).unwrap();
    let server =
        Server::new().with("m.safetensors", serialize([("w", &buf)], &SaveOptions::new()).unwrap());
    let checkpoint = options().open(&server.address("m.safetensors")).unwrap();
    server.take_log();
    let read = checkpoint.read_all(&LoadOptions::new().floats_as(Dtype::F64)).unwrap();
    assert!(
        read[0].as_slice::<f64>().unwrap().iter().zip(&values).all(|(a, b)| *a == f64::from(*b))
    );
    // 24 MiB in memory by calls of 8.
    assert_eq!(server.take_log().len(), 3);
}

#[test]
fn a_tensor_is_copied_into_another_file_by_large_requests() {
    let tensors = tensors(&[("a", 20 * MIB)]);
    let server = Server::new().with("m.safetensors", file(&tensors));
    let checkpoint = options().open(&server.address("m.safetensors")).unwrap();
    server.take_log();
    let copy = serialize([("a", checkpoint.tensor("a").unwrap())], &SaveOptions::new()).unwrap();
    assert_eq!(copy, file(&tensors));
    assert_eq!(server.take_log().len(), 3);
}
