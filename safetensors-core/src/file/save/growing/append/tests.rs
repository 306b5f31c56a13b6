//! A file that was appended to, against one that was written at once.

use std::fs;
use std::ops::Range;
use std::path::Path;

use proptest::prelude::*;

use super::super::synced::{file_name, synced_directory};
use super::super::tests::{Grown, check_grown, grown};
use super::GrowingWriter;
use crate::checkpoint::Checkpoint;
use crate::file::hash::{Digest, TensorDigests};
use crate::file::io::failpoint::interrupt_everywhere;
use crate::file::io::testing::{directory_in_memory, names_in, place};
use crate::file::save::{SaveOptions, save};
use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::parallel::lock;
use crate::format::tensor::{TensorBuf, TensorSource, TensorView};
use crate::model::edit::Edit;

fn options() -> SaveOptions {
    SaveOptions::new().durable(false)
}

fn resume(path: &Path) -> GrowingWriter {
    GrowingWriter::resume(path, &options()).unwrap()
}

/// Appends steps to all tensors in turn, and adds a whole tensor.
fn append(writer: &GrowingWriter, tensors: &[Grown], steps: Range<usize>) -> Result<()> {
    let growing = tensors
        .iter()
        .enumerate()
        .map(|(i, t)| writer.grow(&i.to_string(), t.dtype, t.axis, &t.step_shape))
        .collect::<Result<Vec<_>>>()?;
    let name = format!("whole {}", lock(&writer.shared.tensors).list.len());
    writer.add(&name, &TensorView::from_slice(&[3], &[steps.start as u8; 3])?)?;
    for step in steps {
        for (tensor, growing) in tensors.iter().zip(&growing).filter(|(t, _)| step < t.steps) {
            assert_eq!(growing.steps(), step as u64);
            let data = tensor.step(step);
            growing.append(&TensorView::new(tensor.dtype, &tensor.step_shape, &data)?)?;
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: 24, ..ProptestConfig::default()
    })]

    #[test]
    fn consecutive_runs_write_the_same_file_as_one_run(
        tensors in prop::collection::vec(grown(), 1..4),
        runs in prop::collection::vec(0..4_usize, 1..4),
        is_killed in any::<bool>(),
    ) {
        let (_dir, path) = place("a.safetensors");
        let mut begin = 0;
        for (run, count) in runs.into_iter().enumerate() {
            let end = begin + count;
            let writer = resume(&path);
            append(&writer, &tensors, begin..end).unwrap();
            if is_killed {
                writer.sync().unwrap();
                drop(writer);
                // Only the first recovers something.
                drop(resume(&path));
                let once = fs::read(&path).unwrap();
                drop(resume(&path));
                prop_assert!(once == fs::read(&path).unwrap());
            } else {
                writer.finish().unwrap();
            }
            check_grown(&path, &tensors, |tensor| tensor.steps.min(end));
            prop_assert_eq!(Checkpoint::open(&path).unwrap().len(), tensors.len() + run + 1);
            begin = end;
        }
    }
}

/// A tensor that is put at the end of the file, one that is copied, and one of columns.
fn tensors() -> Vec<Grown> {
    vec![
        Grown { dtype: Dtype::F32, axis: 0, step_shape: vec![70_000], steps: 3 },
        Grown { dtype: Dtype::U8, axis: 0, step_shape: vec![140_001], steps: 3 },
        Grown { dtype: Dtype::U16, axis: 1, step_shape: vec![3, 70], steps: 3 },
    ]
}

fn first_run(path: &Path) {
    let writer = GrowingWriter::create(path, &options()).unwrap();
    append(&writer, &tensors(), 0..1).unwrap();
    writer.metadata([("title", "a run")]);
    writer.attribute("0", "units", "m").unwrap();
    writer.finish().unwrap();
}

fn second_run(path: &Path) -> Result<()> {
    let writer = GrowingWriter::resume(path, &options())?.sync_every(1);
    append(&writer, &tensors(), 1..3)?;
    writer.finish()
}

