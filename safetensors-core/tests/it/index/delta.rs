//! The index of a delta, which only `open_foreign_in` opens.

use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::checkpoint::store::LocalStore;

use super::{write_index, write_shard};
use crate::support::*;

const SHARD: &str = "model-00000-of-00001.safetensors";

/// Writes a file with a compressed difference of the tensor `a`.
fn write_difference(directory: &Path, name: &str) -> PathBuf {
    let difference = TensorView::from_slice(&[1], &[1_u8]).unwrap();
    let options = SaveOptions::new().metadata([("a", "00620062")]);
    write(directory, name, serialize([("a", difference)], &options).unwrap())
}

/// Writes an index with this metadata next to a shard with the tensor `a`.
fn write_delta(directory: &Path, metadata: &str) {
    write_difference(directory, SHARD);
    let index = format!(r#"{{"metadata":{metadata},"weight_map":{{"a":"{SHARD}"}}}}"#);
    write(directory, "model.safetensors.index.json", index);
}

fn open_delta(path: &Path) -> Result<usize, Error> {
    let (files, metadata) = Checkpoint::open_foreign_in(LocalStore, path, &Limits::default())?;
    assert!(metadata.contains_key("delta_encoding"));
    files.check_unchanged().map(|()| files.len())
}

#[test]
fn a_delta_opens_as_no_checkpoint() {
    let directory = tempdir().unwrap();
    write_delta(directory.path(), r#"{"base_version":"000007","delta_encoding":"xor"}"#);
    let index = directory.path().join("model.safetensors.index.json");
    assert_eq!(open_delta(directory.path()).unwrap(), 1);
    assert_eq!(open_delta(&index).unwrap(), 1);
    let refused = [
        Checkpoint::open(directory.path()).unwrap_err(),
        Checkpoint::open(&index).unwrap_err(),
        Checkpoint::open(directory.path()).unwrap_err(),
        CheckpointPath::Index(index.clone()).files().unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error.kind(), ErrorKind::IsDelta { base } if base == "000007"), "{error}");
        assert_eq!(error.file(), index.to_str());
    }
}

