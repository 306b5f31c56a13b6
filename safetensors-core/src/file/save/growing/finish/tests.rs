//! Failures and kills while a file is finished, and the next start.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::super::GrowingWriter;
use super::super::synced::{file_name, synced_directory};
use super::super::tests::{Grown, append_all, bytes, check_grown, create, resume};
use crate::checkpoint::Checkpoint;
use crate::file::io::SafeTensors;
use crate::file::io::failpoint::{interrupt_everywhere, without};
use crate::file::io::testing::{directory_in_memory, names_in, place};
use crate::file::save::SaveOptions;
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::{Sink, TensorBuf, TensorSource, TensorView};

#[test]
fn finishing_removes_synced_steps() {
    let (_dir, path) = place("a.safetensors");
    let tensors = [
        Grown { dtype: Dtype::F32, axis: 1, step_shape: vec![3, 2], steps: 7 },
        Grown { dtype: Dtype::F64, axis: 0, step_shape: vec![], steps: 7 },
    ];
    // Each pass adds a tensor, so a sync needs twice the steps.
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

/// Returns the number of steps in the finished file, if it is whole.
fn steps_of_run(path: &Path, large: usize) -> usize {
    let file = SafeTensors::parse(fs::read(path).unwrap()).unwrap();
    let steps = file.view("tail").unwrap().shape()[0];
    let data = bytes(large, 1);
    for name in ["tail", "spill"] {
        assert!(file.view(name).unwrap().data() == data.repeat(steps), "{name}");
    }
    let columns = data.chunks(large / 2).map(|row| row.repeat(steps)).collect::<Vec<_>>().concat();
    assert!(file.view("columns").unwrap().data() == columns);
    assert_eq!(file.view("small").unwrap().data(), [1; 3]);
    steps
}

/// No single failure ends a run. A killed run leaves the old file or the new one, and its synced
/// steps.
#[test]
fn a_run_that_is_interrupted_anywhere_loses_nothing() {
    let begin: Open = |path, options| GrowingWriter::create(path, options);
    let go_on: Open = |path, options| GrowingWriter::resume(path, options);
    // The data of the first two moves to the start of the file. The data of the last stays.
    for (large, system, open) in
        [(SMALL, "", begin), (SMALL + 1024, "files without a name", go_on), (600 << 10, "", go_on)]
    {
        let (mut finished, mut recovered) = (0, 0);
        let setup = || {
            let dir = directory_in_memory();
            if large == SMALL {
                fs::write(dir.path().join("a.safetensors"), "old").unwrap();
            }
            dir
        };
        let act =
            |dir: &TempDir| without(system, || run(&dir.path().join("a.safetensors"), large, open));
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

/// An existing file must stay, and a run that cannot finish can still sync.
#[test]
fn a_writer_that_cannot_finish_goes_on() {
    let (dir, path) = place("a.safetensors");
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

/// The disk may be full while a tensor is added, and have space later.
#[test]
fn a_tensor_that_could_not_be_added_is_added_again() {
    struct Failing;
    impl TensorSource for Failing {
        fn dtype(&self) -> Dtype {
            Dtype::U8
        }

        fn shape(&self) -> &[usize] {
            &[3]
        }

        fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
            sink(&[1])?;
            Err(ErrorKind::Io(std::io::ErrorKind::StorageFull.into()).into())
        }
    }
    let (_dir, path) = place("a.safetensors");
    let writer = create(&path);
    writer.add("x", &Failing).unwrap_err();
    assert!(matches!(writer.finish().unwrap_err().kind(), ErrorKind::Incomplete { .. }));
    writer.add("x", &TensorView::from_slice(&[2], &[1_u8; 2]).unwrap()).unwrap_err();
    let x = TensorView::from_slice(&[3], &[7_u8; 3]).unwrap();
    writer.add("x", &x).unwrap();
    let error = writer.add("x", &x).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DuplicateTensor), "{error}");
    writer.finish().unwrap();
    assert_eq!(
        SafeTensors::parse(fs::read(&path).unwrap()).unwrap().view("x").unwrap().data(),
        [7; 3]
    );
}

/// The data move when the header outgrows its room, and can still be appended to.
#[test]
fn a_file_with_a_header_that_outgrew_its_room_continues_after_a_failure() {
    for system in ["", "inserting"] {
        let (_dir, path) = place("a.safetensors");
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

/// Where a file cannot be linked, a copy gets the name. It is out of date after another tensor.
#[test]
fn a_copy_of_an_earlier_attempt_is_not_put_in_place() {
    let data = bytes(5 << 20, 1);
    let view = TensorView::new(Dtype::U8, &[5 << 20], &data).unwrap();
    let setup = || {
        let (dir, path) = place("a.safetensors");
        let options = SaveOptions::new().overwrite(false).durable(false);
        let writer = GrowingWriter::create(&path, &options).unwrap();
        let tail = writer.grow("tail", Dtype::U8, 0, &[5 << 20]).unwrap();
        tail.append(&view).unwrap();
        fs::write(&path, "another file").unwrap();
        drop(tail);
        (dir, path, writer)
    };
    let steps = interrupt_everywhere(
        setup,
        |(_, _, writer)| writer.finish(),
        |(dir, path, writer), interrupted, result| {
            result.unwrap_err();
            if interrupted.is_some_and(|it| it.killed) {
                return;
            }
            fs::remove_file(&path).unwrap();
            writer.add("more", &view).unwrap();
            writer.finish().unwrap();
            let file = Checkpoint::open(&path).unwrap();
            assert_eq!(file.len(), 2, "{interrupted:?}");
            assert_eq!(names_in(dir.path()), ["a.safetensors"], "{interrupted:?}");
        },
    );
    assert!(steps.contains(&"link") || !cfg!(target_os = "linux"));
}
