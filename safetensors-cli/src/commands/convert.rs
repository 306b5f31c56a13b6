//! `safetensors convert`: other dtypes, names, files.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use safetensors_core::tied::{Storage, Tied};
use safetensors_core::{
    Checkpoint, Converted, Dtype, MaxShardSize, Result, Rewrite, SaveOptions, Sink, TensorSource, digest, shape,
    split_into_shards,
};

use crate::convert::{Change, Changes, Output, Source};
use crate::progress::Progress;
use crate::table::Align::{Left, Right};
use crate::table::Table;
use crate::text;

/// Convert tensors between files: cast, split, merge, select and rename them.
///
/// Each IN is a .safetensors, .npz or .npy file, an index
/// (*.safetensors.index.json), a directory that holds an index or exactly one file,
/// or - for a safetensors file on standard input. OUT is a .safetensors, .npz or
/// .npy file, or else a directory, which becomes a checkpoint of one or more files
/// with an index.
///
/// Patterns and casts are about the names that tensors have in the input. Tensors
/// are read, converted and written piece by piece: memory of a few MiB a thread is
/// enough for a checkpoint of any size. OUT is there complete, or as it was before,
/// even if the command is killed; then a hidden file that ends in .safetensors.tmp,
/// or a hidden directory, may be left beside it, which can be removed. OUT may be one
/// of the inputs.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment, override_usage = "safetensors convert [OPTIONS] <IN>... <OUT>")]
pub(crate) struct Args {
    /// What to convert, and last, what to make of it
    #[arg(value_names = ["IN", "OUT"], num_args = 2.., required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    changes: Changes,
    /// Split into files of at most this size: 5GB, 500 MB, or a number of bytes; 5GB if not given
    #[arg(long, value_name = "SIZE", value_parser = shard_size)]
    max_shard_size: Option<MaxShardSize>,
    /// Show what would be written, and write nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

const EXAMPLES: &str = "\
Examples:
  safetensors convert model.safetensors small.safetensors --dtype bf16
  safetensors convert model/ fp8/ --dtype f8_e4m3 --overflow saturate --cast 'lm_head.*=keep' --cast '*norm*=f32'
  safetensors convert checkpoint/ model.safetensors
  safetensors convert model.safetensors shards/ --max-shard-size 2GB
  safetensors convert vision.safetensors text.safetensors both.safetensors
  safetensors convert model.safetensors encoder.safetensors --filter 'encoder.*' --rename '^encoder\\.' ''
  safetensors convert weights.npz model.safetensors --prefix model. --dry-run

Exit codes: 0 written, 1 it could not be read or written, and OUT is as it was, 2 wrong usage.";

/// A size as the Hub writes it, or a plain number of bytes.
fn shard_size(text: &str) -> Result<MaxShardSize, String> {
    match text.parse::<u64>() {
        Ok(0) => Err("expected at least 1 byte".into()),
        Ok(bytes) => Ok(bytes.into()),
        Err(_) => text.parse().map_err(|error: safetensors_core::Error| error.to_string()),
    }
}

/// A tensor as it will be written, and what it was.
struct Planned<'a> {
    tensor: Box<dyn TensorSource + 'a>,
    /// Its name before, printable.
    old: String,
    from: Dtype,
}

