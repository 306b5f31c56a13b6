//! ndarray's arrays beside `.npy` and `.npz` by ndarray-npy, and beside the `safetensors` crate
//! with a copy. Each row is measured in this process, where everything is warm, and in fresh
//! processes, as a program that does it once.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use ndarray::{Array1, Array3, ArrayD, ArrayView3, Ix3, IxDyn, s};
use ndarray_npy::{NpzReader, NpzWriter, ReadNpyExt, ViewNpyExt, WriteNpyExt};
use safetensors::SafeTensors as Reference;
use safetensors_bridge::Checkpoint;
use safetensors_bridge::ndarray::Reader;

use super::Spec;
use harness::data::{Data, TestFile};
use harness::files::{Tensor, checksum};
use harness::sample::{Contender, Goal, Row};
use harness::system;

pub(super) const NPZ: &str = "ndarray-npy, .npz";
pub(super) const NPY: &str = "ndarray-npy, .npy";
pub(super) const REFERENCE: &str = "safetensors, copied";

/// The shape of the large array: steps, rows, columns. It has 256 MiB.
pub(super) const SHAPE: [usize; 3] = [256, 512, 512];
pub(super) const BYTES: u64 = 256 << 20;

/// The number of small arrays, and their shape.
const SMALL: (usize, [usize; 2]) = (20_000, [8, 4]);

pub(super) fn rows() -> Vec<Spec> {
    let rows = [("warm", false), ("fresh process", true)].map(|(how, isolated)| {
        [
            Spec::new(format!("read an array of 256 MiB, {how}"), move |data| {
                Ok(run(read_large(&Files::large(data)?), isolated).bytes(BYTES))
            }),
            Spec::new(format!("view an array of 256 MiB, {how}"), move |data| {
                Ok(run(view(&Files::large(data)?), isolated))
            }),
            Spec::new(format!("slice of an array: one point of 256 steps, {how}"), move |data| {
                Ok(run(slice(&Files::large(data)?), isolated))
            }),
            Spec::new(format!("read 20,000 small arrays, {how}"), move |data| {
                Ok(run(read_small(&Files::small(data)?), isolated))
            }),
        ]
    });
    rows.into_iter().flatten().collect()
}

/// A row of quick work, or of processes that do it once.
fn run((contenders, files): (Vec<Contender>, &Files), isolated: bool) -> Row {
    let goals = contenders.iter().skip(1).map(|peer| Goal::Faster(peer.name, 1.0));
    let goals: Vec<_> = goals.collect();
    let row = Row::new(contenders).goals(goals).reads(&files.safetensors.path).reads(&files.npz);
    if isolated { row.isolated() } else { row }
}

/// The same arrays in each format.
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

type Arrays = Vec<(String, ArrayD<f32>)>;

fn check(arrays: &Arrays, sum: u64) -> Result<()> {
    let bytes = arrays.iter().filter_map(|(name, array)| Some((name, array.as_slice()?)));
    let found =
        checksum(bytes.map(|(name, elements)| (name, bytemuck::cast_slice::<f32, u8>(elements))));
    ensure!(found == sum, "other elements than were written");
    Ok(())
}

fn read_large(files: &Files) -> (Vec<Contender>, &Files) {
    let npy = files.npy.clone();
    let by_npy = Contender::peer(NPY, move |watch| {
        let u = watch.time(|| -> Result<_> { Ok(Array3::<f32>::read_npy(File::open(&npy)?)?) })?;
        ensure!(u.dim() == SHAPE.into(), "another shape");
        Ok(())
    });
    let (mut contenders, files) = read_small(files);
    contenders.push(by_npy);
    (contenders, files)
}

