//! The tables of the module `migration`, line by line: an option of burn-store's `SafetensorsStore`
//! and ours of that name do the same, or differ as the table says. Each line has its function here.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use burn_store::{KeyRemapper, SafetensorsStore, SafetensorsStoreError};
use safetensors_testing::tables::assert_lines;

use super::*;

/// The test of a line. It panics if the line is not true.
type Line = fn(&Files);

/// A model that is saved, the file, and a place for other files.
struct Files {
    dir: TempDir,
    model: Model,
    file: PathBuf,
}

impl Files {
    fn new() -> Self {
        let (dir, model) = (dir(), Model::new(2));
        let file = dir.path().join("model.safetensors");
        model.save_into(&mut SafetensorsStore::from_file(&file)).unwrap();
        Self { dir, model, file }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.safetensors"))
    }
}

/// Equal options of both stores.
type Options = (fn(SafetensorsStore) -> SafetensorsStore, fn(CheckpointStore) -> CheckpointStore);

macro_rules! options {
    ($(. $option:ident ($($argument:expr),*))*) => {
        (|store| store$(.$option($($argument),*))*, |store| store$(.$option($($argument),*))*)
    };
}

/// Checks that both load the same into the same model, and save the same of it.
fn same(files: &Files, options: Options) {
    same_load(&files.model, &files.file, options);
    same_save(files, options);
}

fn same_load(model: &Model, file: &Path, (theirs, ours): Options) {
    let (mut by_burn, mut here) = (Model::new(7), Model::new(7));
    let mut start = SafetensorsStore::from_bytes(None);
    by_burn.save_into(&mut start).unwrap();
    here.load_from(&mut SafetensorsStore::from_bytes(Some(start.get_bytes().unwrap()))).unwrap();
    assert_eq!(state(&by_burn), state(&here));
    let result = by_burn.load_from(&mut theirs(SafetensorsStore::from_file(file))).unwrap();
    let found = here.load_from(&mut ours(CheckpointStore::from_file(file))).unwrap();
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    assert_eq!(sorted(found.applied), sorted(result.applied));
    assert_eq!(sorted(found.unused), sorted(result.unused));
    assert_eq!(state(&here), state(&by_burn));
    assert_eq!(state(model).len(), state(&here).len());
}

fn same_save(files: &Files, (theirs, ours): Options) {
    let paths = [files.path("theirs"), files.path("ours")];
    let (by_burn, here) = (
        SafetensorsStore::from_file(&paths[0]).overwrite(true),
        CheckpointStore::from_file(&paths[1]).overwrite(true),
    );
    files.model.save_into(&mut theirs(by_burn)).unwrap();
    files.model.save_into(&mut ours(here)).unwrap();
    let [theirs, ours] = paths.map(|path| load(path).unwrap());
    assert_eq!(ours, theirs);
}

fn of_linear(_: &str, within: &str) -> bool {
    within.ends_with("Struct:Linear")
}

fn mask_alone() -> PathFilter {
    PathFilter::from_paths(["mask"])
}

fn is_mask(name: &str, _: &str) -> bool {
    name == "mask"
}

