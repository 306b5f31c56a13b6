//! What a [`GrowingWriter`] writes, against tensors that are put together in memory.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use tempfile::tempdir;

use super::GrowingWriter;
use super::body::ROOM;
use super::synced::{file_name, synced_directory};
use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::error::{ErrorKind, Result};
use crate::io::SafeTensors;
use crate::io::failpoint::{interrupt_everywhere, without};
use crate::io::testing::names_in;
use crate::save::SaveOptions;
use crate::tensor::{TensorBuf, TensorView};

fn create(path: &Path) -> GrowingWriter {
    GrowingWriter::create(path, &SaveOptions::new()).unwrap()
}

fn resume(path: &Path) -> GrowingWriter {
    GrowingWriter::resume(path, &SaveOptions::new()).unwrap()
}

/// Bytes that are valid for every dtype.
fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed) % 2) as u8).collect()
}

/// Every tensor can be borrowed as what it is.
fn check_aligned(file: &[u8]) {
    let archive = SafeTensors::parse(file).unwrap();
    let start = archive.header().iter().map(|info| (info.dtype(), info.data_offsets().start));
    let first = 8 + u64::from_le_bytes(file[..8].try_into().unwrap());
    for (dtype, offset) in start {
        assert_eq!((first + offset) % dtype.alignment() as u64, 0, "{dtype} at {offset}");
    }
}

#[test]
fn tensors_of_all_dtypes_and_odd_lengths_are_aligned() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let writer = create(&path);
    let mut expected = Vec::new();
    let growing = writer.grow("growing", Dtype::U16, 0, &[3]).unwrap();
    for (i, &dtype) in Dtype::ALL.iter().enumerate() {
        for count in [1, 0, 4, 12, 7] {
            let bits = dtype.bits() as usize * count;
            if !bits.is_multiple_of(8) {
                continue;
            }
            let (name, data) = (format!("{dtype} {count}"), bytes(bits / 8, i + count));
            let shape = [count];
            writer.add(&name, &TensorView::new(dtype, &shape, &data).unwrap()).unwrap();
            expected.push((name, dtype, count, data));
        }
        growing.append(&TensorBuf::from_vec(vec![3], vec![i as u16; 3]).unwrap()).unwrap();
    }
    writer.metadata([("title", "all"), ("title", "every dtype")]);
    writer.attribute("U8 4", "units", "m").unwrap();
    writer.finish().unwrap();
    let file = fs::read(&path).unwrap();
    check_aligned(&file);
    let archive = SafeTensors::parse(&file).unwrap();
    for (name, dtype, count, data) in &expected {
        let view = archive.view(name).unwrap();
        assert_eq!((view.dtype(), view.shape(), view.data()), (*dtype, &[*count][..], &data[..]));
    }
    assert_eq!(archive.tensors().len(), expected.len() + 1);
    assert_eq!(archive.view("growing").unwrap().shape(), [Dtype::ALL.len(), 3]);
    assert_eq!(archive.metadata()["title"], "every dtype");
    assert_eq!(archive.metadata()["attribute:U8 4#units"], "m");
    // A small file has no more header than it needs.
    assert!(archive.header().data_start() < ROOM / 2);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn the_header_finds_room_whatever_its_length() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    for (large, many, expected) in [
        (0, 0, 8..100),
        (0, 2000, ROOM..1 << 20),
        (5 << 20, 3, ROOM..ROOM + 1),
        (5 << 20, 2000, ROOM + 1..1 << 20),
    ] {
        let options = SaveOptions::new().digests(many == 2000);
        let writer = GrowingWriter::create(&path, &options).unwrap();
        let data: Vec<u8> = (0..large).map(|i| (i % 251) as u8).collect();
        if large > 0 {
            writer.add("large", &TensorView::from_slice(&[large], &data).unwrap()).unwrap();
        }
        for i in 0..many {
            writer.add(&format!("{i}"), &TensorBuf::from_vec(vec![], vec![i]).unwrap()).unwrap();
        }
        writer.finish().unwrap();
        let file = fs::read(&path).unwrap();
        let archive = SafeTensors::parse(&file).unwrap();
        let start = archive.header().data_start();
        assert!(expected.contains(&start), "{start} {expected:?}");
        if large > 0 {
            assert!(archive.view("large").unwrap().data() == data);
        }
        for i in 0..many {
            assert_eq!(archive.view(&format!("{i}")).unwrap().data(), i32::to_le_bytes(i));
        }
        if many == 2000 {
            let checkpoint = Checkpoint::open(&path).unwrap();
            let digests = crate::hash::TensorDigests::from_metadata(checkpoint.metadata());
            let digests = digests.unwrap().unwrap();
            for tensor in archive.tensors() {
                let data = tensor.view().unwrap();
                let digest = crate::hash::Digest::of(data.data());
                assert_eq!(digests.get(tensor.name()), Some(&digest));
            }
        }
    }
}

