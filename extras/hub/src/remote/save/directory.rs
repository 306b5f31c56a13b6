//! [`Directory`]: the objects below a prefix, as saves of several files change them.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use object_store::path::Path as Key;
use object_store::{
    Error, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, PutResult,
    UpdateVersion,
};
use safetensors_core::checkpoint::FilePattern;
use safetensors_core::{ErrorKind, Result};

use safetensors_core::ReadAt;

use super::upload::Upload;
use crate::remote::RemoteFile;
use crate::remote::object::{Service, found, unquoted, version_of};
use crate::remote::place::RemotePlace;
use crate::remote::runtime::run;

/// Bytes in memory while a file is sent again, apart from the upload's: several requests at once.
const AGAIN: u64 = 64 << 20;

pub(super) type Files = BTreeMap<String, ObjectMeta>;

pub(super) struct Directory {
    pub(super) service: Arc<Service>,
    pub(super) key: Key,
}

#[derive(Clone, Debug)]
pub(super) struct ObjectVersion {
    update: UpdateVersion,
    /// In a listing; `None` if this save just wrote the object.
    listed: Option<String>,
}

impl From<ObjectMeta> for ObjectVersion {
    fn from(meta: ObjectMeta) -> Self {
        let listed = Some(version_of(&meta));
        Self { update: UpdateVersion { e_tag: meta.e_tag, version: meta.version }, listed }
    }
}

impl From<PutResult> for ObjectVersion {
    fn from(put: PutResult) -> Self {
        Self { update: put.into(), listed: None }
    }
}

/// A store may omit the tag in some answers. Then listed versions are compared, and versions that
/// cannot be compared are equal.
impl PartialEq for ObjectVersion {
    fn eq(&self, other: &Self) -> bool {
        match ((&self.update.e_tag, &other.update.e_tag), (&self.listed, &other.listed)) {
            ((Some(a), Some(b)), _) => unquoted(a) == unquoted(b),
            (_, (Some(a), Some(b))) => a == b,
            _ => true,
        }
    }
}

pub(super) enum Put {
    Done(ObjectVersion),
    Overtaken,
}

impl Directory {
    pub(super) fn new(place: &RemotePlace, pattern: &FilePattern) -> Result<Self> {
        let name = pattern.index_name();
        match Key::parse(&name) {
            Ok(_) => Ok(Self { service: place.service.clone(), key: place.key.clone() }),
            Err(_) => {
                let message = "the name has a character that the names of objects cannot have";
                let error = io::Error::new(io::ErrorKind::InvalidInput, message);
                Err(safetensors_core::Error::from(ErrorKind::Io(error)).in_file(name))
            }
        }
    }

    /// Not encoded, as in indexes and listings: `Key::join` would encode many characters.
    pub(super) fn file(&self, name: &str) -> Key {
        let path = format!("{}/{name}", self.key);
        // The names of a directory were checked when it was made.
        Key::parse(path).unwrap_or_else(|_| self.key.clone().join(name))
    }

    /// The index has the ETag of a single request: listings may omit it, or on Azure its quotes.
    pub(super) fn list(&self, index: &str) -> io::Result<Files> {
        let listed = self.service.list(self.key.clone())?;
        let named = |meta: ObjectMeta| Some((meta.location.filename()?.to_owned(), meta));
        let mut files: Files = listed.objects.into_iter().filter_map(named).collect();
        if let Some(listed) = files.get_mut(index) {
            self.complete(index, listed)?;
        }
        Ok(files)
    }

    /// Gives a listed file the ETag of a single request, unless it changed in between.
    fn complete(&self, name: &str, listed: &mut ObjectMeta) -> io::Result<()> {
        if listed.e_tag.as_deref().is_some_and(|tag| tag.contains('"')) {
            return Ok(());
        }
        let Some(now) = self.find(name)? else { return Ok(()) };
        // Headers count time in seconds.
        let seconds = |meta: &ObjectMeta| meta.last_modified.timestamp();
        let is_same = match listed.e_tag {
            Some(_) => version_of(listed) == version_of(&now),
            None => (listed.size, seconds(listed)) == (now.size, seconds(&now)),
        };
        if is_same {
            *listed = now;
        }
        Ok(())
    }

