//! `safetensors map`: a picture of where the parameters are.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::map::Picture;
use crate::order::Sort;
use crate::select::Select;
use crate::totals::Totals;
use crate::tree::Tree;
use crate::usage::WrongUsage;
use crate::{file, input, text};

/// Draw a picture of where the parameters are: modules as areas, dtypes as colours.
///
/// PATH is a file, an index (*.safetensors.index.json), a directory that holds an
/// index or exactly one file, or - for standard input. Only headers are read.
///
/// The area of a module or tensor is its part of all bytes.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub(crate) struct Args {
    /// A file, an index or a directory
    #[arg(value_name = "PATH")]
    path: PathBuf,
    #[command(flatten)]
    select: Select,
    /// The picture, replacing what is there; its name ends in .svg or .png, or it is - for standard
    /// output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// What the picture is, whatever the name of FILE; svg if that is -
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// What is written above the picture; the name of PATH if not given
    #[arg(long)]
    title: Option<String>,
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
    let checkpoint = input::open(&args.path)?;
    let tensors = args.select.matcher()?.tensors(&checkpoint)?;
    let dtypes = Totals::by_dtype(tensors.iter().copied());
    if dtypes.values().all(|totals| totals.bytes == 0) {
        anyhow::bail!("{}: there is nothing to draw: no tensor has any bytes", input::name(&args.path));
    }
    let title = args.title.clone().unwrap_or_else(|| name(&args.path));
    let picture = Picture::new(&title, &Tree::of(&tensors, Sort::Size), &dtypes);
    let mut bytes = Vec::new();
    match format {
        Format::Svg => picture.write_svg(&mut bytes)?,
        Format::Png => picture.write_png(&mut bytes)?,
    }
    if args.is_stdout() {
        out.write_all(&bytes)?;
        return Ok(ExitCode::SUCCESS);
    }
    file::replace(&args.output, |out| Ok(out.write_all(&bytes)?))
        .map_err(|error| file::advise(error, &args.output, bytes.len() as u64, "-o FILE", file::STREAM))?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn is_stdout(&self) -> bool {
        self.output == Path::new("-")
    }

    /// What is asked for, or what the name of the picture says.
    fn format(&self) -> anyhow::Result<Format> {
        let extension = self.output.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        match (self.format, extension.as_deref()) {
            (Some(format), _) => Ok(format),
            (None, Some("svg")) => Ok(Format::Svg),
            (None, Some("png")) => Ok(Format::Png),
            (None, _) if self.is_stdout() => Ok(Format::Svg),
            (None, _) => {
                let output = text::path(&self.output);
                Err(WrongUsage::error(format!(
                    "{output}: the name of a picture should end in .svg or .png, or --format say which it is"
                )))
            }
        }
    }
}

/// The last part of a path, and of a directory such as `.` its real name.
fn name(path: &Path) -> String {
    if input::is_stdin(path) {
        return input::name(path);
    }
    let real = || path.canonicalize().ok()?.file_name().map(|name| name.to_string_lossy().into_owned());
    match path.file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => real().unwrap_or_else(|| path.to_string_lossy().into_owned()),
    }
}
