//! [`PlannedRank`]: the files that one rank saves, for places other than a local directory.

use std::io::Write;

use super::files::{RankFile, RankFiles, SavedPart, given};
use super::plan::RankPlan;
use crate::checkpoint::{FilePattern, Index, ShardOptions};
use crate::error::{Error, ErrorKind, IndexProblem, RankProblem, Result};
use crate::hash::Digest;
use crate::header::{ATTEMPT_KEY, Limits};
use crate::io::hidden::is_attempt;
use crate::save::{SaveOptions, write_to};
use crate::tensor::TensorSource;

/// The files that [`RankSaver::save`](super::RankSaver::save) would write for one rank, to be
/// written elsewhere: to an object store or to another machine.
///
/// The bytes are the same as in a directory. The caller decides where the files lie, and when the
/// files of all ranks are there. A reader finds a whole checkpoint at every moment if the index
/// comes last, and if no file changes that the index in place names.
///
/// ```
/// use safetensors_core::checkpoint::store::MemoryStore;
/// use safetensors_core::ranks::{RankRules, RankSaver};
/// use safetensors_core::{Checkpoint, Limits, ShardOptions, TensorView};
///
/// let values = [1_f32, 2., 3., 4.];
/// let whole = TensorView::from_slice(&[4], &values)?;
/// let rules = RankRules::new().parse_rule("w=split:0")?;
/// let plan = rules.plan_tensors([("w", whole.dtype(), vec![4])], 2)?;
/// let mut store = MemoryStore::default();
/// for rank in 0..2 {
///     let tensors = [("w", whole.slice((rank * 2..rank * 2 + 2,))?)];
///     let planned = RankSaver::new(&plan, rank, "step-1").plan_files(tensors, &ShardOptions::new())?;
///     for (number, (saver, name)) in planned.files().enumerate() {
///         if saver == rank {
///             let mut file = Vec::new();
///             planned.write(number, &mut file)?;
///             store.insert(format!("rank-{rank}/{name}"), file);
///         }
///     }
///     // The last rank writes the index.
///     let (name, json) = planned.index_file(|rank, name| format!("rank-{rank}/{name}"))?;
///     store.insert(name, json);
/// }
/// let saved = Checkpoint::open_whole_in(store, "", &Limits::default())?;
/// assert_eq!(saved.tensor("w")?.read()?.as_slice::<f32>()?, values);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
pub struct PlannedRank<'p, T> {
    rank: usize,
    pub(super) files: RankFiles<'p>,
    /// The tensors of the rank, by the positions of the plan.
    given: Vec<Option<T>>,
    attempt: String,
    pattern: FilePattern,
}

impl<'p, T: TensorSource> PlannedRank<'p, T> {
    pub(super) fn new<N: AsRef<str>>(
        plan: &'p RankPlan,
        rank: usize,
        tensors: impl IntoIterator<Item = (N, T)>,
        attempt: &str,
        options: &ShardOptions,
    ) -> Result<Self> {
        plan.check_rank(rank)?;
        if !is_attempt(attempt) {
            return Err(RankProblem::BadAttempt { found: attempt.into() }.into());
        }
        Self::with_files(RankFiles::new(plan, options)?, rank, tensors, attempt, options)
    }

    /// [`new`](Self::new), given the files. Rank and attempt are not checked.
    pub(super) fn with_files<N: AsRef<str>>(
        mut files: RankFiles<'p>,
        rank: usize,
        tensors: impl IntoIterator<Item = (N, T)>,
        attempt: &str,
        options: &ShardOptions,
    ) -> Result<Self> {
        let (given, extra) = given(files.plan, tensors);
        check(&files, rank, &given, extra)?;
        // Progress counts the bytes of all files of the rank together.
        let own = files.of_rank(rank).map(|file| files.data_len(file)).sum::<Result<u64>>()?;
        files.each.progress = files.each.progress.for_total(own);
        let (attempt, pattern) = (attempt.into(), options.pattern().clone());
        Ok(Self { rank, files, given, attempt, pattern })
    }

    /// The rank that the files are of.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The name of the attempt.
    pub fn attempt(&self) -> &str {
        &self.attempt
    }

