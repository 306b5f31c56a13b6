//! [`Array`]: a tensor in one of NumPy's files, read as a stream when it is written elsewhere.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use safetensors_core::{
    Dtype, Error, ErrorKind, FileSource, ReadAt, Result, Sink, TensorSource, shape,
};
use zip::ZipArchive;

use super::header::{Header, read_header};
use crate::text;

/// The most bytes that are read at once.
const PIECE: usize = 1 << 20;

/// An array in a file.
#[derive(Debug)]
pub(crate) struct Array {
    header: Header,
    place: Place,
    file: Arc<FileSource>,
}

#[derive(Debug)]
enum Place {
    /// The file is the array.
    Whole(Cursor),
    /// It is a member of an archive, compressed or not.
    Member { archive: ZipArchive<Cursor>, index: usize },
}

/// The arrays of a file, by name. Until one is [opened](Arrays::open) nothing is known of it but
/// its name.
#[derive(Debug)]
pub(crate) struct Arrays {
    names: Vec<String>,
    cursor: Cursor,
    /// For each name its number in the archive; nothing for a file of one array.
    archive: Option<(ZipArchive<Cursor>, Vec<usize>)>,
}

impl Arrays {
    /// A `.npy` file: one array, under the file's name without its extension.
    pub(crate) fn of_npy(path: &Path) -> anyhow::Result<Self> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { names: vec![name], cursor: Cursor::open(path)?, archive: None })
    }

    /// A `.npz` file: a zip archive whose members are `.npy` files, under their names without that
    /// ending.
    pub(crate) fn of_npz(path: &Path) -> anyhow::Result<Self> {
        let cursor = Cursor::open(path)?;
        let list = || -> anyhow::Result<_> {
            let archive = ZipArchive::new(cursor.clone())?;
            if archive.has_duplicate_names() {
                // Which of them is read depends on the reader.
                anyhow::bail!(
                    "two members of the archive have the same name; write it anew with one of them"
                );
            }
            let members = archive.file_names().collect::<Result<Vec<_>, _>>()?;
            let members =
                members.into_iter().enumerate().filter(|(_, member)| !member.ends_with('/'));
            let member = |(index, member): (usize, std::borrow::Cow<'_, str>)| {
                (index, tensor_name(&member).to_owned())
            };
            let (indices, names) = members.map(member).unzip();
            Ok((archive, indices, names))
        };
        let (archive, indices, names) = list().with_context(|| text::path(path))?;
        check_unchanged(&cursor.file)?;
        Ok(Self { names, cursor, archive: Some((archive, indices)) })
    }

    /// The names, in the order of the file.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Reads the header of the array of this position among the names.
    pub(crate) fn open(&self, position: usize) -> anyhow::Result<Array> {
        let opened = match &self.archive {
            None => self.open_whole(),
            Some((archive, indices)) => {
                let index = indices.get(position).copied().unwrap_or(usize::MAX);
                self.open_member(archive, index).map_err(|error| {
                    let name =
                        self.names.get(position).map(|name| text::name(name)).unwrap_or_default();
                    anyhow::anyhow!("member {name}: {error:#}; --drop leaves it out")
                })
            }
        };
        let array = opened.with_context(|| text::path(self.cursor.file.path()))?;
        check_unchanged(&array.file)?;
        Ok(array)
    }

    fn open_whole(&self) -> anyhow::Result<Array> {
        let mut reader = self.cursor.clone();
        let header = read_header(&mut reader)?;
        let array = Array {
            header,
            place: Place::Whole(self.cursor.clone()),
            file: Arc::clone(&reader.file),
        };
        array.check_length(reader.left())?;
        Ok(array)
    }

    fn open_member(&self, archive: &ZipArchive<Cursor>, index: usize) -> anyhow::Result<Array> {
        let mut member_of = archive.clone();
        let mut member = member_of.by_index(index)?;
        let size = member.size();
        let mut counted = (&mut member).take(u64::MAX);
        let header = read_header(&mut counted)?;
        let read = u64::MAX - counted.limit();
        let place = Place::Member { archive: archive.clone(), index };
        let array = Array { header, place, file: Arc::clone(&self.cursor.file) };
        array.check_length(size.saturating_sub(read))?;
        Ok(array)
    }
}

/// The name of the array in a member of an archive.
fn tensor_name(member: &str) -> &str {
    member.strip_suffix(".npy").unwrap_or(member)
}

/// Fails if the file is not what it was when it was opened.
fn check_unchanged(file: &FileSource) -> Result<()> {
    file.check_unchanged()
        .map_err(|error| Error::from(ErrorKind::Io(error)).in_file(file.path().display()))
}

