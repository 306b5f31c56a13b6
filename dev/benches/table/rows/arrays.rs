//! ndarray's arrays, compared with `.npy` and `.npz` by ndarray-npy, and with the `safetensors`
//! crate with a copy.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use ndarray::{Array3, ArrayD, Ix3, IxDyn};
use ndarray_npy::{NpzReader, NpzWriter, ReadNpyExt, WriteNpyExt};
use safetensors::SafeTensors as Reference;
use safetensors_bridge::Checkpoint;
use safetensors_bridge::ndarray::Reader;

use super::Spec;
use harness::data::{Data, TestFile};
use harness::files::{Tensor, checksum};
use harness::sample::{Contender, Role, Row};
use harness::system;

pub(super) const NPZ: &str = "ndarray-npy, .npz";
const NPY: &str = "ndarray-npy, .npy";
pub(super) const REFERENCE: &str = "safetensors, copied";

/// The shape of the large array: steps, rows, columns. It has 256 MiB.
const SHAPE: [usize; 3] = [256, 512, 512];
pub(super) const BYTES: u64 = 256 << 20;

/// The number of small arrays, and their shape.
const SMALL: (usize, [usize; 2]) = (20_000, [8, 4]);

pub(super) fn rows() -> Vec<Spec> {
    vec![
        Spec::new("read an array of 256 MiB", |data| {
            let files = Files::large(data)?;
            let mut contenders = read(&files, "Reader::read", one_by_one);
            contenders.push(read_npy(&files));
            Ok(Row { bytes: Some(BYTES), ..row(contenders, files) })
        }),
        Spec::new("read 20,000 small arrays", |data| {
            let files = Files::small(data)?;
            Ok(row(read(&files, "safetensors_ndarray::load", all_at_once), files))
        }),
        Spec::new("read 20,000 small arrays one by one", |data| {
            let files = Files::small(data)?;
            Ok(row(read(&files, "Reader::read", one_by_one), files))
        }),
    ]
}

fn row(contenders: Vec<Contender>, files: Files) -> Row {
    Row { files: vec![files.safetensors.path, files.npz], ..Row::loads(contenders) }
}

/// The arrays in each format.
struct Files {
    safetensors: TestFile,
    npz: PathBuf,
    npy: PathBuf,
}

impl Files {
    /// One large array, `u`.
    fn large(data: &Data) -> Result<Self> {
        let files = Self::new(data, "large-array", &[Tensor::f32("u".into(), &SHAPE)])?;
        if !files.npy.exists() {
            let u = Reader::open(&files.safetensors.path)?.read::<f32, Ix3>("u")?;
            u.write_npy(BufWriter::new(File::create(&files.npy)?))?;
        }
        Ok(files)
    }

    fn small(data: &Data) -> Result<Self> {
        let tensors = (0..SMALL.0).map(|i| Tensor::f32(format!("probe.{i}"), &SMALL.1));
        Self::new(data, "small-arrays", &tensors.collect::<Vec<_>>())
    }

    fn new(data: &Data, name: &str, tensors: &[Tensor]) -> Result<Self> {
        let safetensors = data.file(&format!("{name}.safetensors"), tensors)?;
        let [npz, npy] =
            ["npz", "npy"].map(|extension| data.path().join(format!("{name}.{extension}")));
        if !npz.exists() {
            let reader = Reader::open(&safetensors.path)?;
            let mut writer = NpzWriter::new(BufWriter::new(File::create(&npz)?));
            for name in reader.names() {
                writer.add_array(name, &reader.read::<f32, IxDyn>(name)?)?;
            }
            writer.finish()?;
        }
        Ok(Self { safetensors, npz, npy })
    }
}

fn read_npy(files: &Files) -> Contender {
    let path = files.npy.clone();
    Contender::peer(NPY, move |watch| {
        let u = watch.time(|| -> Result<_> { Ok(Array3::<f32>::read_npy(File::open(&path)?)?) })?;
        ensure!(u.dim() == SHAPE.into(), "another shape");
        Ok(())
    })
}

fn one_by_one(path: &Path) -> Result<Arrays> {
    let reader = Reader::open(path)?;
    reader.names().map(|name| Ok((name.to_owned(), reader.read(name)?))).collect()
}

fn all_at_once(path: &Path) -> Result<Arrays> {
    let arrays = safetensors_ndarray::load(path)?.into_iter();
    arrays.map(|(name, array)| Ok((name, array.into_array()?))).collect()
}

/// Every array of the file, by name.
fn read(files: &Files, ours: &'static str, read: Read) -> Vec<Contender> {
    vec![
        reading(Role::Ours, ours, files, &files.safetensors.path, read),
        reading(Role::Peer, NPZ, files, &files.npz, |path| {
            let mut reader = NpzReader::new(File::open(path)?)?;
            let names = reader.names()?;
            names.into_iter().map(|name| Ok((name.clone(), reader.by_name(&name)?))).collect()
        }),
        reading(Role::Peer, REFERENCE, files, &files.safetensors.path, |path| {
            let mapped = system::map(path)?;
            let tensors = Reference::deserialize(&mapped)?;
            let arrays = tensors.iter().map(|(name, view)| {
                let elements: Vec<f32> = bytemuck::pod_collect_to_vec(view.data());
                Ok((name.to_owned(), ArrayD::from_shape_vec(IxDyn(view.shape()), elements)?))
            });
            arrays.collect()
        }),
    ]
}

type Arrays = Vec<(String, ArrayD<f32>)>;
type Read = fn(&Path) -> Result<Arrays>;

/// Times a way to read all arrays, and compares them with the written ones.
fn reading(role: Role, name: &'static str, files: &Files, path: &Path, read: Read) -> Contender {
    let sum = files.safetensors.sums.plain;
    let path = path.to_owned();
    Contender::new(role, name, move |watch| {
        let arrays = watch.time(|| read(&path))?;
        let bytes = arrays.iter().filter_map(|(name, array)| {
            Some((name, bytemuck::cast_slice::<f32, u8>(array.as_slice()?)))
        });
        ensure!(checksum(bytes) == sum, "other elements than were written");
        Ok(())
    })
}

/// Returns the checksum of a file's tensors.
pub(super) fn sum_of(path: &Path) -> Result<u64> {
    let checkpoint: Checkpoint<_> = system::checkpoint_map(path)?;
    let views = checkpoint.tensors().map(|tensor| Ok((tensor.name(), tensor.view()?.data())));
    Ok(checksum(views.collect::<Result<Vec<_>>>()?))
}
