//! [`Rewrite::cast`]: tensors in other dtypes.

use std::collections::{HashMap, HashSet};

use super::{PlannedTensor, Rewrite, take};
use crate::file::io::ReadAt;
use crate::format::convert::ConvertOptions;
use crate::format::dtype::Dtype;
use crate::format::error::Result;

impl<'a, S: ReadAt> Rewrite<'a, S> {
    /// Converts every tensor for which `dtype` returns a dtype to it, once, from its original
    /// dtype.
    ///
    /// An alias for which `dtype` returns `None` follows its tensor; with another dtype, it becomes
    /// a separate tensor. The first of aliases without their tensor replaces it. Weights that were
    /// [quantised](Rewrite::quantize) before stay unchanged. Cast other quantised weights by
    /// [`Checkpoint::dequantized`](crate::Checkpoint::dequantized).
    ///
    /// ```
    /// use safetensors_core::{
    ///     Checkpoint, ConvertOptions, Dtype, ErrorKind, Rewrite, SaveOptions, TensorView, save,
    /// };
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.safetensors");
    /// // The codes of 1 and 2. The weight is 0.5 and 1.
    /// let weight = TensorView::new(Dtype::F8_E4M3, &[1, 2], &[0x38, 0x40])?;
    /// let scales = TensorView::from_slice(&[1, 1], &[0.5_f32])?;
    /// save(&path, [("w", weight), ("w_scale_inv", scales)], &SaveOptions::new())?;
    ///
    /// let checkpoint = Checkpoint::open(&path)?;
    /// let to_f32 = |name: &str| (name == "w").then_some(Dtype::F32);
    /// let options = ConvertOptions::new();
    /// let refused = Rewrite::from_checkpoint(&checkpoint).cast(&options, |name, _| to_f32(name));
    /// assert!(matches!(refused.unwrap_err().kind(), ErrorKind::Quantization { .. }));
    ///
    /// let numbers = checkpoint.dequantized()?;
    /// let plain = dir.path().join("plain.safetensors");
    /// Rewrite::from_checkpoint(&numbers)
    ///     .cast(&options, |name, _| (name == "w").then_some(Dtype::F64))?
    ///     .save(&plain, &SaveOptions::new())?;
    /// let plain = Checkpoint::open(&plain)?;
    /// assert_eq!(plain.tensor("w")?.read()?.as_slice::<f64>()?, [0.5, 1.0]);
    /// assert!(plain.get("w_scale_inv").is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoConversion`](crate::ErrorKind::NoConversion) and
    /// [`ErrorKind::Quantization`](crate::ErrorKind::Quantization). Values are checked only when
    /// the checkpoint is saved.
    pub fn cast(
        mut self,
        options: &ConvertOptions,
        mut dtype: impl FnMut(&str, &PlannedTensor<'a, S>) -> Option<Dtype>,
    ) -> Result<Self> {
        self.settle_aliases();
        let mut ties = HashMap::new();
        // The new dtype of each tensor under its own name, which comes before its aliases.
        let mut own = HashMap::new();
        let mut changed = Vec::new();
        for (position, (name, planned)) in self.tensors.iter_mut().enumerate() {
            let mut to = dtype(name, planned);
            if planned.alias {
                to = to.or_else(|| own.get(&planned.tie).copied());
            } else {
                own.extend(to.map(|to| (planned.tie, to)));
            }
            let changes = |to: &Dtype| *to != planned.dtype() && !planned.is_quantized();
            if let Some(to) = to.filter(changes) {
                planned.cast(to, options)?;
                planned.tie =
                    *ties.entry((planned.tie, to)).or_insert_with(|| take(&mut self.next_tie));
                changed.push(position);
            }
        }
        self.refuse_codes(&changed)?;
        Ok(self)
    }

    // Not sooner: a later [`exclude`] of the first alias would then skip the other aliases too.
    pub(super) fn settle_aliases(&mut self) {
        let mut with_tensor: HashSet<_> = self
            .tensors
            .iter()
            .filter(|(_, planned)| !planned.alias)
            .map(|(_, planned)| planned.tie)
            .collect();
        for (_, planned) in &mut self.tensors {
            if with_tensor.insert(planned.tie) {
                planned.alias = false;
            }
        }
    }
}
