//! Weights that are changed on their way into a GGUF file. Both have numbers of F32.

use safetensors_core::convert::{ConvertOptions, Converted};
use safetensors_core::framework::write_in_pieces;
use safetensors_core::save::Sink;
use safetensors_core::{Dtype, Result, TensorSource, shape};

/// The most bytes of numbers that are changed at a time.
const PIECE: usize = 64 << 10;

/// Returns the numbers of a source as F32.
fn numbers<S: TensorSource>(source: S) -> Result<Converted<S>> {
    Converted::new(source, Dtype::F32, &ConvertOptions::new())
}

/// A weight or bias with rows that belong to heads. The rows of each half of a head are
/// interleaved: 0, n/2, 1, n/2 + 1 and so on. One head is in memory at a time.
pub(super) struct Interleaved<S> {
    source: Converted<S>,
    /// The rows of a head: an even number of them.
    rows: usize,
}

impl<S: TensorSource> Interleaved<S> {
    pub(super) fn new(source: S, rows: usize) -> Result<Self> {
        Ok(Self { source: numbers(source)?, rows })
    }
}

impl<S: TensorSource> TensorSource for Interleaved<S> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.source.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        let columns: usize = self.shape().iter().skip(1).product();
        let row = columns * size_of::<f32>();
        let expected = shape::byte_len(Dtype::F32, self.shape())?;
        write_in_pieces(&self.source, expected, self.rows * row, |head| {
            let rows = head.len() / row;
            (0..rows).try_for_each(|i| {
                let from = (i % 2 * (rows / 2) + i / 2) * row;
                sink(&head[from..][..row])
            })
        })
    }
}

/// A weight with one added to each number.
pub(super) struct PlusOne<S>(Converted<S>);

impl<S: TensorSource> PlusOne<S> {
    pub(super) fn new(source: S) -> Result<Self> {
        Ok(Self(numbers(source)?))
    }
}

impl<S: TensorSource> TensorSource for PlusOne<S> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        let expected = shape::byte_len(Dtype::F32, self.shape())?;
        let mut more = Vec::new();
        write_in_pieces(&self.0, expected, PIECE, |piece| {
            more.clear();
            let numbers = piece.as_chunks().0.iter();
            more.extend(numbers.flat_map(|bytes| (f32::from_le_bytes(*bytes) + 1.0).to_le_bytes()));
            sink(&more)
        })
    }
}

#[cfg(test)]
mod tests {
    use safetensors_core::TensorView;

    use super::*;

    /// A source that cuts its bytes anywhere.
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
            let interleaved = Interleaved::new(Cut(view, cut), 4).unwrap();
            assert_eq!(read(&interleaved), expected, "{cut}");
        }
        let bias = TensorView::from_slice(&[4], &numbers[..4]).unwrap();
        assert_eq!(read(&Interleaved::new(bias, 4).unwrap()), [0.0, 2.0, 1.0, 3.0]);
    }

    #[test]
    fn one_is_added() {
        let view = TensorView::from_slice(&[3], &[0.0_f32, -1.0, 0.25]).unwrap();
        for cut in [1, 3, 12] {
            assert_eq!(read(&PlusOne::new(Cut(view, cut)).unwrap()), [1.0, 0.0, 1.25], "{cut}");
        }
    }
}
