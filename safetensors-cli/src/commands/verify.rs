//! `safetensors verify`: checks whether files and checkpoints are sound.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use safetensors_core::audit::Severity;
use safetensors_core::digest::{self, DigestOptions};
use safetensors_core::framework::{Quoted, default_threads, in_order};
use serde::Serialize;

use super::{Run, sign};
use crate::commands;
use crate::input::kind::{Expected, Judge};
use crate::input::other;
use crate::input::targets::{self, Target};
use crate::input::{Checkpoint, Opening, delta};
use crate::model::epochs::{self, Epoch};
use crate::model::totals::Totals;
use crate::terminal::colour::{Colour, paint};
use crate::terminal::progress::Progress;
use crate::terminal::report::{report, warn};
use crate::terminal::stdout::Out;
use crate::terminal::{json, text};

/// Check files and checkpoints against every rule of the format.
///
/// The header of each file is checked: its length, its JSON, each tensor's dtype,
/// shape and offsets, and whether the file has the length that they ask for. An index
/// must map every tensor to a file that has it. Values are read only with --digests,
/// because the format allows any value.
///
/// Each sound file or checkpoint gets one line on standard output, each other one a
/// line on standard error. A file of PyTorch, GGUF or NumPy is an error, unless its name or
/// --format says that it is one. Then its structure and the places of tensors are checked,
/// and with --digests the checksums of an archive. A file of two formats is an error. Of a
/// delta, the index and the files are checked, and with --digests every compressed
/// difference; `safetensors delta verify --base` compares its checksums.
/// Of the epochs of a training of burn, the manifests are compared with the files: one that
/// is not complete is an error, because training does not resume from it.
/// Warnings are about sound files: tensors or files that an index leaves out, a wrong
/// total_size, a safetensors file under the name of another format, such as model.bin, or
/// objects of PyTorch that hold tensors and cannot be read.
/// With --strict, warnings are failures, and so is every departure from the text of the
/// format that readers tolerate.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files, indexes, directories with all below them, addresses (feature remote), or - for
    /// standard input
    ///
    /// An index, such as model.safetensors.index.json, is checked with its shards. Each file is
    /// checked once, even if it is named twice, or named and also a shard
    #[arg(required = true, value_name = "PATH", value_parser = crate::input::address::parser())]
    paths: Vec<PathBuf>,
    /// Fail on warnings and on every departure from the text of the format
    ///
    /// Departures are white space before the header, padding other than spaces, and data or tensors
    /// that are not aligned
    #[arg(long)]
    strict: bool,
    /// Check each file as one of this format, whatever its name
    ///
    /// By default, a name such as model.pt says that a file is of another format, and every other
    /// name that it is a safetensors file
    #[arg(long, value_name = "FORMAT", value_parser = Expected::parser())]
    format: Option<Expected>,
    /// Read all data, and compare it with the digests that the files record
    ///
    /// Digests are recorded by `safetensors digest --record`, and in modelspec.hash_sha256. A
    /// warning names booleans that are neither 0 nor 1
    #[arg(long)]
    digests: bool,
    /// Print nothing but errors and warnings
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Print the outcome as one JSON document
    ///
    /// Its keys are checked, sound, warnings and results. A result has an error, a text or null,
    /// and a list of warnings. With --strict, that list has the departures, too. With --signature,
    /// the keys are verified, error, signer, and lists of the files that differ, among others
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    signature: sign::Options,
}

const EXAMPLES: &str = "\
Examples:
  safetensors verify model.safetensors
  safetensors verify --strict ~/models
  safetensors verify --json models/ | jq '.results[] | select(.sound|not).path'
  safetensors verify --quiet model.safetensors.index.json && echo sound
  safetensors verify model/ --signature model/model.sig --key key.pub

Exit codes: 0 all is sound, or as it was signed, 1 something is not, 2 wrong usage.";

/// The outcome of checking one file or checkpoint.
#[derive(Default, Serialize)]
struct Outcome {
    path: String,
    sound: bool,
    error: Option<String>,
    warnings: Vec<String>,
    files: usize,
    digests: usize,
    /// The format of a file that is none of safetensors; or that it is a delta.
    format: Option<String>,
    /// Describes a delta or an epoch.
    #[serde(skip)]
    summary: Option<String>,
    /// The checksums of an archive that were compared.
    checksums: u64,
    #[serde(flatten)]
    totals: Totals,
}

/// The document of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    checked: usize,
    sound: usize,
    warnings: usize,
    results: &'a [Outcome],
}

