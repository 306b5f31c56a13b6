//! Directories of PyTorch's trainers. `dev/scripts/training_checkpoints.py` makes the fixtures, and
//! compares many more layouts with PyTorch's own tools.

use safetensors_core::Checkpoint;
use safetensors_core::audit::Finding;
use safetensors_core::checkpoint::store::MemoryStore;
use safetensors_core::optimizer::PyTorchTraining;
use safetensors_formats::{ErrorKind, Format, Options, TensorFile, open_files};
use safetensors_testing::files::files_below;
use serde_json::{Value, json};

use super::rebuilt::{archive, dictionary, tensor};
use super::{assert_same, fixture};

const DCP: [&str; 4] = ["grid_rows_columns", "strided", "values", "per_rank"];
const ZERO: [&str; 2] = ["stage2", "stage3"];

/// Returns the files of a directory, in memory.
fn in_memory(name: &str) -> MemoryStore {
    without(name, None)
}

/// Returns the files of a directory but one.
fn without(name: &str, left_out: Option<&str>) -> MemoryStore {
    let mut files = files_below(&fixture(&format!("training/{name}")));
    assert!(left_out.is_none_or(|left| files.iter().any(|(file, _)| file == left)), "{left_out:?}");
    files.retain(|(file, _)| Some(file.as_str()) != left_out);
    MemoryStore::from_iter(files)
}

fn read(name: &str, file: &str) -> Vec<u8> {
    std::fs::read(fixture(&format!("training/{name}/{file}"))).unwrap()
}

/// A file of a fixture, changed.
fn changed(name: &str, file: &str, change: impl FnOnce(&mut Vec<u8>)) -> MemoryStore {
    let mut store = in_memory(name);
    let mut bytes = read(name, file);
    change(&mut bytes);
    store.insert(file, bytes);
    store
}

/// Puts other bytes of the same length in the place of some.
fn replace(bytes: &mut [u8], from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let places: Vec<_> = bytes
        .windows(from.len())
        .enumerate()
        .filter(|(_, window)| *window == from.as_bytes())
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty(), "{from}");
    places.iter().for_each(|&at| bytes[at..at + to.len()].copy_from_slice(to.as_bytes()));
}

pub(super) fn open(store: &MemoryStore) -> safetensors_formats::Result<Checkpoint<TensorFile>> {
    Checkpoint::from_sources(open_files(store.clone(), "", &Options::new())?)
}

#[track_caller]
pub(super) fn refused(store: &MemoryStore, says: &[&str]) {
    let error = open(store).expect_err("it is malformed").to_string();
    assert!(says.iter().all(|says| error.contains(says)), "{error}\nshould have {says:?}");
}

/// Compares every tensor with the file next to the fixture.
#[track_caller]
fn assert_expected(checkpoint: &Checkpoint<TensorFile>, name: &str) {
    let expected = fixture(&format!("training/{name}.safetensors"));
    assert_same(checkpoint, &Checkpoint::open(expected).unwrap());
}

#[test]
fn directories_of_trainers_are_read_as_whole_tensors() {
    let formats = DCP.map(|name| (name, Format::Dcp)).into_iter();
    let formats = formats.chain(ZERO.map(|name| (name, Format::DeepSpeed)));
    for (name, format) in formats.chain([("ranks", Format::Dtensor)]) {
        let path = fixture(&format!("training/{name}"));
        let checkpoint = safetensors_formats::open(&path, &Options::new()).unwrap();
        assert_expected(&checkpoint, name);
        let file = checkpoint.files()[0].safetensors().source();
        assert_eq!(file.format(), format, "{name}");
        assert!(format.is_of_directories());
        super::assert_any_range(file);
        assert!(file.verify_checksums().unwrap() > 0, "{name}");
        assert_expected(&open(&in_memory(name)).unwrap(), name);
    }
}

