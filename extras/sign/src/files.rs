//! Lists the files of a model on disk.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use safetensors_core::{Error, Result};

use crate::error::ErrorKind;
use crate::names::SINGLE_FILE;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
    /// Shows writes in between, if the file system records them.
    modified: Option<SystemTime>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    /// By name, with `/` between the parts.
    pub(crate) files: BTreeMap<String, File>,
    pub(crate) links_outside: Vec<String>,
}

pub(crate) struct Rules<'a> {
    pub(crate) allow_symlinks: bool,
    pub(crate) is_left_out: &'a dyn Fn(&str) -> bool,
    /// Skips a path that cannot be signed, such as a FIFO, instead of an error.
    pub(crate) is_tolerated: &'a dyn Fn(&str) -> bool,
}

/// Lists a directory recursively, or a single file. The path itself may be a link.
pub(crate) fn list(model: &Path, rules: &Rules<'_>) -> Result<Listing> {
    let mut listing = Listing::default();
    let found = fs::metadata(model).map_err(|error| Error::io(error, model))?;
    if found.is_file() {
        listing.files.insert(SINGLE_FILE.to_owned(), File::new(model.to_owned(), &found));
        return Ok(listing);
    }
    if !found.is_dir() {
        return Err(Error::from(ErrorKind::SpecialFile).in_path(model));
    }
    let root = fs::canonicalize(model).map_err(|error| Error::io(error, model))?;
    let mut directories = vec![(model.to_owned(), String::new())];
    while let Some((directory, prefix)) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(_) if !prefix.is_empty() && (rules.is_tolerated)(prefix.trim_end_matches('/')) => {
                continue;
            }
            Err(error) => return Err(Error::io(error, &directory)),
        };
        for entry in entries {
            let entry = entry.map_err(|error| Error::io(error, &directory))?;
            let path = entry.path();
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if (rules.is_left_out)(&name) {
                continue;
            }
            match look(&path, rules.allow_symlinks) {
                Ok(Entry::Directory) => directories.push((path, format!("{name}/"))),
                Ok(Entry::File(metadata, is_link)) => {
                    if is_link && !leads_below(&path, &root) {
                        listing.links_outside.push(name.clone());
                    }
                    listing.files.insert(name, File::new(path, &metadata));
                }
                Err(_) if (rules.is_tolerated)(&name) => {}
                Err(error) => return Err(error.in_path(&path)),
            }
        }
    }
    listing.links_outside.sort_unstable();
    Ok(listing)
}

enum Entry {
    Directory,
    File(Metadata, bool),
}

fn look(path: &Path, allow_symlinks: bool) -> Result<Entry> {
    if path.file_name().is_some_and(|name| name.to_str().is_none()) {
        return Err(ErrorKind::NameNotUtf8.into());
    }
    let mut found = fs::symlink_metadata(path)?;
    let is_link = found.is_symlink();
    if is_link {
        if !allow_symlinks {
            return Err(ErrorKind::Link.into());
        }
        found = fs::metadata(path)?;
        if found.is_dir() {
            return Err(ErrorKind::LinkToDirectory.into());
        }
    }
    match () {
        () if found.is_dir() => Ok(Entry::Directory),
        () if found.is_file() => Ok(Entry::File(found, is_link)),
        () => Err(ErrorKind::SpecialFile.into()),
    }
}

fn leads_below(path: &Path, root: &Path) -> bool {
    fs::canonicalize(path).is_ok_and(|target| target.starts_with(root))
}

impl File {
    fn new(path: PathBuf, metadata: &Metadata) -> Self {
        Self { path, len: metadata.len(), modified: metadata.modified().ok() }
    }
}

/// The file need not exist.
pub(crate) fn name_in(model: &Path, file: &Path) -> Option<String> {
    let parent = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let file = fs::canonicalize(parent).ok()?.join(file.file_name()?);
    let below = file.strip_prefix(fs::canonicalize(model).ok()?).ok()?;
    let parts: Option<Vec<_>> = below.iter().map(|part| part.to_str()).collect();
    parts.map(|parts| parts.join("/")).filter(|name| !name.is_empty())
}
