//! `safetensors digest`: digests that show whether data has changed.

mod check;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use safetensors_core::checkpoint::CheckpointFile;
use safetensors_core::digest::{self, Digest, DigestOptions, TensorDigests};
use safetensors_core::framework::in_order;
use safetensors_core::io::FileSource;
use safetensors_core::{Error, LazyTensor, ReadAt};
use serde::Serialize;

use super::Run;
use crate::commands::inputs::{Inputs, ShownInput};
use crate::input::select::Select;
use crate::input::targets::Target;
use crate::input::{self, Checkpoint, Opening, Source, Tensor, other};
use crate::model::totals::Totals;
use crate::output::edit::{Changing, Way, change_all, check_on_disk};
use crate::terminal::progress::Progress;
use crate::terminal::report::report;
use crate::terminal::stdout::Out;
use crate::terminal::{json, text};

/// Print, record or compare digests of tensors, files and checkpoints.
///
/// A tensor has an XXH3 digest of 128 bits, which detects accidental changes but not deliberate
/// ones. A file has the SHA-256 of all data after the header, as in modelspec.hash_sha256, except
/// with --filter. Metadata changes neither. A single file is not named, so that equal data gives
/// equal lines. A quantised GGUF tensor has the digest of its stored bytes. A PyTorch tensor that
/// cannot be read is an error; the others are still printed.
///
/// The digest of a checkpoint (--checkpoint) is the BLAKE3 of one line of JSON for each tensor,
/// ordered by name: its name, dtype, shape and the BLAKE3 of its bytes, such as
/// `["w","F32",[2,3],"…"]`. Deltas have it, too.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    select: Select,
    /// Print one digest of each checkpoint, independent of shards, order and metadata
    #[arg(long, group = "what", conflicts_with = "patterns")]
    checkpoint: bool,
    /// Print the SHA-256 of each whole file, as `sha256sum` and the Hub do
    ///
    /// On a terminal, unprintable characters in names are escaped, which --check does not read
    #[arg(long, group = "what", conflicts_with = "patterns")]
    files: bool,
    /// Compare files with the digests that PATHs list, as `sha256sum --check` does
    ///
    /// Each PATH is a list that `sha256sum`, --files or --checkpoint has printed. Its names are
    /// relative to the current directory
    #[arg(short, long, group = "what", conflicts_with_all = ["patterns", "json", "recursive"])]
    check: bool,
    /// With --check: print only differences
    #[arg(short, long, requires = "check")]
    quiet: bool,
    /// Write the digests of tensors into the metadata of each file, for `safetensors verify
    /// --digests`
    #[arg(long, group = "what", conflicts_with_all = ["patterns", "json"])]
    record: bool,
    /// With --record: write headers over the old ones where they fit, without copies of the files
    ///
    /// For a moment readers refuse the file: see `safetensors metadata set --help`
    #[arg(long, requires = "record")]
    in_place: bool,
    /// With --record: print what would be changed, and change nothing
    #[arg(short = 'n', long, requires = "record")]
    dry_run: bool,
    /// With --record: change files even if they are read-only, or in the Hub's cache
    #[arg(long, requires = "record")]
    force: bool,
    /// Print everything as one JSON document
    ///
    /// Its keys are tensors, files and checkpoint. Digests that were not asked for are empty or
    /// null
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  safetensors digest model.safetensors
  safetensors digest model.safetensors > before.txt
  safetensors digest model.safetensors | diff before.txt -
  safetensors digest --checkpoint model/ hf://owner/name
  safetensors digest --files model/ > SHA256SUMS
  safetensors digest --check SHA256SUMS
  safetensors digest --record model.safetensors
  safetensors digest --record --in-place model.safetensors
  safetensors digest --recursive models/ --json | jq '.results[].path'

Exit codes: 0 printed, recorded or right, 1 a digest differs, or PATH is malformed, unreadable or
unwritable, 2 wrong usage.";

#[derive(Default, Serialize)]
struct Document<'a> {
    tensors: Vec<Entry<'a>>,
    files: Vec<FileEntry>,
    /// `None` if not requested.
    checkpoint: Option<String>,
}

#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    xxh3_128: Option<String>,
    error: Option<String>,
}

#[derive(Serialize)]
struct FileEntry {
    path: String,
    #[serde(skip)]
    place: PathBuf,
    /// The printable path, relative to the index.
    #[serde(skip)]
    name: String,
    /// The SHA-256 of everything after the header.
    data_sha256: Option<String>,
    /// The SHA-256 of the file, if requested.
    sha256: Option<String>,
}

