//! [`Inputs`]: the paths of a command that shows one checkpoint after another.
//!
//! A single PATH is shown alone. Several, and `--recursive`, have headings and a total. `--json`
//! stays one document, and a table has a row for each.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::{Error, ErrorKind};

use crate::input;
use crate::input::address;
use crate::input::targets::{self, Target};
use crate::model::totals::Totals;
use crate::terminal::report::{self, wrong_usage};
use crate::terminal::table::{self, Column};
use crate::terminal::{json, pager, screen, text};

/// The `PATH` arguments of a command that shows one or more checkpoints.
#[derive(Debug, clap::Args)]
pub(crate) struct Inputs {
    /// Files, indexes, directories, addresses (feature remote), or - for standard input
    ///
    /// Several have headings and a total; one that fails does not stop the others. An index is a
    /// file such as model.safetensors.index.json. In a directory, the first of these opens:
    /// model.safetensors, an index, the only .safetensors file, the only one of PyTorch, GGUF or
    /// NumPy. A directory of a PyTorch trainer opens, too. An address is hf://owner/name,
    /// s3://bucket/model (gs, az), https://host/model.safetensors
    #[arg(required = true, value_name = "PATH", value_parser = address::parser())]
    paths: Vec<PathBuf>,
    /// Take every checkpoint in a directory and below it, on the disk
    ///
    /// The output always has headings and a total
    #[arg(short, long)]
    recursive: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ShownInput {
    totals: Totals,
    is_sound: bool,
}

impl ShownInput {
    pub(crate) fn new(totals: Totals) -> Self {
        Self { totals, is_sound: true }
    }

    pub(crate) fn with(mut self, other: Self) -> Self {
        self.totals += other.totals;
        self.sound(self.is_sound && other.is_sound)
    }

    /// Sets the exit code to 1 unless `is_sound`.
    pub(crate) fn sound(self, is_sound: bool) -> Self {
        Self { is_sound, ..self }
    }
}

impl Inputs {
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// `--recursive` replaces a directory by the inputs below it.
    pub(crate) fn targets(&self) -> anyhow::Result<Vec<Target>> {
        if self.paths.iter().filter(|path| input::is_stdin(path)).count() > 1 {
            return Err(wrong_usage("standard input can be read only once"));
        }
        if self.recursive {
            if let Some(address) = self.paths.iter().find(|path| address::in_path(path).is_some()) {
                return Err(wrong_usage(format!(
                    "{}: --recursive searches directories of the disk; name each checkpoint of an \
                     address without it",
                    input::shown(address)
                )));
            }
            return Ok(targets::search(&self.paths).targets);
        }
        Ok(self.paths.iter().map(|path| Target::named(path)).collect())
    }

    /// Returns `true` if there are several inputs, or could be.
    pub(crate) fn is_many(&self) -> bool {
        self.paths.len() > 1 || self.recursive
    }

    /// `describe` returns the last cell of a row.
    pub(crate) fn tabulate(
        &self,
        title: &str,
        out: &mut impl Write,
        mut describe: impl FnMut(&Target) -> anyhow::Result<(ShownInput, String)>,
    ) -> anyhow::Result<ExitCode> {
        let mut rows = Vec::new();
        let mut headings = io::sink();
        let mut several = Several::new(false, &mut headings);
        for target in &self.targets()? {
            several.add(target, |_| {
                let (shown, last) = describe(target).map_err(|error| self.advise(error, target))?;
                let Totals { tensors, parameters, bytes } = shown.totals;
                rows.push([
                    text::printable(&target.name()).to_string(),
                    text::count(tensors),
                    text::count(parameters),
                    text::size(bytes),
                    last,
                ]);
                Ok(shown)
            })?;
        }
        let columns = [
            Column::name("checkpoint").rank(0).distinct(),
            Column::number("tensors").rank(4),
            Column::number("parameters").rank(2),
            Column::number("size").rank(1),
            Column::text(title).rank(3),
        ];
        if !rows.is_empty() {
            table::write(&columns, out, |table| rows.iter().for_each(|row| table.row(row)))?;
        }
        // A program gets the table alone.
        if self.is_many() && !screen::is_for_programs() {
            let before = if rows.is_empty() { "" } else { "\n" };
            writeln!(out, "{before}{}", several.sum())?;
        }
        Ok(several.code())
    }

    /// `show` writes a text, or with `json` a document. The exit code is 1 if an input fails or is
    /// not sound.
    // Headings follow from the arguments alone, not from the inputs that are found, so that a
    // program knows the form beforehand.
    pub(crate) fn show(
        &self,
        json: bool,
        out: &mut impl Write,
        mut show: impl FnMut(&Target, &mut dyn Write) -> anyhow::Result<ShownInput>,
    ) -> anyhow::Result<ExitCode> {
        let targets = self.targets()?;
        if let ([only], false) = (targets.as_slice(), self.is_many()) {
            let shown = show(only, out).map_err(|error| self.advise(error, only))?;
            return Ok(if shown.is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        let mut several = Several::new(json, out);
        for target in &targets {
            let show =
                |out: &mut dyn Write| show(target, out).map_err(|error| self.advise(error, target));
            several.add(target, show)?;
            // The user has seen enough.
            if pager::is_left() {
                break;
            }
        }
        several.finish()
    }

    /// Adds a remedy to the error about a directory with several checkpoints.
    fn advise(&self, error: anyhow::Error, target: &Target) -> anyhow::Error {
        if let Some(ErrorKind::Ranks { .. }) = error.downcast_ref().map(Error::kind) {
            // The files are parts of a checkpoint, and the errors are reported.
            return error;
        }
        let Ok(Err(none)) = target.path().map(CheckpointPath::find) else { return error };
        match none.kind() {
            ErrorKind::NoCheckpoint { found, below }
                if !self.recursive && (!found.is_empty() || !below.is_empty()) =>
            {
                anyhow::anyhow!("{error:#}; name one of them, or take all with --recursive")
            }
            _ => error,
        }
    }
}

const START: &str = "{\n  \"results\": [";

struct Several<'o, W> {
    out: &'o mut W,
    json: bool,
    shown: u64,
    failed: u64,
    is_sound: bool,
    totals: Totals,
}

impl<'o, W: Write> Several<'o, W> {
    fn new(json: bool, out: &'o mut W) -> Self {
        Self { out, json, shown: 0, failed: 0, is_sound: true, totals: Totals::default() }
    }

