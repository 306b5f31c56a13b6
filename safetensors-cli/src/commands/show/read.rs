//! [`read`]: the values in a slice of a tensor.

use std::io;

use safetensors_core::{
    ConvertOptions, Dtype, Error, ErrorKind, LazyTensor, ReadAt, Result, TensorSource, TensorView,
};

use crate::input::slicing::Selection;

/// The most elements that are read at a time.
const PACKED: u64 = 1 << 18;

/// Exact: an `f32` has each value of the shorter floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Single(f32),
    Double(f64),
    /// The real and the imaginary part.
    Complex(f32, f32),
}

/// Passes values to `take` in C order. Other bytes are read only in gaps of at most 512, and to
/// complete packed elements.
pub(super) fn read<S: ReadAt>(
    tensor: &LazyTensor<'_, S>,
    selection: &Selection,
    take: &mut dyn FnMut(Value) -> io::Result<()>,
) -> Result<()> {
    if selection.len() == 0 {
        return Ok(());
    }
    let mut take = |value| take(value).map_err(|error| Error::from(ErrorKind::Io(error)));
    if tensor.dtype().is_sub_byte() {
        return read_packed(tensor, selection, &mut take);
    }
    let mut decoder = Decoder { dtype: tensor.dtype(), rest: Vec::new(), index: 0 };
    let decoded =
        tensor.slice(selection.indices())?.write_to(&mut |bytes| decoder.decode(bytes, &mut take));
    decoded.map_err(|error| match error.kind() {
        ErrorKind::InvalidBool { index, found } => {
            let index = selection.element(*index);
            tensor.locate(ErrorKind::InvalidBool { index, found: *found }.into())
        }
        _ => error,
    })
}

/// Decodes bytes that may be cut anywhere.
struct Decoder {
    dtype: Dtype,
    /// The bytes of an element that has not ended.
    rest: Vec<u8>,
    /// The number of values so far.
    index: u64,
}

impl Decoder {
    fn decode(
        &mut self,
        mut bytes: &[u8],
        take: &mut dyn FnMut(Value) -> Result<()>,
    ) -> Result<()> {
        let size = self.dtype.bits() as usize / 8;
        if !self.rest.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(size - self.rest.len()));
            self.rest.extend(now);
            bytes = later;
            if self.rest.len() < size {
                return Ok(());
            }
            let element = std::mem::take(&mut self.rest);
            self.elements(&element, take)?;
        }
        let (whole, rest) = bytes.split_at(bytes.len() / size * size);
        self.rest.extend(rest);
        self.elements(whole, take)
    }

    fn elements(&mut self, bytes: &[u8], take: &mut dyn FnMut(Value) -> Result<()>) -> Result<()> {
        macro_rules! numbers {
            ($type:ty, $value:expr) => {
                for &element in bytes.as_chunks().0 {
                    take($value(<$type>::from_le_bytes(element).into()))?;
                }
            };
        }
        match self.dtype {
            Dtype::BOOL => {
                for (index, &found) in (self.index..).zip(bytes) {
                    take(match found {
                        0 | 1 => Value::Bool(found == 1),
                        _ => return Err(ErrorKind::InvalidBool { index, found }.into()),
                    })?;
                }
            }
            Dtype::U8 => numbers!(u8, Value::Unsigned),
            Dtype::U16 => numbers!(u16, Value::Unsigned),
            Dtype::U32 => numbers!(u32, Value::Unsigned),
            Dtype::U64 => numbers!(u64, Value::Unsigned),
            Dtype::I8 => numbers!(i8, Value::Signed),
            Dtype::I16 => numbers!(i16, Value::Signed),
            Dtype::I32 => numbers!(i32, Value::Signed),
            Dtype::I64 => numbers!(i64, Value::Signed),
            Dtype::F32 => numbers!(f32, Value::Single),
            Dtype::F64 => numbers!(f64, Value::Double),
            Dtype::C64 => {
                for part in bytes.as_chunks::<4>().0.as_chunks::<2>().0 {
                    let [real, imaginary] = part.map(f32::from_le_bytes);
                    take(Value::Complex(real, imaginary))?;
                }
            }
            // The other dtypes are floats of 16 bits or fewer.
            dtype => {
                let values = singles(dtype, bytes)?;
                values.into_iter().try_for_each(|value| take(Value::Single(value)))?;
            }
        }
        self.index += (bytes.len() * 8 / self.dtype.bits() as usize) as u64;
        Ok(())
    }
}

/// Decodes floats of fewer than 32 bits.
fn singles(dtype: Dtype, bytes: &[u8]) -> Result<Vec<f32>> {
    let shape = [bytes.len() * 8 / dtype.bits() as usize];
    let view = TensorView::new(dtype, &shape, bytes)?;
    view.convert(Dtype::F32, &ConvertOptions::new())?.into_vec()
}