impl Run for Args {
    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        if let Some(file) = &self.signature.signature {
            let shown = match (self.json, self.quiet) {
                (true, _) => sign::Shown::Json,
                (false, true) => sign::Shown::Quiet,
                (false, false) => sign::Shown::Line,
            };
            return sign::verify(&self.signature, file, &self.paths, shown, out);
        }
        let mut outcomes = Vec::new();
        let targets = targets::of(&self.paths);
        let progress = if self.digests { Progress::bytes(0) } else { Progress::hidden() };
        // Files are already checked in parallel, so each check gets a share of the threads.
        let threads = (default_threads() / targets.len().max(1)).max(1);
        in_order(
            &targets,
            0,
            |target, _: &mut ()| check(target, self, threads, &progress),
            |_, outcome| -> anyhow::Result<()> {
                let Some(outcome) = outcome else { return Ok(()) };
                if !self.json {
                    progress.suspended(|| outcome.show(self, out))?;
                }
                outcomes.push(outcome);
                Ok(())
            },
        )?;
        drop(progress);
        for outcome in epochs(&self.paths, &targets, self.strict) {
            if !self.json {
                outcome.show(self, out)?;
            }
            outcomes.push(outcome);
        }
        let sound = outcomes.iter().filter(|outcome| outcome.sound).count();
        let warnings = outcomes.iter().map(|outcome| outcome.warnings.len()).sum();
        let document = Document { checked: outcomes.len(), sound, warnings, results: &outcomes };
        if self.json {
            json::write(&document, out)?;
        } else if document.checked > 1 && !self.quiet {
            document.summarise(out)?;
        }
        Ok(if sound == outcomes.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The epochs of trainings of burn that are in these directories, compared with their manifests.
fn epochs(paths: &[PathBuf], targets: &[Target], strict: bool) -> Vec<Outcome> {
    let mut epochs = BTreeMap::new();
    for directory in paths.iter().filter(|path| path.is_dir()) {
        let files = targets.iter().filter_map(|target| target.path().ok());
        let found = epochs::below(directory, files).into_iter();
        epochs.extend(found.map(|epoch| (epoch.path.clone(), epoch)));
    }
    epochs.into_values().map(|epoch| Outcome::of_epoch(epoch, strict)).collect()
}

/// Checks one file or checkpoint. Opening it checks every rule of the format. The audit adds the
/// warnings. `None` if the file was found, and has been removed since.
fn check(target: &Target, args: &Args, threads: usize, progress: &Progress) -> Option<Outcome> {
    let mut outcome = Outcome::new(target);
    let mut look = || -> anyhow::Result<()> {
        let judge = args.format.map_or(Judge::ByName, Judge::As);
        let checkpoint = match target.open_with(Opening { judge, ..Opening::default() }) {
            Err(error) if delta::is_delta(&error) => {
                return check_delta(target, args, &mut outcome);
            }
            opened => opened?,
        };
        outcome.totals = Totals::of(checkpoint.tensors());
        outcome.files = checkpoint.files().len();
        if check_other(&checkpoint, args, &mut outcome)? {
            return Ok(());
        }
        // Digests and layouts are those of files, also where the tensors of these are parts.
        let parts = target.parts(&checkpoint)?;
        let opened = Target::stored(&checkpoint, &parts);
        outcome.files = opened.iter().map(|opened| opened.files().len()).sum();
        let mut findings = Vec::new();
        for opened in opened {
            for file in opened.files() {
                judge.judge(file.path(), None)?;
                outcome.warnings.extend(judge.misnamed(file.path()));
                other::refuse_polyglot(file.safetensors().source(), file.path())?;
            }
            findings.extend(opened.audit()?);
        }
        if args.digests {
            findings.extend(checkpoint.audit_values()?);
        }
        let told = findings
            .into_iter()
            .filter(|finding| args.strict || finding.severity() == Severity::Warning);
        outcome.warnings.extend(told.map(|finding| finding.to_string()));
        if args.digests {
            let options = DigestOptions::new().threads(threads).progress(progress.uncounted());
            opened.iter().try_for_each(|opened| compare(opened, &options, &mut outcome))?;
        }
        Ok(())
    };
    match look() {
        Err(error) if target.is_beside(&error) => outcome.warnings.push(format!(
            "{}: has parts of tensors that the checkpoint of this directory does not name",
            text::printable(&outcome.path)
        )),
        looked => outcome.error = looked.err().map(|error| format!("{error:#}")),
    }
    if outcome.error.is_some() && target.is_gone() {
        return None;
    }
    outcome.sound = outcome.error.is_none() && (outcome.warnings.is_empty() || !args.strict);
    Some(outcome)
}

/// Checks a delta, which opening does but for the compressed differences.
fn check_delta(target: &Target, args: &Args, outcome: &mut Outcome) -> anyhow::Result<()> {
    let delta = delta::open(target.path()?)?;
    outcome.format = Some("delta".into());
    outcome.totals = Totals::of(delta.tensors());
    let mut files: Vec<_> = delta.tensors().map(|tensor| tensor.file_index()).collect();
    files.dedup();
    outcome.files = files.len();
    outcome.summary = Some(commands::delta::summary(&delta));
    if args.digests {
        delta.verify()?;
    }
    Ok(())
}

/// Compares files with the digests that they record.
fn compare(
    opened: &Checkpoint,
    options: &DigestOptions,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    for file in digest::verify(opened, options)? {
        outcome.digests += file.checked.len() + usize::from(file.sha256.is_some());
        // A file without tensors, such as a scheduler's, has nothing to record.
        let has_tensors = !file.unrecorded.is_empty();
        if file.checked.is_empty() && file.sha256.is_none() && has_tensors {
            let path = text::path(file.file);
            outcome.warnings.push(format!(
                "{path}: records no digests; `safetensors digest --record` writes them"
            ));
        }
    }
    Ok(())
}

/// Checks a file of another format, which opening has done but for the checksums of archives.
/// `false` for a safetensors file.
fn check_other(
    checkpoint: &Checkpoint,
    args: &Args,
    outcome: &mut Outcome,
) -> anyhow::Result<bool> {
    for file in checkpoint.files() {
        let path = file.path();
        let Some(file) = other::of(file.safetensors().source()) else { return Ok(false) };
        outcome.format = Some(file.format().to_string());
        outcome.warnings.extend(file.findings().iter().map(ToString::to_string));
        let unreadable = file.all_stored().filter(|(_, stored)| other::is_unread(stored));
        outcome.warnings.extend(unreadable.map(|(name, stored)| {
            let (path, kind) = (text::path(path), &stored.type_name);
            format!("{path}: tensor {} is {kind}, which cannot be read", Quoted(name))
        }));
        if args.digests {
            outcome.checksums += file.verify_checksums().map_err(other::unopened)?;
        }
    }
    if args.digests {
        outcome.warnings.extend(checkpoint.audit_values()?.iter().map(ToString::to_string));
    }
    Ok(outcome.format.is_some())
}

impl Outcome {
    /// The outcome before the check.
    fn new(target: &Target) -> Self {
        Self { path: target.name(), ..Self::default() }
    }

    /// The outcome of an epoch. Its files have their own.
    fn of_epoch(epoch: Epoch, strict: bool) -> Self {
        let path = epoch.path.to_string_lossy().into_owned();
        let shown = text::printable(&path).to_string();
        let mut outcome = Self { path, format: Some("epoch".into()), ..Self::default() };
        match &epoch.problem {
            Some(problem) if epoch.is_link() => {
                outcome.warnings.push(format!("{shown}: {problem}"))
            }
            Some(problem) => {
                outcome.error = Some(format!("{shown}: this epoch is not complete: {problem}"))
            }
            None => {
                let files = text::counted(epoch.files.len() as u64, "file");
                outcome.summary = Some(format!("complete, {files} as in its manifest"));
            }
        }
        outcome.files = epoch.files.len();
        outcome.sound = outcome.error.is_none() && (outcome.warnings.is_empty() || !strict);
        outcome
    }

    /// Prints one line, on standard output if sound and on standard error if not, and the warnings.
    /// Of what could not be opened by itself, and is sound, there are only warnings.
    /// With `strict`, warnings are printed as errors. With `quiet`, there is no line on standard
    /// output.
    fn show(&self, args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
        let is_opened = self.files > 0 || self.summary.is_some();
        if self.sound && is_opened && !args.quiet {
            let ok = paint("ok", Colour::Green, &std::io::stdout());
            writeln!(out, "{}: {ok}, {}", text::printable(&self.path), self.summary())?;
        }
        // Standard error is not buffered. Its lines must not overtake those of earlier paths.
        out.flush()?;
        self.error.iter().for_each(report);
        self.warnings
            .iter()
            .for_each(|warning| if args.strict { report(warning) } else { warn(warning) });
        Ok(())
    }

    fn summary(&self) -> String {
        if let Some(summary) = &self.summary {
            return summary.clone();
        }
        let Totals { tensors, parameters, bytes } = self.totals;
        let shards = match self.files {
            1 => String::new(),
            several => format!("{}, ", text::counted(several as u64, "shard")),
        };
        let (tensors, parameters) =
            (text::counted(tensors, "tensor"), text::counted(parameters, "parameter"));
        let digests = match self.digests {
            0 => String::new(),
            some => format!(", {} right", text::counted(some as u64, "digest")),
        };
        let other = match (&self.format, self.checksums) {
            (None, _) => String::new(),
            (Some(format), 0) => {
                format!("; {format}: its structure and the places of all tensors, not their values")
            }
            (Some(format), some) => format!(
                "; {format}: its structure, the places of all tensors, and {}",
                text::counted(some, "checksum")
            ),
        };
        format!("{shards}{tensors}, {parameters}, {}{digests}{other}", text::size(bytes))
    }
}

impl Document<'_> {
    fn summarise(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let totals: Totals = self.results.iter().map(|outcome| outcome.totals).sum();
        let warnings = match self.warnings {
            0 => String::new(),
            some => format!(", {}", text::counted(some as u64, "warning")),
        };
        let not_sound = match self.checked - self.sound {
            0 => String::new(),
            some => format!(", {} not", text::count(some as u64)),
        };
        let (checked, sound) = (text::count(self.checked as u64), text::count(self.sound as u64));
        Ok(writeln!(
            out,
            "\n{checked} checked: {sound} sound{not_sound}{warnings}; {}",
            text::size(totals.bytes)
        )?)
    }
}
