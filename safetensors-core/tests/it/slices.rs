//! Compares slices and parts of ranks with a naive model that goes element by element.

use proptest::prelude::*;
use safetensors_core::load::read_slices;
use safetensors_core::slice::{Index, RankPart, TensorPart};
use safetensors_testing::read_at::NotingSource;

use crate::support::*;

/// The positions that an index takes of a dimension, by Python's rules.
fn positions(index: Index, len: usize) -> Option<Vec<usize>> {
    let resolve = |position: isize| if position < 0 { position + len as isize } else { position };
    match index {
        Index::At(at) => {
            let at = resolve(at);
            (0..len as isize).contains(&at).then(|| vec![at as usize])
        }
        Index::Range { start, end, step } => {
            let (start, end) = (resolve(start.unwrap_or(0)), end.map_or(len as isize, resolve));
            let valid = step > 0 && 0 <= start && start <= end && end <= len as isize;
            valid.then(|| (start..end).step_by(step).map(|position| position as usize).collect())
        }
    }
}

/// The expected shape and elements of a slice of a `u8` tensor, computed one by one.
fn model(shape: &[usize], data: &[u8], indices: &[Index]) -> Option<(Vec<usize>, Vec<u8>)> {
    let mut selected = vec![];
    let mut flat = vec![0];
    for (dim, &len) in shape.iter().enumerate() {
        let index = indices.get(dim).copied().unwrap_or(Index::ALL);
        let taken = positions(index, len)?;
        if matches!(index, Index::Range { .. }) {
            selected.push(taken.len());
        }
        flat = flat
            .iter()
            .flat_map(|&outer| taken.iter().map(move |&position| outer * len + position))
            .collect();
    }
    Some((selected, flat.into_iter().map(|position| data[position]).collect()))
}

fn an_index() -> impl Strategy<Value = Index> {
    let position = -7_isize..8;
    prop_oneof![
        position.clone().prop_map(Index::At),
        (prop::option::of(position.clone()), prop::option::of(position), 1..4_usize)
            .prop_map(|(start, end, step)| Index::Range { start, end, step }),
        Just(Index::ALL),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_slice_agrees_with_the_model(
        shape in prop::collection::vec(0..6_usize, 0..5),
        indices in prop::collection::vec(an_index(), 0..5),
        gap in 0..20_u64,
    ) {
        let data: Vec<u8> = (0..shape.iter().product::<usize>()).map(|i| i as u8).collect();
        let view = TensorView::new(Dtype::U8, &shape, &data).unwrap();
        let expected = if indices.len() <= shape.len() { model(&shape, &data, &indices) } else { None };
        let file = serialize([("pad", TensorView::new(Dtype::U8, &[3], &[9; 3]).unwrap()), ("t", view)], &SaveOptions::new());
        let archive = SafeTensors::from_source(file.unwrap()).unwrap();
        let lazy = archive.tensor("t").unwrap();
        match (view.slice(indices.clone()), expected) {
            (Ok(slice), Some((shape, bytes))) => {
                prop_assert_eq!(slice.shape(), &shape);
                let buf = slice.to_buf().unwrap();
                prop_assert_eq!(buf.bytes(), &bytes);
                prop_assert_eq!(file_bytes(&slice), bytes.clone());
                let runs: Vec<_> = slice.runs().map(<[u8]>::as_ptr_range).collect();
                prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start), "runs do not touch");

                let slice = lazy.slice(indices).unwrap().max_gap(gap);
                prop_assert_eq!(slice.shape(), &shape);
                prop_assert_eq!(slice.byte_len(), bytes.len() as u64);
                let buf = slice.read().unwrap();
                prop_assert_eq!(buf.bytes(), &bytes);
                prop_assert_eq!(file_bytes(&slice), bytes.clone());

                let options = LoadOptions::new().threads(2);
                let [pad, whole] = ["pad", "t"].map(|name| archive.tensor(name).unwrap().slice(Vec::<Index>::new()).unwrap());
                let bufs = read_slices(&[pad, slice, whole], &options).unwrap();
                prop_assert_eq!(bufs[1].shape(), &shape);
                prop_assert_eq!(bufs.iter().map(|buf| buf.bytes()).collect::<Vec<_>>(), [&[9; 3], &*bytes, &data]);
            }
            (Err(error), None) => {
                prop_assert!(error.tensor().is_none());
                let error = lazy.slice(indices).unwrap_err();
                prop_assert_eq!(error.tensor(), Some("t"));
            }
            (slice, expected) => prop_assert!(false, "{slice:?} but the model says {expected:?}"),
        }
    }

    #[test]
    fn parts_of_ranks_put_together_are_the_tensor(
        shape in prop::collection::vec(1..7_usize, 1..4),
        dim in 0..3_usize,
        world_size in 1..5_usize,
    ) {
        let dim = dim % shape.len();
        let data: Vec<u8> = (0..shape.iter().product::<usize>()).map(|i| i as u8).collect();
        let view = TensorView::new(Dtype::U8, &shape, &data).unwrap();
        let part = |rank| RankPart::new(dim, rank, world_size).uneven();
        let parts: Vec<_> =
            (0..world_size).map(|rank| view.slice(part(rank)).unwrap()).collect();
        let total: usize = parts.iter().map(|part| part.shape()[dim]).sum();
        prop_assert_eq!(total, shape[dim]);
        // Join the parts along the dimension: for each outer position, the part of each rank in
        // turn.
        let outer: usize = shape[..dim].iter().product();
        let bufs: Vec<_> = parts.iter().map(|part| part.to_buf().unwrap()).collect();
        let joined: Vec<u8> = (0..outer)
            .flat_map(|i| bufs.iter().flat_map(move |buf| {
                let part = buf.bytes().len() / outer;
                buf.bytes()[i * part..(i + 1) * part].to_vec()
            }))
            .collect();
        prop_assert_eq!(&joined, &data);
        let even = view.slice(RankPart::new(dim, 0, world_size));
        prop_assert_eq!(even.is_ok(), shape[dim] % world_size == 0);
    }
}

