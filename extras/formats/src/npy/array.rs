//! [`Array`]: an array in a file, read when it is written elsewhere.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use safetensors_core::framework::check_bools;
use safetensors_core::save::Sink;
use safetensors_core::{self as core, Dtype, ReadAt, TensorBuf, TensorSource};

use super::file::tensor;
use super::header::{Header, Order, check_length, header_of_member};
use crate::Limits;
use crate::error::{Error, ErrorKind, Result};
use crate::input::{Cursor, Input, stem};
use crate::polyglot::check_polyglot;
use crate::tensor_file::{Container, Place, Scratch, swap};
use crate::zipped::{Zipped, expect_end};

const PIECE: usize = 1 << 20;

/// Bytes made at once from Fortran order.
const BLOCK: u64 = 32 << 20;

/// An array of a `.npy` file, or in a `.npz` archive, with its header read, but not its elements.
///
/// As a [`TensorSource`] it gives elements in C order and little-endian, for any order in the file.
/// That takes 1 MiB, or for Fortran order two buffers of at most 32 MiB and one of 4 MiB. A
/// compressed array in Fortran order above 32 MiB goes through a temporary file.
///
/// ```
/// use safetensors_core::{Checkpoint, SaveOptions, TensorBuf, save};
/// use safetensors_formats::npy;
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("weight.npy");
/// let weight = TensorBuf::from_vec(vec![2, 2], vec![1.0_f32, 2.0, 3.0, 4.0])?;
/// npy::write(std::fs::File::create(&path)?, &weight)?;
///
/// // As a tensor in memory.
/// let array = npy::Array::open(&path)?;
/// assert_eq!((array.name(), &*array.header().shape), ("weight", &[2, 2][..]));
/// assert_eq!(array.read()?.into_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
///
/// // From file to file.
/// let model = dir.path().join("model.safetensors");
/// save(&model, [(array.name(), &array)], &SaveOptions::new())?;
/// assert_eq!(Checkpoint::open(&model)?.tensor("weight")?.read()?.bytes(), weight.bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Array {
    name: String,
    header: Header,
    header_len: u64,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Whole(Arc<Input<'static>>),
    Member(Arc<Zipped<'static>>, usize),
}

impl Array {
    /// Opens a `.npy` file and reads its header, with the default [`Limits`]. The array is named
    /// after the file, without its extension.
    ///
    /// # Errors
    ///
    /// Like [`Header::read`]; [`ErrorKind::DataLength`]; errors of the core for a file that is not
    /// a regular one, or on overflow.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::of_input(Input::open(path)?, stem(path), &Limits::default())
    }

    /// Reads the header of a `.npy` file in memory, or anywhere else. Errors show `path`; the array
    /// has its name without extension.
    pub fn from_source(
        source: impl ReadAt + 'static,
        path: impl AsRef<Path>,
        limits: &Limits,
    ) -> Result<Self> {
        let path = path.as_ref();
        Self::of_input(Input::new(Arc::new(source), path), stem(path), limits)
    }

    fn of_input(input: Input<'static>, name: String, limits: &Limits) -> Result<Self> {
        let input = Arc::new(input);
        let mut cursor = Cursor { input: Arc::clone(&input), at: 0 };
        let opened = check_polyglot(&*input.source)
            .and_then(|()| Header::read(&mut cursor, limits))
            .and_then(|header| check_length(&header, cursor.left()).map(|()| header));
        let header = opened.map_err(|error| error.in_file(&input.file))?;
        let header_len = cursor.at;
        input.check_unchanged()?;
        Ok(Self { name, header, header_len, bytes: Bytes::Whole(input) })
    }

    pub(crate) fn of_member(
        archive: &Arc<Zipped<'static>>,
        index: usize,
        name: &str,
        limits: &Limits,
    ) -> Result<Self> {
        let opened = archive.member(index, |member| {
            let size = member.size();
            header_of_member(member, size, limits)
        });
        let (header, header_len) =
            opened.map_err(|error| error.in_file(&archive.input.file).in_tensor(name))?;
        archive.input.check_unchanged()?;
        let bytes = Bytes::Member(Arc::clone(archive), index);
        Ok(Self { name: name.into(), header, header_len, bytes })
    }

    /// Returns the name of the file or member, without `.npy`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of the file or archive, as in errors.
    pub fn file(&self) -> &str {
        &self.input().file
    }

    /// Returns the header: dtype, shape, and layout in the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Reads the elements into memory.
    ///
    /// # Errors
    ///
    /// Like [`write_to`](TensorSource::write_to); an error of the core if the array is too large
    /// for memory.
    pub fn read(&self) -> Result<TensorBuf> {
        // A member that cannot have the bytes it claims must not get memory for them.
        self.check_size()?;
        let read = TensorBuf::filled_by(self.dtype(), self.shape().to_vec(), |mut rest| {
            self.write_to(&mut |piece| {
                // The pieces fill the buffer exactly: the length was checked.
                let (filled, after) = std::mem::take(&mut rest).split_at_mut(piece.len());
                filled.copy_from_slice(piece);
                rest = after;
                Ok(())
            })
        });
        read.map_err(|error| self.locate(error))
    }

    fn check_size(&self) -> Result<()> {
        match &self.bytes {
            Bytes::Whole(_) => Ok(()),
            Bytes::Member(archive, index) => {
                archive.check_size(*index).map_err(|error| self.locate(error))
            }
        }
    }

    fn input(&self) -> &Input<'static> {
        match &self.bytes {
            Bytes::Whole(input) => input,
            Bytes::Member(archive, _) => &archive.input,
        }
    }

    fn locate(&self, error: Error) -> Error {
        let error = error.in_file(&self.input().file);
        match &self.bytes {
            Bytes::Whole(_) => error,
            Bytes::Member(..) => error.in_tensor(&self.name),
        }
    }

    fn data_len(&self) -> core::Result<u64> {
        Ok(core::shape::byte_len(self.dtype(), self.shape())?)
    }

    fn with_data(&self, read: &mut dyn FnMut(&mut dyn Read) -> Result<()>) -> Result<()> {
        match &self.bytes {
            Bytes::Whole(input) => {
                read(&mut Cursor { input: Arc::clone(input), at: self.header_len })
            }
            Bytes::Member(archive, index) => archive.member(*index, |member| {
                io::copy(&mut member.take(self.header_len), &mut io::sink())?;
                read(member)
            }),
        }
    }

    fn write_in_order(&self, sink: &mut Sink<'_>) -> Result<()> {
        let all = self.data_len()?;
        self.with_data(&mut |reader| {
            let mut buffer = vec![0; all.min(PIECE as u64) as usize];
            for start in (0..all).step_by(PIECE) {
                let piece = &mut buffer[..(all - start).min(PIECE as u64) as usize];
                read_exact(reader, piece)?;
                self.check_bools(piece, start)?;
                if let Some(width) = self.header.swapped() {
                    swap(piece, width);
                }
                sink(piece)?;
            }
            expect_end(reader)
        })
    }

    fn write_transposed(&self, sink: &mut Sink<'_>) -> Result<()> {
        let (container, place) = self.anywhere()?;
        let data = tensor(String::new(), &self.header, place)?.data;
        let all = self.data_len()?;
        let mut block = vec![0; all.min(self.block_len()?) as usize];
        for start in (0..all).step_by(block.len()) {
            let len = (all - start).min(block.len() as u64) as usize;
            data.read(&container, &mut block[..len], start)?;
            for (piece, first) in block[..len].chunks(PIECE).zip((start..).step_by(PIECE)) {
                self.check_bools(piece, first)?;
                sink(piece)?;
            }
        }
        Ok(())
    }

    /// A block has all positions along its last dimensions.
    fn block_len(&self) -> Result<u64> {
        let mut len = self.data_len()?;
        for &dim in self.shape() {
            if len <= BLOCK {
                break;
            }
            let position = len / dim as u64;
            len = (BLOCK / position).max(1) * position;
        }
        Ok(len)
    }

    /// For NumPy any byte is a boolean, the format knows 0 and 1. `first`: the number of the first.
    fn check_bools(&self, piece: &[u8], first: u64) -> Result<()> {
        if self.dtype() == Dtype::BOOL {
            check_bools(piece, first)?;
        }
        Ok(())
    }

    fn anywhere(&self) -> Result<(Container, Place)> {
        let (archive, index) = match &self.bytes {
            Bytes::Whole(input) => {
                return Ok((Container::File(Arc::clone(input)), Place::At(self.header_len)));
            }
            Bytes::Member(archive, index) => (archive, *index),
        };
        let len = self.data_len()?;
        let mut place = archive.place(index)?.after(self.header_len);
        if len <= BLOCK {
            let mut all = vec![0; len as usize];
            self.with_data(&mut |reader| {
                read_exact(reader, &mut all)?;
                expect_end(reader)
            })?;
            place = Place::Held(all.into());
        } else if let Place::At(_) = place {
            // Reads at scattered places have no checksum, so all is read once for it.
            self.with_data(&mut |reader| Ok(io::copy(reader, &mut io::sink()).map(drop)?))?;
        }
        Ok((Container::Zip(Arc::clone(archive), Scratch::default()), place))
    }
}

