//! Synced steps that are left over, removed by another program, or put back.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{MARK, file_name, synced_directory};
use crate::checkpoint::Checkpoint;
use crate::file::io::failpoint::{Interrupted, crash_at, interrupt_everywhere, without};
use crate::file::io::testing::{copy_all, directory_in_memory, names_in, place};
use crate::file::save::growing::GrowingWriter;
use crate::file::save::{SaveOptions, save};
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::{TensorBuf, TensorView};
use crate::model::edit::Edit;

fn options() -> SaveOptions {
    SaveOptions::new().durable(false)
}

fn resume(path: &Path) -> GrowingWriter {
    GrowingWriter::resume(path, &options()).unwrap()
}

type Open = fn(&Path, &SaveOptions) -> Result<GrowingWriter>;

const CREATE: Open = |path, options| GrowingWriter::create(path, options);
const RESUME: Open = |path, options| GrowingWriter::resume(path, options);

/// Adds three steps to two tensors that grow, two of them synced, and a complete tensor.
fn run(path: &Path, open: Open, fill: u8) -> Result<()> {
    let writer = open(path, &options())?.sync_every(1);
    writer.metadata([("title", "a run")]);
    let rows = writer.grow("rows", Dtype::U8, 0, &[2])?;
    let columns = writer.grow("columns", Dtype::U16, 1, &[2])?;
    writer.add(&format!("x {}", rows.steps()), &TensorView::from_slice(&[2], &[fill; 2])?)?;
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

/// Returns the names and bytes of all files below a directory.
fn content(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for name in names_in(directory) {
        let path = directory.join(&name);
        found.push((name, fs::read(&path).unwrap_or_default()));
        if path.is_dir() {
            found.extend(content(&path));
        }
    }
    found
}

/// A directory for each state in which a run can be killed, after a run of these.
fn killed(before: &[(Open, u8)], open: Open) -> Vec<(&'static str, TempDir)> {
    let (mut killed, mut seen) = (Vec::new(), HashSet::new());
    for n in 0.. {
        let (dir, path) = place("run.safetensors");
        before.iter().for_each(|&(open, fill)| run(&path, open, fill).unwrap());
        match crash_at(n, || run(&path, open, 1)) {
            (_, Some(step)) => {
                if seen.insert(content(dir.path())) {
                    killed.push((step, dir));
                }
            }
            (result, None) => {
                result.unwrap();
                break;
            }
        }
    }
    killed
}

/// Wherever a run is killed, and wherever each run that continues it is killed or fails, no synced
/// step is lost, a finished file does not get shorter, and the next start succeeds.
#[test]
fn whatever_is_left_a_start_goes_on() {
    let (mut recovered, mut finished, mut one_by_one) = (0, 0, 0);
    for (before, open) in [
        (&[][..], CREATE),
        (&[(CREATE, 7)], CREATE),
        // A file with the same header.
        (&[(CREATE, 1)], CREATE),
        (&[(CREATE, 7)], RESUME),
    ] {
        for (killed_at, dir) in killed(before, open) {
            let path = dir.path().join("run.safetensors");
            let directory = synced_directory(&path);
            let synced =
                names_in_or_none(&directory).filter(|name| !name.starts_with('.') && name != MARK);
            let kept = if open as usize == RESUME as usize { 3 } else { 0 };
            // The steps that the next start has to find, at least.
            let least = match synced.count() {
                0 if path.exists() => steps(&path),
                0 => 0,
                synced => kept + synced,
            };
            let old = path.exists().then(|| steps(&path));
            let setup = || {
                let copy = directory_in_memory();
                copy_all(dir.path(), &copy.path().join("copy"));
                copy
            };
            let start = |copy: &TempDir| {
                GrowingWriter::resume(copy.path().join("copy/run.safetensors"), &options())
                    .map(drop)
            };
            // The second start finds the disk full.
            let full = |copy: &TempDir| without("space for directories", || start(copy));
            let mut check =
                |copy: TempDir, interrupted: Option<Interrupted>, result: Result<()>| {
                    let path = copy.path().join("copy/run.safetensors");
                    assert!(interrupted.is_some() || result.is_ok(), "{killed_at}: {result:?}");
                    drop(resume(&path));
                    let found = if path.exists() { steps(&path) } else { 0 };
                    assert!(found >= least, "{killed_at} {interrupted:?}: {found}, {least}");
                    let is_grown =
                        open as usize != RESUME as usize || old.is_none_or(|old| found >= old);
                    assert!(is_grown, "{killed_at} {interrupted:?}: {found}, {old:?}");
                    let names = names_in(&copy.path().join("copy"));
                    assert!(names.iter().all(|name| name == "run.safetensors"), "{names:?}");
                    recovered += usize::from(old != Some(found));
                    finished += usize::from(old == Some(found));
                };
            let steps = interrupt_everywhere(setup, start, &mut check);
            // A recovery removes them as a finished run does, after many other steps.
            if steps.first() != Some(&"remove synced steps") {
                continue;
            }
            let steps = interrupt_everywhere(setup, full, &mut check);
            one_by_one += steps.iter().filter(|step| **step == "remove a synced file").count();
        }
    }
    assert!(recovered > 20 && finished > 20, "{recovered} {finished}");
    assert!(one_by_one > 10, "{one_by_one}");
}

fn names_in_or_none(directory: &Path) -> impl Iterator<Item = String> {
    if directory.exists() { names_in(directory) } else { Vec::new() }.into_iter()
}

/// A failure after the new file is in its place leaves steps that the next call, or the next start,
/// removes.
#[test]
fn steps_that_could_not_be_removed_are_removed_by_the_next_call() {
    let mut left = 0;
    let setup = || directory_in_memory();
    let act = |dir: &TempDir| {
        let writer = GrowingWriter::create(dir.path().join("run.safetensors"), &options())?;
        writer.add("x", &TensorView::from_slice(&[1], &[7_u8])?)?;
        writer.sync()?;
        let first = writer.finish();
        if first.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::LeftBehind(_))) {
            assert!(names_in(dir.path()).len() >= 3);
            writer.add("y", &TensorView::from_slice(&[1], &[7_u8])?).unwrap_err();
            left += 1;
            _ = writer.finish();
        }
        first
    };
    interrupt_everywhere(setup, act, |dir, at, _| {
        let path = dir.path().join("run.safetensors");
        if at.is_some_and(|at| at.step == "remove synced steps" && !at.killed) {
            assert_eq!(names_in(dir.path()), ["run.safetensors"]);
        }
        drop(resume(&path));
        assert!(names_in(dir.path()).iter().all(|name| name == "run.safetensors"), "{at:?}");
    });
    assert!(left >= 2, "{left}");
}

