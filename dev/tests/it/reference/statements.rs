//! The statements of the reference's unit tests (crate `safetensors` 0.8), which hold for this
//! crate, too. Each test here checks both implementations, and its comment names the reference's
//! tests. The remaining one, `test_invalid_header_size_serialization`, is in the core's tests of
//! saving.

use std::collections::HashMap;
use std::fs;
use std::num::NonZeroUsize;
use std::ops::Bound;

use safetensors::SafeTensorError;
use safetensors::slice::{InvalidSlice, TensorIndexer, slice_byte_ranges};
use safetensors::tensor::TensorView as ReferenceView;
use safetensors_bridge::slice::Index;
use safetensors_bridge::{
    Checkpoint, Dtype, Error, ErrorKind, SafeTensors, SaveOptions, TensorSource, TensorView, save,
    serialize,
};

use super::{file, random_numbers, reference_dtype};

fn reference_view<'a>(view: &TensorView<'a>) -> ReferenceView<'a> {
    let dtype = reference_dtype(view.dtype());
    ReferenceView::new(dtype, view.shape().to_vec(), view.data()).unwrap()
}

/// `test_serialization`, `test_serialization_fp4`, `test_serialization_forced_alignement`,
/// `test_empty`.
#[test]
fn known_files_have_the_bytes_that_the_reference_states() {
    let values: Vec<u8> = (0..6_u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
    let view = |dtype, shape, len| TensorView::new(dtype, shape, &values[..len]).unwrap();
    let empty: [(&str, TensorView<'_>); 0] = [];
    let pt = SaveOptions::new().metadata([("framework", "pt")]);
    let plain = SaveOptions::new();
    let written = [
        serialize([("attn.0", view(Dtype::F32, &[1, 2, 3], 24))], &plain),
        serialize([("attn.0", view(Dtype::F4, &[1, 2], 1))], &plain),
        serialize([("attn0", view(Dtype::F32, &[1, 1, 2, 3], 24))], &plain),
        serialize(empty, &plain),
        serialize(empty, &pt),
    ];
    // Each header fills up to a multiple of eight bytes.
    let stated = [
        (r#"{"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}}"#, 64, 24),
        (r#"{"attn.0":{"dtype":"F4","shape":[1,2],"data_offsets":[0,1]}}"#, 64, 1),
        (r#"{"attn0":{"dtype":"F32","shape":[1,1,2,3],"data_offsets":[0,24]}}"#, 72, 24),
        ("{}", 8, 0),
        (r#"{"__metadata__":{"framework":"pt"}}"#, 40, 0),
    ];
    for (written, (header, padded, len)) in written.into_iter().zip(stated) {
        let written = written.unwrap();
        assert_eq!(written, file(&format!("{header:padded$}"), &values[..len]));
        let read = SafeTensors::parse(&written).unwrap();
        assert!(read.views().all(|(_, view)| view.data() == &values[..len]));
        assert!(safetensors::SafeTensors::deserialize(&written).is_ok());
    }
}

/// `test_indexing`, `test_roundtrip`: each tensor is found by its name, equals the saved one, and
/// begins at a multiple of its element size, C64 included.
#[test]
fn saved_tensors_are_found_by_name_and_aligned() {
    let mut random = random_numbers(5);
    let data: Vec<u8> = (0..8 * 7_usize.pow(4)).map(|i| i as u8).collect();
    for _ in 0..200 {
        let count = 1 + random(7);
        let parts: Vec<(String, Dtype, Vec<usize>)> = (0..count)
            .map(|i| {
                let dtype = Dtype::ALL[random(Dtype::ALL.len())];
                let mut shape: Vec<usize> = (0..1 + random(3)).map(|_| 1 + random(7)).collect();
                shape.extend(dtype.is_sub_byte().then_some(4));
                (format!("t.{i}"), dtype, shape)
            })
            .collect();
        let views = parts.iter().map(|(name, dtype, shape)| {
            let bits = shape.iter().product::<usize>() * dtype.bits() as usize;
            (name, TensorView::new(*dtype, shape, &data[..bits / 8]).unwrap())
        });
        let written = serialize(views.clone(), &SaveOptions::new()).unwrap();
        let read = SafeTensors::from_source(&written).unwrap();
        let theirs = safetensors::SafeTensors::deserialize(&written).unwrap();
        assert_eq!((read.header().len(), theirs.len()), (count, count));
        for (name, view) in views {
            assert_eq!(read.view(name).unwrap(), view);
            assert_eq!(theirs.tensor(name).unwrap(), reference_view(&view));
            let offset = read.tensor(name).unwrap().file_offset();
            let size = u64::from(view.dtype().bits().div_ceil(8));
            assert!(offset.is_multiple_of(size), "{name} {offset} {}", view.dtype());
        }
    }
}

/// `test_serialization_fp4_misaligned`, `test_serialization_fp4_invalid`.
#[test]
fn a_view_needs_exactly_the_bytes_of_its_shape() {
    let data = [0, 1];
    let ours = |shape: &[usize]| {
        TensorView::new(Dtype::F4, shape, &data).map(drop).map_err(Error::into_kind)
    };
    assert!(matches!(ours(&[1, 3]), Err(ErrorKind::PartialByte { .. })));
    assert!(matches!(ours(&[1, 2]), Err(ErrorKind::DataLength { expected: 1, found: 2, .. })));
    let theirs = |shape: &[usize]| ReferenceView::new(safetensors::Dtype::F4, shape.into(), &data);
    assert!(matches!(theirs(&[1, 3]), Err(SafeTensorError::MisalignedSlice)));
    assert!(matches!(theirs(&[1, 2]), Err(SafeTensorError::InvalidTensorView(..))));
}

/// `test_gpt2`, `test_gpt2_tiny`, with dimensions that are divided by 64: a model in memory and in
/// a file.
#[test]
fn a_model_is_the_same_in_memory_and_in_a_file() {
    let layer: [(&str, &[usize]); 13] = [
        ("ln_1.weight", &[12]),
        ("ln_1.bias", &[12]),
        ("attn.bias", &[1, 1, 16, 16]),
        ("attn.c_attn.weight", &[12, 36]),
        ("attn.c_attn.bias", &[36]),
        ("attn.c_proj.weight", &[12, 12]),
        ("attn.c_proj.bias", &[12]),
        ("ln_2.weight", &[12]),
        ("ln_2.bias", &[12]),
        ("mlp.c_fc.weight", &[12, 48]),
        ("mlp.c_fc.bias", &[48]),
        ("mlp.c_proj.weight", &[48, 12]),
        ("mlp.c_proj.bias", &[12]),
    ];
    let around: [(&str, &[usize]); 4] =
        [("wte", &[785, 12]), ("wpe", &[16, 12]), ("ln_f.weight", &[12]), ("ln_f.bias", &[12])];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gpt2.safetensors");
    let data = vec![0_f32; 785 * 12];
    for layers in [6, 12] {
        let of_layer = |i| layer.map(|(name, shape)| (format!("h.{i}.{name}"), shape));
        let around = around.map(|(name, shape)| (name.to_owned(), shape));
        let tensors: HashMap<_, _> = (0..layers)
            .flat_map(of_layer)
            .chain(around)
            .map(|(name, shape)| {
                let len = shape.iter().product();
                (name, TensorView::from_slice(shape, &data[..len]).unwrap())
            })
            .collect();
        let written = serialize(&tensors, &SaveOptions::new()).unwrap();
        assert_eq!(SafeTensors::parse(&written).unwrap().header().len(), 13 * layers + 4);
        save(&path, &tensors, &SaveOptions::new().durable(false)).unwrap();
        assert!(fs::read(&path).unwrap() == written);
        let theirs = tensors.iter().map(|(name, view)| (name, reference_view(view)));
        assert!(safetensors::serialize(theirs, None).unwrap() == written);
    }
}

/// `test_serialize_to_file_same_path_with_active_mmap`.
#[cfg(unix)]
#[test]
#[allow(unsafe_code, reason = "mapping a file is a promise that it stays as it is")]
fn a_file_is_replaced_by_views_of_its_own_mapping() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mapped.safetensors");
    let view = TensorView::from_slice(&[3], &[1_f32, 2.0, 3.0]).unwrap();
    save(&path, [("w", view)], &SaveOptions::new()).unwrap();
    // SAFETY: the file is in a temporary directory of this test. It is replaced, not changed.
    let mapped = unsafe { Checkpoint::mmap(&path) }.unwrap();
    let views = mapped.tensors().map(|tensor| (tensor.name(), tensor.view().unwrap()));
    save(&path, views, &SaveOptions::new()).unwrap();
    let read = Checkpoint::open(&path).unwrap();
    assert_eq!(read.tensor("w").unwrap().read().unwrap().bytes(), view.data());
}

/// `test_empty_shapes_allowed`, `test_deserialization`, `test_lifetimes`, `test_zero_sized_tensor`,
/// `test_whitespace_padded_header`, `test_whitespace_leading_padded_header`.
#[test]
fn sound_files_are_read() {
    let test = |shape: &str, len: usize| {
        let header =
            format!(r#"{{"test":{{"dtype":"I32","shape":{shape},"data_offsets":[0,{len}]}}}}"#);
        file(&header, &vec![0; len])
    };
    let cases: [(_, &[usize]); 3] =
        [(test("[]", 4), &[]), (test("[2,2]", 16), &[2, 2]), (test("[2,0]", 0), &[2, 0])];
    for (bytes, shape) in cases {
        // The data is in the bytes, which outlive the parsed file.
        let data = {
            let read = SafeTensors::parse(&bytes).unwrap();
            let view = read.view("test").unwrap();
            assert_eq!((view.dtype(), view.shape(), read.header().len()), (Dtype::I32, shape, 1));
            let info = read.header().get("test").unwrap();
            let [start, end] = [info.data_offsets().start, info.data_offsets().end]
                .map(|offset| (read.header().data_start() + offset) as usize);
            assert_eq!(view.data(), &bytes[start..end]);
            &bytes[start..end]
        };
        assert!(data.iter().all(|byte| *byte == 0) && bytes.ends_with(data));
        let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(theirs.tensor("test").unwrap().shape(), shape);
    }
    for padded in ["{}\r \t\n", "\t\n{}\r "] {
        let bytes = file(padded, &[]);
        assert!(SafeTensors::parse(&bytes).unwrap().header().is_empty());
        assert!(safetensors::SafeTensors::deserialize(&bytes).unwrap().is_empty());
    }
}

/// Whether each implementation refuses a file for the reason that the reference states.
type Refusal = (Vec<u8>, fn(&ErrorKind) -> bool, fn(&SafeTensorError) -> bool);

/// `test_json_attack`, `test_metadata_incomplete_buffer`, `test_header_too_large`,
/// `test_header_too_small`, `test_invalid_header_length`, `test_invalid_header_non_utf8`,
/// `test_invalid_header_not_json`, `test_invalid_info`, `test_validation_overflow`.
#[test]
fn malformed_files_are_refused_for_the_reason_that_the_reference_states() {
    let test = |shape: &str, end: u64, len: usize| {
        let entry = format!(r#"{{"dtype":"I32","shape":{shape},"data_offsets":[0,{end}]}}"#);
        file(&format!(r#"{{"test":{entry}}}"#), &vec![0; len])
    };
    let same_range = {
        let entry = r#"{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}"#;
        let entries: Vec<_> = (0..10).map(|i| format!(r#""weight_{i}":{entry}"#)).collect();
        file(&format!("{{{}}}", entries.join(",")), &[0; 16])
    };
    let too_large = [&u64::to_le_bytes(60 | 0xff_ffff << 40)[..], &test("[2,2]", 16, 16)[8..]];
    let cases: [Refusal; 11] = [
        (
            same_range,
            |kind| matches!(kind, ErrorKind::SameRange { .. }),
            |error| matches!(error, SafeTensorError::InvalidOffset(_)),
        ),
        (
            [test("[2,2]", 16, 16), b"extra_bogus_data_for_polyglot_file".to_vec()].concat(),
            |kind| matches!(kind, ErrorKind::TrailingData { .. }),
            |error| matches!(error, SafeTensorError::MetadataIncompleteBuffer),
        ),
        (
            test("[2,2]", 16, 14),
            |kind| matches!(kind, ErrorKind::MissingData { .. }),
            |error| matches!(error, SafeTensorError::MetadataIncompleteBuffer),
        ),
        (
            too_large.concat(),
            |kind| matches!(kind, ErrorKind::HeaderTooLarge { .. }),
            |error| matches!(error, SafeTensorError::HeaderTooLarge),
        ),
        (
            Vec::new(),
            |kind| matches!(kind, ErrorKind::TooShort { .. }),
            |error| matches!(error, SafeTensorError::HeaderTooSmall),
        ),
        (
            u64::to_le_bytes(60).to_vec(),
            |kind| matches!(kind, ErrorKind::HeaderPastEnd { .. }),
            |error| matches!(error, SafeTensorError::InvalidHeaderLength),
        ),
        (
            b"\x01\0\0\0\0\0\0\0\xff".to_vec(),
            |kind| matches!(kind, ErrorKind::NotUtf8 { .. }),
            |error| matches!(error, SafeTensorError::InvalidHeader(_)),
        ),
        (
            file("{", &[]),
            |kind| matches!(kind, ErrorKind::Json { .. }),
            |error| matches!(error, SafeTensorError::InvalidHeaderDeserialization(_)),
        ),
        (
            test("[2,2]", 4, 0),
            |kind| matches!(kind, ErrorKind::WrongSize { .. }),
            |error| matches!(error, SafeTensorError::TensorInvalidInfo),
        ),
        (
            // The number of elements overflows.
            test("[2,18446744073709551614]", 16, 16),
            |kind| matches!(kind, ErrorKind::ShapeOverflow { .. }),
            |error| matches!(error, SafeTensorError::ValidationOverflow),
        ),
        (
            // The number of bytes overflows.
            test("[2,9223372036854775807]", 16, 16),
            |kind| matches!(kind, ErrorKind::ShapeOverflow { .. }),
            |error| matches!(error, SafeTensorError::ValidationOverflow),
        ),
    ];
    for (bytes, ours, theirs) in cases {
        let error = SafeTensors::parse(&bytes).unwrap_err();
        assert!(ours(error.kind()), "{error}");
        let error = safetensors::SafeTensors::deserialize(&bytes).unwrap_err();
        assert!(theirs(&error), "{error}");
    }
}

/// An index as the reference has it.
fn indexer(index: &Index) -> TensorIndexer {
    let position = |at: isize| usize::try_from(at).unwrap();
    match *index {
        Index::At(at) => TensorIndexer::Select(position(at)),
        Index::Range { start, end, step } => TensorIndexer::Narrow(
            start.map_or(Bound::Unbounded, |start| Bound::Included(position(start))),
            end.map_or(Bound::Unbounded, |end| Bound::Excluded(position(end))),
            NonZeroUsize::new(step).unwrap(),
        ),
    }
}

/// `test_slicing`, `test_helpers`, `test_fp4_simple`, `test_dummy`, `test_slice_variety`,
/// `test_slice_variety2`, `test_slice_select`: the same shape and the same runs of bytes.
#[test]
fn slices_are_the_runs_of_bytes_that_the_reference_states() {
    type Runs = &'static [(usize, usize)];
    let data: Vec<u8> = (0..6_u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
    let f32s = |shape| TensorView::new(Dtype::F32, shape, &data).unwrap();
    let f4s = TensorView::new(Dtype::F4, &[1, 2, 2], &data[..2]).unwrap();
    let (cube, matrix) = (f32s(&[1, 2, 3]), f32s(&[2, 3]));
    let all = Index::ALL;
    let at = |at: usize| Index::from(at);
    let part = |start: usize, end: usize| Index::from(start..end);
    let cases: [(&TensorView<'_>, Vec<Index>, Runs); 15] = [
        (&cube, vec![], &[(0, 24)]),
        (&cube, vec![all], &[(0, 24)]),
        (&cube, vec![all, all], &[(0, 24)]),
        (&cube, vec![all, all, all], &[(0, 24)]),
        (&cube, vec![part(0, 1)], &[(0, 24)]),
        (&cube, vec![all, part(0, 1)], &[(0, 12)]),
        (&cube, vec![all, all, part(0, 1)], &[(0, 4), (12, 16)]),
        (&cube, vec![all, part(1, 2), part(0, 1)], &[(12, 16)]),
        (&f4s, vec![all], &[(0, 2)]),
        (&f4s, vec![all, part(0, 1)], &[(0, 1)]),
        (&matrix, vec![all, part(1, 3)], &[(4, 12), (16, 24)]),
        (&matrix, vec![at(1), part(1, 3)], &[(16, 24)]),
        (&matrix, vec![at(0), part(1, 3)], &[(4, 12)]),
        (&matrix, vec![part(1, 2), at(0)], &[(12, 16)]),
        (&matrix, vec![all, all.step(2)], &[(0, 4), (8, 16), (20, 24)]),
    ];
    for (view, indices, runs) in cases {
        let slice = view.slice(&indices[..]).unwrap();
        let found: Vec<_> = slice.runs().collect();
        let stated: Vec<_> = runs.iter().map(|&(start, end)| &view.data()[start..end]).collect();
        assert_eq!(found, stated, "{indices:?}");
        let theirs: Vec<_> = indices.iter().map(indexer).collect();
        let theirs = reference_view(view).sliced_data(&theirs).map(|slice| {
            let shape = slice.newshape();
            (shape, slice.flat_map(<[u8]>::to_vec).collect::<Vec<u8>>())
        });
        let (shape, bytes) = theirs.unwrap();
        assert_eq!((slice.shape(), found.concat()), (&shape[..], bytes), "{indices:?}");
    }
}

/// `test_fp4_misaligned`, `test_invalid_range`, and the last statement of `test_dummy`.
#[test]
fn slices_outside_of_a_tensor_are_refused() {
    type Refusal = (Dtype, &'static [usize], Vec<Index>, fn(&ErrorKind) -> bool, InvalidSlice);
    let [all, one] = [Index::ALL, Index::At(1)];
    let reversed = Index::Range { start: Some(3), end: Some(2), step: 1 };
    let data = [0; 24];
    let out_of_range = || InvalidSlice::SliceOutOfRange { dim_index: 1, asked: 3, dim_size: 3 };
    let is_out_of_bounds: fn(&ErrorKind) -> bool =
        |kind| matches!(kind, ErrorKind::IndexOutOfBounds { dim: 1, len: 3, .. });
    let has_too_many: fn(&ErrorKind) -> bool =
        |kind| matches!(kind, ErrorKind::TooManyIndices { .. });
    let cases: [Refusal; 5] = [
        (
            Dtype::F4,
            &[1, 2],
            vec![all, Index::from(0..1)],
            |kind| matches!(kind, ErrorKind::SliceInsideByte { .. }),
            InvalidSlice::MisalignedSlice,
        ),
        (Dtype::F32, &[2, 3], vec![one, Index::from(1..4)], is_out_of_bounds, out_of_range()),
        (Dtype::F32, &[2, 3], vec![one, reversed], is_out_of_bounds, out_of_range()),
        (Dtype::F32, &[2, 3], vec![one; 3], has_too_many, InvalidSlice::TooManySlices),
        (Dtype::F32, &[1, 2, 3], vec![all; 4], has_too_many, InvalidSlice::TooManySlices),
    ];
    for (dtype, shape, indices, ours, theirs) in cases {
        let elements: usize = shape.iter().product();
        let view = TensorView::new(dtype, shape, &data[..elements * dtype.bits() as usize / 8]);
        let error = view.unwrap().slice(&indices[..]).unwrap_err();
        assert!(ours(error.kind()), "{indices:?}: {error}");
        let indexers: Vec<_> = indices.iter().map(indexer).collect();
        let found = slice_byte_ranges(reference_dtype(dtype), shape, &indexers).unwrap_err();
        assert_eq!(found.to_string(), theirs.to_string());
    }
}
