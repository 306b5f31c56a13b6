//! What is left of synced steps, what another program removes, and what comes back.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::tempdir;

use super::{file_name, synced_directory};
use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::edit::Edit;
use crate::error::{ErrorKind, Result};
use crate::io::failpoint::{crash_at, fail_at};
use crate::io::remove::unless_missing;
use crate::io::testing::names_in;
use crate::save::growing::{GrowingWriter, recover_synced};
use crate::save::{SaveOptions, save};
use crate::tensor::{TensorBuf, TensorView};

fn options() -> SaveOptions {
    SaveOptions::new().durable(false)
}

/// Three steps of two tensors that grow, of which two are synced, and a whole tensor.
fn run(path: &Path, fill: u8) -> Result<()> {
    let writer = GrowingWriter::create(path, &options())?.sync_every(1);
    writer.metadata([("title", "a run")]);
    writer.add("x", &TensorView::from_slice(&[2], &[fill; 2])?)?;
    let rows = writer.grow("rows", Dtype::U8, 0, &[2])?;
    let columns = writer.grow("columns", Dtype::U16, 1, &[2])?;
    for step in 0..3_u8 {
        rows.append(&TensorView::from_slice(&[2], &[fill + step; 2])?)?;
        columns.append(&TensorBuf::from_vec(vec![2], vec![u16::from(fill + step); 2])?)?;
    }
    writer.finish()
}

fn steps(path: &Path) -> usize {
    let checkpoint = Checkpoint::open(path).unwrap();
    let (rows, columns) = (checkpoint.tensor("rows"), checkpoint.tensor("columns"));
    let (rows, columns) = (rows.unwrap().shape()[0], columns.unwrap().shape()[1]);
    assert_eq!(rows, columns);
    rows
}

/// Whichever step is the last of a killed process, recovery never replaces the finished file, and a
/// new run is refused only if there is something to recover.
#[test]
fn a_finished_run_is_not_replaced_by_its_synced_steps() {
    let (mut recognised, mut recovered, mut unsynced) = (0, 0, 0);
    // What was there before: nothing, another run, and a run with the same header.
    for before in [None, Some(7), Some(1)] {
        for n in 0.. {
            let dir = tempdir().unwrap();
            let path = dir.path().join("run.safetensors");
            if let Some(fill) = before {
                run(&path, fill).unwrap();
            }
            let old = fs::read(&path).ok();
            let (result, step) = crash_at(n, || run(&path, 1));
            let Some(step) = step else {
                result.unwrap();
                break;
            };
            let is_finished = path.exists() && fs::read(&path).ok() != old;
            let directory = synced_directory(&path);
            if directory.join(file_name(1)).exists() {
                recover_synced(&path, &path, &options()).unwrap();
                let found = steps(&path);
                // An old file that has all that was synced stays, too.
                let expected = found == 3 || (!is_finished && found < 3);
                assert!(expected, "{before:?} {step}: {found}");
                let is_left = fs::read(&path).ok() == old || is_finished;
                recognised += usize::from(is_finished);
                recovered += usize::from(!is_left);
                // With the mark, what was just recovered is known to have all that was synced.
                let is_marked = directory.join("finishing").exists();
                match GrowingWriter::create(&path, &options()) {
                    Ok(_) => assert!(is_left || is_marked, "{before:?} {step}"),
                    Err(error) => {
                        let is_left = matches!(error.kind(), ErrorKind::SyncedStepsLeft { .. });
                        assert!(is_left && !is_finished, "{before:?} {step}: {error}");
                        fs::remove_dir_all(&directory).unwrap();
                    }
                }
            } else if directory.exists() && !is_finished {
                // Killed in the first sync: there is nothing to recover.
                recover_synced(&path, &path, &options()).unwrap();
                assert_eq!(fs::read(&path).ok(), old, "{before:?} {step}");
                unsynced += 1;
            }
            run(&path, 2).unwrap();
            assert_eq!(names_in(dir.path()), ["run.safetensors"], "{before:?} {step}");
        }
    }
    let counts = [recognised, recovered, unsynced];
    assert!(counts.iter().all(|count| *count > 2), "{counts:?}");
}

#[test]
fn the_next_run_removes_what_could_not_be_removed() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("run.safetensors");
    // A save that replaces a file has one step more on some systems, so every run replaces one.
    run(&path, 1).unwrap();
    let mut left = 0;
    for n in 0.. {
        let (result, step) = fail_at(n, || run(&path, 1));
        let Some(step) = step else { break };
        if step != "remove synced steps" {
            unless_missing(fs::remove_dir_all(synced_directory(&path))).unwrap();
            continue;
        }
        let error = result.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::LeftBehind(_)), "{error}");
        assert_eq!(steps(&path), 3);
        drop(GrowingWriter::create(&path, &options()).unwrap());
        assert_eq!(names_in(dir.path()), ["run.safetensors"]);
        left += 1;
    }
    // Two files, the mark and the directory.
    assert_eq!(left, 4);
}

