//! Converts the values of a parameter from and to the form of PyTorch's tensors.

use burn::tensor::{Bytes, Shape, TensorData};
use bytemuck::Pod;

use super::stored::StoredParameter;

/// The side, in elements, of square tiles.
// A tile of the widest elements fits the first cache.
const TILE: usize = 32;

/// Copies a parameter out of its tensor. Data of a wrong shape is returned unchanged.
pub(crate) fn take(tensor: TensorData, stored: &StoredParameter) -> TensorData {
    let Some(shape) = stored.shape_in_module(tensor.shape()) else { return tensor };
    let bytes = tensor.as_bytes();
    let len = bytes.len() / stored.parts;
    let part = &bytes[stored.part * len..][..len];
    let columns = if stored.transposed { shape.first().copied() } else { None };
    copied(part, columns, shape, &tensor).unwrap_or(tensor)
}

pub(crate) fn put(parameter: TensorData, stored: &StoredParameter) -> TensorData {
    let &[rows, columns] = &parameter.shape()[..] else { return parameter };
    if !stored.transposed {
        return parameter;
    }
    let shape = Shape::from([columns, rows]);
    copied(parameter.as_bytes(), Some(columns), shape, &parameter).unwrap_or(parameter)
}

/// Copies elements into aligned memory, with the dtype of `of`, transposed if `columns` is set.
/// `None` if the elements do not fill the shape.
fn copied(
    elements: &[u8],
    columns: Option<usize>,
    shape: Shape,
    of: &TensorData,
) -> Option<TensorData> {
    let dtype = of.dtype();
    let bytes = match dtype.size() {
        1 => words::<u8, 1>(elements, columns),
        2 => words::<u16, 2>(elements, columns),
        4 => words::<u32, 4>(elements, columns),
        8 => words::<u64, 8>(elements, columns),
        _ => return None,
    };
    TensorData::try_from_bytes(bytes, shape, dtype).ok()
}

fn words<E: Pod + Send + Sync, const W: usize>(from: &[u8], columns: Option<usize>) -> Bytes {
    let from = from.as_chunks::<W>().0;
    let mut words = vec![E::zeroed(); from.len()];
    let to = bytemuck::cast_slice_mut::<E, u8>(&mut words).as_chunks_mut::<W>().0;
    match columns {
        Some(columns) if columns > 0 => transpose(from, to, columns),
        _ => to.copy_from_slice(from),
    }
    Bytes::from_elems(words)
}

/// Transposes tile by tile.
// So each line of the cache that is loaded is used completely.
fn transpose<const W: usize>(from: &[[u8; W]], to: &mut [[u8; W]], columns: usize) {
    let rows = from.len() / columns;
    let mut tile = [[[0; W]; TILE]; TILE];
    for first_row in (0..rows).step_by(TILE) {
        let height = TILE.min(rows - first_row);
        for first_column in (0..columns).step_by(TILE) {
            let width = TILE.min(columns - first_column);
            for (row, line) in tile[..height].iter_mut().enumerate() {
                let start = (first_row + row) * columns + first_column;
                line[..width].copy_from_slice(&from[start..start + width]);
            }
            for column in 0..width {
                let start = (first_column + column) * rows + first_row;
                for (element, line) in to[start..start + height].iter_mut().zip(&tile) {
                    *element = line[column];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;

    use super::*;

    fn numbered(dtype: DType, shape: &[usize]) -> TensorData {
        let count: usize = shape.iter().product();
        let bytes = (0..count).flat_map(|i| (i as u64).to_le_bytes()[..dtype.size()].to_vec());
        TensorData::from_bytes_vec(bytes.collect(), shape.to_vec(), dtype)
    }

    fn at(data: &TensorData, columns: usize, row: usize, column: usize) -> &[u8] {
        let width = data.dtype().size();
        &data.as_bytes()[(row * columns + column) * width..][..width]
    }

    #[test]
    fn matrices_of_every_width_are_transposed() {
        let stored = StoredParameter::whole("weight".into()).transposed(true);
        for dtype in [DType::U8, DType::BF16, DType::F32, DType::I64] {
            for (rows, columns) in
                [(1, 1), (1, 7), (7, 1), (31, 33), (32, 64), (65, 100), (0, 3), (3, 0)]
            {
                let file = numbered(dtype, &[rows, columns]);
                let module = take(file.clone(), &stored);
                assert_eq!(module.shape()[..], [columns, rows]);
                for row in 0..rows {
                    for column in 0..columns {
                        let expected = at(&file, columns, row, column);
                        assert_eq!(at(&module, rows, column, row), expected, "{dtype:?}");
                    }
                }
                assert_eq!(put(module, &stored), file, "{dtype:?} {rows} {columns}");
            }
        }
    }

    #[test]
    fn parts_are_taken_in_their_order() {
        let file = numbered(DType::F64, &[6, 2]);
        let taken = |part, transposed| {
            let stored =
                StoredParameter::whole("weight".into()).part(part, 3).transposed(transposed);
            let data = take(file.clone(), &stored);
            let numbers: Vec<_> =
                data.as_bytes().as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect();
            (data.shape().to_vec(), numbers)
        };
        assert_eq!(taken(0, false), (vec![2, 2], vec![0, 1, 2, 3]));
        assert_eq!(taken(2, false), (vec![2, 2], vec![8, 9, 10, 11]));
        assert_eq!(taken(1, true), (vec![2, 2], vec![4, 6, 5, 7]));
    }
}
