//! The epochs of a training of burn: `epoch-N` with a `manifest.json` of safetensors-burn.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use safetensors_core::digest::Digest;
use safetensors_core::io::{FileSource, next_to};
use safetensors_core::{ReadAt, shape};
use safetensors_delta::{Change, open_linked};
use serde::{Deserialize, Serialize, Serializer};

use crate::input::{self, Opening};
use crate::model::totals::Totals;
use crate::terminal::text;

const ENTRIES: usize = 100_000;

const FORMAT: &str = "safetensors-bridge epoch";

const MANIFEST: u64 = 1 << 20;

#[derive(Debug, Serialize)]
pub(crate) struct Epoch {
    #[serde(rename = "epoch")]
    pub(crate) number: u64,
    #[serde(serialize_with = "lossy")]
    pub(crate) path: PathBuf,
    #[serde(skip)]
    has_manifest: bool,
    /// Why it is incomplete.
    pub(crate) problem: Option<String>,
    pub(crate) bytes: u64,
    pub(crate) files: Vec<EpochFile>,
}

#[derive(Debug, Serialize)]
pub(crate) struct EpochFile {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) base: Option<u64>,
    pub(crate) tensors: u64,
    pub(crate) parameters: u128,
}

/// The entries that are read here. safetensors-burn checks more.
#[derive(Deserialize)]
struct Manifest {
    format: String,
    epoch: Option<u64>,
    files: BTreeMap<String, Described>,
}

#[derive(Deserialize)]
struct Described {
    bytes: u64,
    header_xxh3_128: Option<String>,
    delta: Option<DescribedDelta>,
}

/// A delta that replaces a file.
#[derive(Deserialize)]
struct DescribedDelta {
    epoch: u64,
    base: Option<Box<Described>>,
    files: BTreeMap<String, Described>,
}

/// Sorted; none if the directory cannot be read.
pub(crate) fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().take(ENTRIES);
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

fn number(name: &str) -> Option<u64> {
    name.strip_prefix("epoch-")?.parse().ok()
}

/// Sorts by age. Returns none without any manifest, because burn's logs have such names, too.
pub(crate) fn in_directory(directory: &Path) -> Vec<Epoch> {
    let numbers: BTreeSet<_> = names(directory).iter().filter_map(|name| number(name)).collect();
    let paths = numbers.into_iter().map(|it| (it, directory.join(format!("epoch-{it}"))));
    let paths = paths.filter(|(_, path)| path.is_dir() || path.is_symlink());
    let epochs: Vec<_> = paths.map(|(number, path)| Epoch::read(number, path)).collect();
    if epochs.iter().any(|epoch| epoch.has_manifest) { epochs } else { Vec::new() }
}

/// Returns the epochs in or below a directory, or the directory itself, that have one of `files` or
/// are next to one that has.
pub(crate) fn below<'a>(directory: &'a Path, files: impl Iterator<Item = &'a Path>) -> Vec<Epoch> {
    let is_epoch =
        |path: &&Path| path.file_name().is_some_and(|it| number(&it.to_string_lossy()).is_some());
    let files = files.filter(|file| file.starts_with(directory));
    let epochs = files.flat_map(Path::ancestors).filter(is_epoch);
    let runs: BTreeSet<_> = epochs.filter_map(Path::parent).chain([directory]).collect();
    let epochs = runs.into_iter().flat_map(in_directory);
    epochs.filter(|epoch| epoch.path.starts_with(directory)).collect()
}

