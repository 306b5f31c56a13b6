//! [`Array`]: an array in a file, which is read when it is written elsewhere.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use safetensors_core::io::FileSource;
use safetensors_core::save::Sink;
use safetensors_core::{self as core, Dtype, ReadAt, TensorBuf, TensorSource};

use super::elements::Elements;
use super::fortran;
use super::header::{Header, Order, check_length, header_of_member};
use crate::Limits;
use crate::error::{Error, ErrorKind, Result};
use crate::input::{Cursor, Input, stem};
use crate::polyglot::check_polyglot;
use crate::zipped::{Place, Zipped, expect_end};

/// The most bytes that are given away at once.
const PIECE: usize = 1 << 20;

/// An array of a `.npy` file, or of a member of a `.npz` archive: its header is read, its elements
/// are not.
///
/// It is a [`TensorSource`], so it can be saved piece by piece. Its elements are given in the order
/// of safetensors, C order and little-endian, even if the file has another. That takes two buffers
/// of at most 32 MiB for an array in Fortran order, and 1 MiB for any other. An array in Fortran
/// order that is compressed and larger than 32 MiB is unpacked to a temporary file first.
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
pub struct Array<S = FileSource> {
    name: String,
    header: Header,
    /// The number of bytes before the elements.
    header_len: u64,
    bytes: Bytes<S>,
}

/// Where the bytes of the `.npy` file are.
#[derive(Debug)]
enum Bytes<S> {
    /// They are the input.
    Whole(Arc<Input<S>>),
    /// They are a member of an archive.
    Member(Arc<Zipped<S>>, usize),
}

impl Array {
    /// Opens a `.npy` file and reads its header, with the default [`Limits`]. The array has the
    /// name of the file without its extension.
    ///
    /// # Errors
    ///
    /// An error of [`Header::read`]; an error of the core if there is no such regular file, or if
    /// the size overflows; [`ErrorKind::DataLength`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::of_input(Input::open(path)?, stem(path), &Limits::default())
    }
}

impl<S: ReadAt> Array<S> {
    /// Reads the header of a `.npy` file that is in memory, or anywhere else. Errors show `path`;
    /// the array has its name without extension.
    pub fn from_source(source: S, path: impl AsRef<Path>, limits: &Limits) -> Result<Self> {
        let path = path.as_ref();
        Self::of_input(Input::new(source, path), stem(path), limits)
    }

    fn of_input(input: Input<S>, name: String, limits: &Limits) -> Result<Self> {
        let input = Arc::new(input);
        let mut cursor = Cursor { input: Arc::clone(&input), at: 0 };
        let opened = check_polyglot(&input.source)
            .and_then(|()| Header::read(&mut cursor, limits))
            .and_then(|header| check_length(&header, cursor.left()).map(|()| header));
        let header = opened.map_err(|error| error.in_file(&input.file))?;
        let header_len = cursor.at;
        input.check_unchanged()?;
        Ok(Self { name, header, header_len, bytes: Bytes::Whole(input) })
    }