/// The values decide: an old file of the same header is not the one that was about to be finished.
/// And the header of the one that was finished may have changed since.
#[test]
fn the_finished_file_is_recognised_by_its_values() {
    let (mut replaced, mut edited) = (0, 0);
    for (step, dir) in killed(&[(CREATE, 9)], CREATE) {
        let path = dir.path().join("run.safetensors");
        if !synced_directory(&path).join(MARK).exists() {
            continue;
        }
        let first = Checkpoint::open(&path).unwrap().tensor("rows").unwrap().read().unwrap();
        let is_old = first.bytes()[0] == 9;
        if !is_old {
            Edit::open(&path).unwrap().set_metadata([("k", "v")]).apply().unwrap();
        }
        drop(resume(&path));
        assert_eq!(steps(&path), if is_old { 2 } else { 3 }, "{step}");
        let metadata = Checkpoint::open(&path).unwrap().metadata().clone();
        assert_eq!(metadata.contains_key("k"), !is_old, "{step}");
        replaced += usize::from(is_old);
        edited += usize::from(!is_old);
    }
    assert!(replaced > 0 && edited > 0, "{replaced} {edited}");
}

/// Another program has written a file to the path of a killed run.
#[test]
fn a_file_that_is_newer_than_the_steps_is_not_replaced() {
    let (_dir, path) = place("run.safetensors");
    let writer = resume(&path);
    writer.add("x", &TensorView::from_slice(&[1], &[7_u8]).unwrap()).unwrap();
    writer.sync().unwrap();
    drop(writer);
    for content in [&b""[..], b"not a file of tensors"] {
        fs::write(&path, content).unwrap();
        let later = std::time::SystemTime::now() + Duration::from_secs(1);
        fs::File::options().append(true).open(&path).unwrap().set_modified(later).unwrap();
        for _ in 0..2 {
            let error = GrowingWriter::resume(&path, &options()).unwrap_err();
            assert!(error.to_string().contains("move one of the two away"), "{error}");
            assert_eq!(error.file(), path.to_str());
        }
        assert_eq!(fs::read(&path).unwrap(), content);
    }
    fs::remove_file(&path).unwrap();
    drop(resume(&path));
    assert_eq!(Checkpoint::open(&path).unwrap().len(), 1);
}

