//! `safetensors map`: a picture of where the parameters are.
//!
//! | file | content |
//! |---|---|
//! | `treemap` | the layout of areas as rectangles |
//! | `picture` | the elements of the picture, with places and colours |
//! | `svg`, `png` | the picture as a file |

mod picture;
mod png;
mod svg;
mod treemap;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use picture::Picture;

use crate::input::{self, Input};
use crate::order::Sort;
use crate::report::wrong_usage;
use crate::select::Select;
use crate::totals::Totals;
use crate::tree::Tree;
use crate::{address, file, text};

/// Draw a picture of where the parameters are: modules as areas, dtypes as colours.
///
/// The area of a module or tensor is proportional to its bytes. Only headers are read.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    select: Select,
    /// The file to write, which ends in .svg or .png, or - for standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The format, whatever the name of FILE; svg by default if FILE is -
    #[arg(long, value_name = "FORMAT", value_enum)]
    format: Option<Format>,
    /// The title above the picture; the name of PATH by default
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    #[command(flatten)]
    force: file::Force,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Svg,
    Png,
}

const EXAMPLES: &str = "\
Examples:
  safetensors map model.safetensors -o map.svg
  safetensors map checkpoint/ -o map.png --title 'Llama 3.1 8B'
  safetensors map model.safetensors -o layer.svg --filter '*.layers.0.*'
  safetensors map model.safetensors -o - --format png | display

Exit codes: 0 drawn, 1 PATH is malformed or cannot be read or drawn, 2 wrong usage.";

/// Draws one checkpoint.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let format = args.format()?;
    let checkpoint = args.input.open()?;
    let mut tensors = args.select.matcher()?.tensors(&checkpoint)?;
    let dtypes = Totals::by_dtype(tensors.iter().copied());
    if dtypes.values().all(|totals| totals.bytes == 0) {
        anyhow::bail!("{}: there is nothing to draw: no tensor has any bytes", args.input.name());
    }
    let title = args.title.clone().unwrap_or_else(|| name(args.input.path()));
    let picture = Picture::new(&title, &Tree::of(&mut tensors, Sort::Name), &dtypes);
    let mut bytes = Vec::new();
    match format {
        Format::Svg => picture.write_svg(&mut bytes)?,
        Format::Png => picture.write_png(&mut bytes)?,
    }
    if args.is_stdout() {
        out.write_all(&bytes)?;
        return Ok(ExitCode::SUCCESS);
    }
    file::replace(&args.output, args.force, |out| Ok(out.write_all(&bytes)?)).map_err(|error| {
        file::advise(error, &args.output, bytes.len() as u64, "-o FILE", file::STREAM)
    })?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn is_stdout(&self) -> bool {
        self.output == Path::new("-")
    }

    /// The format that `--format` or the name of the output tells.
    fn format(&self) -> anyhow::Result<Format> {
        let extension =
            self.output.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        match (self.format, extension.as_deref()) {
            (Some(format), _) => Ok(format),
            (None, Some("svg")) => Ok(Format::Svg),
            (None, Some("png")) => Ok(Format::Png),
            (None, _) if self.is_stdout() => Ok(Format::Svg),
            (None, _) => {
                let output = text::path(&self.output);
                Err(wrong_usage(format!(
                    "{output}: the name of a picture must end in .svg or .png, unless --format \
                     is given"
                )))
            }
        }
    }
}

/// The last part of a path. For a directory such as `.` it is the real name.
fn name(path: &Path) -> String {
    if input::is_stdin(path) {
        return input::name(path);
    }
    if let Some(address) = address::of(path) {
        let shown = address::shown(address);
        return shown.trim_end_matches('/').rsplit('/').next().unwrap_or(&shown).to_owned();
    }
    let real =
        || path.canonicalize().ok()?.file_name().map(|name| name.to_string_lossy().into_owned());
    match path.file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => real().unwrap_or_else(|| path.to_string_lossy().into_owned()),
    }
}
