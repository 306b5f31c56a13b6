//! Conversion while tensors are saved.

use proptest::prelude::*;
use safetensors_core::convert::{Converted, can_convert};
use safetensors_core::save::Sink;

use super::misfit;
use crate::support::*;

/// A source that gives its bytes in pieces of the given sizes, which it repeats.
struct Pieces<'a> {
    dtype: Dtype,
    shape: [usize; 1],
    bytes: &'a [u8],
    sizes: &'a [usize],
}

impl TensorSource for Pieces<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        let mut rest = self.bytes;
        for &size in self.sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at(size.min(rest.len()));
            sink(piece)?;
            rest = after;
        }
        Ok(())
    }
}

/// The bytes that a source gives, and the length of its longest piece.
fn gather(source: &impl TensorSource) -> Result<(Vec<u8>, usize)> {
    let (mut bytes, mut longest) = (Vec::new(), 0);
    source.write_to(&mut |piece| {
        bytes.extend_from_slice(piece);
        longest = longest.max(piece.len());
        Ok(())
    })?;
    Ok((bytes, longest))
}

proptest! {
    #[test]
    fn any_cut_of_the_source_converts_the_same(
        dtypes in (0..Dtype::ALL.len(), 0..Dtype::ALL.len()),
        bytes in prop::collection::vec(0..2_u8, 0..4_000),
        sizes in prop::collection::vec(1..700_usize, 1..6),
    ) {
        let (from, to) = (Dtype::ALL[dtypes.0], Dtype::ALL[dtypes.1]);
        prop_assume!(can_convert(from, to));
        // Bytes of 0 and 1 are valid BOOL elements, tiny floats of any dtype, and integers that may
        // not fit.
        let elements = bytes.len() * 8 / from.bits() as usize / 4 * 4;
        let bytes = &bytes[..elements * from.bits() as usize / 8];
        let expected = super::convert(from, to, Overflow::Ieee, bytes);
        let source = Pieces { dtype: from, shape: [elements], bytes, sizes: &sizes };
        let converted = Converted::new(source, to, &ConvertOptions::new()).unwrap();
        prop_assert_eq!((converted.dtype(), converted.shape()), (to, &[elements][..]));
        match (gather(&converted), expected) {
            (Ok((found, _)), Ok(expected)) => prop_assert_eq!(found, file_bytes(&expected)),
            (Err(found), Err(expected)) => prop_assert_eq!(found.to_string(), expected.to_string()),
            (found, expected) => prop_assert!(false, "{found:?} {expected:?}"),
        }
    }
}

#[test]
fn a_large_tensor_goes_through_in_small_pieces() {
    for (from, to) in
        [(Dtype::F64, Dtype::F8_E4M3), (Dtype::F6_E3M2, Dtype::F64), (Dtype::U8, Dtype::I64)]
    {
        let byte = |i: usize| if from == Dtype::F64 { 0 } else { (i % 251) as u8 };
        let bytes = repeated(3_000_000, 251, byte);
        let elements = bytes.len() * 8 / from.bits() as usize;
        let source = TensorView::new(from, std::slice::from_ref(&elements), &bytes).unwrap();
        let (found, longest) =
            gather(&Converted::new(source, to, &ConvertOptions::new()).unwrap()).unwrap();
        assert!(
            found == file_bytes(&super::convert(from, to, Overflow::Ieee, &bytes).unwrap()),
            "{from} {to}"
        );
        assert!(longest <= 512 << 10, "{longest}");
    }
}

#[test]
fn a_source_of_another_length_is_refused() {
    for len in [0, 3, 7, 9, 12] {
        let bytes = vec![0; len];
        let source = Pieces { dtype: Dtype::F32, shape: [2], bytes: &bytes, sizes: &[5] };
        let error = gather(&Converted::new(source, Dtype::F16, &ConvertOptions::new()).unwrap())
            .unwrap_err();
        let found = if len == 12 { 10 } else { len as u64 };
        assert!(
            matches!(error.kind(), ErrorKind::SourceLength { expected: 8, found: f } if *f == found),
            "{error}"
        );
    }
}

/// A source that goes on after an error of the sink causes neither an incomplete file nor a panic.
#[test]
fn a_source_that_goes_on_after_a_failure() {
    struct Stubborn(Vec<u8>, [usize; 1]);

    impl TensorSource for Stubborn {
        fn dtype(&self) -> Dtype {
            Dtype::F32
        }

        fn shape(&self) -> &[usize] {
            &self.1
        }

        fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
            self.0.chunks(1024).for_each(|piece| _ = sink(piece));
            Ok(())
        }
    }

    let elements = 3 << 16;
    let half: Vec<u8> = 0.5_f32.to_le_bytes().repeat(elements);
    let source =
        Converted::new(Stubborn(half, [elements]), Dtype::U8, &ConvertOptions::new()).unwrap();
    let error = serialize([("w", source)], &SaveOptions::new()).unwrap_err();
    let kind = error.kind();
    assert!(matches!(kind, ErrorKind::SourceLength { expected: 0xc_0000, .. }), "{error}");
}

#[test]
fn a_pair_that_cannot_be_converted_is_refused_at_once_and_a_value_when_it_is_saved() {
    let values = TensorBuf::from_vec(vec![3], vec![1.0_f64, 2.0, 1e6]).unwrap();
    refused!(
        Converted::new(&values, Dtype::F6_E2M3, &ConvertOptions::new()),
        ErrorKind::NoConversion { from: Dtype::F64, to: Dtype::F6_E2M3 }
    );

    let strict = ConvertOptions::new().overflow(Overflow::Error);
    let narrow = Converted::new(&values, Dtype::F16, &strict).unwrap();
    let error = serialize([("w", &narrow)], &SaveOptions::new()).unwrap_err();
    assert_eq!((misfit(&error), error.tensor()), (2, Some("w")));

    let (_directory, path) = place("w.safetensors");
    let error = save(&path, [("w", &narrow)], &SaveOptions::new()).unwrap_err();
    assert_eq!((misfit(&error), error.tensor(), error.file()), (2, Some("w"), path.to_str()));
    assert!(!path.exists());
}

#[test]
fn a_slice_of_a_file_is_converted_into_another_file() {
    let weights: Vec<f32> = (0..60_u8).map(f32::from).collect();
    let buf = TensorBuf::from_vec(vec![6, 10], weights).unwrap();
    let file = serialize([("w", buf)], &SaveOptions::new()).unwrap();
    let archive = SafeTensors::from_source(file).unwrap();
    let columns = archive.tensor("w").unwrap().slice((.., 3..5)).unwrap();
    assert_eq!(columns.dtype(), Dtype::F32);
    let narrow = Converted::new(columns, Dtype::U8, &ConvertOptions::new()).unwrap();
    let file = serialize([("w", narrow)], &SaveOptions::new()).unwrap();
    let saved = SafeTensors::parse(file).unwrap();
    let saved = saved.view("w").unwrap();
    assert_eq!(saved.shape(), [6, 2]);
    assert_eq!(saved.as_slice::<u8>().unwrap(), [3, 4, 13, 14, 23, 24, 33, 34, 43, 44, 53, 54]);
}

#[test]
fn the_same_dtype_is_passed_on() {
    let values = TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0]).unwrap();
    let same = Converted::new(&values, Dtype::F32, &ConvertOptions::new()).unwrap();
    same.write_to(&mut |piece| {
        // A big-endian machine swaps a copy.
        assert!(cfg!(target_endian = "big") || piece.as_ptr() == values.bytes().as_ptr());
        Ok(())
    })
    .unwrap();
}
