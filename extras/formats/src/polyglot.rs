//! Files of two formats at once. Most formats are read from the start of a file, zip archives from
//! its end, and pickles have no fixed start. So one file can be both, and which of them a program
//! reads depends on the program.

use std::io;
use std::ops::Range;

use safetensors_core::ReadAt;
use safetensors_core::framework::OtherFormat;

use crate::error::{Error, ErrorKind, Result};
use crate::pickled;

/// The fixed part of the record at the end of an archive. A comment follows it.
const END: u64 = 22;
/// The most bytes of a comment.
const COMMENT: u64 = u16::MAX as u64;
/// The record of an archive with large numbers, and the record with its position. Both are before
/// the end.
const LARGE_END: u64 = 56;
const LOCATOR: u64 = 20;
/// The bytes of a file that show its format.
const SHOWN: u64 = 512;

/// Fails if a file has two formats at once: if a zip archive ends in a file that begins like
/// another format, such as a safetensors file; or if a safetensors or GGUF file can be read as a
/// pickle that imports something.
///
/// The format allows any values, so such a file may be a valid safetensors file. Opening a
/// [`TensorFile`](crate::TensorFile) checks this, too. Of nearly every file only the start and the
/// last 64 KiB are read.
///
/// ```
/// use safetensors_core::{SaveOptions, TensorView, serialize};
/// use safetensors_formats::check_polyglot;
///
/// let zip = TensorView::from_slice(&[22], b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0")?;
/// let file = serialize([("data", zip)], &SaveOptions::new())?;
/// let error = check_polyglot(&file).unwrap_err().to_string();
/// assert!(error.contains("a safetensors file, and also a ZIP archive"), "{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::TwoFormats`]; [`ErrorKind::AlsoPickle`]; [`Io`](safetensors_core::ErrorKind::Io).
pub fn check_polyglot(source: &impl ReadAt) -> Result<()> {
    match find(source)? {
        Some(archive) if archive.place != (0..source.byte_len()) || !begins(source)? => {
            Err(two(source, archive.place)?)
        }
        _ => check_pickle(source),
    }
}

/// Fails if a file is a pickle, and has a format that can be the start of one. Files that begin
/// with a letter of a zip archive or of NumPy cannot.
fn check_pickle(source: &impl ReadAt) -> Result<()> {
    let mut start = [0; 16];
    let len = source.byte_len().min(16) as usize;
    source.read_exact_at(&mut start[..len], 0)?;
    let is_gguf = OtherFormat::of(&start) == Some(OtherFormat::Gguf);
    if !is_gguf && start[8] != b'{' {
        return Ok(());
    }
    match pickled::import(source)? {
        Some(import) => {
            let other = looks_like(source, 0)?;
            Err(ErrorKind::AlsoPickle { other, import }.into())
        }
        None => Ok(()),
    }
}

/// Fails if an archive is not all of its file: if its first member begins later, or if anything
/// follows it. `list` is where the list of members was found.
pub(crate) fn check_archive(source: &impl ReadAt, begin: u64, list: u64) -> Result<()> {
    let bad = |problem: &str| Err(ErrorKind::BadArchive { problem: problem.into() }.into());
    let Some(archive) = find(source)? else {
        return bad("the archive does not end where the file ends");
    };
    let place = archive.place.start.max(begin)..archive.place.end;
    if place != (0..source.byte_len()) {
        return Err(two(source, place)?);
    }
    if archive.list == list { Ok(()) } else { bad("the archive has two lists of members") }
}

/// The error of a file that is also an archive.
fn two(source: &impl ReadAt, archive: Range<u64>) -> Result<Error> {
    let at = if archive.start == 0 && begins(source)? { archive.end } else { 0 };
    let file_len = source.byte_len();
    let other = looks_like(source, at)?;
    Ok(ErrorKind::TwoFormats { other, archive, file_len }.into())
}

/// Whether a file begins as an archive.
fn begins(source: &impl ReadAt) -> io::Result<bool> {
    let mut start = [0; 4];
    let len = source.byte_len().min(4) as usize;
    source.read_exact_at(&mut start[..len], 0)?;
    Ok(start == *b"PK\x03\x04" || start == *b"PK\x05\x06")
}

/// Describes the content of a file from a position on, for an error.
pub(crate) fn looks_like(source: &impl ReadAt, at: u64) -> io::Result<String> {
    let mut bytes = vec![0; source.byte_len().saturating_sub(at).min(SHOWN) as usize];
    source.read_exact_at(&mut bytes, at)?;
    Ok(match OtherFormat::of(&bytes) {
        Some(format) => format.to_string(),
        None if bytes.get(8) == Some(&b'{') => "a safetensors file".into(),
        None => "other bytes".into(),
    })
}

/// A zip archive in a file.
struct Archive {
    /// The bytes of the file that it takes.
    place: Range<u64>,
    /// Where the list of its members begins.
    list: u64,
}

/// Finds the zip archive that ends last in a file. Only a record of an end that leads to a list of
/// members counts: the mark alone may be in the values of a tensor.
fn find(source: &impl ReadAt) -> io::Result<Option<Archive>> {
    let file_len = source.byte_len();
    // Nearly every archive ends without a comment.
    for most in [END, END + COMMENT] {
        let mut tail = vec![0; file_len.min(most) as usize];
        let start = file_len - tail.len() as u64;
        source.read_exact_at(&mut tail, start)?;
        let marks = tail.windows(END as usize).enumerate().rev();
        for (at, record) in marks.filter(|(_, it)| it.starts_with(b"PK\x05\x06")) {
            if let Some(found) = of_record(source, start + at as u64, record)? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// Returns the archive that ends with this record, at this position.
fn of_record(source: &impl ReadAt, at: u64, record: &[u8]) -> io::Result<Option<Archive>> {
    let end = (at + END + number(record, 20, 2)).min(source.byte_len());
    let mut list = (at, number(record, 12, 4), number(record, 16, 4));
    // An archive with large numbers has them in a separate record.
    if let Some(large) = at.checked_sub(LARGE_END + LOCATOR) {
        let mut bytes = [0; (LARGE_END + LOCATOR) as usize];
        source.read_exact_at(&mut bytes, large)?;
        let (record, locator) = bytes.split_at(LARGE_END as usize);
        if record.starts_with(b"PK\x06\x06") && locator.starts_with(b"PK\x06\x07") {
            list = (large, number(record, 40, 8), number(record, 48, 8));
        }
    }
    let (list_end, list_len, offset) = list;
    let Some(list) = list_end.checked_sub(list_len) else { return Ok(None) };
    // The offset is counted from the start of the archive, or of the file. Python's zipfile also
    // reads an archive with offsets that are all too large by the same number.
    let begin = list.saturating_sub(offset);
    let mut mark = [0; 4];
    source.read_exact_at(&mut mark, list)?;
    let is_list = mark == *b"PK\x01\x02" || list_len == 0 && offset == 0;
    Ok(is_list.then_some(Archive { place: begin..end, list }))
}

/// A number of up to 8 bytes in a record, little-endian.
fn number(record: &[u8], at: usize, len: usize) -> u64 {
    let bytes = record.get(at..at + len).unwrap_or_default();
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
