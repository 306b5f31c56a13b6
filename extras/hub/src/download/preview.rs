//! [`preview()`]: the files that a download would bring.

use std::collections::HashMap;
use std::path::Path;

use safetensors_core::checkpoint::store::{LocalStore, MemoryStore};
use safetensors_core::error::IndexProblem;
use safetensors_core::{self as core, Limits, ReadAt};

use super::select::{self, WantedFiles};
use super::{AskedFile, DownloadOptions, Job, ask};
use crate::cache::joined;
use crate::client::RepoFiles;
use crate::error::{Error, Result};
use crate::repo::RepoId;

/// A file that [`download`](super::download()) would bring.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PreviewedFile {
    /// The name in the repository.
    pub name: String,
    /// The size in bytes.
    pub byte_len: u64,
    /// `true` if the file is in the cache or directory already.
    pub is_cached: bool,
}

/// Lists the files that [`download`](super::download()) would bring, with sizes, the checkpoint's
/// first. Writes nothing, and reads only an index.
///
/// ```no_run
/// use safetensors_hub::{DownloadOptions, preview};
///
/// let files = preview("openai-community/gpt2", &DownloadOptions::new())?;
/// let missing = files.iter().filter(|file| !file.is_cached);
/// println!("{} bytes to download", missing.map(|file| file.byte_len).sum::<u64>());
/// # Ok::<(), safetensors_hub::Error>(())
/// ```
pub fn preview(repo: &str, options: &DownloadOptions) -> Result<Vec<PreviewedFile>> {
    let repo = RepoId::parse(repo)?;
    let cached = |snapshot: super::Snapshot| {
        snapshot.files.iter().map(|name| cached_file(&snapshot.dir, name)).collect()
    };
    let listed = ask(&repo, options, cached, |job, wanted, _| job.preview(wanted, &repo));
    listed.map_err(|error| error.in_file(&repo))
}

impl Job<'_> {
    fn preview(&self, wanted: &WantedFiles<'_>, repo: &RepoId) -> Result<Vec<PreviewedFile>> {
        let (_, names) = wanted.names(repo, &self.listed.files, |index| self.shards(index))?;
        let missing = self.missing(&names)?;
        let missing: HashMap<_, _> = missing.iter().map(|it| (it.file.path(), it)).collect();
        let previewed = names.iter().map(|name| match missing.get(name.as_str()) {
            Some(AskedFile { file, is_there, .. }) => {
                let byte_len = file.byte_len();
                let is_cached =
                    *is_there || self.cached.shared_blob(file.blob(), byte_len).is_some();
                Ok(PreviewedFile { name: name.clone(), byte_len, is_cached })
            }
            None => cached_file(&self.cached.snapshot_dir(&self.listed.commit), name),
        });
        previewed.collect()
    }

    /// Reads the index into memory if it is not there.
    pub(super) fn shards(&self, index: &str) -> Result<Vec<String>> {
        let RepoFiles { commit, files: listed, .. } = self.listed;
        if self.cached.has(commit, index) {
            let path = self.cached.pointer(commit, index);
            return select::shards(&LocalStore, &self.cached.snapshot_dir(commit), &path, listed);
        }
        let file = self.file(index)?;
        let limit = Limits::default().index_bytes;
        let found = file.byte_len();
        if found > limit {
            let problem = IndexProblem::TooLarge { limit, found };
            let error = Error::from(core::ErrorKind::BadIndex { problem });
            return Err(error.in_file(index));
        }
        let mut json = vec![0; usize::try_from(found).unwrap_or_default()];
        file.read_exact_at(&mut json, 0).map_err(|error| Error::io(error, Path::new(index)))?;
        // A store has no root without a name.
        let root = Path::new("snapshot");
        let path = joined(root, index);
        let store = MemoryStore::from_iter([(path.to_string_lossy().into_owned(), json)]);
        select::shards(&store, root, &path, listed)
    }
}

fn cached_file(dir: &Path, name: &str) -> Result<PreviewedFile> {
    let path = joined(dir, name);
    let found = path.metadata().map_err(|error| Error::io(error, &path))?;
    Ok(PreviewedFile { name: name.into(), byte_len: found.len(), is_cached: true })
}
