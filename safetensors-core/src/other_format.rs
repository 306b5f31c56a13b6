//! [`OtherFormat`]: files of other formats, recognised by their first bytes.

use core::fmt;

/// The bytes of a safetensors file before its header.
const LENGTH_BYTES: usize = 8;

/// A format other than safetensors that a file looks like, by its first bytes. It is displayed as
/// in an error.
///
/// ```
/// use safetensors_core::framework::OtherFormat;
///
/// assert_eq!(OtherFormat::of(b"GGUF\x03\0\0\0"), Some(OtherFormat::Gguf));
/// assert_eq!(OtherFormat::of(b"\x02\0\0\0\0\0\0\0{}"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OtherFormat {
    /// A file of llama.cpp.
    Gguf,
    /// One array of NumPy.
    Npy,
    /// A pickle of protocol 2 to 5. Older protocols have no fixed start.
    Pickle,
    /// A ZIP archive whose first member is a pickle, as PyTorch writes it.
    PytorchArchive,
    /// A ZIP archive whose first member is an array of NumPy.
    Npz,
    /// Any other ZIP archive.
    Zip,
    /// A compressed file.
    Gzip,
    /// A file of Keras.
    Hdf5,
    /// What `git` has in place of a large file.
    LfsPointer,
    /// A JSON text.
    Json,
    /// A page of the web.
    Html,
    /// An XML document.
    Xml,
    /// Any other text.
    Text,
}

/// Formats that begin with fixed bytes.
const MAGIC: [(&[u8], OtherFormat); 5] = [
    (b"\x1f\x8b\x08", OtherFormat::Gzip),
    (b"\x89HDF\r\n\x1a\n", OtherFormat::Hdf5),
    (b"version https://git-lfs.github.com/spec/", OtherFormat::LfsPointer),
    (b"{\"", OtherFormat::Json),
    (b"<?xml", OtherFormat::Xml),
];

impl fmt::Display for OtherFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Gguf => "a GGUF file, as llama.cpp reads",
            Self::Npy => "a NumPy file (.npy)",
            Self::Pickle => "a pickle, as older PyTorch checkpoints are",
            Self::PytorchArchive => {
                "a PyTorch checkpoint (.pt, .pth, .bin), which is a ZIP archive of a pickle"
            }
            Self::Npz => "a NumPy archive (.npz)",
            Self::Zip => "a ZIP archive, as PyTorch checkpoints and .npz files are",
            Self::Gzip => "a gzip file, which has to be decompressed first",
            Self::Hdf5 => "an HDF5 file, as Keras writes",
            Self::LfsPointer => {
                "a Git LFS pointer in place of the file itself, which `git lfs pull` fetches"
            }
            Self::Json => "JSON, without the length that stands before a header",
            Self::Html => "an HTML page, such as a server's error or login page",
            Self::Xml => "an XML document",
            Self::Text => "a text file",
        })
    }
}

impl OtherFormat {
    /// The format that a file beginning with `start` looks like. For archives, 512 bytes tell more
    /// than 16 do.
    pub fn of(start: &[u8]) -> Option<Self> {
        // As lengths of a header, these are over every limit, whatever byte follows.
        if start.starts_with(b"GGUF") {
            return Some(Self::Gguf);
        }
        if start.starts_with(b"\x93NUMPY") {
            return Some(Self::Npy);
        }
        if start.get(LENGTH_BYTES) == Some(&b'{') {
            // This is a header of our format. Its length may have any bytes.
            return None;
        }
        // An archive without members has nothing but its end.
        if start.starts_with(b"PK\x03\x04") || start.starts_with(b"PK\x05\x06") {
            return Some(of_zip(start));
        }
        if is_pickle(start) {
            return Some(Self::Pickle);
        }
        let text = start.trim_ascii_start();
        let is_html = [&b"<!doctype"[..], b"<html", b"<head"]
            .iter()
            .any(|tag| text.get(..tag.len()).is_some_and(|it| it.eq_ignore_ascii_case(tag)));
        if is_html {
            return Some(Self::Html);
        }
        let format = MAGIC.iter().find(|(magic, _)| start.starts_with(magic));
        format.map(|(_, format)| *format).or_else(|| is_text(start).then_some(Self::Text))
    }
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
fn of_zip(start: &[u8]) -> OtherFormat {
    // The offset of the name. The fixed part before it ends with the lengths of the name and of an
    // extra field.
    const NAME: usize = 30;
    let name = start.get(NAME - 4..NAME - 2).and_then(|len| {
        let len = u16::from_le_bytes([len[0], len[1]]).into();
        start.get(NAME..)?.get(..len)
    });
    match name {
        Some(name) if name.ends_with(b"/data.pkl") => OtherFormat::PytorchArchive,
        Some(name) if name.ends_with(b".npy") => OtherFormat::Npz,
        _ => OtherFormat::Zip,
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
    use alloc::string::ToString;

    use super::*;

    #[track_caller]
    fn is(start: &[u8], part: &str) {
        let found = OtherFormat::of(start);
        assert!(found.is_some_and(|found| found.to_string().contains(part)), "{found:?}");
        // A truncated start must not panic.
        (0..start.len()).for_each(|len| _ = OtherFormat::of(&start[..len]));
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
        // A file of 123 tensors has the letter with which headers begin in the same place.
        is(b"GGUF\x03\0\0\0{\0\0\0", "GGUF");
        is(b"PK\x05\x06\0\0", "a ZIP archive, as");
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
            assert_eq!(OtherFormat::of(&[&length.to_le_bytes()[..], b"{\"a\":"].concat()), None);
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
            assert_eq!(OtherFormat::of(start), None, "{start:?}");
        }
    }
}