const OPTIONS: &[(&str, Line)] = &[
    ("`from_file`", |files| same(files, options!())),
    ("`from_bytes`, `get_bytes`, `default`", |files| {
        let (mut theirs, mut ours) = (SafetensorsStore::default(), CheckpointStore::default());
        files.model.save_into(&mut theirs).unwrap();
        files.model.save_into(&mut ours).unwrap();
        let bytes = [theirs.get_bytes().unwrap(), ours.get_bytes().unwrap()];
        for bytes in bytes {
            let (mut by_burn, mut here) = (Model::new(7), Model::new(7));
            let mut theirs = SafetensorsStore::from_bytes(Some(bytes.clone()));
            by_burn.load_from(&mut theirs).unwrap();
            here.load_from(&mut CheckpointStore::from_bytes(Some(bytes))).unwrap();
            assert_eq!(state(&by_burn), state(&files.model));
            assert_eq!(state(&here), state(&files.model));
        }
    }),
    ("`filter`", |files| {
        // It replaces those before it.
        same(files, options!(.with_regex("^norm").with_full_path("steps").filter(mask_alone())));
        same(files, options!(.with_regex("^norm").filter(PathFilter::new())));
        // Others add up.
        let added: Options = options!(
            .with_regexes([r"^norm\.b", r"^encoder\.b"])
            .with_predicates([is_mask as fn(&str, &str) -> bool])
            .with_full_paths(["steps", "absent"])
        );
        same_save(files, added);
        same(files, options!(.filter(mask_alone()).with_regex("^norm")));
    }),
    ("`with_regex`, `with_regexes`", |files| {
        same(files, options!(.with_regex("^norm").with_regexes(["^steps", "bias$"])));
        let panics = catch_unwind(|| SafetensorsStore::from_file("none").with_regex("("));
        assert!(panics.is_err());
        refused(&mut CheckpointStore::from_file(&files.file).with_regex("("));
    }),
    ("`with_full_path`, `with_full_paths`", |files| {
        same(files, options!(.with_full_path("steps").with_full_paths(["mask", "norm.beta"])));
    }),
    ("`with_predicate`, `with_predicates`", |files| {
        let by_name: Options = options!(
            .with_predicate(|name, _| name.starts_with("norm"))
            .with_predicates([is_mask as fn(&str, &str) -> bool])
        );
        same(files, by_name);
        // On saving, only ours knows the types that contain the parameter.
        let names = |store: &mut dyn FnMut(&Path)| {
            let path = files.path("of-linear");
            let _ = std::fs::remove_file(&path);
            store(&path);
            load(&path).unwrap().into_keys().collect::<Vec<_>>()
        };
        let theirs = names(&mut |path| {
            let mut store = SafetensorsStore::from_file(path).with_predicate(of_linear);
            files.model.save_into(&mut store).unwrap();
        });
        let ours = names(&mut |path| {
            let mut store = CheckpointStore::from_file(path).with_predicate(of_linear);
            files.model.save_into(&mut store).unwrap();
        });
        assert_eq!(theirs, [""; 0]);
        assert_eq!(ours.len(), 4, "{ours:?}");
    }),
    ("`match_all`", |files| same(files, options!(.with_regex("^norm").match_all()))),
    ("`remap(KeyRemapper)`", |files| {
        let rules = || KeyRemapper::new().add_pattern("^encoder", "decoder").unwrap();
        let path = files.path("remapped");
        files.model.save_into(&mut SafetensorsStore::from_file(&path).remap(rules())).unwrap();
        let mut ours = CheckpointStore::from_file(files.path("ours")).remap(rules().patterns);
        files.model.save_into(&mut ours).unwrap();
        let names = load(&path).unwrap().into_keys().collect::<Vec<_>>();
        assert_eq!(ours.keys().unwrap().len(), names.len());
        assert_eq!(load(files.path("ours")).unwrap().into_keys().collect::<Vec<_>>(), names);
        assert!(names.contains(&"decoder.weight".to_owned()));
    }),
    ("`with_key_remapping`", |files| {
        same_save(files, options!(.with_key_remapping(r"^layers\.(\d)", "blocks.$1")));
        let panics =
            catch_unwind(|| SafetensorsStore::from_file("none").with_key_remapping("(", ""));
        assert!(panics.is_err());
        refused(&mut CheckpointStore::from_file(&files.file).with_key_remapping("(", ""));
    }),
    ("`map_indices_contiguous`, `map_indices_contiguous_except`", |files| {
        // A file as of a sequence with layers that have no parameters.
        let path = files.path("gaps");
        let gaps = SafetensorsStore::from_file(&path).with_key_remapping(r"^layers\.1", "layers.4");
        files.model.save_into(&mut { gaps }).unwrap();
        same_load(&files.model, &path, options!(.map_indices_contiguous(true)));
        same_load(
            &files.model,
            &path,
            options!(.map_indices_contiguous_except("^layers").allow_partial(true)),
        );
    }),
    ("`metadata`, `clear_metadata`", |files| {
        let (theirs, ours) = (files.path("a"), files.path("b"));
        let mut store = SafetensorsStore::from_file(&theirs);
        store = store.metadata("first", "1").clear_metadata().metadata("second", "2");
        files.model.save_into(&mut store).unwrap();
        let mut store = CheckpointStore::from_file(&ours);
        store = store.metadata("first", "1").clear_metadata().metadata("second", "2");
        files.model.save_into(&mut store).unwrap();
        let metadata = |path: &Path| Checkpoint::open(path).unwrap().metadata().clone();
        for metadata in [metadata(&theirs), metadata(&ours)] {
            assert_eq!((metadata.get("first"), metadata["second"].as_str()), (None, "2"));
        }
    }),
    ("`default_metadata`", |files| {
        let theirs = SafetensorsStore::default_metadata();
        assert_eq!([&theirs["format"], &theirs["producer"]], ["safetensors", "burn"]);
        assert!(theirs.contains_key("version"));
        files.model.save_into(&mut CheckpointStore::from_file(files.path("meta"))).unwrap();
        let ours = Checkpoint::open(files.path("meta")).unwrap();
        assert_eq!(ours.metadata()["format"], "pt");
        let producer = concat!("safetensors-burn ", env!("CARGO_PKG_VERSION"));
        assert_eq!(ours.metadata()["producer"], producer);
    }),
    ("`validate`, `allow_partial`, `skip_enum_variants`", |files| {
        same(files, options!(.validate(false).skip_enum_variants(true)));
        let path = files.path("partial");
        let some = SafetensorsStore::from_file(&path).with_regex("^norm");
        files.model.save_into(&mut { some }).unwrap();
        assert!(Model::new(7).load_from(&mut SafetensorsStore::from_file(&path)).is_err());
        refused(&mut CheckpointStore::from_file(&path));
        same_load(&files.model, &path, options!(.allow_partial(true)));
    }),
    ("`overwrite`", |files| {
        let model = &files.model;
        assert!(model.save_into(&mut SafetensorsStore::from_file(&files.file)).is_err());
        assert!(model.save_into(&mut CheckpointStore::from_file(&files.file)).is_err());
        model.save_into(&mut SafetensorsStore::from_file(&files.file).overwrite(true)).unwrap();
        model.save_into(&mut CheckpointStore::from_file(&files.file).overwrite(true)).unwrap();
    }),
    ("`with_from_adapter`, `with_to_adapter`", |files| {
        same_save(files, options!(.with_to_adapter(BurnToPyTorchAdapter)));
        let path = files.path("pytorch");
        let pytorch = SafetensorsStore::from_file(&path).with_to_adapter(BurnToPyTorchAdapter);
        files.model.save_into(&mut { pytorch }).unwrap();
        same_load(&files.model, &path, options!(.with_from_adapter(PyTorchToBurnAdapter)));
    }),
    ("`SafetensorsStoreError`", |files| {
        let none = files.path("none");
        let theirs: SafetensorsStoreError =
            Model::new(7).load_from(&mut SafetensorsStore::from_file(&none)).unwrap_err();
        assert!(!theirs.to_string().contains("none"), "{theirs}");
        let ours: Error = refused(&mut CheckpointStore::from_file(&none));
        assert!(ours.to_string().contains("none"), "{ours}");
        let part = CheckpointStore::from_file(&files.file).prefix("encoder");
        let ours: &dyn std::error::Error = &refused(&mut { part });
        assert!(ours.source().unwrap().is::<StoreError>(), "{ours}");
    }),
    ("nothing", |files| {
        let path = files.path("options");
        files.model.save_into(&mut CheckpointStore::from_file(&path)).unwrap();
        let store = CheckpointStore::from_file(&path)
            .pytorch(false)
            .fused_attention(false)
            .max_shard_size(1000.into())
            .load_options(LoadOptions::new())
            .save_options(SaveOptions::new())
            .max_extra_memory(1 << 20)
            .param_ids(true)
            .prefix("");
        Model::new(7).load_from(&mut { store }).unwrap();
    }),
];

