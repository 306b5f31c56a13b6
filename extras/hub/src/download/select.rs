//! Selects the files of a repository to download.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use safetensors_core::checkpoint::CheckpointPath;
use safetensors_core::checkpoint::store::{LocalStore, MemoryStore, Store};
use safetensors_core::glob::{BadPattern, Pattern};

use crate::cache::{CachedRepo, joined};
use crate::error::{Error, ErrorKind, Result};
use crate::repo::{RepoId, Revision, check_file_name};

pub(super) struct WantedFiles<'a> {
    /// The folder or file of the checkpoint; empty for the root.
    checkpoint: Option<&'a str>,
    patterns: Vec<Pattern>,
    excluded: Vec<Pattern>,
}

#[derive(Debug, PartialEq, Eq)]
enum FoundCheckpoint {
    File(String),
    Index(String),
}

impl<'a> WantedFiles<'a> {
    pub(super) fn new(
        checkpoint: Option<&'a str>,
        patterns: &[String],
        excluded: &[String],
    ) -> Result<Self> {
        checkpoint.filter(|path| !path.is_empty()).map_or(Ok(()), check_file_name)?;
        let patterns: Vec<_> = patterns.iter().map(parse).collect::<Result<_>>()?;
        patterns.iter().try_for_each(|pattern| check_file_name(pattern.as_str()))?;
        Ok(Self {
            checkpoint,
            patterns,
            excluded: excluded.iter().map(parse).collect::<Result<_>>()?,
        })
    }

    fn find(&self, repo: &RepoId, listed: &[String]) -> Result<Option<FoundCheckpoint>> {
        let Some(path) = self.checkpoint else { return Ok(None) };
        // The root is named after the repository, so that an error names it.
        let root = Path::new(repo.as_ref());
        let safe = listed.iter().filter(|name| check_file_name(name).is_ok());
        let store = MemoryStore::from_iter(safe.map(|name| (format!("{repo}/{name}"), Vec::new())));
        let name = |path: &Path| -> Result<String> {
            let inside = path.strip_prefix(root).unwrap_or(path);
            slashed(inside).ok_or_else(|| {
                let found = inside.to_string_lossy().into_owned();
                ErrorKind::UnsafeName { found }.into()
            })
        };
        match CheckpointPath::find_in(&store, joined(root, path)) {
            Ok(CheckpointPath::File(path)) => Ok(Some(FoundCheckpoint::File(name(&path)?))),
            Ok(CheckpointPath::Index(path)) => Ok(Some(FoundCheckpoint::Index(name(&path)?))),
            Err(_) if !path.is_empty() && !has(listed, path) => {
                Err(Error::from(ErrorKind::FileNotFound).in_file(format_args!("{repo}: {path}")))
            }
            Err(error) => Err(error),
        }
    }

    fn unmatched(&self, listed: &[String]) -> Option<&Pattern> {
        self.patterns.iter().find(|pattern| !listed.iter().any(|name| is_match(pattern, name)))
    }

    /// In the Hub's order, without duplicates.
    fn matched(&self, listed: &[String]) -> Result<Vec<String>> {
        let no_match = |pattern| Err(ErrorKind::NoMatch { pattern, found: listed.to_vec() }.into());
        if let Some(pattern) = self.unmatched(listed) {
            return no_match(pattern.as_str().to_owned());
        }
        let names = listed.iter().filter(|name| {
            let is_wanted = self.patterns.iter().any(|pattern| is_match(pattern, name));
            is_wanted && !self.excluded.iter().any(|pattern| is_match(pattern, name))
        });
        let names: Vec<_> = names.cloned().collect();
        names.iter().try_for_each(|name| check_file_name(name))?;
        if names.is_empty() && self.checkpoint.is_none() && !self.patterns.is_empty() {
            let [patterns, excluded] = [&self.patterns, &self.excluded]
                .map(|all| all.iter().map(Pattern::as_str).collect::<Vec<_>>().join(" "));
            return no_match(format!("{patterns} without {excluded}"));
        }
        Ok(names)
    }

    /// Returns the checkpoint's file or index, and all names. `shards` reads an index.
    pub(super) fn names(
        &self,
        repo: &RepoId,
        listed: &[String],
        shards: impl FnOnce(&str) -> Result<Vec<String>>,
    ) -> Result<(Option<String>, Vec<String>)> {
        let found = self.find(repo, listed)?;
        let mut names = self.matched(listed)?;
        let checkpoint = match found {
            None => None,
            Some(FoundCheckpoint::File(file)) => {
                names.insert(0, file.clone());
                Some(file)
            }
            Some(FoundCheckpoint::Index(index)) => {
                names.splice(0..0, [vec![index.clone()], shards(&index)?].concat());
                Some(index)
            }
        };
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Ok((checkpoint, names))
    }

