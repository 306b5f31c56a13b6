//! [`download()`]: downloads files of a repository into the cache shared with Python, or into a
//! directory.

mod blob;
mod options;
mod preview;
mod progress;
mod select;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

pub use options::DownloadOptions;
pub use preview::{PreviewedFile, preview};
pub use progress::DownloadProgress;
use safetensors_core::ReadAt;

use crate::cache::{Cache, CachedRepo, free_bytes, resumable_bytes};
use crate::client::{Client, HubFile, RepoFiles};
use crate::environment::Environment;
use crate::error::{Error, ErrorKind, Result};
use crate::parallel::each;
use crate::repo::{RepoId, Revision};
use blob::{Fetch, Ranges};
use progress::Meter;
use select::{Cached, Missing, WantedFiles};

const SPARE_BYTES: u64 = 1 << 20;

/// Downloads a checkpoint from the Hub into the cache, and returns its place there.
///
/// Downloads a file of tensors, or an index and its shards, several at once, and other files if
/// [asked for](DownloadOptions::include). Skips files that this crate or Python's `huggingface_hub`
/// has cached, and continues unfinished downloads, even of a killed process. A file gets its place
/// only after its size and digest are checked. [`DownloadOptions::local_dir`] replaces the cache by
/// a directory.
///
/// Blocks, also inside an asynchronous runtime. With `HF_HUB_OFFLINE`, and for a cached commit,
/// makes no request.
///
/// ```no_run
/// use safetensors_core::Checkpoint;
/// use safetensors_hub::{DownloadOptions, download};
///
/// let model = download("openai-community/gpt2", &DownloadOptions::new().include("config.json"))?;
/// let checkpoint = Checkpoint::open(&model)?;
/// println!("{} tensors at commit {}", checkpoint.len(), model.commit());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`other`](safetensors_core::Error::other) gives the [`ErrorKind`]:
///
/// - wrong question: [`RepoNotFound`](ErrorKind::RepoNotFound),
///   [`RevisionNotFound`](ErrorKind::RevisionNotFound), [`FileNotFound`](ErrorKind::FileNotFound),
///   [`Gated`](ErrorKind::Gated), [`Renamed`](ErrorKind::Renamed), and
///   [`NoMatch`](ErrorKind::NoMatch) if no file remains for a pattern;
/// - network: [`Network`](ErrorKind::Network), [`RateLimited`](ErrorKind::RateLimited), and
///   [`NotInCache`](ErrorKind::NotInCache) without permission for requests;
/// - wrong data: [`WrongSize`](ErrorKind::WrongSize), [`WrongDigest`](ErrorKind::WrongDigest);
/// - disk: [`NoSpace`](ErrorKind::NoSpace) and [`LocalChanges`](ErrorKind::LocalChanges) before
///   anything is downloaded, and [`DiskFull`](ErrorKind::DiskFull).
///
/// Kinds of the core are `Cancelled`, `Io`, and failures to open the directory: no checkpoint,
/// several, or a hostile index.
pub fn download(repo: &str, options: &DownloadOptions) -> Result<Snapshot> {
    let repo = RepoId::parse(repo)?;
    download_repo(&repo, options).map_err(|error| error.in_file(&repo))
}

fn download_repo(repo: &RepoId, options: &DownloadOptions) -> Result<Snapshot> {
    ask(repo, options, Ok, |job, wanted, revision| {
        let found = job.fetch_wanted(wanted, repo)?;
        // The revision leads to the new snapshot only now: until then, an older one is found
        // offline. A cache that cannot be written but has everything is good enough.
        let commit = &job.listed.commit;
        let is_set = job.cached.set_commit(revision, commit);
        if job.has_fetched() {
            is_set?;
        }
        Ok(Snapshot::new(job.cached, commit.clone(), found))
    })
}

