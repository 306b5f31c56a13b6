//! [`Values`]: whether quantised weights are numbers, or codes and scales.

use anyhow::Context;

use super::find;
use super::select::{Matcher, Replaced};
use super::{Checkpoint, Input, Opening, opened_path, other, quantized_weights};

/// The option of every command that shows values.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Values {
    /// Take codes and scales as stored, not the numbers of quantised weights
    #[arg(long)]
    stored: bool,
}

impl Values {
    pub(crate) fn are_stored(self) -> bool {
        self.stored
    }

    /// Makes numbers, unless codes are requested.
    pub(crate) fn opening(self) -> Opening {
        Opening { dequantize: !self.stored, ..Opening::default() }
    }

    /// Makes numbers, unless codes are requested. Fails if a pattern matches nothing, or only codes
    /// and scales.
    pub(crate) fn apply(
        self,
        stored: Checkpoint,
        matcher: Matcher<'_>,
    ) -> anyhow::Result<Checkpoint> {
        let weights = if self.stored { Vec::new() } else { quantized_weights(&stored) };
        if weights.is_empty() {
            return Ok(stored);
        }
        let numbers = stored.dequantized()?.into_boxed();
        let replaced = Replaced { weights: weights.iter().collect(), instead: "--stored" };
        let checked = matcher.check(&find::names(&numbers), &replaced);
        checked.with_context(|| opened_path(&numbers))?;
        Ok(numbers)
    }

    /// Opens the checkpoint with this tensor as numbers. The name of a part of a weight, such as
    /// its scales, means that part.
    pub(crate) fn of_tensor(self, input: &Input, name: &str) -> anyhow::Result<Checkpoint> {
        let mut stored = input.open_with(self.opening())?;
        if stored.get(name).is_none() && other::is_in(stored.files()) {
            // A file of another format has no scales next to numbers.
            stored = input.open()?;
        }
        let weights = if self.stored { Vec::new() } else { quantized_weights(&stored) };
        let is_weight = weights.iter().any(|weight| weight.name == name);
        let is_stored = weights.is_empty() || stored.get(name).is_some() && !is_weight;
        Ok(if is_stored { stored } else { stored.dequantized()?.into_boxed() })
    }
}
