//! [`MemoryStore`]: files in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::{CopyFile, FileKind, Store, StoreEntry, Versions, WritableDirectory};
use crate::checkpoint::FilePattern;
use crate::file::save::{SaveOptions, write_to};
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::tensor::TensorSource;

/// Files in memory, by name, with `/` between directories. Tensors of such a checkpoint can be
/// borrowed as [views](crate::LazyTensor::view).
///
/// ```
/// use safetensors_core::checkpoint::store::MemoryStore;
/// use safetensors_core::{Checkpoint, Limits, SaveOptions, TensorView, serialize};
///
/// let file = |name: &str, value: u8| {
///     serialize([(name, TensorView::from_slice(&[1], &[value])?)], &SaveOptions::new())
/// };
/// let index = r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#;
/// let store = MemoryStore::from_iter([
///     ("model.safetensors.index.json", index.as_bytes().to_vec()),
///     ("1.safetensors", file("a", 1)?),
///     ("2.safetensors", file("b", 2)?),
/// ]);
/// let checkpoint = Checkpoint::open_in(store, "", &Limits::default())?.into_stored()?;
/// assert_eq!(checkpoint.tensor("b")?.view()?.data(), [2]);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Debug)]
pub struct MemoryStore<B = Vec<u8>> {
    files: BTreeMap<String, MemoryFile<B>>,
    /// Files without a name yet.
    written: BTreeMap<String, B>,
}

impl<B> Default for MemoryStore<B> {
    fn default() -> Self {
        Self { files: BTreeMap::new(), written: BTreeMap::new() }
    }
}

impl<B> Clone for MemoryStore<B> {
    fn clone(&self) -> Self {
        Self { files: self.files.clone(), written: BTreeMap::new() }
    }
}

impl<B> MemoryStore<B> {
    /// Adds a file, replacing one of this name.
    pub fn insert(&mut self, name: impl AsRef<str>, bytes: B) {
        self.files.insert(key(Path::new(name.as_ref())), MemoryFile(Arc::new(bytes)));
    }
}

impl<N: AsRef<str>, B> FromIterator<(N, B)> for MemoryStore<B> {
    fn from_iter<I: IntoIterator<Item = (N, B)>>(files: I) -> Self {
        let mut store = Self::default();
        files.into_iter().for_each(|(name, bytes)| store.insert(name, bytes));
        store
    }
}

/// A file of a [`MemoryStore`]. It shares its bytes with the store.
#[derive(Debug)]
pub struct MemoryFile<B = Vec<u8>>(Arc<B>);

impl<B> Clone for MemoryFile<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Compares identity, not bytes.
impl<B> PartialEq for MemoryFile<B> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for MemoryFile<B> {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl<B: AsRef<[u8]> + Send + Sync> Store for MemoryStore<B> {
    type File = MemoryFile<B>;

    fn open(&self, path: &Path) -> Result<MemoryFile<B>> {
        if let Some(file) = self.files.get(&key(path)) {
            return Ok(file.clone());
        }
        let problem = match self.kind(path)? {
            Some(FileKind::Directory) => ErrorKind::NotAFile { found: "a directory" },
            _ => ErrorKind::Io(io::ErrorKind::NotFound.into()),
        };
        Err(Error::from(problem).in_path(path))
    }

    fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        if self.files.contains_key(&key(path)) {
            return Ok(Some(FileKind::File));
        }
        Ok(self.below(path).next().map(|_| FileKind::Directory))
    }

    fn list(&self, directory: &Path) -> Result<Vec<StoreEntry>> {
        let entry = |name: &str| match name.split_once('/') {
            Some((directory, _)) => (directory.to_owned(), true),
            None => (name.to_owned(), false),
        };
        let entries: BTreeSet<_> = self.below(directory).map(entry).collect();
        let kind = |is_directory| if is_directory { FileKind::Directory } else { FileKind::File };
        let entries = entries.into_iter();
        Ok(entries
            .map(|(name, is_directory)| StoreEntry { name, kind: kind(is_directory) })
            .collect())
    }
}

/// The directory is the root of the store.
impl WritableDirectory for MemoryStore {
    type Version = MemoryFile;
    type Store = Self;

    fn store(&self) -> &Self {
        self
    }

    fn path(&self) -> PathBuf {
        PathBuf::new()
    }

    fn write<N: AsRef<str>, T: TensorSource>(
        &mut self,
        name: &str,
        tensors: impl IntoIterator<Item = (N, T)>,
        options: &SaveOptions,
    ) -> Result<()> {
        let mut bytes = Vec::new();
        write_to(&mut bytes, tensors, options)?;
        self.written.insert(name.into(), bytes);
        Ok(())
    }

