//! Tensors that are made of pieces of other files.

use std::io;

use proptest::prelude::*;
use safetensors_core::checkpoint::{Assembled, TensorPiece, WholeTensor};
use safetensors_core::error::RankProblem;
use safetensors_core::header::Metadata;
use safetensors_core::io::{ReadRange, Requests};
use safetensors_core::slice::Index;
use safetensors_testing::read_at::NotingSource;

use crate::support::odd::{Odd, OutOfReach};
use crate::support::*;

/// The bytes of a box of a tensor.
fn bytes_of(view: &TensorView<'_>, offsets: &[usize], sizes: &[usize]) -> Vec<u8> {
    let ends = offsets.iter().zip(sizes).map(|(at, size)| Index::from(*at..at + size));
    let slice = view.slice(ends.collect::<Vec<_>>()).unwrap();
    file_bytes(&slice)
}

/// Cuts a shape into boxes.
fn cut(shape: &[usize], cuts: &[(usize, usize, usize)]) -> Vec<(Vec<usize>, Vec<usize>)> {
    let mut boxes = vec![(vec![0; shape.len()], shape.to_vec())];
    for &(which, dim, at) in cuts.iter().filter(|_| !shape.is_empty()) {
        let (which, dim) = (which % boxes.len(), dim % shape.len());
        let (mut offsets, mut sizes) = boxes[which].clone();
        let at = at % (sizes[dim] + 1);
        boxes[which].1[dim] = at;
        offsets[dim] += at;
        sizes[dim] -= at;
        boxes.push((offsets, sizes));
    }
    boxes
}

/// Files, by their names.
type Sources = Vec<(PathBuf, NotingSource)>;

/// Sources that have the pieces of a tensor in turns, with a byte of another kind between them.
fn sources(pieces: &[Vec<u8>], count: usize) -> (Sources, Vec<(usize, u64)>) {
    let (mut files, mut starts) = (vec![vec![255_u8]; count], Vec::new());
    for (number, bytes) in pieces.iter().enumerate() {
        let source = number * 5 % count;
        starts.push((source, files[source].len() as u64));
        files[source].extend(bytes);
        files[source].push(255);
    }
    let named = |(i, bytes)| (PathBuf::from(format!("file {i}")), NotingSource::new(bytes));
    (files.into_iter().enumerate().map(named).collect(), starts)
}

fn open<S: ReadAt>(
    sources: Vec<(PathBuf, S)>,
    (dtype, shape): (Dtype, &[usize]),
    pieces: Vec<TensorPiece>,
) -> Result<Checkpoint<Assembled<S>>> {
    let whole = WholeTensor { name: "w".into(), dtype, shape: shape.to_vec(), pieces };
    let small = WholeTensor {
        name: "after".into(),
        dtype: Dtype::U8,
        shape: vec![1],
        pieces: vec![TensorPiece::new(0, 0, vec![0], vec![1])],
    };
    let source = Assembled::new(sources, vec![whole, small], &Metadata::new());
    Checkpoint::from_source(source.map_err(|error| error.in_path("all"))?, "all")
}

