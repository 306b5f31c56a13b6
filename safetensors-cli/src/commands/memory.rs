//! `safetensors memory`: the memory of a loaded checkpoint.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use safetensors_core::Dtype;

use super::Run;
use crate::input::other::DisplayedTensor;
use crate::input::{self, Checkpoint, Input};
use crate::model::config::ModelConfig;
use crate::model::totals::Parameters;
use crate::terminal::stdout::Out;
use crate::terminal::table::Column;
use crate::terminal::{table, text};

/// Show the memory that the weights take as each dtype, and whether this machine has it free.
///
/// The first row has the weights as stored. In the other rows all floats and quantised weights have
/// the dtype, and integers stay. --length adds the KV cache. Activations are not counted. Reads
/// only headers. On Linux, the free memory is the smaller of the machine's and the control group's.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// Add the KV cache for a text of this many tokens, by the config.json next to PATH
    ///
    /// It has 32 bits a number if all floats are F32, otherwise 16. Without layer_types in
    /// config.json, no layer is known to have a window, and the size is an upper bound
    #[arg(long, value_name = "TOKENS", value_parser = input::integer::<u64>(0..=u64::MAX))]
    length: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  safetensors memory llama/
  safetensors memory llama/ --length 8192
  safetensors memory hf://owner/name --length 32768

Exit codes: 0 shown, 1 PATH cannot be read, or config.json lacks what --length needs,
2 wrong usage.";

const LOADED: [(&str, Dtype); 3] =
    [("F32", Dtype::F32), ("BF16, F16", Dtype::BF16), ("8 bits", Dtype::F8_E4M3)];

impl Run for Args {
    fn is_paged(&self) -> bool {
        true
    }

    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        let checkpoint = self.input.open()?;
        let cached = self.length.map(|tokens| cached_numbers(&checkpoint, tokens)).transpose()?;
        let free = free_memory();
        let weights = input::quantized_weights(&checkpoint);
        let parameters = Parameters::new(&weights);
        let mut floats = checkpoint.tensors().map(|it| it.dtype()).filter(|it| it.is_float());
        let is_single = floats.all(|dtype| matches!(dtype, Dtype::F32 | Dtype::F64));
        let stored =
            checkpoint.tensors().map(|it| u128::from(DisplayedTensor::new(&it).byte_len())).sum();
        let mut rows = vec![("stored", stored, is_single)];
        rows.extend(LOADED.map(|(title, dtype)| {
            (title, loaded(&checkpoint, &parameters, dtype), dtype == Dtype::F32)
        }));
        let columns = [
            Column::word("loaded as").rank(0),
            Column::number("weights").rank(2),
            Column::number("KV cache").rank(4),
            Column::number("total").rank(1),
            Column::word("fits").rank(3),
        ];
        table::write(&columns, out, |table| {
            for &(title, weights, is_single) in &rows {
                let cache = cached.map(|count| u128::from(count) * if is_single { 4 } else { 2 });
                let total = weights + cache.unwrap_or(0);
                let more = free.map(|free| total.saturating_sub(free.into()));
                table.row([
                    title.to_owned(),
                    text::size(weights),
                    cache.map_or_else(|| "–".into(), text::size),
                    text::size(total),
                    match more {
                        None => "–".to_owned(),
                        Some(0) => "yes".to_owned(),
                        Some(more) => format!("no, {} more", text::size(more)),
                    },
                ]);
            }
        })?;
        let free = free.map_or_else(|| "an unknown amount".into(), text::size);
        writeln!(out, "\n{free} of memory is free here")?;
        Ok(ExitCode::SUCCESS)
    }
}

fn cached_numbers(checkpoint: &Checkpoint, tokens: u64) -> anyhow::Result<u64> {
    let config = ModelConfig::next_to(checkpoint)?;
    config.and_then(|config| config.cached_numbers(tokens)).context(
        "--length needs a config.json next to the checkpoint, with num_hidden_layers, \
         num_attention_heads and hidden_size",
    )
}

/// Returns the bytes of all tensors, with floats and quantised weights as `dtype`.
fn loaded(checkpoint: &Checkpoint, parameters: &Parameters<'_>, dtype: Dtype) -> u128 {
    let bytes = |tensor: input::Tensor<'_>| {
        let shown = DisplayedTensor::new(&tensor);
        let is_number = tensor.dtype().is_float()
            || parameters.is_quantised(tensor.name())
            || shown.stored.is_some_and(|stored| stored.is_quantised);
        match is_number {
            true => (u128::from(parameters.count(shown)) * u128::from(dtype.bits())).div_ceil(8),
            false => shown.byte_len().into(),
        }
    };
    checkpoint.tensors().map(bytes).sum()
}

/// Returns the memory that the machine and the control group have left, or `None` if the system
/// does not report it.
fn free_memory() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok()?;
    let machine = field(&machine, "MemAvailable:")?.saturating_mul(1024);
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let group = free_in_group(&Path::new("/sys/fs/cgroup").join(own));
    Some(group.map_or(machine, |group| group.min(machine)))
}

/// Counts pages that were read from files: they can be read again.
fn free_in_group(group: &Path) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let most: u64 = read("memory.max")?.trim().parse().ok()?;
    let taken: u64 = read("memory.current")?.trim().parse().ok()?;
    let of_files = field(&read("memory.stat")?, "file").unwrap_or(0);
    Some(most.saturating_sub(taken.saturating_sub(of_files)))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_cache_of_a_control_group_counts_as_free() {
        let dir = tempfile::tempdir().unwrap();
        let free = |most: &str| {
            std::fs::write(dir.path().join("memory.max"), most).unwrap();
            free_in_group(dir.path())
        };
        assert_eq!(free("1000\n"), None);
        std::fs::write(dir.path().join("memory.current"), "700\n").unwrap();
        std::fs::write(dir.path().join("memory.stat"), "anon 1\nfile 300\nfile_mapped 9\n")
            .unwrap();
        assert_eq!(free("1000\n"), Some(600));
        assert_eq!(free("100\n"), Some(0));
        // Without a limit, the machine has one.
        assert_eq!(free("max\n"), None);
    }
}
