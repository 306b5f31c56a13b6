//! Distributed checkpoints (DCP): `.metadata` lists tensors, files `*.distcp` have their chunks.
//! A file is named `__RANK_NUMBER.distcp`, and each chunk is in an archive.

use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::sync::Arc;

use safetensors_core::framework::in_parallel;
use serde::Deserialize;
use serde_json::Value as Json;

use super::metadata::{Chunk, Item, Metadata, TensorEntry, ValueEntry};
use super::settings::{self, Setting};
use super::{File, Folder, OPENED_AT_ONCE, add, bad, in_one_piece, item, left_out, ranks};
use crate::Options;
use crate::budget::Budget;
use crate::error::{Error, ErrorKind, Result};
use crate::pytorch::{shape_of, without_dtype};
use crate::tensor_file::{
    Archived, Builder, Data, Directory, Place, Reason, Region, Stored, Tensor, WholeTensor,
};
use crate::window::Window;

const DATA: &str = ".distcp";

/// Megatron's format, and data that no rank divides.
const MEGATRON: &str = "metadata.json";
const COMMON: &str = "common.pt";

const AT_ONCE: usize = 32;

pub(super) fn examine(folder: &Folder<'_>) -> Result<Directory> {
    let is_megatron = check_megatron(folder)?;
    // They count before the list of their chunks is read. One that cannot be opened may be a stray.
    let listed: Vec<_> = folder.files.iter().filter(|name| name.ends_with(DATA)).collect();
    let open = |name: &&String, _: &mut ()| Ok(folder.open(name).ok());
    let opened = in_parallel(listed.iter(), OPENED_AT_ONCE, open)?;
    let opened: HashMap<_, _> = listed.iter().map(|name| name.as_str()).zip(opened).collect();
    let (metadata, mut files) = ranks::read(folder)?;
    let first = files.len();
    let chunks = metadata.tensors.iter().filter(|tensor| is_readable(tensor));
    let chunks = chunks.flat_map(|tensor| tensor.chunks.iter().filter_map(|it| it.item.as_ref()));
    let items = chunks.chain(metadata.values.iter().map(|value| &value.item));
    let names: Vec<_> =
        items.map(|item| &*item.file).collect::<BTreeSet<_>>().into_iter().collect();
    files.extend(in_parallel(names.iter(), OPENED_AT_ONCE, |name, _: &mut ()| {
        match opened.get(name) {
            Some(Some(file)) => Ok(file.clone()),
            _ => folder.open_listed(name),
        }
    })?);
    // Each takes a job and a piece.
    let chunks = metadata.tensors.iter().map(|tensor| tensor.chunks.len());
    folder.budget.keep_all::<[Chunk; 6]>(chunks.sum())?;
    let file_of = |item: &Item| first + names.binary_search(&&*item.file).unwrap_or(0);
    let jobs = jobs(&metadata, file_of);
    check_places(&jobs, &files)?;
    let found = examine_all(&jobs, &files, folder.options, &folder.budget)?;
    let mut directory = Directory::new(files);
    directory.archives = jobs.iter().map(|job| job.archived).collect();
    directory.tensors = metadata.tensors.iter().map(whole).collect();
    add_found(&mut directory, &jobs, found);
    let is_stray = |name: &&&String| names.binary_search(&name.as_str()).is_err();
    directory.strays.extend(listed.iter().filter(is_stray).map(|it| folder.path.join(it)));
    if is_megatron && folder.has(COMMON) {
        add_common(folder, &mut directory)?;
    }
    Ok(directory)
}

fn add_found(directory: &mut Directory, jobs: &[Job<'_>], found: Vec<PartContent>) {
    let mut plain = Vec::new();
    let mut settings = Vec::new();
    for (job, found) in jobs.iter().zip(found) {
        let file = job.archived.file;
        match (job.part, found) {
            (Part::Chunk { tensor, chunk }, PartContent::Chunk(data)) => {
                let (position, _, place) = &mut directory.tensors[tensor].pieces[chunk];
                *position = file;
                *place = data;
            }
            (_, PartContent::Value(builder)) if builder.tensors.is_empty() => plain.push(job.name),
            (_, PartContent::Value(builder)) => add(directory, builder, file),
            (Part::Value(Some(setting)), PartContent::Setting(value)) => {
                settings.push((setting, value))
            }
            (_, PartContent::Setting(_)) | (Part::Value(_), PartContent::Chunk(_)) => {}
        }
    }
    directory.metadata.extend(settings::entries(settings.into_iter()));
    plain.sort_unstable();
    directory.notes.extend(left_out(&plain, ["value", "values"]));
}

struct Job<'a> {
    archived: Archived,
    name: &'a str,
    entry: Option<&'a TensorEntry>,
    part: Part<'a>,
}

