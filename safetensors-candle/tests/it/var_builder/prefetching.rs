//! Tensors that are read at once at the caller's request.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device};
use safetensors_core::{ErrorKind, LoadOptions, TensorBuf};

use super::spy::{PARTS, assert_values, backend, backend_with, builder, model, sorted};

#[test]
fn a_prefetch_reads_all_at_once_and_reports_progress() {
    let model = model(4);
    let told = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let telling = told.clone();
    let options = LoadOptions::new().progress(move |progress| {
        telling.0.fetch_max(progress.bytes_done, Ordering::SeqCst);
        telling.1.fetch_max(progress.bytes_total, Ordering::SeqCst);
        ControlFlow::Continue(())
    });
    let (backend, spy) = backend_with(&sorted(&model), &options);
    // The bound of reading ahead does not limit an explicit request.
    let backend = backend.read_ahead(10);
    assert_eq!(backend.prefetch("", DType::F32).unwrap(), model.len());
    let in_memory: u64 = model.iter().map(|(_, len)| 4 * *len as u64).sum();
    assert_eq!(told.0.load(Ordering::SeqCst), in_memory);
    assert_eq!(told.1.load(Ordering::SeqCst), in_memory);
    assert_eq!(spy.take_read(), in_memory / 2);
    assert_eq!(backend.unused().count(), model.len(), "nothing was asked for yet");

    // Again there is nothing to do, and from now on nothing is read.
    assert_eq!(backend.prefetch("", DType::F32).unwrap(), 0);
    spy.break_bytes(Some(0..u64::MAX));
    for (name, len) in &model {
        assert_values(name, &builder(&backend).get(*len, name).unwrap());
    }
    // A second request reads the tensor again.
    assert!(builder(&backend).get(16, "model.norm.weight").is_err());
}

#[test]
fn all_reads_of_a_model_count_as_one() {
    let model = model(4);
    let in_memory: u64 = model.iter().map(|(_, len)| 4 * *len as u64).sum();
    for read_ahead in [0, 10_000, u64::MAX] {
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = told.clone();
        let options = LoadOptions::new().progress(move |progress| {
            telling.lock().unwrap().push((progress.bytes_done, progress.bytes_total));
            ControlFlow::Continue(())
        });
        let (backend, _) = backend_with(&sorted(&model), &options);
        let backend = backend.read_ahead(read_ahead).filter(|name| name != "model.norm.weight");
        for (name, len) in model.iter().filter(|(name, _)| name != "model.norm.weight") {
            builder(&backend).get(*len, name).unwrap();
        }
        // A tensor that is read again is not counted again.
        builder(&backend).get(4096, "model.embed.weight").unwrap();
        let told = told.lock().unwrap();
        let total = in_memory - 64;
        assert!(told.iter().all(|(_, of)| *of == total), "{told:?}");
        assert!(told.is_sorted() && told[0].0 < total, "{told:?}");
        let ends = told.iter().filter(|(done, _)| *done == total).count();
        assert_eq!(ends, 2, "{read_ahead}: {told:?}");
    }
}

#[test]
fn a_prefix_matches_entire_components() {
    let model = model(11);
    let (backend, spy) = backend(&sorted(&model));
    let layer = builder(&backend).pp("model").pp("layers").pp(1);
    assert_eq!(backend.prefetch(&layer.prefix(), DType::F32).unwrap(), PARTS.len());
    assert_eq!(backend.prefetch("model.layers.10.", DType::F32).unwrap(), PARTS.len());
    assert_eq!(backend.prefetch("model.norm.weight", DType::F32).unwrap(), 1);
    for none in ["model.layer", "layers", "model.layers.99", "weight"] {
        assert_eq!(backend.prefetch(none, DType::F32).unwrap(), 0, "{none}");
    }
    let elements = 2 * PARTS.iter().map(|(_, len)| *len as u64).sum::<u64>() + 16;
    assert_eq!(spy.take_read(), 2 * elements);
    for (part, len) in PARTS {
        layer.get(len, part).unwrap();
    }
    assert_eq!(spy.take_read(), 0);
}

#[test]
fn a_cancelled_prefetch_keeps_nothing_and_breaks_nothing() {
    let model = model(3);
    let stop = Arc::new(AtomicU64::new(1));
    let stopping = stop.clone();
    let options = LoadOptions::new().progress(move |_| match stopping.load(Ordering::SeqCst) {
        0 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    });
    let (backend, spy) = backend_with(&sorted(&model), &options);
    let error = backend.prefetch("", DType::F32).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Cancelled), "{error}");
    let error = builder(&backend).get(16, "model.norm.weight").unwrap_err().to_string();
    assert!(error.contains("cancelled") && error.contains("model.norm.weight"), "{error}");

    stop.store(0, Ordering::SeqCst);
    spy.take_read();
    for (name, len) in &model {
        assert_values(name, &builder(&backend).get(*len, name).unwrap());
    }
    assert_eq!(spy.take_read(), model.iter().map(|(_, len)| 2 * *len as u64).sum::<u64>());
}

#[test]
fn only_tensors_that_fit_the_dtype_are_prefetched() {
    let mut tensors = sorted(&model(1));
    let ids = TensorBuf::from_vec(vec![2], vec![1_i64, 2]).unwrap();
    tensors.push(("ids".into(), ids));
    tensors.push(("seeds".into(), TensorBuf::from_vec(vec![1], vec![u64::MAX]).unwrap()));
    let (backend, spy) = backend(&tensors);
    assert_eq!(backend.prefetch("", DType::F16).unwrap(), tensors.len() - 2);
    // U64::MAX is no I64. The error names the tensor, and nothing is kept.
    let error = backend.prefetch("", DType::I64).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DoesNotFit { .. }), "{error}");
    assert_eq!(error.tensor(), Some("seeds"));
    assert_eq!(backend.prefetch("ids", DType::I64).unwrap(), 1);
    // Nothing of the format can become F4.
    assert_eq!(backend.prefetch("model", DType::F4).unwrap(), 0);

    // Asked for in another dtype, a tensor is read again.
    spy.take_read();
    let ids = builder(&backend).get(2, "ids").unwrap();
    assert_eq!(ids.to_vec1::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(spy.take_read(), 16);
    let embed = backend.var_builder(DType::F16, &Device::Cpu).get(4096, "model.embed.weight");
    assert_values("model.embed.weight", &embed.unwrap());
    assert_eq!(spy.take_read(), 0);
}
