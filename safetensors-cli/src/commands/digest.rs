//! `safetensors digest`: what tells whether data has changed.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use safetensors_core::digest::{self, RecordOptions};
use serde::Serialize;

use crate::select::Select;
use crate::{input, json, text};

/// Print the digest of each tensor, and of all data of each file.
///
/// PATH is a file, an index (*.safetensors.index.json), a directory that holds an
/// index or exactly one file, or - for standard input.
///
/// Tensors have XXH3 digests of 128 bits, which find every accident but no fraud. All
/// data after the header has a SHA-256 digest, as modelspec.hash_sha256 holds it:
/// metadata makes no difference to it. `safetensors verify --digests` compares files
/// with what --record has written into them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, verbatim_doc_comment)]
pub(crate) struct Args {
    /// A file, an index or a directory
    #[arg(value_name = "PATH")]
    path: PathBuf,
    #[command(flatten)]
    select: Select,
    /// Write the digests of tensors into the metadata of each file
    #[arg(long, conflicts_with_all = ["patterns", "json"])]
    record: bool,
    /// Everything as one JSON document
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  safetensors digest model.safetensors
  safetensors digest a.safetensors > a.txt; safetensors digest b.safetensors | diff a.txt -
  safetensors digest --record model.safetensors && safetensors verify --digests model.safetensors

Exit codes: 0 printed, 1 PATH is malformed or cannot be read, 2 wrong usage.";

#[derive(Serialize)]
struct Document<'a> {
    tensors: Vec<Entry<'a>>,
    files: Vec<FileEntry>,
}

#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    xxh3_128: String,
}

#[derive(Serialize)]
struct FileEntry {
    path: String,
    data_sha256: String,
}

/// Prints or records digests.
pub(crate) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let checkpoint = input::open(&args.path)?;
    if args.record {
        for shard in checkpoint.shards() {
            digest::record(shard.path(), &RecordOptions::new())?;
            let tensors = text::counted(shard.archive().header().len() as u64, "digest");
            writeln!(out, "{}: {tensors} recorded", text::path(shard.path()))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let tensors = args.select.matcher()?.tensors(&checkpoint)?;
    let digests = digest::tensors(&tensors, 0)?;
    let entries = tensors.iter().zip(digests);
    let entries = entries.map(|(tensor, digest)| Entry { name: tensor.name(), xxh3_128: digest.to_string() });
    let mut document = Document { tensors: entries.collect(), files: Vec::new() };
    for shard in checkpoint.shards() {
        let digest = digest::data_sha256(shard.archive()).map_err(|error| error.in_file(shard.path().display()))?;
        let data_sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        document.files.push(FileEntry { path: shard.path().to_string_lossy().into_owned(), data_sha256 });
    }
    if args.json {
        json::write(&document, out)?;
        return Ok(ExitCode::SUCCESS);
    }
    for Entry { name, xxh3_128 } in &document.tensors {
        writeln!(out, "{xxh3_128}  {}", text::name(name))?;
    }
    for FileEntry { path, data_sha256 } in &document.files {
        writeln!(out, "sha256:{data_sha256}  {}", text::printable(path))?;
    }
    Ok(ExitCode::SUCCESS)
}
