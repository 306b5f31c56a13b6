//! A saved module loads again unchanged.

use super::*;

#[test]
fn a_module_comes_back_bit_for_bit() {
    let dir = dir();
    let model = Model::new(2);
    let mut store = saved(&dir, &model);
    assert_eq!(store.keys().unwrap(), PATHS);
    let mut other = Model::new(7);
    assert_ne!(state(&model), state(&other));
    let result = other.load_from(&mut store).unwrap();
    assert_eq!(state(&model), state(&other));
    let mut applied = result.applied.clone();
    applied.sort_unstable();
    assert_eq!(applied, PATHS);
    assert!(
        result.skipped.is_empty()
            && result.missing.is_empty()
            && result.unused.is_empty()
            && result.is_success()
    );
}

#[test]
fn files_say_pt_and_have_plain_dtypes() {
    let dir = dir();
    let path = dir.path().join("model.safetensors");
    Model::new(1)
        .save_into(
            &mut CheckpointStore::from_file(&path).metadata("title", "Test").param_ids(false),
        )
        .unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let metadata: Vec<_> =
        checkpoint.metadata().iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(metadata, [("format", "pt"), ("title", "Test")]);
    assert_eq!(checkpoint.tensor("mask").unwrap().dtype(), Dtype::BOOL);
    assert_eq!(checkpoint.tensor("steps").unwrap().dtype(), Dtype::I64);
    assert_eq!(checkpoint.tensor("encoder.weight").unwrap().shape(), [3, 4]);

    let mut store = CheckpointStore::from_file(&path)
        .overwrite(true)
        .param_ids(false)
        .save_options(SaveOptions::new());
    Model::new(1).save_into(&mut store).unwrap();
    assert!(Checkpoint::open(&path).unwrap().metadata().is_empty());
}

#[test]
fn a_sharded_checkpoint_loads_from_its_directory_and_its_index() {
    let dir = dir();
    let model = Model::new(4);
    let tensors = state(&model);
    let (first, second) = tensors.split_at(5);
    let mut map = Vec::new();
    for (file, shard) in
        [("model-00001-of-00002.safetensors", first), ("model-00002-of-00002.safetensors", second)]
    {
        save(
            dir.path().join(file),
            shard.iter().map(|(name, data)| (name, data)),
            &SaveOptions::new(),
        )
        .unwrap();
        map.extend(shard.iter().map(|(name, _)| format!("{name:?}:{file:?}")));
    }
    let index = dir.path().join("model.safetensors.index.json");
    std::fs::write(&index, format!("{{\"metadata\":{{}},\"weight_map\":{{{}}}}}", map.join(",")))
        .unwrap();
    for path in [dir.path(), &index] {
        let mut other = Model::new(9);
        other.load_from(&mut CheckpointStore::from_file(path)).unwrap();
        assert_eq!(state(&model), state(&other));
    }
    // The error for a tensor that does not fit names the tensor and its shard.
    let (name, others) = (first[0].0.as_str(), &first[1..]);
    let wrong = TensorData::from([1.0_f32]);
    let shard = dir.path().join("model-00001-of-00002.safetensors");
    let tensors = others.iter().map(|(name, data)| (name.as_str(), data)).chain([(name, &wrong)]);
    save(&shard, tensors, &SaveOptions::new()).unwrap();
    let error = refused(&mut CheckpointStore::from_file(dir.path()));
    assert!(matches!(source(&error), ApplyError::ShapeMismatch { .. }), "{error}");
    assert_eq!((error.tensor(), error.file()), (Some(name), shard.to_str()));
    // Saving to the index is refused, because it would replace the index with tensors.
    let error = model.save_into(&mut CheckpointStore::from_file(&index)).unwrap_err();
    assert!(matches!(source(&error), StoreError::IndexDestination), "{error}");
    assert!(error.file().unwrap().ends_with("index.json"));
    assert!(matches!(
        model.save_into(&mut CheckpointStore::from_file(dir.path())).unwrap_err().kind(),
        ErrorKind::NotAFile { .. }
    ));
}
