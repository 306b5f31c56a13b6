//! `safetensors delta`: the changes from one version of a checkpoint to the next.
//!
//! | file | content |
//! |---|---|
//! | `apply` | applies deltas to a checkpoint, into a directory |
//! | `arguments` | the options of a new delta |
//! | `follow` | keeps a checkpoint at the newest version |
//! | `summary` | shows a delta, for people and for programs |
//!
//! `safetensors_delta` does the work.

mod apply;
mod arguments;
mod follow;
mod summary;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use apply::Apply;
use arguments::Making;
use safetensors_delta::{Chain, Options};
pub(crate) use summary::{Document, summary, write};

use super::Run;
use crate::input::delta::Delta;
use crate::input::{self, Checkpoint, Source, address, delta, other};
use crate::output::existing::Existing;
use crate::output::writing::{Content, Destination, Writing};
use crate::terminal::progress::Progress;
use crate::terminal::report::{report, warn, wrong_usage};
use crate::terminal::stdout::Out;
use crate::terminal::{json, text};

/// Make deltas between versions of a checkpoint, look at them, and apply them.
///
/// A delta is a directory with the changes from one version of a checkpoint, its base, to another:
/// an index, and a compressed difference for each changed tensor. slime, miles and ModelExpress
/// share its format, but refuse a delta that adds, removes, reshapes or casts tensors, or changes
/// metadata. Of the other commands, only `inspect` and `verify` take one.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
More commands:
  squash  Make one delta of several, from the base of the first to the version of the last
  follow  Keep OUT at the newest version that a trainer publishes in ROOT

Examples:
  safetensors delta make step-1/ step-2/ weight_v000002
  safetensors delta inspect weight_v000002
  safetensors delta apply step-1/ weight_v000002 applied/
  safetensors delta verify weight_v00000[1-9] --base step-0/
  safetensors delta squash step-0/ weight_v00000[1-9] all/
  safetensors delta follow s3://bucket/run served/
  safetensors delta help make

Exit codes: 0 done, 1 a delta does not fit its base, or is malformed, unreadable or unwritable,
2 wrong usage, 124 `follow` found nothing new in time.";

#[derive(Debug, clap::Subcommand)]
enum Command {
    Make(Make),
    Apply(Apply),
    Verify(Verify),
    Inspect(Inspect),
    #[command(hide = true)]
    Squash(Squash),
    #[command(hide = true)]
    Follow(follow::Follow),
}

/// Write the changes from OLD to NEW as a delta
///
/// How they are split into files makes no difference. The delta has digests of all of OLD and all
/// of NEW. Other files, such as config.json, are not in it; if they differ, a warning names them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  safetensors delta make step-1/ step-2/ weight_v000002
  safetensors delta make old new delta --base-version a --to-version b
  safetensors delta make step-1/ step-2/ weight_v000002 --for slime

Exit codes: 0 made, 1 the program of --for cannot apply it, or a file cannot be read or written,
2 wrong usage.")]
struct Make {
    /// The older checkpoint: a PATH as for `inspect`
    #[arg(value_name = "OLD", value_parser = address::parser())]
    old: PathBuf,
    /// The newer one
    #[arg(value_name = "NEW", value_parser = address::parser())]
    new: PathBuf,
    /// The directory to write
    #[arg(value_name = "DELTA", value_parser = address::parser())]
    delta: PathBuf,
    /// The version name of NEW; by default the number in the name of DELTA
    ///
    /// Such as 000002 for weight_v000002; without a number, 000001
    #[arg(long, value_name = "ID")]
    to_version: Option<String>,
    /// The version name of OLD; by default the number before the new one
    #[arg(long, value_name = "ID")]
    base_version: Option<String>,
    #[command(flatten)]
    making: Making,
}

/// Check deltas: their structure, every compressed difference and, with --base, every checksum
///
/// Several deltas must follow one another. Each damaged one is named. With --base, they are applied
/// in turn, and nothing is written: each tensor is checked after each delta, and the digests of the
/// whole, which deltas of other programs lack.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  safetensors delta verify weight_v000002
  safetensors delta verify weight_v00000[1-9] --base step-0/

Exit codes: 0 ok, 1 a delta is damaged or does not fit the base, 2 wrong usage.")]
struct Verify {
    /// Deltas: directories, indexes or addresses
    #[arg(value_name = "DELTA", required = true, value_parser = address::parser())]
    deltas: Vec<PathBuf>,
    /// The checkpoint that the first of them changes
    #[arg(long, value_name = "BASE", value_parser = address::parser())]
    base: Option<PathBuf>,
}

/// Show versions, encoding, digests and tensors of deltas
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  safetensors delta inspect weight_v000002
  safetensors delta inspect weight_v0* --json | jq '.deltas[].bytes'

