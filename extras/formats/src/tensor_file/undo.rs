//! [`Undo`]: converts numbers from the file's form to the model's.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undo {
    /// Rows of each head alternate between its halves. A row has `row` bytes, a head `rows` rows.
    Interleaved { row: usize, rows: usize },
    /// One was added to each F32.
    PlusOne,
}

impl Undo {
    pub(crate) fn unit(self) -> usize {
        match self {
            Self::Interleaved { row, rows } => row * rows,
            Self::PlusOne => size_of::<f32>(),
        }
    }

    pub(super) fn apply(self, bytes: &mut [u8]) {
        self.change(bytes, |interleaved, apart| (interleaved, apart), -1.0);
    }

    pub(crate) fn revert(self, bytes: &mut [u8]) {
        self.change(bytes, |interleaved, apart| (apart, interleaved), 1.0);
    }

    /// Moves each row between its two places, or adds a number.
    fn change(self, bytes: &mut [u8], places: fn(usize, usize) -> (usize, usize), more: f32) {
        match self {
            Self::Interleaved { row, rows } => {
                for head in bytes.chunks_exact_mut(row * rows) {
                    let before = head.to_vec();
                    for i in 0..rows {
                        let (from, to) = places(i, i % 2 * (rows / 2) + i / 2);
                        head[to * row..][..row].copy_from_slice(&before[from * row..][..row]);
                    }
                }
            }
            Self::PlusOne => {
                for number in bytes.as_chunks_mut().0 {
                    *number = (f32::from_le_bytes(*number) + more).to_le_bytes();
                }
            }
        }
    }
}
