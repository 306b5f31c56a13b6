//! [`Stack`]: one stack of experts, whose parts another module names.

use super::find::Key;
use super::plan::rows;
use super::table::Row;
use crate::checkpoint::{Arranged, Checkpoint};
use crate::file::io::ReadAt;
use crate::file::load::ExpertLayout::Stacked;
use crate::file::load::ExpertOptions;
use crate::format::error::{ExpertProblem, Result};

/// A stack such as `mlp.experts.down_proj`, by the architecture of its model.
#[derive(Debug)]
pub(in crate::model) struct Stack {
    row: Row,
    /// The name before the module with the experts.
    root: String,
    key: Key,
}

impl Stack {
    /// Finds the stack with this name. The `config.json` of the model says its architecture.
    pub(in crate::model) fn find<S: ReadAt>(
        model: &Checkpoint<S>,
        name: &str,
    ) -> Result<Option<Self>> {
        let (rows, unknown) = rows(model, &ExpertOptions::new())?;
        if let Some(reason) = unknown {
            return Err(ExpertProblem::UnknownModel { reason }.into());
        }
        Ok(rows.into_iter().find_map(|row| {
            let (root, key) = row.stacked_key(name)?;
            Some(Self { row, root: root.to_owned(), key })
        }))
    }

    /// Returns the name of the other stack of the module.
    pub(in crate::model) fn other(&self) -> String {
        let key = Key { stack: 1 - self.key.stack, ..self.key };
        self.row.name(Stacked, &self.root, key)
    }

    /// Returns `true` if `lora_A` is multiplied with the outputs of experts, as PEFT before 0.19
    /// did; `None` if both are possible, or none. `own` and `other` are the rows and columns of the
    /// changes of this stack and of the other: the inputs of each are the outputs of the other.
    pub(in crate::model) fn is_turned(&self, own: [usize; 2], other: [usize; 2]) -> Option<bool> {
        let [first, last] = if self.key.stack == 0 { [own, other] } else { [other, own] };
        let parts = self.row.stacks[0].1.len();
        let fits = |[rows, columns]: [usize; 2], [last_rows, last_columns]: [usize; 2]| {
            columns == last_rows && Some(rows) == last_columns.checked_mul(parts)
        };
        let is_crossed = fits([first[1], first[0]], [last[1], last[0]]);
        (fits(first, last) != is_crossed).then_some(is_crossed)
    }

    /// Divides the outputs of an expert, the rows of a matrix, among the weights of the expert when
    /// it is split. Returns their names.
    pub(in crate::model) fn divide(
        &self,
        expert: usize,
        outputs: &Arranged,
        rows: usize,
    ) -> Vec<(String, Arranged)> {
        self.row.divide(&self.root, Key { expert, ..self.key }, outputs, rows)
    }
}
