//! The experts of a mixture, split and stacked.
//!
//! Most files have the matrices of each expert as tensors of their own, such as
//! `mlp.experts.3.gate_proj.weight`, and most programs read these. transformers 5 and some
//! architectures have all experts in one tensor, such as `mlp.experts.gate_up_proj` of the shape
//! `[experts, 2 · inner, hidden]`. [`Checkpoint::experts`] shows one layout as the other. Nothing
//! is copied: a read of an expert reads the bytes of that expert.
//!
//! `model_type` in `config.json` decides names and order. Other tensors of the module are renamed
//! if the layouts name them differently, such as the router of PhiMoE.
//!
//! | architectures | split | stacked |
//! |---|---|---|
//! | Qwen2, Qwen3, Qwen3.5 MoE, DeepSeek V2 to V3.2, GLM-4 MoE, OLMoE, Gemma 4, Jamba and others | `gate_proj`, `up_proj`, `down_proj` | `experts.gate_up_proj`, the gate first |
//! | Mixtral, PhiMoE, MiniMax, Kimi Linear | `block_sparse_moe`, `w1`, `w3`, `w2` | the same, in `mlp` |
//! | Llama 4, Qwen3-VL MoE | as Qwen | transposed: `[experts, hidden, 2 · inner]` |
//! | gpt-oss | as Qwen, with biases | transposed, gate and up interleaved, with biases |
//! | Aria; Granite MoE | as Qwen; as Mixtral | `experts.fc1.weight`, transposed; `input_linear.weight` |
//! | Nemotron-H | `up_proj`, `down_proj` | `experts.up_proj` |
//!
//! For another architecture, [`ExpertOptions::gate_up`] says the order, and the names are as for
//! Qwen or Mixtral. Whether stacks are transposed follows from the shapes of the two stacks of a
//! layer when they are split; when they are made, from the architecture or
//! [`ExpertOptions::transposed`].
//!
//! The tensors of quantised weights move together, see [`Checkpoint::arranged_weights`]. If their
//! scheme has no such form, a load with [`Numbers`](crate::load::QuantizedWeights::Numbers) computes
//! the numbers first.

mod config;
mod find;
mod plan;
mod stack;
mod table;

use std::collections::{HashMap, HashSet};

#[doc(hidden)]
pub use plan::ExpertPlan;
use plan::shapes;
pub(in crate::model) use stack::Stack;
use table::ROWS;

use super::quantized::QuantizedWeight;
use crate::checkpoint::{Checkpoint, Computed};
use crate::file::io::ReadAt;
use crate::file::load::{ExpertLayout, ExpertOptions};
use crate::format::error::{ErrorKind, Result};

type Boxed<'a> = Checkpoint<Box<dyn ReadAt + 'a>>;

impl<S: ReadAt> Checkpoint<S> {
    /// Shows the experts of a mixture in this layout, see [the module](crate::experts). A layer that
    /// has it already stays as it is.
    ///
    /// ```
    /// use safetensors_core::load::{ExpertLayout, ExpertOptions, GateUp};
    /// use safetensors_core::{Checkpoint, SaveOptions, TensorView, serialize};
    ///
    /// // Two experts with one row of the gate and one of up, and two inputs.
    /// let gate_up = TensorView::from_slice(&[2, 2, 2], &[1_u8, 2, 3, 4, 5, 6, 7, 8])?;
    /// let down = TensorView::from_slice(&[2, 2, 1], &[1_u8, 2, 3, 4])?;
    /// let tensors = [("mlp.experts.gate_up_proj", gate_up), ("mlp.experts.down_proj", down)];
    /// let bytes = serialize(tensors, &SaveOptions::new())?;
    ///
    /// // There is no config.json.
    /// let options = ExpertOptions::new().gate_up(GateUp::First);
    /// let checkpoint = Checkpoint::from_source(bytes, "bytes in memory")?;
    /// let split = checkpoint.experts(ExpertLayout::Split, &options)?;
    /// let up = split.tensor("mlp.experts.1.up_proj.weight")?.read()?;
    /// assert_eq!((up.shape(), up.as_slice::<u8>()?), (&[1, 2][..], &[7, 8][..]));
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Experts`] for a checkpoint without experts, an unknown architecture, a missing
    /// expert, and stacks that do not fit each other; otherwise as for
    /// [`arranged_weights`](Checkpoint::arranged_weights). Nothing is read before.
    pub fn experts(
        self,
        layout: ExpertLayout,
        options: &ExpertOptions,
    ) -> Result<Checkpoint<Computed<S>>> {
        let plan = self.expert_plan(layout, options)?;
        self.arranged_weights(plan.tensors)
    }

    /// Returns the tensors of [`experts`](Checkpoint::experts).
    #[doc(hidden)]
    pub fn expert_plan(&self, layout: ExpertLayout, options: &ExpertOptions) -> Result<ExpertPlan> {
        ExpertPlan::new(self, layout, options).map_err(|error| self.in_first_path(error))
    }

    /// Returns `true` if some tensors have the names of experts in this layout, of any
    /// architecture.
    #[doc(hidden)]
    pub fn stores_experts(&self, layout: ExpertLayout) -> bool {
        let weights = self.quantized_weights().unwrap_or_default();
        let shapes = shapes(self, &weights);
        ROWS.iter().any(|row| !row.find(layout, &shapes).is_empty())
    }
}

impl ExpertPlan {
    /// Shows the experts of the checkpoint of this plan. If their scheme has no such form, they
    /// become numbers first, unless `wanted` is `false` for one. Also returns these weights, with
    /// their new names and shapes.
    #[doc(hidden)]
    pub fn arrange<'a>(
        self,
        checkpoint: Checkpoint<impl ReadAt + 'a>,
        wanted: impl Fn(&QuantizedWeight) -> bool,
    ) -> Result<(Boxed<'a>, Vec<QuantizedWeight>)> {
        let refused = match checkpoint.by_ref().arranged_weights(self.tensors.clone()) {
            Ok(_) => return Ok((checkpoint.arranged_weights(self.tensors)?.into_boxed(), vec![])),
            Err(error) if matches!(error.kind(), ErrorKind::Quantization { .. }) => error,
            Err(error) => return Err(error),
        };
        let weights = checkpoint.quantized_weights()?;
        let weights: HashMap<_, _> = weights.iter().map(|it| (&*it.name, it)).collect();
        let used: HashSet<_> = self.tensors.iter().flat_map(|(_, it)| it.0.names()).collect();
        let numbers = checkpoint.dequantized_but(&mut |_| false, |it| used.contains(&*it.name))?;
        let arranged = numbers.arranged(self.tensors.clone())?;
        let mut found = Vec::new();
        for (name, tensor) in self.tensors {
            if let Some(&weight) = tensor.0.names().iter().find_map(|old| weights.get(old)) {
                let shape = arranged.tensor(&name)?.shape().to_vec();
                found.push(QuantizedWeight { name, shape, ..weight.clone() });
            }
        }
        match !found.is_empty() && found.iter().all(wanted) {
            true => Ok((arranged.into_boxed(), found)),
            false => Err(refused),
        }
    }

    /// Returns the text of a file with settings of the model, such as `config.json`, in which
    /// modules with settings of their own have their new names. Nothing else changes.
    #[doc(hidden)]
    pub fn settings(&self, file: &str, text: &str) -> String {
        config::renamed(self, file, text)
    }
}
