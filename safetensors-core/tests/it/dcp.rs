//! Parts of tensors that ranks of PyTorch have saved: the directory opens as whole tensors, and a
//! part is never taken for one.

use std::fs;
use std::path::Path;

use safetensors_core::checkpoint::store::MemoryStore;
use safetensors_core::checkpoint::{Assembled, save_sharded};
use safetensors_core::digest::{self, DigestOptions};
use safetensors_core::edit::Edit;
use safetensors_core::error::RankProblem;
use safetensors_core::ranks::{RankPlan, RankRules, RankSaved, RankSaver};
use safetensors_core::{
    Checkpoint, Error, ErrorKind, Limits, LoadOptions, Rewrite, SafeTensors, SaveOptions,
    ShardOptions, TensorView, save,
};
use safetensors_testing::dcp::{Divided, check, file_of, sample, save_parts, save_whole};
use tempfile::tempdir;

fn is_part(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Ranks { problem: RankProblem::PartsOfTensors })
}

fn problem(error: &Error) -> &RankProblem {
    match error.kind() {
        ErrorKind::Ranks { problem } => problem,
        _ => panic!("{error}"),
    }
}

/// The error of opening a directory with these parts.
fn refused(tensors: &[Divided]) -> Error {
    let directory = tempdir().unwrap();
    save_parts(directory.path(), tensors);
    Checkpoint::open_whole(directory.path()).unwrap_err()
}

#[test]
fn a_directory_opens_as_whole_tensors() {
    let directory = tempdir().unwrap();
    save_parts(directory.path(), &sample());
    fs::write(directory.path().join("config.json"), "{}").unwrap();
    let checkpoint = Checkpoint::open_whole(directory.path()).unwrap();
    check(&checkpoint, &sample());
    assert_eq!(checkpoint.metadata().iter().collect::<Vec<_>>().len(), 1);
    assert!(checkpoint.read_beside("config.json", 9).unwrap().is_some());
    checkpoint.check_unchanged().unwrap();
    assert_eq!(checkpoint.audit().unwrap(), []);
    let grid = checkpoint.tensor("grid").unwrap();
    let part = grid.slice((1.., 1..4)).unwrap().read().unwrap();
    assert_eq!(part.into_vec::<f32>().unwrap(), [7., 8., 9., 13., 14., 15., 19., 20., 21.]);
    // In memory, as in a store.
    let file = |rank| fs::read(file_of(directory.path(), rank)).unwrap();
    let name = |rank| file_of(Path::new("s"), rank).to_str().unwrap().to_owned();
    let files = (0..4).map(|rank| (name(rank), file(rank)));
    let store: MemoryStore = files.collect();
    let found = Checkpoint::open_whole_in(store, "s", &Limits::default()).unwrap();
    check(&found, &sample());
    check(&found.into_boxed(), &sample());
    // Numbers of weights, of which there are none here.
    check(&checkpoint.dequantized().unwrap(), &sample());
}

#[test]
fn ranks_of_another_division_read_their_parts() {
    let directory = tempdir().unwrap();
    save_parts(directory.path(), &sample());
    let checkpoint = Checkpoint::open_whole(directory.path()).unwrap();
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
    // One file of whole tensors, and what it would be otherwise.
    let (one, other) = (directory.path().join("one"), directory.path().join("other"));
    Rewrite::of(&checkpoint).save(&one, &SaveOptions::new()).unwrap();
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
        Checkpoint::open(directory.path()).unwrap_err(),
        Checkpoint::open_whole(&file).unwrap_err(),
        Checkpoint::open_files([&file]).unwrap_err(),
        Checkpoint::from_source(&bytes[..], "bytes").unwrap_err(),
        Checkpoint::from_sources([("one", &bytes[..])]).unwrap_err(),
        Checkpoint::from_file(fs::File::open(&file).unwrap(), &file).unwrap_err(),
        Checkpoint::open_by(&file, &Limits::default(), |path| Ok(fs::read(path).unwrap()))
            .unwrap_err(),
    ] {
        assert!(is_part(&error), "{error}");
        assert!(error.file().is_some(), "{error}");
    }
    // Also if it is the only file: another one may be missing.
    let alone = tempdir().unwrap();
    fs::copy(&file, alone.path().join("model.safetensors")).unwrap();
    assert!(is_part(&Checkpoint::open(alone.path()).unwrap_err()));
    let error = Checkpoint::open_whole(alone.path()).unwrap_err();
    assert!(matches!(problem(&error), RankProblem::BadParts { .. }), "{error}");
}

