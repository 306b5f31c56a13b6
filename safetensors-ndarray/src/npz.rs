//! Arrays of NumPy's `.npy` files and `.npz` archives, and archives as safetensors files and back.
//! Needs the feature `npz`.
//!
//! | to | use |
//! |---|---|
//! | read one array of an archive | [`Archive::array`], then [`ReadArrayExt`] |
//! | read or write a `.npy` file | [`read_npy`], [`write_npy`] |
//! | read all arrays of an archive | [`load`] |
//! | write an archive at once | [`save`] |
//! | turn an archive into a safetensors file, and back | [`to_safetensors`], [`from_safetensors`] |
//! | the same without texts, dates, tables and objects | [`to_safetensors_skipping`] |
//! | write an archive array by array, to any writer | [`npz::Writer`](safetensors_formats::npz::Writer) with [`array_source`](crate::array_source) |
//!
//! ```
//! use ndarray::{Array2, Ix2, array};
//! use safetensors_ndarray::{ReadArrayExt, Reader, array_source, npz};
//!
//! let dir = tempfile::tempdir()?;
//! let (archive, file) = (dir.path().join("wind.npz"), dir.path().join("wind.safetensors"));
//! let u = array![[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];
//! npz::save(&archive, [("u", array_source(&u))], npz::Compression::Deflated)?;
//!
//! let read: Array2<f64> = npz::Archive::open(&archive)?.array("u")?.read_array()?;
//! assert_eq!(read, u);
//!
//! npz::to_safetensors(&archive, &file)?;
//! assert_eq!(Reader::open(&file)?.read::<f64, Ix2>("u")?, u);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Arrays in Fortran order and big-endian arrays are read correctly. `Complex<f64>`, texts, dates,
//! tables and objects have no dtype in safetensors, and are errors that name the type, or are
//! skipped. The crate [`safetensors_formats`] has the rules, and the limits for hostile archives.

use std::collections::BTreeMap;
use std::io::{BufWriter, IntoInnerError};
use std::path::Path;

use ndarray::{Array, ArrayRef, Dimension};
use safetensors_core::save::AtomicFile;
use safetensors_core::{ConvertOptions, Error, ErrorKind, Result, SaveOptions, TensorSource};
use safetensors_formats::npy;
pub use safetensors_formats::npz::{Archive, Compression};

use crate::array::ArraySource;
use crate::array::array_from_buf;
use crate::error::dimension;
use crate::load::check;
use crate::{ArrayElement, DynArray, ReadArrayExt, Reader, Writer};

/// Reads a `.npy` file as an array of elements `T` and dimension `D`, in C order.
///
/// ```
/// use ndarray::{Ix1, array};
/// use safetensors_ndarray::npz::{read_npy, write_npy};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("u.npy");
/// write_npy(&path, &array![1.0_f32, 2.0])?;
/// assert_eq!(read_npy::<f32, Ix1>(&path)?, array![1.0, 2.0]);
///
/// let error = read_npy::<f64, Ix1>(&path).unwrap_err();
/// assert!(error.to_string().ends_with(r#"u.npy: tensor "u": expected dtype F64, found F32"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read_npy<T: ArrayElement, D: Dimension>(path: impl AsRef<Path>) -> Result<Array<T, D>> {
    npy::Array::open(path)?.read_array()
}

/// Writes an array of any memory layout to a `.npy` file, in C order, atomically.
///
/// # Errors
///
/// [`NoNumpyType`](safetensors_formats::ErrorKind::NoNumpyType) as the
/// [other](safetensors_core::Error::other) kind of the error, for example for BF16; an error of
/// [`AtomicFile::create`] and [`AtomicFile::commit`].
pub fn write_npy<T: ArrayElement, D: Dimension>(
    path: impl AsRef<Path>,
    array: &ArrayRef<T, D>,
) -> Result<()> {
    replace(path.as_ref(), |out| npy::write(out, &ArraySource::new(array)).map(drop))
}

/// Reads all arrays of an archive into memory, by name.
///
/// # Errors
///
/// [`UnsupportedType`](safetensors_formats::ErrorKind::UnsupportedType) or
/// [`Fields`](safetensors_formats::ErrorKind::Fields) as the
/// [other](safetensors_core::Error::other) kind of the error, for an array of a type that
/// safetensors lacks; an error of [`Archive::open`], [`Archive::check`], [`Archive::array`] or
/// [`ReadArrayExt::read_any`].
pub fn load(path: impl AsRef<Path>) -> Result<BTreeMap<String, DynArray>> {
    let archive = Archive::open(path)?;
    archive.check()?;
    let arrays = archive.arrays().map(|array| {
        let array = array?;
        Ok((array.name().to_owned(), array.read_any()?))
    });
    arrays.collect()
}

