//! Which file or index a path means.

use std::io;

use safetensors_core::checkpoint::CheckpointPath;

use super::{write_index, write_shard};
use crate::support::*;

/// The value of the only tensor `a` of the checkpoint at a path.
fn a(path: impl AsRef<Path>) -> u8 {
    Checkpoint::open(path).unwrap().tensor("a").unwrap().read().unwrap().bytes()[0]
}

/// The names in the error for a directory with no checkpoint, or with several.
fn found(directory: &Path) -> Vec<String> {
    let error = Checkpoint::open(directory).unwrap_err();
    assert_eq!(error.file(), directory.to_str());
    let ErrorKind::NoCheckpoint { found, .. } = error.kind() else { unreachable!("{error}") };
    for name in found {
        assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
    }
    found.clone()
}

#[test]
fn a_file_is_that_file() {
    let directory = tempdir().unwrap();
    write_shard(directory.path(), "other.safetensors", &[("a", 1)]);
    let path = write_shard(directory.path(), "no extension", &[("a", 2)]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!((checkpoint.index_path(), checkpoint.files().len()), (None, 1));
    assert_eq!(checkpoint.files()[0].path(), path);
    assert_eq!(checkpoint.tensor("a").unwrap().file(), Some(&*path));
    assert_eq!(a(&path), 2);
}

#[test]
fn a_directory_with_one_file_is_that_file() {
    let directory = tempdir().unwrap();
    write_shard(directory.path(), "anything.safetensors", &[("a", 1)]);
    for other in
        ["config.json", "README.md", "pytorch_model.bin", "x.safetensors.tmp", ".x.safetensors.tmp"]
    {
        write(directory.path(), other, "not a checkpoint");
    }
    assert_eq!(a(directory.path()), 1);
}

/// transformers and huggingface_hub choose in the same way.
#[test]
fn a_directory_with_other_files_opens_as_model_safetensors() {
    let directory = tempdir().unwrap();
    let path = directory.path();
    write_shard(path, "model-00001-of-00001.safetensors", &[("a", 2)]);
    let map = [("a", "model-00001-of-00001.safetensors")];
    let index = write_index(path, "model.safetensors.index.json", &map);
    assert_eq!(a(path), 2);
    assert_eq!(Checkpoint::open(path).unwrap().index_path(), Some(&*index));

    // Variants, which are loaded only on request.
    write_shard(path, "model.fp16.safetensors", &[("a", 3)]);
    write_index(path, "model.fp16.safetensors.index.json", &map);
    assert_eq!(a(path), 2);
    let file = write_shard(path, "model.safetensors", &[("a", 1)]);
    assert_eq!(a(path), 1);
    assert_eq!(CheckpointPath::find(path).unwrap(), CheckpointPath::File(file.clone()));
    assert_eq!(a(&index), 2);
    for other in [index, path.join("model.fp16.safetensors.index.json")] {
        fs::remove_file(other).unwrap();
        assert_eq!(a(path), 1);
    }

    // A directory of such a name does not count.
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(found(path), ["model-00001-of-00001.safetensors", "model.fp16.safetensors"]);
    fs::remove_file(path.join("model-00001-of-00001.safetensors")).unwrap();
    assert_eq!(a(path), 3);
}

/// The file comes first even if the index names it.
#[test]
fn model_safetensors_comes_before_an_index_that_names_it() {
    let directory = tempdir().unwrap();
    write_shard(directory.path(), "model.safetensors", &[("a", 1)]);
    write_shard(directory.path(), "more.safetensors", &[("b", 2)]);
    let map = [("a", "model.safetensors"), ("b", "more.safetensors")];
    write_index(directory.path(), "model.safetensors.index.json", &map);
    assert_eq!(Checkpoint::open(directory.path()).unwrap().len(), 1);
}

#[test]
fn an_index_may_have_any_name() {
    let directory = tempdir().unwrap();
    write_shard(directory.path(), "adapter.safetensors", &[("a", 1)]);
    write_shard(directory.path(), "s.safetensors", &[("a", 2)]);
    let index = write_index(directory.path(), "map.json", &[("a", "s.safetensors")]);
    assert_eq!(a(&index), 2);
    assert_eq!(a(directory.path().join("adapter.safetensors")), 1);

    fs::rename(index, directory.path().join("adapter.safetensors.index.json")).unwrap();
    assert_eq!(a(directory.path()), 2);
}

#[test]
fn of_several_indexes_the_models_is_meant() {
    let directory = tempdir().unwrap();
    write_shard(directory.path(), "s1.safetensors", &[("a", 1)]);
    write_shard(directory.path(), "s2.safetensors", &[("a", 2)]);
    write_index(directory.path(), "adapter.safetensors.index.json", &[("a", "s1.safetensors")]);
    let other =
        write_index(directory.path(), "other.safetensors.index.json", &[("a", "s1.safetensors")]);
    let all = [
        "adapter.safetensors.index.json",
        "other.safetensors.index.json",
        "s1.safetensors",
        "s2.safetensors",
    ];
    assert_eq!(found(directory.path()), all);

    write_index(directory.path(), "model.safetensors.index.json", &[("a", "s2.safetensors")]);
    assert_eq!(a(directory.path()), 2);
    assert_eq!(a(other), 1);
}

#[test]
fn a_directory_with_several_files_lists_them() {
    let directory = tempdir().unwrap();
    write_shard(directory.path(), "b.safetensors", &[("a", 1)]);
    write_shard(directory.path(), "a.safetensors", &[("a", 1)]);
    write(directory.path(), "config.json", "{}");
    assert_eq!(found(directory.path()), ["a.safetensors", "b.safetensors"]);
}

/// mistral.rs: `residual.safetensors` has the tensors that are not quantised.
#[test]
fn a_file_next_to_quantised_layers_is_not_taken_for_the_model() {
    let directory = tempdir().unwrap();
    let path = directory.path();
    let residual = write_shard(path, "residual.safetensors", &[("a", 1)]);
    let layers = write_shard(path, "q4k-0.uqff", &[("b", 2)]);
    assert_eq!(found(path), ["residual.safetensors", "q4k-0.uqff"]);
    assert!(Checkpoint::open(path).is_err());
    assert_eq!(a(&residual), 1);
    fs::remove_file(&residual).unwrap();
    assert_eq!(found(path), ["q4k-0.uqff"]);

    write_shard(path, "model.safetensors", &[("a", 3)]);
    assert_eq!(a(path), 3);
    assert!(Checkpoint::open(layers).unwrap().tensor("b").is_ok());
}

#[test]
fn a_directory_without_a_checkpoint_is_an_error() {
    let directory = tempdir().unwrap();
    write(directory.path(), "config.json", "{}");
    write_shard(directory.path(), "inner/model.safetensors", &[("a", 1)]);
    assert!(found(directory.path()).is_empty());
    assert!(Checkpoint::open(directory.path()).unwrap_err().to_string().contains("found none"));
}

#[test]
fn the_error_lists_checkpoints_one_level_down() {
    let directory = tempdir().unwrap();
    for name in [
        "vae/diffusion.safetensors",
        "unet/model.safetensors",
        "unet/model.safetensors.index.json",
        "unet/config.json",
        "unet/deeper/model.safetensors",
        ".cache/model.safetensors",
        "empty/config.json",
    ] {
        write_shard(directory.path(), name, &[("a", 1)]);
    }
    let error = Checkpoint::open(directory.path()).unwrap_err();
    let ErrorKind::NoCheckpoint { found, below } = error.kind() else { unreachable!("{error}") };
    assert!(found.is_empty());
    let expected = [
        "unet/model.safetensors.index.json",
        "unet/model.safetensors",
        "vae/diffusion.safetensors",
    ];
    assert_eq!(below, &expected);
    let shown = error.to_string();
    assert!(shown.ends_with(
        r#"found none; below it: "unet/model.safetensors.index.json", "unet/model.safetensors", "vae/diffusion.safetensors""#
    ), "{shown}");
}

#[test]
fn a_directory_with_very_many_files_lists_some() {
    let directory = tempdir().unwrap();
    for i in 0..100 {
        write(directory.path(), &format!("{i:03}.safetensors"), "");
    }
    let error = Checkpoint::open(directory.path()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoCheckpoint { found, .. } if found.len() == 100));
    assert!(
        error.to_string().contains("\"000.safetensors\"")
            && error.to_string().contains("and 92 more"),
        "{error}"
    );
}

#[test]
fn a_path_that_does_not_exist() {
    let directory = tempdir().unwrap();
    for name in ["missing", "missing.safetensors", "missing.json", "missing/model.safetensors"] {
        let path = directory.path().join(name);
        let error = Checkpoint::open(&path).unwrap_err();
        assert_eq!(io_kind(&error), io::ErrorKind::NotFound, "{error}");
        assert_eq!(error.file(), path.to_str());
    }
}
