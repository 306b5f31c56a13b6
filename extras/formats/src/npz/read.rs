//! [`Archive`]: the arrays of a `.npz` file.

use std::path::Path;
use std::sync::Arc;

use safetensors_core::ReadAt;

use crate::Limits;
use crate::error::{Error, ErrorKind, Result};
use crate::input::Input;
use crate::npy::Array;
use crate::zipped::Zipped;

/// An open `.npz` file. Only the names of arrays are read until one is [asked for](Archive::array).
///
/// Members may be compressed. Two members with the same name are refused, because readers differ.
///
/// ```
/// use safetensors_core::{SaveOptions, TensorBuf, save};
/// use safetensors_formats::npz;
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("arrays.npz");
/// let mut writer = npz::Writer::new(std::fs::File::create(&path)?);
/// writer.add("u", &TensorBuf::from_vec(vec![2], vec![1.0_f64, 2.0])?)?;
/// writer.add("layer.ids", &TensorBuf::from_vec(vec![], vec![7_i64])?)?;
/// writer.finish()?;
///
/// let archive = npz::Archive::open(&path)?;
/// assert!(archive.names().eq(["u", "layer.ids"]));
/// assert_eq!(archive.array("layer.ids")?.read()?.into_vec::<i64>()?, [7]);
///
/// // All of it as one safetensors file, tensor by tensor.
/// let arrays = archive.arrays().collect::<Result<Vec<_>, _>>()?;
/// let tensors = arrays.iter().map(|array| (array.name(), array));
/// save(dir.path().join("arrays.safetensors"), tensors, &SaveOptions::new())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Archive {
    zipped: Arc<Zipped<'static>>,
    arrays: Vec<(String, usize)>,
    by_name: Vec<usize>,
    limits: Limits,
}

impl Archive {
    /// Opens a `.npz` file and lists its members, with the default [`Limits`].
    ///
    /// # Errors
    ///
    /// An error of the core for a file that is not a regular one; kinds of [`ErrorKind`] about
    /// archives.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::of_input(Input::open(path.as_ref())?, &Limits::default())
    }

    /// Lists the members of an archive in memory, or anywhere else. Errors show `path`.
    pub fn from_source(
        source: impl ReadAt + 'static,
        path: impl AsRef<Path>,
        limits: &Limits,
    ) -> Result<Self> {
        Self::of_input(Input::new(Arc::new(source), path.as_ref()), limits)
    }

    fn of_input(input: Input<'static>, limits: &Limits) -> Result<Self> {
        let zipped = Zipped::open(input, limits)?;
        let arrays = arrays(&zipped)?;
        let mut by_name: Vec<_> = (0..arrays.len()).collect();
        by_name.sort_by_key(|&position| &arrays[position].0);
        Ok(Self { zipped: Arc::new(zipped), arrays, by_name, limits: limits.clone() })
    }

    /// Returns the names of the members in order, without `.npy`. Only opening one shows whether it
    /// is an array.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.arrays.iter().map(|(name, _)| name.as_str())
    }

    /// Opens an array by name: reads its header.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSuchArray`]; [`ErrorKind::DuplicateArray`]; [`ErrorKind::DataLength`];
    /// [`ErrorKind::BadArchive`] for encryption, or compression that is not deflate; like
    /// [`Header::read`](crate::npy::Header::read).
    pub fn array(&self, name: &str) -> Result<Array> {
        let name_at = |position: usize| self.arrays[position].0.as_str();
        let start = self.by_name.partition_point(|&position| name_at(position) < name);
        let mut found = self.by_name[start..].iter().take_while(|&&at| name_at(at) == name);
        let error = match (found.next(), found.next()) {
            (Some(&position), None) => return self.array_at(position),
            (None, _) => Error::from(ErrorKind::NoSuchArray).with_similar(name, self.names()),
            (Some(_), Some(_)) => ErrorKind::DuplicateArray.into(),
        };
        Err(error.in_file(&self.zipped.input.file).in_tensor(name))
    }

    /// Opens the array at a position among the [names](Archive::names).
    pub fn array_at(&self, position: usize) -> Result<Array> {
        match self.arrays.get(position) {
            Some((name, index)) => Array::of_member(&self.zipped, *index, name, &self.limits),
            None => {
                let error = Error::from(ErrorKind::NoSuchArray);
                Err(error.in_file(&self.zipped.input.file))
            }
        }
    }

    /// Opens all arrays in order, each on demand.
    pub fn arrays(&self) -> impl ExactSizeIterator<Item = Result<Array>> {
        (0..self.arrays.len()).map(|position| self.array_at(position))
    }

    /// Checks the claimed sizes of members, before memory or disk space is reserved.
    ///
    /// A hostile archive can claim to unpack to far more than it does, or use bytes for several
    /// members. Reading an array only finds an impossible size.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ImpossibleSize`], naming the member; [`ErrorKind::Overlap`];
    /// [`ErrorKind::BadArchive`].
    pub fn check(&self) -> Result<()> {
        let file = &self.zipped.input.file;
        for (name, index) in &self.arrays {
            let checked = self.zipped.check_size(*index);
            checked.map_err(|error| error.in_file(file).in_tensor(name))?;
        }
        self.zipped.check_overlap().map_err(|error| error.in_file(file))
    }
}

pub(super) fn arrays(zipped: &Zipped<'_>) -> Result<Vec<(String, usize)>> {
    let members = zipped.names()?.into_iter().enumerate();
    let files = members.filter(|(_, member)| !member.ends_with('/'));
    let arrays = files.map(|(index, mut name)| {
        name.truncate(name.strip_suffix(".npy").unwrap_or(&name).len());
        (name, index)
    });
    Ok(arrays.collect())
}
