//! The repositories of the cache, as tables and as JSON.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use safetensors_core::framework::in_order;
use safetensors_hub::RepoId;
use safetensors_hub::cache::{Cache, CachedRepo, CachedSnapshot, Verification};
use serde::Serialize;

use super::{Place, Removal, ShowArgs};
use crate::output::writing::Writing;
use crate::terminal::colour::{Colour, paint};
use crate::terminal::report::{report, warn, wrong_usage};
use crate::terminal::table::Column;
use crate::terminal::{json, table, text};

#[derive(Serialize)]
struct Listed {
    path: String,
    repos: Vec<ListedRepo>,
}

#[derive(Serialize)]
struct ListedRepo {
    repo: String,
    path: String,
    bytes: u64,
    snapshots: Vec<ListedSnapshot>,
    /// Their commits.
    revisions_without_snapshot: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct ListedSnapshot {
    commit: String,
    revisions: Vec<String>,
    path: String,
    bytes: u64,
    files: Vec<String>,
}

#[derive(Serialize)]
struct Sized {
    path: String,
    bytes: u64,
    repos: Vec<SizedRepo>,
}

#[derive(Serialize)]
struct SizedRepo {
    repo: String,
    bytes: u64,
}

#[derive(Serialize)]
struct Verified {
    path: String,
    state: FilesState,
    repos: Vec<VerifiedRepo>,
}

#[derive(Serialize)]
struct VerifiedRepo {
    repo: String,
    state: FilesState,
    bytes: u64,
    verified: usize,
    damaged: Vec<Damaged>,
    unverified: Vec<Unverified>,
}

#[derive(Serialize)]
struct Damaged {
    path: String,
    error: String,
}

#[derive(Serialize)]
struct Unverified {
    path: String,
    reason: &'static str,
}

/// The state of files, the worst last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum FilesState {
    /// Each file has its digest.
    Ok,
    /// Some were not compared.
    Unverified,
    Damaged,
}

impl FilesState {
    fn new(found: &Verification) -> Self {
        match (found.damaged.is_empty(), found.unverified.is_empty()) {
            (false, _) => Self::Damaged,
            (true, false) => Self::Unverified,
            (true, true) => Self::Ok,
        }
    }
}

fn chosen(place: &Place) -> anyhow::Result<(Cache, Vec<CachedRepo>)> {
    let cache = match &place.cache_dir {
        Some(dir) if !dir.exists() => {
            anyhow::bail!("{}: there is no such directory", text::path(dir))
        }
        Some(dir) => Cache::at(dir),
        None => Cache::from_environment()?,
    };
    if cache.dir().exists() && !cache.dir().is_dir() {
        anyhow::bail!(
            "{}: expected the directory of a cache, found a file",
            text::path(cache.dir())
        );
    }
    let mut repos = cache.repos()?;
    if place.repos.is_empty() {
        return Ok((cache, repos));
    }
    let names = place.repos.iter().map(|name| name.parse::<RepoId>());
    let names = names.collect::<Result<Vec<_>, _>>().map_err(wrong_usage)?;
    if let Some(name) = names.iter().find(|name| repos.iter().all(|repo| repo.id() != *name)) {
        anyhow::bail!(
            "{name} is not in the cache {}; `safetensors download {name}` gets it",
            text::path(cache.dir())
        );
    }
    repos.retain(|repo| names.contains(repo.id()));
    Ok((cache, repos))
}