/// The values decide: an old file of the same header is not the one that was about to be finished.
#[test]
fn an_old_file_with_the_same_header_is_replaced() {
    let dir = tempdir().unwrap();
    let (path, other) = (dir.path().join("run.safetensors"), dir.path().join("other.safetensors"));
    let mut last = None;
    for n in 0.. {
        run(&path, 9).unwrap();
        let (_, step) = crash_at(n, || run(&path, 1));
        if synced_directory(&path).join("finishing").exists() {
            last = Some(step);
            break;
        }
        _ = fs::remove_dir_all(synced_directory(&path));
    }
    assert!(last.is_some());
    let error = GrowingWriter::create(&path, &options()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SyncedStepsLeft { .. }), "{error}");
    recover_synced(&path, &other, &options()).unwrap();
    assert_eq!((steps(&path), steps(&other)), (3, 2));
    recover_synced(&path, &path, &options()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), fs::read(&other).unwrap());
}

/// The header changes between the end of the run and the removal of its synced steps.
#[test]
fn a_finished_file_that_was_edited_is_recognised() {
    let mut edited = 0;
    for n in 0.. {
        let dir = tempdir().unwrap();
        let path = dir.path().join("run.safetensors");
        let (_, step) = crash_at(n, || run(&path, 1));
        let Some(step) = step else { break };
        if !path.exists() || !synced_directory(&path).join("finishing").exists() {
            continue;
        }
        Edit::open(&path).unwrap().set_metadata([("k", "v")]).apply().unwrap();
        recover_synced(&path, &path, &options()).unwrap();
        assert_eq!(steps(&path), 3, "{step}");
        assert_eq!(Checkpoint::open(&path).unwrap().metadata()["k"], "v", "{step}");
        drop(GrowingWriter::create(&path, &options()).unwrap());
        assert_eq!(names_in(dir.path()), ["run.safetensors"], "{step}");
        edited += 1;
    }
    // Before each of the two files and the mark is removed.
    assert_eq!(edited, 3);
}

/// Some synced steps are removed already, so what is left of them would make a shorter file.
#[test]
fn a_finished_run_is_recovered_whole_at_another_path() {
    let mut copied = 0;
    for n in 0.. {
        let dir = tempdir().unwrap();
        let path = dir.path().join("run.safetensors");
        let other = dir.path().join("other.safetensors");
        let (_, step) = crash_at(n, || run(&path, 1));
        let Some(step) = step else { break };
        if !path.exists() || !synced_directory(&path).join("finishing").exists() {
            continue;
        }
        recover_synced(&path, &other, &options().metadata([("k", "v")])).unwrap();
        assert_eq!(steps(&other), 3, "{step}");
        let metadata = Checkpoint::open(&other).unwrap().metadata().clone();
        assert_eq!((&*metadata["title"], &*metadata["k"]), ("a run", "v"), "{step}");
        copied += 1;
    }
    assert_eq!(copied, 3);
}

/// The finished file was moved away, so the steps that are removed already cannot be replaced.
#[test]
fn steps_that_are_removed_already_are_missed() {
    let mut missed = 0;
    for n in 0.. {
        let dir = tempdir().unwrap();
        let path = dir.path().join("run.safetensors");
        let (_, step) = crash_at(n, || run(&path, 1));
        let Some(step) = step else { break };
        let directory = synced_directory(&path);
        if !path.exists() || !directory.join("finishing").exists() {
            continue;
        }
        let is_complete = directory.join(file_name(2)).exists();
        fs::remove_file(&path).unwrap();
        match recover_synced(&path, &path, &options()) {
            Ok(()) => assert!(is_complete && steps(&path) == 2, "{step}"),
            Err(error) => {
                assert!(!is_complete && error.file().is_some(), "{step}: {error}");
                missed += 1;
            }
        }
    }
    assert_eq!(missed, 2);
}

/// Neither a file of another format nor one that cannot be read has what was synced.
#[test]
fn a_file_of_another_format_is_not_the_finished_one() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("run.safetensors");
    let directory = synced_directory(&path);
    let writer = GrowingWriter::create(&path, &options()).unwrap();
    writer.add("x", &TensorView::from_slice(&[1], &[7_u8]).unwrap()).unwrap();
    writer.sync().unwrap();
    drop(writer);
    fs::write(directory.join("finishing"), "1").unwrap();
    for old in [&b""[..], b"not a file of tensors"] {
        fs::write(&path, old).unwrap();
        let error = GrowingWriter::create(&path, &options()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::SyncedStepsLeft { .. }), "{error}");
        recover_synced(&path, &path, &options()).unwrap();
        assert_eq!(Checkpoint::open(&path).unwrap().len(), 1);
    }
}

