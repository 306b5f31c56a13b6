//! `safetensors map`: a picture of where the parameters are.
//!
//! | file | content |
//! |---|---|
//! | `treemap` | the layout of areas as rectangles |
//! | `groups` | the modules that get a colour of their own |
//! | `palette`, `letters` | the colours; the letters that a format can show, and labels that fit |
//! | `picture`, `legend` | the elements of the picture, with places and colours; what these mean |
//! | `svg`, `png` | the picture as a file |
//! | `page` | the page for a browser |

mod groups;
mod legend;
mod letters;
mod page;
mod palette;
mod picture;
mod png;
mod svg;
mod treemap;
mod xml;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use groups::Groups;
use letters::Letters;
use picture::{Model, Picture};

use super::Run;
use crate::input::address;
use crate::input::other::Kind;
use crate::input::select::Select;
use crate::input::{self, Checkpoint, Input, Tensor};
use crate::model::order::Sort;
use crate::model::totals::Totals;
use crate::model::tree::Tree;
use crate::output::existing::Writing;
use crate::terminal::report::wrong_usage;
use crate::terminal::stdout::Out;
use crate::terminal::{stdout, text};

/// Draw a picture of where the parameters are, or a page to explore them in a browser.
///
/// The area of a module or tensor is proportional to its bytes. Layers that differ only in their
/// number share an area: 0…31 stands for 32 layers. Colours show dtypes, or modules if nearly all
/// bytes have one dtype. Only headers are read.
///
/// The page is a single file that needs no network. It has the picture, the tensors as a tree, a
/// search, the dtypes, the metadata and the files.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    select: Select,
    /// The file to write, which ends in .svg, .png or .html, or - for standard output
    ///
    /// A browser shows .svg at any size. A .png has 1920 by 1290 pixels, and does not go to a
    /// terminal
    #[arg(short, long, value_name = "FILE", value_parser = address::parser())]
    output: PathBuf,
    /// The format, whatever the name of FILE; svg by default if FILE is -
    #[arg(long, value_name = "FORMAT", value_enum)]
    format: Option<Format>,
    /// What colours stand for; module by default if nearly all bytes have one dtype
    ///
    /// Nearly all are 99 %
    #[arg(long, alias = "color", value_name = "WHAT", value_enum)]
    colour: Option<Colour>,
    /// The title above the picture; the name of PATH by default
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    #[command(flatten)]
    writing: Writing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Svg,
    Png,
    Html,
}

/// What colours stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Colour {
    Module,
    Dtype,
}

const EXAMPLES: &str = "\
Examples:
  safetensors map model.safetensors -o map.svg
  safetensors map model.safetensors -o report.html
  safetensors map checkpoint/ -o map.png --title 'Llama 3.1 8B'
  safetensors map model.safetensors -o layer.svg --filter '*.layers.0.*'
  safetensors map model.safetensors -o - --format png | display

Exit codes: 0 drawn, 1 PATH is malformed or cannot be read or drawn, 2 wrong usage.";

impl Run for Args {
    fn writes_files(&self) -> bool {
        true
    }

    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        let format = self.format()?;
        if self.is_stdout() && format == Format::Png {
            stdout::refuse_terminal()?;
        }
        let checkpoint = self.input.open()?;
        let mut tensors = self.select.matcher()?.tensors(&checkpoint)?;
        let dtypes = Totals::by_kind(tensors.iter().copied());
        if dtypes.values().all(|totals| totals.bytes == 0) {
            anyhow::bail!(
                "{}: there is nothing to draw: no tensor has any bytes",
                self.input.name()
            );
        }
        let destination = self.writing.output(&self.output, &checkpoint)?;
        let title = self.title.clone().unwrap_or_else(|| name(self.input.path()));
        let trees = Tree::folded(&mut tensors, Sort::Name);
        let groups = Groups::of(&trees);
        let is_by_module = self.colour.map_or(has_one_dtype(&dtypes), |by| by == Colour::Module);
        let mut bytes = Vec::new();
        if format == Format::Html {
            let page = page::Page {
                title: &title,
                checkpoint: &checkpoint,
                dtypes: &dtypes,
                groups: groups.as_ref(),
                is_by_module,
            };
            page.write(&mut tensors, &mut bytes)?;
        } else {
            let groups = groups.as_ref().filter(|_| is_by_module);
            let model = Model { title: &title, trees: &trees, dtypes: &dtypes, groups };
            match format {
                Format::Png => Picture::new(&model, Letters::Bitmap).write_png(&mut bytes)?,
                _ => Picture::new(&model, Letters::All).write_svg(&mut bytes)?,
            }
        }
        let Some(destination) = destination else {
            out.write_all(&bytes)?;
            return Ok(ExitCode::SUCCESS);
        };
        let size = text::size(bytes.len() as u64);
        let tensors = text::counted(tensors.len() as u64, "tensor");
        let content = format!("{} of {tensors}, {size}", format.name());
        if destination.is_dry_run(out, &content)? {
            return Ok(ExitCode::SUCCESS);
        }
        destination.write(bytes.len() as u64, |out| Ok(out.write_all(&bytes)?))?;
        destination.tell(out, content)?;
        Ok(ExitCode::SUCCESS)
    }
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
            (None, Some("html" | "htm")) => Ok(Format::Html),
            (None, _) if self.is_stdout() => Ok(Format::Svg),
            (None, _) => {
                let output = text::path(&self.output);
                Err(wrong_usage(format!(
                    "{output}: the name of a picture must end in .svg, .png or .html, unless \
                     --format is given"
                )))
            }
        }
    }
}

impl Format {
    /// What is written, in words.
    fn name(self) -> &'static str {
        match self {
            Self::Svg | Self::Png => "a picture",
            Self::Html => "a page",
        }
    }
}

/// Whether nearly all bytes have one dtype. Many models have a few integers beside their floats,
/// such as positions.
fn has_one_dtype(dtypes: &BTreeMap<Kind<'_>, Totals>) -> bool {
    let all: u128 = dtypes.values().map(|totals| totals.bytes).sum();
    let most = dtypes.values().map(|totals| totals.bytes).max().unwrap_or_default();
    (all - most) * 100 <= all
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
