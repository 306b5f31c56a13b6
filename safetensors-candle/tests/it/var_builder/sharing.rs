//! Tensors that are handed out more than once.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::{DType, Device, Tensor};
use safetensors_candle::CheckpointBackend;
use safetensors_core::tied::Tied;
use safetensors_core::{Checkpoint, LoadOptions, SaveOptions};

use super::spy::{backend, builder, weight};

/// Where the elements of a tensor of F32 or BF16 begin.
fn address(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    let candle_core::Storage::Cpu(storage) = &*storage else { panic!("not on the CPU") };
    match tensor.dtype() {
        DType::F32 => storage.as_slice::<f32>().unwrap().as_ptr().addr(),
        _ => storage.as_slice::<half::bf16>().unwrap().as_ptr().addr(),
    }
}

/// A checkpoint with one tensor of three names.
fn tied(directory: &Path) -> CheckpointBackend<'static> {
    tied_with(directory, &LoadOptions::new())
}

/// Returns a backend with options.
fn tied_with(directory: &Path, load_options: &LoadOptions) -> CheckpointBackend<'static> {
    let path = directory.join("model.safetensors");
    let embed = Tensor::arange(0_f32, 6.0, &Device::Cpu).unwrap();
    let other = Tensor::arange(0_f32, 5.0, &Device::Cpu).unwrap();
    let names = ["embed", "head", "shared"].map(|name| (name, embed.clone()));
    let tensors: Vec<_> = names.into_iter().chain([("other", other)]).collect();
    let options = SaveOptions::new().tied(Tied::new());
    let tensors = tensors.iter().map(|(name, tensor)| (name, tensor));
    safetensors_candle::save(&path, tensors, &options).unwrap();
    CheckpointBackend::new_with(Checkpoint::open(&path).unwrap(), load_options).unwrap()
}

#[test]
fn the_names_of_a_tied_tensor_share_memory() {
    let dir = tempfile::tempdir().unwrap();
    let backend = tied(dir.path());
    let builder = backend.var_builder(DType::F32, &Device::Cpu);
    let embed = builder.get(6, "embed").unwrap();
    // A second request for the name gets another tensor, and a write into it changes no other.
    let embed_again = builder.get(6, "embed").unwrap();
    let minus = Tensor::full(-1_f32, 6, &Device::Cpu).unwrap();
    embed_again.slice_set(&minus, 0, 0).unwrap();
    let head = builder.get(6, "head").unwrap();
    assert_eq!(address(&embed), address(&head));
    assert_ne!(address(&embed), address(&embed_again));
    assert_eq!(head.to_vec1::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    // Another dtype is another tensor, and has its own names to wait for.
    let half = builder.to_dtype(DType::BF16).get(6, "head").unwrap();
    assert_eq!(half.dtype(), DType::BF16);
    let half_embed = builder.to_dtype(DType::BF16).get(6, "embed").unwrap();
    assert_eq!(address(&half), address(&half_embed));

    // With its last name the tensor is no longer kept: who asks again gets another one.
    let shared = builder.get(6, "shared").unwrap();
    assert_eq!(address(&embed), address(&shared));
    let anew = builder.get(6, "embed").unwrap();
    assert_ne!(address(&embed), address(&anew));
    assert_eq!(address(&anew), address(&builder.get(6, "head").unwrap()));

    let unused: Vec<_> = backend.unused().map(|tensor| tensor.name()).collect();
    assert_eq!(unused, ["other"]);
}

#[test]
fn a_name_that_is_hidden_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let backend = tied(dir.path()).filter(|name| name != "shared");
    let builder = backend.var_builder(DType::F32, &Device::Cpu);
    assert!(!builder.contains_tensor("shared") && builder.get(6, "shared").is_err());
    let (embed, head) = (builder.get(6, "embed").unwrap(), builder.get(6, "head").unwrap());
    assert_eq!(address(&embed), address(&head));
    assert_ne!(address(&embed), address(&builder.get(6, "embed").unwrap()));

    // With one visible name there is nothing to share.
    let single = tied(dir.path()).filter(|name| name == "head");
    let builder = single.var_builder(DType::F32, &Device::Cpu);
    let (head, again) = (builder.get(6, "head").unwrap(), builder.get(6, "head").unwrap());
    assert_ne!(address(&head), address(&again));
    assert_eq!(single.unused().count(), 0);
}

#[test]
fn repeated_requests_share_memory_only_by_option() {
    let tensors = [weight("a", 64), weight("b", 64)];
    let (plain, spy) = backend(&tensors);
    let get = |backend: &_, name| builder(backend).get(64, name).unwrap();
    assert_ne!(address(&get(&plain, "a")), address(&get(&plain, "b")));
    let (first, second) = (get(&plain, "a"), get(&plain, "a"));
    assert_ne!(address(&first), address(&second));

    let shared = plain.cache_tensors(true);
    spy.take_read();
    let first = get(&shared, "a");
    let second = get(&shared.clone(), "a");
    assert_eq!(address(&first), address(&second));
    assert_eq!(spy.take_read(), 128);
    // It is kept although no other tensor has it.
    let kept = address(&first);
    drop((first, second));
    assert_eq!(address(&get(&shared, "a")), kept);
    assert_eq!(spy.take_read(), 0);
}

#[test]
fn a_failed_request_is_not_kept() {
    let (backend, spy) = backend(&[weight("a", 64)]);
    let backend = backend.cache_tensors(true);
    spy.break_bytes(Some(0..u64::MAX));
    assert!(builder(&backend).get(64, "a").is_err());
    spy.break_bytes(None);
    builder(&backend).get(64, "a").unwrap();
}

#[test]
fn a_failed_request_does_not_count_for_a_tied_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let stop = Arc::new(AtomicBool::new(true));
    let stopping = stop.clone();
    let options = LoadOptions::new().progress(move |_| {
        if stopping.load(Ordering::SeqCst) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    let backend = tied_with(dir.path(), &options);
    let builder = backend.var_builder(DType::F32, &Device::Cpu);
    assert!(builder.get(6, "embed").is_err() && builder.get(6, "head").is_err());
    stop.store(false, Ordering::SeqCst);
    let tensors = ["shared", "embed", "head"].map(|name| builder.get(6, name).unwrap());
    let [shared, embed, head] = tensors.each_ref().map(address);
    assert!(shared == embed && embed == head);
}

#[test]
fn threads_that_ask_at_once_share_one_tensor() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..20 {
        let backend = tied(dir.path());
        let builder = backend.var_builder(DType::F32, &Device::Cpu);
        let addresses = std::thread::scope(|scope| {
            let builder = &builder;
            let get = |name| scope.spawn(move || builder.get(6, name).unwrap());
            let threads = ["embed", "head", "shared"].map(get);
            threads.map(|thread| thread.join().unwrap())
        });
        let [embed, head, shared] = addresses.each_ref().map(address);
        assert!(embed == head && head == shared);
    }
}
