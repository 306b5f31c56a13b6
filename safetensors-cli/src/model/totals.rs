//! [`Totals`]: how many tensors, parameters and bytes.

use std::collections::BTreeMap;
use std::iter::Sum;
use std::ops::{AddAssign, Mul};

use safetensors_core::LazyTensor;
use safetensors_core::header::TensorInfo;
use safetensors_formats::Stored;

use crate::input::other::{self, Kind};

/// Sums over tensors. A parameter is one element of any dtype, as the Hub counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Totals {
    pub(crate) tensors: u64,
    pub(crate) parameters: u128,
    pub(crate) bytes: u128,
}

impl Totals {
    /// The sums over some tensors.
    pub(crate) fn of<'a, S: 'static>(tensors: impl IntoIterator<Item = LazyTensor<'a, S>>) -> Self {
        tensors.into_iter().map(|tensor| Self::one(tensor.info(), other::stored(&tensor))).sum()
    }

    /// The sums for each dtype that occurs, and for each type of another format.
    pub(crate) fn by_kind<'a, S: 'static>(
        tensors: impl IntoIterator<Item = LazyTensor<'a, S>>,
    ) -> BTreeMap<Kind<'a>, Self> {
        let mut totals: BTreeMap<_, Self> = BTreeMap::new();
        for tensor in tensors {
            let stored = other::stored(&tensor);
            let kind = Kind::of(tensor.info(), stored);
            *totals.entry(kind).or_default() += Self::one(tensor.info(), stored);
        }
        totals
    }

    /// The totals of one tensor, which may be stored in another way than its dtype says.
    pub(crate) fn one(tensor: TensorInfo<'_>, stored: Option<&Stored>) -> Self {
        Self {
            tensors: 1,
            parameters: other::element_count(tensor, stored).into(),
            bytes: stored.map_or(tensor.byte_len(), |stored| stored.byte_len).into(),
        }
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.tensors += other.tensors;
        self.parameters += other.parameters;
        self.bytes += other.bytes;
    }
}

impl Sum for Totals {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, totals| {
            sum += totals;
            sum
        })
    }
}

/// The totals of several equal copies.
impl Mul<u64> for Totals {
    type Output = Self;

    fn mul(self, copies: u64) -> Self {
        let (parameters, bytes) =
            (self.parameters * u128::from(copies), self.bytes * u128::from(copies));
        Self { tensors: self.tensors * copies, parameters, bytes }
    }
}