    /// An input that fails before it shows anything has no heading.
    fn add(
        &mut self,
        target: &Target,
        show: impl FnOnce(&mut dyn Write) -> anyhow::Result<ShownInput>,
    ) -> anyhow::Result<()> {
        let mut part = Vec::new();
        // Messages about an input come after its part.
        let is_held = report::hold();
        match show(&mut part) {
            Ok(shown) => {
                self.put(target, None, &part)?;
                self.shown += 1;
                self.totals += shown.totals;
                self.is_sound &= shown.is_sound;
            }
            Err(error) if error.is::<clap::Error>() => return Err(error),
            Err(_) if part.is_empty() && target.is_gone() => {}
            Err(error) => {
                let error = format!("{error:#}");
                if self.json || !part.is_empty() {
                    self.put(target, Some(&error), &part)?;
                }
                if !self.json {
                    report::report(error);
                }
                self.failed += 1;
            }
        }
        if is_held {
            self.out.flush()?;
            report::release();
        }
        Ok(())
    }

    /// A text below a heading, or an entry of the list.
    fn put(&mut self, target: &Target, error: Option<&str>, part: &[u8]) -> anyhow::Result<()> {
        let name = target.name();
        let part = String::from_utf8_lossy(part);
        let part = part.strip_suffix('\n').unwrap_or(&part);
        if !self.json {
            let before = if self.shown == 0 { "" } else { "\n" };
            writeln!(self.out, "{before}{}:\n{part}", text::printable(&name))?;
            return Ok(());
        }
        let before = if self.shown + self.failed == 0 { START } else { "," };
        let document = match error {
            Some(_) => "null".to_owned(),
            None => part.replace('\n', "\n      "),
        };
        write!(
            self.out,
            "{before}\n    {{\n      \"path\": {},\n      \"error\": {},\n      \
             \"checkpoint\": {document}\n    }}",
            json::inline(&name)?,
            json::inline(&error)?
        )?;
        Ok(())
    }

    fn finish(self) -> anyhow::Result<ExitCode> {
        let Self { shown, failed, totals, .. } = self;
        if self.json {
            let before = if shown + failed == 0 { START } else { "" };
            let Totals { tensors, parameters, bytes } = totals;
            writeln!(
                self.out,
                "{before}\n  ],\n  \"shown\": {shown},\n  \"failed\": {failed},\n  \
                 \"total\": {{\n    \"tensors\": {tensors},\n    \"parameters\": {parameters},\n    \
                 \"bytes\": {bytes}\n  }}\n}}"
            )?;
        } else {
            let before = if shown == 0 { "" } else { "\n" };
            writeln!(self.out, "{before}{}", self.sum())?;
        }
        Ok(self.code())
    }

    fn sum(&self) -> String {
        let Self { shown, failed, totals, .. } = self;
        let not = match failed {
            0 => String::new(),
            some => format!(", {} not", text::count(*some)),
        };
        format!(
            "{}: {} shown{not}; {}, {}, {}",
            text::counted(shown + failed, "input"),
            text::count(*shown),
            text::counted(totals.tensors, "tensor"),
            text::counted(totals.parameters, "parameter"),
            text::size(totals.bytes),
        )
    }

    fn code(&self) -> ExitCode {
        let is_sound = self.is_sound && self.failed == 0;
        if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_that_fails_late_has_shown_a_part_and_in_json_has_only_an_error() {
        let half = |out: &mut dyn Write| {
            writeln!(out, "half")?;
            anyhow::bail!("broken")
        };
        let all = |out: &mut dyn Write| {
            write!(out, "{{\n  1\n}}")?;
            Ok(ShownInput::new(Totals::default()))
        };
        let [broken, sound] = ["a", "b"].map(|path| Target::named(path.as_ref()));
        for (json, expected) in [
            (false, "a:\nhalf\nb:\n{\n  1\n}\n\n2 inputs: 1 shown, 1 not; "),
            (
                true,
                "{\n  \"results\": [\n    {\n      \"path\": \"a\",\n      \"error\": \"broken\",\n      \
                 \"checkpoint\": null\n    },\n    {\n      \"path\": \"b\",\n      \"error\": null,\n      \
                 \"checkpoint\": {\n        1\n      }\n    }\n  ],\n  \"shown\": 1,\n",
            ),
        ] {
            let mut out = Vec::new();
            let mut several = Several::new(json, &mut out);
            several.add(&broken, half).unwrap();
            several.add(&sound, all).unwrap();
            several.finish().unwrap();
            let out = String::from_utf8(out).unwrap();
            assert!(out.starts_with(expected), "{out}");
        }
    }

    #[test]
    fn a_full_disk_is_not_taken_for_an_input_that_fails() {
        let mut full = &mut [0_u8; 4][..];
        let shown = |out: &mut dyn Write| {
            writeln!(out, "shown")?;
            Ok(ShownInput::new(Totals::default()))
        };
        let mut several = Several::new(false, &mut full);
        assert!(several.add(&Target::named("a".as_ref()), shown).is_err());
    }
}