/// Reads packed elements, which core slices only where they fill bytes.
fn read_packed<S: ReadAt>(
    tensor: &LazyTensor<'_, S>,
    selection: &Selection,
    take: &mut dyn FnMut(Value) -> Result<()>,
) -> Result<()> {
    // The elements that were read last, and the number of the first.
    let (mut first, mut values) = (0, Vec::new());
    for index in 0..u64::try_from(selection.len()).unwrap_or(u64::MAX) {
        let element = selection.element(index);
        if element < first || element - first >= values.len() as u64 {
            // Eight elements fill whole bytes, and so does the whole tensor.
            first = element / 8 * 8;
            let end = selection.run(index).min(first + PACKED).next_multiple_of(8);
            let end = end.min(tensor.element_count());
            values.clear();
            for piece in tensor.pieces_of(first..end) {
                let mut bytes = vec![0; piece.byte_len() as usize];
                piece.read_bytes_into(&mut bytes)?;
                values.extend(singles(tensor.dtype(), &bytes)?);
            }
        }
        take(Value::Single(values[(element - first) as usize]))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use safetensors_core::{SafeTensors, SaveOptions, serialize};

    use super::*;
    use crate::input::slicing::Slice;

    struct Counting(Vec<u8>, AtomicU64);

    impl ReadAt for Counting {
        fn byte_len(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
            self.1.fetch_add(buf.len() as u64, Ordering::Relaxed);
            self.0.read_exact_at(buf, offset)
        }
    }

    fn taken(view: TensorView<'_>, slice: &str) -> (Vec<Value>, u64) {
        let bytes = serialize([("w", view)], &SaveOptions::new()).unwrap();
        let file = SafeTensors::from_source(Counting(bytes, AtomicU64::new(0))).unwrap();
        let of_header = file.source().1.load(Ordering::Relaxed);
        let tensor = file.tensor("w").unwrap();
        let selection = Slice::parse(slice).unwrap().select(&tensor).unwrap();
        let mut values = Vec::new();
        read(&tensor, &selection, &mut |value| {
            values.push(value);
            Ok(())
        })
        .unwrap();
        (values, file.source().1.load(Ordering::Relaxed) - of_header)
    }

    #[test]
    fn only_the_bytes_of_the_slice_are_read() {
        let values: Vec<f32> = (0..100_000).map(|i| i as f32).collect();
        let view = TensorView::from_slice(&[100, 1000], &values).unwrap();
        let single =
            |numbers: &[f32]| numbers.iter().copied().map(Value::Single).collect::<Vec<_>>();
        assert_eq!(taken(view, "[7, 3]"), (single(&[7003.0]), 4));
        let corner = single(&[98_998.0, 98_999.0, 99_998.0, 99_999.0]);
        assert_eq!(taken(view, "[-2:, -2:]"), (corner, 16));
        assert_eq!(taken(view, "[50]"), (single(&values[50_000..51_000]), 4000));
        assert_eq!(taken(view, "[::50, 0]"), (single(&[0.0, 50_000.0]), 8));
        assert_eq!(taken(view, "[5:5]"), (vec![], 0));
    }

    #[test]
    fn packed_elements_may_begin_inside_a_byte() {
        // The codes 0 to 15, two in a byte: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and the same negative.
        let bytes: Vec<u8> = (0..8).map(|i| (2 * i) | ((2 * i + 1) << 4)).collect();
        let view = |shape| TensorView::new(Dtype::F4, shape, &bytes).unwrap();
        let single =
            |numbers: &[f32]| numbers.iter().copied().map(Value::Single).collect::<Vec<_>>();
        // Whole bytes are read, of eight elements at least.
        assert_eq!(taken(view(&[16]), "[1:4]"), (single(&[0.5, 1.0, 1.5]), 4));
        assert_eq!(taken(view(&[16]), "[3::5]"), (single(&[1.5, -0.0, -3.0]), 8));
        assert_eq!(taken(view(&[4, 2, 2]), "[:, 0, 1]").0, single(&[0.5, 3.0, -0.5, -3.0]));
        // A row of three elements begins and ends anywhere.
        let sixes = [0x81, 0x30, 0x10, 0x81, 0x30, 0x10, 0x81, 0x30, 0x10];
        let view = TensorView::new(Dtype::F6_E2M3, &[4, 3], &sixes).unwrap();
        assert_eq!(taken(view, "[1]").0, single(&[0.5, 0.125, 0.25]));
        assert_eq!(taken(view, "[-1, ::2]").0, single(&[0.25, 0.5]));
    }

    #[test]
    fn bytes_may_be_cut_anywhere() {
        let bytes: Vec<u8> = (0..24).collect();
        for dtype in [Dtype::C64, Dtype::F64, Dtype::I16, Dtype::BF16, Dtype::U8] {
            let decode = |parts: &[&[u8]]| {
                let (mut values, mut decoder) =
                    (Vec::new(), Decoder { dtype, rest: Vec::new(), index: 0 });
                for part in parts {
                    let take = &mut |value| {
                        values.push(value);
                        Ok(())
                    };
                    decoder.decode(part, take).unwrap();
                }
                values
            };
            let whole = decode(&[&bytes]);
            assert_eq!(whole.len() as u32, 24 * 8 / dtype.bits());
            assert_eq!(decode(&bytes.chunks(1).collect::<Vec<_>>()), whole, "{dtype}");
            assert_eq!(decode(&bytes.chunks(5).collect::<Vec<_>>()), whole, "{dtype}");
        }
    }
}
