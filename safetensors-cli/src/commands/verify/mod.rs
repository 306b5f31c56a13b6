//! `safetensors verify`: whether files and checkpoints are sound.
//!
//! | file | what it knows |
//! |---|---|
//! | `targets` | what is checked, each file once |
//! | `discover` | what lies in a directory and below it |

mod discover;
mod targets;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use safetensors_core::audit::Severity;
use safetensors_core::default_threads;
use safetensors_core::digest::{self, VerifyOptions};
use serde::Serialize;

use crate::colour::{Colour, paint};
use crate::input;
use crate::progress::Progress;
use crate::report::{report, warn};
use crate::totals::Totals;
use crate::{json, parallel, text};
use targets::Target;

/// Check files and checkpoints against every rule of the format.
///
/// The header of each file is checked: its length, its JSON, each tensor's dtype,
/// shape and place, and that the file is as long as they ask for. An index must
/// send every tensor to a file that has it. The tensors' values are not read, but for
/// --digests: the format allows any.
///
/// For each sound file or checkpoint one line is printed on standard output, for
/// each other one on standard error. What is sound but odd is a warning: tensors or
/// files that an index leaves out, or a wrong total_size. --strict makes failures of
/// warnings, and of every departure from the format's text that readers are lenient
/// about.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files, indexes or directories with all below them, or - for standard input
    ///
    /// An index, such as model.safetensors.index.json, is checked with its shards. What is named
    /// twice, or named and a shard of an index that is checked, is checked once
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Fail on warnings and on every departure from the text of the format
    ///
    /// Those are white space before the header, padding other than spaces, and data or tensors that
    /// are not aligned
    #[arg(long)]
    strict: bool,
    /// Read all data, and compare it with the digests that the files record
    ///
    /// Then there are also warnings of booleans that are neither 0 nor 1
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
  safetensors verify --json models/ | jq '.results[] | select(.sound|not).path'
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
    let targets = targets::of(&args.paths);
    let progress = if args.digests { Progress::bytes(0) } else { Progress::hidden() };
    // Files are checked in parallel already, so each has its part of the threads.
    let threads = (default_threads() / targets.len().max(1)).max(1);
    parallel::in_order(
        &targets,
        |target| check(target, args, threads, &progress),
        |_, outcome| -> anyhow::Result<()> {
            if !args.json {
                progress.suspended(|| outcome.show(args.strict, out))?;
            }
            outcomes.push(outcome);
            Ok(())
        },
    )?;
    drop(progress);
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

/// Checks one file or checkpoint. Opening it checks every rule; what is odd beyond them are
/// warnings.
fn check(target: &Target, args: &Args, threads: usize, progress: &Progress) -> Outcome {
    let mut outcome = Outcome::new(&target.path);
    let mut look = || -> anyhow::Result<()> {
        let checkpoint = target.open()?;
        outcome.totals = Totals::of(checkpoint.tensors());
        outcome.files = checkpoint.shards().len();
        let mut findings = checkpoint.audit()?;
        if args.digests {
            findings.extend(checkpoint.audit_values()?);
        }
        let told = findings
            .into_iter()
            .filter(|finding| args.strict || finding.severity() == Severity::Warning);
        outcome.warnings.extend(told.map(|finding| finding.to_string()));
        if args.digests {
            let options = VerifyOptions::new().threads(threads).progress(progress.uncounted());
            for file in digest::verify(&checkpoint, &options)? {
                outcome.digests += file.checked.len() + usize::from(file.sha256.is_some());
                if file.checked.is_empty() && file.sha256.is_none() {
                    let path = file.file.map(text::path).unwrap_or_default();
                    let warning = format!(
                        "{path}: records no digests; `safetensors digest --record` writes them"
                    );
                    outcome.warnings.push(warning);
                }
            }
        }
        Ok(())
    };
    outcome.error = look().err().map(|error| format!("{error:#}"));
    outcome.sound = outcome.error.is_none() && (outcome.warnings.is_empty() || !args.strict);
    outcome
}

impl Outcome {
    /// Nothing is known yet.
    fn new(path: &Path) -> Self {
        let path = if input::is_stdin(path) {
            input::name(path)
        } else {
            path.to_string_lossy().into_owned()
        };
        Self { path, ..Self::default() }
    }

    /// One line on the stream that it belongs to, and the warnings, which are errors to who is
    /// strict.
    fn show(&self, strict: bool, out: &mut impl Write) -> anyhow::Result<()> {
        if self.sound {
            let ok = paint("ok", Colour::Green, &std::io::stdout());
            writeln!(out, "{}: {ok}, {}", text::printable(&self.path), self.summary())?;
        }
        // Standard error is not buffered: its lines must not come before those of earlier paths.
        out.flush()?;
        self.error.iter().for_each(report);
        self.warnings
            .iter()
            .for_each(|warning| if strict { report(warning) } else { warn(warning) });
        Ok(())
    }

    fn summary(&self) -> String {
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
        format!("{shards}{tensors}, {parameters}, {}{digests}", text::size(bytes))
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
