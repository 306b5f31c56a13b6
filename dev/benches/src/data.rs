//! The folder of the test data.
//! The first process makes it, shares it with the processes that it starts, and removes it at the
//! end.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::files::{self, Sums};

/// A file of the test data.
#[derive(Clone)]
pub struct TestFile {
    pub path: PathBuf,
    pub sums: Sums,
}

/// The folder.
pub struct Data {
    path: PathBuf,
    _remove: Option<TempDir>,
}

impl Data {
    /// A new folder in `dir`, or where temporary files go.
    pub fn create(dir: Option<&Path>) -> Result<Self> {
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix("safetensors-bench-");
        let dir = match dir {
            Some(dir) => builder.tempdir_in(dir)?,
            None => builder.tempdir()?,
        };
        Ok(Self { path: dir.path().to_owned(), _remove: Some(dir) })
    }

    /// The folder that another process has made.
    pub fn existing(path: PathBuf) -> Self {
        Self { path, _remove: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file of these tensors, written if it is not there yet.
    pub fn file(&self, name: &str, tensors: &[files::Tensor]) -> Result<TestFile> {
        self.file_by(name, |path| files::write(path, tensors))
    }

    /// A file that a function writes if it is not there yet.
    pub fn file_by(
        &self,
        name: &str,
        write: impl FnOnce(&Path) -> Result<Sums>,
    ) -> Result<TestFile> {
        let (path, sums_path) = (self.path.join(name), self.path.join(format!("{name}.sums")));
        if let Ok(sums) = std::fs::read(&sums_path) {
            return Ok(TestFile { path, sums: serde_json::from_slice(&sums)? });
        }
        let sums = write(&path).with_context(|| path.display().to_string())?;
        std::fs::write(sums_path, serde_json::to_vec(&sums)?)?;
        Ok(TestFile { path, sums })
    }

    /// A file with this header and `data_len` bytes of data. The data is a hole, which takes no
    /// space.
    pub fn header_only(&self, name: &str, header: &str, data_len: u64) -> Result<PathBuf> {
        let path = self.path.join(name);
        files::write_header(&path, header)?.set_len(8 + header.len() as u64 + data_len)?;
        Ok(path)
    }
}
