//! The error about a file of another format names the format that it looks like.

use safetensors_core::header::Header;

use crate::support::*;

/// Returns the start of a ZIP archive with this name of its first file.
fn zip(name: &str) -> Vec<u8> {
    let mut bytes = b"PK\x03\x04\0\0\x08\x08\0\0".to_vec();
    bytes.resize(26, 0);
    bytes.extend((name.len() as u16).to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(name.as_bytes());
    bytes.resize(2_000, b'x');
    bytes
}

#[test]
fn other_formats_through_every_way_to_open() {
    let lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 440449768\n";
    for (bytes, says) in [
        (zip("archive/data.pkl"), "not a safetensors file: a PyTorch checkpoint"),
        (zip("arr_0.npy"), "not a safetensors file: a NumPy archive (.npz)"),
        (zip("x"), "not a safetensors file: a ZIP archive"),
        (b"<!doctype HTML>\n<html><title>Sign in</title>".to_vec(), "an HTML page"),
        (b"<html>".to_vec(), "an HTML page"),
        (lfs.into(), "a Git LFS pointer instead of the file itself"),
        ([&b"GGUF\x03\0\0\0"[..], &[0; 100]].concat(), "a GGUF file"),
        // As a length of a header, these bytes are within the limit.
        ([&b"\x1f\x8b\x08\0\0\0\0\0\0\x03"[..], &[7; 600_000]].concat(), "a gzip file"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03short".to_vec(), "a gzip file"),
        (b"\x80\x02}q\0(X\x06\0\0\0weight".to_vec(), "a pickle"),
        (b"./\0".iter().copied().chain([0; 254]).chain(*b"ustar").collect(), "a tar archive"),
        (b"lmgg\x98\xca\0\0\xdc\x05\0\0".to_vec(), "a ggml file"),
        (b"\x06\0\0\0\x0c\0WhisperSpec\0\x03\0\0\0".to_vec(), "a model of CTranslate2"),
        (b"\x08\x07\x12\x07pytorch\x1a\x032.1".to_vec(), "an ONNX model"),
        (b"\x82\xa6params\x81\xa5Dense".to_vec(), "MessagePack, as Flax"),
        (b"# xet version 0\nfilesize = 3\n".to_vec(), "an Xet pointer instead of the file itself"),
    ] {
        let directory = tempdir().unwrap();
        let path = write(directory.path(), "model.safetensors", &bytes);
        let parsed = SafeTensors::parse(&bytes).unwrap_err();
        let opened = Checkpoint::open(&path).unwrap_err();
        let read = Header::read(&bytes[..], &Limits::default()).unwrap_err();
        for error in [&parsed, &opened, &read] {
            assert!(error.to_string().contains(says), "{says}: {error}");
            // The kind is the rule that the file breaks.
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::TooShort { .. }
                        | ErrorKind::HeaderTooLarge { .. }
                        | ErrorKind::HeaderPastEnd { .. }
                        | ErrorKind::NotAnObject { .. }
                        | ErrorKind::NotUtf8 { .. }
                ),
                "{error}"
            );
        }
        let inside = opened.to_string();
        assert_eq!(inside, format!("{}: {parsed}", path.display()));
    }
}

#[test]
fn a_safetensors_file_does_not_look_like_another_format() {
    for bytes in [vec![], vec![1, 2, 3], file("[]", 0), file("{\"a\":1}", 0), file("{", 10)] {
        let message = SafeTensors::parse(bytes).unwrap_err().to_string();
        assert!(!message.contains("not a safetensors file"), "{message}");
    }
}

/// The header alone gives the length of a file, so the format of later bytes has to be named
/// separately.
#[test]
fn the_format_of_bytes_after_the_tensors_is_named() {
    let directory = tempdir().unwrap();
    for (behind, says) in [
        (zip("archive/data.pkl"), "after them is a PyTorch checkpoint"),
        (b"\x80\x02}q\0.".to_vec(), "after them is a pickle"),
        (vec![0; 9], ", but 11 follow the header"),
    ] {
        let header = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
        let bytes = [file(header, 2), behind].concat();
        let path = write(directory.path(), "model.safetensors", &bytes);
        let parsed = SafeTensors::parse(&bytes).unwrap_err();
        let opened = Checkpoint::open(&path).unwrap_err();
        for error in [&parsed, &opened] {
            let message = error.to_string();
            assert!(message.contains(says), "{says}: {message}");
            assert_eq!(message.contains("after them is"), says.contains("after them is"));
            assert!(matches!(error.kind(), ErrorKind::TrailingData { .. }), "{message}");
        }
    }
}