fn ask<T>(
    repo: &RepoId,
    options: &DownloadOptions,
    from_cache: impl FnOnce(Snapshot) -> Result<T>,
    from_hub: impl FnOnce(&Job<'_>, &WantedFiles<'_>, &Revision) -> Result<T>,
) -> Result<T> {
    if repo.is_bucket() {
        return Err(ErrorKind::Bucket { bucket: repo.to_string() }.into());
    }
    let revision = match &options.revision {
        Some(text) => Revision::parse(text)?,
        None => Revision::main(),
    };
    let checkpoint = options.checkpoint.as_deref();
    let wanted = WantedFiles::new(checkpoint, &options.patterns, &options.excluded)?;
    let cache = match &options.cache {
        Some(dir) => Ok(Cache::at(dir)),
        None => Cache::from_environment(),
    };
    let (cached, place) = match &options.local_dir {
        Some(dir) => (CachedRepo::in_directory(dir, repo, cache.ok().as_ref()), dir.clone()),
        None => cache.map(|cache| (cache.repo(repo), cache.dir().into()))?,
    };
    let is_offline = options.offline.unwrap_or_else(|| Environment::PROCESS.is_offline());
    if is_offline || revision.is_commit() {
        match find(&wanted, &cached, &revision, is_offline)? {
            Ok(snapshot) => return from_cache(snapshot),
            Err(Missing(what)) if is_offline => {
                let reason = "no request may be made; unset HF_HUB_OFFLINE to download it";
                return Err(ErrorKind::NotInCache { what, cache: place, reason }.into());
            }
            Err(_) => {}
        }
    }
    let meter = Meter::new(options.progress.clone());
    let client = Client::new(&options.client)?;
    let listed = client.files_until(repo, &revision, meter.stop()).map_err(|error| {
        let found = find(&wanted, &cached, &revision, true);
        if let Ok(Ok(_)) = found { hint_at_cache(error) } else { error }
    })?;
    let job = Job {
        client: &client,
        listed: &listed,
        cached: &cached,
        threads: options.threads.max(1),
        part: options.part,
        overwrite: options.overwrite,
        meter: &meter,
        has_fetched: AtomicBool::new(false),
    };
    from_hub(&job, &wanted, &revision)
}

fn find(
    wanted: &WantedFiles,
    cached: &CachedRepo,
    revision: &Revision,
    is_offline: bool,
) -> Result<Result<Snapshot, Missing>> {
    let Some(commit) = cached.commit(revision)? else {
        return Ok(Err(Missing(format!("revision {revision}"))));
    };
    let found = wanted.find_cached(cached, &commit, is_offline)?;
    Ok(found.map(|found| Snapshot::new(cached, commit, found)))
}

/// They are not used unasked: the branch may have changed.
fn hint_at_cache(error: Error) -> Error {
    let Some(ErrorKind::Network { host, problem }) = error.other() else { return error };
    let hint = "the files of an earlier download are there; HF_HUB_OFFLINE=1 uses them";
    ErrorKind::Network { host: host.clone(), problem: format!("{problem}; {hint}") }.into()
}

struct AskedFile {
    file: HubFile,
    is_there: bool,
    /// Something that no download left is in its place.
    is_changed: bool,
}

struct Job<'a> {
    client: &'a Client,
    /// Of the commit. The repository may have a new name there.
    listed: &'a RepoFiles,
    cached: &'a CachedRepo,
    threads: usize,
    /// The bytes of a range of a large file.
    part: u64,
    overwrite: bool,
    meter: &'a Meter,
    has_fetched: AtomicBool,
}