Exit codes: 0 shown, 1 a delta is malformed or cannot be read, 2 wrong usage.")]
struct Inspect {
    /// Deltas: directories, indexes or addresses
    #[arg(value_name = "DELTA", required = true, value_parser = address::parser())]
    deltas: Vec<PathBuf>,
    /// Print one JSON document
    ///
    /// Its key is deltas: a list in the order of the arguments
    #[arg(long)]
    json: bool,
}

/// Make one delta of several, from the first one's base to the last one's version
///
/// It equals the delta that `make` would write from BASE to the result, which is not written. Each
/// tensor is checked after each delta.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "\
Examples:
  safetensors delta squash step-0/ weight_v00000[1-9] all/

Exit codes: 0 made, 1 a delta does not fit BASE, or a file is malformed or cannot be read or
written, 2 wrong usage.",
    override_usage = "safetensors delta squash [OPTIONS] <BASE> <DELTA>... <OUT>"
)]
struct Squash {
    /// BASE, the deltas, and OUT last
    #[arg(value_name = "PATH", required = true, num_args = 3.., value_parser = address::parser())]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    making: Making,
}

impl Run for Args {
    fn is_paged(&self) -> bool {
        matches!(self.command, Command::Inspect(_))
    }

    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        match &self.command {
            Command::Make(make) => make.run(out),
            Command::Apply(apply) => apply.run(out),
            Command::Verify(verify) => return verify.run(out),
            Command::Inspect(inspect) => inspect.run(out),
            Command::Squash(squash) => squash.run(out),
            Command::Follow(follow) => return follow.run(out),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Make {
    fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        refuse_address(&self.delta, "DELTA")?;
        if input::is_stdin(&self.old) && input::is_stdin(&self.new) {
            return Err(wrong_usage("OLD and NEW cannot both be standard input"));
        }
        let (to, base) = (self.to_version.as_deref(), self.base_version.as_deref());
        let options = self.making.options().with_versions(&self.delta, base, to)?;
        let (old, new) = (input::open(&self.old)?, input::open(&self.new)?);
        warn_of_others(&old, &new, &self.new)?;
        let options = match self.making.is_for_any() {
            true => options.with_metadata(new.metadata()),
            false if old.metadata() == new.metadata() => options,
            false => {
                warn(format!(
                    "{}: the metadata differs from OLD's; a delta made with --for omits it",
                    input::name(&self.new)
                ));
                options
            }
        };
        let placed = self.making.place(&self.delta, options, out)?;
        let Some((destination, options)) = placed else { return Ok(()) };
        let options = counted(options, bytes_of(&old));
        let tensors = new.tensors().map(|tensor| (tensor.name(), tensor));
        safetensors_delta::make(&old, tensors, &self.delta, &options).map_err(advise)?;
        report_delta(&destination, &self.delta, out)
    }
}

impl Squash {
    fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let (base, chain, to) = opened(&self.paths)?;
        let options = self.making.options();
        let placed = self.making.place(to, options, out)?;
        let Some((destination, options)) = placed else { return Ok(()) };
        let options = counted(options, bytes_of(&base));
        chain.squash(&base, to, &options).map_err(advise)?;
        warn_of_unchecked(&chain);
        report_delta(&destination, to, out)
    }
}

impl Verify {
    fn run(&self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let mut deltas = Vec::new();
        for path in &self.deltas {
            match self.check(path) {
                Ok(delta) => {
                    if self.base.is_none() {
                        writeln!(out, "{}: ok, {}", input::name(path), summary(&delta))?;
                    }
                    deltas.push(delta);
                }
                Err(error) => report(format!("{error:#}")),
            }
        }
        if deltas.len() < self.deltas.len() {
            return Ok(ExitCode::FAILURE);
        }
        let chain = Chain::new(deltas)?;
        let Some(base) = &self.base else { return Ok(ExitCode::SUCCESS) };
        let checkpoint = input::open(base)?;
        let options = counted(Options::new(), bytes_of(&checkpoint));
        chain.verify(&checkpoint, &options)?;
        warn_of_unchecked(&chain);
        let deltas = text::counted(chain.deltas().len() as u64, "delta");
        let [from, to] = [chain.base_version(), chain.version()].map(text::printable);
        writeln!(out, "{}: ok, {deltas} from {from} to {to}", input::name(base))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Decompresses a delta, unless a base does that.
    fn check(&self, path: &Path) -> anyhow::Result<Delta> {
        let delta = delta::open(path)?;
        if self.base.is_none() {
            delta.verify()?;
        }
        Ok(delta)
    }
}

impl Inspect {
    fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let deltas = open_all(&self.deltas)?;
        if self.json {
            let deltas = self.deltas.iter().zip(&deltas);
            let deltas: Vec<_> = deltas.map(|(path, delta)| Document::new(path, delta)).collect();
            return json::write(&std::collections::BTreeMap::from([("deltas", deltas)]), out);
        }
        for (number, (path, delta)) in self.deltas.iter().zip(&deltas).enumerate() {
            if number > 0 {
                writeln!(out)?;
            }
            if deltas.len() > 1 {
                writeln!(out, "{}", input::name(path))?;
            }
            write(delta, out)?;
        }
        Ok(())
    }
}