impl Epoch {
    fn read(number: u64, path: PathBuf) -> Self {
        let manifest = manifest(&path, number);
        let has_manifest = manifest.is_ok();
        let (files, problem) = match manifest.and_then(|manifest| files(&path, manifest)) {
            _ if path.is_symlink() => {
                (Vec::new(), Some("a link, which training passes over".into()))
            }
            Ok(files) => (files, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        };
        let bytes = files.iter().map(|file| file.bytes).sum();
        Self { number, path, has_manifest, problem, bytes, files }
    }

    // A link is no epoch, and no problem.
    pub(crate) fn is_link(&self) -> bool {
        self.path.is_symlink()
    }
}

fn manifest(epoch: &Path, number: u64) -> anyhow::Result<Manifest> {
    const NAME: &str = "manifest.json";
    let text = next_to::read(epoch, NAME, MANIFEST)?;
    let read = || {
        let text = text.context("there is no such file")?;
        let manifest: Manifest = serde_json::from_slice(&text)?;
        anyhow::ensure!(manifest.format == FORMAT, "this is no manifest of an epoch");
        let found = manifest.epoch.unwrap_or(number);
        anyhow::ensure!(found == number, "expected the manifest of epoch {number}, found {found}");
        Ok(manifest)
    };
    read().with_context(|| text::lossy(&epoch.join(NAME)))
}

/// Reads only headers.
fn files(epoch: &Path, manifest: Manifest) -> anyhow::Result<Vec<EpochFile>> {
    let file = |(name, described): (String, Described)| {
        let path = named(epoch, &name)?;
        let Some(delta) = &described.delta else {
            let bytes = described.check(&path)?;
            let checkpoint = input::open_file(&path, Opening::default())?;
            let Totals { tensors, parameters, .. } =
                Totals::of_checkpoint(&checkpoint, checkpoint.tensors());
            return Ok(EpochFile { name, bytes, base: None, tensors, parameters });
        };
        let directory = path.with_extension("delta");
        let parts = delta.files.iter();
        let parts = parts.map(|(part, it)| it.check(&named(&directory, part)?));
        let bytes = parts.sum::<anyhow::Result<u64>>()?;
        if let Some(base) = &delta.base {
            base.check(&directory.join(format!("epoch-{}/model.safetensors", delta.epoch)))?;
        }
        let Totals { tensors, parameters, .. } = totals_of_delta(&directory)?;
        Ok(EpochFile { name, bytes, base: Some(delta.epoch), tensors, parameters })
    };
    manifest.files.into_iter().map(file).collect()
}

fn named(directory: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let path = directory.join(name);
    // A name with a separator would lead elsewhere.
    anyhow::ensure!(
        Path::new(name).components().count() == 1 && path.file_name().is_some(),
        "{}: it names a file elsewhere: {}",
        text::lossy(directory),
        text::short(name)
    );
    Ok(path)
}

impl Described {
    /// Returns the length, if it and the header are the manifest's.
    fn check(&self, path: &Path) -> anyhow::Result<u64> {
        let file = FileSource::open(path)?;
        let check = || {
            let (expected, found) = (self.bytes, file.byte_len());
            anyhow::ensure!(
                found == expected,
                "the file should have {expected} bytes, found {found}"
            );
            if let Some(expected) = &self.header_xxh3_128 {
                let found = Digest::of_header(file.file())?.to_string();
                anyhow::ensure!(
                    found == *expected,
                    "the header has changed: its XXH3-128 should be {expected}, found {found}"
                );
            }
            Ok(found)
        };
        check().with_context(|| text::lossy(path))
    }
}

/// Returns the totals of the tensors that a delta makes of its base.
fn totals_of_delta(directory: &Path) -> anyhow::Result<Totals> {
    let (base, chain) = open_linked(directory)?;
    let changes = || chain.deltas().iter().flat_map(|delta| delta.changes());
    let others: BTreeSet<_> =
        changes().filter(|(_, change)| *change != Change::Changed).map(|(name, _)| name).collect();
    let kept = Totals::sum(base.tensors().filter(|tensor| !others.contains(tensor.name())));
    let whole = changes().filter_map(|(_, change)| {
        let (_, shape) = change.whole()?;
        let parameters = shape::element_count(shape).ok()?.into();
        Some(Totals { tensors: 1, parameters, bytes: 0 })
    });
    Ok([kept].into_iter().chain(whole).sum())
}

fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&text::lossy(path))
}
