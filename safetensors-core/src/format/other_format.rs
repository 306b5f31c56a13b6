//! [`OtherFormat`]: other formats, recognised by their first bytes.

use core::fmt;

const LENGTH_BYTES: usize = 8;

// More than twice the default limit, so no header has this length.
const IMPOSSIBLE: u64 = 1 << 28;

/// Marks an index, such as a delta's, with tensors that only the package that writes it knows.
pub(crate) const FOREIGN_KEY: &str = "delta_encoding";

/// The checkpoint without which the files mean nothing.
pub(crate) const FOREIGN_BASE_KEY: &str = "base_version";

/// In the folder of a training epoch.
pub(crate) const FOREIGN_FOLDER: &str = "model.delta";

/// Another format than safetensors, recognised by the first bytes of a file. Displayed as in an
/// error.
///
/// ```
/// use safetensors_core::framework::OtherFormat;
///
/// assert_eq!(OtherFormat::detect(b"GGUF\x03\0\0\0"), Some(OtherFormat::Gguf));
/// assert_eq!(OtherFormat::detect(b"\x02\0\0\0\0\0\0\0{}"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OtherFormat {
    /// A file of llama.cpp.
    Gguf,
    /// One array of NumPy.
    Npy,
    /// A pickle of protocol 2 to 5.
    Pickle,
    /// A ZIP archive that begins with a pickle, as PyTorch writes it.
    PytorchArchive,
    /// A ZIP archive that begins with a NumPy array.
    Npz,
    /// Any other ZIP archive.
    Zip,
    /// A burnpack file of burn.
    Burnpack,
    /// A record of an old burn.
    BurnRecord,
    /// A format that this library does not read, as an error calls it.
    Named(&'static str),
}

use OtherFormat::Named;

const MAGIC: &[(usize, &[u8], OtherFormat)] = &[
    (0, b"GGUF", OtherFormat::Gguf),
    (0, b"\x93NUMPY", OtherFormat::Npy),
    // An archive without members has only its end.
    (0, b"PK\x03\x04", OtherFormat::Zip),
    (0, b"PK\x05\x06", OtherFormat::Zip),
    (0, b"lmgg", Named(GGML)),
    (0, b"fmgg", Named(GGML)),
    (0, b"tjgg", Named(GGML)),
    (0, b"algg", Named(GGML)),
    (0, b"nsgg", Named(GGML)),
    (0, b"NRUB", OtherFormat::Burnpack),
    (0, b"\x82\xa8metadata", OtherFormat::BurnRecord),
    (0, b"\x83\xa8metadata", OtherFormat::BurnRecord),
    (4, b"TFL3", Named("a TensorFlow Lite model")),
    (0, b"\x89HDF\r\n\x1a\n", Named("an HDF5 file, as Keras writes")),
    (0, b"PAR1", Named("a Parquet table")),
    (0, b"PARE", Named("an encrypted Parquet table")),
    (0, b"ARROW1", Named("an Arrow table (Feather)")),
    (0, b"FEA1", Named("an Arrow table (Feather)")),
    (257, b"ustar", Named("a tar archive, as .nemo models are, which has to be unpacked first")),
    (0, b"\x1f\x8b\x08", Named("a gzip file, which has to be decompressed first")),
    (0, b"\x28\xb5\x2f\xfd", Named("a zstd file, which has to be decompressed first")),
    (0, b"\xfd7zXZ\0", Named("an xz file, which has to be decompressed first")),
    (0, b"\x04\x22\x4d\x18", Named("an lz4 file, which has to be decompressed first")),
    (0, b"BZh", Named("a bzip2 file, which has to be decompressed first")),
    (0, b"7z\xbc\xaf\x27\x1c", Named("a 7z archive, which has to be unpacked first")),
    (
        0,
        b"version https://git-lfs.github.com/spec/",
        Named("a Git LFS pointer instead of the file itself, which `git lfs pull` fetches"),
    ),
    (
        0,
        b"# xet version",
        Named("an Xet pointer instead of the file itself, which a clone with git-xet fetches"),
    ),
    (0, b"{\"", Named("JSON, without the length that comes before a header")),
    (0, b"<?xml", Named("an XML document")),
];

const GGML: &str = "a ggml file (.bin), as whisper.cpp and llama.cpp before GGUF read";

