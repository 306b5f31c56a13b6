//! Tensors that cannot be read, and files that change during the load.

use candle_core::{DType, Device};
use candle_nn::var_builder::SimpleBackend;
use safetensors_candle::{CheckpointBackend, IntoCore};
use safetensors_core::{Checkpoint, ErrorKind, SaveOptions, save};

use super::spy::{assert_values, backend, builder, model, sorted};

use crate::common::place;

#[test]
fn a_bad_tensor_fails_only_its_own_requests() {
    let model = model(12);
    let (backend, spy) = backend(&sorted(&model));
    let bad = "model.layers.7.mlp.down.weight";
    spy.break_tensors([bad]);
    for (name, len) in model.iter().filter(|(name, _)| name != bad) {
        assert_values(name, &builder(&backend).get(*len, name).unwrap());
    }
    let error = builder(&backend).get(1024, bad).unwrap_err().into_core();
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some(bad), Some("spied")));
    // The disk is well again.
    spy.break_bytes(None);
    assert_values(bad, &builder(&backend).get(1024, bad).unwrap());
    assert_eq!(backend.unused().count(), 0);
}

#[test]
fn bad_tensors_that_nobody_asks_for_do_not_end_the_bound_on_reading() {
    let model = model(60);
    let (backend, spy) = backend(&sorted(&model));
    let limit = 40_000;
    let backend = backend.read_ahead(limit);
    let bad: Vec<_> = (0..60).map(|i| format!("model.layers.{i}.self_attn.q.weight")).collect();
    spy.break_tensors(bad.iter().map(String::as_str));
    let mut asked = 0;
    for (name, len) in model.iter().filter(|(name, _)| !bad.contains(name)) {
        assert_values(name, &backend.get_unchecked(name, DType::BF16, &Device::Cpu).unwrap());
        asked += 2 * *len as u64;
    }
    let read = spy.take_read();
    assert!(read <= 2 * asked + limit, "{read} bytes for {asked}");
    assert_eq!(backend.unused().count(), bad.len());
}

#[test]
fn a_file_that_changes_is_an_error_of_the_next_tensor_that_is_read() {
    let (_dir, path) = place("model.safetensors");
    let model = model(8);
    let tensors = sorted(&model);
    let options = SaveOptions::new().durable(false);
    save(&path, tensors.iter().map(|(name, buf)| (name, buf)), &options).unwrap();
    let backend = CheckpointBackend::new(Checkpoint::open(&path).unwrap());
    let builder = backend.var_builder(DType::F32, &Device::Cpu);
    for (name, len) in &model[..4] {
        builder.get(*len, name).unwrap();
    }

    // The end is cut off. Tensors that were read before are still right.
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 8).unwrap();
    let mut failed = 0;
    for (name, len) in &model[4..] {
        match builder.get(*len, name) {
            Ok(tensor) => assert_values(name, &tensor),
            Err(error) => {
                let error = error.into_core();
                assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
                assert_eq!((error.tensor(), error.file()), (Some(&**name), path.to_str()));
                failed += 1;
            }
        }
    }
    assert!(failed > model.len() / 2, "{failed} of {} requests failed", model.len());
}