#[test]
fn values_that_are_no_tensors_are_listed_and_tensors_in_them_are_read() {
    let checkpoint = open(&in_memory("values")).unwrap();
    let file = checkpoint.files()[0].safetensors().source();
    let plain = r#""big", "list", "nested.deep.flag", "none", "number", "pair", "text""#;
    assert!(file.notes().contains(&format!("skipped: 7 values: {plain}")), "{:?}", file.notes());
    // PyTorch does not enter tuples: the value is one object, with a tensor in it.
    assert!(checkpoint.get("tuple.0").is_some());
}

#[test]
fn settings_are_metadata_and_an_unknown_object_is_listed() {
    let path = fixture("training/settings");
    let checkpoint = safetensors_formats::open(&path, &Options::new()).unwrap();
    let file = checkpoint.files()[0].safetensors().source();
    let stored = file.stored("holder").unwrap();
    assert_eq!((stored.type_name.as_str(), &*stored.shape), ("argparse.Namespace", &[0][..]));
    let error = checkpoint.tensor("holder").unwrap().read().unwrap_err().to_string();
    assert!(error.contains("a tensor inside \"argparse.Namespace\", which is not read"), "{error}");
    let expected = Checkpoint::open(fixture("training/settings.safetensors")).unwrap();
    for tensor in expected.tensors() {
        let found = checkpoint.tensor(tensor.name()).unwrap().read().unwrap();
        assert_eq!(found.bytes(), tensor.read().unwrap().bytes(), "{}", tensor.name());
    }
    assert_eq!(checkpoint.len(), expected.len() + 1);

    // By number and by name they have the form in which a file of PyTorch has them.
    let json = |key: &str| serde_json::from_str::<Value>(&checkpoint.metadata()[key]).unwrap();
    let first = json!({"lr": 0.01, "betas": [0.9, 0.999], "fused": null, "params": ["a.w", "b"]});
    let second = json!({"lr": 0.5, "betas": [0.9, 0.999], "fused": null, "params": ["c"]});
    assert_eq!(json("optim.param_groups"), json!([first, second]));
    assert_eq!(json("flat.param_groups"), json!([first, second]));
    assert_eq!(file.notes(), ["skipped: 1 value: \"step\""]);
    let state = PyTorchTraining::new().optimizer("optim").state(&checkpoint).unwrap();
    assert_eq!(state.setting::<[f64; 2]>("betas").unwrap(), Some([0.9, 0.999]));
    assert!(state.setting::<f64>("lr").is_err());
}

#[test]
fn unread_files_of_a_directory_are_reported() {
    let mut store = in_memory("grid_rows_columns");
    store.insert("__4_0.distcp", Vec::new());
    let checkpoint = open(&store).unwrap();
    let findings = checkpoint.files()[0].safetensors().source().findings();
    assert_eq!(findings, [Finding::StrayFile { file: "__4_0.distcp".into() }]);
    let mut store = in_memory("ranks");
    store.insert("optim_world_size_4_rank_0.pt", Vec::new());
    let checkpoint = open(&store).unwrap();
    let notes = checkpoint.files()[0].safetensors().source().notes();
    assert_eq!(notes, ["skipped: 1 file: \"optim_world_size_4_rank_0.pt\""]);
}

#[test]
fn a_single_part_is_refused() {
    let path = fixture("training/grid_rows_columns/__0_0.distcp");
    let error = safetensors_formats::open(&path, &Options::new()).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::PartOfDirectory)), "{error}");
    // Whatever its name is, several archives in a row are not one, also if they are equally long.
    let one = std::fs::read(fixture("training/per_rank/__0_0.distcp")).unwrap();
    let several = std::fs::read(fixture("training/values/__0_0.distcp")).unwrap();
    for bytes in [several, [one.clone(), one].concat()] {
        let error = TensorFile::from_source(bytes, "model.pt", &Options::new()).unwrap_err();
        assert!(matches!(error.other(), Some(ErrorKind::TwoFormats { .. })), "{error}");
    }
}