impl fmt::Display for OtherFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Gguf => "a GGUF file, as llama.cpp reads",
            Self::Npy => "a NumPy file (.npy)",
            Self::Pickle => "a pickle, as older PyTorch checkpoints are",
            Self::PytorchArchive => "a PyTorch checkpoint (.pt, .pth, .bin)",
            Self::Npz => "a NumPy archive (.npz)",
            Self::Zip => "a ZIP archive, as PyTorch checkpoints and .npz files are",
            Self::Burnpack => "a burnpack file of burn (.bpk)",
            Self::BurnRecord => "a record of burn (.mpk)",
            Self::Named(name) => name,
        })
    }
}

impl OtherFormat {
    /// Recognises a format by the first bytes: 512 for archives, 16 for most others.
    #[doc(hidden)]
    pub fn detect(start: &[u8]) -> Option<Self> {
        let len = start.first_chunk().map(|len| u64::from_le_bytes(*len));
        if start.get(LENGTH_BYTES) == Some(&b'{') && len.is_some_and(|len| len < IMPOSSIBLE) {
            // This is a header of our format. Its length may have any bytes.
            return None;
        }
        let has = |(at, magic, _): &&(usize, &[u8], Self)| {
            start.get(*at..).is_some_and(|rest| rest.starts_with(magic))
        };
        match MAGIC.iter().find(has) {
            Some((_, _, Self::Zip)) => return Some(of_zip(start)),
            Some((_, _, format)) => return Some(*format),
            None => {}
        }
        let text = start.trim_ascii_start();
        let is_html = [&b"<!doctype"[..], b"<html", b"<head"]
            .iter()
            .any(|tag| text.get(..tag.len()).is_some_and(|it| it.eq_ignore_ascii_case(tag)));
        Some(match () {
            () if is_pickle(start) => Self::Pickle,
            () if is_html => Named("an HTML page, such as a server's error or login page"),
            () if is_onnx(start) => Named("an ONNX model"),
            () if is_ctranslate2(start) => {
                Named("a model of CTranslate2 (model.bin), as faster-whisper reads")
            }
            () if is_map(start) => Named("MessagePack, as Flax checkpoints are"),
            () if is_text(start) => Named("a text file"),
            () => return None,
        })
    }
}

/// A small version, and the graph or the name of the writer. As a header's length, this is over
/// every limit.
fn is_onnx(start: &[u8]) -> bool {
    match start {
        [0x08, 1..=32, 0x12, len @ 1..=64, name @ ..] if name.len() >= 4 => {
            name.iter().take(usize::from(*len)).all(u8::is_ascii_graphic)
        }
        [0x08, 1..=32, 0x3a, rest @ ..] => rest.get(3..5).is_some_and(|high| high != [0, 0]),
        _ => false,
    }
}

/// A version, and the name of a specification with its length and a zero.
fn is_ctranslate2(start: &[u8]) -> bool {
    let [1..=32, 0, 0, 0, len, 0, name @ ..] = start else { return false };
    let name = name.get(..usize::from(*len)).unwrap_or(name);
    name.first().is_some_and(u8::is_ascii_uppercase)
        && (name.ends_with(b"Spec\0") || name.len() < usize::from(*len))
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == 0)
}

/// MessagePack of a map by names.
fn is_map(start: &[u8]) -> bool {
    let key = match start {
        [0x81..=0x8f, key @ ..] | [0xde, _, _, key @ ..] | [0xdf, _, _, _, _, key @ ..] => key,
        _ => return false,
    };
    let (len, name) = match key {
        [len @ 0xa1..=0xbf, name @ ..] => (*len & 0x1f, name),
        [0xd9, len, name @ ..] => (*len, name),
        _ => return false,
    };
    !name.is_empty() && name.iter().take(usize::from(len)).all(|byte| byte.is_ascii_graphic())
}

/// UTF-8. As a header's length, eight letters are over every limit.
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

/// By the name of its first file.
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

