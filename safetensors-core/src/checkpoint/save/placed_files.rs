//! [`PlacedFiles`]: files that a commit puts next to the tensors.

use crate::checkpoint::ShardOptions;
use crate::checkpoint::store::{Store, WritableDirectory};
use crate::file::io::ReadAt;
use crate::file::io::read_at::read_to_vec;
use crate::format::error::{Error, ErrorKind, Result};

const MOST_PUT_BACK: u64 = 64 << 20;

pub(crate) struct PlacedFiles<V> {
    files: Vec<(String, V, Earlier)>,
    room: u64,
}

enum Earlier {
    Nothing,
    Bytes(Vec<u8>),
    Large,
}

impl<V> Default for PlacedFiles<V> {
    fn default() -> Self {
        Self { files: Vec::new(), room: MOST_PUT_BACK }
    }
}

impl<V: Clone + PartialEq> PlacedFiles<V> {
    pub(crate) fn put<D: WritableDirectory<Version = V>>(
        &mut self,
        directory: &mut D,
        options: &ShardOptions,
        written: &[String],
    ) -> Result<()> {
        let given = options.beside.iter().map(|(name, bytes)| (name, Some(bytes)));
        for (name, bytes) in given.chain(written.iter().map(|name| (name, None))) {
            let (before, earlier) = if options.overwrites() {
                self.earlier(directory, name)?
            } else {
                (None, Earlier::Nothing)
            };
            let put = match bytes {
                Some(bytes) => {
                    let put = directory.replace(name, bytes.clone(), before.as_ref())?;
                    Some(put.ok_or_else(|| overtaken(directory, name))?)
                }
                None => directory.place(name, &[(name, before.as_ref())])?,
            };
            self.files.extend(put.map(|put| (name.clone(), put, earlier)));
        }
        Ok(())
    }

    pub(crate) fn put_back<D: WritableDirectory<Version = V>>(&mut self, directory: &mut D) {
        for (name, version, earlier) in std::mem::take(&mut self.files) {
            let _ = match earlier {
                Earlier::Nothing => directory.take_back(&name, &version),
                Earlier::Bytes(bytes) => directory.replace(&name, bytes, Some(&version)).map(drop),
                // The new file is all that there is.
                Earlier::Large => Ok(()),
            };
        }
    }

    fn earlier<D: WritableDirectory<Version = V>>(
        &mut self,
        directory: &D,
        name: &str,
    ) -> Result<(Option<V>, Earlier)> {
        let before = directory.version_of(name)?;
        if before.is_none() {
            return Ok((None, Earlier::Nothing));
        }
        let path = directory.path().join(name);
        let file = directory.store().open(&path)?;
        let Some(room) = self.room.checked_sub(file.byte_len()) else {
            return Ok((before, Earlier::Large));
        };
        self.room = room;
        let bytes = read_to_vec(&file).map_err(|error| error.in_path(&path))?;
        Ok((before, Earlier::Bytes(bytes)))
    }
}

pub(crate) fn overtaken<D: WritableDirectory>(directory: &D, name: &str) -> Error {
    Error::from(ErrorKind::Overtaken { file: name.into() }).in_path(directory.path())
}
