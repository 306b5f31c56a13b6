//! `safetensors modelspec`: metadata after the ModelSpec standard.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use safetensors_core::modelspec::{Finding, PREFIX, Severity, validate};
use safetensors_core::{Metadata, ModelSpec, digest};

use super::metadata::{How, entry};
use crate::output::warn;
use crate::{input, text};

/// Check or write metadata after the ModelSpec standard.
///
/// ModelSpec 1.0.1 gives names, such as modelspec.title, to what a file should say of
/// its model.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  safetensors modelspec validate model.safetensors
  safetensors modelspec init lora.safetensors --architecture stable-diffusion-v1/lora \\
      --implementation diffusers --title 'My cat' --set author=me --set date=2026-01-31 --hash

Exit codes: 0 done, 1 it does not follow the standard, or cannot be read or written, 2 wrong usage.";

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List in what the metadata departs from the standard
    ///
    /// Examples:
    ///   safetensors modelspec validate model.safetensors
    #[command(verbatim_doc_comment)]
    Validate {
        /// A file, an index or a directory
        path: PathBuf,
    },
    /// Write the keys that every model must have, and more
    ///
    /// Examples:
    ///   safetensors modelspec init model.safetensors --architecture gpt-neo-x \
    ///       --implementation transformers --title 'My model' --set data_format=fp16
    #[command(verbatim_doc_comment)]
    Init(Box<Init>),
}

#[derive(Debug, clap::Args)]
struct Init {
    /// The file
    path: PathBuf,
    /// The class of the architecture, such as stable-diffusion-xl-v1-base/lora
    #[arg(long)]
    architecture: String,
    /// The code base that the names come from: a name or an address
    #[arg(long)]
    implementation: String,
    /// The title of the model
    #[arg(long)]
    title: String,
    /// Another key of the standard, without modelspec. before it; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = entry)]
    set: Vec<(String, String)>,
    /// Write the SHA-256 of the data too, for which all of it is read
    #[arg(long)]
    hash: bool,
    #[command(flatten)]
    how: How,
}

/// Checks or writes metadata.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Validate { path } => {
            let checkpoint = input::open(path)?;
            let metadata = checkpoint.metadata();
            if !is_followed(metadata) {
                anyhow::bail!(
                    "{}: has no ModelSpec metadata; `safetensors modelspec init` writes some",
                    text::path(path)
                );
            }
            let findings = validate(metadata);
            for finding in &findings {
                writeln!(out, "{}", text::printable(&finding.to_string()))?;
            }
            let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count() as u64;
            let warnings = text::counted(findings.len() as u64 - errors, "warning");
            writeln!(out, "{}: {}, {warnings}", text::path(path), text::counted(errors, "error"))?;
            Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Init(init) => init.run(out),
    }
}

impl Init {
    fn run(&self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let mut entries: Metadata =
            self.set.iter().map(|(key, value)| (format!("{PREFIX}{key}"), value.clone())).collect();
        if self.hash {
            let checkpoint = input::open(&self.path)?;
            let [only] = checkpoint.shards() else {
                anyhow::bail!("{}: has several files; name the one to change", text::path(&self.path));
            };
            let hash = digest::data_sha256(only.archive()).map_err(|error| error.in_file(only.path().display()))?;
            let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            entries.insert(format!("{PREFIX}hash_sha256"), format!("0x{digits}"));
        }
        let title =
            [("architecture", &self.architecture), ("implementation", &self.implementation), ("title", &self.title)];
        entries.insert(format!("{PREFIX}sai_model_spec"), ModelSpec::VERSION.to_string());
        entries.extend(title.map(|(key, value)| (format!("{PREFIX}{key}"), value.clone())));
        // What is wrong is said before anything is written.
        let findings = validate(&entries);
        if let Some(finding) = findings.iter().find(|finding| finding.severity == Severity::Error) {
            anyhow::bail!("{}; give it with --set", finding.to_string().trim_start_matches("error: "));
        }
        findings.iter().for_each(|finding| warn(finding.to_string().trim_start_matches("warning: ")));
        self.how.apply(&self.path, out, |edit| edit.set_metadata(entries))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Whether metadata says of itself that it follows the standard.
pub(super) fn is_followed(metadata: &Metadata) -> bool {
    metadata.keys().any(|key| key.starts_with(PREFIX))
}

/// In what metadata does not follow the standard.
pub(super) fn errors(metadata: &Metadata) -> Vec<Finding> {
    validate(metadata).into_iter().filter(|finding| finding.severity == Severity::Error).collect()
}
