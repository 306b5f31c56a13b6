//! `safetensors verify`: checks whether files and checkpoints are ok.
//!
//! | file | content |
//! |---|---|
//! | `fault` | one problem, with its kind for programs |
//! | `finite` | NaN and infinity in values |
//! | `outcome` | the result for one file or checkpoint |

mod fault;
mod finite;
mod outcome;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use safetensors_core::audit::Severity;
use safetensors_core::digest::{self, DigestOptions, VerifiedFile};
use safetensors_core::framework::{Quoted, default_threads, in_order};

use self::fault::Fault;
use self::outcome::{Document, Outcome};
use super::{Run, sign};
use crate::commands;
use crate::input::kind::{Expected, Judge};
use crate::input::targets::{self, Target, Targets, is_of_parts};
use crate::input::{Checkpoint, Opening, delta, other};
use crate::model::epochs;
use crate::model::totals::Totals;
use crate::terminal::progress::Progress;
use crate::terminal::stdout::Out;
use crate::terminal::{json, text};

/// Check files and checkpoints against every rule of the format.
///
/// Checks each header: its length, its JSON, each tensor's dtype, shape and offsets, and that the
/// file has the length that these require. An index must map every tensor to a file that has it.
/// Numbered shards without an index are an error. Only --digests and --finite read values, because
/// the format allows any value.
///
/// Each good file or checkpoint gets a line on standard output, each fault a line on standard
/// error.
///
/// A file of PyTorch, GGUF or NumPy is an error, unless its name or --format names that format.
/// Then its structure and the places of its tensors are checked, and with --digests the checksums
/// of an archive. A file that is valid in two formats is an error. Of a delta, the index and the
/// files are checked, and with --digests every compressed difference. A burn epoch that differs
/// from its manifest is an error.
///
/// Warnings name tensors or files that no index lists, an index that a model.safetensors next to it
/// hides, a wrong total_size, the backup of an interrupted edit, a safetensors file with another
/// format's name, such as model.bin, and PyTorch objects that hold tensors and cannot be read.
/// --strict turns them into failures, and every departure from the text of the format that readers
/// tolerate.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files, indexes, directories with all below them, addresses (feature remote), or - for
    /// standard input
    ///
    /// An index is checked with its shards. Each file is checked once, even if several PATHs lead
    /// to it. In directories, links to files are followed, links to directories are not, and files
    /// of other formats are only counted
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
    /// By default, a name such as model.pt decides; files with other names are safetensors files
    #[arg(long, value_name = "FORMAT", value_parser = Expected::parser())]
    format: Option<Expected>,
    /// Read all data, and compare it with the recorded digests
    ///
    /// `safetensors digest --record` records them; modelspec.hash_sha256 is one, too. A warning
    /// names booleans that are neither 0 nor 1
    #[arg(long)]
    digests: bool,
    /// Read all data, and fail if a float is NaN or infinite
    ///
    /// Quantised weights are checked as numbers, and scales as stored. The error names the tensor
    /// and the first such value. A delta has no numbers, which is a warning
    #[arg(long)]
    finite: bool,
    /// No effect: directories are always searched
    #[arg(short = 'r', long = "recursive")]
    _searches: bool,
    /// Print only errors and warnings
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Print everything as one JSON document
    ///
    /// A result has faults, each with a kind such as missing or truncated, and warnings, with
    /// --strict also the departures. With --signature, the document has the signer and the files
    /// that differ
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    signature: sign::Options,
}

const EXAMPLES: &str = "\
Examples:
  safetensors verify model.safetensors
  safetensors verify --strict ~/models
  safetensors verify --finite --quiet run/ || echo 'the training has diverged'
  safetensors verify --json models/ | jq '.results[].faults[] | .kind, .file'
  safetensors verify --quiet model.safetensors.index.json && echo ok
  safetensors verify model/ --signature model/model.sig --key key.pub

Exit codes: 0 all is ok, or as signed, 1 something is not, 2 wrong usage.";

