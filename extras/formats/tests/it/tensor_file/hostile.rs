//! Files that are cut or damaged.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use safetensors_core::{Checkpoint, ReadAt, TensorBuf};
use safetensors_formats::{Options, TensorFile, npy, npz};

use super::fixture;

/// Opens bytes, and reads all tensors. Nothing may panic; the outcome is free.
pub(super) fn read_all(bytes: Vec<u8>) {
    let options = Options::new().dequantize(true);
    let Ok(file) = TensorFile::from_source(bytes, "a file", &options) else { return };
    let Ok(checkpoint) = Checkpoint::from_source(file, "a file") else { return };
    for tensor in checkpoint.tensors() {
        let _ = tensor.read();
    }
}

const SMALL: [&str; 11] = [
    "npy/i4_big_fortran.npy",
    "stored.npz",
    "deflated.npz",
    "pytorch/alone.pt",
    "pytorch/deflated.pt",
    "pytorch/strided_legacy.pt",
    "pytorch/frozen.pt",
    "pytorch/arrays_legacy.pt",
    "pytorch/arrays_protocol_5.pt",
    "gguf/plain.gguf",
    "burn/full.mpk",
];

#[test]
fn a_file_cut_anywhere_is_an_error() {
    for name in SMALL {
        let whole = std::fs::read(fixture(name)).unwrap();
        for len in 0..whole.len() {
            let opened = TensorFile::from_source(whole[..len].to_vec(), "a file", &Options::new());
            // The end of a file may be padding. An opened file must have everything that it claims.
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
fn verify_checksums_reports_a_wrong_checksum() {
    let mut bytes = std::fs::read(fixture("stored.npz")).unwrap();
    let at = bytes.windows(6).position(|part| part == b"\x93NUMPY").unwrap() + 128;
    bytes[at] ^= 1;
    let file = TensorFile::from_source(bytes, "a.npz", &Options::new()).unwrap();
    let error = file.verify_checksums().unwrap_err().to_string();
    assert!(error.starts_with("a.npz: tensor "), "{error}");
    assert!(error.to_lowercase().contains("checksum"), "{error}");
}

/// A file that becomes another one of the same length after some accesses. Its times do not show
/// it, because it is young.
struct Rewritten {
    versions: [Vec<u8>; 2],
    /// The accesses before the change.
    change: usize,
    accesses: Arc<AtomicUsize>,
}

impl ReadAt for Rewritten {
    fn byte_len(&self) -> u64 {
        self.versions[0].len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        let is_changed = self.accesses.fetch_add(1, Relaxed) >= self.change;
        self.versions[usize::from(is_changed)].read_exact_at(buf, offset)
    }

    fn check_unchanged(&self) -> std::io::Result<()> {
        self.accesses.fetch_add(1, Relaxed);
        Ok(())
    }

    fn may_change_unseen(&self) -> bool {
        true
    }
}

/// Returns the bytes before the tensors.
fn header(file: &TensorFile) -> Vec<u8> {
    let mut length = [0; 8];
    file.read_exact_at(&mut length, 0).unwrap();
    let mut header = vec![0; u64::from_le_bytes(length) as usize];
    file.read_exact_at(&mut header, 8).unwrap();
    header
}

#[test]
fn a_young_file_that_changes_while_it_is_opened_is_no_mixture() {
    let npz = |name: &str, values: [f32; 2]| {
        let mut file = Vec::new();
        let mut writer = npz::Writer::new(std::io::Cursor::new(&mut file));
        for name in [name, "same"] {
            writer.add(name, &TensorBuf::from_vec(vec![2], values.to_vec()).unwrap()).unwrap();
        }
        writer.finish().unwrap();
        file
    };
    let npy = |shape: Vec<usize>| {
        let mut file = Vec::new();
        npy::write(&mut file, &TensorBuf::from_vec(shape, vec![1_u8; 6]).unwrap()).unwrap();
        file
    };
    for versions in
        [[npz("a", [1.0, 2.0]), npz("b", [3.0, 4.0])], [npy(vec![2, 3]), npy(vec![3, 2])]]
    {
        let headers = versions.clone().map(|version| {
            header(&TensorFile::from_source(version, "a file", &Options::new()).unwrap())
        });
        let open = |change| {
            let accesses = Arc::new(AtomicUsize::new(0));
            let file =
                Rewritten { versions: versions.clone(), change, accesses: Arc::clone(&accesses) };
            let opened = TensorFile::from_source(file, "a file", &Options::new());
            let opened = opened.map(|file| header(&file));
            (opened, accesses.load(Relaxed))
        };
        let (unchanged, accesses) = open(usize::MAX);
        assert!(unchanged.unwrap() == headers[0]);
        let mut refused = 0;
        for change in 0..accesses {
            match open(change).0 {
                // The file is looked at twice, so a change before the second look is noticed.
                Ok(header) if change < accesses / 2 => assert!(header == headers[1], "{change}"),
                Ok(header) => assert!(headers.contains(&header), "{change}"),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 0);
    }
}

#[test]
fn a_file_of_another_format_is_refused() {
    for (bytes, says) in [
        (&b"\x02\0\0\0\0\0\0\0{}"[..], "not a file of NumPy, PyTorch, GGUF or burn"),
        (b"", "not a file of NumPy, PyTorch, GGUF or burn"),
        (b"GIF89a", "not a file of NumPy, PyTorch, GGUF or burn"),
        (b"PK\x03\x04", "truncated after 4 bytes"),
        (b"lmgg\x01\0\0\0", "not a file of NumPy, PyTorch, GGUF or burn: a ggml file (.bin)"),
        (b"<html>", "or burn: an HTML page"),
    ] {
        let error = TensorFile::from_source(bytes, "a file", &Options::new()).unwrap_err();
        assert!(error.to_string().starts_with("a file: "), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}
