//! [`RankRules`]: selects the tensors that are split, by their names.

use super::Division;
use super::plan::{RankPlan, RankTensor};
use crate::checkpoint::Checkpoint;
use crate::format::dtype::Dtype;
use crate::format::error::{Error, RankProblem, Result};
use crate::format::glob::Pattern;

/// Rules for dividing the tensors of a model among ranks. The first rule with a pattern that
/// matches the full name of a tensor counts. A tensor without a rule is an error: a misspelt
/// pattern would cost the memory of an entire tensor on each rank.
///
/// ```
/// use safetensors_core::Dtype;
/// use safetensors_core::ranks::{Division, RankRules};
///
/// let rules = RankRules::new()
///     .rule("*.embed_tokens.weight", Division::Replicate)?
///     .then(RankRules::llama());
/// let names = ["model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight"];
/// let plan = rules.plan_tensors(names.map(|name| (name, Dtype::F32, vec![4, 4])), 2)?;
/// let divisions: Vec<_> = plan.tensors().map(|tensor| tensor.division().to_string()).collect();
/// assert_eq!(divisions, ["replicate", "split:1"]);
/// assert!(rules.plan_tensors([("model.vision.patch", Dtype::F32, vec![4])], 2).is_err());
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RankRules {
    rules: Vec<(Pattern, Division)>,
}

const SCALES: &str = "{*_scale,*_scale_inv,{*.,}scale_weight}";

// Projections divided by rows compute a part of their outputs. Projections divided by columns
// compute a summand of all outputs, so their bias is added once, by the code that adds them up.
const LLAMA: &[(&str, &str)] = &[
    (SCALES, "replicate"),
    ("*.{q,k,v,gate,up}_proj.{weight,bias}", "split:0"),
    ("*.{o,down}_proj.weight", "split:1"),
    ("*.{o,down}_proj.bias", "replicate"),
    ("*.experts.*.w{1,3}.weight", "split:0"),
    ("*.experts.*.w2.weight", "split:1"),
    ("*.{gate,shared_expert_gate}.weight", "replicate"),
    ("{*.,}{embed_tokens,lm_head}.{weight,bias}", "split:0"),
    ("*{norm,layernorm}.{weight,bias}", "replicate"),
    ("*.rotary_emb.inv_freq", "replicate"),
];

const BERT: &[(&str, &str)] = &[
    (SCALES, "replicate"),
    ("*.attention.self.{query,key,value}.{weight,bias}", "split:0"),
    ("*.intermediate.dense.{weight,bias}", "split:0"),
    ("*.output.dense.weight", "split:1"),
    ("*.output.dense.bias", "replicate"),
    ("*LayerNorm.{weight,bias,gamma,beta}", "replicate"),
    ("{*.,}embeddings.*", "replicate"),
    ("{*.,}{pooler,cls,classifier,lm_head,qa_outputs}.*", "replicate"),
];

impl RankRules {
    /// Makes an empty list of rules.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns rules for the names of Llama's tensors, which Mistral, Qwen, Gemma and Mixtral
    /// share: the projections into the heads and into the hidden layer, and the vocabulary, are
    /// split by rows, the projections out of them by columns. Norms, routers and the scales of
    /// quantised weights are replicated. Fused projections (`qkv_proj`, `gate_up_proj`) need
    /// separate rules.
    pub fn llama() -> Self {
        Self::preset(LLAMA)
    }

    /// Returns rules for BERT's and RoBERTa's names: as [`llama`](RankRules::llama), but embeddings
    /// and the layers at the top are replicated, because BERT's vocabulary seldom divides evenly.
    pub fn bert() -> Self {
        Self::preset(BERT)
    }