#[test]
fn the_old_file_or_the_new_one_wherever_a_run_is_interrupted() {
    let (mut old_files, mut recovered, mut new_files) = (0, 0, 0);
    let tensors = tensors();
    let setup = || {
        let dir = directory_in_memory();
        first_run(&dir.path().join("a.safetensors"));
        dir
    };
    let act = |dir: &tempfile::TempDir| second_run(&dir.path().join("a.safetensors"));
    let steps = |path: &Path| {
        let file = Checkpoint::open(path).unwrap();
        assert_eq!(file.metadata()["attribute:0#units"], "m");
        let steps = file.tensor("0").unwrap().shape()[0];
        check_grown(path, &tensors, |_| steps);
        steps
    };
    interrupt_everywhere(setup, act, |dir, interrupted, result| {
        let path = dir.path().join("a.safetensors");
        let found = steps(&path);
        assert!(matches!(found, 1 | 3), "{interrupted:?}");
        assert!(interrupted.is_some() || result.is_ok() && found == 3, "{result:?}");
        let is_synced = synced_directory(&path).join(file_name(1)).exists();
        drop(resume(&path));
        match (found, is_synced) {
            (1, false) => old_files += 1,
            (1, true) => recovered += 1,
            _ => new_files += 1,
        }
        let expected = if found == 1 && is_synced { 2 } else { found };
        assert_eq!(steps(&path), expected, "{interrupted:?}");
        assert_eq!(names_in(dir.path()), ["a.safetensors"], "{interrupted:?}");
    });
    assert!(old_files > 2 && recovered > 2 && new_files > 2, "{old_files} {recovered} {new_files}");
}

#[test]
fn appending_writes_the_new_steps_only() {
    let (_dir, path) = place("a.safetensors");
    let large = vec![1_u8; 8 << 20];
    let shape = [1 << 20, 8];
    let view = TensorView::new(Dtype::U8, &shape, &large).unwrap();
    save(&path, [("large", view), ("other", view)], &options()).unwrap();
    let writer = resume(&path);
    let growing = writer.grow("large", Dtype::U8, 0, &[8]).unwrap();
    growing.extend(&TensorView::new(Dtype::U8, &[1 << 16, 8], &large[..8 << 16]).unwrap()).unwrap();
    // The hidden file has a hole where the old steps come.
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::MetadataExt;
        writer
            .shared
            .while_writing(|writing| {
                let written = writing.body.file().metadata().unwrap().blocks() * 512;
                assert!(written <= 1 << 20, "{written}");
                Ok(())
            })
            .unwrap();
    }
    writer.finish().unwrap();
    let file = Checkpoint::open(&path).unwrap();
    let data = file.tensor("large").unwrap().read().unwrap();
    assert_eq!(data.shape(), [(1 << 20) + (1 << 16), 8]);
    assert!(data.into_vec::<u8>().unwrap().iter().all(|&byte| byte == 1));
    assert_eq!(file.tensor("other").unwrap().shape(), shape);
}

#[test]
fn recorded_digests_are_recomputed() {
    let (_dir, path) = place("a.safetensors");
    let tensors = [("t", TensorBuf::from_vec(vec![2], vec![1.0_f64, 2.0]).unwrap())];
    let metadata = [("modelspec.hash_sha256", "0x00"), ("k", "old"), ("kept", "yes")];
    save(&path, tensors, &options().digests(true).metadata(metadata)).unwrap();
    let options = options().metadata([("k", "new")]);
    let writer = GrowingWriter::resume(&path, &options).unwrap();
    let t = writer.grow("t", Dtype::F64, 0, &[]).unwrap();
    t.append(&TensorBuf::from_vec(vec![], vec![3.0_f64]).unwrap()).unwrap();
    writer.finish().unwrap();
    let file = Checkpoint::open(&path).unwrap();
    let metadata = file.metadata();
    assert_eq!((&*metadata["k"], &*metadata["kept"], metadata.len()), ("new", "yes", 3));
    let digests = TensorDigests::from_metadata(metadata).unwrap().unwrap();
    let data = file.tensor("t").unwrap().read().unwrap();
    data.write_to(&mut |bytes| {
        assert_eq!(digests["t"], Digest::compute(bytes));
        Ok(())
    })
    .unwrap();
}

