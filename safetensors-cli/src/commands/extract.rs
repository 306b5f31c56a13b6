//! `safetensors extract`: one tensor into a file of its own.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use safetensors_core::{Error, ErrorKind};

use crate::input::{Checkpoint, Input, Tensor};
use crate::progress::Progress;
use crate::{file, numpy, text};

/// Write one tensor to a .npy file, which NumPy reads, or as plain bytes.
///
/// NumPy has no BF16 and no floats of 8 bits or fewer. Convert them to F32 with
/// `safetensors convert` first, or use --raw. It writes the bytes as they are in the
/// file, little-endian and in C order, without a header.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// The name of the tensor
    #[arg(value_name = "NAME")]
    name: String,
    /// The file to write, or - for standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Write only the bytes of the elements, without a header
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    force: file::Force,
}

const EXAMPLES: &str = "\
Examples:
  safetensors extract model.safetensors lm_head.weight -o head.npy
  safetensors extract checkpoint/ scale --raw -o - | xxd | head
  python -c 'import numpy; print(numpy.load(\"head.npy\"))'

Exit codes: 0 written, 1 reading or writing failed, 2 wrong usage.";

/// Writes one tensor.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let checkpoint = args.input.open()?;
    let tensor = find(&checkpoint, &args.name)?;
    let instead = "use --raw, or make it F32 with `safetensors convert --dtype f32`";
    let header = match args.raw {
        true => Vec::new(),
        false => numpy::header_of(tensor.name(), &tensor, instead)
            .with_context(|| text::path(&args.output))?,
    };
    let bytes = tensor.byte_len() + header.len() as u64;
    let progress = Progress::bytes(tensor.byte_len());
    if args.output == Path::new("-") {
        write(&header, &tensor, out, &progress)?;
    } else {
        file::replace(&args.output, args.force, |out| write(&header, &tensor, out, &progress))
            .map_err(|error| file::advise(error, &args.output, bytes, "-o FILE", file::STREAM))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write(
    header: &[u8],
    tensor: &Tensor<'_>,
    out: &mut impl Write,
    progress: &Progress,
) -> anyhow::Result<()> {
    out.write_all(header)?;
    numpy::write_data(out, tensor.name(), tensor, progress)
}

/// The tensor of this name. If there is none, the error suggests similar names.
fn find<'a>(checkpoint: &'a Checkpoint, name: &str) -> anyhow::Result<Tensor<'a>> {
    checkpoint.tensor(name).map_err(|error| {
        let last = |name: &str| name.rsplit('.').take(2).map(str::to_owned).collect::<Vec<_>>();
        let similar =
            |other: &&str| !name.is_empty() && (other.contains(name) || last(other) == last(name));
        let mut similar: Vec<_> =
            checkpoint.tensors().map(|tensor| tensor.name()).filter(similar).collect();
        // Names that only add modules in front come first.
        similar.sort_by_key(|other| (!other.ends_with(name), other.len()));
        let similar: Vec<_> = similar.into_iter().take(3).map(text::name).collect();
        // Names with the same components are nearer than the error's own suggestions, which only
        // have similar letters.
        match (similar.as_slice(), error.similar()) {
            ([], []) => anyhow::anyhow!("{error}; `safetensors inspect --flat` lists them all"),
            ([], _) => error.into(),
            (similar, _) => {
                let missing = Error::from(ErrorKind::TensorNotFound).in_tensor(name);
                let missing = match error.file() {
                    Some(file) => missing.in_file(file),
                    None => missing,
                };
                anyhow::anyhow!("{missing}; did you mean {}?", similar.join(", "))
            }
        }
    })
}