#[test]
fn one_rank_is_a_whole_checkpoint() {
    let directory = tempdir().unwrap();
    let tensors = [Divided::new("w", &[2, 2], &[(0, &[0, 0], &[2, 2])])];
    save_parts(directory.path(), &tensors);
    check(&Checkpoint::open_whole(directory.path()).unwrap(), &tensors);
    // PyTorch writes the same entry if one rank saves everything, and an index with it.
    let file = file_of(directory.path(), 0);
    let name = file.file_name().unwrap().to_str().unwrap();
    let index = format!(r#"{{"metadata": {{}}, "weight_map": {{"w": "{name}"}}}}"#);
    fs::write(directory.path().join("model.safetensors.index.json"), index).unwrap();
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    check(&checkpoint, &tensors);
    // What is made of it is no part.
    let (one, other) = (directory.path().join("one"), directory.path().join("other"));
    Rewrite::of(&checkpoint).save(&one, &SaveOptions::new()).unwrap();
    check(&Checkpoint::open(&one).unwrap(), &tensors);
    save_sharded(&other, checkpoint.tensors().map(|it| (it.name(), it)), &ShardOptions::new())
        .unwrap();
    check(&Checkpoint::open(&other).unwrap(), &tensors);
    // An index that names a part.
    let tensors = [Divided::new("w", &[2, 2], &[(0, &[1, 0], &[1, 2])])];
    save_parts(directory.path(), &tensors);
    assert!(is_part(&Checkpoint::open(directory.path()).unwrap_err()));
    assert!(is_part(&Checkpoint::open_whole(directory.path()).unwrap_err()));
}

#[test]
fn everything_else_opens_as_before() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    save_whole(&path, &sample());
    for path in [directory.path(), &path] {
        let checkpoint: Checkpoint<Assembled> = Checkpoint::open_whole(path).unwrap();
        check(&checkpoint, &sample());
        assert_eq!(checkpoint.files()[0].path(), directory.path().join("model.safetensors"));
    }
    let missing = Checkpoint::open_whole(directory.path().join("none")).unwrap_err();
    assert!(matches!(missing.kind(), ErrorKind::Io(_)), "{missing}");
    // Files with parts and others: it is not clear which are meant.
    fs::rename(&path, directory.path().join("a.safetensors")).unwrap();
    save_parts(directory.path(), &sample());
    for error in [
        Checkpoint::open(directory.path()).unwrap_err(),
        Checkpoint::open_whole(directory.path()).unwrap_err(),
    ] {
        assert!(matches!(error.kind(), ErrorKind::NoCheckpoint { .. }), "{error}");
    }
    fs::rename(directory.path().join("a.safetensors"), directory.path().join("z.safetensors"))
        .unwrap();
    let error = Checkpoint::open_whole(directory.path()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoCheckpoint { .. }), "{error}");
}