/// A tensor that grows, and the bytes of its steps.
#[derive(Clone, Debug)]
pub(super) struct Grown {
    pub(super) dtype: Dtype,
    pub(super) axis: usize,
    pub(super) step_shape: Vec<usize>,
    pub(super) steps: usize,
}

impl Grown {
    pub(super) fn step(&self, step: usize) -> Vec<u8> {
        let elements: usize = self.step_shape.iter().product();
        bytes(elements * self.dtype.bits() as usize / 8, step * 7)
    }

    /// The tensor of the first steps, element by element.
    pub(super) fn expected(&self, steps: usize) -> (Vec<usize>, Vec<u8>) {
        let mut shape = self.step_shape.clone();
        shape.insert(self.axis, steps);
        let outer: usize = self.step_shape[..self.axis].iter().product();
        let inner: usize =
            self.step_shape[self.axis..].iter().product::<usize>() * self.dtype.bits() as usize / 8;
        let all: Vec<_> = (0..steps).map(|step| self.step(step)).collect();
        let rows = (0..outer).flat_map(|row| {
            all.iter().flat_map(move |step| step[row * inner..(row + 1) * inner].to_vec())
        });
        (shape, rows.collect())
    }
}

pub(super) fn grown() -> impl Strategy<Value = Grown> {
    let dtype = prop_oneof![
        Just(Dtype::F64),
        Just(Dtype::F32),
        Just(Dtype::U16),
        Just(Dtype::BOOL),
        Just(Dtype::C64)
    ];
    // Some steps are larger than what is held in memory.
    let shape = prop_oneof![
        10 => prop::collection::vec(0..5_usize, 0..4),
        1 => Just(vec![2, 9_000]),
        1 => Just(vec![40_001]),
    ];
    (dtype, shape, 0..4_usize, 0..6_usize).prop_map(|(dtype, step_shape, axis, steps)| Grown {
        dtype,
        axis: axis.min(step_shape.len()),
        step_shape,
        steps,
    })
}

/// Appends all steps, of all tensors in turn.
fn append_all(writer: &GrowingWriter, tensors: &[Grown], by: usize) -> Result<()> {
    let growing = tensors
        .iter()
        .enumerate()
        .map(|(i, t)| writer.grow(&format!("{i}"), t.dtype, t.axis, &t.step_shape))
        .collect::<Result<Vec<_>>>()?;
    let most = tensors.iter().map(|t| t.steps).max().unwrap_or(0);
    for first in (0..most).step_by(by) {
        writer.add(&format!("whole {first}"), &TensorView::from_slice(&[1], &[first as u8])?)?;
        for (tensor, growing) in tensors.iter().zip(&growing) {
            let last = (first + by).min(tensor.steps);
            let steps = first.min(last)..last;
            let data: Vec<u8> = steps.clone().flat_map(|step| tensor.step(step)).collect();
            let shape: Vec<usize> =
                std::iter::once(steps.len()).chain(tensor.step_shape.iter().copied()).collect();
            if by == 1 && !steps.is_empty() {
                growing.append(&TensorView::new(tensor.dtype, &tensor.step_shape, &data)?)?;
            } else {
                growing.extend(&TensorView::new(tensor.dtype, &shape, &data)?)?;
            }
        }
    }
    Ok(())
}

