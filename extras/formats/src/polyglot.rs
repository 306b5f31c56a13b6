//! Files with two formats, which programs may read differently.
//! Most formats are read from the start, zip archives from the end, and pickles from anywhere.

use std::io;
use std::ops::Range;

use safetensors_core::ReadAt;
use safetensors_core::framework::OtherFormat;

use crate::error::{Error, ErrorKind, Result};
use crate::pickled;

/// The fixed part of the record at an archive's end. A comment follows it.
const END: u64 = 22;
const COMMENT: u64 = u16::MAX as u64;
/// For large numbers: their record, and the record with its position. Both precede the end.
const LARGE_END: u64 = 56;
const LOCATOR: u64 = 20;
const SHOWN: u64 = 512;

/// Fails for a file with two formats: a zip archive at the end of a file that begins like another
/// format, such as safetensors; or a safetensors or GGUF file that is also a pickle with imports.
///
/// It may be a valid safetensors file, since values can be anything. Opening a
/// [`TensorFile`](crate::TensorFile) checks this, too. Mostly it reads the start and the last 64
/// KiB.
///
/// ```
/// use safetensors_core::{SaveOptions, TensorView, serialize};
/// use safetensors_formats::check_polyglot;
///
/// let zip = TensorView::from_slice(&[22], b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0")?;
/// let file = serialize([("data", zip)], &SaveOptions::new())?;
/// let error = check_polyglot(&file).unwrap_err().to_string();
/// assert!(error.contains("a safetensors file and a ZIP archive"), "{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::TwoFormats`]; [`ErrorKind::AlsoPickle`]; [`Io`](safetensors_core::ErrorKind::Io).
pub fn check_polyglot(source: &dyn ReadAt) -> Result<()> {
    match find(source)? {
        Some(archive) if archive.place != (0..source.byte_len()) || !begins(source)? => {
            Err(two(source, archive.place)?)
        }
        _ => check_pickle(source),
    }
}

/// A file that begins like a zip archive or NumPy's cannot be a pickle.
fn check_pickle(source: &dyn ReadAt) -> Result<()> {
    let mut start = [0; 16];
    let len = source.byte_len().min(16) as usize;
    source.read_exact_at(&mut start[..len], 0)?;
    let is_gguf = OtherFormat::detect(&start) == Some(OtherFormat::Gguf);
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

/// Fails if anything in the file is before or after the archive. `list`: the position of the list
/// of members.
pub(crate) fn check_archive(source: &dyn ReadAt, begin: u64, list: u64) -> Result<()> {
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

fn two(source: &dyn ReadAt, archive: Range<u64>) -> Result<Error> {
    let at = if archive.start == 0 && begins(source)? { archive.end } else { 0 };
    let file_len = source.byte_len();
    let other = looks_like(source, at)?;
    Ok(ErrorKind::TwoFormats { other, archive, file_len }.into())
}

fn begins(source: &dyn ReadAt) -> io::Result<bool> {
    let mut start = [0; 4];
    let len = source.byte_len().min(4) as usize;
    source.read_exact_at(&mut start[..len], 0)?;
    Ok(start == *b"PK\x03\x04" || start == *b"PK\x05\x06")
}

pub(crate) fn looks_like(source: &dyn ReadAt, at: u64) -> io::Result<String> {
    let mut bytes = vec![0; source.byte_len().saturating_sub(at).min(SHOWN) as usize];
    source.read_exact_at(&mut bytes, at)?;
    Ok(match OtherFormat::detect(&bytes) {
        Some(format) => format.to_string(),
        None if bytes.get(8) == Some(&b'{') => "a safetensors file".into(),
        None => "other bytes".into(),
    })
}

struct Archive {
    place: Range<u64>,
    list: u64,
}

/// Finds the zip archive that ends last. The record must lead to a list of members: its mark alone
/// may be in a tensor.
fn find(source: &dyn ReadAt) -> io::Result<Option<Archive>> {
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

fn of_record(source: &dyn ReadAt, at: u64, record: &[u8]) -> io::Result<Option<Archive>> {
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

fn number(record: &[u8], at: usize, len: usize) -> u64 {
    let bytes = record.get(at..at + len).unwrap_or_default();
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
