//! [`Changed`]: a weight that is changed on its way into a GGUF file.

use safetensors_core::convert::{ConvertOptions, Converted};
use safetensors_core::framework::write_in_pieces;
use safetensors_core::save::Sink;
use safetensors_core::{Dtype, Result, TensorSource, shape};

use crate::tensor_file::Undo;

const PIECE: usize = 64 << 10;

/// The F32 of a weight or bias. Readers of the file undo the change.
pub(super) struct Changed<S> {
    source: Converted<S>,
    undo: Undo,
}

impl<S: TensorSource> Changed<S> {
    pub(super) fn plus_one(source: S) -> Result<Self> {
        let source = Converted::new(source, Dtype::F32, &ConvertOptions::new())?;
        Ok(Self { source, undo: Undo::PlusOne })
    }

    /// Interleaves the rows of both halves of a head: 0, n/2, 1, n/2 + 1 and so on. `rows` is even.
    pub(super) fn interleaved(source: S, rows: usize) -> Result<Self> {
        let columns: usize = source.shape().iter().skip(1).product();
        let undo = Undo::Interleaved { row: columns * size_of::<f32>(), rows };
        Ok(Self { undo, ..Self::plus_one(source)? })
    }
}

impl<S: TensorSource> TensorSource for Changed<S> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.source.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        let expected = shape::byte_len(Dtype::F32, self.shape())?;
        let piece = PIECE.next_multiple_of(self.undo.unit().max(1));
        let mut reverted = Vec::new();
        write_in_pieces(&self.source, expected, piece, &mut |piece| {
            reverted.clear();
            reverted.extend_from_slice(piece);
            self.undo.revert(&mut reverted);
            sink(&reverted)
        })
    }
}

#[cfg(test)]
mod tests {
    use safetensors_core::TensorView;

    use super::*;

    struct Cut<'a>(TensorView<'a>, usize);

    impl TensorSource for Cut<'_> {
        fn dtype(&self) -> Dtype {
            self.0.dtype()
        }

        fn shape(&self) -> &[usize] {
            self.0.shape()
        }

        fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
            self.0.data().chunks(self.1).try_for_each(sink)
        }
    }

    fn read(source: &impl TensorSource) -> Vec<f32> {
        let mut bytes = Vec::new();
        source
            .write_to(&mut |piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            })
            .unwrap();
        bytes.as_chunks().0.iter().map(|&it| f32::from_le_bytes(it)).collect()
    }

    #[test]
    fn the_halves_of_each_head_are_interleaved() {
        // Two heads of four rows.
        let numbers: Vec<f32> = (0..16).map(|i| i as f32).collect();
        let view = TensorView::from_slice(&[8, 2], &numbers).unwrap();
        let expected: Vec<f32> = [0, 2, 1, 3, 4, 6, 5, 7]
            .iter()
            .flat_map(|row| [(row * 2) as f32, (row * 2 + 1) as f32])
            .collect();
        for cut in [1, 3, 8, 20, 64] {
            let interleaved = Changed::interleaved(Cut(view, cut), 4).unwrap();
            assert_eq!(read(&interleaved), expected, "{cut}");
        }
        let bias = TensorView::from_slice(&[4], &numbers[..4]).unwrap();
        assert_eq!(read(&Changed::interleaved(bias, 4).unwrap()), [0.0, 2.0, 1.0, 3.0]);
    }

    #[test]
    fn one_is_added() {
        let view = TensorView::from_slice(&[3], &[0.0_f32, -1.0, 0.25]).unwrap();
        for cut in [1, 3, 12] {
            assert_eq!(
                read(&Changed::plus_one(Cut(view, cut)).unwrap()),
                [1.0, 0.0, 1.25],
                "{cut}"
            );
        }
    }
}
