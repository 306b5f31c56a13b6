//! [`Journal`]: what is to be written to the files of a base in place, kept until all of it is.
//!
//! It is a delta whose differences are positions and new bytes, or whole tensors, so that it can be
//! written any number of times. Beside its index lies a list of the files, in JSON: a number, which
//! their marks have, and of each file its name, inode and length and the tensors that change there.

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use safetensors_core::edit::InPlace;
use safetensors_core::error::IndexProblem;
use safetensors_core::framework::in_parallel;
use safetensors_core::io::FileSource;
use safetensors_core::save::DirectoryPlace;
use safetensors_core::{Checkpoint, ErrorKind as CoreKind, LazyTensor, Limits, ReadAt, shape};
use serde_json::json;

use crate::delta::Delta;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{ENCODING, Encoding};
use crate::frame::{PIECE, pour};
use crate::options::Options;
use crate::patch::Patch;
use crate::sums::Sums;

/// The list of the files.
const FILES: &str = "files.json";

/// The directory of a journal, which may exist.
pub(crate) struct Journal {
    path: PathBuf,
    /// The directory that the names of files are relative to.
    home: PathBuf,
}

/// A file of the list.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    name: String,
    identity: (u64, u64),
    tensors: Vec<String>,
}

/// The number of the marks, and the files of the list, of which some may be gone.
type Locked = (u16, Vec<(Listed, Option<InPlace>)>);