/// Another program has removed some of the steps, before or after the file is in place.
#[test]
fn a_part_of_the_steps_never_makes_a_file_shorter_nor_a_start_fail_for_ever() {
    const FILES: u32 = 4;
    let (mut failed, mut whole) = (0, 0);
    for subset in 0..1_u32 << (FILES + 1) {
        for (is_finished, is_damaged) in [(false, false), (true, false), (false, true)] {
            let (dir, path) = place("run.safetensors");
            let directory = synced_directory(&path);
            let writer = resume(&path);
            let time = writer.grow("time", Dtype::U8, 0, &[]).unwrap();
            for step in 0..2 * FILES as u8 {
                time.append(&TensorView::from_slice(&[], &[step]).unwrap()).unwrap();
                if step % 2 == 1 {
                    writer.sync().unwrap();
                }
            }
            fs::write(directory.join(MARK), FILES.to_string()).unwrap();
            if is_finished {
                copy_all(&directory, &dir.path().join("copy"));
                writer.finish().unwrap();
                fs::rename(dir.path().join("copy"), &directory).unwrap();
            }
            drop(writer);
            let names = (1..=FILES).map(file_name).chain([MARK.to_owned()]);
            for (at, name) in names.enumerate().filter(|(at, _)| subset >> at & 1 == 0) {
                match at < FILES as usize && is_damaged {
                    true => fs::write(directory.join(name), "").unwrap(),
                    false => fs::remove_file(directory.join(name)).unwrap(),
                }
            }
            let left = names_in(&directory);
            let first = GrowingWriter::resume(&path, &options()).map(drop);
            if let Err(error) = &first {
                let text = error.to_string();
                assert!(
                    text.contains("are incomplete") && text.contains(".incomplete-1"),
                    "{text}"
                );
                // Nothing was destroyed.
                assert_eq!(names_in(&dir.path().join("run.safetensors.incomplete-1")), left);
                failed += 1;
            }
            let writer = resume(&path);
            let time = writer.grow("time", Dtype::U8, 0, &[]).unwrap();
            let expected = match subset & 0b1111 {
                _ if is_finished => 8,
                0b1111 => 8,
                // Nobody can know that there were more.
                prefix @ (0b1 | 0b11 | 0b111) if first.is_ok() && !is_damaged => {
                    2 * prefix.trailing_ones()
                }
                _ => 0,
            };
            assert_eq!(time.steps(), u64::from(expected), "{subset:b} {is_finished} {first:?}");
            whole += usize::from(first.is_ok());
        }
    }
    assert!(failed > 20 && whole > 10, "{failed} {whole}");
}