pub(super) fn check_grown(path: &Path, tensors: &[Grown], steps: impl Fn(&Grown) -> usize) {
    let file = fs::read(path).unwrap();
    check_aligned(&file);
    let archive = SafeTensors::parse(&file).unwrap();
    for (i, tensor) in tensors.iter().enumerate() {
        let (shape, data) = tensor.expected(steps(tensor));
        let view = archive.view(&format!("{i}")).unwrap();
        assert_eq!((view.dtype(), view.shape()), (tensor.dtype, &shape[..]));
        assert!(view.data() == data, "{tensor:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: 40, ..ProptestConfig::default()
    })]

    #[test]
    fn tensors_grow_along_any_dimension(
        tensors in prop::collection::vec(grown(), 0..4),
        by in 1..3_usize,
    ) {
        let dir = tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        let writer = create(&path);
        append_all(&writer, &tensors, by).unwrap();
        writer.finish().unwrap();
        check_grown(&path, &tensors, |tensor| tensor.steps);
    }

    #[test]
    fn what_was_synced_is_recovered(
        tensors in prop::collection::vec(grown(), 1..4),
        every in 1..3_u64,
    ) {
        let dir = tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        let writer = create(&path).sync_every(every);
        append_all(&writer, &tensors, 1).unwrap();
        writer.sync().unwrap();
        drop(writer);
        prop_assert!(!path.exists());
        let error = GrowingWriter::create(&path, &SaveOptions::new()).unwrap_err();
        prop_assert!(matches!(error.kind(), ErrorKind::SyncedStepsLeft { .. }), "{}", error);
        // A tensor without steps comes back, too.
        resume(&path);
        check_grown(&path, &tensors, |tensor| tensor.steps);
        prop_assert_eq!(names_in(dir.path()), ["a.safetensors"]);
    }
}

#[test]
fn finishing_removes_what_was_synced() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let tensors = [
        Grown { dtype: Dtype::F32, axis: 1, step_shape: vec![3, 2], steps: 7 },
        Grown { dtype: Dtype::F64, axis: 0, step_shape: vec![], steps: 7 },
    ];
    // Each pass adds a tensor, so a sync takes twice as many steps.
    let writer = create(&path).sync_every(1);
    append_all(&writer, &tensors, 1).unwrap();
    let synced = synced_directory(&path);
    let files: Vec<_> = fs::read_dir(&synced).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 3);
    for file in files {
        let file = Checkpoint::open(file).unwrap();
        assert_eq!(file.tensor("0").unwrap().shape(), [3, 2, 2]);
        assert_eq!(file.tensor("1").unwrap().shape(), [2]);
    }
    writer.finish().unwrap();
    assert!(!synced.exists());
    check_grown(&path, &tensors, |tensor| tensor.steps);
    assert!(Checkpoint::open(&path).unwrap().metadata().is_empty());

    // Another writer may begin. This one takes nothing more, and finishes once.
    create(&path);
    let one = TensorBuf::from_vec(vec![], vec![1_u8]).unwrap();
    for error in [
        writer.add("more", &one).unwrap_err(),
        writer.grow("more", Dtype::U8, 0, &[]).unwrap_err(),
        writer.attribute("0", "units", "m").unwrap_err(),
        writer.sync().unwrap_err(),
    ] {
        assert!(matches!(error.kind(), ErrorKind::AlreadyFinished), "{error}");
        assert_eq!(error.file(), path.to_str());
    }
    writer.finish().unwrap();
    check_grown(&path, &tensors, |tensor| tensor.steps);
}