/// Its other files, such as the state of a scheduler, are no model.
#[test]
fn an_epoch_with_a_delta_as_model_opens_as_the_delta() {
    let (epoch, delta) = place("model.delta");
    fs::create_dir(&delta).unwrap();
    write_difference(epoch.path(), "scheduler.safetensors");
    write(epoch.path(), "manifest.json", "{}");
    let index = delta.join("model.safetensors.index.json");
    // Any other directory of this name has no index.
    assert_eq!(Checkpoint::open(epoch.path()).unwrap().files().len(), 1);
    write_delta(&delta, r#"{"base_version":"epoch-1","delta_encoding":"xor"}"#);
    let found = CheckpointPath::find(epoch.path()).unwrap();
    assert_eq!(found, CheckpointPath::Index(index.clone()));
    let error =
        refused!(Checkpoint::open(epoch.path()), ErrorKind::IsDelta { base } if base == "epoch-1");
    assert_eq!(error.file(), index.to_str());
    assert_eq!(open_delta(epoch.path()).unwrap(), 1);
    // Without the file of a scheduler, and with an optimizer's file.
    fs::remove_file(epoch.path().join("scheduler.safetensors")).unwrap();
    assert_eq!(open_delta(epoch.path()).unwrap(), 1);
    for name in ["scheduler.safetensors", "optimizer.safetensors"] {
        write_difference(epoch.path(), name);
    }
    assert_eq!(open_delta(epoch.path()).unwrap(), 1);
    // A damaged one, too, is not replaced by another file.
    let text = fs::read_to_string(&index).unwrap();
    write(&delta, "model.safetensors.index.json", &text[1..]);
    refused!(Checkpoint::open(epoch.path()), ErrorKind::BadIndex { .. });
    write(&delta, "model.safetensors.index.json", text);
    // A model that is there is opened.
    write_difference(epoch.path(), "model.safetensors");
    let found = CheckpointPath::find(epoch.path()).unwrap();
    assert_eq!(found, CheckpointPath::File(epoch.path().join("model.safetensors")));
}

/// `model.delta` may be anybody's directory.
#[test]
fn a_delta_takes_the_place_of_no_model() {
    let directory = tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let index = "model.delta/model.safetensors.index.json";
    fs::create_dir(path("model.delta")).unwrap();
    let find = || CheckpointPath::find(directory.path());
    let no_checkpoint = || {
        refused!(find(), ErrorKind::NoCheckpoint { .. });
    };
    // An index of another kind, or none.
    write_index(&path("model.delta"), "model.safetensors.index.json", &[("a", SHARD)]);
    no_checkpoint();
    write(directory.path(), index, "{");
    no_checkpoint();
    write_delta(&path("model.delta"), r#"{"delta_encoding":"xor"}"#);
    assert_eq!(find().unwrap(), CheckpointPath::Index(path(index)));

    let llama = write_shard(directory.path(), "llama.safetensors", &[("a", 1)]);
    assert_eq!(find().unwrap(), CheckpointPath::File(llama.clone()));
    assert_eq!(Checkpoint::open(directory.path()).unwrap().files()[0].path(), llama);
    // Another index comes first even in an epoch. Several are none to choose from.
    write(directory.path(), "manifest.json", "{}");
    assert_eq!(find().unwrap(), CheckpointPath::Index(path(index)));
    write_index(&path("model.delta"), "model.safetensors.index.json", &[("a", SHARD)]);
    assert_eq!(find().unwrap(), CheckpointPath::File(llama));
    write_delta(&path("model.delta"), r#"{"delta_encoding":"xor"}"#);
    let names = [("a", "llama.safetensors")];
    let other = write_index(directory.path(), "llama.safetensors.index.json", &names);
    assert_eq!(find().unwrap(), CheckpointPath::Index(other));
    write_index(directory.path(), "other.safetensors.index.json", &names);
    no_checkpoint();
}

#[test]
fn a_value_of_any_type_makes_a_delta() {
    let directory = tempdir().unwrap();
    for value in ["\"\"", "1", "false", "{}", "[]"] {
        write_delta(directory.path(), &format!(r#"{{"delta_encoding":{value}}}"#));
        let error = Checkpoint::open(directory.path()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::IsDelta { .. }), "{value}: {error}");
    }
    // Python reads this as no entry.
    write_delta(directory.path(), r#"{"delta_encoding":null}"#);
    assert_eq!(Checkpoint::open(directory.path()).unwrap().len(), 1);
}

#[test]
fn a_delta_may_change_nothing_and_a_checkpoint_may_not_be_empty() {
    let directory = tempdir().unwrap();
    let name = "model.safetensors.index.json";
    write(directory.path(), name, r#"{"metadata":{"delta_encoding":"xor"},"weight_map":{}}"#);
    assert_eq!(open_delta(directory.path()).unwrap(), 0);
    write(directory.path(), name, r#"{"metadata":{},"weight_map":{}}"#);
    refused!(open_delta(directory.path()), ErrorKind::BadIndex { .. });
}

#[test]
fn a_checkpoint_is_no_delta() {
    let directory = tempdir().unwrap();
    let file = write_shard(directory.path(), "model.safetensors", &[("a", 1)]);
    for path in [directory.path(), &file] {
        let error = refused!(open_delta(path), ErrorKind::NotADelta);
        assert_eq!(error.file(), file.to_str());
    }
    fs::rename(&file, directory.path().join(SHARD)).unwrap();
    let index = write_index(directory.path(), "model.safetensors.index.json", &[("a", SHARD)]);
    let error = refused!(open_delta(directory.path()), ErrorKind::NotADelta);
    assert_eq!(error.file(), index.to_str());
}

#[test]
fn a_checkpoint_may_be_saved_over_a_delta() {
    let directory = tempdir().unwrap();
    write_delta(directory.path(), r#"{"delta_encoding":"xor"}"#);
    let options = ShardOptions::new().max_shard_size(1.into());
    let tensors = ["a", "b"].map(|name| (name, TensorView::from_slice(&[1], &[1_u8]).unwrap()));
    save_sharded(directory.path(), tensors, &options).unwrap();
    assert_eq!(Checkpoint::open(directory.path()).unwrap().len(), 2);
}

#[test]
fn a_file_of_a_delta_is_refused_by_its_own_path() {
    let directory = tempdir().unwrap();
    write_delta(directory.path(), r#"{"delta_encoding":"xor","base_version":"7"}"#);
    let file = directory.path().join(SHARD);
    let refused =
        [Checkpoint::open(&file).unwrap_err(), Checkpoint::open_files([&file]).unwrap_err()];
    for error in refused {
        assert!(matches!(error.kind(), ErrorKind::IsDelta { base } if base == "7"), "{error}");
        assert_eq!(error.file(), file.to_str());
    }
    // A file that the index does not name is none of the delta's.
    let other = write_difference(directory.path(), "other.safetensors");
    assert_eq!(Checkpoint::open(other).unwrap().len(), 1);
    // Neither is one next to an index that cannot be read, nor one with numbers.
    let index = directory.path().join("model.safetensors.index.json");
    let text = fs::read_to_string(&index).unwrap();
    write(directory.path(), "model.safetensors.index.json", &text[1..]);
    assert_eq!(Checkpoint::open(&file).unwrap().len(), 1);
    write(directory.path(), "model.safetensors.index.json", &text);
    let numbers = TensorBuf::from_vec(vec![1], vec![1.0_f32]).unwrap();
    let options = SaveOptions::new().metadata([("a", "00620062")]);
    save(&file, [("a", numbers)], &options).unwrap();
    assert_eq!(Checkpoint::open(&file).unwrap().len(), 1);
}

/// A directory opens as its `model.safetensors`, with any index.
#[test]
fn a_delta_may_have_the_name_of_a_checkpoint_of_one_file() {
    let directory = tempdir().unwrap();
    let file = write_difference(directory.path(), "model.safetensors");
    let index = r#"{"metadata":{"delta_encoding":"xor"},"weight_map":{"a":"model.safetensors"}}"#;
    write(directory.path(), "model.safetensors.index.json", index);
    assert_eq!(open_delta(directory.path()).unwrap(), 1);
    for path in [directory.path(), &file] {
        refused!(Checkpoint::open(path), ErrorKind::IsDelta { .. });
    }
    assert!(matches!(open_delta(&file).unwrap_err().kind(), ErrorKind::NotADelta));
}

#[test]
fn the_files_of_a_delta_can_be_copied() {
    let directory = tempdir().unwrap();
    write_delta(directory.path(), r#"{"delta_encoding":"xor"}"#);
    let found = CheckpointPath::find(directory.path()).unwrap();
    assert_eq!(found.files_to_copy().unwrap(), [directory.path().join(SHARD)]);
}