#[test]
fn errors_have_the_dimension_and_index_out_of_bounds() {
    let view = TensorView::new(Dtype::U8, &[2, 3], &[0; 6]).unwrap();
    type Check = fn(&ErrorKind) -> bool;
    let cases: [(Vec<Index>, Check); 5] = [
        (
            vec![Index::At(2)],
            |kind| matches!(kind, ErrorKind::IndexOutOfBounds { dim: 0, len: 2, asked } if asked == "2"),
        ),
        (
            vec![Index::ALL, Index::from(..4)],
            |kind| matches!(kind, ErrorKind::IndexOutOfBounds { dim: 1, len: 3, asked } if asked == "..4"),
        ),
        (
            vec![Index::At(-3)],
            |kind| matches!(kind, ErrorKind::IndexOutOfBounds { dim: 0, len: 2, asked } if asked == "-3"),
        ),
        (vec![Index::ALL.step(0)], |kind| matches!(kind, ErrorKind::ZeroStep { dim: 0 })),
        (vec![Index::ALL; 3], |kind| {
            matches!(kind, ErrorKind::TooManyIndices { ndim: 2, found: 3 })
        }),
    ];
    for (indices, check) in cases {
        let error = view.slice(indices.clone()).unwrap_err();
        assert!(check(error.kind()), "{indices:?}: {error}");
    }
    assert!(matches!(
        view.slice(TensorPart::span(2, 0, 1)).unwrap_err().kind(),
        ErrorKind::NoSuchDim { dim: 2, ndim: 2 }
    ));
    let error = view.slice(RankPart::new(1, 2, 2)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoSuchRank { rank: 2, world_size: 2 }));
    let error = view.slice(RankPart::new(1, 0, 2)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::UnevenParts { dim: 1, len: 3, world_size: 2 }));
    assert!(view.slice(RankPart::new(0, 0, 0)).is_err(), "a world without ranks");
    assert!(
        view.slice(TensorPart::span(0, usize::MAX, 2)).is_err()
            && view.slice(TensorPart::span(0, 1, usize::MAX)).is_err()
    );
    // The message has the whole request: each bound alone may be there.
    for (index, asked) in [
        (Index::from(usize::MAX), isize::MAX.to_string()),
        (Index::Range { start: Some(2), end: Some(1), step: 1 }, "2..1".into()),
        (Index::from(-1..0), "-1..0".into()),
        (Index::from(3..), "3..".into()),
        (Index::from(..=2).step(2), "..3 in steps of 2".into()),
    ] {
        assert_eq!(
            view.slice([index]).unwrap_err().to_string(),
            format!("the slice is out of bounds: dimension 0 has length 2, asked for {asked}")
        );
    }
    let span = view.slice(TensorPart::span(1, 2, 2)).unwrap_err().to_string();
    assert!(span.ends_with("dimension 1 has length 3, asked for 2..4"), "{span}");
}