#[test]
fn tensors_that_do_not_fit_the_file_are_refused_and_it_stays() {
    let (dir, path) = place("a.safetensors");
    fs::write(&path, "no file of tensors").unwrap();
    let error = GrowingWriter::resume(&path, &options()).unwrap_err();
    assert_eq!(error.file(), path.to_str(), "{error}");
    let view = TensorView::from_slice(&[2, 3], &[0_u8; 6]).unwrap();
    save(&path, [("t", view), ("u", view)], &options()).unwrap();
    let before = fs::read(&path).unwrap();
    let writer = resume(&path);
    let check = |error: Error, expected: &str| {
        assert_eq!((error.file(), error.tensor()), (path.to_str(), Some("t")));
        assert!(error.to_string().ends_with(expected), "{error}");
    };
    check(writer.add("t", &view).unwrap_err(), "duplicate tensor name");
    let grow = |dtype, axis, shape: &[usize]| writer.grow("t", dtype, axis, shape).unwrap_err();
    check(grow(Dtype::I8, 0, &[3]), "expected dtype U8, found I8");
    check(grow(Dtype::U8, 0, &[2]), "expected shape [2, 3], found [2, 2]");
    check(grow(Dtype::U8, 1, &[3]), "expected shape [2, 3], found [3, 3]");
    check(grow(Dtype::U8, 0, &[]), "expected shape [2, 3], found [2]");
    let growing = writer.grow("t", Dtype::U8, 0, &[3]).unwrap();
    check(grow(Dtype::U8, 0, &[3]), "duplicate tensor name");
    growing.append(&TensorView::from_slice(&[3], &[1_u8; 3]).unwrap()).unwrap();
    drop(writer);
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(names_in(dir.path()), ["a.safetensors"]);
}

/// Another program edits the metadata, sets the time or an attribute, replaces or removes the file.
#[test]
fn concurrent_changes_of_another_program_stay() {
    let (_dir, path) = place("a.safetensors");
    let touch = || {
        let file = fs::File::options().append(true).open(&path).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    };
    let edit = || _ = Edit::open(&path).unwrap().set_metadata([("k", "v")]).apply().unwrap();
    let remove = || fs::remove_file(&path).unwrap();
    let changes: [(&dyn Fn(), _); 3] = [(&touch, None), (&edit, Some("v")), (&remove, None)];
    for (change, expected) in changes {
        first_run(&path);
        let writer = resume(&path);
        append(&writer, &tensors(), 1..2).unwrap();
        change();
        writer.finish().unwrap();
        check_grown(&path, &tensors(), |_| 2);
        let metadata = Checkpoint::open(&path).unwrap().metadata().clone();
        assert_eq!(metadata["title"], "a run");
        assert_eq!(metadata.get("k").map(|value| &**value), expected);
    }
}

/// The new file would lose the tensors of another program. The synced steps are not lost, either.
#[test]
fn a_file_that_has_other_tensors_by_now_is_not_replaced() {
    let (dir, path) = place("a.safetensors");
    first_run(&path);
    let writer = resume(&path);
    append(&writer, &tensors(), 1..2).unwrap();
    let mask = TensorBuf::from_vec(vec![1], vec![7_u8]).unwrap();
    Edit::open(&path).unwrap().append([("mask", mask)]).apply().unwrap();
    let changed = fs::read(&path).unwrap();
    for _ in 0..2 {
        let error = writer.finish().unwrap_err();
        assert!(error.to_string().contains("sync the new steps, and resume"), "{error}");
        assert_eq!(error.file(), path.to_str());
        assert_eq!(fs::read(&path).unwrap(), changed);
    }
    // Others can write to the directory.
    save(
        dir.path().join("b.safetensors"),
        [("v", TensorView::from_slice(&[1], &[1_u8]).unwrap())],
        &options(),
    )
    .unwrap();
    writer.sync().unwrap();
    drop(writer);
    drop(resume(&path));
    check_grown(&path, &tensors(), |_| 2);
    assert_eq!(Checkpoint::open(&path).unwrap().tensor("mask").unwrap().shape(), [1]);
}