#[test]
fn a_missing_file_is_named() {
    for (name, file, says) in [
        ("grid_rows_columns", ".metadata", ".metadata"),
        ("grid_rows_columns", "__2_0.distcp", "__2_0.distcp"),
        ("per_rank", "__0.metadata", "__0.metadata"),
        ("per_rank", "__2.metadata", "__2.metadata"),
        ("per_rank", "__3_0.distcp", "__3_0.distcp"),
        ("stage2", "global_step2/mp_rank_00_model_states.pt", "mp_rank_00_model_states.pt"),
        (
            "stage2",
            "global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt",
            "zero_pp_rank_1_mp_rank_00_optim_states.pt",
        ),
        (
            "stage3",
            "global_step2/zero_pp_rank_0_mp_rank_00_model_states.pt",
            "zero_pp_rank_0_mp_rank_00_model_states.pt",
        ),
        ("ranks", "model_world_size_4_rank_1.pt", "model_world_size_4_rank_1.pt"),
        ("ranks", "model_world_size_4_rank_3.pt", "model_world_size_4_rank_3.pt"),
    ] {
        let error = open(&without(name, Some(file))).expect_err(name);
        let is_named =
            matches!(error.other(), Some(ErrorKind::MissingFile { file }) if file == says);
        assert!(is_named, "{name} without {file}: {error}");
    }
    // A missing last file of several is found by the content of the others.
    refused(&without("per_rank", Some("__3.metadata")), &["they have 18 of the 21 elements"]);
    for name in ["stage2/optim", "stage3/optim", "stage3/model"] {
        let (name, of) = name.split_once('/').unwrap();
        let file = format!("zero_pp_rank_2_mp_rank_00_{of}_states.pt");
        let store = without(name, Some(&format!("global_step2/{file}")));
        refused(&store, &["not complete", &file]);
    }
}

#[test]
fn metadata_that_is_hostile_is_refused_by_name() {
    let metadata = |from: &str, to: &str| {
        changed("grid_rows_columns", ".metadata", |bytes| replace(bytes, from, to))
    };
    for (from, to, says) in [
        ("ChunkStorageMetadata", "ChunkStorageMetadatb", "ChunkStorageMetadatb\", which is not"),
        ("checkpoint.filesystem", "checkpoint.filesystex", "which is not known"),
        ("__1_0.distcp", "../../../etc", "expected the plain name of a file"),
        ("__1_0.distcp", "__9_0.distcp", "__9_0.distcp\" is missing"),
        ("__1_0.distcp", "__0_0.distcp", "overlaps that of"),
        ("relative_path", "relative_patx", "the field relative_path is missing"),
        ("fqn", "fqx", "the field fqn is missing"),
        ("float32", "float33", "torch.float33 is unknown"),
        ("float32", "float16", "should be torch.float16"),
        ("state_dict_metadata", "state_dict_metadatx", "state_dict_metadata is missing"),
        ("storage_data", "storage_datx", "storage_data is missing"),
    ] {
        refused(&metadata(from, to), &[says]);
    }
    // The pickle is cut.
    refused(&changed("per_rank", "__1.metadata", |bytes| bytes.truncate(100)), &["__1.metadata"]);
}

#[test]
fn files_that_are_damaged_are_an_error_or_other_values() {
    for (name, file) in [
        ("grid_rows_columns", ".metadata"),
        ("grid_rows_columns", "__1_0.distcp"),
        ("ranks", "model_world_size_4_rank_1.pt"),
        ("stage2", "global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt"),
        ("stage2", "global_step2/mp_rank_00_model_states.pt"),
    ] {
        let (whole, directory) = (read(name, file), in_memory(name));
        for at in (0..whole.len()).step_by(1 + whole.len() / 300) {
            let mut damaged = whole.clone();
            damaged[at] ^= [0x01, 0x80, 0xff][at % 3];
            for bytes in [damaged, whole[..at].to_vec()] {
                let mut store = directory.clone();
                store.insert(file, bytes);
                let Ok(checkpoint) = open(&store) else { continue };
                checkpoint.tensors().for_each(|tensor| _ = tensor.read());
            }
        }
    }
}

