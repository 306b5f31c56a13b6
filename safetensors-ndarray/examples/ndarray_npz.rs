//! An `.npz` archive becomes a safetensors file, and back. Arrays pass through in pieces, so an
//! archive can be larger than memory. Both programs of the other side read the result.
//!
//! ```text
//! cargo run -p safetensors-ndarray --example ndarray_npz -- [ARCHIVE.npz OUTPUT.safetensors]
//! ```
//!
//! Without arguments, the example first writes an archive with `ndarray-npy`.

use std::error::Error;
use std::fs::File;
use std::path::Path;

use ndarray::{Array2, Ix1, Ix2, ShapeBuilder, array, s};
use ndarray_npy::{NpzReader, NpzWriter};
use safetensors_formats::npz;
use safetensors_ndarray::{Reader, Writer};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match arguments.as_slice() {
        [archive, output] => to_safetensors(archive.as_ref(), output.as_ref()),
        [] => there_and_back(),
        _ => Err("expected no argument, or ARCHIVE.npz OUTPUT.safetensors".into()),
    }
}

/// Every array of the archive, under its own name.
fn to_safetensors(archive: &Path, output: &Path) -> Result<()> {
    let archive = npz::Archive::open(archive)?;
    // An archive that claims to unpack to more than it can is refused before anything is unpacked.
    archive.check()?;
    let w = Writer::create(output)?;
    for array in archive.arrays() {
        let array = array?;
        w.add_tensor(array.name(), &array)?;
    }
    w.finish()?;
    for array in Reader::open(output)?.arrays() {
        println!("{:?}: {} {:?}", array.name(), array.dtype(), array.shape());
    }
    Ok(())
}

/// Every array of the file, in an archive.
fn to_npz(file: &Path, output: &Path) -> Result<()> {
    let r = Reader::open(file)?;
    let mut archive = npz::Writer::new(File::create(output)?);
    for array in r.arrays() {
        archive.add(array.name(), &array)?;
    }
    archive.finish()?;
    Ok(())
}

fn there_and_back() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (archive, file) = (directory.path().join("a.npz"), directory.path().join("a.safetensors"));
    // One of the arrays is in Fortran order, which an archive keeps.
    let u = Array2::from_shape_fn((3, 4).f(), |(row, column)| (10 * row + column) as f64);
    let mask = array![true, false, true];
    let mut npz = NpzWriter::new_compressed(File::create(&archive)?);
    npz.add_array("u", &u)?;
    npz.add_array("mask", &mask)?;
    npz.finish()?;

    to_safetensors(&archive, &file)?;
    let r = Reader::open(&file)?;
    assert_eq!(r.read::<f64, Ix2>("u")?, u);
    assert_eq!(r.read::<bool, Ix1>("mask")?, mask);
    // What an archive cannot do: a part is read without the rest.
    assert_eq!(r.slice::<f64, _>("u", s![1, ..;-1])?, array![13.0, 12.0, 11.0, 10.0]);

    to_npz(&file, &archive)?;
    let mut npz = NpzReader::new(File::open(&archive)?)?;
    let back: Array2<f64> = npz.by_name("u")?;
    assert_eq!(back, u);
    println!("the arrays are the same in both formats");
    Ok(())
}
