//! An `.npz` archive becomes a safetensors file, and back. Arrays pass through in pieces, so an
//! archive can be larger than memory. Both programs of the other side read the result.
//!
//! ```text
//! cargo run -p safetensors-ndarray --features npz --example ndarray_npz -- [ARCHIVE.npz OUTPUT.safetensors]
//! ```
//!
//! Without arguments, the example first writes an archive with `ndarray-npy`.

use std::error::Error;
use std::fs::File;
use std::path::Path;

use ndarray::{Array2, Ix1, Ix2, ShapeBuilder, array, s};
use ndarray_npy::{NpzReader, NpzWriter};
use safetensors_ndarray::{ReadArrayExt, Reader, npz};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match arguments.as_slice() {
        [archive, output] => convert(archive.as_ref(), output.as_ref()),
        [] => there_and_back(),
        _ => Err("expected no argument, or ARCHIVE.npz OUTPUT.safetensors".into()),
    }
}

/// Every array of the archive, under its own name.
fn convert(archive: &Path, output: &Path) -> Result<()> {
    npz::to_safetensors(archive, output)?;
    for array in Reader::open(output)?.arrays() {
        println!("{:?}: {} {:?}", array.name(), array.dtype(), array.shape());
    }
    Ok(())
}

fn there_and_back() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (archive, file) = (directory.path().join("a.npz"), directory.path().join("a.safetensors"));
    // One of the arrays is in Fortran order, which an archive keeps.
    let u = Array2::from_shape_fn((3, 4).f(), |(row, column)| (10 * row + column) as f64);
    let mask = array![true, false, true];
    let mut writer = NpzWriter::new_compressed(File::create(&archive)?);
    writer.add_array("u", &u)?;
    writer.add_array("mask", &mask)?;
    writer.finish()?;

    // One array of the archive, as it is.
    assert_eq!(npz::Archive::open(&archive)?.array("u")?.read_array::<f64, Ix2>()?, u);

    convert(&archive, &file)?;
    let r = Reader::open(&file)?;
    assert_eq!(r.read::<f64, Ix2>("u")?, u);
    assert_eq!(r.read::<bool, Ix1>("mask")?, mask);
    // An archive cannot do this: a part is read without the rest.
    assert_eq!(r.slice::<f64, _>("u", s![1, ..;-1])?, array![13.0, 12.0, 11.0, 10.0]);

    npz::from_safetensors(&file, &archive, npz::Compression::Stored)?;
    let back: Array2<f64> = NpzReader::new(File::open(&archive)?)?.by_name("u")?;
    assert_eq!(back, u);
    println!("the arrays are the same in both formats");
    Ok(())
}