impl Run for Args {
    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        if let Some(file) = &self.signature.signature {
            let shown = match (self.json, self.quiet) {
                (true, _) => sign::OutputForm::Json,
                (false, true) => sign::OutputForm::Quiet,
                (false, false) => sign::OutputForm::Line,
            };
            return sign::verify(&self.signature, file, &self.paths, shown, out);
        }
        let mut outcomes = Vec::new();
        let Targets { targets, others } = targets::search(&self.paths);
        let progress =
            if self.digests || self.finite { Progress::bytes(0) } else { Progress::hidden() };
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
        let document = Document {
            checked: outcomes.len(),
            sound,
            failed: outcomes.len() - sound,
            warnings: outcomes.iter().map(|outcome| outcome.warnings.len()).sum(),
            other_files: others.len(),
            total: outcomes.iter().map(|outcome| outcome.totals).sum(),
            results: &outcomes,
        };
        if self.json {
            json::write(&document, out)?;
        } else if !self.quiet {
            document.summarise(&others, out)?;
        }
        Ok(if document.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Epochs of burn, compared with their manifests.
fn epochs(paths: &[PathBuf], targets: &[Target], strict: bool) -> Vec<Outcome> {
    let mut epochs = BTreeMap::new();
    for directory in paths.iter().filter(|path| path.is_dir()) {
        let files = targets.iter().filter_map(|target| target.path().ok());
        let found = epochs::below(directory, files).into_iter();
        epochs.extend(found.map(|epoch| (epoch.path.clone(), epoch)));
    }
    epochs.into_values().map(|epoch| Outcome::of_epoch(epoch, strict)).collect()
}

/// Returns `None` if a found file has been removed.
fn check(target: &Target, args: &Args, threads: usize, progress: &Progress) -> Option<Outcome> {
    let mut outcome = Outcome::new(target);
    match look(target, args, threads, progress, &mut outcome) {
        Err(error) if target.is_unused_part(&error) => outcome.warnings.push(format!(
            "{}: has parts of tensors that the checkpoint of this directory does not name",
            text::printable(&outcome.path)
        )),
        Err(error) => {
            outcome.faults.extend(target.faults(error).into_iter().map(Fault::from));
            check_shards(target, args, threads, progress, &mut outcome);
        }
        Ok(()) => {}
    }
    if !outcome.faults.is_empty() && target.is_gone() {
        return None;
    }
    Some(outcome.judged(args.strict))
}

/// Checks the shards, which open, unlike their index.
fn check_shards(
    target: &Target,
    args: &Args,
    threads: usize,
    progress: &Progress,
    outcome: &mut Outcome,
) {
    for shard in target.shards() {
        let mut of_shard = Outcome::default();
        let error = look(&shard, args, threads, progress, &mut of_shard).err();
        // A part of tensors is none alone.
        let error = error.filter(|it| !it.downcast_ref().is_some_and(is_of_parts));
        of_shard.faults.extend(error.map(Fault::from));
        of_shard.faults.retain(|fault| !outcome.faults.iter().any(|known| fault.repeats(known)));
        outcome.faults.append(&mut of_shard.faults);
    }
}

// Opening the checkpoint checks every rule of the format. The audit adds the warnings.
fn look(
    target: &Target,
    args: &Args,
    threads: usize,
    progress: &Progress,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let judge = args.format.map_or(Judge::ByName, Judge::As);
    let opening = Opening { judge, dequantize: args.finite, ..Opening::default() };
    let checkpoint = match target.open_with(opening) {
        Err(error) if delta::is_delta(&error) => return check_delta(target, args, outcome),
        opened => opened?,
    };
    outcome.totals = Totals::of_checkpoint(&checkpoint, checkpoint.tensors());
    outcome.files = checkpoint.files().len();
    if !check_other(&checkpoint, args, outcome)? {
        check_files(target, &checkpoint, args, threads, progress, outcome)?;
    }
    if args.digests {
        outcome.warnings.extend(checkpoint.audit_values()?.iter().map(ToString::to_string));
    }
    if args.finite {
        outcome.faults.extend(finite::faults(checkpoint, threads, progress));
    }
    Ok(())
}

fn check_files(
    target: &Target,
    checkpoint: &Checkpoint,
    args: &Args,
    threads: usize,
    progress: &Progress,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let judge = args.format.map_or(Judge::ByName, Judge::As);
    // Digests and layouts belong to files, also where the tensors of these are parts.
    let parts = target.parts(checkpoint)?;
    let opened = Target::stored(checkpoint, &parts);
    outcome.files = opened.iter().map(|opened| opened.files().len()).sum();
    let mut unrecorded = 0;
    for opened in opened {
        for file in opened.files() {
            let (path, source) = (file.path(), file.safetensors().source());
            let judged = judge.judge(path, None);
            let judged = judged.and_then(|()| other::refuse_polyglot(source, path));
            outcome.faults.extend(judged.err().map(Fault::from));
            outcome.warnings.extend(judge.misnamed(path));
        }
        let told = opened.audit()?;
        let told = told.iter().filter(|it| args.strict || it.severity() == Severity::Warning);
        outcome.warnings.extend(told.map(ToString::to_string));
        if args.digests {
            let options = DigestOptions::new().threads(threads).progress(progress.uncounted());
            let (verified, faults) = digest::verify_all(opened, &options)?;
            outcome.faults.extend(faults.into_iter().map(anyhow::Error::from).map(Fault::from));
            outcome.digests += verified.iter().map(recorded).sum::<usize>();
            // A file without tensors, such as a scheduler's, has nothing to record.
            let has_none = |it: &&VerifiedFile<'_>| recorded(it) == 0 && !it.unrecorded.is_empty();
            unrecorded += verified.iter().filter(has_none).count();
        }
    }
    let path = text::printable(&outcome.path).to_string();
    let record = "`safetensors digest --record` writes them";
    match (outcome.files - unrecorded, outcome.files) {
        _ if unrecorded == 0 => {}
        (_, 1) => outcome.warnings.push(format!("{path}: records no digests; {record}")),
        (some, all) => {
            outcome.warnings.push(format!("{path}: {some} of {all} files record digests; {record}"))
        }
    }
    Ok(())
}

/// The number of correct digests.
fn recorded(file: &VerifiedFile<'_>) -> usize {
    file.checked.len() + usize::from(file.sha256.is_some())
}

/// Checks the compressed differences, which opening does not.
fn check_delta(target: &Target, args: &Args, outcome: &mut Outcome) -> anyhow::Result<()> {
    let delta = delta::open(target.path()?)?;
    outcome.format = Some("delta".into());
    outcome.totals = Totals::sum(delta.tensors());
    let mut files: Vec<_> = delta.tensors().map(|tensor| tensor.file_index()).collect();
    files.dedup();
    outcome.files = files.len();
    outcome.summary = Some(commands::delta::summary(&delta));
    if args.finite {
        // No fault: a directory of a healthy training may have deltas.
        outcome.warnings.push(format!(
            "{}: a delta has no numbers to check, only differences from its base; check what \
             `safetensors delta apply` makes of both",
            text::printable(&outcome.path)
        ));
    }
    if args.digests {
        delta.verify()?;
    }
    Ok(())
}

/// Checks the checksums of archives, which opening does not. Returns `false` for a safetensors
/// file.
fn check_other(
    checkpoint: &Checkpoint,
    args: &Args,
    outcome: &mut Outcome,
) -> anyhow::Result<bool> {
    for file in checkpoint.files() {
        let path = file.path();
        let Some(file) = other::tensor_file(file.safetensors().source()) else { return Ok(false) };
        outcome.format = Some(file.format().to_string());
        outcome.warnings.extend(file.findings().iter().map(ToString::to_string));
        let unreadable = file.all_stored().filter(|(_, stored)| other::is_unread(stored));
        outcome.warnings.extend(unreadable.map(|(name, stored)| {
            let (path, kind) = (text::path(path), &stored.type_name);
            format!("{path}: tensor {} is {kind}, which cannot be read", Quoted(name))
        }));
        if args.digests {
            match file.verify_checksums() {
                Ok(checksums) => outcome.checksums += checksums,
                Err(error) => outcome.faults.push(anyhow::Error::from(error).into()),
            }
        }
    }
    Ok(outcome.format.is_some())
}
