//! [`Beside`]: the files that a commit puts beside those of the tensors.

use super::ShardOptions;
use super::store::{Store, WritableDirectory, read_to_vec};
use crate::error::{Error, ErrorKind, Result};
use crate::io::ReadAt;

/// An earlier file that is larger is not put back after a failure: its bytes would have to be kept
/// in memory.
const MOST_PUT_BACK: u64 = 64 << 20;

/// The files that a commit has put beside those of the tensors, with their versions and the bytes
/// of the earlier ones.
pub(super) struct Beside<V>(Vec<(String, V, Option<Vec<u8>>)>);

impl<V> Default for Beside<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<V: Clone + PartialEq> Beside<V> {
    /// Puts the files of the options in place, and these, which are written.
    pub(super) fn put<D: WritableDirectory<Version = V>>(
        &mut self,
        directory: &mut D,
        options: &ShardOptions,
        written: &[String],
    ) -> Result<()> {
        let given = options.beside.iter().map(|(name, bytes)| (name, Some(bytes)));
        for (name, bytes) in given.chain(written.iter().map(|name| (name, None))) {
            let (before, earlier) =
                if options.overwrites() { earlier(directory, name)? } else { (None, None) };
            let put = match bytes {
                Some(bytes) => {
                    let put = directory.replace(name, bytes.clone(), before.as_ref())?;
                    Some(put.ok_or_else(|| overtaken(directory, name))?)
                }
                None => directory.place(name, &[(name, before.as_ref())])?,
            };
            self.0.extend(put.map(|put| (name.clone(), put, earlier)));
        }
        Ok(())
    }

    /// Puts the earlier files back after a failure, and takes the others away. The error of the save
    /// is reported, not those of this.
    pub(super) fn put_back<D: WritableDirectory<Version = V>>(&mut self, directory: &mut D) {
        for (name, version, earlier) in std::mem::take(&mut self.0) {
            let _ = match earlier {
                Some(bytes) => directory.replace(&name, bytes, Some(&version)).map(drop),
                None => directory.take_back(&name, &version),
            };
        }
    }
}

/// The version of a file that another will replace, and its bytes, unless they are many.
#[allow(clippy::type_complexity)]
fn earlier<D: WritableDirectory>(
    directory: &D,
    name: &str,
) -> Result<(Option<D::Version>, Option<Vec<u8>>)> {
    let Some(before) = directory.version_of(name)? else { return Ok((None, None)) };
    let path = directory.path().join(name);
    let file = directory.store().open(&path)?;
    let is_small = file.byte_len() <= MOST_PUT_BACK;
    let bytes = is_small.then(|| read_to_vec(&file)).transpose();
    Ok((Some(before), bytes.map_err(|error| error.in_path(&path))?))
}

/// The error if another writer has replaced a file of this save.
pub(super) fn overtaken<D: WritableDirectory>(directory: &D, name: &str) -> Error {
    Error::from(ErrorKind::Overtaken { file: name.into() }).in_path(directory.path())
}
