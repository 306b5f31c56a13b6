//! The settings of optimizers, which become metadata.

use safetensors_core::checkpoint::store::MemoryStore;
use safetensors_core::optimizer::PyTorchTraining;
use safetensors_core::{Checkpoint, Rewrite, SaveOptions};
use safetensors_formats::{ErrorKind, Limits, Options, TensorFile, open_files};
use safetensors_testing::optimizer::{NAMES, fixture};

use super::assert_same;
use super::pytorch::{DATA, KEYS, legacy};
use super::rebuilt::{archive, dictionary, tensor, text};

const GROUPS: &str = "optimizer.param_groups";

#[test]
fn a_training_of_pytorch_is_a_checkpoint_with_settings() {
    let opened = safetensors_formats::open(fixture("adamw.pt"), &Options::new()).unwrap();
    let expected = Checkpoint::open(fixture("adamw.safetensors")).unwrap();
    assert_same(&opened, &expected);
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(json(&opened.metadata()[GROUPS]), json(&expected.metadata()[GROUPS]));
    // A kept value is not reported as skipped.
    let notes = opened.files()[0].safetensors().source().notes();
    assert!(notes.is_empty(), "{notes:?}");

    // A conversion keeps them.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("training.safetensors");
    Rewrite::from_checkpoint(&opened).save(&path, &SaveOptions::new()).unwrap();
    let converted = Checkpoint::open(&path).unwrap();
    let state = PyTorchTraining::new().parameters(NAMES).state(&converted).unwrap();
    assert_eq!(state.setting::<f64>("lr").unwrap(), Some(0.02));
    assert_eq!(state.setting::<[f64; 2]>("betas").unwrap(), Some([0.9, 0.999]));
    assert_eq!(state.setting::<bool>("amsgrad").unwrap(), Some(false));
    assert_eq!(state.setting::<bool>("foreach").unwrap(), None);
    assert_eq!(state.steps().unwrap(), Some(5));
}

#[test]
fn settings_in_directories_are_kept() {
    let settings = [b"](}", &text("lr")[..], b"K\x02se"].concat();
    let state = [b"}", &text("a")[..], &tensor("_rebuild_tensor_v2", b""), b"s"].concat();
    let items = [text("state"), state, text("param_groups"), settings, text("epoch")].concat();
    let optimizer = [b"}(", &items[..], b"K\x07u"].concat();
    for (file, key, name) in [
        ("model_world_size_1_rank_0.pt", "optimizer", "optimizer."),
        ("mp_rank_00_model_states.pt", "module", ""),
    ] {
        let store = MemoryStore::from_iter([(file, archive(&dictionary(&[(key, &optimizer)])))]);
        let files = open_files(store, "", &Options::new()).unwrap();
        assert_eq!(files[0].1.notes(), ["skipped: 1 number"], "{file}");
        let checkpoint = Checkpoint::from_sources(files).unwrap();
        assert_eq!(checkpoint.metadata()[&format!("{name}param_groups")], r#"[{"lr":2}]"#);
        assert!(checkpoint.tensor(&format!("{name}state.a")).is_ok());
    }
}

/// Returns the metadata of a file with a pickle that has this value as its groups, and a state.
fn groups(value: &[u8], options: &Options) -> safetensors_core::Result<Option<String>> {
    let state = [b"}", &text("a")[..], &tensor("_rebuild_tensor_v2", b""), b"s"].concat();
    let items = [text("state"), state, text("param_groups"), value.to_vec()].concat();
    let pickle = [b"}(", &items[..], b"u."].concat();
    let file = TensorFile::from_source(legacy(&pickle, KEYS, DATA), "a file", options)?;
    Ok(Checkpoint::from_source(file, "a file")?.metadata().get("param_groups").cloned())
}

#[test]
fn values_that_json_cannot_hold_are_skipped() {
    let json = |value: &[u8]| groups(value, &Options::new()).unwrap();
    let float = |value: f64| [b"G", &value.to_be_bytes()[..]].concat();
    let list = |items: &[u8]| [b"](", items, b"e"].concat();
    assert_eq!(json(&list(&float(1e-8))).unwrap(), "[1e-8]");
    assert_eq!(json(&list(b"F0.5\nI01\nNK\x07\x85")).unwrap(), "[0.5,true,null,[7]]");
    let odd = [float(f64::INFINITY), float(f64::NAN)].concat();
    assert_eq!(json(&list(&odd)).unwrap(), r#"["inf","NaN"]"#);
    // An object and a tensor. Numbers are keys of a dictionary, too.
    let rate =
        [b"}(", &text("lr")[..], &tensor("_rebuild_tensor_v2", b""), b"K\x02K\x01u"].concat();
    assert_eq!(json(&list(&rate)).unwrap(), r#"[{"2":1}]"#);
    assert_eq!(json(&list(b"cnumpy\nfloat64\n)R")).unwrap(), "[null]");
    // No optimizer has this.
    assert_eq!(json(b"K\x01"), None);
    let deep = [vec![b']'; 50], vec![b'a'; 49]].concat();
    assert_eq!(json(&deep).unwrap(), format!("{}{}", "[".repeat(50), "]".repeat(50)));
}

/// A list of two lists of two, and so on.
pub(super) fn doubled(value: &[u8], times: u8) -> Vec<u8> {
    let twice =
        |memo: u8| [b"]q", &[memo, b'(', b'h', memo - 1, b'h', memo - 1, b'e'][..]].concat();
    let lists: Vec<u8> = (1..=times).flat_map(|memo| [twice(memo), vec![b'0']].concat()).collect();
    [value, b"q\x000", &lists[..lists.len() - 1]].concat()
}

/// One list in itself many times over has more items than any file.
#[test]
fn settings_are_bounded() {
    let mut limits = Limits::default();
    limits.directory_bytes = 10_000;
    let options = Options::new().limits(limits);
    assert!(groups(&doubled(&text("long"), 3), &options).unwrap().is_some());
    let error = groups(&doubled(&text(&"long".repeat(100)), 5), &options).unwrap_err();
    let found = error.other::<ErrorKind>();
    assert!(matches!(found, Some(ErrorKind::DirectoryTooLong { limit: 10_000 })), "{error}");
    let error = groups(&doubled(b"K\x01", 40), &Options::new()).unwrap_err();
    assert!(error.to_string().contains("bytes of memory"), "{error}");
}