proptest! {
    #[test]
    fn any_boxes_are_read_back(
        shape in prop::collection::vec(1..9_usize, 0..4),
        cuts in prop::collection::vec((0..99_usize, 0..4_usize, 0..9_usize), 0..9),
        taken in prop::collection::vec((0..9_usize, 0..9_usize), 4),
        count in 1..4_usize,
    ) {
        let values: Vec<u16> = (0..shape.iter().product::<usize>() as u16).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let view = TensorView::new(Dtype::U16, &shape, &bytes).unwrap();
        let boxes = cut(&shape, &cuts);
        let bytes: Vec<_> = boxes.iter().map(|(at, size)| bytes_of(&view, at, size)).collect();
        let (sources, starts) = sources(&bytes, count);
        let notes: Vec<_> = sources.iter().map(|(_, source)| source.clone()).collect();
        let pieces = boxes.iter().zip(&starts).map(|((at, size), (source, offset))| {
            TensorPiece::new(*source, *offset, at.clone(), size.clone())
        });
        let checkpoint = open(sources, (Dtype::U16, &shape), pieces.collect()).unwrap();
        let tensor = checkpoint.tensor("w").unwrap();
        prop_assert_eq!(tensor.read().unwrap().into_vec::<u16>().unwrap(), &values[..]);
        let after = checkpoint.tensor("after").unwrap().read().unwrap();
        prop_assert_eq!(after.bytes(), &[255]);
        notes.iter().for_each(|note| _ = note.take_len());
        let ranges: Vec<_> = taken.iter().zip(&shape).map(|(&(start, len), &dim)| {
            let start = start % dim;
            start..(start + len).min(dim)
        }).collect();
        let indices: Vec<_> = ranges.iter().cloned().map(Index::from).collect();
        let part = tensor.slice(indices.clone()).unwrap().read().unwrap();
        let expected = view.slice(indices).unwrap();
        let expected = expected.to_buf().unwrap();
        prop_assert_eq!(part.bytes(), expected.bytes());
    }

    #[test]
    fn flat_pieces_are_read_back(
        cuts in prop::collection::vec(0..61_usize, 0..6),
        start in 0..60_usize,
    ) {
        let mut cuts = [&[0, 60], &cuts[..]].concat();
        cuts.iter_mut().for_each(|cut| *cut = (*cut).min(60));
        cuts.sort_unstable();
        let values: Vec<u32> = (0..60).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let view = TensorView::new(Dtype::U32, &[60], &bytes).unwrap();
        let parts: Vec<_> = cuts.windows(2).map(|pair| (pair[0], pair[1] - pair[0])).collect();
        let bytes: Vec<_> = parts.iter().map(|&(at, len)| bytes_of(&view, &[at], &[len])).collect();
        let (sources, starts) = sources(&bytes, 2);
        let pieces = parts.iter().zip(&starts).map(|(&(first, len), &(source, offset))| {
            TensorPiece::flat(source, offset, first, len)
        });
        let checkpoint = open(sources, (Dtype::U32, &[3, 4, 5]), pieces.collect()).unwrap();
        let tensor = checkpoint.tensor("w").unwrap();
        prop_assert_eq!(tensor.read().unwrap().into_vec::<u32>().unwrap(), &values[..]);
        let end = start + 1;
        let rows = tensor.slice((start / 20..end.div_ceil(20),)).unwrap().read().unwrap();
        let first = start / 20 * 20;
        let expected = &values[first..end.div_ceil(20) * 20];
        prop_assert_eq!(rows.as_slice::<u32>().unwrap(), expected);
    }
}

/// A part of a tensor is read from the pieces that have it, and of these no other bytes.
#[test]
fn only_needed_bytes_are_read() {
    // Two columns of 512 × 256 bytes each, in two files, and then two rows.
    let (rows, columns) = (1024, 512);
    let values = repeated(rows * columns, 251, |i| (i % 251) as u8);
    let shape = [rows, columns];
    let view = TensorView::from_slice(&shape, &values).unwrap();
    let boxes = [
        ([0, 0], [512, 256]),
        ([0, 256], [512, 256]),
        ([512, 0], [256, 512]),
        ([768, 0], [256, 512]),
    ];
    let bytes: Vec<_> = boxes.iter().map(|(at, size)| bytes_of(&view, at, size)).collect();
    let (sources, starts) = sources(&bytes, 4);
    let notes: Vec<_> = sources.iter().map(|(_, source)| source.clone()).collect();
    let pieces = boxes.iter().zip(&starts).map(|((at, size), (source, offset))| {
        TensorPiece::new(*source, *offset, at.to_vec(), size.to_vec())
    });
    let checkpoint = open(sources, (Dtype::U8, &[rows, columns]), pieces.collect()).unwrap();
    let tensor = checkpoint.tensor("w").unwrap();
    let reads = |notes: &[NotingSource]| -> Vec<Vec<(u64, usize)>> {
        notes.iter().map(NotingSource::take_reads).collect()
    };
    reads(&notes);
    let part = tensor.slice((100..300,)).unwrap().read().unwrap();
    assert_eq!(part.bytes(), &values[100 * columns..300 * columns]);
    let by_file = reads(&notes);
    let lens: Vec<usize> = by_file.iter().map(|it| it.iter().map(|read| read.1).sum()).collect();
    let numbers: Vec<_> = starts.iter().map(|start| lens[start.0]).collect();
    assert_eq!(numbers, [200 * 256, 200 * 256, 0, 0]);
    assert!(by_file.iter().all(|reads| reads.len() <= 1), "{by_file:?}");
    let part = tensor.slice((700..800,)).unwrap().read().unwrap();
    assert_eq!(part.bytes(), &values[700 * columns..800 * columns]);
    let lens: Vec<u64> =
        reads(&notes).iter().map(|it| it.iter().map(|read| read.1 as u64).sum()).collect();
    assert_eq!(
        starts.iter().map(|start| lens[start.0]).collect::<Vec<_>>(),
        [0, 0, 68 * 512, 32 * 512]
    );
}

