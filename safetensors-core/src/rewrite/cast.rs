//! [`Rewrite::cast`]: tensors in other dtypes, and the scales that they are multiplied by.

use std::collections::{HashMap, HashSet};

use super::origin::Beside;
use super::{PlannedTensor, Rewrite, take};
use crate::convert::{ConvertOptions, find_scales};
use crate::dtype::Dtype;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::Result;
use crate::io::ReadAt;

impl<'a, S: ReadAt> Rewrite<'a, S> {
    /// Converts every tensor for which `dtype` returns a dtype to it. `dtype` gets the name and the
    /// tensor after the steps so far. A tensor that is cast twice is converted only once, from its
    /// original dtype to the last one.
    ///
    /// An alias for which `dtype` returns `None` follows its tensor. If `dtype` returns another
    /// dtype for an alias than its tensor gets, the alias becomes a separate tensor, even if it
    /// already has that dtype. If aliases are left without their tensor, the first takes its place.
    /// Codes and scales of weights that were [quantised](Rewrite::quantize) before stay as they are.
    ///
    /// If the options [ask for it](ConvertOptions::scaled_weights), a quantised weight is multiplied
    /// by its [scales](crate::LazyTensor::scales), under whatever names both are now. The scales of a
    /// tensor that was added, or of one whose checkpoint lacks them, are looked for among all
    /// tensors of the rewrite. Scales that all their weights were multiplied by are left out of the
    /// new checkpoint. The scales of one weight for each thread are in memory while it is written.
    ///
    /// ```
    /// use safetensors_core::convert::ScaledWeights;
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
    /// let refused = Rewrite::of(&checkpoint).cast(&options, |name, _| to_f32(name));
    /// assert!(matches!(refused.unwrap_err().kind(), ErrorKind::NeedsScales { .. }));
    ///
    /// let options = options.scaled_weights(ScaledWeights::Dequantize);
    /// let plain = dir.path().join("plain.safetensors");
    /// Rewrite::of(&checkpoint)
    ///     .cast(&options, |name, _| to_f32(name))?
    ///     .save(&plain, &SaveOptions::new())?;
    /// let plain = Checkpoint::open(&plain)?;
    /// assert_eq!(plain.tensor("w")?.read()?.as_slice::<f32>()?, [0.5, 1.0]);
    /// assert!(plain.get("w_scale_inv").is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoConversion`], naming the tensor and its file; [`ErrorKind::NeedsScales`] and
    /// the other errors of [`Converted::new`](crate::convert::Converted::new);
    /// the errors of [`shape::byte_len`](crate::shape::byte_len). Values are checked only when the
    /// checkpoint is saved.
    pub fn cast(
        mut self,
        options: &ConvertOptions,
        mut dtype: impl FnMut(&str, &PlannedTensor<'a, S>) -> Option<Dtype>,
    ) -> Result<Self> {
        self.settle_aliases();
        self.tensors.append(&mut self.applied);
        self.find_scales();
        let mut ties = HashMap::new();
        // The new dtype of each tensor under its own name, which comes before its aliases.
        let mut own = HashMap::new();
        for (name, planned) in &mut self.tensors {
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
            }
        }
        self.drop_used_scales();
        Ok(self)
    }

    /// Finds scales beside weights that do not know theirs: in memory, or in another checkpoint. It
    /// goes by the present names, so this comes before names change or are left out.
    pub(super) fn find_scales(&mut self) {
        let lacking: Vec<_> = (0..self.tensors.len())
            .filter(|&position| self.tensors[position].1.origin.lacks_scales())
            .collect();
        if lacking.is_empty() {
            return;
        }
        let mut names_of: HashMap<u64, Vec<&str>> = HashMap::new();
        for &position in &lacking {
            let (name, planned) = &self.tensors[position];
            names_of.entry(planned.tie).or_default().push(name);
        }
        let named =
            self.tensors.iter().enumerate().map(|(position, (name, _))| (&**name, position));
        let positions: HashMap<&str, usize> = named.collect();
        let scales_of = |&weight: &usize| {
            let names = names_of.get(&self.tensors[weight].1.tie)?.iter().copied();
            let (scales, other) = find_scales(names, |name| positions.get(name).copied())?;
            let (name, planned) = &self.tensors[scales];
            Some(Beside {
                scales: planned.origin.tensor.clone(),
                name: name.clone(),
                other: other.map(|other| self.tensors[other].0.clone()),
            })
        };
        let found: Vec<_> = lacking.iter().map(scales_of).collect();
        for (weight, beside) in lacking.into_iter().zip(found) {
            if let Some(beside) = beside {
                self.tensors[weight].1.origin.set_beside(beside);
            }
        }
    }

    /// Leaves out the scales that all their weights are multiplied by.
    pub(super) fn drop_used_scales(&mut self) {
        let scales_of = |is_scaled: bool| {
            let weights = self.tensors.iter().map(|(_, planned)| planned);
            let weights = weights.filter(move |planned| planned.is_scaled() == is_scaled);
            weights.filter_map(|it| it.origin.key_of_scales()).collect::<HashSet<_>>()
        };
        let used = scales_of(true);
        if used.is_empty() {
            return;
        }
        let needed = scales_of(false);
        let is_applied = |planned: &PlannedTensor<'a, S>| {
            let key = planned.origin.tensor.key();
            used.contains(&key) && !needed.contains(&key)
        };
        let applied: Vec<_> = self.tensors.iter().map(|(_, it)| is_applied(it)).collect();
        let mut applied = applied.into_iter();
        self.applied = self.tensors.extract_if(.., |_| applied.next() == Some(true)).collect();
    }

    /// Replaces each lost tensor by its first alias, so that the other aliases become aliases of
    /// that one. This is not done as soon as the tensor is left out, because a later
    /// [`exclude`](Rewrite::exclude) for that first alias would then leave out the other aliases
    /// too.
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
