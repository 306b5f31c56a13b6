//! [`Blocks`]: the numbers of a quantised tensor, for any range of it, and their [`Scales`].

use std::io;

use super::Place;

/// The quantised bytes that are read at once.
const PIECE: usize = 64 << 10;

/// The blocks of a type that can be dequantised. The type is one of a table, so the name tells all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    pub(crate) name: &'static str,
    /// The elements of a block.
    pub(crate) len: usize,
    /// The bytes of a block.
    pub(crate) bytes: usize,
    /// Fills the numbers of one block.
    pub(crate) dequantize: fn(&[u8], &mut [f32]),
}

impl PartialEq for Blocks {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Blocks {}

impl Blocks {
    /// The bytes of the numbers of one block.
    pub(crate) fn unit(self) -> usize {
        self.len * size_of::<f32>()
    }

    /// Fills `out` with the numbers of whole blocks, from a block on.
    pub(crate) fn read(
        self,
        read: &dyn Fn(&mut [u8], u64) -> io::Result<()>,
        first: u64,
        out: &mut [u8],
    ) -> io::Result<()> {
        let Self { len, bytes, dequantize, .. } = self;
        let at_once = (PIECE / bytes).max(1).min(out.len() / self.unit());
        let (mut quants, mut numbers) = (vec![0; at_once * bytes], vec![0.0; len]);
        let mut at = first * bytes as u64;
        for part in out.chunks_mut(at_once * self.unit()) {
            let blocks = part.len() / self.unit();
            let quants = &mut quants[..blocks * bytes];
            read(quants, at)?;
            at += quants.len() as u64;
            for (block, out) in quants.chunks_exact(bytes).zip(part.chunks_exact_mut(self.unit())) {
                dequantize(block, &mut numbers);
                for (number, out) in numbers.iter().zip(out.as_chunks_mut::<4>().0) {
                    *out = number.to_le_bytes();
                }
            }
        }
        Ok(())
    }
}

/// The scales that numbers are multiplied by, which are F32.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Scales {
    pub(crate) place: Place,
    /// The numbers that have one scale.
    pub(crate) each: u64,
}

/// Multiplies numbers, of which the first is number `first` of its tensor, by their scales, which
/// `read` reads. `each` of them have one.
pub(super) fn multiply(
    numbers: &mut [u8],
    mut first: u64,
    each: u64,
    read: &dyn Fn(&mut [u8], u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut rest = numbers.as_chunks_mut::<4>().0;
    let start = first / each;
    let scales = (first + rest.len() as u64).div_ceil(each) - start;
    let mut bytes = vec![0; scales as usize * size_of::<f32>()];
    read(&mut bytes, start * size_of::<f32>() as u64)?;
    for scale in bytes.as_chunks().0 {
        let len = (each - first % each).min(rest.len() as u64);
        let (part, others) = rest.split_at_mut(len as usize);
        for number in part {
            *number = (f32::from_le_bytes(*number) * f32::from_le_bytes(*scale)).to_le_bytes();
        }
        (rest, first) = (others, first + len);
    }
    Ok(())
}
