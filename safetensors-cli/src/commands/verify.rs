//! `safetensors verify`: whether files and checkpoints are sound.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use safetensors_core::Checkpoint;
use safetensors_core::digest::{self, VerifyOptions};
use serde::Serialize;

use crate::colour::{Colour, paint};
use crate::discover::{self, Found};
use crate::facts::Facts;
use crate::input;
use crate::output::{report, warn};
use crate::totals::Totals;
use crate::{json, parallel, text};

/// Check files and checkpoints against every rule of the format.
///
/// Each PATH is a file, an index (*.safetensors.index.json), - for standard input,
/// or a directory: then everything in it and below it is checked.
///
/// The header of each file is checked: its length, its JSON, each tensor's dtype,
/// shape and place, and that the file is as long as they ask for. An index must
/// send every tensor to a file that has it. The tensors' values are not read, but for
/// --digests: the format allows any.
///
/// For each sound file or checkpoint one line is printed on standard output, for
/// each other one on standard error. What is sound but odd is a warning: tensors or
/// files that an index leaves out, or a wrong total_size. --strict makes failures of warnings, and of every
/// departure from the format's text that readers are lenient about.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub(crate) struct Args {
    /// Files, indexes or directories
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Fail on warnings and on departures from the text of the format: white space around the header
    /// other than spaces after it, data or tensors that are not aligned
    #[arg(long)]
    strict: bool,
    /// Read all data, and compare it with the digests that the files record
    #[arg(long)]
    digests: bool,
    /// The outcome as one JSON document
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  safetensors verify model.safetensors
  safetensors verify --strict ~/models
  safetensors verify --json checkpoints/ | jq '.results[] | select(.sound | not)'
  safetensors verify model.safetensors.index.json && echo sound

Exit codes: 0 all is sound, 1 something is not, 2 wrong usage.";

/// What was found of one file or checkpoint.
#[derive(Default, Serialize)]
struct Outcome {
    path: String,
    sound: bool,
    error: Option<String>,
    warnings: Vec<String>,
    files: usize,
    digests: usize,
    #[serde(flatten)]
    totals: Totals,
}

/// What is checked, and whether it is sound.
#[derive(Serialize)]
struct Document<'a> {
    checked: usize,
    sound: usize,
    warnings: usize,
    results: &'a [Outcome],
}