#[derive(Clone, Copy)]
enum Part<'a> {
    Chunk { tensor: usize, chunk: usize },
    Value(Option<&'a Setting>),
}

enum PartContent {
    Chunk(Data),
    Value(Builder),
    Setting(Json),
}

fn is_readable(entry: &TensorEntry) -> bool {
    !entry.is_reshaped && entry.kind.dtype().is_some()
}

/// In the order of their places.
fn jobs<'a>(metadata: &'a Metadata, file_of: impl Fn(&Item) -> usize) -> Vec<Job<'a>> {
    let archived = |item: &Item| Archived { file: file_of(item), start: item.start, len: item.len };
    let mut jobs = Vec::new();
    for (tensor, entry) in metadata.tensors.iter().enumerate().filter(|(_, it)| is_readable(it)) {
        for (chunk, item) in entry.chunks.iter().enumerate() {
            let Some(item) = &item.item else { continue };
            let part = Part::Chunk { tensor, chunk };
            jobs.push(Job {
                archived: archived(item),
                name: &entry.name,
                entry: Some(entry),
                part,
            });
        }
    }
    for ValueEntry { name, item, setting } in &metadata.values {
        let part = Part::Value(setting.as_ref());
        jobs.push(Job { archived: archived(item), name, entry: None, part });
    }
    jobs.sort_by_key(|job| (job.archived.file, job.archived.start));
    jobs
}

