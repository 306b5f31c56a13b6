//! [`Totals`]: numbers of tensors, parameters and bytes.
//! [`Parameters`]: counts for quantised weights.

use std::collections::{BTreeMap, HashMap};
use std::iter::Sum;
use std::ops::{AddAssign, Mul};

use safetensors_core::LazyTensor;
use safetensors_core::quantized::QuantizedWeight;

use crate::input::other::{self, DisplayedTensor, Kind};
use crate::input::{Checkpoint, Source};

/// A parameter is an element of a weight, however it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Totals {
    pub(crate) tensors: u64,
    pub(crate) parameters: u128,
    pub(crate) bytes: u128,
}

impl Totals {
    pub(crate) fn of_checkpoint<'a>(
        checkpoint: &Checkpoint,
        tensors: impl IntoIterator<Item = LazyTensor<'a, Source>>,
    ) -> Self {
        // Weights that cannot be recognised count as the tensors that are stored.
        let weights = checkpoint.quantized_weights().unwrap_or_default();
        Parameters::new(&weights).by_kind(tensors).into_values().sum()
    }

    /// Counts each element as a parameter, such as of a delta's tensors.
    pub(crate) fn sum<'a, S: 'static>(
        tensors: impl IntoIterator<Item = LazyTensor<'a, S>>,
    ) -> Self {
        Parameters::default().by_kind(tensors).into_values().sum()
    }

    /// The totals of a tensor with this number of parameters.
    pub(crate) fn one(tensor: DisplayedTensor<'_>, parameters: u64) -> Self {
        Self { tensors: 1, parameters: parameters.into(), bytes: tensor.byte_len().into() }
    }
}

/// Codes count the elements of a quantised weight, scales nothing.
#[derive(Debug, Default)]
pub(crate) struct Parameters<'w>(HashMap<&'w str, u64>);

impl<'w> Parameters<'w> {
    pub(crate) fn new(weights: &'w [QuantizedWeight]) -> Self {
        let mut counts = HashMap::new();
        for weight in weights {
            let mut own = other::elements(&weight.shape);
            for tensor in &weight.tensors {
                let count: &mut u64 = counts.entry(tensor.as_str()).or_default();
                *count = count.saturating_add(std::mem::take(&mut own));
            }
        }
        Self(counts)
    }

    /// Returns `true` if a tensor stores a quantised weight, or a part of it.
    pub(crate) fn is_quantised(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(crate) fn count(&self, tensor: DisplayedTensor<'_>) -> u64 {
        let quantised = self.0.get(tensor.info.name()).copied();
        quantised.unwrap_or_else(|| other::elements(tensor.shape()))
    }

    /// Returns the sums for each dtype, and for each type of another format.
    pub(crate) fn by_kind<'a, S: 'static>(
        &self,
        tensors: impl IntoIterator<Item = LazyTensor<'a, S>>,
    ) -> BTreeMap<Kind<'a>, Totals> {
        let mut totals: BTreeMap<_, Totals> = BTreeMap::new();
        for tensor in tensors {
            let tensor = DisplayedTensor::new(&tensor);
            let one = Totals::one(tensor, self.count(tensor));
            *totals.entry(tensor.kind()).or_default() += one;
        }
        totals
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