/// Checks each path; the outcome is a failure if one of them is not sound.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let mut outcomes = Vec::new();
    let mut indexed = BTreeSet::new();
    let mut targets = Vec::new();
    for path in &args.paths {
        match expand(path, &mut indexed) {
            Ok(found) => targets.extend(found),
            Err(error) => targets.push(Target { path: path.clone(), failed: Some(format!("{error:#}")) }),
        }
    }
    let check = |target: &Target| target.check(args);
    parallel::in_order(&targets, check, |_, outcome| -> anyhow::Result<()> {
        if !args.json {
            outcome.show(out)?;
        }
        outcomes.push(outcome);
        Ok(())
    })?;
    let sound = outcomes.iter().filter(|outcome| outcome.sound).count();
    let warnings = outcomes.iter().map(|outcome| outcome.warnings.len()).sum();
    let document = Document { checked: outcomes.len(), sound, warnings, results: &outcomes };
    if args.json {
        json::write(&document, out)?;
    } else if document.checked > 1 {
        document.summarise(out)?;
    }
    Ok(if sound == outcomes.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One file or checkpoint to be checked, or why there is none.
struct Target {
    path: PathBuf,
    failed: Option<String>,
}

/// What a path leads to. The shards of indexes are checked with their index, and not once more by themselves.
fn expand(path: &Path, indexed: &mut BTreeSet<PathBuf>) -> anyhow::Result<Vec<Target>> {
    let target = |path: PathBuf| Target { path, failed: None };
    if !path.is_dir() {
        return Ok(vec![target(path.to_owned())]);
    }
    let found = Found::below(path).with_context(|| text::path(path))?;
    if found == Found::default() {
        anyhow::bail!("{}: no *.safetensors file or index in this directory or below it", text::path(path));
    }
    for index in &found.indexes {
        // An index that cannot be opened is reported when it is checked; its shards are then checked by themselves.
        if let Ok(checkpoint) = Checkpoint::open(index) {
            indexed.extend(checkpoint.shards().iter().map(|shard| shard.path().to_owned()));
        }
    }
    let files = found.files.into_iter().filter(|file| !indexed.contains(file));
    let mut paths: Vec<_> = found.indexes.iter().cloned().chain(files).collect();
    paths.sort_unstable();
    Ok(paths.into_iter().map(target).collect())
}

impl Target {
    fn check(&self, args: &Args) -> Outcome {
        let mut outcome = Outcome { path: self.path.to_string_lossy().into_owned(), ..Outcome::default() };
        if self.failed.is_some() {
            return Outcome { error: self.failed.clone(), ..outcome };
        }
        if let Err(error) = check(&self.path, args, &mut outcome) {
            outcome.error = Some(error.to_string());
        }
        if args.strict && outcome.error.is_none() && !outcome.warnings.is_empty() {
            let warnings = std::mem::take(&mut outcome.warnings);
            outcome.error = Some(warnings.join("; "));
        }
        outcome.sound = outcome.error.is_none();
        outcome
    }
}

/// Opening a checkpoint checks every rule; what is odd beyond them are warnings.
fn check(path: &Path, args: &Args, outcome: &mut Outcome) -> anyhow::Result<()> {
    let checkpoint = input::open(path)?;
    outcome.totals = Totals::of(checkpoint.tensors())?;
    outcome.files = checkpoint.shards().len();
    let warnings = &mut outcome.warnings;
    if let Some(index) = checkpoint.index() {
        check_index(&checkpoint, index, warnings)?;
    }
    if args.digests {
        // Files are checked in parallel already.
        for file in digest::verify(&checkpoint, &VerifyOptions::new().threads(1))? {
            outcome.digests += file.checked.len() + usize::from(file.sha256.is_some());
            if file.checked.is_empty() && file.sha256.is_none() {
                let path = file.file.map(text::path).unwrap_or_default();
                warnings.push(format!("{path}: records no digests; `safetensors digest --record` writes them"));
            }
        }
    }
    if args.strict {
        for shard in checkpoint.shards() {
            let facts = Facts::of(shard.archive()).map_err(|error| error.in_file(shard.path().display()))?;
            let file = text::path(shard.path());
            warnings.extend(facts.departures().into_iter().map(|departure| format!("{file}: {departure}")));
        }
    }
    Ok(())
}

/// What an index leaves out.
fn check_index(checkpoint: &Checkpoint, index: &Path, warnings: &mut Vec<String>) -> anyhow::Result<()> {
    let mut unmapped = BTreeMap::<&Path, Vec<&str>>::new();
    for (shard, tensor) in checkpoint.unmapped() {
        unmapped.entry(shard.path()).or_default().push(tensor.name());
    }
    for (file, names) in unmapped {
        let Some((first, others)) = names.split_first() else { continue };
        let others = match others.len() {
            0 => String::new(),
            others => format!(" and {}", text::counted(others as u64, "other tensor")),
        };
        warnings.push(format!("{}: the index leaves out tensor {}{others}", text::path(file), text::name(first)));
    }
    let found = Totals::of(checkpoint.tensors())?.bytes;
    if let Some(size) = checkpoint.index_total_size().filter(|&size| u128::from(size) != found) {
        warnings.push(format!("{}: total_size is {size}, but the tensors have {found} bytes", text::path(index)));
    }
    let shards = checkpoint.shards().iter().map(|shard| shard.path()).collect();
    for stray in discover::strays(index, &shards).with_context(|| text::path(index))? {
        warnings.push(format!("{}: lies beside the index, which does not name it", text::path(&stray)));
    }
    Ok(())
}

impl Outcome {
    /// One line on the stream that it belongs to, and the warnings.
    fn show(&self, out: &mut impl Write) -> anyhow::Result<()> {
        // Standard error is not buffered: its lines must not come before those of earlier paths.
        match &self.error {
            Some(error) => report(error),
            None => {
                let ok = paint("ok", Colour::Green, &std::io::stdout());
                writeln!(out, "{}: {ok}, {}", text::printable(&self.path), self.summary())?;
                out.flush()?;
            }
        }
        self.warnings.iter().for_each(warn);
        Ok(())
    }

    fn summary(&self) -> String {
        let Totals { tensors, parameters, bytes } = self.totals;
        let shards = match self.files {
            1 => String::new(),
            several => format!("{}, ", text::counted(several as u64, "shard")),
        };
        let (tensors, parameters) = (text::counted(tensors, "tensor"), text::counted(parameters, "parameter"));
        let digests = match self.digests {
            0 => String::new(),
            some => format!(", {} right", text::counted(some as u64, "digest")),
        };
        format!("{shards}{tensors}, {parameters}, {}{digests}", text::size(bytes))
    }
}

impl Document<'_> {
    fn summarise(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let mut totals = Totals::default();
        self.results.iter().for_each(|outcome| totals += outcome.totals);
        let warnings = match self.warnings {
            0 => String::new(),
            some => format!(", {}", text::counted(some as u64, "warning")),
        };
        let not_sound = match self.checked - self.sound {
            0 => String::new(),
            some => format!(", {} not", text::count(some as u64)),
        };
        let (checked, sound) = (text::count(self.checked as u64), text::count(self.sound as u64));
        Ok(writeln!(out, "\n{checked} checked: {sound} sound{not_sound}{warnings}; {}", text::size(totals.bytes))?)
    }
}
