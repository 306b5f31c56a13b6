//! [`Attempt`]: the objects of all ranks, until they are complete and an index names them.
//!
//! After a rollback, training saves under the same names again. So every attempt has an id, which
//! is part of the names of its objects: whoever removes those of an earlier attempt leaves the
//! others.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;

use object_store::ObjectMeta;
use object_store::path::Path as Key;
use safetensors_core::checkpoint::FilePattern;
use safetensors_core::error::RankProblem;
use safetensors_core::ranks::{PlannedRank, SavedIndex};
use safetensors_core::{Error, ErrorKind, Limits, Result, TensorSource};

pub(in crate::remote::save) use super::manifest::Attempts;
use super::manifest::{MANIFEST, Manifest};
use crate::cache::unique;
use crate::remote::object::version_of;
use crate::remote::place::RemotePlace;
use crate::remote::save::directory::Directory;
use crate::remote::save::problem::failed;

/// How the name of the directory of an attempt ends.
const DIRECTORY: &str = ".ranks";

/// How the name of a mark ends.
const MARK: &str = ".done";

/// An attempt of ranks to save a checkpoint.
pub(super) struct Attempt<'a, T> {
    pub(super) planned: &'a PlannedRank<'a, T>,
    pub(super) name: &'a str,
    /// The path of the checkpoint's directory, for errors.
    pub(super) shown: &'a str,
    /// The directory of the checkpoint.
    pub(super) directory: Directory,
    /// The name of the attempt's directory, and its objects.
    pub(super) own: String,
    pub(super) objects: Directory,
    pub(super) manifest: Manifest,
}

/// What the directory of an attempt has.
pub(super) struct Contents {
    /// Whether the manifest is there.
    pub(super) is_under_way: bool,
    /// The calls that have set a mark, by ranks, each with its mark.
    marks: BTreeMap<usize, Vec<(String, ObjectMeta)>>,
    /// The lengths of all other objects.
    pub(super) lengths: HashMap<Key, u64>,
}

impl<'a, T: TensorSource> Attempt<'a, T> {
    /// Begins the attempt, or joins the ranks that have begun it.
    pub(super) fn enter(
        place: &'a RemotePlace,
        planned: &'a PlannedRank<'a, T>,
        overwrites: bool,
    ) -> Result<Self> {
        let directory = Directory::of(place, planned.pattern())?;
        let name = planned.attempt();
        let own = directory_name(planned.pattern(), name);
        let objects = directory.below(&own);
        let digest = planned.digest().to_string();
        let found = Manifest::read(&objects).map_err(failed)?;
        let is_new = found.is_none();
        let manifest =
            found.unwrap_or_else(|| Manifest { digest: digest.clone(), ..Manifest::default() });
        let shown = &place.shown;
        let mut attempt = Self { planned, name, shown, directory, own, objects, manifest };
        if is_new {
            attempt.begin(overwrites)?;
        } else if !attempt.is_open()? {
            // The rank that wrote the index may have been killed just after that.
            attempt.clean_up()?;
            return Err(attempt.complete());
        }
        if attempt.manifest.digest == digest {
            Ok(attempt)
        } else {
            Err(RankProblem::AttemptDiffers { attempt: name.into() }.into())
        }
    }

    /// Whether the attempt is not complete, and can still be.
    pub(super) fn is_open(&self) -> Result<bool> {
        let name = self.planned.pattern().index_name();
        let now = self.directory.list(&name).map_err(failed)?;
        let mut version = now.get(&name).map(version_of);
        let mut index = None;
        if version != self.manifest.index {
            let found = self.index()?.unzip();
            (version, index) = (found.0.as_ref().map(version_of), found.1.flatten());
            if self.is_own(index.as_ref()) {
                return Ok(false);
            }
        }
        self.check_unchanged(version, index, &now)?;
        Ok(true)
    }

