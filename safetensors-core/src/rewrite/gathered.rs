//! [`Rewrite::add_gathered`]: whole tensors of the parts that ranks have saved.

use std::collections::HashMap;
use std::sync::Arc;

use super::{PlannedTensor, Rewrite, take};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::hash::remove_record;
use crate::header::{ATTEMPT_KEY, PARTS_KEY};
use crate::io::ReadAt;
use crate::load::catalog::alias_of;
use crate::ranks;

impl<'a, S: ReadAt> Rewrite<'a, S> {
    /// Adds all tensors of a checkpoint, as [`merge`](Rewrite::merge) does. Of a checkpoint that
    /// [ranks have saved](crate::ranks), these are the whole tensors, not their parts. The parts
    /// are read and joined piece by piece when the new checkpoint is saved.
    ///
    /// ```
    /// use safetensors_core::ranks::{RankRules, RankSaver};
    /// use safetensors_core::{Checkpoint, Rewrite, SaveOptions, ShardOptions, TensorView};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let values = [1_i32, 2, 3, 4];
    /// let whole = TensorView::from_slice(&[4], &values)?;
    /// let rules = RankRules::new().parse_rule("w=split:0")?;
    /// let plan = rules.plan_tensors([("w", whole.dtype(), vec![4])], 2)?;
    /// for rank in 0..2 {
    ///     let part = whole.slice((rank * 2..rank * 2 + 2,))?;
    ///     RankSaver::new(&plan, rank, "1").save(dir.path(), [("w", part)], &ShardOptions::new())?;
    /// }
    ///
    /// let divided = Checkpoint::open(dir.path())?;
    /// let plain = dir.path().join("plain.safetensors");
    /// Rewrite::new().add_gathered(&divided)?.save(&plain, &SaveOptions::new())?;
    /// assert_eq!(Checkpoint::open(&plain)?.tensor("w")?.read()?.as_slice::<i32>()?, values);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`ranks::join_parts`].
    pub fn add_gathered(mut self, checkpoint: &'a Checkpoint<S>) -> Result<Self> {
        if !ranks::is_divided(checkpoint) {
            return Ok(self.merge(checkpoint));
        }
        let mut tensors = HashMap::new();
        for tensor in ranks::join_parts(checkpoint)? {
            let (name, tie) = (tensor.name().to_owned(), take(&mut self.next_tie));
            let tensor = Arc::new(tensor);
            let planned = PlannedTensor::gathered(&name, Arc::clone(&tensor), tie, false)?;
            self.tensors.push((name.clone(), planned));
            tensors.insert(name, (tensor, tie));
        }
        self.sources.push(checkpoint);
        for (key, value) in checkpoint.metadata() {
            if key == PARTS_KEY || key == ATTEMPT_KEY {
                continue;
            }
            match alias_of(key, value, |name| tensors.get(name)) {
                // The checkpoint itself does not know this alias, because it has only the parts of
                // the tensor.
                Some((tensor, tie)) => {
                    let planned = PlannedTensor::gathered(key, Arc::clone(tensor), *tie, true)?;
                    self.tensors.push((key.clone(), planned));
                }
                None => _ = self.metadata.entry(key.clone()).or_insert_with(|| value.clone()),
            }
        }
        remove_record(&mut self.metadata);
        Ok(self)
    }
}