    /// Returns the preset for a model with these names, if they are Llama's or BERT's.
    pub fn for_names<'n>(names: impl IntoIterator<Item = &'n str>) -> Option<Self> {
        names.into_iter().find_map(|name| match name {
            _ if name.contains(".self_attn.q_proj.") || name.contains(".mlp.gate_proj.") => {
                Some(Self::llama())
            }
            _ if name.contains(".attention.self.query.") => Some(Self::bert()),
            _ => None,
        })
    }

    fn preset(rules: &[(&str, &str)]) -> Self {
        // A unit test reads every rule, so none is skipped here.
        let rule = |(pattern, division): &(&str, &str)| {
            Some((pattern.parse().ok()?, division.parse().ok()?))
        };
        Self { rules: rules.iter().filter_map(rule).collect() }
    }

    /// Adds a rule after the others.
    ///
    /// # Errors
    ///
    /// [`RankProblem::BadRule`] if the text is not a [`Pattern`].
    pub fn rule(mut self, pattern: &str, division: Division) -> Result<Self> {
        let pattern = pattern.parse().map_err(|error| {
            let expected = format!("expected a pattern: {error}");
            let found = pattern.into();
            Error::from(RankProblem::BadRule { expected, found })
        })?;
        self.rules.push((pattern, division));
        Ok(self)
    }

    /// Adds a rule from a text such as `lm_head.*=replicate`: a [`Pattern`], `=`, and a
    /// [`Division`].
    ///
    /// # Errors
    ///
    /// [`RankProblem::BadRule`].
    pub fn parse_rule(self, text: &str) -> Result<Self> {
        let (pattern, division) = text.rsplit_once('=').ok_or_else(|| {
            let expected = "expected GLOB=RULE, such as 'lm_head.*=replicate'".into();
            Error::from(RankProblem::BadRule { expected, found: text.into() })
        })?;
        self.rule(pattern, division.parse()?)
    }

    /// Adds the rules of another set after these.
    #[must_use]
    pub fn then(mut self, other: Self) -> Self {
        self.rules.extend(other.rules);
        self
    }

    pub(super) fn division_of(&self, name: &str) -> Option<&Division> {
        let rule = self.rules.iter().find(|(pattern, _)| pattern.matches(name));
        rule.map(|(_, division)| division)
    }

    /// Plans the part of each tensor of a checkpoint that each of `world_size` ranks holds. No data
    /// is read.
    ///
    /// # Errors
    ///
    /// [`RankProblem::NoRule`] for a tensor without a rule; [`RankProblem::WorldSize`]; a division
    /// that does not fit a tensor.
    pub fn plan<S>(&self, checkpoint: &Checkpoint<S>, world_size: usize) -> Result<RankPlan> {
        let tensors = checkpoint.tensors();
        let tensors =
            tensors.map(|tensor| (tensor.name(), tensor.dtype(), tensor.shape().to_vec()));
        self.plan_tensors(tensors, world_size)
    }

    /// Plans like [`plan`](RankRules::plan), for tensors that are not in a checkpoint yet, given by
    /// name, dtype and shape.
    ///
    /// ```
    /// use safetensors_core::Dtype;
    /// use safetensors_core::ranks::RankRules;
    ///
    /// let tensors = [
    ///     ("model.layers.0.mlp.up_proj.weight", Dtype::BF16, vec![64, 16]),
    ///     ("model.norm.weight", Dtype::BF16, vec![16]),
    /// ];
    /// let plan = RankRules::llama().plan_tensors(tensors, 4)?;
    /// assert_eq!(plan.byte_len(3)?, 64 * 16 * 2 / 4 + 32);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RankProblem::WorldSize`]; [`RankProblem::NoRule`]; a division that does not fit a tensor,
    /// or that cuts a packed element ([`SliceInsideByte`]); [`DuplicateTensor`].
    ///
    /// [`DuplicateTensor`]: crate::ErrorKind::DuplicateTensor
    /// [`SliceInsideByte`]: crate::ErrorKind::SliceInsideByte
    pub fn plan_tensors<N: Into<String>>(
        &self,
        tensors: impl IntoIterator<Item = (N, Dtype, Vec<usize>)>,
        world_size: usize,
    ) -> Result<RankPlan> {
        let planned = tensors.into_iter().map(|(name, dtype, shape)| {
            let name = name.into();
            match self.division_of(&name) {
                Some(division) => Ok(RankTensor::new(name, dtype, shape, division.clone())),
                None => Err(Error::from(RankProblem::NoRule).in_tensor(&name)),
            }
        });
        RankPlan::new(world_size, planned.collect::<Result<_>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_of_a_preset_is_read() {
        assert_eq!(RankRules::llama().rules.len(), LLAMA.len());
        assert_eq!(RankRules::bert().rules.len(), BERT.len());
    }

    #[test]
    fn every_preset_replicates_scales_of_any_name() {
        for weight in ["a.q_proj.weight", "weight", "w"] {
            for end in ["_scale_inv", "_scale"] {
                let scales = format!("{weight}{end}");
                for rules in [RankRules::llama(), RankRules::bert()] {
                    let division = rules.division_of(&scales);
                    assert_eq!(division, Some(&Division::Replicate), "{scales}");
                }
            }
        }
    }

    #[test]
    fn the_names_of_models() {
        for (rules, names) in [
            (
                RankRules::llama(),
                &[
                    ("model.embed_tokens.weight", "split:0"),
                    ("embed_tokens.weight", "split:0"),
                    ("lm_head.weight", "split:0"),
                    ("model.layers.3.self_attn.q_proj.weight", "split:0"),
                    ("model.layers.3.self_attn.v_proj.bias", "split:0"),
                    ("model.layers.3.self_attn.o_proj.weight", "split:1"),
                    ("model.layers.3.self_attn.q_norm.weight", "replicate"),
                    ("model.layers.3.mlp.gate_proj.weight", "split:0"),
                    ("model.layers.3.mlp.gate_proj.weight_scale_inv", "replicate"),
                    ("model.layers.3.mlp.down_proj.weight", "split:1"),
                    ("model.layers.3.mlp.down_proj.bias", "replicate"),
                    ("model.layers.3.mlp.gate.weight", "replicate"),
                    ("model.layers.3.block_sparse_moe.experts.7.w2.weight", "split:1"),
                    ("model.layers.3.block_sparse_moe.gate.weight", "replicate"),
                    ("model.layers.3.input_layernorm.weight", "replicate"),
                    ("model.norm.weight", "replicate"),
                    ("model.layers.0.self_attn.rotary_emb.inv_freq", "replicate"),
                ][..],
            ),
            (
                RankRules::bert(),
                &[
                    ("bert.encoder.layer.0.attention.self.query.weight", "split:0"),
                    ("encoder.layer.0.attention.output.dense.weight", "split:1"),
                    ("encoder.layer.0.attention.output.dense.bias", "replicate"),
                    ("encoder.layer.0.attention.output.LayerNorm.weight", "replicate"),
                    ("encoder.layer.0.intermediate.dense.bias", "split:0"),
                    ("encoder.layer.0.output.dense.weight", "split:1"),
                    ("embeddings.word_embeddings.weight", "replicate"),
                    ("bert.embeddings.position_ids", "replicate"),
                    ("pooler.dense.weight", "replicate"),
                    ("cls.predictions.bias", "replicate"),
                ],
            ),
        ] {
            for (name, division) in names {
                let found = rules.division_of(name).map(Division::to_string);
                assert_eq!(found.as_deref(), Some(*division), "{name}");
            }
            assert_eq!(rules.division_of("model.layers.0.self_attn.qkv_proj.weight"), None);
        }
    }
}