#[test]
fn pieces_that_do_not_cover_a_tensor_are_refused() {
    let refused = |dtype, shape: &[usize], pieces| -> Error {
        let sources = vec![("one".into(), vec![0_u8; 12]), ("two".into(), vec![0; 12])];
        open(sources, (dtype, shape), pieces).unwrap_err()
    };
    let new = |source, offset, at: &[usize], size: &[usize]| {
        TensorPiece::new(source, offset, at.to_vec(), size.to_vec())
    };
    for (pieces, file, text) in [
        (vec![], "all", "0 of the 6 elements"),
        (vec![new(0, 0, &[0, 0], &[1, 3])], "all", "3 of the 6 elements"),
        (vec![new(0, 0, &[0, 0], &[2, 3]), new(1, 0, &[1, 2], &[1, 1])], "two", "overlaps"),
        (vec![new(1, 0, &[0, 0], &[3, 3])], "two", "does not fit shape [2, 3]"),
        (vec![new(1, 0, &[0], &[6])], "two", "does not fit"),
        (vec![new(1, 1, &[0, 0], &[2, 3])], "two", "12 bytes from byte 1 on, in a file of 12"),
        (vec![new(1, u64::MAX, &[0, 0], &[2, 3])], "two", "in a file of 12"),
        (vec![new(2, 0, &[0, 0], &[2, 3])], "all", "there is no source 2"),
        (
            vec![new(0, 0, &[0, 0], &[1, 3]), TensorPiece::flat(1, 0, 3, 3)],
            "two",
            "some are flat, and some are boxes",
        ),
        (vec![TensorPiece::flat(0, 0, 0, 3), TensorPiece::flat(1, 0, 2, 3)], "two", "overlaps"),
        (vec![TensorPiece::flat(0, 0, 0, 3), TensorPiece::flat(1, 0, 4, 3)], "two", "does not fit"),
    ] {
        let error = refused(Dtype::U16, &[2, 3], pieces);
        let is_bad =
            matches!(error.kind(), ErrorKind::Ranks { problem: RankProblem::BadParts { .. } });
        assert!(is_bad && error.to_string().contains(text), "{text}: {error}");
        assert_eq!((error.tensor(), error.file()), (Some("w"), Some(file)), "{error}");
    }
    let columns = vec![new(0, 0, &[0, 0], &[2, 1]), new(1, 0, &[0, 1], &[2, 1])];
    let error = refused(Dtype::F4, &[2, 2], columns);
    assert!(matches!(error.kind(), ErrorKind::SliceInsideByte { .. }), "{error}");
    let huge = refused(Dtype::U16, &[usize::MAX, 3], vec![TensorPiece::flat(0, 0, 0, 3)]);
    assert!(matches!(huge.kind(), ErrorKind::ShapeOverflow { .. }), "{huge}");
    // A name twice.
    let whole = |pieces| WholeTensor { name: "w".into(), dtype: Dtype::U8, shape: vec![0], pieces };
    let sources = vec![("one".into(), vec![0_u8])];
    let twice = vec![whole(vec![]), whole(vec![])];
    let twice = Assembled::new(sources, twice, &Metadata::new()).unwrap();
    refused!(Checkpoint::from_source(twice, "all"), ErrorKind::DuplicateTensor);
}