fn lossy(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Follows links.
fn byte_len(snapshot: &CachedSnapshot) -> u64 {
    let files = snapshot.files.iter().map(|file| snapshot.dir.join(file));
    // A file that is removed in between has no bytes.
    files.filter_map(|path| fs::metadata(path).ok()).map(|metadata| metadata.len()).sum()
}

pub(super) fn list(args: &ShowArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let (cache, repos) = chosen(&args.place)?;
    let mut listed = Listed { path: lossy(cache.dir()), repos: Vec::new() };
    for repo in &repos {
        let snapshot = |snapshot: CachedSnapshot| ListedSnapshot {
            commit: snapshot.commit.to_string(),
            revisions: snapshot.revisions.iter().map(ToString::to_string).collect(),
            path: lossy(&snapshot.dir),
            bytes: byte_len(&snapshot),
            files: snapshot.files,
        };
        listed.repos.push(ListedRepo {
            repo: repo.id().to_string(),
            path: lossy(repo.dir()),
            bytes: repo.byte_len()?,
            snapshots: repo.snapshots()?.into_iter().map(snapshot).collect(),
            revisions_without_snapshot: repo
                .revisions_without_snapshot()?
                .into_iter()
                .map(|(revision, commit)| (revision.to_string(), commit.to_string()))
                .collect(),
        });
    }
    if args.json {
        json::write(&listed, out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let columns = [
        Column::name("repository"),
        Column::name("revision"),
        Column::name("commit"),
        Column::number("files"),
        Column::number("size"),
    ];
    if !listed.repos.is_empty() {
        table::write(&columns, out, |rows| {
            for repo in &listed.repos {
                for snapshot in &repo.snapshots {
                    rows.row([
                        repo.repo.clone(),
                        snapshot
                            .revisions
                            .iter()
                            .map(|it| text::name(it))
                            .collect::<Vec<_>>()
                            .join(", "),
                        text::name(&snapshot.commit),
                        text::count(snapshot.files.len() as u64),
                        text::size(snapshot.bytes),
                    ]);
                }
                for (revision, commit) in &repo.revisions_without_snapshot {
                    rows.row([
                        repo.repo.clone(),
                        text::name(revision),
                        text::name(commit),
                        String::new(),
                        "no snapshot".to_owned(),
                    ]);
                }
            }
        })?;
        writeln!(out)?;
    }
    summarise(cache.dir(), listed.repos.iter().map(|repo| repo.bytes), out)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn size(args: &ShowArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let (cache, repos) = chosen(&args.place)?;
    let sized = |repo: &CachedRepo| -> anyhow::Result<_> {
        Ok(SizedRepo { repo: repo.id().to_string(), bytes: repo.byte_len()? })
    };
    let mut repos = repos.iter().map(sized).collect::<anyhow::Result<Vec<_>>>()?;
    repos.sort_by_key(|repo| std::cmp::Reverse(repo.bytes));
    let bytes = repos.iter().map(|repo| repo.bytes).sum();
    let sized = Sized { path: lossy(cache.dir()), bytes, repos };
    if args.json {
        json::write(&sized, out)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !sized.repos.is_empty() {
        let columns = [Column::name("repository"), Column::number("bytes"), Column::number("size")];
        table::write(&columns, out, |rows| {
            for SizedRepo { repo, bytes } in &sized.repos {
                rows.row([repo.clone(), text::count(*bytes), text::size(*bytes)]);
            }
        })?;
        writeln!(out)?;
    }
    summarise(cache.dir(), sized.repos.iter().map(|repo| repo.bytes), out)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn rm(removal: &Removal, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    if removal.place.repos.is_empty() {
        return Err(wrong_usage("name the repositories to remove; `cache list` shows them"));
    }
    remove(removal, CachedRepo::remove, out)
}

pub(super) fn prune(removal: &Removal, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    remove(removal, CachedRepo::prune, out)
}

/// Removes the files that `act` finds in a dry run.
fn remove(
    removal: &Removal,
    act: fn(&CachedRepo, bool) -> safetensors_hub::Result<Option<u64>>,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let (cache, repos) = chosen(&removal.place)?;
    let mut found = Vec::new();
    for repo in &repos {
        found.extend(act(repo, true)?.map(|bytes| (repo, bytes)));
    }
    let path = text::path(cache.dir());
    if found.is_empty() {
        writeln!(out, "{path}: nothing to remove")?;
        return Ok(ExitCode::SUCCESS);
    }
    let bytes = text::size(found.iter().map(|(_, bytes)| bytes).sum::<u64>());
    let count = text::counted(found.len() as u64, "repo");
    if !removal.dry_run {
        let problem = format!("{path}: {bytes} of {count} would be removed");
        Writing::forced(removal.force).ask(&problem, "remove", &path)?;
    }
    for (repo, _) in &found {
        let freed = act(repo, removal.dry_run)?.unwrap_or(0);
        let verb = if removal.dry_run { "would remove" } else { "removed" };
        writeln!(out, "{verb} {} of {}", text::size(freed), repo.id())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn summarise(
    dir: &Path,
    sizes: impl ExactSizeIterator<Item = u64>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let (path, repos) = (text::path(dir), text::counted(sizes.len() as u64, "repo"));
    if !dir.exists() {
        return Ok(writeln!(out, "{path}: {repos}; the first download makes this directory")?);
    }
    Ok(writeln!(out, "{path}: {repos}, {}", text::size(sizes.sum::<u64>()))?)
}

pub(super) fn verify(
    args: &ShowArgs,
    is_strict: bool,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let (cache, repos) = chosen(&args.place)?;
    let mut verified =
        Verified { path: lossy(cache.dir()), state: FilesState::Ok, repos: Vec::new() };
    let check = |repo: &&CachedRepo, _: &mut ()| -> safetensors_hub::Result<_> {
        Ok((repo.byte_len()?, repo.verify()?))
    };
    in_order(&repos, 0, check, |repo, checked| -> anyhow::Result<()> {
        let (bytes, found) = checked?;
        if !args.json {
            show(repo, bytes, &found, is_strict, out)?;
        }
        let state = FilesState::new(&found);
        let damaged = found.damaged.iter();
        let damaged =
            damaged.map(|(path, error)| Damaged { path: lossy(path), error: error.to_string() });
        let unverified = found.unverified.iter();
        let unverified = unverified.map(|(path, reason)| Unverified { path: lossy(path), reason });
        verified.state = verified.state.max(state);
        verified.repos.push(VerifiedRepo {
            repo: repo.id().to_string(),
            state,
            bytes,
            verified: found.intact,
            damaged: damaged.collect(),
            unverified: unverified.collect(),
        });
        Ok(())
    })?;
    if args.json {
        json::write(&verified, out)?;
    } else if verified.repos.len() != 1 {
        let count = |state| verified.repos.iter().filter(|repo| repo.state == state).count() as u64;
        let checked = text::counted(verified.repos.len() as u64, "repo");
        write!(out, "\n{checked} checked: {} intact", text::count(count(FilesState::Ok)))?;
        match count(FilesState::Unverified) {
            0 => writeln!(out)?,
            some => writeln!(out, ", {} not verified", text::count(some))?,
        }
    }
    Ok(match verified.state {
        FilesState::Damaged => ExitCode::FAILURE,
        FilesState::Unverified if is_strict => ExitCode::FAILURE,
        FilesState::Ok | FilesState::Unverified => ExitCode::SUCCESS,
    })
}

fn show(
    repo: &CachedRepo,
    bytes: u64,
    found: &Verification,
    is_strict: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let stdout = std::io::stdout();
    let (id, size, unverified) = (repo.id(), text::size(bytes), found.unverified.len());
    match FilesState::new(found) {
        FilesState::Ok => writeln!(out, "{id}: {}, {size}", paint("ok", Colour::Green, &stdout))?,
        FilesState::Unverified => {
            let state = paint("not verified", Colour::Yellow, &stdout);
            let files = text::counted((found.intact + unverified) as u64, "file");
            let some = text::count(unverified as u64);
            writeln!(out, "{id}: {state}: {some} of {files}, {size}")?;
        }
        FilesState::Damaged => {}
    }
    // Standard error is not buffered. Its lines must not overtake earlier ones.
    out.flush()?;
    for (_, error) in &found.damaged {
        report(format!("{error}; remove the file, and download it again"));
    }
    for (path, reason) in &found.unverified {
        let message = format!("{}: not verified: {reason}", text::path(path));
        if is_strict { report(message) } else { warn(message) }
    }
    Ok(())
}