impl Run for Args {
    fn is_paged(&self) -> bool {
        !self.record && !self.check
    }

    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        if self.check {
            return check::run(self.inputs.paths(), self.quiet, out);
        }
        if self.record {
            let targets = self.inputs.targets()?;
            for target in &targets {
                target.path().map_or(Ok(()), check_on_disk)?;
            }
            let Self { dry_run, in_place, force, .. } = *self;
            let way = Way { dry_run, in_place, force };
            return each(&targets, out, |target, out| record(target.path()?, way, out));
        }
        if (self.checkpoint || self.files) && !self.json {
            // A list has no headings.
            let targets = self.inputs.targets()?;
            return each(&targets, out, |target, out| print(self, target, out).map(drop));
        }
        self.inputs.show(self.json, out, |target, out| print(self, target, out))
    }
}

/// Goes on after a failure.
fn each(
    targets: &[Target],
    out: &mut Out,
    work: impl Fn(&Target, &mut Out) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for target in targets {
        match work(target, out) {
            Ok(()) => {}
            Err(error) if targets.len() == 1 => return Err(error),
            Err(error) => {
                out.flush()?;
                report(format!("{error:#}"));
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn print(args: &Args, target: &Target, mut out: &mut dyn Write) -> anyhow::Result<ShownInput> {
    let checkpoint = target.open_with(Opening { blocks: true, ..Opening::default() })?;
    let tensors = args.select.matcher().tensors(&checkpoint)?;
    let parts = target.parts(&checkpoint)?;
    let stored = Target::stored(&checkpoint, &parts);
    let document = if args.files {
        Document { files: whole_files(&checkpoint, stored)?, ..Document::default() }
    } else if args.checkpoint {
        let digest = checkpoint_digest(&checkpoint, &Progress::bytes(0))?;
        Document { checkpoint: Some(digest), ..Document::default() }
    } else {
        // The data of a file of another format is not in the order that a safetensors file has.
        let has_files = args.select.matcher().is_everything() && !other::is_in(checkpoint.files());
        Document::of_data(&checkpoint, &tensors, if has_files { stored } else { &[] })?
    };
    if args.json {
        json::write(&document, &mut out)?;
    } else if args.files || args.checkpoint {
        document.list(target, &mut out)?;
    } else {
        let has_names = checkpoint.index_path().is_some() || document.files.len() > 1;
        document.write(has_names, &mut out)?;
        out.flush()?;
        document.errors().for_each(report);
    }
    let totals = Totals::of_checkpoint(&checkpoint, tensors);
    Ok(ShownInput::new(totals).sound(document.errors().next().is_none()))
}

fn whole_files(checkpoint: &Checkpoint, stored: &[Checkpoint]) -> anyhow::Result<Vec<FileEntry>> {
    let progress = Progress::bytes(0);
    let hash = |file: &&CheckpointFile<Source>, _: &mut ()| {
        let (source, path) = (file.safetensors().source(), file.path());
        match other::tensor_file(source) {
            // Its source gives the tensors, and not the bytes of the file.
            Some(_) => sha256_of(&FileSource::open(path)?, path, &progress),
            None => sha256_of(source, path, &progress),
        }
    };
    let mut files = Vec::new();
    in_order(
        stored.iter().flat_map(|it| it.files()),
        0,
        hash,
        |file, sha256| -> anyhow::Result<()> {
            files.push(FileEntry { sha256: Some(sha256?), ..FileEntry::new(checkpoint, file) });
            Ok(())
        },
    )?;
    Ok(files)
}

/// Returns the digest of a checkpoint, as a delta has it.
fn checkpoint_digest(checkpoint: &Checkpoint, progress: &Progress) -> anyhow::Result<String> {
    anyhow::ensure!(
        !other::is_in(checkpoint.files()),
        "{}: the digest of a checkpoint is the one of safetensors files; `safetensors convert` makes \
         such",
        input::opened_path(checkpoint)
    );
    progress.add_total(checkpoint.tensors().map(|it| it.byte_len()).sum());
    let options = safetensors_delta::Options::new().progress(progress.adding());
    Ok(safetensors_delta::digest(checkpoint, &options)?)
}

fn sha256_of(source: &impl ReadAt, path: &Path, progress: &Progress) -> anyhow::Result<String> {
    let options = DigestOptions::new().progress(progress.uncounted());
    let hash = digest::hash_source(source, &options);
    Ok(hash.map_err(|error: Error| error.in_path(path))?.to_string())
}

impl FileEntry {
    fn new(checkpoint: &Checkpoint, file: &CheckpointFile<Source>) -> Self {
        let path = file.path().to_string_lossy().into_owned();
        let name = input::shard_name(checkpoint, file.path());
        Self { path, place: file.path().into(), name, data_sha256: None, sha256: None }
    }
}

impl<'a> Document<'a> {
    fn of_data(
        checkpoint: &Checkpoint,
        tensors: &[Tensor<'a>],
        stored: &[Checkpoint],
    ) -> anyhow::Result<Self> {
        let of_stored = stored.iter().map(|it| data_len(it.files())).sum::<u64>();
        let bytes = tensors.iter().map(LazyTensor::byte_len).sum::<u64>() + of_stored;
        let progress = Progress::bytes(bytes);
        let options = || DigestOptions::new().progress(progress.counted());
        let (mut readable, mut errors) = (Vec::new(), Vec::new());
        for tensor in tensors {
            let error = other::why_unread(tensor);
            readable.extend(error.is_none().then_some(*tensor));
            errors.push(error);
        }
        let mut of_tensors = digest::hash_tensors(&readable, &options())?.into_iter();
        let mut files = Vec::new();
        for stored in stored {
            let digests = digest::hash_files(stored, &options())?;
            files.extend(stored.files().iter().zip(digests).map(|(file, digest)| FileEntry {
                data_sha256: Some(digest.to_string()),
                ..FileEntry::new(checkpoint, file)
            }));
        }
        let tensors = tensors.iter().zip(errors).map(|(tensor, error)| {
            let digest = if error.is_none() { of_tensors.next() } else { None };
            let xxh3_128 = digest.map(|digest| digest.to_string());
            Entry { name: tensor.name(), xxh3_128, error }
        });
        Ok(Self { tensors: tensors.collect(), files, checkpoint: None })
    }

    /// Writes lines that `--check` reads.
    fn list(&self, target: &Target, out: &mut impl Write) -> anyhow::Result<()> {
        for file in &self.files {
            let sha256 = file.sha256.as_deref().unwrap_or_default();
            out.write_all(&check::line(sha256, &file.place))?;
        }
        if let Some(digest) = &self.checkpoint {
            out.write_all(&check::line(&format!("blake3:{digest}"), target.name().as_ref()))?;
        }
        Ok(())
    }

    fn errors(&self) -> impl Iterator<Item = &String> {
        self.tensors.iter().filter_map(|entry| entry.error.as_ref())
    }

    /// Does not name a single file, so that equal data gives equal lines.
    fn write(&self, name_files: bool, out: &mut impl Write) -> io::Result<()> {
        for Entry { name, xxh3_128, .. } in &self.tensors {
            if let Some(xxh3_128) = xxh3_128 {
                writeln!(out, "{xxh3_128}  {}", text::name(name))?;
            }
        }
        for FileEntry { name, data_sha256, .. } in &self.files {
            let digest = data_sha256.as_deref().unwrap_or_default();
            writeln!(out, "sha256:{digest}  {}", if name_files { name } else { "(all data)" })?;
        }
        Ok(())
    }
}

fn record(path: &Path, way: Way, out: &mut impl Write) -> anyhow::Result<()> {
    change_all(path, way, out, |edit, Changing { file, is_dry, .. }| {
        let header = edit.header();
        let count = text::counted(header.len() as u64, "digest");
        if is_dry {
            // The length of the record does not depend on the digests.
            let none = Digest::from([0; 16]);
            let record: TensorDigests = header.iter().map(|it| (it.name(), none)).collect();
            let edit = edit.set_metadata([(digest::KEY, record.to_string())]);
            return Ok((edit, format!("set {}", digest::KEY)));
        }
        let progress = Progress::bytes(header.data_len());
        let options = DigestOptions::new().progress(progress.counted());
        let recorded = edit.record_digests(&options);
        Ok((way.advised(recorded, file)?, format!("{count} recorded")))
    })
}

fn data_len(files: &[CheckpointFile<Source>]) -> u64 {
    files.iter().map(|file| file.safetensors().header().data_len()).sum()
}
