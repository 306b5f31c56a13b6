//! A file that was appended to, against one that was written at once.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::{TempDir, tempdir};

use super::super::sync::Synced;
use super::super::tests::{Grown, check_grown, grown};
use super::super::{recover_synced, synced_directory};
use super::GrowingWriter;
use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::edit::Edit;
use crate::error::{Error, ErrorKind, Result};
use crate::hash::{Digest, TensorDigests};
use crate::io::failpoint::crash_at;
use crate::io::testing::names_in;
use crate::save::{SaveOptions, save};
use crate::tensor::{TensorBuf, TensorSource, TensorView};

fn options() -> SaveOptions {
    SaveOptions::new().durable(false)
}

/// Appends steps to all tensors in turn, and adds a whole tensor.
fn append(writer: &GrowingWriter, tensors: &[Grown], steps: Range<usize>) -> Result<()> {
    let growing = tensors
        .iter()
        .enumerate()
        .map(|(i, t)| writer.grow(&i.to_string(), t.dtype, t.axis, &t.step_shape))
        .collect::<Result<Vec<_>>>()?;
    let name = format!("whole {}", writer.lock().list.len());
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
    fn runs_one_after_the_other_write_what_one_run_does(
        tensors in prop::collection::vec(grown(), 1..4),
        runs in prop::collection::vec(0..4_usize, 1..4),
        is_killed in any::<bool>(),
    ) {
        let dir = tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        let mut begin = 0;
        for (run, count) in runs.into_iter().enumerate() {
            let end = begin + count;
            let open = if run == 0 { GrowingWriter::create } else { GrowingWriter::append_to };
            let writer = open(&path, &options()).unwrap();
            append(&writer, &tensors, begin..end).unwrap();
            if is_killed {
                writer.sync().unwrap();
                drop(writer);
                recover_synced(&path, &path, &options()).unwrap();
                let once = fs::read(&path).unwrap();
                recover_synced(&path, &path, &options()).unwrap();
                prop_assert!(once == fs::read(&path).unwrap());
                fs::remove_dir_all(synced_directory(&path)).unwrap();
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

/// A file of one step, and the step after it, which is only synced.
fn synced_run(dir: &TempDir) -> PathBuf {
    let path = dir.path().join("a.safetensors");
    first_run(&path);
    let writer = GrowingWriter::append_to(&path, &options()).unwrap();
    append(&writer, &tensors(), 1..2).unwrap();
    writer.sync().unwrap();
    path
}

fn second_run(path: &Path) -> Result<()> {
    let writer = GrowingWriter::append_to(path, &options())?.sync_every(1);
    append(&writer, &tensors(), 1..3)?;
    writer.finish()
}

#[test]
fn the_old_file_or_the_new_one_wherever_a_run_is_killed() {
    let (mut old_files, mut recovered, mut new_files) = (0, 0, 0);
    let tensors = tensors();
    let all = |steps| tensors.iter().map(move |tensor| tensor.expected(steps));
    let expected = [1, 2, 3].map(|steps| all(steps).collect::<Vec<_>>());
    let check = |path: &Path| {
        let file = Checkpoint::open(path).unwrap();
        let steps = file.tensor("0").unwrap().shape()[0];
        for (i, (shape, data)) in expected[steps - 1].iter().enumerate() {
            let found = file.tensor(&i.to_string()).unwrap().read().unwrap();
            let mut stored = Vec::new();
            found
                .write_to(&mut |bytes| {
                    stored.extend_from_slice(bytes);
                    Ok(())
                })
                .unwrap();
            assert!(found.shape() == shape && stored == *data, "{i} {steps}");
        }
        assert_eq!(file.metadata()["attribute:0#units"], "m");
        steps
    };
    for step in 0.. {
        let dir = tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        first_run(&path);
        let before = fs::read(&path).unwrap();
        let (result, reached) = crash_at(step, || second_run(&path));
        let Some(reached) = reached else {
            result.unwrap();
            break;
        };
        let is_new = fs::read(&path).unwrap() != before;
        assert_eq!(check(&path), if is_new { 3 } else { 1 }, "{reached}");
        new_files += usize::from(is_new);
        if synced_directory(&path).join("00000001.safetensors").exists() {
            recover_synced(&path, &path, &options()).unwrap();
            assert_eq!(check(&path), if is_new { 3 } else { 2 }, "{reached}");
            recovered += usize::from(!is_new);
        } else {
            old_files += usize::from(!is_new);
        }
        // What was recovered is in the file, so the next run removes the synced steps.
        drop(GrowingWriter::append_to(&path, &options()).unwrap());
        assert_eq!(names_in(dir.path()), ["a.safetensors"], "{reached}");
    }
    assert!(old_files > 2 && recovered > 2 && new_files > 2, "{old_files} {recovered} {new_files}");
}

#[test]
fn appending_writes_the_new_steps_only() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let large = vec![1_u8; 8 << 20];
    let shape = [1 << 20, 8];
    let view = TensorView::new(Dtype::U8, &shape, &large).unwrap();
    save(&path, [("large", view), ("other", view)], &options()).unwrap();
    let writer = GrowingWriter::append_to(&path, &options()).unwrap();
    let growing = writer.grow("large", Dtype::U8, 0, &[8]).unwrap();
    growing.extend(&TensorView::new(Dtype::U8, &[1 << 16, 8], &large[..8 << 16]).unwrap()).unwrap();
    // The hidden file has a hole where the old steps come.
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::MetadataExt;
        let written = writer.body.file().metadata().unwrap().blocks() * 512;
        assert!(written <= 1 << 20, "{written}");
    }
    writer.finish().unwrap();
    let file = Checkpoint::open(&path).unwrap();
    let data = file.tensor("large").unwrap().read().unwrap();
    assert_eq!(data.shape(), [(1 << 20) + (1 << 16), 8]);
    assert!(data.into_vec::<u8>().unwrap().iter().all(|&byte| byte == 1));
    assert_eq!(file.tensor("other").unwrap().shape(), shape);
}

#[test]
fn recorded_digests_are_made_anew() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let tensors = [("t", TensorBuf::from_vec(vec![2], vec![1.0_f64, 2.0]).unwrap())];
    let metadata = [("modelspec.hash_sha256", "0x00"), ("k", "old"), ("kept", "yes")];
    save(&path, tensors, &options().digests(true).metadata(metadata)).unwrap();
    let writer = GrowingWriter::append_to(&path, &options().metadata([("k", "new")])).unwrap();
    let t = writer.grow("t", Dtype::F64, 0, &[]).unwrap();
    t.append(&TensorBuf::from_vec(vec![], vec![3.0_f64]).unwrap()).unwrap();
    writer.finish().unwrap();
    let file = Checkpoint::open(&path).unwrap();
    let metadata = file.metadata();
    assert_eq!((&*metadata["k"], &*metadata["kept"], metadata.len()), ("new", "yes", 3));
    let digests = TensorDigests::from_metadata(metadata).unwrap().unwrap();
    let data = file.tensor("t").unwrap().read().unwrap();
    data.write_to(&mut |bytes| {
        assert_eq!(digests["t"], Digest::of(bytes));
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_does_not_fit_the_file_is_refused_and_the_file_stays() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let error = GrowingWriter::append_to(&path, &options()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io(_)) && error.file() == path.to_str(), "{error}");
    let view = TensorView::from_slice(&[2, 3], &[0_u8; 6]).unwrap();
    save(&path, [("t", view), ("u", view)], &options()).unwrap();
    let before = fs::read(&path).unwrap();
    let writer = GrowingWriter::append_to(&path, &options()).unwrap();
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

/// What another program does between opening and finishing would be lost.
#[test]
fn a_file_that_changes_meanwhile_is_not_replaced() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let view = TensorView::from_slice(&[2], &[0_u8; 2]).unwrap();
    let other = TensorView::from_slice(&[4], &[1_u8; 4]).unwrap();
    let overwrite = |path: &Path| fs::OpenOptions::new().append(true).open(path).unwrap();
    let changes: [&dyn Fn(); 3] = [
        &|| save(&path, [("v", other)], &options()).unwrap(),
        &|| _ = Edit::open(&path).unwrap().set_metadata([("k", "v")]).apply().unwrap(),
        &|| std::io::Write::write_all(&mut overwrite(&path), b"x").unwrap(),
    ];
    for change in changes {
        save(&path, [("t", view)], &options()).unwrap();
        let writer = GrowingWriter::append_to(&path, &options()).unwrap();
        change();
        let changed = fs::read(&path).unwrap();
        let error = writer.finish().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
        assert_eq!(fs::read(&path).unwrap(), changed);
    }
}

/// Of two live writers of one path, the one that finishes first would lose its steps.
#[test]
fn a_second_writer_is_refused_before_it_loses_a_step() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let same = dir.path().join(".").join("a.safetensors");
    let refuse_all = || {
        let results = [
            GrowingWriter::create(&path, &options()).map(drop),
            GrowingWriter::append_to(&same, &options()).map(drop),
            recover_synced(&path, &path, &options()),
        ];
        for error in results.map(Result::unwrap_err) {
            assert!(matches!(error.kind(), ErrorKind::FileBusy), "{error}");
            assert!(error.file().is_some_and(|file| file.ends_with("a.safetensors")), "{error}");
        }
    };
    // A file that is created, and one that is appended to.
    for steps in [1..2, 2..3] {
        let open = if path.exists() { GrowingWriter::append_to } else { GrowingWriter::create };
        let writer = open(&path, &options()).unwrap();
        refuse_all();
        append(&writer, &tensors(), steps.start - 1..steps.start).unwrap();
        writer.sync().unwrap();
        refuse_all();
        // A copy of what was synced so far goes elsewhere, and other files are written meanwhile.
        let other = dir.path().join("b.safetensors");
        recover_synced(&path, &other, &options()).unwrap();
        check_grown(&other, &tensors(), |_| steps.start);
        writer.finish().unwrap();
        check_grown(&path, &tensors(), |_| steps.start);
    }
    // A killed process leaves the file of the lock, which locks nothing.
    fs::write(dir.path().join(".a.safetensors.growth.tmp"), "").unwrap();
    drop(GrowingWriter::append_to(&path, &options()).unwrap());
    assert_eq!(names_in(dir.path()), ["a.safetensors", "b.safetensors"]);
    fs::write(dir.path().join(".a.safetensors.growth.tmp"), "").unwrap();
    save(&path, [("t", TensorView::from_slice(&[1], &[0_u8]).unwrap())], &options()).unwrap();
    assert_eq!(names_in(dir.path()), ["a.safetensors", "b.safetensors"]);
}

/// Synced steps continue one file and no other.
#[test]
fn steps_are_not_appended_to_another_file() {
    let dir = tempdir().unwrap();
    let path = synced_run(&dir);
    let error = GrowingWriter::append_to(&path, &options()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SyncedStepsLeft { .. }), "{error}");
    // The file goes to another path; the steps come with it.
    let other = dir.path().join("b.safetensors");
    recover_synced(&path, &other, &options()).unwrap();
    check_grown(&other, &tensors(), |_| 2);
    check_grown(&path, &tensors(), |_| 1);
    let synced = Synced::new(&path).unwrap();
    let writer = GrowingWriter::create_with(&path, &options(), synced).unwrap();
    append(&writer, &tensors(), 0..2).unwrap();
    writer.finish().unwrap();
    let before = fs::read(&path).unwrap();
    let error = recover_synced(&path, &path, &options()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WrongShape { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn aliases_are_names_that_no_other_tensor_gets() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let view = TensorView::from_slice(&[2], &[0_u8; 2]).unwrap();
    let metadata = [("b", "a"), ("attribute:b#units", "m"), ("c", "none")];
    save(&path, [("a", view)], &options().metadata(metadata)).unwrap();
    let writer = GrowingWriter::append_to(&path, &options()).unwrap();
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
    recover_synced(&path, &path, &options()).unwrap();
    let file = Checkpoint::open(&path).unwrap();
    assert_eq!(file.tensor("b").unwrap().shape(), [4]);
    assert_eq!(file.metadata()["attribute:b#units"], "m");
}

/// A path by another way leads to the file that is appended to, which is replaced.
#[test]
fn a_file_is_recovered_by_another_path() {
    let dir = tempdir().unwrap();
    let path = synced_run(&dir);
    fs::create_dir(dir.path().join("below")).unwrap();
    let same = dir.path().join("below/../a.safetensors");
    recover_synced(&path, &same, &options().overwrite(false)).unwrap();
    check_grown(&path, &tensors(), |_| 2);
}
