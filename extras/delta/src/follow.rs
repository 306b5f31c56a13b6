//! [`Follower`]: keeps a checkpoint at the newest published version.

use std::path::{Path, PathBuf};

use safetensors_core::checkpoint::LocalDirectory;
use safetensors_core::checkpoint::store::{LocalStore, Store};
use safetensors_core::{Checkpoint, ReadAt};

use crate::error::{Error, ErrorKind, Result};
use crate::format::INDEX;
use crate::options::Options;
use crate::plan::{LocalVersion, Start, UpdatePlan};
use crate::published::Root;
use crate::state::{STATE, StateFile};

/// Keeps a checkpoint in a directory at the newest published version.
///
/// slime and miles publish each version in a directory: `weight_v000000` and so on. It is a delta,
/// or a full checkpoint that begins a new chain. It is complete with its index and all its files,
/// or with one `model.safetensors` and no file ending in `.tmp`.
///
/// [`poll`](Follower::poll) applies the deltas to the newest version. It replaces the files of the
/// old one; other files stay. The directory opens as the old or the new version at every moment,
/// even after a crash. A small hidden file records the version; a follower keeps nothing in memory
/// between calls.
///
/// If a publisher starts over at version 0, the follower begins with a full version, too. It
/// recognises this if the newest version is older than its own, its own was replaced, or the
/// deltas have a different base. Full versions are compared by their headers and the last 4 KiB of
/// each file.
///
/// ```
/// use safetensors_core::{Checkpoint, SaveOptions, TensorView, save};
/// use safetensors_delta::{Follower, Options, make};
///
/// # let dir = tempfile::tempdir()?;
/// let root = dir.path().join("published");
/// let full = root.join("weight_v000000");
/// std::fs::create_dir_all(&full)?;
/// let weights = TensorView::from_slice(&[2], &[1.0_f32, 2.0])?;
/// save(full.join("model.safetensors"), [("w", weights)], &SaveOptions::new())?;
///
/// let follower = Follower::new(dir.path().join("served"));
/// assert_eq!(follower.poll(&root)?.map(|update| update.version), Some(0));
/// assert_eq!(follower.poll(&root)?, None);
///
/// let weights = TensorView::from_slice(&[2], &[1.0_f32, 2.5])?;
/// let delta = root.join("weight_v000001");
/// make(&Checkpoint::open(&full)?, [("w", weights)], delta, &Options::new())?;
/// let update = follower.poll(&root)?.unwrap();
/// assert_eq!((update.before, update.version, update.deltas), (Some(0), 1, 1));
/// let served = Checkpoint::open(dir.path().join("served"))?;
/// assert_eq!(served.tensor("w")?.read()?.as_slice::<f32>()?, [1.0, 2.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Follower {
    directory: PathBuf,
    options: Options,
    until: Option<u64>,
    base: Option<Checkpoint<Box<dyn ReadAt>>>,
}

/// The result of a poll of a [`Follower`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Update {
    /// The version of the directory now.
    pub version: u64,
    /// The version before.
    pub before: Option<u64>,
    /// The full version that was copied, if there was no usable one.
    pub full: Option<u64>,
    /// The number of applied deltas.
    pub deltas: usize,
    /// `true` if unchanged tensors are checked, too, by a digest in a delta, or for a full version
    /// alone.
    pub is_checked: bool,
    /// Files next to a full version or a base that were not copied: they may belong to other
    /// tensors, or are outside.
    pub left_out: Vec<PathBuf>,
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower")
            .field("directory", &self.directory)
            .field("options", &self.options)
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

