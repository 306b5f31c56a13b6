//! Files of a [`GrowingWriter`], against tensors that are put together in memory.

use std::fs;
use std::path::Path;

use super::body::ROOM;
use super::{GrowingTensor, GrowingWriter};
use crate::checkpoint::Checkpoint;
use crate::file::io::SafeTensors;
use crate::file::io::testing::{names_in, place, place_in_memory, repeated};
use crate::file::save::SaveOptions;
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::parallel::lock;
use crate::format::tensor::{TensorBuf, TensorView};
use proptest::prelude::*;

pub(super) fn create(path: &Path) -> GrowingWriter {
    GrowingWriter::create(path, &SaveOptions::new()).unwrap()
}

pub(super) fn resume(path: &Path) -> GrowingWriter {
    GrowingWriter::resume(path, &SaveOptions::new()).unwrap()
}

/// Bytes that are valid for every dtype.
pub(super) fn bytes(len: usize, seed: usize) -> Vec<u8> {
    repeated(len, 2, |i| ((i + seed) % 2) as u8)
}

/// Every tensor can be borrowed with its own type.
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
    let (dir, path) = place("a.safetensors");
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

/// A program's writer and one of its tensors, which no borrow keeps apart.
struct Output {
    tensor: GrowingTensor,
    writer: GrowingWriter,
}

#[test]
fn a_struct_can_have_a_writer_and_its_tensors_and_ends_both() {
    let (dir, path) = place("a.safetensors");
    let one = TensorBuf::from_vec(vec![], vec![1_u8]).unwrap();
    let open = || {
        let writer = create(&path).sync_every(0);
        Output { tensor: writer.grow("x", Dtype::U8, 0, &[]).unwrap(), writer }
    };
    // Dropped, the writer frees the path, even if some of its tensors remain.
    let Output { tensor, writer } = open();
    tensor.append(&one).unwrap();
    let large = TensorBuf::from_vec(vec![1 << 20], vec![1_u8; 1 << 20]).unwrap();
    let others = ["tail", "spill"].map(|name| writer.grow(name, Dtype::U8, 0, &[1 << 20]).unwrap());
    others.iter().for_each(|tensor| tensor.append(&large).unwrap());
    let flushed = |tensor: &GrowingTensor| lock(&tensor.series.state).stored.flushed;
    assert!(others.iter().all(|tensor| flushed(tensor) > 0));
    drop(writer);
    assert!(others.iter().all(|tensor| flushed(tensor) == 0));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let error = tensor.append(&one).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::AlreadyFinished), "{error}");
    assert_eq!((error.file(), error.tensor()), (path.to_str(), Some("x")));

    let output = open();
    output.tensor.append(&one).unwrap();
    output.writer.finish().unwrap();
    assert!(matches!(output.tensor.append(&one).unwrap_err().kind(), ErrorKind::AlreadyFinished));
    assert_eq!(output.tensor.steps(), 1);
    drop(output);
    assert_eq!(Checkpoint::open(&path).unwrap().tensor("x").unwrap().shape(), [1]);
}

#[test]
fn the_header_finds_room_whatever_its_length() {
    let (_dir, path) = place("a.safetensors");
    for (large, many, expected) in [
        (0, 0, 8..100),
        (0, 2000, ROOM..1 << 20),
        (5 << 20, 3, ROOM..ROOM + 1),
        (5 << 20, 2000, ROOM + 1..1 << 20),
    ] {
        let options = SaveOptions::new().digests(many == 2000);
        let writer = GrowingWriter::create(&path, &options).unwrap();
        let data = repeated(large, 251, |i| (i % 251) as u8);
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
            let digests = crate::file::hash::TensorDigests::from_metadata(checkpoint.metadata());
            let digests = digests.unwrap().unwrap();
            for tensor in archive.tensors() {
                let data = tensor.view().unwrap();
                let digest = crate::file::hash::Digest::compute(data.data());
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

    /// Returns the tensor of the first steps, row by row.
    pub(super) fn expected(&self, steps: usize) -> (Vec<usize>, Vec<u8>) {
        let mut shape = self.step_shape.clone();
        shape.insert(self.axis, steps);
        let outer: usize = self.step_shape[..self.axis].iter().product();
        let inner: usize =
            self.step_shape[self.axis..].iter().product::<usize>() * self.dtype.bits() as usize / 8;
        let all: Vec<_> = (0..steps).map(|step| self.step(step)).collect();
        let rows = (0..outer)
            .flat_map(|row| all.iter().map(move |step| &step[row * inner..(row + 1) * inner]));
        (shape, rows.collect::<Vec<_>>().concat())
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
    // Some steps are larger than the buffer in memory.
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
pub(super) fn append_all(writer: &GrowingWriter, tensors: &[Grown], by: usize) -> Result<()> {
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
            let data = steps.clone().map(|step| tensor.step(step)).collect::<Vec<_>>().concat();
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
        let (_dir, path) = place("a.safetensors");
        let writer = create(&path);
        append_all(&writer, &tensors, by).unwrap();
        writer.finish().unwrap();
        check_grown(&path, &tensors, |tensor| tensor.steps);
    }

    #[test]
    fn synced_steps_are_recovered(
        tensors in prop::collection::vec(grown(), 1..4),
        every in 1..3_u64,
    ) {
        let (dir, path) = place_in_memory("a.safetensors");
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
fn refused_calls_leave_the_file_unchanged() {
    let (dir, path) = place("a.safetensors");
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

    // The calls above, without the refused ones.
    let writer = create(&path);
    writer.add("a", &one).unwrap();
    let grown = writer.grow("g", Dtype::F32, 0, &[2]).unwrap();
    grown.append(&wrong).unwrap_err();
    grown.append(&TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0]).unwrap()).unwrap();
    writer.finish().unwrap();
    let found = Checkpoint::open(&path).unwrap().tensor("g").unwrap().read().unwrap();
    assert_eq!(found.into_vec::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
fn threads_append_to_their_own_tensors() {
    let (_dir, path) = place("a.safetensors");
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
