//! Large tensors of PyTorch and GGUF are read in bounded memory.

use std::io;

use safetensors_core::{Checkpoint, Dtype, ReadAt};
use safetensors_formats::{Options, TensorFile};
use safetensors_testing::memory::peak;
use safetensors_testing::process::is_alone;

const MIB: u64 = 1 << 20;

/// A file that is nowhere: its start, and zeros behind it.
struct Zeros {
    start: Vec<u8>,
    len: u64,
}

impl ReadAt for Zeros {
    fn byte_len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        assert!(offset + buf.len() as u64 <= self.len);
        buf.fill(0);
        let start = self.start.get(offset as usize..).unwrap_or_default();
        let len = start.len().min(buf.len());
        buf[..len].copy_from_slice(&start[..len]);
        Ok(())
    }
}

/// Reads all tensors piece by piece, and returns the number of bytes.
fn read_in_pieces(file: Zeros) -> u64 {
    let options = Options::new().dequantize(true);
    let file = TensorFile::from_source(file, "a file", &options).unwrap();
    let checkpoint = Checkpoint::from_source(file, "a file").unwrap();
    let (mut read, mut bytes) = (0, Vec::new());
    for tensor in checkpoint.tensors() {
        assert_eq!(tensor.dtype(), Dtype::F32);
        for piece in tensor.pieces() {
            bytes.resize(piece.byte_len() as usize, 0);
            piece.read_bytes_into(&mut bytes).unwrap();
            // A quantised zero may have a sign. Two numbers at a time: there are 32 million.
            let (pairs, rest) = bytes.as_chunks::<8>();
            let signs = u64::from_le_bytes([0, 0, 0, 0x80, 0, 0, 0, 0x80]);
            assert!(pairs.iter().all(|&pair| u64::from_le_bytes(pair) & !signs == 0));
            assert!(rest.is_empty());
            read += bytes.len() as u64;
        }
    }
    read
}

/// A legacy file of PyTorch with one matrix, which is transposed.
fn transposed(rows: u32, columns: u32) -> Zeros {
    let elements = u64::from(rows) * u64::from(columns);
    let number = |number: u32| [&b"J"[..], &number.to_le_bytes()].concat();
    let mut start = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.".to_vec();
    start.extend(b"\x80\x02}X\x0d\0\0\0little_endian\x88s.");
    start.extend(b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(");
    start.extend(b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpu");
    start.extend([number(elements as u32), b"Nt\x51K\0".to_vec()].concat());
    start.extend([number(rows), number(columns), b"\x86K\x01".to_vec()].concat());
    start.extend([number(rows), b"\x86\x89ccollections\nOrderedDict\n)RtRs.".to_vec()].concat());
    start.extend(b"\x80\x02]X\x01\0\0\x000a.");
    start.extend(elements.to_le_bytes());
    let len = start.len() as u64 + elements * 4;
    Zeros { start, len }
}

/// A GGUF file with one tensor of Q4_0.
fn quantised(elements: u64) -> Zeros {
    let mut start = b"GGUF\x03\0\0\0".to_vec();
    start.extend([1_u64.to_le_bytes(), 0_u64.to_le_bytes()].concat());
    start.extend([&1_u64.to_le_bytes()[..], b"w", &1_u32.to_le_bytes()].concat());
    start.extend(elements.to_le_bytes());
    start.extend([&2_u32.to_le_bytes()[..], &0_u64.to_le_bytes()].concat());
    start.resize(start.len().next_multiple_of(32), 0);
    let len = start.len() as u64 + elements / 32 * 18;
    Zeros { start, len }
}

#[test]
fn large_tensors_are_read_in_bounded_memory() {
    if !is_alone(large_tensors_are_read_in_bounded_memory) {
        return;
    }
    assert_eq!(read_in_pieces(quantised(16 * MIB)), 64 * MIB);
    assert_eq!(read_in_pieces(transposed(4096, 4096)), 64 * MIB);
    let peak = peak();
    assert!(peak < 40 * MIB, "{} MiB", peak / MIB);
}
