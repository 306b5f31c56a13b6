//! `safetensors metadata modelspec`: metadata that follows ModelSpec.

use std::io::Write;
use std::process::ExitCode;

use safetensors_core::Metadata;
use safetensors_core::digest::DigestOptions;

use crate::input::Input;
use crate::model::modelspec::{self, Level, validate};
use crate::output::edit::{Changing, EditArgs, entry, with_files};
use crate::terminal::progress::Progress;
use crate::terminal::report::{warn, wrong_usage};
use crate::terminal::stdout::Out;
use crate::terminal::text;

pub(super) const EXAMPLES: &str = "\
Examples:
  safetensors metadata modelspec validate model.safetensors
  safetensors metadata modelspec init lora.safetensors --title 'My cat' --hash \\
      --architecture stable-diffusion-v1/lora --implementation diffusers \\
      --set author=me --set date=2026-01-31

Exit codes: 0 done, 1 PATH breaks the standard, or cannot be read or written, 2 wrong usage.";

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// List where the metadata departs from the standard
    #[command(after_help = "\
Examples:
  safetensors metadata modelspec validate model.safetensors

Exit codes: 0 PATH follows the standard, 1 it does not, or cannot be read, 2 wrong usage.")]
    Validate(Input),
    Init(Box<Init>),
}

/// Write the keys that the standard requires, and more
///
/// Other metadata stays, including other keys of the standard. If the metadata would then break the
/// standard, nothing is written.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "\
Examples:
  safetensors metadata modelspec init model.safetensors --title 'My model' \\
      --architecture gpt-neo-x --implementation transformers \\
      --set data_format=fp16

Exit codes: 0 written, 1 PATH would break the standard or cannot be written, 2 wrong usage.",
    override_usage = "safetensors metadata modelspec init [OPTIONS] --architecture <TEXT> --implementation <TEXT> \\
                                           --title <TEXT> <PATH>"
)]
pub(super) struct Init {
    /// The class of the architecture, such as stable-diffusion-xl-v1-base/lora
    #[arg(long, value_name = "TEXT")]
    architecture: String,
    /// The code base that the tensor names come from: a name or an address
    #[arg(long, value_name = "TEXT")]
    implementation: String,
    /// The title of the model
    #[arg(long, value_name = "TEXT")]
    title: String,
    /// Set another key of the standard, without modelspec. before it
    ///
    /// May be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = entry)]
    set: Vec<(String, String)>,
    /// Also write the SHA-256 of the data, which reads all of it
    #[arg(long)]
    hash: bool,
    #[command(flatten)]
    edit: EditArgs,
}

impl Command {
    pub(super) fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        match self {
            Self::Validate(input) => validate_input(input, out),
            Self::Init(init) => init.run(out),
        }
    }
}

fn validate_input(input: &Input, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let checkpoint = input.open()?;
    let (name, metadata) = (input.name(), checkpoint.metadata());
    if !modelspec::is_in(metadata) {
        anyhow::bail!(
            "{name}: has no ModelSpec metadata; `safetensors metadata modelspec init` writes some"
        );
    }
    let findings = validate(metadata);
    for finding in &findings {
        writeln!(out, "{}", text::printable(&format!("{}: {finding}", finding.level)))?;
    }
    let errors = findings.iter().filter(|finding| finding.level == Level::Error).count() as u64;
    let warnings = text::counted(findings.len() as u64 - errors, "warning");
    writeln!(out, "{name}: {}, {warnings}", text::counted(errors, "error"))?;
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Init {
    fn run(&self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let set = with_files(&self.set)?;
        self.edit.apply(out, |edit, it: Changing<'_>| {
            let mut entries = self.entries(it, &set, edit.header().metadata())?;
            if self.hash && it.is_dry {
                // Its length does not depend on the data.
                entries.extend([modelspec::any_sha256()]);
            }
            let told = it.would(&format!("set {}", text::some(entries.keys())));
            let edit = edit.set_metadata(entries);
            if it.is_dry || !self.hash {
                return Ok((edit, told));
            }
            let progress = Progress::bytes(0);
            let options = DigestOptions::new().tensors(false).sha256(true);
            let recorded = edit.record_digests(&options.progress(progress.uncounted()));
            Ok((self.edit.way.advised(recorded, it.file)?, told))
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the entries to add. Fails unless they and the file's metadata follow the standard.
    fn entries(
        &self,
        it: Changing<'_>,
        set: &[(String, String)],
        present: &Metadata,
    ) -> anyhow::Result<Metadata> {
        let required = [
            ("architecture", &*self.architecture),
            ("implementation", &self.implementation),
            ("title", &self.title),
        ];
        if set.iter().any(|(key, _)| key.trim_start_matches("modelspec.") == "hash_sha256") {
            return Err(wrong_usage("hash_sha256 cannot be set; --hash computes it from the data"));
        }
        let set = set.iter().map(|(key, value)| (&**key, &**value));
        let entries =
            modelspec::entries(required.into_iter().chain(set)).map_err(anyhow::Error::msg)?;
        // Errors are found before all data is read and before anything is written, so a placeholder
        // hash replaces the one that is recorded later.
        let mut together = present.clone();
        together.extend(entries.clone());
        together.extend(self.hash.then(modelspec::any_sha256));
        let problems = validate(&together);
        let path = text::path(it.file);
        if let Some(error) = problems.iter().find(|problem| problem.level == Level::Error) {
            anyhow::bail!("{path}: {error}; give it with --set");
        }
        // Files that are only checked before they are changed come again.
        let told = problems.iter().filter(|_| it.is_dry == self.edit.way.dry_run);
        told.for_each(|warning| warn(format!("{path}: {warning}")));
        Ok(entries)
    }
}