    fn write_other(&mut self, name: &str, copy: &CopyFile<'_>) -> Result<()> {
        let mut bytes = Vec::new();
        copy(&mut bytes)?;
        self.written.insert(name.into(), bytes);
        Ok(())
    }

    fn files(&self, _: &FilePattern) -> Result<Versions<MemoryFile>> {
        Ok(self.files.clone())
    }

    fn version_of(&self, name: &str) -> Result<Option<MemoryFile>> {
        Ok(self.files.get(name).cloned())
    }

    fn place(
        &mut self,
        name: &str,
        others: &[(&str, Option<&MemoryFile>)],
    ) -> Result<Option<MemoryFile>> {
        self.check_versions(others)?;
        let written = self.written.remove(name);
        let bytes = written.ok_or_else(|| ErrorKind::Io(io::ErrorKind::NotFound.into()))?;
        self.insert(name, bytes);
        self.version_of(name)
    }

    fn take_back(&mut self, name: &str, version: &MemoryFile) -> Result<()> {
        if self.files.get(name) == Some(version) {
            self.files.remove(name);
            self.written.insert(name.into(), version.as_ref().to_vec());
        }
        Ok(())
    }

    fn is_certain(&self) -> bool {
        true
    }

    fn duplicate(&mut self, names: &[(String, String)]) -> Result<()> {
        for (name, second) in names {
            let file = self.open(Path::new(name))?;
            self.files.insert(second.clone(), file);
        }
        Ok(())
    }

    fn replace(
        &mut self,
        name: &str,
        bytes: Vec<u8>,
        before: Option<&MemoryFile>,
    ) -> Result<Option<MemoryFile>> {
        if self.files.get(name) != before {
            return Ok(None);
        }
        self.insert(name, bytes);
        self.version_of(name)
    }

    fn remove(&mut self, name: &str, version: &MemoryFile) -> Result<()> {
        if self.files.get(name) == Some(version) {
            self.files.remove(name);
        }
        Ok(())
    }
}

impl<B> MemoryStore<B> {
    fn below(&self, directory: &Path) -> impl Iterator<Item = &str> {
        let mut prefix = key(directory);
        if !prefix.is_empty() {
            prefix.push('/');
        }
        let start = prefix.clone();
        let names = self.files.range(start..).map(|(name, _)| name.as_str());
        names.map_while(move |name| name.strip_prefix(&*prefix))
    }
}

/// Joins the parts of a path with `/` on every system.
fn key(path: &Path) -> String {
    let mut key = String::new();
    for part in path.components() {
        let part = match part {
            Component::Normal(part) => part.to_string_lossy(),
            Component::ParentDir => "..".into(),
            Component::Prefix(_) | Component::RootDir | Component::CurDir => continue,
        };
        if !key.is_empty() {
            key.push('/');
        }
        key.push_str(&part);
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(store: &MemoryStore<&'static str>, directory: &str) -> Vec<(String, FileKind)> {
        let entries = store.list(Path::new(directory)).unwrap();
        entries.into_iter().map(|entry| (entry.name, entry.kind)).collect()
    }

    #[test]
    fn directories_follow_from_the_names_of_files() {
        let store =
            MemoryStore::from_iter([("a/b/c", "1"), ("a/b.c", "2"), ("/d", "3"), ("a/b!", "4")]);
        let kind = |path| store.kind(Path::new(path)).unwrap();
        for path in ["", ".", "/", "a", "a/", "./a/b"] {
            assert_eq!(kind(path), Some(FileKind::Directory), "{path}");
        }
        for path in ["a/b/c", "/a/b.c", "d", "a//b!"] {
            assert_eq!(kind(path), Some(FileKind::File), "{path}");
        }
        for path in ["b", "a/b/c/d", "..", "a/..", "A"] {
            assert_eq!(kind(path), None, "{path}");
        }
        let (file, directory) = (FileKind::File, FileKind::Directory);
        assert_eq!(listed(&store, ""), [("a".into(), directory), ("d".into(), file)]);
        let in_a = [("b".into(), directory), ("b!".into(), file), ("b.c".into(), file)];
        assert_eq!(listed(&store, "a"), in_a);
        assert_eq!(listed(&store, "a/b"), [("c".into(), file)]);
        assert!(listed(&MemoryStore::default(), "").is_empty());
    }

    #[test]
    fn only_files_can_be_opened() {
        let store = MemoryStore::from_iter([("a/b", "1")]);
        assert_eq!(store.open(Path::new("a/b")).unwrap().as_ref(), b"1");
        let error = store.open(Path::new("a")).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NotAFile { found: "a directory" }), "{error}");
        let error = store.open(Path::new("x")).unwrap_err();
        assert!(super::super::local::is_not_found(&error), "{error}");
        assert_eq!(error.file(), Some("x"));
    }
}
