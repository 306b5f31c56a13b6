//! [`Blocks`]: the numbers of a quantised tensor, for any range.

use std::io;

/// Quantised bytes read at once.
const PIECE: usize = 64 << 10;

/// A type from a table, so its name identifies all fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    pub(crate) name: &'static str,
    pub(crate) len: usize,
    pub(crate) bytes: usize,
    pub(crate) dequantize: fn(&[u8], &mut [f32]),
}

impl PartialEq for Blocks {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Blocks {}

impl Blocks {
    pub(crate) fn unit(self) -> usize {
        self.len * size_of::<f32>()
    }

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
