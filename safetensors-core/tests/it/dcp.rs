//! Parts of tensors that ranks of PyTorch have saved: the directory opens as whole tensors, and a
//! part is never taken for one.

use safetensors_core::checkpoint::store::{FileKind, LocalStore, Store, StoreEntry};
use safetensors_core::checkpoint::{Assembled, save_sharded};
use safetensors_core::digest::{self, DigestOptions};
use safetensors_core::error::RankProblem;
use safetensors_core::ranks::RankRules;
use safetensors_testing::asynchronous::{Server, block_on};
use safetensors_testing::dcp::{Divided, check, file_of, sample, save_parts, save_whole};

use crate::support::*;

pub(crate) fn is_part(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Ranks { problem: RankProblem::PartsOfTensors })
}

pub(crate) fn problem(error: &Error) -> &RankProblem {
    match error.kind() {
        ErrorKind::Ranks { problem } => problem,
        _ => panic!("{error}"),
    }
}

/// The error of opening a directory with these parts.
fn refused(tensors: &[Divided]) -> Error {
    let directory = tempdir().unwrap();
    save_parts(directory.path(), tensors);
    Checkpoint::open(directory.path()).unwrap_err()
}

#[test]
fn a_directory_opens_as_whole_tensors() {
    let directory = tempdir().unwrap();
    save_parts(directory.path(), &sample());
    fs::write(directory.path().join("config.json"), "{}").unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    check(&checkpoint, &sample());
    assert_eq!(checkpoint.metadata().iter().collect::<Vec<_>>().len(), 1);
    assert!(checkpoint.read_beside("config.json", 9).unwrap().is_some());
    checkpoint.check_unchanged().unwrap();
    let grid = checkpoint.tensor("grid").unwrap();
    let part = grid.slice((1.., 1..4)).unwrap().read().unwrap();
    assert_eq!(part.into_vec::<f32>().unwrap(), [7., 8., 9., 13., 14., 15., 19., 20., 21.]);
    // In memory, as in a store.
    let file = |rank| fs::read(file_of(directory.path(), rank)).unwrap();
    let name = |rank| file_of(Path::new("s"), rank).to_str().unwrap().to_owned();
    let files = (0..4).map(|rank| (name(rank), file(rank)));
    let store: MemoryStore = files.collect();
    let found = Checkpoint::open_in(store, "s", &Limits::default()).unwrap();
    check(&found, &sample());
    check(&found.into_boxed(), &sample());
    // Numbers of weights; there are none here.
    check(&checkpoint.dequantized().unwrap(), &sample());
}

#[test]
fn ranks_of_another_division_read_their_parts() {
    let directory = tempdir().unwrap();
    save_parts(directory.path(), &sample());
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let mut rules = RankRules::new();
    for rule in ["grid=split:1", "up=uneven:0", "cube=split:2", "norm=replicate", "scale=replicate"]
    {
        rules = rules.parse_rule(rule).unwrap();
    }
    let plan = rules.plan(&checkpoint, 2).unwrap();
    let parts = plan.read(&checkpoint, 1, &LoadOptions::new()).unwrap();
    let grid = plan.tensors().position(|tensor| tensor.name() == "grid").unwrap();
    let expected: Vec<f32> =
        (0..4).flat_map(|row| (3..6).map(move |column| (row * 6 + column) as f32)).collect();
    assert_eq!(parts[grid].as_slice::<f32>().unwrap(), expected);
    // One file of whole tensors, compared with one in parts.
    let (one, other) = (directory.path().join("one"), directory.path().join("other"));
    Rewrite::from_checkpoint(&checkpoint).save(&one, &SaveOptions::new()).unwrap();
    save_whole(&other, &sample());
    check(&Checkpoint::open(&one).unwrap(), &sample());
    assert_eq!(fs::metadata(one).unwrap().len(), fs::metadata(other).unwrap().len());
}

#[test]
fn a_part_is_never_a_whole_tensor() {
    let directory = tempdir().unwrap();
    save_parts(directory.path(), &sample());
    let file = file_of(directory.path(), 1);
    let bytes = fs::read(&file).unwrap();
    for error in [
        Checkpoint::open(&file).unwrap_err(),
        Checkpoint::open(directory.path()).unwrap().into_stored().unwrap_err(),
        Checkpoint::open_files([&file]).unwrap_err(),
        Checkpoint::from_source(&bytes[..], "bytes").unwrap_err(),
        Checkpoint::from_sources([("one", &bytes[..])]).unwrap_err(),
        Checkpoint::open_by(&file, &Limits::default(), |path| Ok(fs::read(path)?)).unwrap_err(),
        Checkpoint::open_by(directory.path(), &Limits::default(), |path| Ok(fs::read(path)?))
            .unwrap_err(),
    ] {
        assert!(is_part(&error), "{error}");
        assert!(error.file().is_some(), "{error}");
    }
    // Also if it is the only file: another one may be missing.
    let alone = tempdir().unwrap();
    fs::copy(&file, alone.path().join("model.safetensors")).unwrap();
    let error = Checkpoint::open(alone.path()).unwrap_err();
    assert!(matches!(problem(&error), RankProblem::BadParts { .. }), "{error}");
}

