//! [`Outcome`]: the result for one file or checkpoint, and how it is shown.

use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;

use super::fault::Fault;
use crate::input::targets::Target;
use crate::model::epochs::Epoch;
use crate::model::totals::Totals;
use crate::terminal::colour::{Colour, paint};
use crate::terminal::report::{report, warn};
use crate::terminal::text;

#[derive(Default, Serialize)]
pub(super) struct Outcome {
    pub(super) path: String,
    pub(super) sound: bool,
    /// The text of the first fault.
    pub(super) error: Option<String>,
    pub(super) faults: Vec<Fault>,
    pub(super) warnings: Vec<String>,
    pub(super) files: usize,
    pub(super) digests: usize,
    /// The format, unless it is safetensors; or that it is a delta.
    pub(super) format: Option<String>,
    /// Describes a delta or an epoch.
    #[serde(skip)]
    pub(super) summary: Option<String>,
    /// The compared checksums of an archive.
    pub(super) checksums: u64,
    #[serde(flatten)]
    pub(super) totals: Totals,
}

#[derive(Serialize)]
pub(super) struct Document<'a> {
    pub(super) checked: usize,
    pub(super) sound: usize,
    pub(super) failed: usize,
    pub(super) warnings: usize,
    /// The files of other formats that were found and not checked.
    pub(super) other_files: usize,
    pub(super) total: Totals,
    pub(super) results: &'a [Outcome],
}

impl Outcome {
    pub(super) fn new(target: &Target) -> Self {
        Self { path: target.name(), ..Self::default() }
    }

    /// The outcome of an epoch. Its files have theirs.
    pub(super) fn of_epoch(epoch: Epoch, strict: bool) -> Self {
        let path = epoch.path.to_string_lossy().into_owned();
        let shown = text::printable(&path).to_string();
        let mut outcome = Self { path, format: Some("epoch".into()), ..Self::default() };
        match &epoch.problem {
            Some(problem) if epoch.is_link() => {
                outcome.warnings.push(format!("{shown}: {problem}"))
            }
            Some(problem) => outcome.faults.push(Fault::new(
                "incomplete",
                format!("{shown}: this epoch is not complete: {problem}"),
            )),
            None => {
                let files = text::counted(epoch.files.len() as u64, "file");
                outcome.summary = Some(format!("complete, {files} as in its manifest"));
            }
        }
        outcome.files = epoch.files.len();
        outcome.judged(strict)
    }

    pub(super) fn judged(mut self, strict: bool) -> Self {
        self.error = self.faults.first().map(|fault| fault.error.clone());
        self.sound = self.error.is_none() && (self.warnings.is_empty() || !strict);
        self
    }

    /// Prints a sound result on standard output, unless `quiet`, and others on standard error. With
    /// `strict`, warnings are errors. An intact file that cannot be opened alone has only warnings.
    pub(super) fn show(&self, args: &super::Args, out: &mut impl Write) -> anyhow::Result<()> {
        let is_opened = self.files > 0 || self.summary.is_some();
        if self.sound && is_opened && !args.quiet {
            let ok = paint("ok", Colour::Green, &std::io::stdout());
            writeln!(out, "{}: {ok}, {}", text::printable(&self.path), self.summary(args.finite))?;
        }
        // Standard error is not buffered. Its lines must not overtake lines of earlier paths.
        out.flush()?;
        self.faults.iter().for_each(|fault| report(&fault.error));
        self.warnings
            .iter()
            .for_each(|warning| if args.strict { report(warning) } else { warn(warning) });
        Ok(())
    }

    /// `is_finite` means that its values were checked.
    fn summary(&self, is_finite: bool) -> String {
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
        let values = match (is_finite, self.checksums) {
            (true, _) => ", their values",
            (false, 0) => ", not their values",
            (false, _) => "",
        };
        let checksums = match self.checksums {
            0 => String::new(),
            some => format!(", {}", text::counted(some, "checksum")),
        };
        let other = self.format.as_ref().map_or(String::new(), |format| {
            format!("; {format}: its structure and the places of all tensors{values}{checksums}")
        });
        format!("{shards}{tensors}, {parameters}, {}{digests}{other}", text::size(bytes))
    }
}

impl Document<'_> {
    /// `others` are not checked.
    pub(super) fn summarise(&self, others: &[PathBuf], out: &mut impl Write) -> anyhow::Result<()> {
        if self.checked > 1 {
            let warnings = match self.warnings {
                0 => String::new(),
                some => format!(", {}", text::counted(some as u64, "warning")),
            };
            let failed = match self.failed {
                0 => String::new(),
                some => format!(", {} failed", text::count(some as u64)),
            };
            let checked = text::count(self.checked as u64);
            let sound = text::count(self.sound as u64);
            let size = text::size(self.total.bytes);
            writeln!(out, "\n{checked} checked: {sound} ok{failed}{warnings}; {size}")?;
        }
        if !others.is_empty() {
            let count = text::counted(others.len() as u64, "other file");
            let names = text::some(others.iter().map(|path| path.to_string_lossy()));
            writeln!(out, "{count} not checked; name one to check it: {names}")?;
        }
        Ok(())
    }
}