/// Protocol 2 to 5. Older ones have no fixed start.
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

    #[test]
    fn each_format_by_its_start() {
        let zip = |name: &[u8]| {
            let fixed = b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
            [&fixed[..], &(name.len() as u16).to_le_bytes(), &[0, 0], name, b"data"].concat()
        };
        let mut tar = b"./\0".to_vec();
        tar.resize(257, 0);
        tar.extend(b"ustar\x0000");
        for (start, says) in [
            (&zip(b"model/data.pkl")[..], "a PyTorch checkpoint ("),
            (&zip(b"arr_0.npy"), "a NumPy archive (.npz)"),
            (&zip(b"word/document.xml"), "a ZIP archive, as"),
            (b"PK\x05\x06\0\0", "a ZIP archive, as"),
            (b"<!DOCTYPE html><html>", "an HTML page"),
            (b"\n <HTML lang=en>", "an HTML page"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "a Git LFS pointer"),
            (b"# xet version 0\nfilesize = 3\nhash = '0'\n", "an Xet pointer"),
            (b"GGUF\x03\0\0\0\0\0\0\0", "a GGUF file"),
            // A file of 123 tensors has the letter with which headers begin in the same place.
            (b"GGUF\x03\0\0\0{\0\0\0", "a GGUF file"),
            (b"lmgg\x98\xca\0\0\xdc\x05\0\0\0\x05\0\0", "a ggml file (.bin), as whisper.cpp"),
            (b"lmgg\0\0\0\0{", "a ggml file"),
            (b"fmgg\x01\0\0\0", "a ggml file"),
            (b"tjgg\x03\0\0\0\0\x7d\0\0", "a ggml file"),
            (b"algg\x01\0\0\0", "a ggml file"),
            (b"\x06\0\0\0\x0c\0WhisperSpec\0\x03\0\0\0", "a model of CTranslate2"),
            (b"\x08\x07\x12\x07pytorch\x1a\x032.1", "an ONNX model"),
            (b"\x08\x08\x12\x0eonnx.quantize:", "an ONNX model"),
            (b"\x08\x0a\x3a\xa2\x92\x03\x0a\x2b\x0a\x01", "an ONNX model"),
            (b"\x1c\0\0\0TFL3\x14\0\x20\0", "a TensorFlow Lite model"),
            (b"\x82\xa6params\x81\xa5Dense", "MessagePack, as Flax"),
            (b"\xde\0\x10\xa9embedding\x81", "MessagePack, as Flax"),
            (b"\x83\xa8metadata\x85", "a record of burn (.mpk)"),
            (b"NRUB\x01\0\0\0", "a burnpack file"),
            (b"PAR1\x15\x04\x15\xc0\x01\x15", "a Parquet table"),
            (b"ARROW1\0\0\xff\xff\xff\xff", "an Arrow table"),
            (b"FEA1\0\0\0\0", "an Arrow table"),
            (&tar, "a tar archive, as .nemo models are"),
            (b"\x1f\x8b\x08\0\0\0\0\0\0\x03", "a gzip file"),
            (b"\x28\xb5\x2f\xfd\x04\x58", "a zstd file"),
            (b"\xfd7zXZ\0\0\x04", "an xz file"),
            (b"\x04\x22\x4d\x18\x64\x40", "an lz4 file"),
            (b"BZh91AY&SY", "a bzip2 file"),
            (b"7z\xbc\xaf\x27\x1c\0\x04", "a 7z archive"),
            (b"\x80\x02}q\0", "a pickle"),
            (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a pickle"),
            (b"\x80\x04\x95\x10\0\0\0\0\0\0\0}", "a pickle"),
            (b"\x93NUMPY\x01\0", "a NumPy file"),
            (b"\x89HDF\r\n\x1a\n\0", "an HDF5 file"),
            (b"{\"error\":\"not found\"}", "JSON"),
            (b"<?xml version='1.0'?><Error>", "an XML document"),
            ("# \u{dc}ber dieses Modell\n".as_bytes(), "a text file"),
            (b"eight by\xc3", "a text file"),
        ] {
            let found = OtherFormat::detect(start);
            assert!(found.is_some_and(|it| it.to_string().starts_with(says)), "{says}: {found:?}");
            // A truncated start must not panic. Sixteen bytes suffice, except for archives.
            (0..start.len()).for_each(|len| _ = OtherFormat::detect(&start[..len]));
            if start.len() > 16
                && !says.contains("archive")
                && !says.contains("checkpoint")
                && !says.contains("LFS")
            {
                assert_eq!(OtherFormat::detect(&start[..16]), found, "{says}");
            }
        }
    }

    #[test]
    fn a_header_with_a_length_like_another_format_is_a_header() {
        for length in [0x0008_8b1f_u64, 0x03_1208, 0x7d_0280, 0x00a1_6181] {
            assert_eq!(
                OtherFormat::detect(&[&length.to_le_bytes()[..], b"{\"a\":"].concat()),
                None
            );
        }
        for start in [
            &b""[..],
            b"PK",
            b"\0\0\0\0\0\0\0\0",
            b"GGU",
            b"model",
            b"eight by\xff",
            b"a\0b\0c\0d\0e",
            b"\x08\x07\x12\0\0\0\0\0[",
            b"\x08\x07\x3a\0\0\0\0\0[",
            b"\x81\xa1\0\0\0\0\0\0[",
            b"\x06\0\0\0\0\0\0\0[",
        ] {
            assert_eq!(OtherFormat::detect(start), None, "{start:?}");
        }
    }
}