impl TensorSource for Array {
    fn dtype(&self) -> Dtype {
        self.header.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.header.shape
    }

    /// Passes the elements to `sink`, in pieces of at most 1 MiB.
    ///
    /// # Errors
    ///
    /// Errors of `sink`. Errors of reading name the file, and a member as tensor: damaged or
    /// impossible members, [`InvalidBool`](core::ErrorKind::InvalidBool), and a file that has
    /// changed since it was opened.
    fn write_to(&self, sink: &mut Sink<'_>) -> core::Result<()> {
        let mut refused = None;
        let mut sink = |bytes: &[u8]| {
            // An error of the sink is about another file, and is given back as it is.
            sink(bytes).map_err(|error| {
                refused = Some(error);
                core::ErrorKind::Io(io::ErrorKind::Other.into()).into()
            })
        };
        let written = self.check_size().and_then(|()| match self.header.order {
            Order::Fortran if differs(self.shape()) => self.write_transposed(&mut sink),
            _ => self.write_in_order(&mut sink),
        });
        if let Some(error) = refused {
            return Err(error);
        }
        let checked = written.and_then(|()| self.input().check_unchanged());
        checked.map_err(|error| self.locate(error))
    }
}

/// Only a member can end early: the length of a file was checked.
fn read_exact(reader: &mut dyn Read, buf: &mut [u8]) -> Result<()> {
    reader.read_exact(buf).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            ErrorKind::BadArchive { problem: "the member is shorter than it says".into() }.into()
        }
        _ => error.into(),
    })
}

