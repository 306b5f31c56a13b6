//! Labelled arrays: names of dimensions, and parts by labels along a coordinate.
//!
//! A coordinate is an array with one axis and the name of a dimension, as in NetCDF and xarray.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Bound, Range, RangeBounds};

use ndarray::{Array, Dimension, Ix1, IxDyn, Slice, SliceInfoElem};
use safetensors_core::header::dimensions;
use safetensors_core::{ConvertOptions, Dtype, Error, LazyTensor, ReadAt, Result, TensorBuf};

use crate::array::of_dimension;
use crate::error::dimension;
use crate::slice::ArraySlice;
use crate::{ArrayElement, Ndarray, Reader};

impl<S: ReadAt> Reader<S> {
    /// Returns the names of the axes of an array from its attribute `dimensions`; none if there is
    /// none. [`Writer::dimensions`](crate::Writer::dimensions) writes it.
    ///
    /// # Errors
    ///
    /// [`TensorNotFound`](safetensors_core::ErrorKind::TensorNotFound);
    /// [`BadAttribute`](safetensors_core::ErrorKind::BadAttribute) if the names do not fit the
    /// array.
    pub fn dimensions(&self, array: &str) -> Result<Vec<String>> {
        self.dimensions_of(&self.array(array)?)
    }

    fn dimensions_of(&self, array: &LazyTensor<'_, S>) -> Result<Vec<String>> {
        let metadata = self.checkpoint().metadata();
        let names = dimensions(metadata, array.name(), array.shape().len());
        Ok(names.map_err(|error| array.locate(error))?.unwrap_or_default())
    }

    /// Takes the part of a dimension with labels in a range. The labels are the elements of its
    /// coordinate, the array with the name of the dimension. From other arrays, only the selected
    /// bytes and small gaps between them are read.
    ///
    /// ```
    /// use ndarray::{Array, Array3, Ix1, Ix3, s};
    /// use safetensors_ndarray::{Reader, Writer};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("run.safetensors");
    /// let u = Array3::from_shape_fn((10, 4, 6), |(t, y, x)| (100 * t + 10 * y + x) as f32);
    /// let w = Writer::create(&path)?;
    /// w.add("t", &Array::linspace(0.0, 4.5, 10))?;
    /// w.add("y", &Array::from_iter([30_i64, 20, 10, 0]))?;
    /// w.add("u", &u)?;
    /// w.dimensions("u", &["t", "y", "x"])?;
    /// w.attribute("u", "units", "m/s")?;
    /// w.finish()?;
    ///
    /// let r = Reader::open(&path)?;
    /// assert_eq!(r.dimensions("u")?, ["t", "y", "x"]);
    /// let part = r.select("t", 0.0..=1.5)?.select("y", 20..)?;
    /// assert_eq!(part.read::<f32, Ix3>("u")?, u.slice(s![..4, ..2, ..]));
    /// // The labels of the part.
    /// assert_eq!(part.read::<i64, Ix1>("y")?.to_vec(), [30, 20]);
    /// assert_eq!(part.read::<f64, Ix1>("t")?.len(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Labels ascend or descend, and keep the order of the file. `0..=10` takes the same labels in
    /// both cases. Where they descend, so does `10.0..=0.0`, as in xarray. Integers are compared
    /// exactly, also with floats. A range without labels selects nothing. All positions of an equal
    /// label are taken.
    ///
    /// # Errors
    ///
    /// [`TensorNotFound`](safetensors_core::ErrorKind::TensorNotFound) if the dimension has no
    /// coordinate; [`WrongNdim`](crate::WrongNdim) if the coordinate has other than one axis;
    /// [`Framework`](safetensors_core::ErrorKind::Framework) if the labels have no order, or ascend
    /// and the range begins at its larger end.
    pub fn select<L: ArrayElement>(
        &self,
        dimension: &str,
        labels: impl RangeBounds<L>,
    ) -> Result<Selection<'_, S>> {
        Selection { reader: self, parts: Vec::new() }.select(dimension, labels)
    }
}

/// Parts of dimensions by labels, from which arrays are read. Made by [`Reader::select`].
#[derive(Debug)]
pub struct Selection<'r, S> {
    reader: &'r Reader<S>,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    dimension: String,
    positions: Range<usize>,
    /// The number of labels.
    len: usize,
}

impl Part {
    fn new<L: ArrayElement>(
        name: &str,
        coordinate: &LazyTensor<'_, impl ReadAt>,
        labels: impl RangeBounds<L>,
    ) -> Result<Self> {
        dimension::<Ix1>(coordinate.shape())?;
        let found = Labels::new(coordinate.read()?)?;
        let direction = found.direction()?;
        let mut start = bound(labels.start_bound())?;
        let mut end = bound(labels.end_bound())?;
        if let (Some(first), Some(last)) = (end_of(start), end_of(end))
            && first > last
        {
            if direction.is_gt() {
                return Err(Error::framework::<Ndarray>(LabelError::Reversed { first, last }));
            }
            std::mem::swap(&mut start, &mut end);
        }
        let positions = found.positions((start, end));
        Ok(Self { dimension: name.into(), positions, len: found.len() })
    }
}

