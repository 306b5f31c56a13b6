//! `safetensors delta apply`: what deltas make of a checkpoint, in a directory.

use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors_delta::{Chain, Options};

use super::{advise, bytes_of, counted, opened, tell, warn_of_left_out, warn_of_unchecked};
use crate::input::{self, Source, address};
use crate::terminal::text;

/// Write the checkpoint that deltas make of BASE
///
/// OUT gets the files of BASE with the new values, under the same names, and copies of the other
/// files in the directory BASE. Other tensors, signatures, hidden files and links that lead out of
/// BASE are not copied: a warning names them. If tensors were added, removed or reshaped, or the
/// metadata differs, the tensors are saved as `convert` saves them. The deltas may be given in any
/// order. Nothing appears at OUT before everything is checked. OUT may be BASE, with --force.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "\
Examples:
  safetensors delta apply step-1/ weight_v000002 applied/
  safetensors delta apply hf://owner/model weight_v000001 applied/
  safetensors delta apply served/ weight_v000003 served/ --force

Exit codes: 0 applied, 1 a delta does not fit BASE, or a file is malformed or cannot be read or
written, 2 wrong usage.",
    override_usage = "safetensors delta apply [OPTIONS] <BASE> <DELTA>... <OUT>"
)]
pub(super) struct Apply {
    /// BASE, the deltas, and OUT last
    #[arg(value_name = "PATH", required = true, num_args = 3.., value_parser = address::parser())]
    paths: Vec<PathBuf>,
    /// Replace the checkpoint in OUT; all other files there stay
    #[arg(long)]
    force: bool,
}

impl Apply {
    pub(super) fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let (base, chain, to) = opened(&self.paths)?;
        let options = counted(Options::new().overwrite(self.force), bytes_of(&base));
        let left_out = chain.apply(&base, to, &options).map_err(advise)?;
        warn_of_unchecked(&chain);
        warn_of_left_out(to, &left_out);
        tell_of_result(to, &chain, out)
    }
}

/// Says what deltas have made.
fn tell_of_result(to: &Path, chain: &Chain<Source>, out: &mut impl Write) -> anyhow::Result<()> {
    let result = input::open(to)?;
    let version = text::printable(chain.version());
    let tensors = text::counted(result.len() as u64, "tensor");
    let bytes = text::size(bytes_of(&result));
    tell(to, format_args!("version {version}, {tensors}, {bytes}"), out)
}
