//! Rearranges stored steps for a tensor that grows along a later dimension than the first.
//!
//! The tensor has row 0 of all steps, then row 1 of all steps, and so on.

use std::io;

use crate::file::load::streaming::PIECE;
use crate::format::error::Result;

/// Memory holds twice this.
const TILE: u64 = 8 << 20;

/// The rows of a step. Only the bytes of a row are contiguous in the tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layers {
    pub(super) outer: u64,
    pub(super) inner: u64,
}

/// `read` reads from stored steps, `write` takes bytes of the tensor, each at an offset.
pub(super) fn write_layers(
    Layers { outer, inner }: Layers,
    steps: u64,
    read: &dyn Fn(&mut [u8], u64) -> io::Result<()>,
    write: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    if outer <= 1 {
        let all = Block { from: 0, to: 0, len: outer * inner * steps };
        return copy(all, &mut Vec::new(), read, write);
    }
    if inner >= PIECE as u64 {
        let mut buffer = Vec::new();
        for step in 0..steps {
            for row in 0..outer {
                let from = (step * outer + row) * inner;
                let to = (row * steps + step) * inner;
                copy(Block { from, to, len: inner }, &mut buffer, read, write)?;
            }
        }
        return Ok(());
    }
    if inner == 0 || steps == 0 {
        return Ok(());
    }
    // A tile is about as high as wide, so that both reads and writes are long.
    let cells = TILE / inner;
    let high = outer.min(cells.isqrt());
    let wide = steps.min(cells / high);
    let high = outer.min(cells / wide);
    let unit = inner as usize;
    let mut stored = vec![0; (high * wide * inner) as usize];
    let mut turned = stored.clone();
    for first_row in (0..outer).step_by(high as usize) {
        let rows = high.min(outer - first_row) as usize;
        for first_step in (0..steps).step_by(wide as usize) {
            let count = wide.min(steps - first_step) as usize;
            for (step, place) in stored.chunks_exact_mut(rows * unit).take(count).enumerate() {
                let row = (first_step + step as u64) * outer + first_row;
                read(place, row * inner)?;
            }
            for (row, line) in turned.chunks_exact_mut(count * unit).take(rows).enumerate() {
                for (step, place) in line.chunks_exact_mut(unit).enumerate() {
                    place.copy_from_slice(&stored[(step * rows + row) * unit..][..unit]);
                }
                write(((first_row + row as u64) * steps + first_step) * inner, line)?;
            }
        }
    }
    Ok(())
}

/// Contiguous in the steps and in the tensor.
struct Block {
    from: u64,
    to: u64,
    len: u64,
}

fn copy(
    Block { from, to, len }: Block,
    buffer: &mut Vec<u8>,
    read: &dyn Fn(&mut [u8], u64) -> io::Result<()>,
    write: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    buffer.resize(len.min(PIECE as u64) as usize, 0);
    for start in (0..len).step_by(PIECE) {
        let piece = &mut buffer[..(len - start).min(PIECE as u64) as usize];
        read(piece, from + start)?;
        write(to + start, piece)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::io::testing::repeated;

    #[test]
    fn rows_of_all_steps_come_together() {
        for (outer, inner, steps) in [
            (1, 5, 7),
            (3, 1, 4),
            (5, 8, 1),
            (1000, 8, 3000),
            (3_000_000, 4, 2),
            (3, 2 << 20, 2),
            (0, 4, 4),
            (4, 0, 4),
            (4, 4, 0),
        ] {
            let len = (outer * inner * steps) as usize;
            let stored = repeated(len, 251, |i| (i % 251) as u8);
            let mut found = vec![0; len];
            let mut written = 0;
            write_layers(
                Layers { outer, inner },
                steps,
                &|buf, offset| {
                    buf.copy_from_slice(&stored[offset as usize..][..buf.len()]);
                    Ok(())
                },
                &mut |offset, bytes| {
                    found[offset as usize..][..bytes.len()].copy_from_slice(bytes);
                    written += bytes.len();
                    Ok(())
                },
            )
            .unwrap();
            assert_eq!(written, len);
            for row in 0..outer.min(50) {
                for step in 0..steps {
                    let of = |at: u64| at as usize..at as usize + inner as usize;
                    let (from, to) = ((step * outer + row) * inner, (row * steps + step) * inner);
                    assert!(found[of(to)] == stored[of(from)], "{outer} {inner} {steps}");
                }
            }
        }
    }
}