#[test]
fn what_is_refused_leaves_the_file_as_it_was() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    fs::write(&path, "old").unwrap();
    let writer = create(&path);
    let one = TensorBuf::from_vec(vec![1], vec![1.0_f64]).unwrap();
    writer.add("a", &one).unwrap();
    let grown = writer.grow("g", Dtype::F32, 0, &[2]).unwrap();
    let check = |error: crate::Error, tensor, expected: &str| {
        assert_eq!((error.file(), error.tensor()), (path.to_str(), Some(tensor)));
        assert!(error.to_string().ends_with(expected), "{error}");
    };
    check(writer.add("a", &one).unwrap_err(), "a", "duplicate tensor name");
    check(writer.grow("g", Dtype::U8, 0, &[]).unwrap_err(), "g", "duplicate tensor name");
    check(writer.add("__metadata__", &one).unwrap_err(), "__metadata__", "reserved by the format");
    check(
        writer.grow("h", Dtype::U8, 2, &[3]).unwrap_err(),
        "h",
        "there is no dimension 2 in a tensor of 2 dimensions",
    );
    let packed = writer.grow("h", Dtype::F4, 1, &[2, 3]).unwrap_err();
    check(packed, "h", "F4 elements of shape [3] do not fill whole bytes");
    check(grown.append(&one).unwrap_err(), "g", "expected dtype F32, found F64");
    let wrong = TensorBuf::from_vec(vec![3], vec![1.0_f32; 3]).unwrap();
    check(grown.append(&wrong).unwrap_err(), "g", "expected shape [2], found [3]");
    let attribute = writer.attribute("a", "x#y", "z").unwrap_err();
    check(attribute, "a", r##"must not have '#' in it, found "x#y""##);
    let error = writer.attribute("gg", "units", "m").unwrap_err();
    assert_eq!(error.similar(), ["g"]);
    drop(writer);
    assert_eq!(fs::read(&path).unwrap(), b"old");

    let writer = create(&path);
    writer.add("a", &one).unwrap();
    drop(writer);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

    // The same calls, without those that were refused.
    let writer = create(&path);
    writer.add("a", &one).unwrap();
    let grown = writer.grow("g", Dtype::F32, 0, &[2]).unwrap();
    grown.append(&wrong).unwrap_err();
    grown.append(&TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0]).unwrap()).unwrap();
    writer.finish().unwrap();
    let found = Checkpoint::open(&path).unwrap().tensor("g").unwrap().read().unwrap();
    assert_eq!(found.into_vec::<f32>().unwrap(), [1.0, 2.0]);
}

/// Calls a function again if it fails.
fn twice<T>(mut f: impl FnMut() -> Result<T>) -> Result<T> {
    f().or_else(|_| f())
}

type Open = fn(&Path, &SaveOptions) -> Result<GrowingWriter>;

const SMALL: usize = 8;

/// A run that tries everything twice. Two of three steps are synced.
fn run(path: &Path, large: usize, open: Open) -> Result<()> {
    // Only the small file waits for the disk.
    let options = SaveOptions::new().durable(large == SMALL);
    let writer = twice(|| open(path, &options))?;
    let data = bytes(large, 1);
    let shape = [large];
    let view = TensorView::new(Dtype::U8, &shape, &data)?;
    let tensors = [
        writer.grow("tail", Dtype::U8, 0, &[large])?,
        writer.grow("spill", Dtype::U8, 0, &[large])?,
        writer.grow("columns", Dtype::U8, 1, &[2, large / 2])?,
    ];
    twice(|| writer.add("small", &TensorView::from_slice(&[3], &[1_u8; 3])?))?;
    let shape = [2, large / 2];
    let rows = TensorView::new(Dtype::U8, &shape, &data)?;
    for step in 0..3 {
        for (tensor, step) in tensors.iter().zip([&view, &view, &rows]) {
            twice(|| tensor.append(step))?;
        }
        if step == 1 {
            twice(|| writer.sync())?;
        }
    }
    twice(|| writer.finish())
}

/// The number of steps in the finished file, if it is whole.
fn steps_of_run(path: &Path, large: usize) -> usize {
    let file = SafeTensors::parse(fs::read(path).unwrap()).unwrap();
    let steps = file.view("tail").unwrap().shape()[0];
    let data = bytes(large, 1);
    for name in ["tail", "spill"] {
        assert!(file.view(name).unwrap().data() == data.repeat(steps), "{name}");
    }
    let columns: Vec<u8> = data.chunks(large / 2).flat_map(|row| row.repeat(steps)).collect();
    assert!(file.view("columns").unwrap().data() == columns);
    assert_eq!(file.view("small").unwrap().data(), [1; 3]);
    steps
}