    /// The array in a member of an archive.
    pub(crate) fn of_member(
        archive: &Arc<Zipped<S>>,
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

    /// Returns the name of the file or of the archive's member, without `.npy`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of the file or of the archive, as errors show it.
    pub fn file(&self) -> &str {
        &self.input().file
    }

    /// Returns the header: dtype and shape, and the layout of the elements in the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Reads the elements into memory.
    ///
    /// # Errors
    ///
    /// An error of [`write_to`](TensorSource::write_to), and an error of the core if the array is
    /// too large for memory.
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

    /// Fails if the array's place in the archive cannot hold the bytes that it claims.
    fn check_size(&self) -> Result<()> {
        match &self.bytes {
            Bytes::Whole(_) => Ok(()),
            Bytes::Member(archive, index) => {
                archive.check_size(*index).map_err(|error| self.locate(error))
            }
        }
    }

    fn input(&self) -> &Input<S> {
        match &self.bytes {
            Bytes::Whole(input) => input,
            Bytes::Member(archive, _) => &archive.input,
        }
    }

    /// Says in an error where the array is.
    fn locate(&self, error: Error) -> Error {
        let error = error.in_file(&self.input().file);
        match &self.bytes {
            Bytes::Whole(_) => error,
            Bytes::Member(..) => error.in_tensor(&self.name),
        }
    }

    /// Returns the number of bytes of the elements.
    fn data_len(&self) -> core::Result<u64> {
        Ok(core::shape::byte_len(self.dtype(), self.shape())?)
    }

    /// Gives `read` the bytes of the elements, front to back.
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

    /// Gives the elements in the order of the file.
    fn write_in_order(&self, sink: &mut Sink<'_>) -> Result<()> {
        let all = self.data_len()?;
        self.with_data(&mut |reader| {
            let mut elements = Elements::of(&self.header);
            let mut left = all;
            let mut buffer = vec![0; left.min(PIECE as u64) as usize];
            while left > 0 {
                let piece = &mut buffer[..left.min(PIECE as u64) as usize];
                read_exact(reader, piece)?;
                elements.finish(piece)?;
                sink(piece)?;
                left -= piece.len() as u64;
            }
            expect_end(&mut &mut *reader)
        })
    }

    /// Gives the elements in C order. The file has another order.
    fn write_transposed(&self, sink: &mut Sink<'_>) -> Result<()> {
        let mut elements = Elements::of(&self.header);
        let mut give = |part: &mut [u8]| {
            part.chunks_mut(PIECE).try_for_each(|piece| {
                elements.finish(piece)?;
                sink(piece)
            })
        };
        let width = self.dtype().bits() as usize / 8;
        let mut data = self.anywhere()?;
        fortran::transpose(&mut *data, self.shape(), width, fortran::BLOCK, &mut give)?;
        Ok(())
    }

    /// The bytes of the elements, to be read at any position.
    fn anywhere(&self) -> Result<Box<fortran::ReadData<'_>>> {
        let len = self.data_len()?;
        let start = match &self.bytes {
            Bytes::Whole(_) => self.header_len,
            // Small enough to be held in memory.
            Bytes::Member(..) if len <= fortran::BLOCK as u64 => {
                let mut all = vec![0; len as usize];
                self.with_data(&mut |reader| {
                    read_exact(reader, &mut all)?;
                    expect_end(&mut &mut *reader)
                })?;
                return Ok(Box::new(move |offset, buf: &mut [u8]| {
                    all.read_exact_at(buf, offset).map_err(io)
                }));
            }
            Bytes::Member(archive, index) => match archive.place(*index)? {
                Place::Stored(start) => {
                    // Reads at scattered places have no checksum, so all is read once for it.
                    self.with_data(&mut |reader| {
                        io::copy(reader, &mut io::sink())?;
                        Ok(())
                    })?;
                    start + self.header_len
                }
                Place::Compressed => {
                    let mut file = self.unpack()?;
                    return Ok(Box::new(move |offset, buf: &mut [u8]| {
                        file.seek(SeekFrom::Start(offset)).map_err(io)?;
                        file.read_exact(buf).map_err(io)
                    }));
                }
            },
        };
        let source = &self.input().source;
        Ok(Box::new(move |offset, buf: &mut [u8]| {
            source.read_exact_at(buf, start + offset).map_err(io)
        }))
    }

    /// Copies the elements to a temporary file without a name: it is gone when it is closed, even
    /// if the process is killed.
    fn unpack(&self) -> Result<File> {
        let temporary = |problem| ErrorKind::Temporary { directory: std::env::temp_dir(), problem };
        let mut file = tempfile::tempfile().map_err(temporary)?;
        let mut buffer = vec![0; PIECE];
        self.with_data(&mut |reader| {
            loop {
                match reader.read(&mut buffer) {
                    Ok(0) => return Ok(()),
                    Ok(read) => {
                        io::Write::write_all(&mut file, &buffer[..read]).map_err(temporary)?;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error.into()),
                }
            }
        })?;
        Ok(file)
    }
}

impl<S: ReadAt> TensorSource for Array<S> {
    fn dtype(&self) -> Dtype {
        self.header.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.header.shape
    }

    /// Reads the elements and gives them in pieces of at most 1 MiB.
    ///
    /// # Errors
    ///
    /// An error of `sink`. An error of reading names the file, and the member as the tensor:
    /// damaged or impossible members of archives, [`InvalidBool`](core::ErrorKind::InvalidBool),
    /// and a file that has changed since it was opened.
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
            Order::Fortran if fortran::differs(self.shape()) => self.write_transposed(&mut sink),
            _ => self.write_in_order(&mut sink),
        });
        if let Some(error) = refused {
            return Err(error);
        }
        let checked = written.and_then(|()| self.input().check_unchanged());
        checked.map_err(|error| self.locate(error))
    }
}

/// Fills `buf`. Only a member of an archive can end before: the length of a file was checked.
fn read_exact(reader: &mut dyn Read, buf: &mut [u8]) -> Result<()> {
    reader.read_exact(buf).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            ErrorKind::BadArchive { problem: "the member is shorter than it says".into() }.into()
        }
        _ => error.into(),
    })
}

fn io(error: io::Error) -> core::Error {
    core::ErrorKind::Io(error).into()
}