    /// The files of all ranks, in order: the rank that writes each, and its name.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (usize, &str)> {
        self.files.files.iter().map(|file| (file.rank, file.name.as_str()))
    }

    /// The names of the files, of the index, and of earlier saves' files.
    pub fn pattern(&self) -> &FilePattern {
        &self.pattern
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.files.plan.world_size()
    }

    /// The number of bytes of all tensors in the files of all ranks.
    pub fn total_size(&self) -> u64 {
        self.files.total_size
    }

    /// The number of bytes of the tensors in a file, without its header; 0 if there is no such
    /// file.
    pub fn data_len(&self, file: usize) -> u64 {
        // The sum of all files was computed before.
        self.files.files.get(file).map_or(0, |file| self.files.data_len(file).unwrap_or(0))
    }

    /// A digest of everything that the ranks must have in common: the plan and the options.
    pub fn digest(&self) -> Digest {
        self.files.digest()
    }

    /// Writes a file of this rank front to back. Files can be written in any order, and again.
    ///
    /// # Errors
    ///
    /// The errors of [`write_to`]. The writer has then received a part of the file.
    /// [`ErrorKind::NoSuchRank`] for a file of another rank, or for none.
    pub fn write(&self, file: usize, writer: impl Write) -> Result<()> {
        let found = self.files.files.get(file).filter(|file| file.rank == self.rank);
        let Some(file) = found else {
            let rank = self.files.files.get(file).map_or(self.world_size(), |file| file.rank);
            return Err(ErrorKind::NoSuchRank { rank, world_size: self.world_size() }.into());
        };
        let (parts, options) = self.contents(file)?;
        write_to(writer, self.sources(file, &parts), &options)
    }

    /// The name and the text of the index. `place` gives the path of each file, relative to the
    /// index, for its rank and its name. There is an index even if there is one file only.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadIndex`] if there is no tensor, or if the index is larger than the default
    /// [`Limits`] allow; [`ErrorKind::Io`] for files that have no index
    /// ([`ShardOptions::dcp`]).
    pub fn index_file(&self, place: impl Fn(usize, &str) -> String) -> Result<(String, Vec<u8>)> {
        if self.files.is_dcp {
            let problem = "files of PyTorch's distributed checkpoints have no index";
            let unsupported = std::io::Error::new(std::io::ErrorKind::Unsupported, problem);
            return Err(ErrorKind::Io(unsupported).into());
        }
        let index = self.files.index(&self.attempt, |file| place(file.rank, &file.name))?;
        if index.shards.values().all(Vec::is_empty) {
            return Err(ErrorKind::BadIndex { problem: IndexProblem::Empty }.into());
        }
        Ok((self.pattern.index_name(), index.to_json()?))
    }

    /// What is written to a file, and how.
    pub(super) fn contents(&self, file: &RankFile) -> Result<(Vec<SavedPart<'p>>, SaveOptions)> {
        let parts = self.files.parts(file)?;
        let options = self.files.options(&parts, &self.attempt);
        Ok((parts, options))
    }

    /// The tensors of a file of this rank, by the names that they have there.
    pub(super) fn sources<'a>(
        &'a self,
        file: &'a RankFile,
        parts: &'a [SavedPart<'_>],
    ) -> impl Iterator<Item = (&'a str, &'a T)> {
        let given = |&position: &usize| self.given[position].as_ref();
        let parts = parts.iter().zip(&file.tensors);
        parts.filter_map(move |(part, position)| Some((part.name.as_str(), given(position)?)))
    }
}

impl<T> std::fmt::Debug for PlannedRank<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlannedRank")
            .field("rank", &self.rank)
            .field("attempt", &self.attempt)
            .field("files", &self.files.files.len())
            .finish_non_exhaustive()
    }
}

/// What the index of a checkpoint that ranks have saved says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedIndex {
    /// The name of the attempt.
    pub attempt: String,
    /// The paths of the files, relative to the index.
    pub files: Vec<String>,
}

impl SavedIndex {
    /// Parses the text of an index. `None` if ranks have not saved it, or if it is malformed.
    ///
    /// ```
    /// use safetensors_core::ranks::SavedIndex;
    ///
    /// let json = br#"{"metadata": {"safetensors_bridge.attempt": "step-1"},
    ///                 "weight_map": {"w": "model.safetensors"}}"#;
    /// let index = SavedIndex::from_json(json).unwrap();
    /// assert_eq!((&*index.attempt, &*index.files[0]), ("step-1", "model.safetensors"));
    /// assert_eq!(SavedIndex::from_json(br#"{"weight_map": {"w": "model.safetensors"}}"#), None);
    /// ```
    pub fn from_json(json: &[u8]) -> Option<Self> {
        let mut index = Index::parse(json, &Limits::default()).ok()?;
        let attempt = index.metadata.remove(ATTEMPT_KEY)?;
        Some(Self { attempt, files: index.shards.into_keys().collect() })
    }
}

/// Compares the tensors that a rank gives with those that it saves.
fn check<T: TensorSource>(
    files: &RankFiles<'_>,
    rank: usize,
    given: &[Option<T>],
    extra: Vec<String>,
) -> Result<()> {
    let plan = files.plan;
    let own = files.of_rank(rank).flat_map(|file| &file.tensors);
    let missing = own.filter(|&&position| given[position].is_none());
    let missing: Vec<_> = missing.map(|&i| plan.tensors[i].name().to_owned()).collect();
    if !missing.is_empty() || !extra.is_empty() {
        return Err(RankProblem::WrongTensors { rank, missing, extra }.into());
    }
    for (tensor, given) in plan.tensors().zip(given) {
        let Some(given) = given else { continue };
        let located = |kind: ErrorKind| Error::from(kind).in_tensor(tensor.name());
        let (expected, found) = (tensor.dtype(), given.dtype());
        if expected != found {
            return Err(located(ErrorKind::WrongDtype { expected, found }));
        }
        let expected = tensor.part(rank)?.shape(tensor.shape())?;
        if given.shape() != expected {
            let found = given.shape().to_vec();
            return Err(located(ErrorKind::WrongShape { expected, found }));
        }
    }
    Ok(())
}