/// A directory of synced steps may have files of others, which stay.
#[test]
fn files_of_others_stay() {
    let (dir, path) = place("run.safetensors");
    let directory = synced_directory(&path);
    fs::create_dir(&directory).unwrap();
    let notes = directory.join("notes.txt");
    for runs in 1..3 {
        fs::write(&notes, "precious").unwrap();
        run(&path, RESUME, 1).unwrap();
        assert_eq!((names_in(&directory), steps(&path)), (vec!["notes.txt".to_owned()], 3 * runs));
    }
    fs::remove_file(&notes).unwrap();
    drop(resume(&path));
    assert_eq!(names_in(dir.path()), ["run.safetensors"]);
    // Something else in its place is found before anything is written.
    fs::write(&directory, "a file").unwrap();
    let error = GrowingWriter::resume(&path, &options()).unwrap_err();
    assert_eq!(error.file(), directory.to_str(), "{error}");
}

#[cfg(unix)]
#[test]
fn names_of_255_bytes_are_synced_and_go_on() {
    let dir = directory_in_memory();
    for len in [240, 247, 248, 249, 255] {
        let names = ["a", "b"].map(|end| "x".repeat(len - 1) + end);
        for name in names.iter().chain(&names) {
            let path = dir.path().join(name);
            let writer = resume(&path);
            let time = writer.grow("time", Dtype::U8, 0, &[]).unwrap();
            time.append(&TensorView::from_slice(&[], &[1_u8]).unwrap()).unwrap();
            writer.sync().unwrap();
        }
        for name in &names {
            let writer = resume(&dir.path().join(name));
            assert_eq!(writer.grow("time", Dtype::U8, 0, &[]).unwrap().steps(), 2);
            writer.finish().unwrap();
        }
        assert_eq!(names_in(dir.path()), names);
        names.iter().for_each(|name| fs::remove_file(dir.path().join(name)).unwrap());
    }
    GrowingWriter::resume(dir.path().join("x".repeat(256)), &options()).unwrap_err();
}

/// Another program tidies up while a run is under way.
#[test]
fn steps_that_were_removed_are_synced_again() {
    for removes_directory in [true, false] {
        let (dir, path) = place("run.safetensors");
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
        // As if the process was killed now.
        let other = dir.path().join("other.safetensors");
        copy_all(&synced, &synced_directory(&other));
        drop(resume(&other));
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
    let (_dir, path) = place("run.safetensors");
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
    drop(resume(&path));
    let recovered = Checkpoint::open(&path).unwrap();
    let shape = |name| recovered.tensor(name).unwrap().shape().to_vec();
    assert_eq!((shape("early"), shape("late")), (vec![3, 0, 2], vec![0]));
    assert_eq!(recovered.metadata()["attribute:early#units"], "m");
}

/// Two synced files of a growing tensor with more steps than can be counted.
#[test]
fn more_steps_than_can_be_counted_are_refused() {
    let (_dir, path) = place("run.safetensors");
    let directory = synced_directory(&path);
    fs::create_dir(&directory).unwrap();
    let options = options().metadata([("safetensors_bridge.axis.w", "0")]);
    let many = TensorBuf::from_vec(vec![usize::MAX, 0], Vec::<u8>::new()).unwrap();
    for number in 1..=2 {
        save(directory.join(file_name(number)), [("w", &many)], &options).unwrap();
    }
    let error = GrowingWriter::resume(&path, &options).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io(_)), "{error}");
}

/// Looking for each name among all others takes minutes.
#[test]
fn recovery_takes_a_time_in_proportion_to_the_names() {
    const NAMES: u32 = 40_000;
    let (_dir, path) = place("run.safetensors");
    let writer = GrowingWriter::create(&path, &options()).unwrap();
    for i in 0..NAMES {
        let name = format!("a tensor with a name that is not short {i}");
        writer.grow(&name, Dtype::U8, 0, &[]).unwrap();
    }
    writer.sync().unwrap();
    drop(writer);
    let start = Instant::now();
    drop(resume(&path));
    let took = start.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!(Checkpoint::open(&path).unwrap().len(), NAMES as usize);
}