#[test]
fn gaps_and_overlaps_are_found() {
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
    // The last part is missing: the format does not tell, but a plan does.
    let all = [Divided::new("w", &[4, 2], &[(0, &[0, 0], &[2, 2]), (1, &[2, 0], &[2, 2])])];
    let directory = tempdir().unwrap();
    save_parts(directory.path(), &all);
    let whole = Checkpoint::open_whole(directory.path()).unwrap();
    let rules = RankRules::new().parse_rule("w=split:0").unwrap();
    let plan = rules.plan(&whole, 1).unwrap();
    drop(whole);
    fs::remove_file(file_of(directory.path(), 1)).unwrap();
    let less = Checkpoint::open_whole(directory.path()).unwrap();
    let found = less.tensors().map(|it| (it.name(), it.dtype(), it.shape()));
    let error = plan.check_tensors(found).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Mismatches { .. }), "{error}");
}

/// Writes a file with a tensor `w` of two bytes and this entry, and opens its directory.
fn recorded(info: &str) -> Result<Checkpoint<Assembled>, Error> {
    let directory = tempdir().unwrap();
    let part = TensorView::from_slice(&[2], &[1_u8, 2]).unwrap();
    let options = SaveOptions::new().metadata([("DCP_SHARDING_INFO", info)]);
    save(directory.path().join("a.safetensors"), [("w", part)], &options).unwrap();
    Checkpoint::open_whole(directory.path())
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

/// A plan for two ranks of the [`sample`].
fn plan(checkpoint: &Checkpoint, ranks: usize) -> RankPlan {
    let mut rules = RankRules::new();
    for rule in ["grid=split:1", "up=uneven:0", "cube=split:2", "norm=replicate", "scale=replicate"]
    {
        rules = rules.parse_rule(rule).unwrap();
    }
    rules.plan(checkpoint, ranks).unwrap()
}

#[test]
fn what_ranks_save_opens_as_whole_tensors() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("whole.safetensors");
    save_whole(&path, &sample());
    let checkpoint = Checkpoint::open(&path).unwrap();
    for (ranks, size, count) in [(1, 1 << 20, 1), (2, 1 << 20, 2), (2, 50, 6)] {
        let to = directory.path().join(format!("{ranks}-{size}"));
        let options = ShardOptions::new()
            .dcp(true)
            .max_shard_size(size.into())
            .metadata([("epoch", "3")])
            .beside("config.json", "{}");
        let plan = plan(&checkpoint, ranks);
        let saved = Rewrite::of(&checkpoint).save_ranks(&to, &plan, "first", &options).unwrap();
        assert_eq!(saved.files.len(), count, "{:?}", saved.files);
        assert!(saved.files.iter().all(|name| to.join(name).is_file()));
        let whole = Checkpoint::open_whole(&to).unwrap();
        check(&whole, &sample());
        assert_eq!(whole.metadata()["epoch"], "3");
        assert!(whole.read_beside("config.json", 2).unwrap().is_some());
        assert!(is_part(&Checkpoint::open(&to).unwrap_err()));
        // Another save finds files in its way, and changes nothing.
        let again = Rewrite::of(&checkpoint).save_ranks(&to, &plan, "again", &options);
        let error = again.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NotAlone { .. }), "{error}");
        check(&Checkpoint::open_whole(&to).unwrap(), &sample());
        let again = Rewrite::of(&checkpoint).save_ranks(&to, &plan, "first", &options);
        let error = again.unwrap_err();
        assert!(matches!(problem(&error), RankProblem::AttemptComplete { .. }), "{error}");
    }
    let names = safetensors_testing::files::names_in(&directory.path().join("2-50"));
    assert!(names.iter().any(|name| name == "shard-00002-model-00003-of-00003.safetensors"));
}

