//! [`Undo`]: converts numbers from the file's form to the model's.

/// How the numbers of a tensor are put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undo {
    /// The rows of each head are interleaved: the first row of each half, the second row of each
    /// half, and so on. A row has `row` bytes, and a head has `rows` rows.
    Interleaved { row: usize, rows: usize },
    /// One was added to each F32.
    PlusOne,
}

impl Undo {
    /// Returns the number of bytes that are put back at a time.
    pub(super) fn unit(self) -> usize {
        match self {
            Self::Interleaved { row, rows } => row * rows,
            Self::PlusOne => size_of::<f32>(),
        }
    }

    /// Puts whole units back.
    pub(super) fn apply(self, bytes: &mut [u8]) {
        match self {
            Self::Interleaved { row, rows } => {
                for head in bytes.chunks_exact_mut(row * rows) {
                    let stored = head.to_vec();
                    for (i, stored) in stored.chunks_exact(row).enumerate() {
                        let to = i % 2 * (rows / 2) + i / 2;
                        head[to * row..][..row].copy_from_slice(stored);
                    }
                }
            }
            Self::PlusOne => {
                for number in bytes.as_chunks_mut().0 {
                    *number = (f32::from_le_bytes(*number) - 1.0).to_le_bytes();
                }
            }
        }
    }
}