    pub(super) fn find(&self, name: &str) -> io::Result<Option<ObjectMeta>> {
        self.service.head(self.file(name))
    }

    pub(super) fn get(&self, name: &str, most: u64) -> io::Result<Option<(ObjectMeta, Vec<u8>)>> {
        let key = self.file(name);
        let store = Arc::clone(&self.service.store);
        let got = self.service.ask(async move {
            let answer = match store.get(&key).await {
                Err(Error::NotFound { .. }) => return Ok(None),
                answer => answer?,
            };
            let meta = answer.meta.clone();
            let bytes = if meta.size > most { None } else { Some(answer.bytes().await?) };
            Ok(Some((meta, bytes)))
        })?;
        match got {
            None => Ok(None),
            Some((meta, Some(bytes))) => Ok(Some((meta, bytes.to_vec()))),
            Some((meta, None)) => {
                let message =
                    format!("{name} has {} bytes, and at most {most} are read", meta.size);
                Err(io::Error::new(io::ErrorKind::InvalidData, message))
            }
        }
    }

    /// `object_store` cannot copy a large file in parts, so it is fetched and sent again.
    pub(super) fn copy(&self, from: &str, to: &str, byte_len: u64) -> io::Result<()> {
        let from = self.file(from);
        let to = self.file(to);
        if byte_len > self.service.most_copied {
            return self.send_again(from, to);
        }
        let store = Arc::clone(&self.service.store);
        self.service.ask(async move { store.copy(&from, &to).await })
    }

    fn send_again(&self, from: Key, to: Key) -> io::Result<()> {
        let file = run(RemoteFile::open(Arc::clone(&self.service), from)).flatten()?;
        let mut upload = Upload::new(Arc::clone(&self.service), to, file.byte_len());
        let mut piece = vec![0; file.byte_len().min(AGAIN) as usize];
        let mut offset = 0;
        while offset < file.byte_len() {
            piece.truncate((file.byte_len() - offset).min(AGAIN) as usize);
            file.read_exact_at(&mut piece, offset)?;
            upload.write_all(&piece)?;
            offset += piece.len() as u64;
        }
        upload.close()?;
        upload.commit().map(drop)
    }

    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        let key = self.file(name);
        let store = Arc::clone(&self.service.store);
        found(self.service.ask(async move { store.delete(&key).await })).map(drop)
    }

    /// Writes a small file if it is still `before`, or absent. Without conditions in the store,
    /// asks for the version just before.
    ///
    /// An answer may be lost: the file is written despite the failure, or a repetition finds the
    /// condition broken. So after a failure the file counts as written if it has our bytes.
    pub(super) fn put(
        &self,
        name: &str,
        bytes: &[u8],
        before: Option<&ObjectVersion>,
    ) -> io::Result<Put> {
        match self.put_once(name, bytes, before) {
            Ok(Put::Done(version)) => Ok(Put::Done(version)),
            failed => match self.get(name, bytes.len() as u64) {
                Ok(Some((meta, found))) if found == bytes => Ok(Put::Done(meta.into())),
                _ => failed,
            },
        }
    }

    fn put_once(
        &self,
        name: &str,
        bytes: &[u8],
        before: Option<&ObjectVersion>,
    ) -> io::Result<Put> {
        let key = self.file(name);
        let payload = PutPayload::from(bytes.to_vec());
        let before = before.cloned();
        let store = Arc::clone(&self.service.store);
        self.service.ask(async move {
            let mode = match &before {
                None => PutMode::Create,
                Some(before) => PutMode::Update(before.update.clone()),
            };
            let put = store.put_opts(&key, payload.clone(), PutOptions::from(mode)).await;
            match put {
                Ok(put) => return Ok(Put::Done(put.into())),
                Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => {
                    return Ok(Put::Overtaken);
                }
                Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => {}
                Err(error) => return Err(error),
            }
            let now = match store.head(&key).await {
                Ok(meta) => Some(ObjectVersion::from(meta)),
                Err(Error::NotFound { .. }) => None,
                Err(error) => return Err(error),
            };
            if now != before {
                return Ok(Put::Overtaken);
            }
            Ok(Put::Done(store.put(&key, payload).await?.into()))
        })
    }
}