impl<S: ReadAt> Selection<'_, S> {
    /// Takes a part of another dimension. For a repeated dimension, the positions that are in both
    /// parts.
    pub fn select<L: ArrayElement>(
        mut self,
        dimension: &str,
        labels: impl RangeBounds<L>,
    ) -> Result<Self> {
        let coordinate = self.reader.readable(dimension)?;
        let part = Part::new(dimension, &coordinate, labels);
        self.parts.push(part.map_err(|error| coordinate.locate(error))?);
        Ok(self)
    }

    /// Reads the selected part of an array with every dimension that was selected from, or the
    /// labels of a coordinate.
    ///
    /// # Errors
    ///
    /// [`Framework`](safetensors_core::ErrorKind::Framework) if the array lacks such a dimension,
    /// or the coordinate has another length;
    /// [`TensorNotFound`](safetensors_core::ErrorKind::TensorNotFound); an error of
    /// [`Reader::slice`].
    pub fn read<T: ArrayElement, D: Dimension>(&self, array: &str) -> Result<Array<T, D>> {
        let array = self.reader.readable(array)?;
        let part = self.slice(&array)?.read::<T>().and_then(of_dimension);
        part.map_err(|error| array.locate(error))
    }

    /// Reads like [`read`](Selection::read), and converts the elements to `T`.
    pub fn read_as<T: ArrayElement, D: Dimension>(&self, array: &str) -> Result<Array<T, D>> {
        let array = self.reader.array(array)?;
        let slice = self.slice(&array)?;
        let part = slice.read_as::<T>(self.reader.options()).and_then(of_dimension);
        part.map_err(|error| array.locate(error))
    }

    fn slice<'a>(&self, array: &LazyTensor<'a, S>) -> Result<ArraySlice<'a, S, IxDyn>> {
        let mut names = self.reader.dimensions_of(array)?;
        let is_coordinate = self.is_coordinate(array, &names);
        if is_coordinate {
            names = vec![array.name().to_owned()];
        }
        let mut taken: Vec<_> = array.shape().iter().map(|&len| 0..len).collect();
        for Part { dimension, positions, len } in &self.parts {
            let refused = |error| array.locate(Error::framework::<Ndarray>(error));
            let Some(axis) = names.iter().position(|name| name == dimension) else {
                if is_coordinate {
                    continue;
                }
                let dimension = dimension.clone();
                return Err(refused(match names.is_empty() {
                    true => LabelError::NoNames { dimension },
                    false => LabelError::NoSuchDimension { dimension, found: names },
                }));
            };
            let found = array.shape()[axis];
            if found != *len {
                let dimension = dimension.clone();
                return Err(refused(LabelError::Length { dimension, labels: *len, found }));
            }
            let start = taken[axis].start.max(positions.start);
            taken[axis] = start..taken[axis].end.min(positions.end).max(start);
        }
        let elems = taken.into_iter().map(|positions| SliceInfoElem::from(Slice::from(positions)));
        ArraySlice::new(array, &elems.collect::<Vec<_>>()[..])
    }

    /// Returns `true` for the coordinate of a dimension. It need not name its own dimension.
    fn is_coordinate(&self, array: &LazyTensor<'_, S>, names: &[String]) -> bool {
        match (names, array.shape()) {
            ([name], [_]) => name == array.name(),
            ([], [_]) => {
                self.parts.iter().any(|part| part.dimension == array.name())
                    || self.reader.arrays().any(|other| {
                        let names = self.reader.dimensions_of(&other);
                        names.is_ok_and(|names| names.iter().any(|name| name == array.name()))
                    })
            }
            _ => false,
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum LabelError {
    #[error("expected a dimension {dimension:?}, but its dimensions have no names")]
    NoNames { dimension: String },
    #[error("expected a dimension {dimension:?}, found {found:?}")]
    NoSuchDimension { dimension: String, found: Vec<String> },
    #[error("dimension {dimension:?} has length {found}, but its coordinate has {labels} labels")]
    Length { dimension: String, labels: usize, found: usize },
    /// Labels that neither ascend nor descend, from this position on.
    #[error("labels should ascend or descend: element {position} does neither")]
    Unsorted { position: usize },
    #[error("the labels ascend, but the range goes from {first} down to {last}: swap its ends")]
    Reversed { first: Label, last: Label },
    #[error("labels should be numbers: element {position} is NaN")]
    NotANumber { position: usize },
    #[error("the ends of a range of labels should be numbers, found NaN")]
    RangeOfNan,
}

/// Labels, with every value of their dtype.
enum Labels {
    Signed(Vec<i64>),
    Unsigned(Vec<u64>),
    Float(Vec<f64>),
}

#[derive(Clone, Copy, Debug)]
enum Label {
    Integer(i128),
    Float(f64),
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value:?}"),
        }
    }
}