fn open_all(paths: &[PathBuf]) -> anyhow::Result<Vec<Delta>> {
    paths.iter().map(|path| delta::open(path)).collect()
}

fn opened(paths: &[PathBuf]) -> anyhow::Result<(Checkpoint, Chain<Source>, &Path)> {
    let [base, deltas @ .., to] = paths else {
        return Err(wrong_usage("expected BASE, at least one DELTA, and OUT"));
    };
    refuse_address(to, "OUT")?;
    let checkpoint = input::open(base)?;
    if other::is_in(checkpoint.files()) || input::is_in_parts(&checkpoint) {
        anyhow::bail!(
            "{}: deltas are applied to safetensors files of whole tensors; `safetensors convert` \
             makes such files",
            input::name(base)
        );
    }
    Ok((checkpoint, Chain::new(open_all(deltas)?)?, to))
}

fn refuse_address(path: &Path, what: &str) -> anyhow::Result<()> {
    if address::in_path(path).is_none() && !input::is_stdin(path) {
        return Ok(());
    }
    Err(wrong_usage(format!("{}: {what} must be on the disk", input::shown(path))))
}

fn bytes_of(checkpoint: &Checkpoint) -> u64 {
    checkpoint.tensors().map(|tensor| tensor.byte_len()).sum()
}

/// A bar counts the bytes of the base, until the options are dropped.
fn counted(options: Options, bytes: u64) -> Options {
    let progress = Arc::new(Progress::bytes(bytes));
    options.progress(move |bytes| progress.add(bytes))
}

fn advise(error: safetensors_core::Error) -> anyhow::Error {
    match error.kind() {
        safetensors_core::ErrorKind::Io(system)
            if system.kind() == std::io::ErrorKind::PermissionDenied
                && error.file().is_some_and(|file| Path::new(file).is_dir()) =>
        {
            anyhow::anyhow!(
                "{error}; files are replaced in the directory, so it has to be writable"
            )
        }
        safetensors_core::ErrorKind::FileExists => {
            let place = Path::new(error.file().unwrap_or_default());
            let path = text::path(place);
            match place.is_dir() {
                true => anyhow::anyhow!("{path}: the directory has files; --force replaces them"),
                false => anyhow::anyhow!("{path} exists; --force replaces it"),
            }
        }
        _ => error.into(),
    }
}

fn permit(writing: Writing, old: Existing, content: &Content) -> anyhow::Result<Destination> {
    let permitted = writing.permit(old, content);
    permitted.map_err(|error| error.downcast().map_or_else(|error| error, advise))
}

fn report_delta(at: &Destination, path: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    at.tell(out, summary(&delta::open(path)?))
}

fn warn_of_unchecked(chain: &Chain<Source>) {
    if let [delta, ..] = chain.deltas()
        && !chain.names_digest()
    {
        warn(format!(
            "{}: has no digest of its base, so unchanged tensors are not checked",
            text::path(delta.path())
        ));
    }
}

fn warn_of_left_out(to: &Path, left_out: &[PathBuf]) {
    if !left_out.is_empty() {
        let names: Vec<_> = left_out.iter().map(|path| text::path(path)).collect();
        warn(format!(
            "not copied to {}: {}; such files are there already, hold or sign other tensors, are \
             hidden, over 256 MiB or links out of their directory, or BASE has no config.json or \
             the like",
            text::path(to),
            names.join(", ")
        ));
    }
}

fn warn_of_others(old: &Checkpoint, new: &Checkpoint, path: &Path) -> anyhow::Result<()> {
    /// Files that readers of models ask for, and the most bytes of each.
    const BESIDE: [&str; 5] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
    ];
    const MOST: u64 = 64 << 20;
    for name in BESIDE {
        let [before, now] = [old, new].map(|checkpoint| checkpoint.read_beside(name, MOST));
        if let (Some((_, before)), Some((_, now))) = (before?, now?)
            && before != now
        {
            let path = input::name(path);
            warn(format!("{path}: {name} differs from OLD's; deltas do not include it"));
        }
    }
    Ok(())
}
