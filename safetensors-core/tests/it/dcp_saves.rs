//! Parts of tensors as PyTorch's distributed checkpoints have them: the files that ranks save, and
//! the checkpoint that opens if files are missing or come from two saves.

use safetensors_core::checkpoint::save_sharded;
use safetensors_core::error::RankProblem;
use safetensors_core::ranks::{RankPlan, RankRules, RankSaved, RankSaver};
use safetensors_testing::dcp::{Divided, check, file_of, sample, save_parts, save_whole};

use crate::dcp::{is_part, problem};

use crate::support::*;

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
fn parts_saved_by_ranks_open_as_whole_tensors() {
    let (directory, path) = place("whole.safetensors");
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
        let saved = Rewrite::from_checkpoint(&checkpoint)
            .save_ranks(&to, &plan, "first", &options)
            .unwrap();
        assert_eq!(saved.files.len(), count, "{:?}", saved.files);
        assert!(saved.files.iter().all(|name| to.join(name).is_file()));
        let whole = Checkpoint::open(&to).unwrap();
        check(&whole, &sample());
        assert_eq!(whole.metadata()["epoch"], "3");
        assert!(whole.read_beside("config.json", 2).unwrap().is_some());
        assert!(is_part(&whole.into_stored().unwrap_err()));
        // Another save finds files in its way, and changes nothing.
        for attempt in ["again", "first"] {
            let again =
                Rewrite::from_checkpoint(&checkpoint).save_ranks(&to, &plan, attempt, &options);
            let error = again.unwrap_err();
            assert!(matches!(problem(&error), RankProblem::HidesParts), "{error}");
        }
        let hiding = Rewrite::from_checkpoint(&checkpoint).save_sharded(&to, &ShardOptions::new());
        let error = hiding.unwrap_err();
        assert!(matches!(problem(&error), RankProblem::HidesParts), "{error}");
        check(&Checkpoint::open(&to).unwrap(), &sample());
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
    let none = Checkpoint::open(&to).unwrap_err();
    assert!(matches!(none.kind(), ErrorKind::NoCheckpoint { .. }), "{none}");
    // The ranks need the same options.
    let error = saver(0).save(&to, parts(0), &ShardOptions::new()).unwrap_err();
    assert!(matches!(problem(&error), RankProblem::AttemptDiffers { .. }), "{error}");
    assert!(matches!(saver(0).save(&to, parts(0), &options), Ok(RankSaved::Complete(_))));
    check(&Checkpoint::open(&to).unwrap(), &sample());
    // A file of tensors that is in the way.
    let other = directory.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::copy(&path, other.join("model.safetensors")).unwrap();
    refused!(saver(0).save(&other, parts(0), &options), ErrorKind::NotAlone { .. });
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
    let found = Checkpoint::open(directory.path()).unwrap();
    assert_eq!(found.tensor("w").unwrap().read().unwrap().bytes(), [1, 2]);
}

/// Returns `true` if opening a directory fails because its files come from different saves.
fn is_incomplete(directory: &Path, text: &str) -> bool {
    let error = Checkpoint::open(directory).unwrap_err();
    let is_bad = matches!(problem(&error), RankProblem::BadParts { .. });
    assert!(error.to_string().contains(text), "{error}");
    is_bad && error.file().is_some()
}

/// Tensors that one rank saves have no gap if its file is missing.
#[test]
fn a_save_without_some_of_its_files_does_not_open() {
    let (directory, path) = place("whole.safetensors");
    save_whole(&path, &sample());
    let checkpoint = Checkpoint::open(&path).unwrap();
    for (ranks, size) in [(1, 50), (2, 50), (3, 1 << 20)] {
        let to = directory.path().join(ranks.to_string());
        let rules = RankRules::new().parse_rule("*=replicate").unwrap();
        let plan = rules.plan(&checkpoint, ranks).unwrap();
        let options = ShardOptions::new().dcp(true).max_shard_size(size.into());
        let saved = Rewrite::from_checkpoint(&checkpoint)
            .save_ranks(&to, &plan, "first", &options)
            .unwrap();
        assert!(saved.files.len() > 2);
        let whole = Checkpoint::open(&to).unwrap();
        check(&whole, &sample());
        assert!(!whole.metadata().contains_key("safetensors_bridge.files"));
        let count = saved.files.len();
        for file in &saved.files {
            let (file, hidden) = (to.join(file), to.join("hidden"));
            fs::rename(&file, &hidden).unwrap();
            let text = format!("the save has {count} files with parts, and {} are", count - 1);
            assert!(is_incomplete(&to, &text));
            fs::rename(hidden, file).unwrap();
        }
    }
    // PyTorch counts the files in their names. Not each rank has a file of each number.
    let other = directory.path().join("other");
    fs::create_dir(&other).unwrap();
    let tensors =
        [Divided::new("a", &[2], &[(0, &[0], &[2])]), Divided::new("b", &[2], &[(1, &[0], &[2])])];
    save_parts(&other, &tensors);
    let name = |number| other.join(format!("shard-00001-model-{number}.safetensors"));
    fs::rename(file_of(&other, 0), name("00001-of-00002")).unwrap();
    fs::rename(file_of(&other, 1), name("00002-of-00002")).unwrap();
    check(&Checkpoint::open(&other).unwrap(), &tensors);
    fs::rename(name("00002-of-00002"), name("00003-of-00002")).unwrap();
    assert!(is_incomplete(&other, "no file is number 2 of the 2"));
    fs::rename(name("00003-of-00002"), name("00001-of-00003")).unwrap();
    assert!(is_incomplete(&other, "files of two saves"));
}

#[test]
fn parts_of_two_saves_are_not_mixed() {
    let (directory, path) = place("whole.safetensors");
    save_whole(&path, &sample());
    let checkpoint = Checkpoint::open(&path).unwrap();
    let to = |attempt| directory.path().join(attempt);
    for attempt in ["one", "two"] {
        let options = ShardOptions::new().dcp(true);
        let plan = plan(&checkpoint, 2);
        Rewrite::from_checkpoint(&checkpoint)
            .save_ranks(to(attempt), &plan, attempt, &options)
            .unwrap();
    }
    // Some systems keep the name of a file for as long as it is open.
    drop(checkpoint);
    fs::copy(file_of(&to("two"), 1), file_of(&to("one"), 1)).unwrap();
    let text = "shard-00002-model-00001-of-00001.safetensors: the parts of ranks are malformed: \
                ranks of two saves: the file is of \"two\", and \
                \"shard-00001-model-00001-of-00001.safetensors\" of \"one\"";
    assert!(is_incomplete(&to("one"), text));
    // Some that PyTorch has saved.
    save_parts(directory.path(), &sample()[..1]);
    fs::remove_file(path).unwrap();
    fs::copy(file_of(&to("two"), 1), file_of(directory.path(), 1)).unwrap();
    assert!(is_incomplete(directory.path(), "of \"two\""));
    assert!(is_incomplete(directory.path(), "no known save"));
}

#[test]
fn only_ranks_save_parts() {
    let directory = tempdir().unwrap();
    let view = TensorView::from_slice(&[1], &[1_u8]).unwrap();
    let options = ShardOptions::new().dcp(true);
    let error = save_sharded(directory.path(), [("w", view)], &options).unwrap_err();
    assert!(error.to_string().contains("only ranks save"), "{error}");
    assert!(safetensors_testing::files::names_in(directory.path()).is_empty());
}