/// One failure does not end a run, whatever fails. A killed run leaves the old file or the new one,
/// and what it has synced.
#[test]
fn a_run_that_is_interrupted_anywhere_loses_nothing() {
    let begin: Open = |path, options| GrowingWriter::create(path, options);
    let go_on: Open = |path, options| GrowingWriter::resume(path, options);
    // The data of the first two move to the start of the file. Those of the last stay.
    for (large, system, open) in
        [(SMALL, "", begin), (SMALL + 1024, "files without a name", go_on), (600 << 10, "", go_on)]
    {
        let (mut finished, mut recovered) = (0, 0);
        let setup = || {
            let dir = tempdir().unwrap();
            if large == SMALL {
                fs::write(dir.path().join("a.safetensors"), "old").unwrap();
            }
            dir
        };
        let act = |dir: &tempfile::TempDir| {
            without(system, || run(&dir.path().join("a.safetensors"), large, open))
        };
        interrupt_everywhere(setup, act, |dir, interrupted, result| {
            let path = dir.path().join("a.safetensors");
            let is_new = fs::read(&path).is_ok_and(|file| file != b"old");
            let is_killed = interrupted.is_some_and(|at| at.killed);
            assert!(is_killed || result.is_ok(), "{interrupted:?} {result:?}");
            let is_synced = synced_directory(&path).join(file_name(1)).exists();
            if is_new || is_synced {
                drop(resume(&path));
                let steps = steps_of_run(&path, large);
                assert_eq!(steps, if is_new { 3 } else { 2 }, "{interrupted:?}");
                finished += usize::from(is_killed && is_new);
                recovered += usize::from(!is_new);
                drop(create(&path));
                assert_eq!(names_in(dir.path()), ["a.safetensors"], "{interrupted:?}");
            }
        });
        assert!(finished > 0 && recovered > 2, "{finished} {recovered}");
    }
}

/// A file that was there must stay, and what cannot be finished can still be synced.
#[test]
fn a_writer_that_cannot_finish_goes_on() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let writer = GrowingWriter::create(&path, &SaveOptions::new().overwrite(false)).unwrap();
    let time = writer.grow("time", Dtype::U8, 0, &[]).unwrap();
    let append = |step: u8| time.append(&TensorView::from_slice(&[], &[step]).unwrap()).unwrap();
    append(0);
    fs::write(&path, "another file").unwrap();
    for step in 1..3 {
        let error = writer.finish().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::FileExists), "{error}");
        assert_eq!(error.file(), path.to_str());
        append(step);
        writer.sync().unwrap();
    }
    assert_eq!(fs::read(&path).unwrap(), b"another file");
    fs::remove_file(&path).unwrap();
    append(3);
    writer.finish().unwrap();
    assert_eq!(names_in(dir.path()), ["a.safetensors"]);
    let found = Checkpoint::open(&path).unwrap().tensor("time").unwrap().read().unwrap();
    assert_eq!(found.into_vec::<u8>().unwrap(), [0, 1, 2, 3]);
}

/// The data move when the header outgrows its room, and can still be appended to.
#[test]
fn a_large_file_whose_header_outgrows_its_room_goes_on_after_a_failure() {
    for system in ["", "inserting"] {
        let dir = tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        let writer = GrowingWriter::create(&path, &SaveOptions::new().overwrite(false)).unwrap();
        let data = bytes(3 << 20, 1);
        let view = TensorView::new(Dtype::U8, &[3 << 20], &data).unwrap();
        let tail = writer.grow("tail", Dtype::U8, 0, &[3 << 20]).unwrap();
        let add = |name: &str| {
            writer
                .add(name, &TensorView::from_slice(&[8], &[name.len() as u8; 8]).unwrap())
                .unwrap();
        };
        (0..300).for_each(|i| add(&format!("before {i}")));
        tail.extend(&TensorView::new(Dtype::U8, &[1, 3 << 20], &data).unwrap()).unwrap();
        tail.append(&view).unwrap();
        fs::write(&path, "another file").unwrap();
        for attempt in 0..2 {
            without(system, || writer.finish()).unwrap_err();
            tail.append(&view).unwrap();
            (0..300).for_each(|i| add(&format!("after {attempt} {i}")));
        }
        fs::remove_file(&path).unwrap();
        without(system, || writer.finish()).unwrap();
        let file = SafeTensors::parse(fs::read(&path).unwrap()).unwrap();
        assert!(file.view("tail").unwrap().data() == data.repeat(4), "{system}");
        assert_eq!(file.tensors().len(), 901);
        for tensor in file.views().filter(|(name, _)| *name != "tail") {
            assert_eq!(tensor.1.data(), [tensor.0.len() as u8; 8], "{}", tensor.0);
        }
    }
}

/// A loop that appends to arrays of unlike rates, each with the number of the pass.
type Pass = fn(&mut dyn FnMut(&str, u8), u8);