impl Array {
    /// Refuses an array that has another number of bytes than its header asks for.
    fn check_length(&self, found: u64) -> anyhow::Result<()> {
        let expected = shape::byte_len(self.header.dtype, &self.header.shape)?;
        if expected != found {
            anyhow::bail!("the array has {found} bytes, but its shape asks for {expected}");
        }
        Ok(())
    }

    /// An error of reading the file.
    fn failed(&self, error: io::Error) -> Error {
        self.locate(ErrorKind::Io(error))
    }

    fn locate(&self, kind: ErrorKind) -> Error {
        Error::from(kind).in_file(self.file.path().display())
    }

    /// Gives the bytes after the header to `sink`, as many as the header asks for.
    fn stream(&self, reader: &mut impl Read, sink: &mut Sink<'_>) -> Result<()> {
        let failed = |error| self.failed(error);
        read_header(reader).map_err(failed)?;
        let all = shape::byte_len(self.header.dtype, &self.header.shape)?;
        let mut left = all;
        let mut buffer = vec![0; left.min(PIECE as u64) as usize];
        while left > 0 {
            let piece = &mut buffer[..left.min(PIECE as u64) as usize];
            reader.read_exact(piece).map_err(failed)?;
            check_bool(self.header.dtype, piece, all - left).map_err(|kind| self.locate(kind))?;
            sink(piece)?;
            left -= piece.len() as u64;
        }
        // The end of a compressed member has a checksum, which is compared when the end is reached.
        match reader.read(&mut [0]).map_err(failed)? {
            0 => Ok(()),
            _ => Err(failed(io::Error::new(
                io::ErrorKind::InvalidData,
                "more bytes than the shape asks for",
            ))),
        }
    }
}

/// What NumPy calls a boolean is any byte in principle; the format knows 0 and 1.
///
/// `first` is the index of the first of these bytes.
fn check_bool(dtype: Dtype, bytes: &[u8], first: u64) -> Result<(), ErrorKind> {
    match bytes.iter().position(|&byte| byte > 1).filter(|_| dtype == Dtype::BOOL) {
        Some(index) => {
            Err(ErrorKind::InvalidBool { index: first + index as u64, found: bytes[index] })
        }
        None => Ok(()),
    }
}

impl TensorSource for Array {
    fn dtype(&self) -> Dtype {
        self.header.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.header.shape
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        match &self.place {
            Place::Whole(cursor) => self.stream(&mut cursor.clone(), sink)?,
            Place::Member { archive, index } => {
                let mut archive = archive.clone();
                let mut member =
                    archive.by_index(*index).map_err(|error| self.failed(error.into()))?;
                self.stream(&mut member, sink)?;
            }
        }
        check_unchanged(&self.file)
    }
}

/// A position in an open file. Copies of it share the file, and move on their own.
#[derive(Clone, Debug)]
struct Cursor {
    file: Arc<FileSource>,
    at: u64,
}

impl Cursor {
    fn open(path: &Path) -> Result<Self> {
        let file = FileSource::open(path).map_err(|error| error.in_file(path.display()))?;
        Ok(Self { file: Arc::new(file), at: 0 })
    }

    /// The bytes after this position.
    fn left(&self) -> u64 {
        self.file.byte_len().saturating_sub(self.at)
    }
}

impl Read for Cursor {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.left().min(buf.len() as u64) as usize;
        self.file.read_exact_at(&mut buf[..len], self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.file.byte_len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::time::SystemTime;

    use super::*;
    use crate::numpy::write_npz;

    #[test]
    fn a_file_that_changes_after_it_was_opened_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (npy, npz) = (dir.path().join("a.npy"), dir.path().join("a.npz"));
        let header = super::super::header::header(Dtype::U8, &[3]).unwrap();
        fs::write(&npy, [header.as_slice(), &[1, 2, 3]].concat()).unwrap();
        let array = Arrays::of_npy(&npy).unwrap().open(0).unwrap();
        let mut archive = fs::File::create(&npz).unwrap();
        write_npz(&mut archive, [("a", &array)].into_iter(), &|_| ()).unwrap();
        for path in [&npy, &npz] {
            let file = OpenOptions::new().write(true).open(path).unwrap();
            // Long ago, so that the change is certain to be at another time.
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
            let open = if path == &npy { Arrays::of_npy } else { Arrays::of_npz };
            let array = open(path).unwrap().open(0).unwrap();
            let mut read = Vec::new();
            let mut sink = |bytes: &[u8]| {
                read.extend_from_slice(bytes);
                Ok(())
            };
            array.write_to(&mut sink).unwrap();
            file.set_modified(SystemTime::now()).unwrap();
            let error = array.write_to(&mut sink).unwrap_err();
            assert!(
                error.to_string().contains("the file has changed since it was opened: "),
                "{error}"
            );
            assert_eq!(error.file(), path.to_str());
            assert_eq!(read, [1, 2, 3, 1, 2, 3]);
        }
    }
}