#[test]
fn properties_and_hints_of_the_sources_are_passed_on() {
    let odd = || Odd::new(vec![7; 8]);
    let pieces = || {
        vec![
            TensorPiece::new(0, 1, vec![0, 0], vec![2, 1]),
            TensorPiece::new(1, 2, vec![0, 1], vec![2, 2]),
        ]
    };
    let (one, two) = (odd(), odd());
    let sources = vec![("one".into(), one.clone()), ("two".into(), two.clone())];
    let checkpoint = open(sources, (Dtype::U8, &[2, 3]), pieces()).unwrap();
    let source = checkpoint.files()[0].safetensors().source();
    assert_eq!(source.requests(), Some(Requests::new(1 << 20, 3)));
    assert!(!source.is_replaced().unwrap() && checkpoint.check_unchanged().is_ok());
    checkpoint.read_named(["w"], &LoadOptions::new()).unwrap();
    assert_eq!(one.take_heard(), ["will [1..3]", "1 ranges", "has 1..3"]);
    assert_eq!(two.take_heard(), ["will [2..6]", "1 ranges", "has 2..6"]);
    // Short ranges near each other are read at once.
    let (mut a, mut b) = ([0], [0]);
    let start = source.byte_len() - 7;
    let ranges = [(start + 1, &mut a), (start + 4, &mut b)];
    let mut ranges = ranges.map(|(offset, bytes)| ReadRange { offset, bytes });
    source.read_ranges_at(&mut ranges).unwrap();
    assert_eq!((a, b), ([7], [7]));
    assert_eq!(two.take_heard().last().unwrap(), "1 ranges");

    two.fails.store(true, Ordering::SeqCst);
    two.has_changed.store(true, Ordering::SeqCst);
    assert!(checkpoint.files()[0].safetensors().source().is_replaced().unwrap());
    let error = checkpoint.check_unchanged().unwrap_err().to_string();
    assert_eq!(error, "two: it changed");
    // The source's error is returned, with its type.
    let error = checkpoint.tensor("w").unwrap().read().unwrap_err();
    assert_eq!(error.to_string(), "two: tensor \"w\": it is far away");
    assert_eq!((error.tensor(), error.file()), (Some("w"), Some("two")));
    assert!(error.other::<OutOfReach>().is_some());
    let source = checkpoint.files()[0].safetensors().source();
    let error = source.read_exact_at(&mut [0; 6], source.byte_len() - 7).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(error.to_string(), "two: tensor \"w\": it is far away");
}

/// Pieces with small gaps between them are read together.
#[test]
fn sources_hear_of_many_pieces_at_once() {
    let odd = || Odd::new(vec![7; 4000]);
    let (one, two) = (odd(), odd());
    let sources = vec![("one".into(), one.clone()), ("two".into(), two.clone())];
    // In one source the pieces touch, in the other they do not.
    let piece = |at: usize| match at % 2 {
        0 => TensorPiece::new(0, at as u64 / 2, vec![at], vec![1]),
        _ => TensorPiece::new(1, at as u64, vec![at], vec![1]),
    };
    let checkpoint = open(sources, (Dtype::U8, &[4000]), (0..4000).map(piece).collect()).unwrap();
    let source = checkpoint.files()[0].safetensors().source();
    let range = source.byte_len() - 4001..source.byte_len() - 1;
    source.will_read(&mut std::iter::once(range.clone()));
    assert_eq!(one.take_heard(), ["will [0..2000]"]);
    assert_eq!(two.take_heard(), ["will [1..4000]"]);
    // Not all bytes from the first piece to the last.
    source.has_read(range.end - 4..range.end);
    assert_eq!(two.take_heard(), ["has 3997..4000"]);
}
