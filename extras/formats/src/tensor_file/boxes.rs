//! Boxes of elements, copied from a window of a file to C order.

#[derive(Clone, Copy, Debug)]
pub(super) struct BoxAxis {
    pub(super) count: u64,
    pub(super) stride: u64,
    pub(super) out: u64,
}

pub(super) struct Odometer<'a> {
    axes: &'a [BoxAxis],
    positions: Vec<u64>,
    /// In elements, from the box's start in the storage.
    pub(super) from: u64,
    /// In the output, in elements.
    pub(super) to: u64,
}

impl<'a> Odometer<'a> {
    pub(super) fn over(axes: &'a [BoxAxis]) -> Self {
        Self { axes, positions: vec![0; axes.len()], from: 0, to: 0 }
    }

    pub(super) fn advance(&mut self) -> bool {
        for (axis, position) in self.axes.iter().zip(&mut self.positions) {
            if *position + 1 < axis.count {
                *position += 1;
                self.from += axis.stride;
                self.to += axis.out;
                return true;
            }
            // Back to the first. The step past the last is never made: it may overflow.
            self.from -= *position * axis.stride;
            self.to -= *position * axis.out;
            *position = 0;
        }
        false
    }
}

pub(super) fn pick(width: usize, window: &[u8], axes: &[BoxAxis], out: &mut [u8]) {
    match width {
        1 => pick_all::<1>(window, axes, out),
        2 => pick_all::<2>(window, axes, out),
        4 => pick_all::<4>(window, axes, out),
        8 => pick_all::<8>(window, axes, out),
        _ => pick_all::<16>(window, axes, out),
    }
}

fn pick_all<const WIDTH: usize>(window: &[u8], axes: &[BoxAxis], out: &mut [u8]) {
    let [inner, outer @ ..] = axes else { return };
    let mut outer = outer.to_vec();
    // The dimension in which neighbours are neighbours in the output.
    let across = outer.iter().position(|axis| axis.out == 1 && axis.count > 1);
    let across = across.map(|axis| outer.remove(axis));
    let mut at = Odometer::over(&outer);
    loop {
        let window = &window[at.from as usize * WIDTH..];
        let out = &mut out[at.to as usize * WIDTH..];
        match across {
            Some(across) => turn::<WIDTH>(window, *inner, across, out),
            None => {
                for i in 0..inner.count as usize {
                    let from = place::<WIDTH>(i, inner.stride);
                    let to = place::<WIDTH>(i, inner.out);
                    out[to..to + WIDTH].copy_from_slice(&window[from..from + WIDTH]);
                }
            }
        }
        if !at.advance() {
            return;
        }
    }
}

/// The stride of a single position may overflow on 32 bits, and is not used.
fn place<const WIDTH: usize>(position: usize, stride: u64) -> usize {
    position.wrapping_mul((stride as usize).wrapping_mul(WIDTH))
}

/// `rows` has the nearest neighbours in the window, `columns` in the output. Tiles use each line of
/// the cache entirely.
fn turn<const WIDTH: usize>(window: &[u8], rows: BoxAxis, columns: BoxAxis, out: &mut [u8]) {
    /// In elements of any width: a tile fits the first cache.
    const TILE: usize = 32;
    let mut tile = [[[0; WIDTH]; TILE]; TILE];
    for first_row in (0..rows.count as usize).step_by(TILE) {
        let height = TILE.min(rows.count as usize - first_row);
        for first_column in (0..columns.count as usize).step_by(TILE) {
            let width = TILE.min(columns.count as usize - first_column);
            for (column, line) in tile[..width].iter_mut().enumerate() {
                let start = place::<WIDTH>(first_column + column, columns.stride);
                for (row, element) in line[..height].iter_mut().enumerate() {
                    let at = start + place::<WIDTH>(first_row + row, rows.stride);
                    element.copy_from_slice(&window[at..at + WIDTH]);
                }
            }
            for row in 0..height {
                let start = place::<WIDTH>(first_row + row, rows.out) + first_column * WIDTH;
                let elements = out[start..start + width * WIDTH].as_chunks_mut::<WIDTH>().0;
                elements.iter_mut().zip(&tile).for_each(|(element, line)| *element = line[row]);
            }
        }
    }
}