    /// Patterns need the Hub's list, unless `is_offline`.
    pub(super) fn find_cached(
        &self,
        repo: &CachedRepo,
        commit: &Revision,
        is_offline: bool,
    ) -> Result<Result<Cached, Missing>> {
        let missing = |what: &str| Ok(Err(Missing(what.into())));
        let dir = repo.snapshot_dir(commit);
        if !dir.is_dir() {
            return missing("the snapshot");
        }
        let listed = repo.files(commit)?;
        let Ok(found) = self.find(repo.id(), &listed) else { return missing("the checkpoint") };
        let is_sure = match &found {
            // The Hub may have a file that comes before this one.
            Some(FoundCheckpoint::File(name)) => {
                Path::new(name).ends_with("model.safetensors") || self.checkpoint == Some(name)
            }
            _ => true,
        };
        let mut patterns = self.patterns.iter().map(Pattern::as_str);
        let has_wildcard = patterns.any(|pattern| pattern.contains(['*', '?', '[', '{']));
        if !is_offline && (has_wildcard || !is_sure) {
            return missing("the list of files");
        }
        if let Some(pattern) = self.unmatched(&listed) {
            return missing(pattern.as_str());
        }
        let shards = |index: &str| shards(&LocalStore, &dir, &joined(&dir, index), &listed);
        match self.names(repo.id(), &listed, shards) {
            Ok((checkpoint, files)) => {
                Ok(Ok(Cached { checkpoint: checkpoint.map(|name| joined(&dir, &name)), files }))
            }
            Err(error) => match error.other() {
                Some(ErrorKind::ShardNotFound { shard }) => missing(shard),
                _ => Err(error),
            },
        }
    }
}

/// A final slash means all files below a folder.
fn parse(text: &String) -> Result<Pattern> {
    let end = if text.ends_with('/') { "*" } else { "" };
    format!("{text}{end}").parse().map_err(|problem: BadPattern| {
        ErrorKind::BadPattern { pattern: text.clone(), problem: problem.to_string() }.into()
    })
}

/// A pattern also matches the file that it names literally.
fn is_match(pattern: &Pattern, name: &str) -> bool {
    pattern.as_str() == name || pattern.matches(name)
}

#[derive(Debug)]
pub(super) struct Cached {
    pub(super) checkpoint: Option<PathBuf>,
    pub(super) files: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Missing(pub(super) String);

/// The index may be hostile.
pub(super) fn shards<T: Store>(
    store: &T,
    dir: &Path,
    index: &Path,
    listed: &[String],
) -> Result<Vec<String>> {
    let known: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
    let mut names = Vec::new();
    for path in CheckpointPath::Index(index.into()).files_to_copy_in(store)? {
        let name = path.strip_prefix(dir).ok().and_then(slashed);
        let name = name.unwrap_or_else(|| path.display().to_string());
        check_file_name(&name)?;
        if !known.contains(name.as_str()) {
            return Err(
                Error::from(ErrorKind::ShardNotFound { shard: name }).in_file(index.display())
            );
        }
        names.push(name);
    }
    Ok(names)
}

fn has(listed: &[String], path: &str) -> bool {
    let is_below =
        |name: &String| name.strip_prefix(path).is_some_and(|rest| rest.starts_with(['/']));
    listed.iter().any(|name| name == path || is_below(name))
}

fn slashed(path: &Path) -> Option<String> {
    let parts: Option<Vec<_>> = path.iter().map(|part| part.to_str()).collect();
    Some(parts?.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(path: &str, listed: &[&str]) -> Result<Option<FoundCheckpoint>> {
        let listed: Vec<_> = listed.iter().map(|name| (*name).to_owned()).collect();
        WantedFiles::new(Some(path), &[], &[])?.find(&RepoId::parse("o/n").unwrap(), &listed)
    }

    #[test]
    fn the_selected_checkpoint_is_the_one_that_core_opens() {
        let (file, index) = ("model.safetensors", "model.safetensors.index.json");
        let is_file = |name: &str| Some(FoundCheckpoint::File(name.into()));
        assert_eq!(find("", &["a.json", index, file]).unwrap(), is_file(file));
        assert_eq!(
            find("", &["x.safetensors", index]).unwrap(),
            Some(FoundCheckpoint::Index(index.into()))
        );
        assert_eq!(find("", &["x.safetensors"]).unwrap(), is_file("x.safetensors"));
        assert_eq!(find("u", &["u/x.safetensors", file]).unwrap(), is_file("u/x.safetensors"));
        let path = "u/x.fp16.safetensors";
        assert_eq!(find(path, &[path, file]).unwrap(), is_file(path));
        let error = find("", &["a.safetensors", "b.safetensors", "u/c.safetensors"]).unwrap_err();
        assert!(
            error.to_string().contains("o/n") && error.to_string().contains("b.saf"),
            "{error}"
        );
        assert!(matches!(find("w", &[file]).unwrap_err().other(), Some(ErrorKind::FileNotFound)));
        // Unsafe names are never chosen.
        assert!(find("", &["../model.safetensors", "a\\model.safetensors"]).is_err());
    }

    #[test]
    fn patterns_must_match_and_never_match_unsafe_names() {
        let listed = ["a.json", "b/c.json", "b/d[v2].json", "../x.json"].map(str::to_owned);
        let matched =
            |pattern: &str| WantedFiles::new(None, &[pattern.to_owned()], &[])?.matched(&listed);
        // The same as Python's `fnmatch` would match, with its folders in `huggingface_hub`.
        let both = ["b/c.json", "b/d[v2].json"];
        for (pattern, expected) in [
            ("b*", &both[..]),
            ("b/", &both),
            ("[a-b]/?.json", &both[..1]),
            ("[!.]*/[!c]*", &both[1..]),
            // A file is also found by its name.
            ("b/d[v2].json", &both[1..]),
        ] {
            assert_eq!(matched(pattern).unwrap(), expected, "{pattern}");
        }
        for bad in ["[a", "{a", "a//", "/", "../"] {
            assert!(matched(bad).unwrap_err().to_string().contains(bad), "{bad}");
        }
        assert!(matches!(matched("z*").unwrap_err().other(), Some(ErrorKind::NoMatch { .. })));
        assert!(matches!(
            matched("*.json").unwrap_err().other(),
            Some(ErrorKind::UnsafeName { .. })
        ));
    }
}
