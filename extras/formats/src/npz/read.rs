//! [`Archive`]: the arrays of a `.npz` file.

use std::path::Path;
use std::sync::Arc;

use safetensors_core::ReadAt;
use safetensors_core::io::FileSource;

use crate::Limits;
use crate::error::{Error, ErrorKind, Result};
use crate::input::Input;
use crate::npy::Array;
use crate::zipped::Zipped;

/// An open `.npz` file. Until an array is [asked for](Archive::array), nothing is read of it but
/// its name.
///
/// Members may be compressed or not. An archive in which two members have one name is refused,
/// because which of them is read depends on the reader.
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
pub struct Archive<S = FileSource> {
    zipped: Arc<Zipped<S>>,
    /// The name of each array, and the member that it is.
    arrays: Vec<(String, usize)>,
    /// Positions among the arrays, sorted by name.
    by_name: Vec<usize>,
    limits: Limits,
}

impl Archive {
    /// Opens a `.npz` file and lists its members, with the default [`Limits`].
    ///
    /// # Errors
    ///
    /// An error of the core if there is no such regular file; a kind of [`ErrorKind`] about
    /// archives.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::of_input(Input::open(path.as_ref())?, &Limits::default())
    }
}

/// Returns the name of each array, and the member that it is.
pub(super) fn arrays<S: ReadAt>(zipped: &Zipped<S>) -> Result<Vec<(String, usize)>> {
    let members = zipped.names()?.into_iter().enumerate();
    let files = members.filter(|(_, member)| !member.ends_with('/'));
    let arrays = files.map(|(index, mut name)| {
        name.truncate(name.strip_suffix(".npy").unwrap_or(&name).len());
        (name, index)
    });
    Ok(arrays.collect())
}

impl<S: ReadAt> Archive<S> {
    /// Lists the members of an archive that is in memory, or anywhere else. Errors show `path`.
    pub fn from_source(source: S, path: impl AsRef<Path>, limits: &Limits) -> Result<Self> {
        Self::of_input(Input::new(source, path.as_ref()), limits)
    }

    fn of_input(input: Input<S>, limits: &Limits) -> Result<Self> {
        let zipped = Zipped::open(input, limits)?;
        let arrays = arrays(&zipped)?;
        let mut by_name: Vec<_> = (0..arrays.len()).collect();
        by_name.sort_by_key(|&position| &arrays[position].0);
        Ok(Self { zipped: Arc::new(zipped), arrays, by_name, limits: limits.clone() })
    }

    /// Returns the names of the arrays in the order of the archive: the names of its members
    /// without `.npy`. Whether a member is an array is known only when it is opened.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.arrays.iter().map(|(name, _)| name.as_str())
    }

    /// Opens the array of a name: reads its header.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSuchArray`]; [`ErrorKind::DuplicateArray`]; [`ErrorKind::DataLength`];
    /// [`ErrorKind::BadArchive`] if the member is encrypted, or compressed in another way than
    /// deflated; an error of [`Header::read`](crate::npy::Header::read).
    pub fn array(&self, name: &str) -> Result<Array<S>> {
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
    pub fn array_at(&self, position: usize) -> Result<Array<S>> {
        match self.arrays.get(position) {
            Some((name, index)) => Array::of_member(&self.zipped, *index, name, &self.limits),
            None => {
                let error = Error::from(ErrorKind::NoSuchArray);
                Err(error.in_file(&self.zipped.input.file))
            }
        }
    }

    /// Opens all arrays, in the order of the archive, each when it is asked for.
    pub fn arrays(&self) -> impl ExactSizeIterator<Item = Result<Array<S>>> {
        (0..self.arrays.len()).map(|position| self.array_at(position))
    }

    /// Checks the sizes that the members claim against the archive, before memory or room on a disk
    /// is reserved for them.
    ///
    /// A hostile archive can claim to unpack to far more than it does, or use the same bytes for
    /// many members. Reading an array finds only an impossible size.
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