fn check_places(jobs: &[Job<'_>], files: &[File]) -> Result<()> {
    for (position, job) in jobs.iter().enumerate() {
        let Archived { file, start, len } = job.archived;
        let located =
            |kind: ErrorKind| Error::from(kind).in_tensor(job.name).in_path(&files[file].0);
        let found = files[file].1.source.byte_len();
        let end = start.saturating_add(len);
        if end > found {
            return Err(located(ErrorKind::PastEnd { expected: end, found }));
        }
        let next = jobs.get(position + 1).filter(|next| next.archived.file == file);
        if let Some(next) = next.filter(|next| next.archived.start < end) {
            return Err(located(ErrorKind::TensorsOverlap { other: next.name.into() }));
        }
    }
    Ok(())
}

fn examine_all(
    jobs: &[Job<'_>],
    files: &[File],
    options: &Options,
    budget: &Budget,
) -> Result<Vec<PartContent>> {
    let batches: Vec<_> = jobs
        .chunk_by(|a, b| a.archived.file == b.archived.file)
        .flat_map(|of_file| of_file.chunks(AT_ONCE))
        .collect();
    // Requests to a server mostly wait.
    let requests = files.iter().find_map(|(_, input)| input.source.requests());
    let threads = requests.map_or(0, |requests| requests.concurrency);
    let found = in_parallel(batches, threads, |batch, _: &mut ()| {
        let (path, input) = &files[batch[0].archived.file];
        let windows = batch.iter().map(|job| {
            let Archived { start, len, .. } = job.archived;
            Window::new(&input.source, start, len)
        });
        // All are inside their files.
        let mut windows: Vec<_> = windows.flatten().collect();
        Window::read_ahead(&mut windows).map_err(|error| Error::from(error).in_path(path))?;
        batch
            .iter()
            .zip(windows)
            .map(|(job, window)| {
                let archive = item::open(Arc::new(window), path, budget);
                let examined = archive.and_then(|archive| examine_one(job, &archive, options));
                examined.map_err(|error| error.in_tensor(job.name).in_path(path))
            })
            .collect::<Result<Vec<_>>>()
    })?;
    Ok(found.into_iter().flatten().collect())
}

fn examine_one(job: &Job<'_>, archive: &item::Archive, options: &Options) -> Result<PartContent> {
    let start = job.archived.start;
    let (Part::Chunk { chunk, .. }, Some(entry)) = (job.part, job.entry) else {
        let builder = item::tensors(archive, archive.object, job.name, start, options)?;
        if matches!(job.part, Part::Value(Some(_))) && builder.tensors.is_empty() {
            let value = item::json(archive, archive.object)?;
            return Ok(value.map_or(PartContent::Value(builder), PartContent::Setting));
        }
        return Ok(PartContent::Value(builder));
    };
    let chunk = &entry.chunks[chunk];
    let Tensor { dtype, shape, data, .. } = item::one_tensor(archive, job.name, start, options)?;
    let expected = shape_of(entry.kind, &chunk.sizes);
    if entry.kind.dtype() != Some(dtype) || shape != expected {
        let problem = format!(
            "its chunk at {:?} should be torch.{} of shape {expected:?}, found {dtype} of shape \
             {shape:?}",
            chunk.offsets, entry.kind.name
        );
        return Err(bad(problem));
    }
    Ok(PartContent::Chunk(data))
}

/// Its pieces have no places yet.
fn whole(entry: &TensorEntry) -> WholeTensor {
    let TensorEntry { name, kind, shape, chunks, .. } = entry;
    let Some(dtype) = kind.dtype() else {
        return in_one_piece(without_dtype(name.clone(), *kind, shape.clone()), 0);
    };
    let shape = shape_of(*kind, shape);
    if entry.is_reshaped {
        let byte_len = safetensors_core::shape::byte_len(dtype, &shape).unwrap_or(u64::MAX);
        let kind = format!("{dtype}, flattened");
        let stored = Some(Stored::unreadable(kind, shape.clone(), byte_len));
        let problem = "ranges of the flattened tensor were saved under another shape";
        let data = Data::Refused(Reason::NotRead(problem.into()));
        let name = name.clone();
        return in_one_piece(Tensor { name, dtype, shape, data, stored }, 0);
    }
    let pieces = chunks.iter().map(|chunk| {
        let mut offsets = shape_of(*kind, &chunk.offsets);
        if chunk.offsets.is_empty() {
            offsets.fill(0);
        }
        let sizes = shape_of(*kind, &chunk.sizes);
        (0, Region::Box { offsets, sizes }, Data::Plain(Place::At(0)))
    });
    WholeTensor { name: name.clone(), dtype, pieces: pieces.collect(), shape, stored: None }
}

/// Returns whether Megatron wrote the directory. Fails for its other formats.
pub(super) fn check_megatron(folder: &Folder<'_>) -> Result<bool> {
    #[derive(Deserialize)]
    struct Format {
        sharded_backend: String,
    }
    if !folder.has(MEGATRON) {
        return Ok(false);
    }
    let mut text = Vec::new();
    let (_, input) = folder.open(MEGATRON)?;
    let limit = folder.options.limits.header_bytes;
    folder.read(&input, |bytes| Ok(bytes.take(limit).read_to_end(&mut text).map(drop)?))?;
    // Other programs use this name for other things.
    let Ok(Format { sharded_backend }) = serde_json::from_slice(&text) else { return Ok(false) };
    if sharded_backend == "torch_dist" {
        return Ok(true);
    }
    let problem = format!(
        "a checkpoint of Megatron in its format {}; expected \"torch_dist\"",
        crate::error::Quoted(&sharded_backend)
    );
    Err(folder.wrong(ErrorKind::NotRead { problem }))
}

/// Adds data that Megatron saves once for all ranks.
fn add_common(folder: &Folder<'_>, directory: &mut Directory) -> Result<()> {
    let (path, input) = folder.open(COMMON)?;
    let len = input.source.byte_len();
    let mut read = || {
        let archive = item::open(Arc::clone(&input.source), &path, &folder.budget)?;
        let builder = item::tensors(&archive, archive.object, "", 0, folder.options)?;
        let file = directory.files.len();
        add(directory, builder, file);
        Ok(())
    };
    read().map_err(|error: Error| error.in_path(&path))?;
    directory.archives.push(Archived { file: directory.files.len(), start: 0, len });
    directory.files.push((path, input));
    Ok(())
}