#[test]
fn a_mark_that_is_malformed_means_nothing() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("run.safetensors");
    run(&path, 1).unwrap();
    let directory = synced_directory(&path);
    fs::create_dir(&directory).unwrap();
    for mark in ["", "8 ", "-8", "x y", "18446744073709551615"] {
        fs::write(directory.join("finishing"), mark).unwrap();
        let error = GrowingWriter::create(&path, &options()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::SyncedStepsLeft { .. }), "{mark:?}: {error}");
    }
}

/// Another program tidies up while a run is under way.
#[test]
fn steps_that_were_removed_are_synced_again() {
    for removes_directory in [true, false] {
        let dir = tempdir().unwrap();
        let path = dir.path().join("run.safetensors");
        let synced = synced_directory(&path);
        let writer = GrowingWriter::create(&path, &options()).unwrap().sync_every(1);
        writer.add("x", &TensorView::from_slice(&[1], &[7_u8]).unwrap()).unwrap();
        let time = writer.grow("time", Dtype::U8, 0, &[]).unwrap();
        for step in 0..6_u8 {
            time.append(&TensorView::from_slice(&[], &[step]).unwrap()).unwrap();
            if step == 3 && removes_directory {
                fs::remove_dir_all(&synced).unwrap();
            } else if step == 3 {
                for name in names_in(&synced) {
                    fs::remove_file(synced.join(name)).unwrap();
                }
            }
        }
        assert_eq!(names_in(&synced).len(), 2);
        // As if the process was killed: the file is not finished.
        let other = dir.path().join("other.safetensors");
        recover_synced(&path, &other, &options()).unwrap();
        let recovered = Checkpoint::open(&other).unwrap();
        let found = recovered.tensor("time").unwrap().read().unwrap();
        assert_eq!(found.into_vec::<u8>().unwrap(), [0, 1, 2, 3, 4]);
        assert_eq!(recovered.tensor("x").unwrap().read().unwrap().bytes(), [7]);
        if removes_directory {
            fs::remove_dir_all(&synced).unwrap();
        }
        writer.finish().unwrap();
        assert_eq!(names_in(dir.path()), ["other.safetensors", "run.safetensors"]);
        let found = Checkpoint::open(&path).unwrap().tensor("time").unwrap().shape().to_vec();
        assert_eq!(found, [6]);
    }
}

#[test]
fn a_tensor_without_a_step_comes_back() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("run.safetensors");
    let writer = GrowingWriter::create(&path, &options()).unwrap();
    writer.grow("early", Dtype::F32, 1, &[3, 2]).unwrap();
    writer.attribute("early", "units", "m").unwrap();
    writer.sync().unwrap();
    // Nothing is new.
    writer.sync().unwrap();
    let late = writer.grow("late", Dtype::U8, 0, &[]).unwrap();
    writer.sync().unwrap();
    assert_eq!(names_in(&synced_directory(&path)), [file_name(1), file_name(2)]);
    late.append(&TensorView::from_slice(&[], &[1_u8]).unwrap()).unwrap();
    drop(writer);
    recover_synced(&path, &path, &options()).unwrap();
    let recovered = Checkpoint::open(&path).unwrap();
    let shape = |name| recovered.tensor(name).unwrap().shape().to_vec();
    assert_eq!((shape("early"), shape("late")), (vec![3, 0, 2], vec![0]));
    assert_eq!(recovered.metadata()["attribute:early#units"], "m");
}

/// Two synced files of one growing tensor whose steps are without number.
#[test]
fn more_steps_than_can_be_counted_are_refused() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("run.safetensors");
    let directory = synced_directory(&path);
    fs::create_dir(&directory).unwrap();
    let options = options().metadata([("safetensors_bridge.axis.w", "0")]);
    let many = TensorBuf::from_vec(vec![usize::MAX, 0], Vec::<u8>::new()).unwrap();
    for number in 1..=2 {
        save(directory.join(file_name(number)), [("w", &many)], &options).unwrap();
    }
    let error = recover_synced(&path, &path, &options).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
}

/// Looking for each name among all others takes minutes.
#[test]
fn recovery_takes_a_time_in_proportion_to_the_names() {
    const NAMES: u32 = 40_000;
    let dir = tempdir().unwrap();
    let path = dir.path().join("run.safetensors");
    let writer = GrowingWriter::create(&path, &options()).unwrap();
    for i in 0..NAMES {
        writer
            .grow(&format!("a tensor with a name that is not short {i}"), Dtype::U8, 0, &[])
            .unwrap();
    }
    writer.sync().unwrap();
    drop(writer);
    let start = Instant::now();
    recover_synced(&path, &path, &options()).unwrap();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!(Checkpoint::open(&path).unwrap().len(), NAMES as usize);
}