/// Converts.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let Some((output, inputs)) = args.paths.split_last() else { anyhow::bail!("expected IN and OUT") };
    let target = Output::new(output, args.max_shard_size)?;
    let change = args.changes.prepare()?;
    let sources = inputs.iter().map(|path| Source::open(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut rewrite = rewrite(&sources, &change)?;
    let mut metadata = rewrite.as_mut().map(|rewrite| std::mem::take(rewrite.metadata_mut())).unwrap_or_default();
    // The data will be other data.
    digest::forget(&mut metadata);
    let mut tensors = Vec::new();
    for (name, planned) in rewrite.iter().flat_map(Rewrite::tensors) {
        let from = planned.tensor();
        let old = text::name(from.name());
        tensors.push((name.to_owned(), Planned { tensor: Box::new(planned), old, from: from.dtype() }));
    }
    tensors.extend(arrays(&sources, &change)?);
    if tensors.is_empty() && sources.iter().any(|source| !source.is_empty()) {
        anyhow::bail!("no tensor is left to be written; `safetensors inspect --flat` shows the names");
    }
    target.check(&tensors)?;
    let bytes = tensors.iter().map(|(name, planned)| planned.byte_len(name)).sum::<anyhow::Result<u64>>()?;
    if args.dry_run {
        show_plan(&target, &tensors, out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let progress = Progress::bytes(bytes);
    let counted = |(name, planned)| (name, Counted { planned, progress: &progress });
    let options = SaveOptions::new().metadata(metadata).tied(Tied::new());
    let count = tensors.len() as u64;
    let written = target.write(tensors.into_iter().map(counted).collect(), options)?;
    drop(progress);
    writeln!(out, "{written}: {}, {}", text::counted(count, "tensor"), text::size(bytes))?;
    Ok(ExitCode::SUCCESS)
}

/// The tensors of all checkpoints, with their metadata.
fn rewrite<'a>(sources: &'a [Source], change: &Change<'_>) -> anyhow::Result<Option<Rewrite<'a>>> {
    let mut checkpoints = sources.iter().filter_map(|source| match source {
        Source::Checkpoint(checkpoint) => Some(checkpoint),
        Source::Arrays(_) => None,
    });
    let Some(first) = checkpoints.next() else { return Ok(None) };
    let rewrite = checkpoints.fold(Rewrite::of(first), |rewrite, checkpoint: &Checkpoint| rewrite.merge(checkpoint));
    let rewrite = rewrite.select(|name, _| change.takes(name));
    let rewrite = rewrite.cast(&change.options(), |name, tensor| change.cast(name, tensor.dtype()))?;
    Ok(Some(rewrite.rename(|name| change.rename(name))))
}

/// The arrays of all other inputs.
fn arrays<'a>(sources: &'a [Source], change: &Change<'_>) -> anyhow::Result<Vec<(String, Planned<'a>)>> {
    let arrays = sources.iter().flat_map(|source| match source {
        Source::Arrays(arrays) => arrays.as_slice(),
        Source::Checkpoint(_) => &[],
    });
    let mut planned = Vec::new();
    for (name, array) in arrays.filter(|(name, _)| change.takes(name)) {
        let from = array.dtype();
        let tensor: Box<dyn TensorSource> = match change.cast(name, from) {
            Some(to) => Box::new(Converted::new(array, to, &change.options()).map_err(|error| error.in_tensor(name))?),
            None => Box::new(array),
        };
        planned.push((change.rename(name), Planned { tensor, old: text::name(name), from }));
    }
    Ok(planned)
}

impl Planned<'_> {
    fn byte_len(&self, name: &str) -> anyhow::Result<u64> {
        let bytes = shape::byte_len(self.tensor.dtype(), self.tensor.shape());
        Ok(bytes.map_err(|kind| safetensors_core::Error::from(kind).in_tensor(name))?)
    }
}

impl TensorSource for Planned<'_> {
    fn dtype(&self) -> Dtype {
        self.tensor.dtype()
    }

    fn shape(&self) -> &[usize] {
        self.tensor.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        self.tensor.write_to(sink)
    }

    fn storage(&self) -> Option<Storage> {
        self.tensor.storage()
    }
}

/// A tensor that moves a progress bar on as it is written.
struct Counted<'a> {
    planned: Planned<'a>,
    progress: &'a Progress,
}

impl TensorSource for Counted<'_> {
    fn dtype(&self) -> Dtype {
        self.planned.dtype()
    }

    fn shape(&self) -> &[usize] {
        self.planned.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        self.planned.write_to(&mut |bytes| {
            sink(bytes)?;
            self.progress.add(bytes.len() as u64);
            Ok(())
        })
    }

    fn storage(&self) -> Option<Storage> {
        self.planned.storage()
    }
}

/// What would be written: each tensor with its new name, and with the old one and the old dtype where they change.
fn show_plan(target: &Output, tensors: &[(String, Planned<'_>)], out: &mut impl Write) -> anyhow::Result<()> {
    let columns = [("name", Left), ("from", Left), ("dtype", Left), ("shape", Left), ("size", Right)];
    let mut table = Table::new(&columns);
    let mut sizes = Vec::with_capacity(tensors.len());
    for (name, planned) in tensors {
        let (shown, to) = (text::name(name), planned.dtype());
        let old = if shown == planned.old { String::new() } else { planned.old.clone() };
        let dtype = if planned.from == to { to.to_string() } else { format!("{} → {to}", planned.from) };
        sizes.push(planned.byte_len(name)?);
        let size = text::size(sizes[sizes.len() - 1]);
        table.row([shown, old, dtype, text::shape(planned.shape()), size]);
    }
    table.write(out)?;
    let total = text::size(sizes.iter().map(|&size| u128::from(size)).sum::<u128>());
    let count = text::counted(tensors.len() as u64, "tensor");
    match target {
        Output::Directory(path, limit) => {
            let split = split_into_shards(sizes.into_iter().map(|size| (size, None::<()>)), *limit);
            let files = text::counted(split.shards.len().max(1) as u64, "file");
            writeln!(out, "\n{}: {count}, {total}, in {files}; nothing was written", text::path(path))?;
        }
        Output::File(path) | Output::Npy(path) | Output::Npz(path) => {
            writeln!(out, "\n{}: {count}, {total}; nothing was written", text::path(path))?;
        }
    }
    Ok(())
}