/// However the arrays grow, a run that goes on where the last sync was writes what one run does.
#[test]
fn a_sync_never_cuts_a_pass_in_two() {
    let passes: [Pass; 8] = [
        |push, i| push("time", i),
        |push, i| ["time", "heat", "flow"].iter().for_each(|name| push(name, i)),
        // Slow arrays before and after fast ones, also if the first pass does not have them.
        |push, i| {
            if i % 10 == 0 {
                push("snap", i);
            }
            push("time", i);
        },
        |push, i| {
            push("time", i);
            if i % 10 == 0 {
                push("snap", i);
            }
        },
        |push, i| {
            if i % 10 == 9 {
                push("snap", i);
            }
            push("time", i);
        },
        |push, i| {
            if i % 7 == 6 {
                push("snap", i);
            }
            push("time", i);
            push("heat", i);
            if i % 10 == 9 {
                push("mean", i);
            }
        },
        |push, i| {
            if i % 20 == 0 {
                push("rare", i);
            }
            if i % 3 == 0 {
                push("snap", i);
            }
            push("time", i);
        },
        // Whole tensors, of which none may be missing or come twice.
        |push, i| {
            if i % 8 == 5 {
                push("whole", i);
            }
            push("time", i);
        },
    ];
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    for (number, pass) in passes.into_iter().enumerate() {
        for killed_at in 0..60 {
            let every = (killed_at + number) as u64 % 5 + 1;
            let mut left = killed_at;
            let mut firsts = Vec::new();
            for _ in 0..2 {
                let options = SaveOptions::new().durable(false);
                let writer = GrowingWriter::resume(&path, &options).unwrap().sync_every(every);
                let names = ["time", "heat", "flow", "snap", "mean", "rare"];
                let tensors = names.map(|name| writer.grow(name, Dtype::U8, 0, &[]).unwrap());
                let first = tensors[0].steps() as u8;
                firsts.push(first);
                'run: for i in first..40 {
                    let mut is_killed = false;
                    pass(
                        &mut |name, i| {
                            is_killed |= left == 0;
                            if is_killed {
                                return;
                            }
                            left -= 1;
                            let step =
                                TensorView::from_slice(&[], std::slice::from_ref(&i)).unwrap();
                            match names.iter().position(|&known| known == name) {
                                Some(at) => tensors[at].append(&step).unwrap(),
                                None => writer.add(&format!("whole {i}"), &step).unwrap(),
                            }
                        },
                        i,
                    );
                    if is_killed {
                        break 'run;
                    }
                }
                if left > 0 {
                    writer.finish().unwrap();
                }
                left = usize::MAX;
            }
            let mut expected = std::collections::BTreeMap::<_, Vec<u8>>::new();
            for i in 0..40 {
                pass(
                    &mut |name, i| match name {
                        "whole" => _ = expected.insert(format!("whole {i}"), vec![i]),
                        name => expected.entry(name.to_owned()).or_default().push(i),
                    },
                    i,
                );
            }
            let file = SafeTensors::parse(fs::read(&path).unwrap()).unwrap();
            let found = file.views().filter(|(_, view)| !view.data().is_empty());
            let found = found.map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect();
            assert_eq!(expected, found, "{number}: {every}, {killed_at}, {firsts:?}");
            fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn threads_append_to_their_own_tensors() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let writer = create(&path).sync_every(50);
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let writer = &writer;
            scope.spawn(move || {
                let name = format!("{thread}");
                let growing = writer.grow(&name, Dtype::U32, 0, &[1000]).unwrap();
                for step in 0..120 {
                    let values = vec![thread * 1000 + step; 1000];
                    growing.append(&TensorBuf::from_vec(vec![1000], values).unwrap()).unwrap();
                    let value = [step as u8];
                    let value = TensorView::from_slice(&[], &value).unwrap();
                    writer.add(&format!("{thread} {step}"), &value).unwrap();
                }
            });
        }
    });
    writer.finish().unwrap();
    let file = SafeTensors::parse(fs::read(&path).unwrap()).unwrap();
    for thread in 0..4_u32 {
        let values = file.tensor(&format!("{thread}")).unwrap().read().unwrap();
        let values = values.as_slice::<u32>().unwrap();
        for (i, &value) in values.iter().enumerate() {
            assert_eq!(value, thread * 1000 + i as u32 / 1000);
        }
        assert_eq!(values.len(), 120_000);
    }
}