/// A path of work on files.
type OfFiles = fn(&Checkpoint<Assembled>) -> Option<Error>;

#[test]
fn work_on_files_asks_for_the_parts() {
    let directory = tempdir().unwrap();
    save_parts(directory.path(), &sample());
    let whole = Checkpoint::open(directory.path()).unwrap();
    let ways: [OfFiles; 4] = [
        |whole| whole.stored_files().err(),
        |whole| whole.audit().err(),
        |whole| digest::verify(whole, &DigestOptions::new()).err(),
        |whole| digest::hash_files(whole, &DigestOptions::new()).err(),
    ];
    for way in ways {
        let error = way(&whole).unwrap();
        assert!(is_part(&error) && error.file().is_some(), "{error}");
    }
    for part in whole.into_parts().unwrap() {
        assert_eq!(part.stored_files().unwrap().len(), 1);
        assert_eq!(part.audit().unwrap(), []);
    }
}

/// These stores cannot list other files, and none is opened to be refused.
#[test]
fn a_store_without_listings_and_one_of_bytes_have_no_parts() {
    let directory = tempdir().unwrap();
    save_parts(directory.path(), &sample());
    let opened = AtomicUsize::new(0);
    let read = |path: &Path| {
        opened.fetch_add(1, Ordering::Relaxed);
        Ok(fs::read(path)?)
    };
    let error = Checkpoint::open_by(directory.path(), &Limits::default(), read).unwrap_err();
    assert!(is_part(&error), "{error}");
    assert_eq!(opened.into_inner(), 1);
    let part = fs::read(file_of(directory.path(), 1)).unwrap();
    let server = Arc::new(Server::new([("gpt/model.safetensors", part)]));
    let store = server.store();
    let opened =
        store.run(|store| Ok(Checkpoint::open_in(store.clone(), "gpt", &Limits::default())));
    let error = block_on(opened).unwrap().unwrap_err();
    assert!(matches!(problem(&error), RankProblem::BadParts { .. }), "{error}");
}