#[test]
fn inclusive_and_negative_ranges() {
    let data: Vec<u8> = (0..10).collect();
    let view = TensorView::new(Dtype::U8, &[10], &data).unwrap();
    let taken = |slice: safetensors_core::slice::SliceView<'_>| {
        slice.to_buf().unwrap().into_vec::<u8>().unwrap()
    };
    assert_eq!(taken(view.slice((2..=4,)).unwrap()), [2, 3, 4]);
    assert_eq!(taken(view.slice((-3..,)).unwrap()), [7, 8, 9]);
    assert_eq!(taken(view.slice((-3..=-1,)).unwrap()), [7, 8, 9]);
    assert_eq!(taken(view.slice((..=-9,)).unwrap()), [0, 1]);
    assert_eq!(taken(view.slice((Index::from(1..8).step(3),)).unwrap()), [1, 4, 7]);
    assert_eq!(taken(view.slice((4..4,)).unwrap()), [0_u8; 0]);
    assert_eq!(taken(view.slice((10..,)).unwrap()), [0_u8; 0]);
}

#[test]
fn sub_byte_slices_cover_whole_bytes_or_are_refused() {
    let data: Vec<u8> = (0..12).collect();
    let f4 = TensorView::new(Dtype::F4, &[4, 6], &data).unwrap();
    assert_eq!(file_bytes(&f4.slice((1,)).unwrap()), [3, 4, 5]);
    assert_eq!(file_bytes(&f4.slice((.., 2..4)).unwrap()), [1, 4, 7, 10]);
    for indices in [
        [Index::ALL, Index::from(1..3)],
        [Index::ALL, Index::At(0)],
        [Index::ALL, Index::ALL.step(2)],
    ] {
        let error = f4.slice(indices).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::SliceInsideByte { dtype: Dtype::F4 }),
            "{indices:?}: {error}"
        );
    }
    let f6 = TensorView::new(Dtype::F6_E2M3, &[2, 8], &data).unwrap();
    assert_eq!(file_bytes(&f6.slice((.., 4..)).unwrap()), [3, 4, 5, 9, 10, 11]);
    assert!(f6.slice((.., 2..6)).is_err());
}

#[test]
fn only_the_bytes_of_the_slice_are_read_and_near_runs_together() {
    let data = vec![1_u8; 64 * 1024];
    let view = TensorView::new(Dtype::U8, &[64, 1024], &data).unwrap();
    let bytes = serialize([("t", view)], &SaveOptions::new()).unwrap();
    let archive = SafeTensors::from_source(NotingSource::new(bytes)).unwrap();
    let tensor = archive.tensor("t").unwrap();
    let reads = |slice: safetensors_core::load::LazySlice<'_, NotingSource>| {
        tensor.source().take_reads();
        slice.read().unwrap();
        let reads = tensor.source().take_reads();
        (reads.len(), reads.iter().map(|(_, len)| len).sum::<usize>())
    };
    assert_eq!(reads(tensor.slice((8..16,)).unwrap()), (1, 8 * 1024), "rows are one run");
    assert_eq!(
        reads(tensor.slice((.., 0..256)).unwrap()),
        (64, 64 * 256),
        "far apart: not a byte too many"
    );
    assert_eq!(
        reads(tensor.slice((.., 0..256)).unwrap().max_gap(768)),
        (1, 63 * 1024 + 256),
        "the caller wants few reads"
    );
    assert_eq!(
        reads(tensor.slice((.., 0..1000)).unwrap()),
        (1, 63 * 1024 + 1000),
        "gaps of 24 bytes"
    );
    assert_eq!(
        reads(tensor.slice((.., 0..1000)).unwrap().max_gap(0)),
        (64, 64_000),
        "not even those"
    );
}

