//! [`Key`]: the place of a tensor among the experts of its module, by its name.

use std::collections::BTreeMap;
use std::ops::Bound::{Included, Unbounded};

use super::table::Row;
use crate::checkpoint::Arranged;
use crate::file::load::ExpertLayout::{self, Split, Stacked};

/// The shapes of tensors and quantised weights by their names.
pub(super) type Shapes<'a> = BTreeMap<&'a str, &'a [usize]>;

/// The experts of each module, by the start of the module's name: `model.layers.3.` if the row has
/// the rest of it.
pub(super) type Modules<'a> = BTreeMap<&'a str, Module<'a>>;

/// The tensors of a module that belong to experts, with their names and shapes.
pub(super) type Module<'a> = BTreeMap<Key, (&'a str, &'a [usize])>;

/// The place of a tensor among the experts of its module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// The number of the stack in its row.
    pub(super) stack: usize,
    pub(super) is_bias: bool,
    /// The number of the expert; 0 for a stack.
    pub(super) expert: usize,
    /// The number of the matrix in its stack; 0 for a stack.
    pub(super) part: usize,
}

impl Row {
    /// Finds the experts that have this layout.
    pub(super) fn find<'a>(&self, layout: ExpertLayout, shapes: &Shapes<'a>) -> Modules<'a> {
        let mut modules = Modules::new();
        for (&name, &shape) in shapes {
            if let Some((root, key)) = self.key(layout, name) {
                modules.entry(root).or_default().insert(key, (name, shape));
            }
        }
        // The dense layers of Granite have the names of stacks, and are matrices.
        let is_matrix = |module: &Module<'_>| {
            module.get(&Key::default()).is_some_and(|(_, shape)| shape.len() == 2)
        };
        modules.retain(|_, module| layout == Split || !is_matrix(module));
        modules
    }

    /// Divides the name of a tensor of experts.
    fn key<'n>(&self, layout: ExpertLayout, name: &'n str) -> Option<(&'n str, Key)> {
        let found = match layout {
            Split => self.split_key(name),
            Stacked => self.stacked_key(name),
        };
        found.filter(|(root, _)| root.is_empty() || root.ends_with('.'))
    }

    /// Divides a name such as `root.experts.3.gate_proj.weight`.
    fn split_key<'n>(&self, name: &'n str) -> Option<(&'n str, Key)> {
        let (matrix, end) = name.rsplit_once('.')?;
        let is_bias = end == "bias";
        let (expert, matrix) = matrix.rsplit_once('.').filter(|_| is_bias || end == "weight")?;
        let (experts, number) = expert.rsplit_once('.')?;
        let root = experts.strip_suffix("experts")?.strip_suffix(self.module[Split as usize])?;
        let expert = number.parse().ok().filter(|expert: &usize| expert.to_string() == number)?;
        self.stacks.iter().enumerate().find_map(|(stack, (_, matrices))| {
            let part = matrices.iter().position(|it| *it == matrix)?;
            Some((root, Key { stack, is_bias, expert, part }))
        })
    }

    /// Divides a name such as `root.experts.gate_up_proj`.
    pub(super) fn stacked_key<'n>(&self, name: &'n str) -> Option<(&'n str, Key)> {
        let bias = name.strip_suffix("_bias");
        self.stacks.iter().enumerate().find_map(|(stack, (end, _))| {
            let module = bias.unwrap_or(name).strip_suffix(end)?;
            let root = module.strip_suffix(self.module[Stacked as usize])?;
            Some((root, Key { stack, is_bias: bias.is_some(), ..Key::default() }))
        })
    }

    /// Returns the name of a tensor of experts.
    pub(super) fn name(&self, layout: ExpertLayout, root: &str, key: Key) -> String {
        let module = self.module[layout as usize];
        let (stack, matrices) = self.stacks[key.stack];
        match layout {
            Split => {
                let end = if key.is_bias { "bias" } else { "weight" };
                format!("{root}{module}experts.{}.{}.{end}", key.expert, matrices[key.part])
            }
            Stacked => format!("{root}{module}{stack}{}", if key.is_bias { "_bias" } else { "" }),
        }
    }

    /// Returns the other tensors of a module that have other names in the new layout, with these.
    pub(super) fn renamed(
        &self,
        [from, to]: [ExpertLayout; 2],
        root: &str,
        shapes: &Shapes<'_>,
    ) -> Vec<(String, Arranged)> {
        let start = format!("{root}{}", self.module[from as usize]);
        let inside = shapes
            .range::<str, _>((Included(&*start), Unbounded))
            .map_while(|(&name, _)| Some((name, name.strip_prefix(&start)?)));
        let others = inside.filter(|(name, _)| self.key(from, name).is_none());
        let renamed = others.filter_map(|(old, rest)| {
            let mut starts = self.others.iter().map(|it| (it[from as usize], it[to as usize]));
            let found = starts.find_map(|(start, new)| Some((new, rest.strip_prefix(start)?)));
            let (start, rest) = found.unwrap_or(("", rest));
            let new = format!("{root}{}{start}{rest}", self.module[to as usize]);
            (new != old).then(|| (new, Arranged::tensor(old)))
        });
        renamed.collect()
    }
}