impl Follower {
    /// Creates a follower of this directory, which may not exist yet.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        let directory = directory.into();
        let options = Options::new();
        Self { directory, options, until: None, base: None }
    }

    /// Sets durability, progress, and, by [`overwrite`](Options::overwrite), permission to replace
    /// a checkpoint that no follower wrote. Other options are ignored.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Ignores later versions.
    #[must_use]
    pub fn until(mut self, version: u64) -> Self {
        self.until = Some(version);
        self
    }

    /// Sets the checkpoint that the first delta changes, if no full version is published.
    #[must_use]
    pub fn base<S: ReadAt + 'static>(mut self, base: Checkpoint<S>) -> Self {
        self.base = Some(base.into_boxed());
        self
    }

    /// Returns the version of the directory; `None` if no follower wrote it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](safetensors_core::ErrorKind::Io).
    pub fn version(&self) -> Result<Option<u64>> {
        let file = self.state()?;
        Ok(file.as_ref().and_then(StateFile::here).map(|here| here.version))
    }

    /// Updates the directory to the newest version of a publisher. Returns `None` if nothing is
    /// new, or during a change.
    ///
    /// Applies at most 64 deltas: a follower that is far behind needs several calls. After an error
    /// the directory keeps its version.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoBase`], [`ErrorKind::Gap`] and [`ErrorKind::Fork`] if complete versions do
    /// not follow each other; [`ErrorKind::OtherVersion`]; errors of
    /// [`Chain::apply`](crate::Chain::apply).
    pub fn poll(&self, root: impl AsRef<Path>) -> Result<Option<Update>> {
        self.poll_in(LocalStore, root)
    }

    /// Polls like [`poll`](Follower::poll), in any store that lists directories.
    pub fn poll_in<T: Store + 'static>(
        &self,
        store: T,
        root: impl AsRef<Path>,
    ) -> Result<Option<Update>> {
        // A store caches the files that it finds, so each poll has a new one. No thread polls: each
        // server has its own moment to load new weights.
        let root = Root::new(store, root.as_ref());
        let file = self.state()?;
        let mut usable = file.as_ref().and_then(StateFile::here);
        let mut first = None;
        loop {
            // A version that is replaced while it is listed and opened may seem wrong once.
            let plan = || UpdatePlan::new(&root, usable, self.until, self.base.is_some());
            let plan = match (plan().or_else(|_| plan()), first.take()) {
                (Err(_), Some(error)) => return Err(error),
                (planned, _) => planned?,
            };
            let Some(plan) = plan else {
                // Nothing else removes the files of a process that was killed.
                for name in [INDEX, STATE] {
                    LocalDirectory::clean(&self.directory, name);
                }
                return Ok(None);
            };
            let error = match self.carry_out(&plan, file.as_ref()) {
                Ok(update) => return Ok(Some(update)),
                Err(error) => error,
            };
            if root.has_changed(&plan.read) {
                return Ok(None);
            }
            let is_from_here = matches!(plan.start, Start::Here);
            if !is_from_here || !is_about_base(&error) && is_base(&self.directory) {
                return Err(error);
            }
            // The checkpoint that is here is not the one that the deltas were made of.
            (usable, first) = (None, Some(error));
        }
    }

    /// `None` if no follower wrote there.
    fn state(&self) -> Result<Option<StateFile>> {
        StateFile::read(&self.directory)
    }

    /// Files and state cannot be renamed at once, so the state records the version of the new files
    /// and of all others, and afterwards the present version.
    fn carry_out<S: ReadAt>(
        &self,
        plan: &UpdatePlan<S>,
        file: Option<&StateFile>,
    ) -> Result<Update> {
        let directory = &self.directory;
        let here = file.and_then(StateFile::here);
        let overwrite = self.options.overwrite || file.is_some();
        StateFile::check_free(directory, overwrite)?;
        let options = self.options.clone().overwrite(overwrite);
        // The version here must still be there when it is replaced.
        let old = match (Checkpoint::open(directory), &plan.start) {
            (Err(error), Start::Here) => return Err(error),
            (old, _) => old.ok(),
        };
        let mut new = match (&plan.start, &old, &self.base) {
            (Start::Here, Some(old), _) => plan.chain.stage(old, directory, &options)?,
            (Start::Full(_, full), ..) => {
                let mut new = plan.chain.stage(full, directory, &options)?;
                new.copy_other_files(full)?;
                new
            }
            (Start::Given(_), _, Some(base)) => plan.chain.stage(base, directory, &options)?,
            // A plan begins this way only with a base.
            (Start::Here | Start::Given(_), ..) => return Err(ErrorKind::NoDelta.into()),
        };
        let state = LocalVersion { version: plan.version, fingerprint: plan.fingerprint().into() };
        let changing = StateFile::changing(here, &state, new.staging(), &new.files()?)?;
        new.put_first(STATE, &changing)?;
        let left_out = new.commit(old.as_ref())?;
        // If this fails, the files still show their version.
        let _ = StateFile::settle(directory, &changing, &state);
        let deltas = plan.chain.deltas();
        Ok(Update {
            version: plan.version,
            before: here.map(|here| here.version),
            full: plan.start.full(),
            deltas: deltas.len(),
            is_checked: deltas.is_empty() || plan.chain.names_digest(),
            left_out,
        })
    }
}

fn is_base(directory: &Path) -> bool {
    Checkpoint::open(directory).is_ok_and(|here| here.stored_files().is_ok())
}

fn is_about_base(error: &Error) -> bool {
    matches!(
        error.other(),
        Some(
            ErrorKind::ContentSize { .. }
                | ErrorKind::ContentTooLong { .. }
                | ErrorKind::InBase { .. }
                | ErrorKind::NotInBase { .. }
                | ErrorKind::PositionOutside { .. }
                | ErrorKind::TooExpanded { .. }
                | ErrorKind::TooManyPositions { .. }
                | ErrorKind::WrongBase { .. }
                | ErrorKind::WrongResult { .. }
                | ErrorKind::WrongTensor { .. }
        )
    )
}