impl Job<'_> {
    fn has_fetched(&self) -> bool {
        self.has_fetched.load(Ordering::Relaxed)
    }

    /// Checks all files before the first one is written. The index names the shards, so it is read
    /// beforehand.
    fn fetch_wanted(&self, wanted: &WantedFiles<'_>, repo: &RepoId) -> Result<Cached> {
        let RepoFiles { commit, files: listed, .. } = self.listed;
        let (checkpoint, names) = wanted.names(repo, listed, |index| self.shards(index))?;
        self.fetch(&names)?;
        let checkpoint = checkpoint.map(|name| self.cached.pointer(commit, &name));
        Ok(Cached { checkpoint, files: names })
    }

    fn fetch(&self, names: &[String]) -> Result<()> {
        let files = self.missing(names)?;
        if files.is_empty() {
            return Ok(());
        }
        self.has_fetched.store(true, Ordering::Relaxed);
        self.check_space(&files)?;
        let sizes = files.iter().map(|it| it.file.byte_len());
        self.meter.expect(sizes.fold(0, u64::saturating_add));
        let is_large = |it: &&AskedFile| !it.is_there && it.file.byte_len() >= 2 * self.part;
        let connections = self.threads / files.iter().filter(is_large).count().max(1);
        let ranges = Ranges { connections, bytes: self.part };
        let fetch = |AskedFile { file, .. }: &AskedFile| {
            let fetch = Fetch { repo: self.cached, file, ranges, meter: self.meter };
            match self.cached.local_lock(file.path()) {
                Some(lock) => fetch.into_directory(&lock, self.overwrite),
                None => fetch.into_cache(),
            }
        };
        each(&files, self.threads, self.meter.stop(), fetch).map(drop)
    }

    /// Fails for local changes before any download.
    fn missing(&self, names: &[String]) -> Result<Vec<AskedFile>> {
        let names = names.iter().filter(|name| !self.cached.has(&self.listed.commit, name));
        let names: Vec<&String> = names.collect();
        let stop = self.meter.stop();
        let files = each(names, self.threads, stop, |name| {
            let file = self.file(name)?;
            let size = file.byte_len();
            self.cached.check_place(name)?;
            let is_there = self.cached.has_content(name, file.blob(), size, stop)?;
            let is_changed = !is_there && self.cached.is_changed(name, stop)?;
            Ok(AskedFile { file, is_there, is_changed })
        })?;
        let changed = files.iter().filter(|it| it.is_changed && !self.overwrite);
        let changed: Vec<_> = changed.map(|it| it.file.path().to_owned()).collect();
        if changed.is_empty() {
            return Ok(files);
        }
        Err(ErrorKind::LocalChanges { files: changed }.into())
    }

    fn file(&self, name: &str) -> Result<HubFile> {
        self.client.file_until(&self.listed.repo, &self.listed.commit, name, self.meter.stop())
    }

    /// Only a look ahead: other programs write, too.
    fn check_space(&self, files: &[AskedFile]) -> Result<()> {
        let Some(free) = free_bytes(self.cached.dir()) else { return Ok(()) };
        // Files with the same content have one blob.
        let mut seen = HashSet::new();
        let missing = files.iter().filter(|it| !it.is_there).map(|it| &it.file);
        let blobs = missing.filter(|file| seen.insert(file.blob().as_str()));
        let rest = |file: &HubFile| {
            let size = file.byte_len();
            size - resumable_bytes(self.cached, file.blob(), size)
        };
        let needed = blobs.map(rest).fold(0, u64::saturating_add);
        if needed == 0 || needed.saturating_add(SPARE_BYTES) <= free {
            Ok(())
        } else {
            let error = Error::from(ErrorKind::NoSpace { needed, free });
            Err(error.in_file(self.cached.dir().display()))
        }
    }
}

/// A downloaded checkpoint. Everything that opens a path opens it, such as `Checkpoint::open`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    dir: PathBuf,
    checkpoint: Option<PathBuf>,
    commit: Revision,
    files: Vec<String>,
}

impl Snapshot {
    fn new(cached: &CachedRepo, commit: Revision, found: Cached) -> Self {
        let dir = cached.snapshot_dir(&commit);
        Self { dir, checkpoint: found.checkpoint, commit, files: found.files }
    }

    /// Returns the directory with all files, named as in the repository.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the commit of the revision: 40 hex digits.
    pub fn commit(&self) -> &Revision {
        &self.commit
    }

    /// Returns the names of the requested files, the checkpoint's first. The directory may have
    /// more.
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// Other downloads may have left other files there.
    fn opens_as(&self, checkpoint: &Path) -> bool {
        use safetensors_core::checkpoint::CheckpointPath;
        match CheckpointPath::find(&self.dir) {
            Ok(CheckpointPath::File(path) | CheckpointPath::Index(path)) => path == checkpoint,
            Err(_) => false,
        }
    }
}

impl AsRef<Path> for Snapshot {
    /// Returns the path to open: the directory if it opens as this checkpoint, or if there is none,
    /// otherwise the file or index.
    fn as_ref(&self) -> &Path {
        match &self.checkpoint {
            Some(path) if !self.opens_as(path) => path,
            _ => &self.dir,
        }
    }
}

impl From<Snapshot> for PathBuf {
    fn from(snapshot: Snapshot) -> Self {
        snapshot.as_ref().to_owned()
    }
}

impl From<&Snapshot> for PathBuf {
    fn from(snapshot: &Snapshot) -> Self {
        snapshot.as_ref().to_owned()
    }
}