/// Writes names and tensors, such as [`array_source`](crate::array_source)s or a `&BTreeMap<String,
/// DynArray>`, to an archive, atomically. They are written one after the other, and none is copied
/// entirely.
///
/// # Errors
///
/// [`ErrorKind::DuplicateTensor`] if a name occurs twice; otherwise like [`write_npy`].
pub fn save<N: AsRef<str>, S: TensorSource>(
    path: impl AsRef<Path>,
    arrays: impl IntoIterator<Item = (N, S)>,
    compression: Compression,
) -> Result<()> {
    replace(path.as_ref(), |out| {
        let mut writer = safetensors_formats::npz::Writer::new(out).compression(compression);
        for (name, array) in arrays {
            writer.add(name.as_ref(), &array)?;
        }
        writer.finish().map(drop)
    })
}

/// Writes the arrays of an archive to a safetensors file, in pieces, so the archive can be larger
/// than memory.
///
/// # Errors
///
/// Like [`load`] and [`Writer`]. After an error, `file` is unchanged.
pub fn to_safetensors(archive: impl AsRef<Path>, file: impl AsRef<Path>) -> Result<()> {
    convert(archive.as_ref(), file.as_ref(), false).map(drop)
}

/// Converts like [`to_safetensors`], without the arrays of types that safetensors lacks, such as
/// texts. Returns the error of each.
pub fn to_safetensors_skipping(
    archive: impl AsRef<Path>,
    file: impl AsRef<Path>,
) -> Result<Vec<Error>> {
    convert(archive.as_ref(), file.as_ref(), true)
}

fn convert(archive: &Path, file: &Path, skips: bool) -> Result<Vec<Error>> {
    let mut skipped = Vec::new();
    let archive = Archive::open(archive)?;
    archive.check()?;
    let writer = Writer::create(file)?;
    for array in archive.arrays() {
        match array {
            Err(error) if skips && is_of_no_dtype(&error) => skipped.push(error),
            array => {
                let array = array?;
                writer.add_tensor(array.name(), &array)?;
            }
        }
    }
    writer.finish()?;
    Ok(skipped)
}

fn is_of_no_dtype(error: &Error) -> bool {
    use safetensors_formats::ErrorKind::{Fields, UnsupportedType};

    matches!(error.other(), Some(UnsupportedType { .. } | Fields))
}

/// Writes the arrays of a safetensors file to an archive, in pieces. An archive has no place for
/// metadata and attributes, so they are skipped. A tied array is written under each of its names.
///
/// # Errors
///
/// Like [`Reader::open`] and [`save`]. [`ErrorKind::Quantization`] for a quantised weight: [`save`]
/// writes the [`arrays`](Reader::arrays) of a reader that [reads its numbers](Reader::quantized),
/// or the codes. After an error, `archive` is unchanged.
pub fn from_safetensors(
    file: impl AsRef<Path>,
    archive: impl AsRef<Path>,
    compression: Compression,
) -> Result<()> {
    let reader = Reader::open(file)?;
    reader.arrays().try_for_each(|array| array.refuse_codes())?;
    let arrays = reader.arrays().map(|array| (array.name(), array));
    save(archive, arrays.chain(reader.checkpoint().aliases()), compression)
}

/// Reads an array of a `.npy` file or of an archive.
impl ReadArrayExt for npy::Array {
    fn read_array<T: ArrayElement, D: Dimension>(&self) -> Result<Array<T, D>> {
        check::<T, D>(self.dtype(), self.shape()).map_err(|error| locate(self, error))?;
        array_from_buf(self.read()?).map_err(|error| locate(self, error))
    }

    fn read_array_as<T: ArrayElement, D: Dimension>(
        &self,
        options: &ConvertOptions,
    ) -> Result<Array<T, D>> {
        dimension::<D>(self.shape()).map_err(|error| locate(self, error))?;
        let converted = self.read()?.convert(T::DTYPE, options);
        converted.and_then(array_from_buf).map_err(|error| locate(self, error))
    }

    fn read_any(&self) -> Result<DynArray> {
        DynArray::from_buf(self.read()?).map_err(|error| locate(self, error))
    }
}

fn locate(array: &npy::Array, error: Error) -> Error {
    error.in_tensor(array.name()).in_file(array.file())
}

/// Gives the file its name once it is complete and on the disk.
fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<AtomicFile>) -> safetensors_formats::Result<()>,
) -> Result<()> {
    let mut out = BufWriter::new(AtomicFile::create(path, &SaveOptions::new())?);
    let written = write(&mut out).and_then(|()| {
        let flushed = out.into_inner().map_err(IntoInnerError::into_error);
        Ok(flushed.map_err(ErrorKind::Io)?)
    });
    written.map_err(|error| error.in_path(path))?.commit()
}
