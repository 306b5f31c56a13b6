//! Files that are cut or damaged.

use safetensors_core::{Checkpoint, ReadAt};
use safetensors_formats::{Options, TensorFile};

use super::fixture;

/// Opens bytes, and reads all tensors. Nothing may panic; the outcome is free.
fn read_all(bytes: Vec<u8>) {
    let options = Options::new().dequantize(true);
    let Ok(file) = TensorFile::from_source(bytes, "a file", &options) else { return };
    let Ok(checkpoint) = Checkpoint::from_source(file, "a file") else { return };
    for tensor in checkpoint.tensors() {
        let _ = tensor.read();
    }
}

const SMALL: [&str; 7] = [
    "npy/i4_big_fortran.npy",
    "stored.npz",
    "deflated.npz",
    "pytorch/alone.pt",
    "pytorch/deflated.pt",
    "pytorch/strided_legacy.pt",
    "gguf/plain.gguf",
];

#[test]
fn a_file_cut_anywhere_is_an_error() {
    for name in SMALL {
        let whole = std::fs::read(fixture(name)).unwrap();
        for len in 0..whole.len() {
            let opened = TensorFile::from_source(whole[..len].to_vec(), "a file", &Options::new());
            // The end of a file may be padding. What opens must have all that it claims.
            if let Ok(file) = opened {
                let mut all = vec![0; file.byte_len() as usize];
                file.read_exact_at(&mut all, 0).unwrap();
            }
        }
    }
}

#[test]
fn damaged_bytes_are_an_error_or_other_values() {
    for name in SMALL {
        let whole = std::fs::read(fixture(name)).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= [0x01, 0x80, 0xff][at % 3];
            read_all(damaged);
        }
    }
}

#[test]
fn a_wrong_checksum_is_found_when_it_is_asked_for() {
    let mut bytes = std::fs::read(fixture("stored.npz")).unwrap();
    let at = bytes.windows(6).position(|part| part == b"\x93NUMPY").unwrap() + 128;
    bytes[at] ^= 1;
    let file = TensorFile::from_source(bytes, "a.npz", &Options::new()).unwrap();
    let error = file.verify_checksums().unwrap_err().to_string();
    assert!(error.starts_with("a.npz: member "), "{error}");
    assert!(error.to_lowercase().contains("checksum"), "{error}");
}

#[test]
fn a_file_of_another_format_is_refused() {
    for bytes in [&b"\x02\0\0\0\0\0\0\0{}"[..], b"", b"GIF89a", b"PK\x03\x04"] {
        let error = TensorFile::from_source(bytes, "a file", &Options::new()).unwrap_err();
        assert!(error.to_string().starts_with("a file: "), "{error}");
    }
}