    /// Records what the directory holds now.
    fn begin(&mut self, overwrites: bool) -> Result<()> {
        let found = self.index()?;
        if found.as_ref().is_some_and(|(_, index)| self.is_own(index.as_ref())) {
            return Err(self.complete());
        }
        self.manifest.index = found.map(|(meta, _)| version_of(&meta));
        let pattern = self.planned.pattern();
        let (files, directories) =
            self.directory.list_all(&pattern.index_name()).map_err(failed)?;
        let files = files.iter().filter(|(name, _)| pattern.matches(name));
        self.manifest.files = files.map(|(name, meta)| (name.clone(), version_of(meta))).collect();
        let first = self.manifest.files.keys().next().cloned();
        let first = first.or_else(|| self.manifest.index.as_ref().map(|_| pattern.index_name()));
        if let (Some(file), false) = (first, overwrites) {
            let error = Error::from(ErrorKind::FileExists);
            return Err(error.in_file(format!("{}/{file}", self.shown)));
        }
        self.manifest.earlier = find(&self.directory, pattern, &directories).map_err(failed)?;
        self.manifest.id = unique::name("", "");
        self.manifest = self.manifest.clone().begin(&self.objects).map_err(failed)?;
        Ok(())
    }

    /// The index in place, and what it says if ranks have saved it.
    pub(super) fn index(&self) -> Result<Option<(ObjectMeta, Option<SavedIndex>)>> {
        self.read_index().map_err(failed)
    }

    pub(super) fn read_index(&self) -> io::Result<Option<(ObjectMeta, Option<SavedIndex>)>> {
        let (name, most) = (self.planned.pattern().index_name(), Limits::default().index_bytes);
        let found = self.directory.get(&name, most)?;
        Ok(found.map(|(meta, json)| (meta, SavedIndex::from_json(&json))))
    }

    /// Whether an index is that of this attempt.
    pub(super) fn is_own(&self, index: Option<&SavedIndex>) -> bool {
        index.is_some_and(|index| index.attempt == self.name)
    }

    /// A name for the files of one call of a rank, which no other call has.
    pub(super) fn turn(&self, rank: usize) -> String {
        unique::name(&format!("rank-{rank:05}.{}.", self.manifest.id), "")
    }

    /// The path of a file of a rank, relative to the index.
    pub(super) fn path(&self, turn: &str, file: &str) -> String {
        format!("{}/{turn}/{file}", self.own)
    }

    /// The key of a file of a rank.
    pub(super) fn key(&self, turn: &str, file: &str) -> Key {
        self.objects.below(turn).file(file)
    }

    /// Marks that all files of a call are there. No other call writes this mark, so it needs no
    /// condition, and can be written again if the answer is lost.
    pub(super) fn mark(&self, turn: &str) -> Result<()> {
        self.objects.write(&format!("{turn}{MARK}"), b"done\n").map_err(failed)
    }

    /// Removes the marks of earlier calls of a rank, but not the mark that counts: two calls of one
    /// rank at the same time must not remove each other's. Their files stay, because another rank
    /// may just be writing an index with them.
    pub(super) fn unmark_earlier(
        &self,
        contents: &Contents,
        rank: usize,
        turn: &str,
    ) -> Result<()> {
        let marks = contents.marks.get(&rank).into_iter().flatten();
        let counts = contents.turns().get(&rank).copied();
        let earlier =
            marks.filter(|(earlier, _)| earlier != turn && Some(earlier.as_str()) != counts);
        let keys: Vec<_> = earlier.map(|(_, mark)| mark.location.clone()).collect();
        self.objects.remove_all(keys).map_err(failed)
    }

    /// Removes the files of a call that no index will name, and its mark.
    pub(super) fn forget(&self, turn: &str) -> io::Result<()> {
        let files = self.objects.below(turn).list_below()?;
        let mark = self.objects.file(&format!("{turn}{MARK}"));
        self.objects.remove_all(files.into_iter().map(|meta| meta.location).chain([mark]).collect())
    }

