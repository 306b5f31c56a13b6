//! Stores in memory, and direct access to tensors.

use super::*;

#[test]
fn a_store_in_memory_replaces_its_bytes_and_has_one_file() {
    let mut store = CheckpointStore::default().max_shard_size(64.into());
    let model = Model::new(2);
    model.save_into(&mut store).unwrap();
    // The bytes are a file.
    let first = store.get_bytes().unwrap();
    let dir = dir();
    saved(&dir, &model);
    assert_eq!(std::fs::read(dir.path().join("model.safetensors")).unwrap(), first);
    assert_eq!(store.get_all_tensors().unwrap().len(), PATHS.len());
    let model = Model::new(3);
    model.save_into(&mut store).unwrap();
    assert_ne!(store.get_bytes().unwrap(), first);
    let steps = store.get_tensor("steps").unwrap().unwrap();
    assert_eq!(data_of(steps), TensorData::from([3_i64, 4]));

    // A failed save leaves the bytes.
    let before = store.get_bytes().unwrap();
    let mut store = store.with_regex("nothing");
    model.save_into(&mut store).unwrap_err();
    assert_eq!(store.get_bytes().unwrap(), before);
}

#[test]
fn bytes_that_are_not_there_or_damaged_are_errors() {
    let mut store = CheckpointStore::from_bytes(None);
    assert!(matches!(source(&store.get_bytes().unwrap_err()), StoreError::NoBytes));
    let error = refused(&mut store);
    assert!(matches!(source(&error), StoreError::NoBytes), "{error}");
    let of_file = CheckpointStore::from_file("model.safetensors").get_bytes().unwrap_err();
    assert!(matches!(source(&of_file), StoreError::NotInMemory), "{of_file}");
    assert_eq!(of_file.file(), Some("model.safetensors"));
    let error = refused(&mut CheckpointStore::from_bytes(Some(vec![0; 5])));
    assert_eq!(error.file(), Some("bytes in memory"), "{error}");
}

#[test]
fn tensors_can_be_fetched_without_a_module() {
    let dir = dir();
    let model = Model::new(2);
    let mut in_memory = CheckpointStore::from_bytes(None);
    model.save_into(&mut in_memory).unwrap();
    for store in [saved(&dir, &model), in_memory] {
        let mut store = store.param_ids(true);
        let steps = store.get_tensor("steps").unwrap().unwrap();
        assert_eq!((steps.dtype, &steps.shape[..], steps.byte_len()), (DType::I64, &[2][..], 16));
        assert_eq!(steps.param_id, Some(model.steps.id.val()));
        assert_eq!(data_of(steps), model.steps.to_data());
        // The store reads the tensor again at each request.
        assert_eq!(data_of(steps), model.steps.to_data());
        assert!(store.get_tensor("absent").unwrap().is_none());
        assert_eq!(store.get_all_tensors().unwrap().len(), PATHS.len());
    }
    let error =
        CheckpointStore::from_file(dir.path().join("absent.safetensors")).keys().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
}

#[test]
fn a_store_reads_its_file_again_after_a_save() {
    let dir = dir();
    let mut store = saved(&dir, &Model::new(2)).overwrite(true);
    let steps = |store: &mut CheckpointStore| data_of(store.get_tensor("steps").unwrap().unwrap());
    assert_eq!(steps(&mut store), TensorData::from([2_i64, 3]));
    Model::new(8).save_into(&mut store).unwrap();
    assert_eq!(steps(&mut store), TensorData::from([8_i64, 9]));
}

#[test]
fn an_open_checkpoint_is_loaded_and_never_saved_to() {
    let model = Model::new(2);
    let mut store = CheckpointStore::from_bytes(None);
    model.save_into(&mut store).unwrap();
    let checkpoint = Checkpoint::from_source(store.get_bytes().unwrap(), "here.safetensors");
    let mut store = CheckpointStore::from_checkpoint(checkpoint.unwrap());
    assert_eq!(store.keys().unwrap(), PATHS);
    let mut other = Model::new(7);
    for error in [other.save_into(&mut store).unwrap_err(), store.get_bytes().unwrap_err()] {
        let expected = [StoreError::OnlyLoads, StoreError::NotInMemory].map(|it| it.to_string());
        assert!(expected.contains(&source::<StoreError>(&error).to_string()), "{error}");
        assert_eq!(error.file(), Some("here.safetensors"));
    }
    assert!(other.load_from(&mut store).unwrap().is_success());
    assert_eq!(state(&model), state(&other));
    // With other options it is looked at again, also after a failure.
    let refused = LoadOptions::new().all_as(Dtype::BOOL);
    let mut store = store.load_options(refused);
    other.load_from(&mut store).unwrap_err();
    let mut other = Model::new(9);
    assert!(other.load_from(&mut store.load_options(LoadOptions::new())).unwrap().is_success());
    assert_eq!(state(&model), state(&other));
}