#[test]
fn ranks_that_do_not_belong_together_are_refused() {
    let other = std::fs::read(fixture("training/per_rank/__1_0.distcp")).unwrap();
    let mut store = in_memory("grid_rows_columns");
    store.insert("__1_0.distcp", other);
    refused(&store, &["__1_0.distcp"]);

    // The step of the optimizer is a number of F32: here 2.
    let optimizer = "global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt";
    let store = changed("stage2", optimizer, |bytes| {
        let step = 2_f32.to_le_bytes();
        let at = bytes.windows(4).position(|window| window == step).unwrap();
        bytes[at..at + 4].copy_from_slice(&3_f32.to_le_bytes());
    });
    refused(&store, &["rank_1_mp_rank_00_optim", "its step differs from rank 0's"]);

    let mut store = in_memory("ranks");
    store.insert("model_world_size_2_rank_0.pt", vec![0]);
    refused(&store, &["jobs with {2, 4} ranks"]);
    let rank = |rank: usize| {
        let path = format!("training/ranks/model_world_size_4_rank_{rank}.pt");
        std::fs::read(fixture(&path)).unwrap()
    };
    let mut store = in_memory("ranks");
    store.insert("model_world_size_4_rank_0.pt", rank(3));
    refused(&store, &["model_world_size_4_rank_0.pt", "it should have F32 of shape [2, 3]"]);
    let mut one = rank(1);
    replace(
        &mut one,
        "placement_types Shard".replace(' ', "\n").as_str(),
        "placement_types\nSharp",
    );
    let mut store = in_memory("ranks");
    store.insert("model_world_size_4_rank_1.pt", one);
    refused(&store, &["placement \"Sharp\"", "tensor \"w\""]);
}

#[test]
fn other_layouts_of_deepspeed_are_refused_by_name() {
    for (file, says) in [
        ("mp_rank_01_model_states.pt", "a part of a model that ranks divide"),
        ("layer_0_expert_1_mp_rank_00_model_states.pt", "experts or a stage of a pipeline"),
        ("layer_01-model_00-model_states.pt", "experts or a stage of a pipeline"),
        ("expp_rank_0_mp_rank_00_optim_states.pt", "experts or a stage of a pipeline"),
        ("zero_pp_rank_0_mp_rank_00_model_states.pt", "two files are of the rank"),
    ] {
        let mut store = in_memory("stage2");
        store.insert(format!("global_step2/{file}"), Vec::new());
        refused(&store, &[says, file]);
    }
    let tag = |text: &str| changed("stage2", "latest", |bytes| *bytes = text.into());
    refused(&tag("global_step9"), &["\"global_step9\" is missing"]);
    refused(&tag("../global_step2"), &["expected the name of a directory"]);
    assert!(open(&tag("global_step2\n")).is_ok());
}

/// A step of stage 2 on one rank, with these frozen parameters and their fragments.
fn with_frozen(frozen: &[(&str, &[u8])], fragments: &[(&str, &[u8])]) -> MemoryStore {
    let two = tensor("_rebuild_tensor_v2", b"");
    let shapes = [b"]", &dictionary(&[("w", b"K\x02\x85")])[..], b"a"].concat();
    let model = dictionary(&[
        ("module", &dictionary(&[("whole", &two)])),
        ("param_shapes", &shapes),
        ("frozen_param_shapes", &dictionary(frozen)),
        ("frozen_param_fragments", &dictionary(fragments)),
    ]);
    let groups = [b"]", &two[..], b"a"].concat();
    let state = dictionary(&[
        ("zero_stage", b"K\x02"),
        ("partition_count", b"K\x01"),
        ("single_partition_of_fp32_groups", &groups),
    ]);
    let optimizer = dictionary(&[("optimizer_state_dict", &state)]);
    MemoryStore::from_iter([
        ("mp_rank_00_model_states.pt", archive(&model)),
        ("zero_pp_rank_0_mp_rank_00_optim_states.pt", archive(&optimizer)),
    ])
}