    /// Lists the attempt.
    pub(super) fn contents(&self) -> Result<Contents> {
        let mut contents =
            Contents { is_under_way: false, marks: BTreeMap::new(), lengths: HashMap::new() };
        for meta in self.objects.list_below().map_err(failed)? {
            match Object::of(&self.objects.key, &meta.location, self.planned.pattern()) {
                Some(Object::Manifest) => contents.is_under_way = true,
                Some(Object::Mark { rank, attempt, turn }) if attempt == self.manifest.id => {
                    let turn = turn.to_owned();
                    contents.marks.entry(rank).or_default().push((turn, meta));
                }
                _ => _ = contents.lengths.insert(meta.location, meta.size),
            }
        }
        Ok(contents)
    }

    /// The error if the attempt is complete.
    pub(super) fn complete(&self) -> Error {
        RankProblem::AttemptComplete { attempt: self.name.into() }.into()
    }

    /// The error if a newer attempt was complete first.
    pub(super) fn superseded(&self) -> Error {
        RankProblem::AttemptSuperseded { attempt: self.name.into() }.into()
    }
}

impl Contents {
    /// The number of ranks without a mark.
    pub(super) fn missing(&self, world_size: usize) -> usize {
        world_size.saturating_sub(self.marks.range(..world_size).count())
    }

    /// For each rank, the call whose files count: the last one.
    pub(super) fn turns<'c>(&'c self) -> BTreeMap<usize, &'c str> {
        let last = |(&rank, marks): (&usize, &'c Vec<(String, ObjectMeta)>)| {
            let last = marks.iter().max_by_key(|(turn, mark)| (mark.last_modified, turn));
            last.map(|(turn, _)| (rank, turn.as_str()))
        };
        self.marks.iter().filter_map(last).collect()
    }
}

/// What an object below the directory of an attempt is.
enum Object<'k> {
    Manifest,
    Mark {
        rank: usize,
        attempt: &'k str,
        /// The name of the directory of the call's files.
        turn: &'k str,
    },
    File {
        attempt: &'k str,
    },
}

impl<'k> Object<'k> {
    /// `None` for an object that no save of ranks has written.
    fn of(directory: &Key, key: &'k Key, pattern: &FilePattern) -> Option<Self> {
        let path = key.as_ref().strip_prefix(directory.as_ref())?.strip_prefix('/')?;
        if path == MANIFEST {
            return Some(Self::Manifest);
        }
        match path.split_once('/') {
            None => {
                let turn = path.strip_suffix(MARK)?;
                let (rank, attempt) = parse(turn)?;
                Some(Self::Mark { rank, attempt, turn })
            }
            Some((turn, file)) if pattern.matches(file) => {
                Some(Self::File { attempt: parse(turn)?.1 })
            }
            Some(_) => None,
        }
    }

    /// The id of the attempt that has written it; `None` for the manifest, which says it inside.
    fn attempt(&self) -> Option<&'k str> {
        match self {
            Self::Manifest => None,
            Self::Mark { attempt, .. } | Self::File { attempt } => Some(attempt),
        }
    }
}

/// The rank and the id of the attempt in the name of a call, such as
/// `rank-00002.4be1d0c2.1f0e9a37`.
fn parse(turn: &str) -> Option<(usize, &str)> {
    let (rank, ids) = turn.strip_prefix("rank-")?.split_once('.')?;
    let (attempt, call) = ids.split_once('.')?;
    let is_id = |id: &str| id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_rank = rank.len() >= 5 && rank.bytes().all(|byte| byte.is_ascii_digit());
    if is_id(attempt) && is_id(call) && is_rank {
        Some((rank.parse().ok()?, attempt))
    } else {
        None
    }
}

/// The id of the attempt that has written a file which an index names.
pub(super) fn attempt_of(path: &str) -> Option<&str> {
    Some(parse(path.split('/').nth(1)?)?.1)
}

