//! [`PackedTensor`]: a tensor of a record, to be written to a file.

use std::borrow::Cow;
use std::ops::Range;

use burn::tensor::{Bytes, DType, TensorData};
use burn_store::burn_pack::aligned_data_section_start;
use safetensors_core::framework::write_native;
use safetensors_core::io::FileSource;
use safetensors_core::save::Sink;
use safetensors_core::{Dtype, Error, ErrorKind, ReadAt, Result, TensorSource, shape};
use serde::{Deserialize, Serialize};

use super::container::malformed;
use crate::save::DataSource;
use crate::{dtype, load};

/// A tensor of a file is read and written in pieces of this length, which stay in the processor's
/// cache meanwhile. A multiple of the length of every element.
const PIECE: usize = 256 << 10;

/// A tensor of a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Described {
    pub(super) dtype: DType,
    pub(super) shape: Vec<u64>,
    /// Where its bytes begin and end, counted from the start of the data.
    pub(super) data_offsets: (u64, u64),
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) param_id: Option<u64>,
}

impl Described {
    /// A tensor whose place is not decided yet.
    pub(super) fn new(dtype: DType, shape: &[usize], param_id: Option<u64>) -> Self {
        let shape = shape.iter().map(|&len| len as u64).collect();
        Self { dtype, shape, data_offsets: (0, 0), param_id }
    }

    /// Its bytes in a container whose content has this length.
    pub(super) fn place(&self, metadata_len: usize) -> Result<Range<usize>> {
        let data_start = aligned_data_section_start(metadata_len);
        let in_container = |offset| data_start.checked_add(usize::try_from(offset).ok()?);
        let (start, end) = self.data_offsets;
        let place = in_container(start).zip(in_container(end)).filter(|(start, end)| start <= end);
        place.map(|(start, end)| start..end).ok_or_else(Self::cut_off)
    }

    pub(super) fn cut_off() -> Error {
        malformed(&"the data of a tensor is cut off")
    }

    pub(super) fn shape(&self) -> Vec<usize> {
        // A tensor in memory, or one of a file that was checked, has such a shape.
        self.shape.iter().map(|&len| usize::try_from(len).unwrap_or(usize::MAX)).collect()
    }
}

/// A tensor in memory, or in a file.
pub(super) struct PackedTensor<'a> {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Data<'a>,
}

enum Data<'a> {
    Memory(Cow<'a, TensorData>),
    File(&'a FileSource, Range<usize>),
}

impl<'a> PackedTensor<'a> {
    /// A tensor of these bytes. An error if the format lacks its dtype, or if its length is wrong.
    pub(super) fn of_bytes(bytes: Bytes, tensor: &Described) -> Result<Self> {
        // This comes first, because burn refuses some quantised values with an error of its own.
        dtype::to_file(tensor.dtype)?;
        Self::of_data(Cow::Owned(load::from_bytes(bytes, tensor.shape(), tensor.dtype)?))
    }

    /// A tensor with these values. Errors as for one of bytes.
    pub(super) fn of_data(data: Cow<'a, TensorData>) -> Result<Self> {
        let dtype = DataSource::new(&data)?.dtype();
        Ok(Self { dtype, shape: data.shape().to_vec(), data: Data::Memory(data) })
    }

    /// A tensor whose bytes are this range of a file. Errors as for one in memory.
    pub(super) fn of_file(
        file: &'a FileSource,
        range: Range<usize>,
        tensor: &Described,
    ) -> Result<Self> {
        let dtype = dtype::to_file(tensor.dtype)?;
        let shape = tensor.shape();
        // The booleans of some backends must be converted, and are few.
        if tensor.dtype.is_bool() {
            let mut bytes = vec![0; range.len()];
            read(file, &mut bytes, range.start)?;
            return Self::of_bytes(Bytes::from_bytes_vec(bytes), tensor);
        }
        let expected = shape::byte_len(dtype, &shape)?;
        let found = range.len() as u64;
        if expected != found {
            return Err(ErrorKind::DataLength { dtype, shape, expected, found }.into());
        }
        Ok(Self { dtype, shape, data: Data::File(file, range) })
    }
}

/// Fills `bytes`. Errors name the file.
fn read(file: &FileSource, bytes: &mut [u8], offset: usize) -> Result<()> {
    let read = file.read_exact_at(bytes, offset as u64);
    read.map_err(|error| Error::from(ErrorKind::Io(error)).in_path(file.path()))
}

impl TensorSource for PackedTensor<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        match &self.data {
            Data::Memory(data) => DataSource::new(data)?.write_to(sink),
            Data::File(file, range) => {
                let mut buffer = vec![0; PIECE.min(range.len())];
                for start in range.clone().step_by(PIECE) {
                    let piece = &mut buffer[..PIECE.min(range.end - start)];
                    read(file, piece, start)?;
                    write_native(self.dtype, piece, sink)?;
                }
                Ok(())
            }
        }
    }
}
