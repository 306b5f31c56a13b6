//! Tied weights in files and checkpoints: reading files of the Python library, and reading back our
//! own.

use safetensors_core::error::TieProblem;
use safetensors_core::framework::{self, load};
use safetensors_testing::framework::Bufs;

use super::*;
use crate::support::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn names(checkpoint: &Checkpoint) -> Vec<(String, String)> {
    checkpoint
        .aliases()
        .map(|(alias, tensor)| (alias.to_owned(), tensor.name().to_owned()))
        .collect()
}

/// The fixtures are made by `safetensors.torch.save_model`, and by `huggingface_hub`, which records
/// the names in the index.
#[test]
fn files_of_the_python_libraries() {
    for (name, shards) in [("tied.safetensors", 1), ("tied-sharded", 2)] {
        let checkpoint = Checkpoint::open(fixture(name)).unwrap();
        assert_eq!(checkpoint.files().len(), shards);
        let kept = "decoder.weight";
        let expected =
            ["embed.weight", "lm_head.weight"].map(|alias| (alias.to_owned(), kept.to_owned()));
        assert_eq!(names(&checkpoint), expected);
        for name in [kept, "embed.weight", "lm_head.weight"] {
            let weight = checkpoint.tensor(name).unwrap();
            assert_eq!((weight.name(), weight.shape()), (kept, &[3, 2][..]));
            assert_eq!(
                weight.read().unwrap().into_vec::<f32>().unwrap(),
                [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
            );
        }
        assert_eq!((checkpoint.len(), checkpoint.tensors().count()), (2, 2));
        assert_eq!(
            checkpoint.tensor("decoder.bias").unwrap().read().unwrap().as_slice::<f32>().unwrap(),
            [-1.0, -2.0, -3.0]
        );
        for name in ["format", "title", "pt", "total_size", "embed"] {
            refused!(checkpoint.tensor(name), ErrorKind::TensorNotFound);
        }
    }
}

/// We save a tied model as Python does, except for the order in the header.
#[test]
fn the_same_file_as_save_model() {
    let python = Checkpoint::open(fixture("tied.safetensors")).unwrap();
    let weight = python.tensor("decoder.weight").unwrap().read().unwrap();
    let bias = python.tensor("decoder.bias").unwrap().read().unwrap();
    let tensors = [
        ("embed.weight", &weight),
        ("decoder.weight", &weight),
        ("decoder.bias", &bias),
        ("lm_head.weight", &weight),
    ];
    let options =
        SaveOptions::new().metadata([("format", "pt"), ("title", "tied")]).tied(Tied::new());
    let (_directory, path) = place("model.safetensors");
    save(&path, tensors, &options).unwrap();
    let ours = Checkpoint::open(&path).unwrap();
    assert_eq!(ours.metadata(), python.metadata());
    let infos = |checkpoint: &Checkpoint| {
        checkpoint.tensors().map(|tensor| format!("{:?}", tensor.info())).collect::<Vec<_>>()
    };
    assert_eq!(infos(&ours), infos(&python));
}

#[test]
fn several_files_record_the_names_in_the_index() {
    let directory = tempdir().unwrap();
    let [shared, own] =
        [7_u8, 8].map(|value| TensorBuf::from_vec(vec![16], vec![value; 16]).unwrap());
    let tensors = [("z", &shared), ("own", &own), ("a", &shared)];
    let options = SaveOptions::new().durable(false).tied(Tied::new().prefer(["z"]));
    let sharded = ShardOptions::new().max_shard_size(16.into()).save_options(options.clone());
    let saved = save_sharded(directory.path(), tensors, &sharded).unwrap();
    assert_eq!((saved.files.len(), saved.total_size), (2, 32));
    let index = fs::read(directory.path().join("model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    assert_eq!(index["metadata"], serde_json::json!({"a": "z", "total_size": 32}));
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert_eq!(names(&checkpoint), [("a".into(), "z".into())]);
    assert_eq!(checkpoint.tensor("a").unwrap().read().unwrap().bytes(), [7; 16]);
    for shard in checkpoint.files() {
        assert_eq!(*shard.safetensors().metadata(), aliases(&[("format", "pt")]));
    }

    // A single file records the names itself.
    let one = ShardOptions::new().save_options(options.clone());
    assert_eq!(save_sharded(directory.path(), tensors, &one).unwrap().files, ["model.safetensors"]);
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert_eq!(*checkpoint.metadata(), aliases(&[("a", "z"), ("format", "pt")]));

    // Without tying, each name has its own bytes, and all count towards the size.
    let untied = ShardOptions::new()
        .max_shard_size(16.into())
        .save_options(SaveOptions::new().durable(false));
    let saved = save_sharded(directory.path(), tensors, &untied).unwrap();
    assert_eq!((saved.files.len(), saved.total_size), (3, 48));

    // Names with another meaning in the metadata.
    for name in ["total_size", "a"] {
        let tensors = [(name, &shared), ("own", &own), ("z", &shared)];
        let sharded = ShardOptions::new().max_shard_size(16.into());
        let error = refused!(
            save_sharded(
                directory.path(),
                tensors,
                &sharded.save_options(options.clone().metadata([("a", "x")])),
            ),
            ErrorKind::Tie { problem: TieProblem::NotRecorded { .. } }
        );
        assert_eq!((error.tensor(), error.file()), (Some(name), directory.path().to_str()));
    }
    assert_eq!(Checkpoint::open(directory.path()).unwrap().len(), 3);
}

#[test]
fn metadata_of_another_meaning() {
    let directory = tempdir().unwrap();
    let header = r#"{"__metadata__":{"a":"b","alias":"a","chain":"alias","other":"nothing","self":"self","":"b"},
        "a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    let path = write(directory.path(), "model.safetensors", file_with(header, &[1, 2]));
    let checkpoint = Checkpoint::open(&path).unwrap();
    // A tensor's own name wins over an alias. An alias of an alias is not an alias.
    assert_eq!(names(&checkpoint), [("".into(), "b".into()), ("alias".into(), "a".into())]);
    assert_eq!(checkpoint.tensor("a").unwrap().read().unwrap().bytes(), [1]);
    assert_eq!(checkpoint.tensor("").unwrap().read().unwrap().bytes(), [2]);
    assert!(checkpoint.get("chain").is_none() && checkpoint.get("self").is_none());
}

#[test]
fn frameworks_get_all_names() {
    let checkpoint = Checkpoint::open(fixture("tied-sharded")).unwrap();
    let all = load::<Bufs>(&checkpoint, &(), &LoadOptions::new()).unwrap();
    assert_eq!(
        all.keys().collect::<Vec<_>>(),
        ["decoder.bias", "decoder.weight", "embed.weight", "lm_head.weight"]
    );
    let weight = [0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0];
    assert!(
        all.iter()
            .filter(|(name, _)| name.ends_with("weight"))
            .all(|(_, buf)| buf.as_slice::<f32>().unwrap() == weight)
    );

    // Saving: one buffer under two names is one tensor.
    let directory = tempdir().unwrap();
    let tensors =
        [("x", &all["embed.weight"]), ("y", &all["embed.weight"]), ("bias", &all["decoder.bias"])];
    let options = SaveOptions::new().tied(Tied::new());
    let saved = framework::save_sharded::<Bufs>(
        directory.path(),
        tensors,
        &ShardOptions::new().max_shard_size(24.into()).save_options(options),
    );
    assert_eq!(saved.unwrap().files.len(), 2);
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    assert_eq!(names(&checkpoint), [("y".into(), "x".into())]);
}
