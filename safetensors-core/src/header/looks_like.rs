//! Recognises files of other formats by their first bytes, for errors.

use super::LENGTH_BYTES;
use crate::error::{Error, ErrorKind};

/// The number of bytes at the start of a file that are examined.
#[cfg(feature = "std")]
pub(crate) const START: usize = 512;

/// Formats that begin with fixed bytes.
const FORMATS: [(&[u8], &str); 7] = [
    (b"GGUF", "a GGUF file, as llama.cpp reads"),
    (b"\x1f\x8b\x08", "a gzip file, which has to be decompressed first"),
    (b"\x93NUMPY", "a NumPy file (.npy)"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes"),
    (
        b"version https://git-lfs.github.com/spec/",
        "a Git LFS pointer in place of the file itself, which `git lfs pull` fetches",
    ),
    (b"{\"", "JSON, without the length that stands before a header"),
    (b"<?xml", "an XML document"),
];

/// Adds to an error the format that a file beginning with `start` looks like. Errors that a file of
/// another format cannot cause are returned unchanged.
#[cold]
pub(crate) fn explain(error: Error, start: &[u8]) -> Error {
    let is_other_format = matches!(
        error.kind(),
        ErrorKind::TooShort { .. }
            | ErrorKind::HeaderTooLarge { .. }
            | ErrorKind::HeaderPastEnd { .. }
            | ErrorKind::NotUtf8 { .. }
            | ErrorKind::NotAnObject { .. }
            | ErrorKind::Json { .. }
    );
    match looks_like(start) {
        Some(format) if is_other_format => error.looking_like(format),
        _ => error,
    }
}

/// The other format that a file beginning with `start` looks like.
fn looks_like(start: &[u8]) -> Option<&'static str> {
    if start.get(LENGTH_BYTES) == Some(&b'{') {
        // This is a header of our format. Its length may have any bytes.
        return None;
    }
    if start.starts_with(b"PK\x03\x04") {
        return Some(zip(start));
    }
    if is_pickle(start) {
        return Some("a pickle, as older PyTorch checkpoints are");
    }
    let text = start.trim_ascii_start();
    let is_html = [&b"<!doctype"[..], b"<html", b"<head"]
        .iter()
        .any(|tag| text.get(..tag.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(tag)));
    if is_html {
        return Some("an HTML page, such as a server's error or login page");
    }
    let format = FORMATS.iter().find(|(magic, _)| start.starts_with(magic));
    format.map(|(_, format)| *format).or_else(|| is_text(start).then_some("a text file"))
}

/// Whether a file begins like text in UTF-8. As a length of a header, eight letters are over every
/// limit.
fn is_text(start: &[u8]) -> bool {
    let text = match core::str::from_utf8(start) {
        Ok(text) => text,
        // The start of a longer file may end within a letter.
        Err(error) if error.error_len().is_none() => {
            core::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    let is_plain = |c: char| !c.is_control() || matches!(c, '\t' | '\n' | '\r');
    text.len() >= LENGTH_BYTES && text.chars().all(is_plain)
}

/// Recognises a kind of ZIP archive by the name of its first file.
fn zip(start: &[u8]) -> &'static str {
    // The offset of the name. The fixed part before it ends with the lengths of the name and of an
    // extra field.
    const NAME: usize = 30;
    let name = start.get(NAME - 4..NAME - 2).and_then(|len| {
        let len = u16::from_le_bytes([len[0], len[1]]).into();
        start.get(NAME..)?.get(..len)
    });
    match name {
        Some(name) if name.ends_with(b"/data.pkl") => {
            "a PyTorch checkpoint (.pt, .pth, .bin), which is a ZIP archive of a pickle"
        }
        Some(name) if name.ends_with(b".npy") => "a NumPy archive (.npz)",
        _ => "a ZIP archive, as PyTorch checkpoints and .npz files are",
    }
}

/// Whether a file is a pickle of protocol 2 to 5. Older protocols have no fixed start.
fn is_pickle(start: &[u8]) -> bool {
    // The opcodes that a pickle can start with: an empty container, a mark, a global, a long
    // integer, a frame.
    let opcode = |byte: &u8| matches!(byte, b'}' | b']' | b')' | b'(' | b'c' | 0x8a | 0x95);
    start.first() == Some(&0x80)
        && matches!(start.get(1), Some(2..=5))
        && start.get(2).is_some_and(opcode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn is(start: &[u8], part: &str) {
        let found = looks_like(start);
        assert!(found.is_some_and(|found| found.contains(part)), "{found:?}");
        // A truncated start must not panic.
        (0..start.len()).for_each(|len| _ = looks_like(&start[..len]));
    }

    #[test]
    fn each_format_by_its_start() {
        let zip = |name: &[u8]| {
            let fixed = b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
            [&fixed[..], &(name.len() as u16).to_le_bytes(), &[0, 0], name, b"data"].concat()
        };
        is(&zip(b"model/data.pkl"), "PyTorch checkpoint (");
        is(&zip(b"arr_0.npy"), ".npz");
        is(&zip(b"word/document.xml"), "a ZIP archive, as");
        is(b"<!DOCTYPE html><html>", "HTML");
        is(b"\n <HTML lang=en>", "HTML");
        is(b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer");
        is(b"GGUF\x03\0\0\0\0\0\0\0", "GGUF");
        is(b"\x1f\x8b\x08\0\0\0\0\0\0\x03", "gzip");
        is(b"\x80\x02}q\0", "pickle");
        is(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "pickle");
        is(b"\x80\x04\x95\x10\0\0\0\0\0\0\0}", "pickle");
        is(b"\x93NUMPY\x01\0", "NumPy file");
        is(b"\x89HDF\r\n\x1a\n\0", "HDF5");
        is(b"{\"error\":\"not found\"}", "JSON");
        is("# Über dieses Modell\n".as_bytes(), "a text file");
        is(b"eight by\xc3", "a text file");
    }

    #[test]
    fn a_header_whose_length_looks_like_another_format_is_a_header() {
        for length in
            [0x0008_8b1f_u64, 0x0346_5547_4755, 0x7d_0280, u64::from_le_bytes(*b"<html>  ")]
        {
            assert_eq!(looks_like(&[&length.to_le_bytes()[..], b"{\"a\":"].concat()), None);
        }
        for start in [
            &b""[..],
            b"PK",
            b"\0\0\0\0\0\0\0\0",
            b"GGU",
            b"model",
            b"eight by\xff",
            b"a\0b\0c\0d\0e",
        ] {
            assert_eq!(looks_like(start), None, "{start:?}");
        }
    }
}
