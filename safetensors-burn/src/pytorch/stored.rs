//! [`StoredParameter`]: how a file stores a parameter.

use burn::tensor::Shape;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredParameter {
    pub(crate) tensor: String,
    /// The position among the equal parts of the tensor's first dimension.
    pub(crate) part: usize,
    pub(crate) parts: usize,
    /// Whether the part, a matrix, is the transpose of the parameter.
    pub(crate) transposed: bool,
}

impl StoredParameter {
    /// Makes a tensor that is the parameter.
    pub(crate) fn whole(tensor: String) -> Self {
        Self { tensor, part: 0, parts: 1, transposed: false }
    }

    pub(crate) fn transposed(self, transposed: bool) -> Self {
        Self { transposed, ..self }
    }

    pub(crate) fn part(self, part: usize, parts: usize) -> Self {
        Self { part, parts, ..self }
    }

    pub(crate) fn is_part(&self) -> bool {
        self.parts > 1
    }

    pub(crate) fn is_as_in_module(&self) -> bool {
        !self.is_part() && !self.transposed
    }

    pub(crate) fn shape_in_file(&self, parameter: &Shape) -> Shape {
        let mut shape = self.turned(parameter);
        if let Some(rows) = shape.first_mut() {
            *rows *= self.parts;
        }
        Shape::from(shape)
    }

    /// Returns `None` if the tensor cannot be divided or transposed, or if its size overflows.
    pub(crate) fn shape_in_module(&self, tensor: &Shape) -> Option<Shape> {
        let mut part = tensor.to_vec();
        match part.first_mut() {
            Some(rows) if rows.is_multiple_of(self.parts) => *rows /= self.parts,
            _ if self.is_part() => return None,
            _ => {}
        }
        if self.transposed && part.len() != 2 {
            return None;
        }
        let shape = self.turned(&Shape::from(part));
        // burn multiplies the dimensions without a check. Without elements, a file may have any.
        shape.iter().try_fold(1_usize, |count, &dim| count.checked_mul(dim))?;
        Some(Shape::from(shape))
    }

    fn turned(&self, shape: &Shape) -> Vec<usize> {
        let mut shape = shape.to_vec();
        if self.transposed {
            shape.reverse();
        }
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[usize]) -> Shape {
        Shape::from(dims.to_vec())
    }

    #[test]
    fn shapes_of_the_file_and_of_the_module_belong_together() {
        let whole = || StoredParameter::whole("weight".into());
        for (stored, in_module, in_file) in [
            (whole(), &[][..], &[][..]),
            (whole(), &[2, 3, 4], &[2, 3, 4]),
            (whole().transposed(true), &[2, 3], &[3, 2]),
            (whole().part(1, 3), &[5], &[15]),
            (whole().part(1, 3).transposed(true), &[2, 5], &[15, 2]),
            (whole().part(3, 4).transposed(true), &[2, 0], &[0, 2]),
        ] {
            let (in_module, in_file) = (shape(in_module), shape(in_file));
            assert_eq!(stored.shape_in_file(&in_module), in_file, "{stored:?}");
            assert_eq!(stored.shape_in_module(&in_file), Some(in_module), "{stored:?}");
        }
    }

    #[test]
    fn tensors_that_cannot_be_divided_or_transposed_have_no_parameter() {
        let whole = || StoredParameter::whole("weight".into());
        for (stored, in_file) in [
            (whole().part(0, 3), &[][..]),
            (whole().part(0, 3), &[4]),
            (whole().part(0, 4), &[3, 4]),
            (whole().transposed(true), &[4]),
            (whole().transposed(true), &[1, 2, 3]),
            (whole().part(0, 2), &[4, 1 << 40, 1 << 40, 0]),
        ] {
            assert_eq!(stored.shape_in_module(&shape(in_file)), None, "{stored:?} {in_file:?}");
        }
    }
}