#[test]
fn frozen_parameters_are_read_or_reported_missing() {
    let two = tensor("_rebuild_tensor_v2", b"");
    let shape: &[u8] = b"K\x02\x85";
    // Tied ones are one tensor, and the module has another.
    let all = [("a", shape), ("b", shape), ("whole", shape)];
    let checkpoint = open(&with_frozen(&all, &[("a", &two), ("b", &two)])).unwrap();
    let aliases: Vec<_> = checkpoint.aliases().map(|(name, it)| (name, it.name())).collect();
    assert_eq!(aliases, [("b", "a")]);
    let names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name()).collect();
    assert_eq!(names, ["w", "a", "whole"]);
    for tensor in checkpoint.tensors() {
        assert_eq!(tensor.read().unwrap().into_vec::<f32>().unwrap(), [1.0, 2.0]);
    }
    let says = ["tensor \"b\"", "it is not trained, and no file has its numbers"];
    refused(&with_frozen(&all, &[("a", &two)]), &says);
    let other = [("a", shape), ("b", b"K\x01K\x02\x86")];
    let says = ["tensor \"b\"", "another name of \"a\""];
    refused(&with_frozen(&other, &[("a", &two), ("b", &two)]), &says);

    let mut store = in_memory("stage3");
    for rank in 0..3 {
        let file = format!("global_step2/zero_pp_rank_{rank}_mp_rank_00_model_states.pt");
        let mut bytes = read("stage3", &file);
        replace(&mut bytes, "frozen_param_fragments", "frozen_param_fragmentx");
        store.insert(&file, bytes);
    }
    refused(&store, &["it is not trained, and no file has its numbers"]);
}

#[test]
fn the_state_of_the_optimizer_is_read_on_request() {
    for name in ZERO {
        let path = fixture(&format!("training/{name}"));
        let options = Options::new().optimizer_state(true);
        let checkpoint = safetensors_formats::open(&path, &options).unwrap();
        let weights = safetensors_formats::open(&path, &Options::new()).unwrap();
        let mut moments = 0;
        for tensor in checkpoint.tensors() {
            let Some(name) = tensor.name().strip_prefix("optimizer.state.") else { continue };
            let (parameter, moment) = name.rsplit_once('.').unwrap();
            assert!(["exp_avg", "exp_avg_sq"].contains(&moment), "{name}");
            assert_eq!(weights.tensor(parameter).unwrap().shape(), tensor.shape());
            let numbers = tensor.read().unwrap().into_vec::<f32>().unwrap();
            assert!(numbers.iter().any(|&it| it != 0.0) && numbers.iter().all(|it| it.is_finite()));
            assert!(moment == "exp_avg" || numbers.iter().all(|&it| it >= 0.0));
            moments += 1;
        }
        assert!(moments >= 8 && checkpoint.len() == weights.len() + moments);
        let state = PyTorchTraining::new().state(&checkpoint).unwrap();
        assert_eq!(state.setting::<f64>("lr").unwrap(), Some(0.01));
        let groups = &checkpoint.metadata()["optimizer.param_groups"];
        assert!(groups.contains(r#""params":["first.weight","first.bias","#), "{groups}");
        assert!(!weights.metadata().contains_key("optimizer.param_groups"));
    }
}

#[test]
fn a_directory_of_no_trainer_is_refused() {
    let mut store = MemoryStore::default();
    store.insert("config.json", b"{}".to_vec());
    let error = open(&store).unwrap_err();
    assert!(matches!(error.other(), Some(ErrorKind::UnknownFormat { .. })), "{error}");
    store.insert("metadata.json", br#"{"sharded_backend": "zarr"}"#.to_vec());
    refused(&store, &["Megatron", "zarr"]);
    let mut store = MemoryStore::default();
    for rank in ["mp_rank_00", "mp_rank_01"] {
        store.insert(format!("{rank}/model_optim_rng.pt"), Vec::new());
    }
    refused(&store, &["each of 2 directories mp_rank_*"]);
}
