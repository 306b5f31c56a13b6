//! [`Follower`]: keeps a checkpoint at the newest version that a publisher has.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use safetensors_core::checkpoint::store::{LocalStore, Store};
use safetensors_core::save::DirectoryPlace;
use safetensors_core::{Checkpoint, ReadAt};
use serde_json::{Value, json};

use crate::beside::Beside;
use crate::delta::Delta;
use crate::destination::{New, refuse_inside};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::plan::{Plan, Start, State};
use crate::published::Root;

/// The file in the directory of a follower that says which version it has. It is hidden, so that
/// no copy of the checkpoint has it.
const STATE: &str = ".safetensors-follow.json";

/// Keeps a checkpoint in a directory at the newest version that a publisher has.
///
/// slime and miles publish the versions of a model in a directory or a bucket, each in a directory
/// of its own: `weight_v000000` and so on. A version is a delta, or a full checkpoint, with which a
/// chain begins anew. A version counts once it has its index, which is written last, with all files
/// of it, or one `model.safetensors` and no file that ends in `.tmp`.
///
/// [`poll`](Follower::poll) looks for the newest version, and applies the deltas that lead to it.
/// The directory is replaced as a whole, and has a small hidden file that says which version it is
/// of. So it has the old version or the new one at every moment, also if the process is killed.
/// Polling is for the program to repeat; a follower keeps nothing in memory in between.
///
/// A publisher may begin anew with the version 0. If the newest version is older than the one here,
/// the one of the same number is another one, or the deltas were made of other tensors, the
/// follower begins with a full version, too. A full version is told from another one of its number
/// by its headers and the last 4 KiB of each file. Of deltas without
/// [digests](Delta::base_digest), the tensors that change are checked, as by
/// [`Chain::apply`](crate::Chain::apply).
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

