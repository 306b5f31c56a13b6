//! Arrays as tensors of a [`TensorFile`].

use std::path::Path;
use std::sync::Arc;

use super::descr::ByteOrder;
use super::header::{Header, Order, check_length};
use crate::Format;
use crate::budget::Budget;
use crate::error::{ErrorKind, Result};
use crate::input::{Cursor, Input, stem};
use crate::tensor_file::{Builder, Container, Data, Place, Placement, Tensor, TensorFile};

pub(crate) fn open_file(input: Input<'static>, path: &Path, budget: &Budget) -> Result<TensorFile> {
    let input = Arc::new(input);
    let mut cursor = Cursor { input: Arc::clone(&input), at: 0 };
    let header = Header::read(&mut cursor, budget.limits())?;
    check_length(&header, cursor.left())?;
    let tensor = tensor(stem(path), &header, Place::At(cursor.at))?;
    let builder = Builder { tensors: vec![tensor], ..Builder::default() };
    builder.build(Format::Npy, Container::File(input), budget)
}

pub(crate) fn tensor(name: String, header: &Header, place: Place) -> Result<Tensor> {
    let dtype = header.dtype;
    let shape = header.shape.clone();
    let width = dtype.bits() as usize / 8;
    let elements = header.data_len()? / width as u64;
    let strides = header.order.strides(&shape);
    let placement = Placement::new(&shape, &strides, 0, width, elements);
    let found = header.data_len()?;
    let placement = placement.ok_or(ErrorKind::DataLength { expected: found, found })?;
    let data = Data::placed(place, placement, header.swapped());
    Ok(Tensor { name, dtype, shape, data, stored: None })
}

impl Header {
    /// Of big-endian numbers: two for a complex element, each as large as the alignment.
    pub(super) fn swapped(&self) -> Option<usize> {
        let width = self.dtype.alignment();
        (self.byte_order == ByteOrder::Big && width > 1).then_some(width)
    }
}

impl Order {
    /// Without gaps, in elements.
    pub(crate) fn strides(self, shape: &[usize]) -> Vec<u64> {
        // The innermost dimension is the last in C order, the first in Fortran order.
        let mut strides = vec![0; shape.len()];
        let mut stride = 1_u64;
        let mut set = |axis: usize| {
            strides[axis] = stride;
            stride = stride.saturating_mul(shape[axis] as u64);
        };
        match self {
            Self::C => (0..shape.len()).rev().for_each(&mut set),
            Self::Fortran => (0..shape.len()).for_each(&mut set),
        }
        strides
    }
}