/// Every array of the file, by name.
fn read_small(files: &Files) -> (Vec<Contender>, &Files) {
    let (sum, path) = (files.safetensors.sums.plain, files.safetensors.path.clone());
    let ours = Contender::ours("Reader::read", move |watch| {
        let arrays = watch.time(|| -> Result<Arrays> {
            let reader = Reader::open(&path)?;
            let arrays = reader.names().map(|name| Ok((name.to_owned(), reader.read(name)?)));
            arrays.collect()
        })?;
        check(&arrays, sum)
    });
    let path = files.npz.clone();
    let npz = Contender::peer(NPZ, move |watch| {
        let arrays = watch.time(|| -> Result<Arrays> {
            let mut reader = NpzReader::new(File::open(&path)?)?;
            let names = reader.names()?.into_iter();
            let mut arrays = names.map(|name| {
                let array = reader.by_name(&name)?;
                Ok((name, array))
            });
            arrays.by_ref().collect()
        })?;
        check(&arrays, sum)
    });
    let path = files.safetensors.path.clone();
    let reference = Contender::peer(REFERENCE, move |watch| {
        let arrays = watch.time(|| -> Result<Arrays> {
            let mapped = system::map(&path)?;
            let tensors = Reference::deserialize(&mapped)?;
            let arrays = tensors.iter().map(|(name, view)| {
                let elements: Vec<f32> = bytemuck::pod_collect_to_vec(view.data());
                Ok((name.to_owned(), ArrayD::from_shape_vec(IxDyn(view.shape()), elements)?))
            });
            arrays.collect()
        })?;
        check(&arrays, sum)
    });
    (vec![ours, npz, reference], files)
}

/// The sum of one plane, so that the view is used.
fn touch(u: ArrayView3<'_, f32>) -> f32 {
    u.slice(s![-1, -1, ..]).sum()
}

fn view(files: &Files) -> (Vec<Contender>, &Files) {
    let path = files.safetensors.path.clone();
    let ours = Contender::ours("Reader::view, mapped", move |watch| {
        watch.repeat(|| {
            let reader = Reader::new(system::checkpoint_map(&path)?);
            Ok(touch(reader.view("u")?))
        })
    });
    let path = files.npy.clone();
    let npy = Contender::peer(NPY, move |watch| {
        watch.repeat(|| {
            let mapped = system::map(&path)?;
            Ok(touch(ArrayView3::view_npy(&mapped)?))
        })
    });
    let path = files.safetensors.path.clone();
    let reference = Contender::peer("safetensors, cast", move |watch| {
        watch.repeat(|| {
            let mapped = system::map(&path)?;
            let tensors = Reference::deserialize(&mapped)?;
            let view = tensors.tensor("u")?;
            let elements = bytemuck::try_cast_slice(view.data())
                .map_err(|error| anyhow::anyhow!("the elements are not aligned: {error}"))?;
            Ok(touch(ArrayView3::from_shape(SHAPE, elements)?))
        })
    });
    (vec![ours, npy, reference], files)
}

/// One point of the grid over all steps: 1 KiB of 256 MiB.
fn slice(files: &Files) -> (Vec<Contender>, &Files) {
    const POINT: (usize, usize) = (256, 128);
    fn of_whole(u: &Array3<f32>) -> Array1<f32> {
        u.slice(s![.., POINT.0, POINT.1]).to_owned()
    }
    let path = files.safetensors.path.clone();
    let ours = Contender::ours("Reader::slice", move |watch| {
        watch.repeat(|| Ok(Reader::open(&path)?.slice::<f32, _>("u", s![.., POINT.0, POINT.1])?))
    });
    let path = files.npz.clone();
    let npz = Contender::peer(NPZ, move |watch| {
        watch.repeat(|| Ok(of_whole(&NpzReader::new(File::open(&path)?)?.by_name("u")?)))
    });
    let path = files.safetensors.path.clone();
    let reference = Contender::peer(REFERENCE, move |watch| {
        watch.repeat(|| {
            let mapped = system::map(&path)?;
            let tensors = Reference::deserialize(&mapped)?;
            let elements: Vec<f32> = bytemuck::pod_collect_to_vec(tensors.tensor("u")?.data());
            Ok(of_whole(&Array3::from_shape_vec(SHAPE, elements)?))
        })
    });
    (vec![ours, npz, reference], files)
}

/// The checksum of a file's tensors.
pub(super) fn sum_of(path: &Path) -> Result<u64> {
    let checkpoint: Checkpoint<_> = system::checkpoint_map(path)?;
    let views = checkpoint.tensors().map(|tensor| Ok((tensor.name(), tensor.view()?.data())));
    Ok(checksum(views.collect::<Result<Vec<_>>>()?))
}