impl Labels {
    fn new(values: TensorBuf) -> Result<Self> {
        let options = ConvertOptions::new();
        match values.dtype() {
            Dtype::U64 => Ok(Self::Unsigned(values.into_vec()?)),
            Dtype::I64
            | Dtype::I32
            | Dtype::I16
            | Dtype::I8
            | Dtype::U32
            | Dtype::U16
            | Dtype::U8
            | Dtype::BOOL => Ok(Self::Signed(values.convert(Dtype::I64, &options)?.into_vec()?)),
            _ => Ok(Self::Float(values.convert(Dtype::F64, &options)?.into_vec()?)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Signed(values) => values.len(),
            Self::Unsigned(values) => values.len(),
            Self::Float(values) => values.len(),
        }
    }

    fn get(&self, position: usize) -> Label {
        match self {
            Self::Signed(values) => Label::Integer(values[position].into()),
            Self::Unsigned(values) => Label::Integer(values[position].into()),
            Self::Float(values) => Label::Float(values[position]),
        }
    }

    /// Returns the order of the labels, which equal neighbours allow. Fails for other labels.
    fn direction(&self) -> Result<Ordering> {
        let refused = |error| Err(Error::framework::<Ndarray>(error));
        let mut direction = Ordering::Equal;
        for position in 0..self.len() {
            let label = self.get(position);
            if label.is_nan() {
                return refused(LabelError::NotANumber { position });
            }
            let before = self.get(position.saturating_sub(1));
            let step = label.partial_cmp(&before).unwrap_or(Ordering::Equal);
            if step.is_ne() && direction.is_ne() && step != direction {
                return refused(LabelError::Unsorted { position });
            }
            direction = direction.then(step);
        }
        Ok(direction)
    }

    /// Returns the positions between two bounds, which are neighbours because labels are sorted.
    fn positions(&self, bounds: impl RangeBounds<Label>) -> Range<usize> {
        let is_in = |&position: &usize| bounds.contains(&self.get(position));
        let Some(first) = (0..self.len()).find(is_in) else { return 0..0 };
        let count = (first..self.len()).take_while(is_in).count();
        first..first + count
    }
}

fn bound<L: ArrayElement>(bound: Bound<&L>) -> Result<Bound<Label>> {
    let label = |value: &L| {
        let label = Labels::new(TensorBuf::from_vec(vec![1], vec![*value])?)?.get(0);
        if label.is_nan() {
            return Err(Error::framework::<Ndarray>(LabelError::RangeOfNan));
        }
        Ok(label)
    };
    Ok(match bound {
        Bound::Included(value) => Bound::Included(label(value)?),
        Bound::Excluded(value) => Bound::Excluded(label(value)?),
        Bound::Unbounded => Bound::Unbounded,
    })
}

fn end_of(bound: Bound<Label>) -> Option<Label> {
    match bound {
        Bound::Included(label) | Bound::Excluded(label) => Some(label),
        Bound::Unbounded => None,
    }
}

impl Label {
    fn is_nan(self) -> bool {
        matches!(self, Self::Float(value) if value.is_nan())
    }
}

impl PartialEq for Label {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

/// Compares the numbers exactly. `None` for NaN.
impl PartialOrd for Label {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (*self, *other) {
            (Self::Integer(a), Self::Integer(b)) => Some(a.cmp(&b)),
            (Self::Float(a), Self::Float(b)) => a.partial_cmp(&b),
            (Self::Integer(a), Self::Float(b)) => compare_with_float(a, b),
            (Self::Float(a), Self::Integer(b)) => compare_with_float(b, a).map(Ordering::reverse),
        }
    }
}

fn compare_with_float(integer: i128, float: f64) -> Option<Ordering> {
    // A float that is too large for an integer becomes the largest one, which no label is.
    let floor = float.floor() as i128;
    let fraction = float.fract().partial_cmp(&0.0);
    match integer.cmp(&floor) {
        Ordering::Equal if float.is_finite() => {
            Some(if fraction == Some(Ordering::Equal) { Ordering::Equal } else { Ordering::Less })
        }
        _ if float.is_nan() => None,
        order => Some(order),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_and_floats_are_compared_exactly() {
        let large = (1_i128 << 53) + 1;
        for (integer, float, expected) in [
            (3, 3.0, Some(Ordering::Equal)),
            (3, 3.5, Some(Ordering::Less)),
            (4, 3.5, Some(Ordering::Greater)),
            (-3, -3.5, Some(Ordering::Greater)),
            (-4, -3.5, Some(Ordering::Less)),
            (0, -0.0, Some(Ordering::Equal)),
            (large, 9_007_199_254_740_992.0, Some(Ordering::Greater)),
            (u64::MAX.into(), 18_446_744_073_709_551_616.0, Some(Ordering::Less)),
            (i64::MIN.into(), f64::NEG_INFINITY, Some(Ordering::Greater)),
            (0, f64::INFINITY, Some(Ordering::Less)),
            (0, 1e300, Some(Ordering::Less)),
            (0, f64::NAN, None),
        ] {
            let (integer, float) = (Label::Integer(integer), Label::Float(float));
            assert_eq!(integer.partial_cmp(&float), expected);
            assert_eq!(float.partial_cmp(&integer), expected.map(Ordering::reverse));
        }
    }
}
