//! [`Writer`]: a checkpoint as a burnpack file.

use std::collections::BTreeMap;
use std::{fmt, io};

use safetensors_core::framework::write_exactly;
use safetensors_core::io::FileSource;
use safetensors_core::rewrite::PlannedTensor;
use safetensors_core::save::AtomicFile;
use safetensors_core::{self as core, ReadAt, Rewrite, SaveOptions, TensorSource, shape};

use super::content::{Content, Described, Dims, Named, Scalar};
use super::entries::{IDS, SCALARS, put, take};
use super::{ALIGNMENT, HEADER, MOST_ENTRIES, START, bad, data_start};
use crate::burn::{MOST_DIMS, name_of};
use crate::error::{Error, ErrorKind, Result};
use crate::pairs::Pairs;
use crate::places::write_placed;

/// burn's limits: tensors, bytes of each, bytes of a file.
const MOST_TENSORS: usize = 100_000;
const MOST_BYTES: u64 = 10 << 30;
const MOST_FILE: u64 = 100 << 30;

/// This library reads them with the default [`Limits`](crate::Limits), burn 100 MiB.
const MOST_CONTENT: u64 = 64 << 20;

/// The content of a burnpack file (`.bpk`): the tensors and the metadata of a [`Rewrite`].
///
/// burn 0.22 reads it with `ModuleRecord::load` and `BurnpackStore`, burn 0.20 and 0.21 with the
/// latter; burn 0.20 reads no booleans. Names, shapes, bytes and metadata stay. Two entries of the
/// burn adapter give parameters their ids (`safetensors_bridge.param_ids`), and the file its
/// numbers, such as an optimizer's steps (`safetensors_bridge.scalars`). The bytes of tied weights
/// are stored once.
///
/// Data is read while the file is written, several tensors at once. Equal tensors give equal bytes,
/// which burn also writes for tensors sorted by name.
///
/// ```
/// use safetensors_core::save::AtomicFile;
/// use safetensors_core::{Checkpoint, Rewrite, SaveOptions, TensorView, save};
/// use safetensors_formats::{Options, burn};
///
/// # let dir = tempfile::tempdir()?;
/// # let (model, path) = (dir.path().join("model.safetensors"), dir.path().join("model.bpk"));
/// let weight = TensorView::from_slice(&[2, 1], &[1.0_f32, 2.0])?;
/// save(&model, [("head.weight", weight)], &SaveOptions::new())?;
///
/// let checkpoint = Checkpoint::open(&model)?;
/// let rewrite = Rewrite::from_checkpoint(&checkpoint);
/// let writer = burn::Writer::new(&rewrite)?;
/// let mut file = AtomicFile::create(&path, &SaveOptions::new())?;
/// writer.write(&file, |_| ())?;
/// file.commit()?;
///
/// let read = safetensors_formats::open(&path, &Options::new())?;
/// assert_eq!(read.tensor("head.weight")?.read()?.into_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Writer<'r, 'a, S = FileSource> {
    rewrite: &'r Rewrite<'a, S>,
    /// Sorted by name.
    tensors: Vec<(&'r str, &'r PlannedTensor<'a, S>)>,
    /// The start of each in the file, then the end of the file.
    places: Vec<u64>,
    header: Vec<u8>,
}

impl<S> fmt::Debug for Writer<'_, '_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("tensors", &self.tensors.len()).finish()
    }
}