#[test]
fn one_rank_is_a_complete_checkpoint() {
    let directory = tempdir().unwrap();
    let tensors = [Divided::new("w", &[2, 2], &[(0, &[0, 0], &[2, 2])])];
    save_parts(directory.path(), &tensors);
    check(&Checkpoint::open(directory.path()).unwrap(), &tensors);
    // PyTorch writes the same entry if one rank saves everything, and an index with it.
    let file = file_of(directory.path(), 0);
    let name = file.file_name().unwrap().to_str().unwrap();
    let index = format!(r#"{{"metadata": {{}}, "weight_map": {{"w": "{name}"}}}}"#);
    fs::write(directory.path().join("model.safetensors.index.json"), index).unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    check(&checkpoint, &tensors);
    // A file made of it is no part.
    let (one, other) = (directory.path().join("one"), directory.path().join("other"));
    Rewrite::from_checkpoint(&checkpoint).save(&one, &SaveOptions::new()).unwrap();
    check(&Checkpoint::open(&one).unwrap(), &tensors);
    save_sharded(&other, checkpoint.tensors().map(|it| (it.name(), it)), &ShardOptions::new())
        .unwrap();
    check(&Checkpoint::open(&other).unwrap(), &tensors);
    // An index that names a part: by its place, or because another file has parts as well.
    let second = [Divided::new("w", &[2, 2], &[(0, &[1, 0], &[1, 2])])];
    let both = [Divided::new("w", &[4], &[(0, &[0], &[2]), (1, &[2], &[2])])];
    for tensors in [&second, &both] {
        save_parts(directory.path(), tensors);
        for error in [
            Checkpoint::open(directory.path()).unwrap_err(),
            Checkpoint::open(directory.path()).unwrap_err(),
        ] {
            let is_bad = matches!(problem(&error), RankProblem::BadParts { .. });
            assert!(is_bad && error.to_string().contains("the index names"), "{error}");
            assert!(error.file().is_some_and(|file| file.contains("shard-00001")), "{error}");
        }
    }
}

/// A store in which another save replaces the files while they are opened.
struct Switching {
    stores: [MemoryStore; 2],
    opened: AtomicUsize,
}

impl Switching {
    fn now(&self) -> &MemoryStore {
        &self.stores[usize::from(self.opened.load(Ordering::SeqCst) > 2)]
    }
}

impl Store for Switching {
    type File = <MemoryStore as Store>::File;

    fn open(&self, path: &Path) -> Result<Self::File, Error> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        self.now().open(path)
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>, Error> {
        self.now().kind(path)
    }

    fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>, Error> {
        self.now().list(directory)
    }
}

#[test]
fn files_that_are_replaced_during_an_open_are_opened_again() {
    let store = |tensors: &[Divided]| -> MemoryStore {
        let directory = tempdir().unwrap();
        save_parts(directory.path(), tensors);
        let names = safetensors_testing::files::names_in(directory.path());
        let file = |name: String| (format!("s/{name}"), fs::read(directory.path().join(&name)));
        names.into_iter().map(file).map(|(name, bytes)| (name, bytes.unwrap())).collect()
    };
    let mut after = sample();
    after.push(Divided::new("new", &[2], &[(4, &[0], &[2])]));
    let stores = [store(&sample()), store(&after)];
    let store = Switching { stores, opened: AtomicUsize::new(0) };
    check(&Checkpoint::open_in(store, "s", &Limits::default()).unwrap(), &after);
}

#[test]
fn the_limits_of_the_caller_hold_for_all_files_together() {
    let directory = tempdir().unwrap();
    let tensors =
        [Divided::new("a", &[2], &[(0, &[0], &[2])]), Divided::new("b", &[2], &[(1, &[0], &[2])])];
    save_parts(directory.path(), &tensors);
    let mut limits = Limits::default();
    limits.tensors = 2;
    check(&Checkpoint::open_in(LocalStore, directory.path(), &limits).unwrap(), &tensors);
    limits.tensors = 1;
    refused!(
        Checkpoint::open_in(LocalStore, directory.path(), &limits),
        ErrorKind::TooManyTensors { limit: 1 }
    );
}

/// For each malformed file, the others show that they have parts, and the error names the malformed
/// one.
#[test]
fn a_malformed_file_among_parts() {
    for rank in 0..4 {
        let directory = tempdir().unwrap();
        save_parts(directory.path(), &sample());
        let file = file_of(directory.path(), rank);
        fs::write(&file, b"short").unwrap();
        let error = refused!(Checkpoint::open(directory.path()), ErrorKind::TooShort { found: 5 });
        assert_eq!(error.file(), file.to_str());
    }
}

#[test]
fn everything_else_opens_as_before() {
    let (directory, path) = place("model.safetensors");
    save_whole(&path, &sample());
    for path in [directory.path(), &path] {
        let checkpoint: Checkpoint<Assembled> = Checkpoint::open(path).unwrap();
        check(&checkpoint, &sample());
        assert_eq!(checkpoint.files()[0].path(), directory.path().join("model.safetensors"));
    }
    let missing = Checkpoint::open(directory.path().join("none")).unwrap_err();
    assert!(matches!(missing.kind(), ErrorKind::Io(_)), "{missing}");
    // Files with parts and others: it is not clear which are meant.
    fs::rename(&path, directory.path().join("a.safetensors")).unwrap();
    save_parts(directory.path(), &sample());
    refused!(Checkpoint::open(directory.path()), ErrorKind::NoCheckpoint { .. });
    fs::rename(directory.path().join("a.safetensors"), directory.path().join("z.safetensors"))
        .unwrap();
    refused!(Checkpoint::open(directory.path()), ErrorKind::NoCheckpoint { .. });
}

#[test]
fn gaps_and_overlaps_are_refused() {
    for boxes in [
        // A gap in the middle, one at a corner, an overlap, one that hides a gap.
        &[(0, &[0, 0][..], &[1, 4][..]), (1, &[2, 0], &[2, 4])][..],
        &[(0, &[0, 0], &[2, 4]), (1, &[2, 0], &[2, 2])],
        &[(0, &[0, 0], &[3, 4]), (1, &[2, 0], &[2, 4])],
        &[(0, &[0, 0], &[2, 4]), (1, &[1, 0], &[1, 4]), (2, &[3, 0], &[1, 4])],
        &[(0, &[1, 0], &[3, 4])],
        &[(0, &[0, 0], &[2, 4]), (1, &[0, 0], &[2, 4])],
    ] {
        let error = refused(&[Divided::new("w", &[4, 4], boxes)]);
        assert!(matches!(problem(&error), RankProblem::BadParts { .. }), "{error}");
        assert_eq!(error.tensor(), Some("w"), "{error}");
        assert!(error.file().is_some());
    }
    // Other numbers of dimensions.
    let error = refused(&[
        Divided::new("w", &[4, 1], &[(0, &[0, 0], &[2, 1])]),
        Divided::new("w", &[4], &[(1, &[2], &[2])]),
    ]);
    assert!(error.to_string().contains("parts of F32 in 2 dimensions, and of F32 in 1"), "{error}");
    assert!(error.file().is_some_and(|file| file.contains("shard-00002")), "{error}");
    // The last part is missing: the format does not show it, but a plan does.
    let all = [Divided::new("w", &[4, 2], &[(0, &[0, 0], &[2, 2]), (1, &[2, 0], &[2, 2])])];
    let directory = tempdir().unwrap();
    save_parts(directory.path(), &all);
    let whole = Checkpoint::open(directory.path()).unwrap();
    let rules = RankRules::new().parse_rule("w=split:0").unwrap();
    let plan = rules.plan(&whole, 1).unwrap();
    drop(whole);
    fs::remove_file(file_of(directory.path(), 1)).unwrap();
    let less = Checkpoint::open(directory.path()).unwrap();
    let found = less.tensors().map(|it| (it.name(), it.dtype(), it.shape()));
    refused!(plan.check_tensors(found), ErrorKind::Mismatches { .. });
}

/// Writes a file with a tensor `w` of two bytes and this entry, and opens its directory.
fn recorded(info: &str) -> Result<Checkpoint<Assembled>, Error> {
    let directory = tempdir().unwrap();
    let part = TensorView::from_slice(&[2], &[1_u8, 2]).unwrap();
    let options = SaveOptions::new().metadata([("DCP_SHARDING_INFO", info)]);
    save(directory.path().join("a.safetensors"), [("w", part)], &options).unwrap();
    Checkpoint::open(directory.path())
}

#[test]
fn a_hostile_record_is_refused() {
    assert!(recorded(r#"{"w": {"saved_offsets": [0]}}"#).is_ok());
    for info in [
        "",
        "[]",
        "{}",
        "{} {}",
        "null",
        r#"{"w": {}}"#,
        r#"{"w": {"saved_offsets": []}}"#,
        r#"{"w": {"saved_offsets": [0, 0]}}"#,
        r#"{"w": {"saved_offsets": [1]}}"#,
        r#"{"w": {"saved_offsets": [-1]}}"#,
        r#"{"w": {"saved_offsets": [0.5]}}"#,
        r#"{"w": {"saved_offsets": [18446744073709551615]}}"#,
        r#"{"w": {"saved_offsets": [9223372036854775807]}}"#,
        r#"{"w": {"saved_offsets": [0], "shape": [4]}}"#,
        r#"{"w": {"saved_offsets": [0]}, "w": {"saved_offsets": [0]}}"#,
        r#"{"w": {"saved_offsets": [0]}, "x": {"saved_offsets": [0]}}"#,
    ] {
        let error = recorded(info).unwrap_err();
        assert!(matches!(problem(&error), RankProblem::BadParts { .. }), "{info}: {error}");
        assert!(error.file().is_some() && error.to_string().len() < 1000, "{info}: {error}");
    }
}

#[test]
fn each_part_is_a_file_with_digests() {
    let directory = tempdir().unwrap();
    save_parts(directory.path(), &sample());
    for rank in 0..4 {
        let edit = Edit::open(file_of(directory.path(), rank)).unwrap();
        edit.record_digests(&DigestOptions::new()).unwrap().apply().unwrap();
    }
    let parts = || Checkpoint::open(directory.path()).unwrap().into_parts().unwrap();
    for (rank, part) in parts().iter().enumerate() {
        assert_eq!(part.files()[0].path(), file_of(directory.path(), rank));
        assert_eq!(part.audit().unwrap(), []);
        let verified = digest::verify(part, &DigestOptions::new()).unwrap();
        assert_eq!(verified[0].checked.len(), part.len());
    }
    let path = file_of(directory.path(), 2);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = refused!(
        digest::verify(&parts()[2], &DigestOptions::new()),
        ErrorKind::DigestMismatch { .. }
    );
    assert_eq!(error.file(), path.to_str());
    // A file as it is.
    save_whole(&directory.path().join("whole.safetensors"), &sample());
    let whole = Checkpoint::open(directory.path().join("whole.safetensors")).unwrap();
    let parts = whole.into_parts().unwrap();
    assert_eq!(parts.len(), 1);
    check(&parts[0], &sample());
}
