//! [`Totals`]: how many tensors, parameters and bytes.

use std::collections::BTreeMap;

use safetensors_core::{Checkpoint, Dtype, LazyTensor, Result, shape};

/// Sums over tensors. A parameter is one element of any dtype, as the Hub counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) tensors: u64,
    pub(crate) parameters: u128,
    pub(crate) bytes: u128,
}

impl Totals {
    /// The sums over a whole checkpoint.
    pub(crate) fn of<S>(checkpoint: &Checkpoint<S>) -> Result<Self> {
        let mut totals = Self::default();
        checkpoint.tensors().try_for_each(|tensor| totals.add(&tensor))?;
        Ok(totals)
    }

    /// The sums for each dtype that occurs.
    pub(crate) fn by_dtype<S>(checkpoint: &Checkpoint<S>) -> Result<BTreeMap<Dtype, Self>> {
        let mut totals: BTreeMap<_, Self> = BTreeMap::new();
        checkpoint.tensors().try_for_each(|tensor| totals.entry(tensor.dtype()).or_default().add(&tensor))?;
        Ok(totals)
    }

    fn add<S>(&mut self, tensor: &LazyTensor<'_, S>) -> Result<()> {
        let parameters = shape::element_count(tensor.shape()).map_err(|kind| tensor.locate(kind.into()))?;
        self.tensors += 1;
        self.parameters += u128::from(parameters);
        self.bytes += u128::from(tensor.byte_len());
        Ok(())
    }
}
