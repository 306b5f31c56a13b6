//! Shared by several tests: `.npy` bytes, archives, and places in them.

use std::io::{Cursor, Write};
use std::path::PathBuf;

use safetensors_core::save::Sink;
use safetensors_core::{Dtype, Result, TensorBuf, TensorSource};
use safetensors_formats::npz::Archive;
use safetensors_formats::{Limits, npy};
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

pub(crate) fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "fixtures", name].iter().collect()
}

/// A `.npy` file with any text as header.
pub(crate) fn npy(version: (u8, u8), header: &[u8], data: &[u8]) -> Vec<u8> {
    let len = (header.len() as u32).to_le_bytes();
    let len = if version.0 < 2 { &len[..2] } else { &len[..] };
    [b"\x93NUMPY", &[version.0, version.1][..], len, header, data].concat()
}

/// A `.npy` file for an array of this type, order and shape.
pub(crate) fn array(descr: &str, fortran: bool, shape: &str, data: &[u8]) -> Vec<u8> {
    let order = if fortran { "True" } else { "False" };
    let text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
    npy((1, 0), text.as_bytes(), data)
}

/// A zip archive of these members.
pub(crate) fn zip(method: CompressionMethod, members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(method);
    for (name, bytes) in members {
        archive.start_file(*name, options).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// Where a part of a file is, which is there once.
pub(crate) fn find(file: &[u8], part: &[u8]) -> usize {
    let mut found = file.windows(part.len()).enumerate().filter(|(_, window)| *window == part);
    let (at, _) = found.next().unwrap();
    assert!(found.next().is_none(), "{part:?} is there twice");
    at
}

pub(crate) fn patch(file: &mut [u8], at: usize, with: &[u8]) {
    file[at..at + with.len()].copy_from_slice(with);
}

pub(crate) fn open(archive: Vec<u8>) -> safetensors_formats::Result<Archive> {
    Archive::from_source(archive, "in.npz", &Limits::default())
}

pub(crate) fn open_npy(file: Vec<u8>) -> safetensors_formats::Result<npy::Array> {
    npy::Array::from_source(file, "a.npy", &Limits::default())
}

/// Returns all that a tensor is.
#[track_caller]
pub(crate) fn parts(read: Result<TensorBuf>) -> (Dtype, Vec<usize>, Vec<u8>) {
    let tensor = read.unwrap();
    (tensor.dtype(), tensor.shape().to_vec(), tensor.bytes().to_vec())
}

/// Returns the bytes of a source, and the largest piece.
pub(crate) fn given(source: &impl TensorSource) -> Result<(Vec<u8>, usize)> {
    let (mut bytes, mut largest) = (Vec::new(), 0);
    let sink: &mut Sink<'_> = &mut |piece| {
        bytes.extend_from_slice(piece);
        largest = largest.max(piece.len());
        Ok(())
    };
    source.write_to(sink)?;
    Ok((bytes, largest))
}
