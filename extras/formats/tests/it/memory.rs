//! Large arrays pass through in bounded memory.

use std::io::{self, Cursor};

use safetensors_core::save::Sink;
use safetensors_core::{self as core, Dtype, ReadAt, TensorSource};
use safetensors_formats::npy::{Array, Header, Order};
use safetensors_formats::npz::{Archive, Compression, Writer};
use safetensors_formats::{Limits, npy};
use safetensors_testing::memory::peak;
use safetensors_testing::process::is_alone;
use safetensors_testing::tensors::bytes_by;

const MIB: u64 = 1 << 20;

/// Returns the value of the element of this number in the order of the file. 128 neighbours are
/// equal, so that compressing them takes little time.
fn value(stored: u64) -> u32 {
    (stored as u32 >> 7).wrapping_mul(2_654_435_761)
}

/// A `.npy` file in Fortran order that is nowhere: each element is computed when it is read.
struct Computed {
    header: Vec<u8>,
    elements: u64,
}

impl Computed {
    fn new(shape: &[usize]) -> Self {
        let header = Header { order: Order::Fortran, ..Header::new(Dtype::U32, shape) };
        let elements = shape.iter().map(|&dim| dim as u64).product();
        Self { header: header.encode().unwrap(), elements }
    }
}

impl ReadAt for Computed {
    fn byte_len(&self) -> u64 {
        self.header.len() as u64 + self.elements * 4
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let start = self.header.len() as u64;
        if offset < start {
            return self.header.as_slice().read_exact_at(buf, offset);
        }
        if ((offset - start) % 4, buf.len() % 4) != (0, 0) {
            // The end of the file, where an archive would end.
            assert!(offset + 65_557 >= self.byte_len(), "whole elements");
            for (byte, at) in buf.iter_mut().zip(offset - start..) {
                *byte = value(at / 4).to_le_bytes()[(at % 4) as usize];
            }
            return Ok(());
        }
        let first = (offset - start) / 4;
        for (element, i) in buf.chunks_exact_mut(4).zip(first..) {
            element.copy_from_slice(&value(i).to_le_bytes());
        }
        Ok(())
    }
}

/// The bytes of a file as a tensor of bytes: to put any file into an archive.
struct File<'a, S>(&'a S, [usize; 1]);

impl<S: ReadAt> TensorSource for File<'_, S> {
    fn dtype(&self) -> Dtype {
        Dtype::U8
    }

    fn shape(&self) -> &[usize] {
        &self.1
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> core::Result<()> {
        let mut buffer = vec![0; MIB as usize];
        // The header separately, so that elements are read in full.
        let (mut at, header) = (0, (self.1[0] % MIB as usize).max(1));
        while at < self.1[0] {
            let len = if at == 0 { header } else { MIB as usize }.min(self.1[0] - at);
            self.0.read_exact_at(&mut buffer[..len], at as u64).map_err(core::ErrorKind::Io)?;
            sink(&buffer[..len])?;
            at += len;
        }
        Ok(())
    }
}

/// Checks each element against where it must come from.
fn check(array: &Array) {
    let &[rows, columns] = array.shape() else { panic!("{:?}", array.shape()) };
    let (rows, columns) = (rows as u64, columns as u64);
    let (mut row, mut column, mut wrong) = (0, 0, 0_u64);
    array
        .write_to(&mut |piece| {
            assert!(piece.len() as u64 <= MIB, "{}", piece.len());
            for element in piece.as_chunks::<4>().0 {
                wrong += u64::from(u32::from_le_bytes(*element) != value(column * rows + row));
                column += 1;
                if column == columns {
                    (row, column) = (row + 1, 0);
                }
            }
            Ok(())
        })
        .unwrap();
    assert_eq!((row, column, wrong), (rows, 0, 0));
}

/// An archive with one array in Fortran order, 34 MiB of elements: a little more than a block.
fn archive(compression: Compression) -> Vec<u8> {
    let file = Computed::new(&[2176, 4096]);
    let len = file.byte_len() as usize;
    // The writer would put its own header before it: the member is written by hand.
    let method = match compression {
        Compression::Stored => zip::CompressionMethod::Stored,
        Compression::Deflated => zip::CompressionMethod::Deflated,
    };
    let level = (compression == Compression::Deflated).then_some(1);
    let options = zip::write::SimpleFileOptions::default();
    let options = options.compression_method(method).compression_level(level);
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    archive.start_file("w.npy", options).unwrap();
    npy::write_data(&mut archive, &File(&file, [len])).unwrap();
    archive.finish().unwrap().into_inner()
}

#[test]
fn large_arrays_take_two_blocks_at_most() {
    if !is_alone(large_arrays_take_two_blocks_at_most) {
        return;
    }
    // Everything that is held in memory for the test itself comes first.
    let archives = [Compression::Stored, Compression::Deflated].map(archive);
    let damaged = {
        let mut file = archives[0].clone();
        let middle = file.len() / 2;
        file[middle] ^= 1;
        file
    };
    let mut zeros = Writer::new(Cursor::new(Vec::new())).compression(Compression::Deflated);
    let source =
        bytes_by(64 << 20, |sink| (0..(64 << 20) / 4096).try_for_each(|_| sink(&[0; 4096])));
    zeros.add("zeros", &source).unwrap();
    let zeros = zeros.finish().unwrap().into_inner();
    assert!((zeros.len() as u64) < MIB, "{}", zeros.len());
    let before = peak();

    // 64 MiB that were deflated to almost nothing, in pieces.
    let zeros = Archive::from_source(zeros, "a.npz", &Limits::default()).unwrap();
    let mut all = 0;
    let count = &mut |piece: &[u8]| {
        all += piece.len();
        Ok(())
    };
    zeros.array("zeros").unwrap().write_to(count).unwrap();
    assert_eq!(all, 64 << 20);
    let taken = peak().saturating_sub(before);
    assert!(taken < 8 * MIB, "{} MiB", taken / MIB);

    // As a file, 96 MiB: in three blocks.
    let array = Array::from_source(Computed::new(&[3072, 8192]), "a.npy", &Limits::default());
    check(&array.unwrap());
    // As a member: in place, and unpacked to a temporary file.
    for archive in archives {
        let archive = Archive::from_source(archive, "a.npz", &Limits::default()).unwrap();
        check(&archive.array("w").unwrap());
    }
    // A checksum is compared also if elements are read here and there.
    let damaged = Archive::from_source(damaged, "a.npz", &Limits::default()).unwrap();
    let mut given = 0;
    let error = damaged.array("w").unwrap().write_to(&mut |piece| {
        given += piece.len();
        Ok(())
    });
    assert!(error.unwrap_err().to_string().ends_with("Invalid checksum"));
    assert_eq!(given, 0, "it is found before anything is given");
    let taken = peak().saturating_sub(before);
    assert!(taken < 80 * MIB, "{} MiB", taken / MIB);
}
