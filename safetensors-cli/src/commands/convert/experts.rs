//! [`Experts`]: the `--experts` option, which splits or stacks the experts of a mixture.

use std::collections::BTreeMap;
use std::iter;

use clap::builder::TypedValueParser;
use safetensors_core::load::{ExpertLayout, ExpertOptions, GateUp};
use safetensors_core::quantized::{QuantizedWeight, settings_files};

use super::casts::named;
use crate::input::Checkpoint;
use crate::model::config::{CONFIG, text_of};

/// The options for experts.
#[derive(Debug, clap::Args)]
pub(super) struct Experts {
    /// Store the experts of a mixture one by one, or all in one tensor
    ///
    /// The model_type in config.json decides names and order, and other tensors of the module are
    /// renamed with them. All other options apply to the new names. Codes and scales of quantised
    /// experts move along; where they cannot, --dequantize and --dtype make numbers of them first.
    /// Modules in the settings of quantised weights are renamed
    #[arg(long, value_name = "LAYOUT", value_parser = layouts())]
    experts: Option<ExpertLayout>,
    /// With --experts: where a stack has the gate, if config.json names no architecture
    #[arg(long, value_name = "ORDER", value_parser = orders(), requires = "experts")]
    gate_up: Option<GateUp>,
    /// With --experts stacked: store the outputs of an expert as columns
    ///
    /// Stacks of Llama 4 and gpt-oss always are like that
    #[arg(long, requires = "experts")]
    transposed: bool,
}

fn layouts() -> impl TypedValueParser<Value = ExpertLayout> {
    let split = "mlp.experts.3.gate_proj.weight and so on, as most files and programs have them";
    let stacked = "mlp.experts.gate_up_proj and so on, as transformers 5 has them in memory";
    named([(ExpertLayout::Split, "split", split), (ExpertLayout::Stacked, "stacked", stacked)])
}

fn orders() -> impl TypedValueParser<Value = GateUp> {
    named([
        (GateUp::First, "first", "In its first half"),
        (GateUp::Last, "last", "In its second half"),
        (GateUp::Interleaved, "interleaved", "In every second output, from the first on"),
    ])
}

impl Experts {
    /// Returns the layout, for the end of the summary.
    pub(super) fn summary(&self) -> &'static str {
        match self.experts {
            Some(ExpertLayout::Split) => ", experts split",
            Some(ExpertLayout::Stacked) => ", experts stacked",
            None => "",
        }
    }

    pub(super) fn is_given(&self) -> bool {
        self.experts.is_some()
    }

    /// Arranges experts, and adds the new texts of files with `settings`. Weights that are `wanted`
    /// as numbers may become these, and are returned.
    pub(super) fn arrange(
        &self,
        checkpoint: Checkpoint,
        settings: &mut BTreeMap<&'static str, String>,
        wanted: impl Fn(&QuantizedWeight) -> bool,
    ) -> anyhow::Result<(Checkpoint, Vec<QuantizedWeight>)> {
        let Some(layout) = self.experts else { return Ok((checkpoint, Vec::new())) };
        let mut options = ExpertOptions::new().transposed(self.transposed);
        if let Some(order) = self.gate_up {
            options = options.gate_up(order);
        }
        let plan = checkpoint.expert_plan(layout, &options)?;
        for name in iter::once(CONFIG).chain(settings_files()) {
            if let Some((_, text)) = text_of(&checkpoint, name)? {
                settings.insert(name, plan.settings(name, &text));
            }
        }
        Ok(plan.arrange(checkpoint, wanted)?)
    }
}
