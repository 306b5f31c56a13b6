//! `safetensors extract`: one tensor into a separate file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use safetensors_core::error::QuantizationProblem;
use safetensors_core::save::write_to;
use safetensors_core::{ErrorKind, LazyTensor, ReadAt, SaveOptions};
use safetensors_formats::Format;

use super::Run;
use crate::input::Input;
use crate::input::find;
use crate::input::kind::{Kind, unknown_ending};
use crate::input::slicing::{Selection, Slice};
use crate::input::values::Values;
use crate::output::numpy;
use crate::output::writing::Writing;
use crate::terminal::progress::Progress;
use crate::terminal::report::wrong_usage;
use crate::terminal::stdout::Out;
use crate::terminal::{stdout, text};

/// Write one tensor, or a slice of it, to a file: for NumPy, as safetensors, or as plain bytes.
///
/// FILE is a safetensors file if its name ends in .safetensors, and NumPy's if it ends in .npy or
/// has no ending. A slice is written as for `safetensors show`; only its bytes are read. A
/// quantised weight is written as numbers, in F32, or with --stored as codes.
///
/// NumPy has no BF16 and no floats of 8 bits or fewer: name a .safetensors file, convert to F32
/// with `safetensors convert` first, or use --raw, which writes the stored bytes, little-endian and
/// in C order.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// The name of the tensor
    #[arg(value_name = "NAME")]
    name: String,
    /// The part to write, such as '[0:3, -1]'; all of the tensor by default
    #[arg(value_name = "SLICE", value_parser = Slice::parse, allow_hyphen_values = true)]
    slice: Option<Slice>,
    /// The file to write: .npy or .safetensors; - for a .npy file on standard output
    ///
    /// A FIFO or a device is refused: use `-o - > FILE`
    #[arg(short, long, value_name = "FILE", value_parser = crate::input::address::parser())]
    output: PathBuf,
    /// Write only the bytes of the elements, without a header, to a FILE of any name
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    values: Values,
    #[command(flatten)]
    writing: Writing,
}

const EXAMPLES: &str = "\
Examples:
  safetensors extract model.safetensors lm_head.weight -o head.npy
  safetensors extract model.safetensors embed.weight '[:1000, ::2]' -o part.npy
  safetensors extract model.safetensors lm_head.weight -o head.safetensors
  safetensors extract checkpoint/ scale --raw -o - | xxd | head
  python -c 'import numpy; print(numpy.load(\"head.npy\"))'

Exit codes: 0 written, 1 reading or writing failed, 2 wrong usage.";

/// The remedy for a dtype that NumPy does not have.
const INSTEAD: &str =
    "name a .safetensors file, use --raw, or make it F32 with `safetensors convert --dtype f32`";

impl Run for Args {
    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        if self.output == Path::new("-") {
            stdout::refuse_terminal()?;
        }
        let is_safetensors = !self.raw && is_safetensors(&self.output)?;
        let checkpoint = match self.raw {
            true => self.input.open()?,
            false => self.values.of_tensor(&self.input, &self.name)?,
        };
        let destination = self.writing.output(&self.output, &checkpoint)?;
        let tensor = find::tensor(&checkpoint, &self.name)?;
        if !self.raw && !self.values.are_stored() {
            refuse_unknown_codes(&tensor)?;
        }
        let selection = Selection::new(self.slice.as_ref(), &tensor)?;
        let part = tensor.slice(selection.indices())?;
        let header = if self.raw || is_safetensors {
            Vec::new()
        } else {
            numpy::header_of(tensor.name(), &part, INSTEAD)
                .with_context(|| text::path(&self.output))?
        };
        let bytes = part.byte_len() + header.len() as u64;
        let progress = Progress::bytes(part.byte_len());
        let write = |mut out: &mut dyn Write| {
            if is_safetensors {
                let options = SaveOptions::new().progress(progress.counted());
                return Ok(write_to(out, [(tensor.name(), &part)], &options)?);
            }
            out.write_all(&header)?;
            numpy::write_data(&mut out, tensor.name(), &part, &progress)
        };
        let (dtype, shape) = (part.dtype(), text::shape(part.shape()));
        let Some(destination) = destination else {
            write(out)?;
            return Ok(ExitCode::SUCCESS);
        };
        let content = format!("{dtype} {shape}, {}", text::size(part.byte_len()));
        if destination.is_dry_run(out, content)? {
            return Ok(ExitCode::SUCCESS);
        }
        destination.write(bytes, |out| write(out))?;
        drop(progress);
        let bytes = std::fs::metadata(&self.output).map_or(bytes, |file| file.len());
        destination.tell(out, format_args!("{dtype} {shape}, {}", text::size(bytes)))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns `false` for NumPy's files. Refuses other names.
fn is_safetensors(path: &Path) -> anyhow::Result<bool> {
    match Kind::from_path(path) {
        Kind::Safetensors => Ok(true),
        Kind::Other(Format::Npy) => Ok(false),
        Kind::Checkpoint if unknown_ending(path).is_none() => Ok(false),
        _ => Err(wrong_usage(format!(
            "{}: FILE ends in .npy or .safetensors; --raw writes the bytes alone to a file of any \
             name",
            text::path(path)
        ))),
    }
}

/// Refuses codes of a weight that cannot be read. Other codes have separate names.
fn refuse_unknown_codes<S: ReadAt>(tensor: &LazyTensor<'_, S>) -> anyhow::Result<()> {
    let Err(error) = tensor.refuse_codes() else { return Ok(()) };
    let ErrorKind::Quantization { problem: QuantizationProblem::Codes { .. } } = error.kind()
    else {
        anyhow::bail!("{error}; --raw writes the bytes as they are stored")
    };
    Ok(())
}
