//! `safetensors digest`: digests that show whether data has changed.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use safetensors_core::checkpoint::{CheckpointFile, CheckpointPath};
use safetensors_core::digest::{self, Digest, DigestOptions, TensorDigests};
use safetensors_core::edit::{Edit, restore_header};
use safetensors_core::{Error, ErrorKind, LazyTensor};
use serde::Serialize;

use super::Run;
use crate::commands::inputs::{Inputs, ShownInput};
use crate::input;
use crate::input::other;
use crate::input::select::Select;
use crate::input::targets::{Target, is_of_parts};
use crate::input::{Opening, Source};
use crate::model::totals::Totals;
use crate::output::edit::{Way, check_on_disk, files_of, warn_of_notes, warn_of_restored};
use crate::terminal::progress::Progress;
use crate::terminal::report::report;
use crate::terminal::stdout::Out;
use crate::terminal::{json, text};

/// Print the digest of each tensor, and of all data of each file.
///
/// A tensor has an XXH3 digest of 128 bits, which detects accidental changes but not
/// deliberate ones. A file has the SHA-256 digest of all data after the header, as
/// modelspec.hash_sha256 holds it. Metadata changes neither. With --filter, only
/// tensors have digests. A tensor of PyTorch that cannot be read is an error; the
/// others are still printed. `safetensors verify --digests` compares files with the
/// digests that --record has written into them. To record, each file is copied with
/// the new header, and the copy replaces the file when it is complete.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    select: Select,
    /// Write the digests of tensors into the metadata of each file
    #[arg(long, conflicts_with_all = ["patterns", "json"])]
    record: bool,
    /// With --record: write new headers over the old ones where they fit, without copies of the
    /// files
    ///
    /// This saves the time and the space of a copy, but there is a moment in which readers refuse
    /// the file. If the command is killed in it, they do until the next change restores the file. A
    /// file with several names (hard links) is copied
    #[arg(long, requires = "record")]
    in_place: bool,
    /// With --record: print what would be changed, and change nothing
    #[arg(short = 'n', long, requires = "record")]
    dry_run: bool,
    /// With --record: change files even in a cache of the Hub, where other programs read them
    #[arg(long, requires = "record")]
    force: bool,
    /// Print everything as one JSON document
    ///
    /// Its keys are tensors, and files, which is empty with --filter
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  safetensors digest model.safetensors
  safetensors digest model.safetensors > before.txt
  safetensors digest model.safetensors | diff before.txt -
  safetensors digest --record model.safetensors
  safetensors digest --record --in-place model.safetensors
  safetensors digest --recursive models/ --json | jq '.results[].path'

Exit codes: 0 printed or recorded, 1 PATH is malformed, unreadable or unwritable, 2 wrong usage.";

#[derive(Serialize)]
struct Document<'a> {
    tensors: Vec<Entry<'a>>,
    files: Vec<FileEntry>,
}

#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    xxh3_128: Option<String>,
    /// Why there is no digest: the tensor cannot be read.
    error: Option<String>,
}

#[derive(Serialize)]
struct FileEntry {
    path: String,
    /// The printable path, relative to the index.
    #[serde(skip)]
    name: String,
    data_sha256: String,
}

impl Run for Args {
    fn writes_files(&self) -> bool {
        true
    }

    fn is_paged(&self) -> bool {
        !self.record
    }

    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        if self.record {
            let Self { dry_run, in_place, force, .. } = *self;
            let way = Way { dry_run, in_place, force };
            return record_all(&self.inputs.targets()?, way, out);
        }
        self.inputs.show(self.json, out, |target, out| print(self, target, out))
    }
}

/// Prints the digests of one checkpoint.
fn print(args: &Args, target: &Target, mut out: &mut dyn Write) -> anyhow::Result<ShownInput> {
    let checkpoint = target.open()?;
    let matcher = args.select.matcher();
    let tensors = matcher.tensors(&checkpoint)?;
    let parts = target.parts(&checkpoint)?;
    let stored = Target::stored(&checkpoint, &parts);
    // The data of a file of another format is not in the order that a safetensors file has.
    let has_files = matcher.is_everything() && !other::is_in(checkpoint.files());
    let stored = if has_files { stored } else { &[] };
    let of_stored = stored.iter().map(|it| data_len(it.files())).sum::<u64>();
    let bytes = tensors.iter().map(LazyTensor::byte_len).sum::<u64>() + of_stored;
    let progress = Progress::bytes(bytes);
    let options = || DigestOptions::new().progress(progress.counted());
    let (mut readable, mut errors) = (Vec::new(), Vec::new());
    for tensor in &tensors {
        let error = other::why_unread(tensor);
        readable.extend(error.is_none().then_some(*tensor));
        errors.push(error);
    }
    let mut of_tensors = digest::hash_tensors(&readable, &options())?.into_iter();
    let mut files = Vec::new();
    for stored in stored {
        let digests = digest::hash_files(stored, &options())?;
        files.extend(stored.files().iter().zip(digests).map(|(file, digest)| FileEntry {
            path: file.path().to_string_lossy().into_owned(),
            name: input::shard_name(&checkpoint, file.path()),
            data_sha256: digest.to_string(),
        }));
    }
    drop(progress);
    let totals = Totals::of(tensors.iter().copied());
    let tensors = tensors.iter().zip(errors).map(|(tensor, error)| {
        let digest = if error.is_none() { of_tensors.next() } else { None };
        let xxh3_128 = digest.map(|digest| digest.to_string());
        Entry { name: tensor.name(), xxh3_128, error }
    });
    let document = Document { tensors: tensors.collect(), files };
    if args.json {
        json::write(&document, &mut out)?;
    } else {
        let has_names = checkpoint.index_path().is_some() || document.files.len() > 1;
        document.write(has_names, &mut out)?;
        out.flush()?;
        document.errors().for_each(report);
    }
    Ok(ShownInput::new(totals).sound(document.errors().next().is_none()))
}

