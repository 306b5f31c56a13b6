//! `safetensors delta apply`: applies deltas to a checkpoint.

use std::io::Write;
use std::path::PathBuf;

use safetensors_core::checkpoint::{CheckpointFile, FilePattern};
use safetensors_delta::Options;

use super::{advise, bytes_of, counted, opened, permit, warn_of_left_out, warn_of_unchecked};
use crate::input::{self, address};
use crate::output::existing::{Existing, files_of};
use crate::output::writing::{Content, Writing};
use crate::terminal::text;

/// Apply deltas to BASE, and write the result
///
/// OUT gets the files of BASE with the new values, under the same names, and copies of the other
/// files that `convert` copies, unless OUT has them already; a warning names the rest. If tensors
/// were added, removed or reshaped, or the metadata differs, the tensors are saved as by `convert`.
/// The deltas may be given in any order. OUT is written after everything is checked; -n only
/// checks. OUT may be BASE, with --force. Other files in OUT stay.
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
    #[command(flatten)]
    writing: Writing,
}

impl Apply {
    pub(super) fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let (base, chain, to) = opened(&self.paths)?;
        let options = Options::new().overwrite(true);
        chain.check_directory(&base, to, &options).map_err(advise)?;
        let names = base.files().iter().map(CheckpointFile::path).chain(base.index_path());
        let names: Vec<_> = names.filter_map(|path| path.file_name()?.to_str()).collect();
        let content = Content {
            inputs: files_of(&base),
            loss: Some(format!("the deltas change {}", text::some(&names))),
            ..Content::default()
        };
        let existing = Existing::of_checkpoint(to, &FilePattern::default(), &names).hiding()?;
        let destination = permit(self.writing, existing, &content)?;
        let (hides, version) = (destination.hides(), text::printable(chain.version()));
        let overwrite = destination.overwrites() || !hides.is_empty();
        let options = counted(options.overwrite(overwrite), bytes_of(&base));
        if self.writing.dry_run {
            chain.check_directory(&base, to, &options).map_err(advise)?;
            chain.verify(&base, &options)?;
            destination.is_dry_run(out, format_args!("version {version}{hides}"))?;
            return Ok(());
        }
        let left_out = chain.apply(&base, to, &options).map_err(advise)?;
        warn_of_unchecked(&chain);
        warn_of_left_out(to, &left_out);
        let result = input::open(to)?;
        let tensors = text::counted(result.len() as u64, "tensor");
        let bytes = text::size(bytes_of(&result));
        destination.tell(out, format_args!("version {version}, {tensors}, {bytes}{hides}"))
    }
}