impl Journal {
    /// The journal of a base with this index or this one file.
    pub(crate) fn beside(place: &Path) -> Self {
        let mut name = OsString::from(".");
        name.push(place.file_name().unwrap_or_default());
        name.push(InPlace::JOURNAL_SUFFIX);
        let home = place.parent().unwrap_or(Path::new("")).to_owned();
        Self { path: home.join(name), home }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the list of files to the delta that becomes the journal.
    pub(crate) fn add_files<S: ReadAt>(
        &self,
        delta: &Delta,
        base: &Checkpoint<S>,
        files: &[InPlace],
    ) -> Result<()> {
        let mut tensors: Vec<Vec<&str>> = vec![Vec::new(); files.len()];
        for name in delta.tensors().map(|tensor| tensor.name()) {
            let file = base.tensor(name)?.file_index();
            tensors[file].push(name);
        }
        let mut listed = Vec::with_capacity(files.len());
        for ((file, open), tensors) in base.files().iter().zip(files).zip(tensors) {
            let name = file.path().strip_prefix(&self.home).ok().and_then(Path::to_str);
            let name = name.filter(|_| self.is_below(file.path()));
            let elsewhere = || Error::from(ErrorKind::FileElsewhere).in_path(file.path());
            let (inode, len) = open.identity()?;
            listed.push((name.ok_or_else(elsewhere)?, inode, len, tensors));
        }
        let path = delta.path().with_file_name(FILES);
        let list = json!([InPlace::new_number(), listed]).to_string();
        fs::write(&path, list).map_err(|error| Error::from(error).in_path(path))
    }

    /// Completes a change that was interrupted while it wrote, if there is one, and returns the
    /// digest of its result. A journal of which nothing is written or all is removed, unless all of
    /// its files are gone.
    pub(crate) fn complete(&self, options: &Options) -> Result<Option<blake3::Hash>> {
        let Some((number, files)) = self.lock(options)? else { return Ok(None) };
        if files.iter().all(|(_, file)| file.is_none()) {
            // Nothing is locked, so by now it may be another process's. The next one replaces it.
            return Ok(None);
        }
        if !files.iter().any(|(_, file)| file.as_ref().is_some_and(|it| it.number().is_some())) {
            self.remove()?;
            return Ok(None);
        }
        let mut opened = Vec::with_capacity(files.len());
        for (listed, file) in files {
            let fits = |file: &InPlace| {
                let (inode, len) = file.identity()?;
                let is_same = file.number().map_or(inode == listed.identity.0, |it| it == number);
                Ok::<_, Error>(is_same && len == listed.identity.1)
            };
            match file {
                Some(file) if fits(&file)? => opened.push(file),
                _ => return Err(self.refused().in_path(self.home.join(&listed.name))),
            }
        }
        opened.iter_mut().try_for_each(|file| file.begin(number))?;
        let result = self.write(&mut opened, options)?;
        // Whoever has the files locked may write another one.
        self.remove()?;
        Ok(result)
    }

    /// Locks the files of the list. `None` if there is no journal.
    fn lock(&self, options: &Options) -> Result<Option<Locked>> {
        let list = || match self.list() {
            Err(_) if !self.path.is_dir() => Ok(None),
            list => list.map(Some),
        };
        let open = |listed: &Listed| {
            let path = self.home.join(&listed.name);
            if !path.exists() {
                return Ok(None);
            }
            if !self.is_below(&path) {
                return Err(self.refused().in_path(path));
            }
            InPlace::open(path, options.durable).map(Some)
        };
        let mut before = list()?;
        while let Some((number, listed)) = before {
            let files = listed.iter().map(open).collect::<Result<Vec<_>>>()?;
            // Until then, another process may have removed the journal and written its own.
            let now = list()?;
            if now.as_ref().is_some_and(|now| (now.0, &now.1) == (number, &listed)) {
                return Ok(Some((number, listed.into_iter().zip(files).collect())));
            }
            before = now;
        }
        Ok(None)
    }

    /// Marks the files.
    pub(crate) fn begin(&self, files: &mut [InPlace]) -> Result<()> {
        let (number, _) = self.list()?;
        files.iter_mut().try_for_each(|file| file.begin(number))
    }

    /// Writes everything to the files, which are those of the list and marked, and removes the
    /// marks. Returns the digest of the result.
    pub(crate) fn write(
        &self,
        files: &mut [InPlace],
        options: &Options,
    ) -> Result<Option<blake3::Hash>> {
        let (_, listed) = self.list()?;
        let delta = Delta::open(&self.path)?;
        if delta.encoding() != Encoding::Overwrite {
            // Twice written, it would be undone.
            let (expected, found) = ("overwrite-or-whole", Some(delta.encoding().name().into()));
            let error = ErrorKind::BadField { key: ENCODING, expected, found };
            return Err(Error::from(error).in_path(delta.path()));
        }
        let mut changes = Vec::new();
        for (file, listed) in files.iter().zip(&listed) {
            for name in &listed.tensors {
                let bytes = delta.bytes_of(name).ok_or_else(|| self.refused())?;
                changes.push((file, bytes));
            }
        }
        in_parallel(changes, options.threads, |(file, bytes), _: &mut ()| {
            write_tensor(&delta, bytes, file)
        })?;
        files.iter().try_for_each(InPlace::sync)?;
        files.iter_mut().try_for_each(InPlace::end)?;
        Ok(delta.digests()[1])
    }

    /// Removes the journal, whose files have no mark.
    pub(crate) fn remove(&self) -> Result<()> {
        DirectoryPlace::hold(&self.path)?.remove().map(drop)
    }

    /// The number of the marks, and the files.
    fn list(&self) -> Result<(u16, Vec<Listed>)> {
        type List = (u16, Vec<(String, u64, u64, Vec<String>)>);
        let path = self.path.join(FILES);
        let text = read(&path).map_err(|error| error.in_path(&path))?;
        let refused = || self.refused().in_path(&path);
        let (number, files): List = serde_json::from_slice(&text).map_err(|_| refused())?;
        let files = files.into_iter().map(|(name, inode, len, tensors)| {
            let is_below =
                Path::new(&name).components().all(|part| matches!(part, Component::Normal(_)));
            let listed = Listed { name, identity: (inode, len), tensors };
            if is_below { Ok(listed) } else { Err(refused()) }
        });
        Ok((number, files.collect::<Result<_>>()?))
    }

    /// Whether links lead from a path to nowhere outside of the base's directory.
    fn is_below(&self, path: &Path) -> bool {
        path.canonicalize().is_ok_and(|path| path.starts_with(&self.home))
    }

    fn refused(&self) -> Error {
        ErrorKind::OtherJournal { journal: self.path.display().to_string() }.into()
    }
}

/// Reads the list of the files, which is a regular file and no longer than an index may be.
fn read(path: &Path) -> Result<Vec<u8>> {
    let file = FileSource::open(path)?;
    let (limit, found) = (Limits::default().index_bytes, file.byte_len());
    if found > limit {
        let problem = IndexProblem::TooLarge { limit, found };
        return Err(CoreKind::BadIndex { problem }.into());
    }
    let mut text = vec![0; found as usize];
    file.read_exact_at(&mut text, 0)?;
    Ok(text)
}

/// Writes one tensor, and checks what it is then.
fn write_tensor<S: ReadAt>(
    delta: &Delta<S>,
    bytes: LazyTensor<'_, S>,
    file: &InPlace,
) -> Result<()> {
    let missing = || bytes.locate(ErrorKind::NotInBase { version: delta.version().into() }.into());
    let info = file.header().get(bytes.name()).ok_or_else(missing)?;
    let start = file.header().data_start() + info.data_offsets().start;
    let (mut offset, len) = (0, info.byte_len());
    let mut sums = Sums::new(Some(delta.checksum_format()), false);
    if let Some(form) = delta.change_of(bytes.name()).whole() {
        let expected = shape::byte_len(form.0, form.1)?;
        if expected != len {
            let error = ErrorKind::ContentSize { expected, found: len };
            return Err(bytes.locate(error.into()));
        }
        pour(bytes, form, &mut |piece| {
            file.write_all_at(piece, start + offset)?;
            sums.update(piece);
            offset += piece.len() as u64;
            Ok(())
        })?;
        return delta.check_sums(&bytes, &sums);
    }
    let mut patch = Patch::open(Encoding::Overwrite, bytes, len)?;
    let (mut old, mut new, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
    while offset < len {
        old.resize((len - offset).min(PIECE as u64) as usize, 0);
        let read = file.source().read_exact_at(&mut old, start + offset);
        read.map_err(|error| bytes.locate(CoreKind::Io(error).into()))?;
        new.clone_from(&old);
        patch.apply(offset, &mut new, &mut scratch)?;
        sums.update(&new);
        if new != old {
            file.write_all_at(&new, start + offset)?;
        }
        offset += old.len() as u64;
    }
    patch.finish()?;
    delta.check_sums(&bytes, &sums)
}