/// What a [`Follower`] has done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Update {
    /// The version that the directory has now.
    pub version: u64,
    /// The version that it had before.
    pub before: Option<u64>,
    /// The full version that was copied, if none was here or the one here was of no use.
    pub full: Option<u64>,
    /// The number of deltas that were applied.
    pub deltas: usize,
    /// Whether a delta names a digest of the whole, so that also the tensors that no delta changes
    /// are known to be right. True for a full version alone, of which nothing is compared.
    pub is_checked: bool,
    /// The files beside a full version that were not copied, because they may belong to other
    /// tensors.
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
    /// A follower whose checkpoint is in this directory, or will be.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        let (directory, options) = (directory.into(), Options::new());
        Self { directory, options, until: None, base: None }
    }

    /// Sets whether the directory is durable, who receives the progress, and with
    /// [`overwrite`](Options::overwrite) that a checkpoint there is replaced that no follower has
    /// put there. Other options have no effect.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// The last version that is followed. Later ones are as if they were not there.
    #[must_use]
    pub fn until(mut self, version: u64) -> Self {
        self.until = Some(version);
        self
    }

    /// The checkpoint that the first delta changes, for a publisher that has no full version.
    #[must_use]
    pub fn base<S: ReadAt + 'static>(mut self, base: Checkpoint<S>) -> Self {
        self.base = Some(base.into_boxed());
        self
    }

    /// The version that the directory has; `None` if no follower has put one there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](safetensors_core::ErrorKind::Io).
    pub fn version(&self) -> Result<Option<u64>> {
        Ok(self.state()?.map(|state| state.version))
    }

    /// Looks for a newer version in the directory of a publisher, and makes it the one that is
    /// here. Returns `None` if there is none, or if the publisher is just changing it.
    ///
    /// At most 64 deltas are applied at once, so a follower that is far behind comes to the newest
    /// version by several calls.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoBase`], [`ErrorKind::Gap`] and [`ErrorKind::Fork`] if the complete versions
    /// do not lead from one to the next; [`ErrorKind::OtherVersion`]; the errors of
    /// [`Chain::apply`](crate::Chain::apply). The directory then has what it had before.
    pub fn poll(&self, root: impl AsRef<Path>) -> Result<Option<Update>> {
        self.poll_in(LocalStore, root)
    }

    /// [`poll`](Follower::poll) for versions that do not lie on the local disk. The store must be
    /// one that lists directories.
    ///
    /// # Errors
    ///
    /// The errors of [`poll`](Follower::poll) and of the store.
    pub fn poll_in<T: Store + 'static>(
        &self,
        store: T,
        root: impl AsRef<Path>,
    ) -> Result<Option<Update>> {
        let root = Root::new(store, root.as_ref());
        let here = self.state()?;
        let (mut usable, mut first) = (here.as_ref(), None);
        loop {
            // What is replaced while it is listed and opened may seem wrong once.
            let plan = || Plan::new(&root, usable, self.until, self.base.is_some());
            let plan = match (plan().or_else(|_| plan()), first.take()) {
                (Err(_), Some(error)) => return Err(error),
                (planned, _) => planned?,
            };
            let Some(plan) = plan else {
                // Nothing else removes what a process has left that was killed.
                DirectoryPlace::clean(&self.directory);
                return Ok(None);
            };
            let error = match self.carry_out(&root, &plan, here.as_ref()) {
                Ok(update) => return Ok(Some(update)),
                Err(error) => error,
            };
            if root.has_changed(&plan.read) {
                return Ok(None);
            }
            let is_unusable =
                || is_about_base(&error) || Checkpoint::open(&self.directory).is_err();
            if !matches!(plan.start, Start::Here) || !is_unusable() {
                return Err(error);
            }
            // The checkpoint that is here is not the one that the deltas were made of.
            (usable, first) = (None, Some(error));
        }
    }

    fn state(&self) -> Result<Option<State>> {
        State::read(&self.directory.join(STATE))
    }

    /// Applies the deltas of a plan, and puts the result in place together with its state.
    fn carry_out<T: Store + 'static>(
        &self,
        root: &Root<T>,
        plan: &Plan<T::File>,
        here: Option<&State>,
    ) -> Result<Update> {
        let directory = &self.directory;
        let overwrite = self.options.overwrite || here.is_some();
        let options = self.options.clone().overwrite(overwrite);
        options.check_destination(directory, New::Checkpoint)?;
        let is_outside = |delta: &Delta<_>| refuse_inside(directory, delta.files(), false);
        plan.chain.deltas().iter().try_for_each(is_outside)?;
        let new = options.create(directory)?;
        // The new directory is synchronised as a whole.
        let each = options.clone().durable(false).overwrite(false);
        let to = new.path();
        let left_out = match &plan.start {
            Start::Here => Checkpoint::open(directory)
                .and_then(|base| plan.chain.apply(&base, to, &each).map(|_| Vec::new())),
            Start::Full(number, full) => refuse_inside(directory, full, false)
                .and_then(|()| plan.chain.apply(full, to, &each))
                .and_then(|_| root.copy_beside(*number, to))
                .and_then(|left_out| self.keep_beside(here, to).map(|()| left_out)),
            Start::Given(_) => match &self.base {
                Some(base) => refuse_inside(directory, base, base.is_of_directory())
                    .and_then(|()| plan.chain.apply(base, to, &each)),
                None => Ok(Vec::new()),
            },
        };
        let left_out = left_out.map_err(|error| new.locate(error))?;
        let state = State { version: plan.version, fingerprint: plan.fingerprint().into() };
        state.write(&to.join(STATE)).map_err(|error| new.locate(error))?;
        new.commit()?;
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

    /// Copies what lies beside the tensors that are here, such as a tokenizer that the publisher
    /// does not have. The tensors need not be of any use.
    fn keep_beside(&self, here: Option<&State>, to: &Path) -> Result<()> {
        if here.is_none() {
            return Ok(());
        }
        Beside::in_directory(&self.directory, HashSet::new(), to)?.copy(to).map(drop)
    }
}

/// Whether an error may come of another base than the deltas were made of.
fn is_about_base(error: &Error) -> bool {
    use ErrorKind::{
        ContentSize, ContentTooLong, InBase, NotInBase, PositionOutside, TooManyPositions,
        WrongBase, WrongResult, WrongTensor,
    };

    matches!(
        error.other(),
        Some(
            ContentSize { .. }
                | ContentTooLong { .. }
                | InBase { .. }
                | NotInBase { .. }
                | PositionOutside { .. }
                | TooManyPositions { .. }
                | WrongBase { .. }
                | WrongResult { .. }
                | WrongTensor { .. }
        )
    )
}

impl State {
    /// Reads the state of a directory. `None` if there is none, or if it is none that a follower
    /// has written.
    fn read(path: &Path) -> Result<Option<Self>> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(Error::from(error).in_path(path)),
        };
        let state: Value = serde_json::from_slice(&text).unwrap_or_default();
        let fingerprint = state["fingerprint"].as_str().map(str::to_owned);
        Ok(state["version"]
            .as_u64()
            .zip(fingerprint)
            .map(|(version, fingerprint)| Self { version, fingerprint }))
    }

    fn write(&self, path: &Path) -> Result<()> {
        let state = json!({ "version": self.version, "fingerprint": self.fingerprint });
        let written = fs::write(path, format!("{state}\n"));
        written.map_err(|error| Error::from(error).in_path(path))
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