#[test]
fn ranks_save_their_parts_one_by_one() {
    let directory = tempdir().unwrap();
    let (path, to) = (directory.path().join("whole.safetensors"), directory.path().join("to"));
    save_whole(&path, &sample());
    let checkpoint = Checkpoint::open(&path).unwrap();
    let plan = plan(&checkpoint, 2);
    let options = ShardOptions::new().dcp(true);
    let parts = |rank| {
        let bufs = plan.read(&checkpoint, rank, &LoadOptions::new()).unwrap();
        plan.tensors().map(|tensor| tensor.name().to_owned()).zip(bufs).collect::<Vec<_>>()
    };
    let saver = |rank| RankSaver::new(&plan, rank, "step-1");
    assert_eq!(saver(1).save(&to, parts(1), &options).unwrap(), RankSaved::Waiting { missing: 1 });
    let none = Checkpoint::open_whole(&to).unwrap_err();
    assert!(matches!(none.kind(), ErrorKind::NoCheckpoint { .. }), "{none}");
    // The ranks need the same options.
    let error = saver(0).save(&to, parts(0), &ShardOptions::new()).unwrap_err();
    assert!(matches!(problem(&error), RankProblem::AttemptDiffers { .. }), "{error}");
    assert!(matches!(saver(0).save(&to, parts(0), &options), Ok(RankSaved::Complete(_))));
    check(&Checkpoint::open_whole(&to).unwrap(), &sample());
    // Each file is one that the caller can write elsewhere; there is no index.
    let planned = saver(0).plan_files(parts(0), &options).unwrap();
    let (_, name) = planned.files().next().unwrap();
    let mut file = Vec::new();
    planned.write(0, &mut file).unwrap();
    assert_eq!(file, fs::read(to.join(name)).unwrap());
    let error = planned.index_file(|_, name| name.to_owned()).unwrap_err();
    assert!(error.to_string().contains("have no index"), "{error}");
    // A file of tensors that is in the way.
    let other = directory.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::copy(&path, other.join("model.safetensors")).unwrap();
    let error = saver(0).save(&other, parts(0), &options).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotAlone { .. }), "{error}");
}

/// PyTorch finds a part by its name and its first position: no two may have the same.
#[test]
fn an_empty_part_begins_at_the_end() {
    let directory = tempdir().unwrap();
    let whole = TensorView::from_slice(&[2], &[1_u8, 2]).unwrap();
    let rules = RankRules::new().parse_rule("w=offsets:0:0,0,2").unwrap();
    let plan = rules.plan_tensors([("w", whole.dtype(), vec![2])], 2).unwrap();
    for (rank, range) in [0..0, 0..2].into_iter().enumerate() {
        let part = whole.slice((range,)).unwrap();
        let saver = RankSaver::new(&plan, rank, "a");
        saver.save(directory.path(), [("w", part)], &ShardOptions::new().dcp(true)).unwrap();
    }
    for (rank, at) in [(0, 2), (1, 0)] {
        let file = fs::read(file_of(directory.path(), rank)).unwrap();
        let file = SafeTensors::parse(file).unwrap();
        let expected = format!(r#"{{"w":{{"saved_offsets":[{at}]}}}}"#);
        assert_eq!(file.metadata()["DCP_SHARDING_INFO"], expected);
    }
    let found = Checkpoint::open_whole(directory.path()).unwrap();
    assert_eq!(found.tensor("w").unwrap().read().unwrap().bytes(), [1, 2]);
}

#[test]
fn each_part_is_a_file_with_digests() {
    let directory = tempdir().unwrap();
    save_parts(directory.path(), &sample());
    for rank in 0..4 {
        let edit = Edit::open(file_of(directory.path(), rank)).unwrap();
        edit.record_digests(&DigestOptions::new()).unwrap().apply().unwrap();
    }
    let parts = || Checkpoint::open_whole(directory.path()).unwrap().into_parts().unwrap();
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
    let error = digest::verify(&parts()[2], &DigestOptions::new()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DigestMismatch { .. }), "{error}");
    assert_eq!(error.file(), path.to_str());
    // A file as it is.
    save_whole(&directory.path().join("whole.safetensors"), &sample());
    let whole = Checkpoint::open_whole(directory.path().join("whole.safetensors")).unwrap();
    let parts = whole.into_parts().unwrap();
    assert_eq!(parts.len(), 1);
    check(&parts[0], &sample());
}