/// Slices that are so large that several threads read them in parts: rows, columns, every other
/// column, and one of several planes.
#[test]
fn large_slices_read_in_parallel_equal_slices_read_alone() {
    let value = |i: u32| (i.wrapping_mul(2_654_435_761) >> 16) as u16;
    let values: Vec<u16> = (0..6 << 20).map(value).collect();
    let small = TensorBuf::from_vec(vec![16, 16], values[..256].to_vec()).unwrap();
    let large = TensorBuf::from_vec(vec![3, 1024, 2048], values).unwrap();
    let file = serialize([("t", large), ("small", small)], &SaveOptions::new()).unwrap();
    let archive = SafeTensors::from_source(file).unwrap();
    let (tensor, small) = (archive.tensor("t").unwrap(), archive.tensor("small").unwrap());
    let slices = || {
        [
            tensor.slice((1.., ..)).unwrap(),
            tensor.slice((.., ..1000)).unwrap(),
            tensor.slice((.., .., 512..1536)).unwrap(),
            tensor.slice((.., .., Index::from(1..).step(2))).unwrap(),
            tensor.slice((Index::from(0..).step(2), 3.., 7)).unwrap(),
            tensor.slice((.., 5..5)).unwrap(),
            small.slice(RankPart::new(1, 3, 4)).unwrap(),
            small.slice(Vec::<Index>::new()).unwrap(),
        ]
    };
    let alone: Vec<_> = slices().iter().map(|slice| slice.read().unwrap()).collect();
    for threads in [1, 4] {
        let options = LoadOptions::new().threads(threads);
        let together = read_slices(&slices(), &options).unwrap();
        let to_wide = options.clone().all_as(Dtype::U32);
        let wide = read_slices(&slices(), &to_wide).unwrap();
        for ((alone, together), wide) in alone.iter().zip(&together).zip(&wide) {
            assert_eq!((alone.dtype(), alone.shape()), (together.dtype(), together.shape()));
            assert!(alone.bytes() == together.bytes(), "{:?}", alone.shape());
            let converted = alone.clone().convert(Dtype::U32, &ConvertOptions::new()).unwrap();
            assert!(converted.bytes() == wide.bytes(), "{:?}", alone.shape());
        }
        for (options, together) in [(options, together), (to_wide, wide)] {
            for (slice, together) in slices().iter().zip(&together) {
                let one = slice.read_with(&options).unwrap();
                assert_eq!((one.dtype(), one.shape()), (together.dtype(), together.shape()));
                assert!(one.bytes() == together.bytes(), "{:?}", one.shape());
            }
        }
    }
    let cancel = LoadOptions::new().progress(|_| ControlFlow::Break(()));
    for slice in slices().iter().filter(|slice| slice.byte_len() > 0) {
        refused!(slice.read_with(&cancel), ErrorKind::Cancelled);
    }
    let no_conversion = LoadOptions::new().all_as(Dtype::C64);
    let error = refused!(slices()[0].read_with(&no_conversion), ErrorKind::NoConversion { .. });
    assert_eq!(error.tensor(), Some("t"));
}

#[test]
fn an_error_in_a_slice_names_the_tensor_and_the_element_of_the_slice() {
    let mut data = vec![1_i32; 4 << 20];
    // Row 700, column 3000 of 4096. In the slice of the columns from 2048 on, it is element 700 ×
    // 2048 + 952.
    data[700 * 4096 + 3000] = -5;
    let buf = TensorBuf::from_vec(vec![1024, 4096], data).unwrap();
    let archive =
        SafeTensors::from_source(serialize([("t", buf)], &SaveOptions::new()).unwrap()).unwrap();
    let columns = archive.tensor("t").unwrap().slice((.., 2048..)).unwrap();
    let error = read_slices(&[columns], &LoadOptions::new().all_as(Dtype::U8)).unwrap_err();
    assert_eq!(error.tensor(), Some("t"));
    assert!(
        matches!(error.kind(), ErrorKind::DoesNotFit { index, .. } if *index == 700 * 2048 + 952),
        "{error}"
    );
}

#[test]
fn short_runs_are_gathered_into_larger_pieces() {
    let data = repeated(1 << 18, 251, |i| (i % 251) as u8);
    let view = TensorView::new(Dtype::U8, &[512, 512], &data).unwrap();
    let archive =
        SafeTensors::from_source(serialize([("t", view)], &SaveOptions::new()).unwrap()).unwrap();
    let slice = archive.tensor("t").unwrap().slice((.., Index::from(1..).step(2))).unwrap();
    let (mut pieces, mut bytes) = (0, vec![]);
    slice
        .write_to(&mut |piece| {
            pieces += 1;
            bytes.extend_from_slice(piece);
            Ok(())
        })
        .unwrap();
    assert_eq!((pieces, bytes.len()), (1, 1 << 17));
    assert!(bytes.iter().eq(data.iter().skip(1).step_by(2)));
}
