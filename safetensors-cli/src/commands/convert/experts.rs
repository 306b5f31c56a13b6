//! [`Experts`]: the `--experts` option, which splits or stacks the experts of a mixture.

use safetensors_core::load::{ExpertLayout, ExpertOptions, GateUp};

use crate::input::Checkpoint;
use crate::model::config::config_of;

/// The options for experts.
#[derive(Debug, clap::Args)]
pub(super) struct Experts {
    /// Store the experts of a mixture one by one, or all in one tensor
    ///
    /// The model_type in config.json decides names and order, and other tensors of the module are
    /// renamed with them. All other options apply to the new names. Codes and scales of quantised
    /// experts move along. Modules that config.json lists as not quantised are renamed there
    #[arg(long, value_name = "LAYOUT", value_enum)]
    experts: Option<Layout>,
    /// With --experts: where a stack has the gate, if config.json names no architecture
    #[arg(long, value_name = "ORDER", value_enum, requires = "experts")]
    gate_up: Option<Order>,
    /// With --experts stacked: store the outputs of an expert as columns
    ///
    /// Stacks of Llama 4 and gpt-oss always are like that
    #[arg(long, requires = "experts")]
    transposed: bool,
}

/// How experts are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Layout {
    /// mlp.experts.3.gate_proj.weight and so on, as most files and programs have them
    Split,
    /// mlp.experts.gate_up_proj and so on, as transformers 5 has them in memory
    Stacked,
}

/// Where a stack has the gate.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Order {
    /// In its first half
    First,
    /// In its second half
    Last,
    /// In every second output, from the first on
    Interleaved,
}

impl Experts {
    /// Returns the layout, for the end of the summary.
    pub(super) fn summary(&self) -> &'static str {
        match self.experts {
            Some(Layout::Split) => ", experts split",
            Some(Layout::Stacked) => ", experts stacked",
            None => "",
        }
    }

    /// Returns the checkpoint with experts in the layout, and its new `config.json`, if it has one.
    pub(super) fn arrange(
        &self,
        checkpoint: Checkpoint,
    ) -> anyhow::Result<(Checkpoint, Option<String>)> {
        let layout = match self.experts {
            Some(Layout::Split) => ExpertLayout::Split,
            Some(Layout::Stacked) => ExpertLayout::Stacked,
            None => return Ok((checkpoint, None)),
        };
        let mut options = ExpertOptions::new().transposed(self.transposed);
        if let Some(order) = self.gate_up {
            options = options.gate_up(match order {
                Order::First => GateUp::First,
                Order::Last => GateUp::Last,
                Order::Interleaved => GateUp::Interleaved,
            });
        }
        let config = config_of(&checkpoint)?;
        let config = config.map(|(_, text)| checkpoint.experts_config(layout, &options, &text));
        let config = config.transpose()?;
        Ok((checkpoint.experts(layout, &options)?.into_boxed(), config))
    }
}