/// What the names of all files of a pattern begin with.
fn stem(pattern: &FilePattern) -> String {
    let single = pattern.file_name(0, 1);
    single.strip_suffix(".safetensors").unwrap_or(&single).to_owned()
}

/// The name of the directory of an attempt to save files of this pattern.
pub(super) fn directory_name(pattern: &FilePattern, attempt: &str) -> String {
    format!("{}.{attempt}{DIRECTORY}", stem(pattern))
}

/// Whether a name belongs to the directory of an attempt to save files of this pattern.
fn is_directory(pattern: &FilePattern, name: &str) -> bool {
    let attempt = name.strip_prefix(&stem(pattern)).and_then(|rest| rest.strip_prefix('.'));
    let attempt = attempt.and_then(|rest| rest.strip_suffix(DIRECTORY)).unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !attempt.is_empty() && attempt.bytes().all(is_plain)
}

/// The attempts that have objects, given the names of all directories.
pub(in crate::remote::save) fn find(
    directory: &Directory,
    pattern: &FilePattern,
    names: &[String],
) -> io::Result<Attempts> {
    let mut found = Attempts::new();
    for name in names.iter().filter(|name| is_directory(pattern, name)) {
        let objects = directory.below(name);
        let mut ids = BTreeSet::new();
        for meta in objects.list_below()? {
            match Object::of(&objects.key, &meta.location, pattern) {
                Some(Object::Manifest) => ids.extend(Manifest::id_in(&objects)?),
                object => ids.extend(object.and_then(|object| object.attempt().map(str::to_owned))),
            }
        }
        found.insert(name.clone(), ids);
    }
    Ok(found)
}

/// Removes the objects of attempts that can no longer become the checkpoint. Others that lie in
/// the directory stay. A manifest stays until nothing else is there, for the ranks that have not
/// saved yet: it tells them that the attempt has begun before the checkpoint that is in place now.
pub(in crate::remote::save) fn remove(
    objects: &Directory,
    pattern: &FilePattern,
    ids: &BTreeSet<String>,
) -> io::Result<()> {
    let keys = keys(objects, pattern, ids)?;
    if keys.is_empty() { remove_manifest(objects, ids) } else { objects.remove_all(keys) }
}

/// Removes the objects of an attempt that is complete, but for the files of its index.
pub(super) fn remove_others(
    objects: &Directory,
    pattern: &FilePattern,
    id: &str,
    kept: &HashSet<Key>,
) -> io::Result<()> {
    let ids = BTreeSet::from([id.to_owned()]);
    let mut keys = keys(objects, pattern, &ids)?;
    keys.retain(|key| !kept.contains(key));
    objects.remove_all(keys)?;
    // It has what is needed to begin this again, so it goes last.
    remove_manifest(objects, &ids)
}

/// The objects of some attempts, without the manifest.
fn keys(
    objects: &Directory,
    pattern: &FilePattern,
    ids: &BTreeSet<String>,
) -> io::Result<Vec<Key>> {
    let is_meant = |key: &Key| {
        let attempt = Object::of(&objects.key, key, pattern).and_then(|object| object.attempt());
        attempt.is_some_and(|attempt| ids.contains(attempt))
    };
    let keys = objects.list_below()?.into_iter().map(|meta| meta.location);
    Ok(keys.filter(is_meant).collect())
}

/// Removes the manifest of one of these attempts.
///
/// Stores remove on no condition. Another attempt of the same name could only lose its manifest if
/// it began after this look, and if yet another save removed the earlier one in between. Then its
/// ranks would fail, and not mix anything.
fn remove_manifest(objects: &Directory, ids: &BTreeSet<String>) -> io::Result<()> {
    if Manifest::id_in(objects)?.is_some_and(|id| ids.contains(&id)) {
        objects.remove(MANIFEST)
    } else {
        Ok(())
    }
}