/// With two live writers of a path, the one that finishes first would lose its steps.
#[test]
fn a_second_writer_is_refused_before_it_loses_a_step() {
    let (dir, path) = place("a.safetensors");
    let same = dir.path().join(".").join("a.safetensors");
    let refuse_all = || {
        for error in
            [GrowingWriter::create(&path, &options()), GrowingWriter::resume(&same, &options())]
                .map(Result::unwrap_err)
        {
            assert!(matches!(error.kind(), ErrorKind::FileBusy), "{error}");
            assert!(error.file().is_some_and(|file| file.ends_with("a.safetensors")), "{error}");
        }
    };
    // A file that begins, and one that is appended to.
    for steps in [1..2, 2..3] {
        let writer = resume(&path);
        refuse_all();
        append(&writer, &tensors(), steps.start - 1..steps.start).unwrap();
        writer.sync().unwrap();
        refuse_all();
        // The next writer begins when this one has finished, and not when it is dropped.
        writer.finish().unwrap();
        drop(resume(&path));
        check_grown(&path, &tensors(), |_| steps.start);
    }
    // A killed process leaves the file of the lock, which locks nothing.
    fs::write(dir.path().join(".a.safetensors.growth.tmp"), "").unwrap();
    drop(resume(&path));
    assert_eq!(names_in(dir.path()), ["a.safetensors"]);
    fs::write(dir.path().join(".a.safetensors.growth.tmp"), "").unwrap();
    save(&path, [("t", TensorView::from_slice(&[1], &[0_u8]).unwrap())], &options()).unwrap();
    assert_eq!(names_in(dir.path()), ["a.safetensors"]);
}

/// Synced steps continue one file and no other.
#[test]
fn steps_are_not_appended_to_another_file() {
    let (dir, path) = place("a.safetensors");
    first_run(&path);
    let right = fs::read(&path).unwrap();
    let writer = resume(&path);
    append(&writer, &tensors(), 1..2).unwrap();
    writer.sync().unwrap();
    drop(writer);
    let error = GrowingWriter::create(&path, &options()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SyncedStepsLeft { .. }), "{error}");
    // A file of two steps.
    let wrong = dir.path().join("b.safetensors");
    let writer = resume(&wrong);
    append(&writer, &tensors(), 0..2).unwrap();
    writer.finish().unwrap();
    fs::copy(&wrong, &path).unwrap();
    for _ in 0..2 {
        let error = GrowingWriter::resume(&path, &options()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WrongShape { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), fs::read(&wrong).unwrap());
    }
    fs::write(&path, right).unwrap();
    drop(resume(&path));
    check_grown(&path, &tensors(), |_| 2);
}

#[test]
fn aliases_are_names_that_no_other_tensor_gets() {
    let (_dir, path) = place("a.safetensors");
    let view = TensorView::from_slice(&[2], &[0_u8; 2]).unwrap();
    let metadata = [("b", "a"), ("attribute:b#units", "m"), ("c", "none")];
    save(&path, [("a", view)], &options().metadata(metadata)).unwrap();
    let writer = resume(&path);
    for error in
        [writer.add("b", &view).unwrap_err(), writer.grow("b", Dtype::U8, 0, &[]).unwrap_err()]
    {
        assert!(matches!(error.kind(), ErrorKind::DuplicateTensor), "{error}");
        assert_eq!((error.file(), error.tensor()), (path.to_str(), Some("b")));
    }
    writer.add("c", &view).unwrap();
    writer.grow("a", Dtype::U8, 0, &[]).unwrap().extend(&view).unwrap();
    writer.sync().unwrap();
    drop(writer);
    drop(resume(&path));
    let file = Checkpoint::open(&path).unwrap();
    assert_eq!(file.tensor("b").unwrap().shape(), [4]);
    assert_eq!(file.metadata()["attribute:b#units"], "m");
}

/// The steps belong to the file, by any path to it.
#[cfg(unix)]
#[test]
fn a_run_goes_on_by_another_path() {
    let (dir, path) = place("a.safetensors");
    fs::create_dir(dir.path().join("below")).unwrap();
    let (same, link) = (dir.path().join("below/../a.safetensors"), dir.path().join("below/link"));
    std::os::unix::fs::symlink("../a.safetensors", &link).unwrap();
    for (step, path) in [&path, &link, &same].into_iter().enumerate() {
        let writer = GrowingWriter::resume(path, &options().overwrite(step == 0)).unwrap();
        append(&writer, &tensors(), step..step + 1).unwrap();
        writer.sync().unwrap();
    }
    drop(resume(&path));
    check_grown(&path, &tensors(), |_| 3);
    assert_eq!(names_in(&dir.path().join("below")), ["link"]);
}
