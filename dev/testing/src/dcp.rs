//! Files as ranks of PyTorch save them with `torch.distributed.checkpoint`: parts of tensors.

use std::path::{Path, PathBuf};

use crate::tensors::file_bytes;
use safetensors_core::{Checkpoint, ReadAt, SaveOptions, TensorBuf, TensorView, save};

/// A tensor of F32 with the elements 0, 1, 2 and so on, and the boxes that ranks hold of it.
pub struct Divided {
    /// Its name.
    pub name: &'static str,
    /// The shape of the whole.
    pub shape: Vec<usize>,
    /// The rank of each box, its first position and its size in each dimension.
    pub boxes: Vec<(usize, Vec<usize>, Vec<usize>)>,
}

impl Divided {
    /// A tensor of this name and shape, and its boxes.
    pub fn new(name: &'static str, shape: &[usize], boxes: &[(usize, &[usize], &[usize])]) -> Self {
        let boxes = boxes.iter().map(|(rank, at, size)| (*rank, at.to_vec(), size.to_vec()));
        Self { name, shape: shape.to_vec(), boxes: boxes.collect() }
    }

    /// Returns the elements of the whole tensor.
    pub fn values(&self) -> Vec<f32> {
        (0..self.shape.iter().product()).map(|value| value as f32).collect()
    }

    /// Returns the elements of a box.
    fn values_of(&self, offsets: &[usize], sizes: &[usize]) -> Vec<f32> {
        let position = |mut i: usize| {
            let mut position = vec![0; sizes.len()];
            for dim in (0..sizes.len()).rev() {
                position[dim] = offsets[dim] + i % sizes[dim];
                i /= sizes[dim];
            }
            position.iter().zip(&self.shape).fold(0, |all, (at, len)| all * len + at)
        };
        (0..sizes.iter().product()).map(|i| position(i) as f32).collect()
    }
}

/// Tensors in all kinds of divisions among four ranks: a grid, uneven rows with an empty part, an
/// inner dimension, and two that one rank saves.
pub fn sample() -> Vec<Divided> {
    vec![
        Divided::new(
            "grid",
            &[4, 6],
            &[
                (0, &[0, 0], &[3, 2]),
                (1, &[0, 2], &[3, 4]),
                (2, &[3, 0], &[1, 2]),
                (3, &[3, 2], &[1, 4]),
            ],
        ),
        Divided::new(
            "up",
            &[5, 3],
            &[
                (0, &[0, 0], &[2, 3]),
                (1, &[2, 0], &[2, 3]),
                (2, &[4, 0], &[1, 3]),
                (3, &[5, 0], &[0, 3]),
            ],
        ),
        Divided::new(
            "cube",
            &[2, 3, 4],
            &[(0, &[0, 0, 0], &[2, 1, 4]), (3, &[0, 1, 0], &[2, 2, 4])],
        ),
        Divided::new("norm", &[3], &[(2, &[0], &[3])]),
        Divided::new("scale", &[], &[(1, &[], &[])]),
    ]
}

/// Returns the path of the file of a rank.
pub fn file_of(directory: &Path, rank: usize) -> PathBuf {
    directory.join(format!("shard-{:05}-model-00001-of-00001.safetensors", rank + 1))
}

/// Saves tensors as their ranks do.
pub fn save_parts(directory: &Path, tensors: &[Divided]) {
    let boxes =
        || tensors.iter().flat_map(|tensor| tensor.boxes.iter().map(move |it| (tensor, it)));
    let ranks = boxes().map(|(_, (rank, ..))| rank + 1).max().unwrap_or(0);
    for rank in 0..ranks {
        let own = boxes().filter(|(_, (of, ..))| *of == rank);
        let info: Vec<_> = own
            .clone()
            .map(|(it, (_, at, _))| format!("{:?}: {{\"saved_offsets\": {at:?}}}", it.name))
            .collect();
        let parts: Vec<_> = own
            .map(|(it, (_, at, size))| {
                (it.name, TensorBuf::from_vec(size.clone(), it.values_of(at, size)).unwrap())
            })
            .collect();
        let info = format!("{{{}}}", info.join(", "));
        let metadata = [("DCP_SHARDING_INFO", &*info), ("DCP_VERSION", "1.0"), ("format", "pt")];
        let options = SaveOptions::new().metadata(metadata);
        save(file_of(directory, rank), parts, &options).unwrap();
    }
}

/// Saves the tensors of a checkpoint as two ranks do that have half of the rows each.
pub fn save_rows(directory: &Path, checkpoint: &Checkpoint<impl ReadAt>) {
    let tensors = checkpoint.read_all(&Default::default()).unwrap();
    let names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name()).collect();
    for rank in 0..2 {
        let (mut parts, mut info) = (Vec::new(), Vec::new());
        for (name, tensor) in names.iter().zip(&tensors) {
            let rows = tensor.shape().first().copied().unwrap_or(1);
            let middle = rows.div_ceil(2);
            let (start, end) = if rank == 0 { (0, middle) } else { (middle, rows) };
            if start == end {
                continue;
            }
            let (mut at, mut shape) = (vec![0; tensor.shape().len()], tensor.shape().to_vec());
            if let (Some(at), Some(len)) = (at.first_mut(), shape.first_mut()) {
                (*at, *len) = (start, end - start);
            }
            let all = file_bytes(tensor);
            let row = all.len() / rows;
            let bytes = all[start * row..end * row].to_vec();
            parts.push((*name, tensor.dtype(), shape, bytes));
            info.push(format!("{name:?}: {{\"saved_offsets\": {at:?}}}"));
        }
        let info = format!("{{{}}}", info.join(", "));
        let metadata = [("DCP_SHARDING_INFO", &*info), ("DCP_VERSION", "1.0")];
        let parts = parts.iter().map(|(name, dtype, shape, bytes)| {
            (*name, TensorView::new(*dtype, shape, bytes).unwrap())
        });
        save(file_of(directory, rank), parts, &SaveOptions::new().metadata(metadata)).unwrap();
    }
}

/// Saves the same tensors to one file, whole.
pub fn save_whole(path: &Path, tensors: &[Divided]) {
    let tensors = tensors
        .iter()
        .map(|it| (it.name, TensorBuf::from_vec(it.shape.clone(), it.values()).unwrap()));
    save(path, tensors, &SaveOptions::new().metadata([("format", "pt")])).unwrap();
}

/// Checks that a checkpoint has these tensors, whole, and no others.
pub fn check<S: ReadAt>(checkpoint: &Checkpoint<S>, tensors: &[Divided]) {
    let mut names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name()).collect();
    let mut expected: Vec<_> = tensors.iter().map(|tensor| tensor.name).collect();
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected);
    for tensor in tensors {
        let found = checkpoint.tensor(tensor.name).unwrap().read().unwrap();
        assert_eq!(found.shape(), tensor.shape, "{}", tensor.name);
        assert_eq!(found.into_vec::<f32>().unwrap(), tensor.values(), "{}", tensor.name);
    }
}