impl<'r, 'a, S: ReadAt> Writer<'r, 'a, S> {
    /// Plans the file, without reading data.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotForBurn`] for a dtype that burn lacks, malformed ids and numbers, and more
    /// than readers take: 100,000 tensors, 64 dimensions and 10 GiB for each, 64 MiB of names and
    /// metadata, 100 GiB in all. Also like [`Rewrite::plan`].
    pub fn new(rewrite: &'r Rewrite<'a, S>) -> Result<Self> {
        let plan = rewrite.plan(&SaveOptions::new())?;
        let mut tensors: Vec<_> = plan.tensors().collect();
        tensors.sort_unstable_by_key(|(name, _)| *name);
        let mut metadata = plan.metadata().clone();
        plan.aliases().keys().for_each(|alias| _ = metadata.remove(alias));
        let mut ids = take(&mut metadata, IDS)?;
        let scalars = take(&mut metadata, SCALARS)?.into_iter();
        let scalars = Pairs(scalars.map(|(name, scalar)| (name, Scalar(scalar))).collect());
        let mut end = 0_u64;
        let mut starts = Vec::new();
        let mut described = BTreeMap::new();
        for (name, tensor) in &tensors {
            let one = describe(tensor, &mut end, ids.remove(*name));
            let one = one.map_err(|error| error.in_tensor(name))?;
            starts.push(one.data_offsets.0);
            described.insert((*name).to_owned(), one);
        }
        for (alias, kept) in plan.aliases() {
            let kept = described.get(kept).ok_or_else(|| {
                let problem = format!("the tensor {kept:?}, which it is a name of, is not written");
                Error::from(ErrorKind::NotForBurn { problem }).in_tensor(alias)
            })?;
            let param_id = ids.remove(alias).or(kept.param_id);
            let one = Described { param_id, ..kept.clone() };
            described.insert(alias.clone(), one);
        }
        // Others belong to paths in a module, which are no tensors.
        put(&mut metadata, IDS, ids)?;
        let content = Content { tensors: Pairs(described), metadata: Pairs(metadata), scalars };
        let header = encode(&content)?;
        let start = header.len() as u64;
        let places: Vec<_> =
            starts.into_iter().chain([end]).map(|place| place.saturating_add(start)).collect();
        check(start.saturating_add(end) <= MOST_FILE, "burn reads no file of more than 100 GiB")?;
        Ok(Self { rewrite, tensors, places, header })
    }

    /// Writes everything to an empty file, which the caller then commits. `written` gets the bytes
    /// of each piece, from any thread.
    ///
    /// # Errors
    ///
    /// Errors of reading; like [`Rewrite::check_unchanged`], after the last byte;
    /// [`Io`](core::ErrorKind::Io).
    pub fn write(&self, file: &AtomicFile, written: impl Fn(u64) + Sync) -> Result<()> {
        file.write_all_at(&self.header, 0)?;
        let ranges = self.places.windows(2).map(|pair| pair[0]..pair[1]);
        write_placed(file, self.tensors.iter().zip(ranges), written, |(name, tensor), sink| {
            let put = write_exactly(*tensor, tensor.byte_len(), sink);
            put.map_err(|error| error.in_tensor(name))
        })?;
        self.rewrite.check_unchanged()
    }
}

fn describe(tensor: &impl TensorSource, end: &mut u64, id: Option<u64>) -> Result<Described> {
    let dtype = tensor.dtype();
    let shape = tensor.shape();
    check(shape.len() <= MOST_DIMS, "it has more than 64 dimensions")?;
    let name = name_of(dtype).ok_or_else(|| {
        Error::from(ErrorKind::NotForBurn { problem: format!("its elements are {dtype}") })
    })?;
    let len = shape::byte_len(dtype, shape)?;
    check(len <= MOST_BYTES, "burn reads no tensor of more than 10 GiB")?;
    let start = end.checked_next_multiple_of(ALIGNMENT);
    let place = start.and_then(|start| Some((start, start.checked_add(len)?)));
    let place = place
        .ok_or_else(|| Error::from(core::ErrorKind::Io(io::ErrorKind::FileTooLarge.into())))?;
    *end = place.1;
    let shape = Dims(shape.iter().map(|&dim| dim as u64).collect());
    Ok(Described { dtype: Named(name.into()), shape, data_offsets: place, param_id: id })
}

fn encode(content: &Content) -> Result<Vec<u8>> {
    let tensors = content.tensors.0.len();
    let scalars = content.scalars.0.len();
    check(tensors <= MOST_TENSORS, "burn reads no file of more than 100,000 tensors")?;
    // The plan has limited the metadata.
    check(scalars <= MOST_ENTRIES, "it has more than 200,000 numbers")?;
    let mut bytes = vec![0; HEADER];
    ciborium::into_writer(content, &mut bytes).map_err(|error| bad(HEADER as u64, error))?;
    let len = (bytes.len() - HEADER) as u64;
    check(len <= MOST_CONTENT, "its names and metadata have more than 64 MiB")?;
    bytes[..START.len()].copy_from_slice(&START);
    bytes[START.len()..HEADER].copy_from_slice(&(len as u32).to_le_bytes());
    bytes.resize(data_start(len) as usize, 0);
    Ok(bytes)
}

fn check(holds: bool, problem: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(ErrorKind::NotForBurn { problem: problem.into() }.into()) }
}