fn differs(shape: &[usize]) -> bool {
    shape.iter().filter(|&&dim| dim > 1).count() > 1 && !shape.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::super::descr::ByteOrder;
    use super::*;

    fn array(header: Header, data: &[u8]) -> Array {
        let file = [&header.encode().unwrap(), data].concat();
        Array::from_source(file, "a.npy", &Limits::default()).unwrap()
    }

    fn fortran(dtype: Dtype, shape: &[usize]) -> Header {
        Header { order: Order::Fortran, ..Header::new(dtype, shape) }
    }

    #[test]
    fn bytes_are_swapped_within_each_number() {
        for (dtype, expected) in [
            (Dtype::I8, [1, 2, 3, 4, 5, 6, 7, 8]),
            (Dtype::F16, [2, 1, 4, 3, 6, 5, 8, 7]),
            (Dtype::U32, [4, 3, 2, 1, 8, 7, 6, 5]),
            (Dtype::C64, [4, 3, 2, 1, 8, 7, 6, 5]),
            (Dtype::F64, [8, 7, 6, 5, 4, 3, 2, 1]),
        ] {
            let width = dtype.bits() as usize / 8;
            for header in [
                Header::new(dtype, &[8 / width]),
                // Each element twice, so that the order of elements does not matter.
                fortran(dtype, &[8 / width, 2]),
            ] {
                let header = Header { byte_order: ByteOrder::Big, ..header };
                let data = [1, 2, 3, 4, 5, 6, 7, 8].repeat(header.shape.len());
                let read = array(header, &data).read().unwrap();
                let elements = read.bytes().chunks(width).step_by(read.shape().len());
                assert_eq!(elements.collect::<Vec<_>>().concat(), expected, "{dtype}");
            }
        }
    }

    #[test]
    fn booleans_are_checked_and_counted_over_all_pieces() {
        let mut data = vec![1; PIECE + 4];
        data[PIECE + 3] = 2;
        for header in [
            Header::new(Dtype::BOOL, &[data.len()]),
            // The last element is the last in both orders.
            fortran(Dtype::BOOL, &[2, data.len() / 2]),
        ] {
            let error = array(header, &data).read().unwrap_err();
            let index = PIECE as u64 + 3;
            let expected = core::ErrorKind::InvalidBool { index, found: 2 };
            assert_eq!(error.kind().to_string(), expected.to_string());
        }
    }

    #[test]
    fn an_error_of_the_sink_ends_it() {
        let data = vec![0; 4 * PIECE];
        for header in [Header::new(Dtype::U8, &[4, PIECE]), fortran(Dtype::U8, &[4, PIECE])] {
            let mut given = 0;
            let error = array(header, &data).write_to(&mut |_| {
                given += 1;
                Err(core::ErrorKind::AlreadyFinished.into())
            });
            assert!(matches!(error.unwrap_err().kind(), core::ErrorKind::AlreadyFinished));
            assert_eq!(given, 1);
        }
    }

    #[test]
    fn c_and_fortran_order_differ_only_for_several_long_dimensions() {
        for same in [&[][..], &[7], &[1, 7, 1], &[0, 3], &[2, 3, 0]] {
            assert!(!differs(same), "{same:?}");
        }
        assert!(differs(&[2, 3]) && differs(&[1, 2, 1, 3]));
    }

    #[test]
    fn a_block_has_all_positions_along_the_last_dimensions() {
        let most = BLOCK as usize;
        for (shape, expected) in [
            (vec![2, 3], 6),
            (vec![2, most / 2], most),
            (vec![3, most / 2], most),
            (vec![3, most / 3], most / 3 * 3),
            (vec![2, 5, most / 3], most / 3 * 3),
            (vec![2, 2, most + 1], most),
        ] {
            let header = fortran(Dtype::U8, &shape);
            let header_len = 0;
            let input = Arc::new(Input::new(Arc::new(Vec::new()), Path::new("")));
            let bytes = Bytes::Whole(input);
            let array = Array { name: String::new(), header, header_len, bytes };
            assert_eq!(array.block_len().unwrap(), expected as u64, "{shape:?}");
        }
    }
}