impl Document<'_> {
    /// Why tensors have no digest.
    fn errors(&self) -> impl Iterator<Item = &String> {
        self.tensors.iter().filter_map(|entry| entry.error.as_ref())
    }

    /// Writes one line for each digest. A single file is not named, so that the same data gives the
    /// same lines under any file name.
    fn write(&self, name_files: bool, out: &mut impl Write) -> io::Result<()> {
        for Entry { name, xxh3_128, .. } in &self.tensors {
            if let Some(xxh3_128) = xxh3_128 {
                writeln!(out, "{xxh3_128}  {}", text::name(name))?;
            }
        }
        for FileEntry { name, data_sha256, .. } in &self.files {
            writeln!(
                out,
                "sha256:{data_sha256}  {}",
                if name_files { name } else { "(all data)" }
            )?;
        }
        Ok(())
    }
}

/// Writes the digests of tensors into the files of each checkpoint. One that fails does not stop
/// the others.
fn record_all(targets: &[Target], way: Way, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    for target in targets {
        target.path().map_or(Ok(()), check_on_disk)?;
    }
    let mut is_recorded = true;
    for target in targets {
        match target.path().and_then(|path| recover_and_record(path, way, out)) {
            Ok(()) => {}
            Err(error) if targets.len() == 1 => return Err(error),
            Err(error) => {
                out.flush()?;
                report(format!("{error:#}"));
                is_recorded = false;
            }
        }
    }
    Ok(if is_recorded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn recover_and_record(path: &Path, way: Way, out: &mut impl Write) -> anyhow::Result<()> {
    // A header that an interrupted change left torn is restored before the files are opened.
    let files = files_or_parts(path)?;
    for file in files.iter().filter(|_| !way.dry_run) {
        if way.advised(restore_header(file), file)? {
            warn_of_restored(file);
        }
    }
    // Everything must be sound before anything is written. One file with parts is no checkpoint,
    // and is checked when it is opened to be changed.
    let data = match input::open_file(path, Opening::default()) {
        Ok(checkpoint) => data_len(checkpoint.files()),
        Err(error) if path.is_file() && error.downcast_ref().is_some_and(is_of_parts) => {
            fs::metadata(path)?.len()
        }
        Err(error) => return Err(error),
    };
    if way.dry_run {
        return files.iter().try_for_each(|file| Ok(writeln!(out, "{}", would(file, way)?)?));
    }
    record(&files, data, way, out)
}

/// The message of a dry run for one file.
fn would(file: &Path, way: Way) -> anyhow::Result<String> {
    let edit = way.advised(Edit::open_read_only(file), file)?;
    // Its length does not depend on the digests.
    let none = Digest::from([0; 16]);
    let record: TensorDigests = edit.header().iter().map(|it| (it.name(), none)).collect();
    let edit = edit.set_metadata([(digest::KEY, record.to_string())]).in_place(way.in_place);
    let would = way.would(&edit.change_cached(way.force), file)?;
    Ok(format!("{would}: set {}", digest::KEY))
}

/// All files at a path, also those of a directory of parts of tensors. None is opened.
fn files_or_parts(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let is_file =
        |name: &String| matches!(CheckpointPath::from_name(name), Some(CheckpointPath::File(_)));
    files_of(path).or_else(|error| match error.downcast_ref().map(Error::kind) {
        Some(ErrorKind::NoCheckpoint { found, .. })
            if !found.is_empty() && found.iter().all(is_file) =>
        {
            Ok(found.iter().map(|name| path.join(name)).collect())
        }
        _ => Err(error),
    })
}

/// Writes the digests of tensors into each file.
fn record(files: &[PathBuf], data: u64, way: Way, out: &mut impl Write) -> anyhow::Result<()> {
    let progress = Progress::bytes(data);
    let mut told = Ok(());
    for file in files {
        let options = DigestOptions::new().progress(progress.counted());
        let edit = Edit::open(file).map(|it| it.in_place(way.in_place).change_cached(way.force));
        let recorded = edit.and_then(|edit| {
            let count = edit.header().len() as u64;
            let edit = edit.record_digests(&options)?;
            let notes = edit.notes()?;
            edit.apply()?;
            Ok((text::counted(count, "digest"), notes))
        });
        let (digests, notes) = way.advised(recorded, file)?;
        progress.suspended(|| warn_of_notes(file, &notes));
        let tell =
            || writeln!(out, "{}: {digests} recorded", text::path(file)).and_then(|()| out.flush());
        // If a line cannot be printed, the remaining files are still recorded.
        told = told.and(progress.suspended(tell));
    }
    told.context("the digests are recorded, but this could not be printed")
}

/// The bytes of data in all files.
fn data_len(files: &[CheckpointFile<Source>]) -> u64 {
    files.iter().map(|file| file.safetensors().header().data_len()).sum()
}