/// Parameters that are one.
#[derive(Module, Debug)]
struct Tied {
    first: Param<Tensor<1>>,
    second: Param<Tensor<1>>,
}

const DIFFERENCES: &[(&str, Line)] = &[
    ("a load that fails", |files| {
        let path = files.path("wrong");
        changed(&path, "steps", Some(TensorData::from([1_i64, 2, 3])));
        let mut model = Model::new(7);
        let before = state(&model);
        assert!(model.load_from(&mut SafetensorsStore::from_file(&path)).is_err());
        assert_ne!(state(&model), before);
        refused(&mut CheckpointStore::from_file(&path));
    }),
    ("ids of parameters", |files| {
        let path = files.path("ids");
        files.model.save_into(&mut CheckpointStore::from_file(&path)).unwrap();
        let mut model = Model::new(7);
        let own = model.encoder.weight.id;
        model.load_from(&mut SafetensorsStore::from_file(&path)).unwrap();
        assert_eq!(model.encoder.weight.id, own);
        model.load_from(&mut CheckpointStore::from_file(&path)).unwrap();
        assert_eq!(model.encoder.weight.id, own);
        model.load_from(&mut CheckpointStore::from_file(&path).param_ids(true)).unwrap();
        assert_eq!(model.encoder.weight.id, files.model.encoder.weight.id);
        // burn-store has saved this one.
        refused(&mut CheckpointStore::from_file(&files.file).param_ids(true));
    }),
    ("a parameter under several paths", |files| {
        let first = initialized(Tensor::from_data([1.0_f32, 2.0], &Device::default()));
        let mut tied = Tied { second: first.clone(), first };
        let paths = [files.path("tied-theirs"), files.path("tied-ours"), files.path("aliases")];
        tied.save_into(&mut SafetensorsStore::from_file(&paths[0])).unwrap();
        tied.save_into(&mut CheckpointStore::from_file(&paths[1])).unwrap();
        tied.save_into(&mut CheckpointStore::from_file(&paths[2]).save_options(SaveOptions::new()))
            .unwrap();
        let counts = [0, 1, 2].map(|i| Checkpoint::open(&paths[i]).unwrap().len());
        assert_eq!(counts, [2, 1, 2]);
        assert!(tied.load_from(&mut SafetensorsStore::from_file(&paths[1])).is_err());
        tied.load_from(&mut SafetensorsStore::from_file(&paths[2])).unwrap();
        tied.load_from(&mut CheckpointStore::from_file(&paths[1])).unwrap();
    }),
    ("two tensors that get the same name", |files| {
        let path = files.path("same-name");
        let theirs =
            |path| SafetensorsStore::from_file(path).with_key_remapping(r"^layers\.\d", "layer");
        let ours =
            |path| CheckpointStore::from_file(path).with_key_remapping(r"^layers\.\d", "layer");
        let error = files.model.save_into(&mut theirs(&path)).unwrap_err();
        assert!(error.to_string().contains("index out of bounds"), "{error}");
        let error = files.model.save_into(&mut ours(&path)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DuplicateTensor), "{error}");
        assert_eq!(theirs(&files.file).keys().unwrap().len(), PATHS.len() - 1);
        assert!(ours(&files.file).keys().is_err());
    }),
    ("a filter or a prefix that matches nothing", |files| {
        let path = files.path("nothing");
        let theirs = SafetensorsStore::from_file(&path).with_regex("^none$");
        files.model.save_into(&mut { theirs }).unwrap();
        assert!(Checkpoint::open(&path).unwrap().is_empty());
        let ours = CheckpointStore::from_file(files.path("ours-nothing")).with_regex("^none$");
        assert!(files.model.save_into(&mut { ours }).is_err());
        let theirs = SafetensorsStore::from_file(&files.file).with_regex("^none$");
        assert!(Model::new(7).load_from(&mut { theirs }).unwrap().applied.is_empty());
        let ours = || CheckpointStore::from_file(&files.file).allow_partial(true);
        assert!(Model::new(7).load_from(&mut ours().with_regex("^none$")).is_err());
        assert!(Model::new(7).load_from(&mut ours().prefix("none")).is_err());
    }),
    ("a matrix that fits transposed", |files| {
        let path = files.path("transposed");
        changed(&path, "encoder.weight", Some(TensorData::zeros::<f32, _>([4, 3])));
        let theirs = Model::new(7).load_from(&mut SafetensorsStore::from_file(&path)).unwrap_err();
        assert!(!theirs.to_string().contains("pytorch"), "{theirs}");
        let ours = refused(&mut CheckpointStore::from_file(&path)).to_string();
        assert!(ours.contains("pytorch(true)"), "{ours}");
    }),
    ("a file with U16, FP8 or another dtype that burn-store lacks", |files| {
        let path = files.path("more");
        changed(&path, "other", Some(TensorData::from([1_u16, 2])));
        let mut theirs = SafetensorsStore::from_file(&path).allow_partial(true);
        assert!(Model::new(7).load_from(&mut theirs).is_err());
        Model::new(7)
            .load_from(&mut CheckpointStore::from_file(&path).allow_partial(true))
            .unwrap();
    }),
];

/// burn-store's own tests show how it ends a process; `store/failing.rs` tests this crate.
/// The backend of these tests stores booleans as BOOL, and `tensors.rs` has the others. The last
/// one is a time, which the benchmarks measure.
const TESTED_ELSEWHERE: &[&str] = &["a load whose backend panics", "booleans", "the header"];

#[test]
fn each_line_of_the_tables_is_true() {
    for (heading, table, elsewhere) in [
        ("# Option by option\n", OPTIONS, &[][..]),
        ("# What differs\n", DIFFERENCES, TESTED_ELSEWHERE),
    ] {
        let source = include_str!("../../../src/migration.rs");
        assert_lines(source, heading, table.iter().map(|(line, _)| *line), elsewhere);
        for (line, check) in table {
            println!("{line}");
            check(&Files::new());
        }
    }
}
