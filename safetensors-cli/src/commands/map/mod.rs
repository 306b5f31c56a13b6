//! `safetensors map`: a page that shows where the parameters are.
//!
//! | file | content |
//! |---|---|
//! | `groups` | the modules that get their own colour |
//! | `palette` | the colours |
//! | `page` | the page for a browser, which draws itself |

mod groups;
mod page;
mod palette;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use groups::Groups;

use super::Run;
use crate::input::address;
use crate::input::other::Kind;
use crate::input::select::Select;
use crate::input::{self, Checkpoint, Input, Tensor};
use crate::model::order::Sort;
use crate::model::totals::{Parameters, Totals};
use crate::model::tree::Tree;
use crate::output::writing::{Destination, Writing};
use crate::terminal::report::wrong_usage;
use crate::terminal::stdout::Out;
use crate::terminal::text;

/// Draw where the parameters are, on a page for a browser.
///
/// The page is a single file that loads nothing. It has a map, the tensors as a tree, a search, the
/// dtypes, and the first 1,000 metadata entries and files.
///
/// Areas are proportional to bytes. Layers that differ only in their number share an area: 0…31 is
/// 32 layers. Beyond 1,500 areas, the smallest neighbours share one. Colours show dtypes, or
/// modules if nearly all bytes have one dtype. Reads only headers.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    select: Select,
    /// The page to write, which ends in .html, or - for standard output
    #[arg(short, long, value_name = "FILE", value_parser = address::parser())]
    output: PathBuf,
    /// The first meaning of colours; module by default if nearly all bytes have one dtype
    ///
    /// Nearly all are 99 %. A button of the page changes it
    #[arg(long, alias = "color", value_name = "WHAT", value_enum)]
    colour: Option<Colour>,
    /// The title of the page; the name of PATH by default
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    #[command(flatten)]
    writing: Writing,
}

/// What colours stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Colour {
    Module,
    Dtype,
}

const EXAMPLES: &str = "\
Examples:
  safetensors map model.safetensors -o map.html
  safetensors map checkpoint/ -o map.html --title 'Llama 3.1 8B'
  safetensors map model.safetensors -o layer.html --filter '*.layers.0.*'

Exit codes: 0 drawn, 1 PATH is malformed or cannot be read or drawn, 2 wrong usage.";

impl Run for Args {
    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        self.check_name()?;
        let checkpoint = self.input.open()?;
        let mut tensors = self.select.matcher().tensors(&checkpoint)?;
        let weights = input::quantized_weights(&checkpoint);
        let parameters = Parameters::new(&weights);
        let dtypes = parameters.by_kind(tensors.iter().copied());
        if dtypes.values().all(|totals| totals.bytes == 0) {
            anyhow::bail!(
                "{}: there is nothing to draw: no tensor has any bytes",
                self.input.name()
            );
        }
        let destination = self.writing.output(&self.output, &checkpoint)?;
        let trees = Tree::build(&mut tensors, &parameters, Sort::Name, false);
        let groups = Groups::find(&trees);
        let page = page::Page {
            title: &self.title.clone().unwrap_or_else(|| name(self.input.path())),
            checkpoint: &checkpoint,
            tensors: &tensors,
            trees: &trees,
            dtypes: &dtypes,
            parameters: &parameters,
            groups: groups.as_ref(),
            is_by_module: self.colour.map_or(has_one_dtype(&dtypes), |by| by == Colour::Module),
        };
        let mut bytes = Vec::new();
        page.write(&mut bytes)?;
        let size = text::size(bytes.len() as u64);
        let tensors = text::counted(tensors.len() as u64, "tensor");
        Destination::put(destination, out, &bytes, format!("a page of {tensors}, {size}"))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Args {
    fn check_name(&self) -> anyhow::Result<()> {
        let ending = self.output.extension().unwrap_or_default().to_ascii_lowercase();
        if self.output == Path::new("-") || ending == "html" || ending == "htm" {
            return Ok(());
        }
        Err(wrong_usage(format!(
            "{}: map writes a page for a browser; name a file that ends in .html, or - for \
             standard output",
            text::path(&self.output)
        )))
    }
}

// Many models have a few integers, such as positions, next to their floats.
fn has_one_dtype(dtypes: &BTreeMap<Kind<'_>, Totals>) -> bool {
    let all: u128 = dtypes.values().map(|totals| totals.bytes).sum();
    let most = dtypes.values().map(|totals| totals.bytes).max().unwrap_or_default();
    (all - most) * 100 <= all
}

/// Returns the last part, or the real name of a directory such as `.`.
fn name(path: &Path) -> String {
    if input::is_stdin(path) {
        return input::name(path);
    }
    if let Some(address) = address::in_path(path) {
        let shown = address::shown(address);
        return shown.trim_end_matches('/').rsplit('/').next().unwrap_or(&shown).to_owned();
    }
    let real =
        || path.canonicalize().ok()?.file_name().map(|name| name.to_string_lossy().into_owned());
    match path.file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => real().unwrap_or_else(|| text::lossy(path)),
    }
}
