//! [`Writing`]: the rule about an output that exists, which every command asks.
//!
//! An output that is none of the inputs is replaced with `--force`, or after a question on a
//! terminal. An input that is its own output is replaced without a question if nothing is lost. A
//! shard of a checkpoint is replaced only by itself.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Display;
use std::fs;
use std::io::{self, BufRead, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use safetensors_core::checkpoint::{CheckpointFile, CheckpointPath, FilePattern};
use safetensors_core::io::beside;
use safetensors_core::save::AtomicFile;
use safetensors_core::{Error, Limits, Result, SaveOptions};
use safetensors_formats::Format;
use serde_json::Value;

use super::file::{Argument, OUTPUT, advise, replace, tell};
use crate::input::kind::Judge;
use crate::input::{self, Checkpoint, Opening, Rewrite, address};
use crate::terminal::report::wrong_usage;
use crate::terminal::text;

/// Files of trainers that name the newest checkpoint in the same directory.
const NEWEST: [&str; 2] = ["latest", "latest_checkpointed_iteration.txt"];

/// The most bytes of such a file.
const LONGEST_NAME: u64 = 4096;

/// The options of every command that writes an output.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Writing {
    /// Print what would be written, and write nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Replace what exists without a question, even if it is read-only or in a cache of the Hub
    #[arg(long)]
    force: bool,
}

/// The files that an output replaces, or hides.
#[derive(Debug, Default)]
pub(crate) struct Existing {
    path: PathBuf,
    /// Where the files are created, unless that is at an address.
    directory: Option<PathBuf>,
    /// The files that are replaced or removed.
    files: Vec<PathBuf>,
    /// Their content in words.
    held: String,
    /// What the directory opens as, in words and as files, if it opens as the output from then on.
    hidden: Option<(String, Vec<PathBuf>)>,
    /// The index that names the output as a shard, and the names of the shard's tensors.
    shard: Option<(PathBuf, BTreeSet<String>)>,
}

/// What the rule asks about an output that is made of tensors.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// The [files](files_of) that were read.
    pub(crate) inputs: HashSet<PathBuf>,
    /// The names of its tensors.
    pub(crate) names: BTreeSet<String>,
    /// Says what is lost of the inputs that are replaced, if anything.
    pub(crate) loss: Option<String>,
}

/// An output that may be written.
#[derive(Debug)]
pub(crate) struct Destination {
    path: PathBuf,
    /// The content that is replaced, in words.
    replaced: Option<String>,
    /// What the directory does not open as any more, in words.
    hidden: Option<String>,
    writing: Writing,
    argument: Argument,
}

impl Writing {
    /// The options of a save, before it is known whether something is replaced.
    pub(crate) fn options(self) -> SaveOptions {
        SaveOptions::new().replace_read_only(self.force).replace_cached(self.force)
    }

    /// Decides about the file of `-o`, which is made of a checkpoint. `None` for standard output.
    pub(crate) fn output(
        self,
        path: &Path,
        read: &Checkpoint,
    ) -> anyhow::Result<Option<Destination>> {
        if input::is_stdin(path) {
            let refused = || wrong_usage("standard output has no dry run; name a file");
            return if self.dry_run { Err(refused()) } else { Ok(None) };
        }
        if files_of(read).contains(&identity(path)) {
            return Err(wrong_usage(format!(
                "{} is a file of the checkpoint that is read; choose another -o FILE",
                input::shown(path)
            )));
        }
        self.file(path, OUTPUT).map(Some)
    }

    /// Decides about a file that no input can be.
    pub(crate) fn file(self, path: &Path, argument: Argument) -> anyhow::Result<Destination> {
        let decide = || {
            check_file(path, &self.options())?;
            self.permit(Existing::at_file(path), &Content::default())
        };
        let destination = decide().map_err(|error| advise(error, path, 0, argument))?;
        Ok(Destination { argument, ..destination })
    }

    /// Decides whether an output may be written where this exists. Fails before work is lost if
    /// its directory cannot be written.
    pub(crate) fn permit(
        self,
        existing: Existing,
        content: &Content,
    ) -> anyhow::Result<Destination> {
        let Existing { path, directory, files, held, hidden, shard } = existing;
        if let Some(directory) = &directory {
            check_writable(directory, &path)?;
        }
        let shown = input::shown(&path);
        let are_read =
            |files: &[PathBuf]| files.iter().all(|file| content.inputs.contains(&identity(file)));
        if let Some((index, names)) = shard
            && !(are_read(&files) && names == content.names)
        {
            anyhow::bail!(
                "{shown} is a shard of {}, and nothing but this shard can take its place, also \
                 with --force; write another file, or all of the checkpoint",
                text::path(&index)
            );
        }
        let loss = if files.is_empty() {
            None
        } else if are_read(&files) {
            content.loss.as_ref().map(|loss| format!("{shown} is an input, and {loss}"))
        } else {
            Some(format!("{shown} exists: it has {held}, and would be replaced"))
        };
        if let Some(loss) = loss {
            self.ask(&loss, "replace", &shown)?;
        }
        if let Some((name, files)) = &hidden
            && (files.is_empty() || !are_read(files))
        {
            let opened = text::path(directory.as_deref().unwrap_or(&path));
            let problem = format!("{shown} would hide {name}, which {opened} opens as");
            self.ask(&problem, "write", &shown)?;
        }
        let replaced = (!files.is_empty()).then_some(held);
        let hidden = hidden.map(|(name, _)| name);
        Ok(Destination { path, replaced, hidden, writing: self, argument: OUTPUT })
    }

    /// Asks on a terminal whether to do it in spite of a problem, and fails elsewhere.
    fn ask(self, problem: &str, verb: &str, shown: &str) -> anyhow::Result<()> {
        if self.force {
            return Ok(());
        }
        if self.dry_run || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            anyhow::bail!("{problem}; --force {verb}s it");
        }
        write!(io::stderr(), "{}; {verb} it? [y/N] ", text::printable(problem))?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        match answer.trim().to_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => anyhow::bail!("{shown} is unchanged"),
        }
    }
}

impl Existing {
    /// What a file at a path replaces or hides.
    pub(crate) fn at_file(path: &Path) -> Self {
        let files: Vec<_> = path.exists().then(|| path.to_owned()).into_iter().collect();
        let held = held(path, &files);
        let hides = files.is_empty()
            && path.file_name() == Some(FilePattern::default().file_name(0, 1).as_ref());
        let hidden = if hides { opens_as(directory(path)) } else { None };
        // A link is followed.
        let place = if path.is_symlink() { identity(path) } else { path.into() };
        let directory = Some(directory(&place).to_owned());
        Self { path: path.into(), directory, files, held, hidden, shard: shard(path) }
    }

    /// The files of these names in a directory.
    pub(crate) fn in_directory(path: &Path, is_new: impl Fn(&str) -> bool) -> Self {
        let mut files = files_in(path);
        files.retain(|file| file.file_name().and_then(|it| it.to_str()).is_some_and(&is_new));
        let held = held(path, &files);
        Self { path: path.into(), directory: Some(path.into()), files, held, ..Self::default() }
    }

    /// The files of the checkpoint in a directory, and the files of these names.
    pub(crate) fn of_checkpoint(path: &Path, others: &[&str]) -> Self {
        let pattern = FilePattern::default();
        Self::in_directory(path, |name| {
            pattern.matches(name) || name == pattern.index_name() || others.contains(&name)
        })
    }

    /// The same for a checkpoint, which may hide what the directory opens as. Fails if that is what
    /// ranks have saved.
    pub(crate) fn hiding(self) -> anyhow::Result<Self> {
        let is_other = |it: &PathBuf| !self.files.contains(it);
        let hidden = opens_as(&self.path).filter(|(_, opened)| opened.iter().all(is_other));
        if hidden.as_ref().is_some_and(|(_, files)| files.is_empty()) {
            anyhow::bail!(
                "{}: OUT, the last argument, has files that the ranks of a training have saved, \
                 which the output would hide, also with --force; choose another directory, or \
                 move them away",
                input::shown(&self.path)
            );
        }
        Ok(Self { hidden, ..self })
    }

    /// What a checkpoint at an address replaces.
    pub(crate) fn at_address(path: &Path, address: &str) -> Self {
        let (files, held) = match address::find(address) {
            Ok(None) => (Vec::new(), String::new()),
            Ok(Some(found)) => (listed(&found).map(Path::to_owned).collect(), totals(&found)),
            Err(why) => (vec![path.to_owned()], format!("data that cannot be read ({why:#})")),
        };
        Self { path: path.into(), files, held, ..Self::default() }
    }

    /// Whether some of these files are replaced.
    pub(crate) fn has_any(&self, files: &HashSet<PathBuf>) -> bool {
        self.files.iter().any(|file| files.contains(&identity(file)))
    }
}

impl Destination {
    /// The options of the save. A file that appears in the meantime is not replaced.
    pub(crate) fn options(&self) -> SaveOptions {
        self.writing.options().overwrite(self.overwrites())
    }

    /// Whether files that exist may be replaced.
    pub(crate) fn overwrites(&self) -> bool {
        self.writing.force || self.replaced.is_some()
    }

    /// The message of a dry run, for an output of this content.
    pub(crate) fn would(&self, new: impl Display) -> String {
        let path = input::shown(&self.path);
        match &self.replaced {
            Some(old) => format!("would replace {path} ({old}) with {new}"),
            None => format!("would write {path} ({new})"),
        }
    }

    /// Prints the message of a dry run. Returns whether this is one.
    pub(crate) fn is_dry_run(&self, out: &mut impl Write, new: impl Display) -> io::Result<bool> {
        if self.writing.dry_run {
            writeln!(out, "{}", self.would(new))?;
        }
        Ok(self.writing.dry_run)
    }

    /// Writes a file that needs this space.
    pub(crate) fn write(
        &self,
        bytes: u64,
        write: impl FnOnce(&mut BufWriter<AtomicFile>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let written = replace(&self.path, &self.options(), write);
        written.map_err(|error| advise(error, &self.path, bytes, self.argument))
    }

    /// Says that the output is written.
    pub(crate) fn tell(&self, out: &mut impl Write, content: impl Display) -> anyhow::Result<()> {
        tell(out, &input::shown(&self.path), "written", content)
    }

    /// The end of a message, which names what is hidden.
    pub(crate) fn hides(&self) -> String {
        let note = |name| format!("; the directory opens as it, and no longer as {name}");
        self.hidden.as_ref().map(note).unwrap_or_default()
    }
}

/// Fails if no file can be saved to a path, as far as names and modes of files say it.
pub(crate) fn check_file(path: &Path, options: &SaveOptions) -> Result<()> {
    Rewrite::default().plan(options)?.check_destination(path)
}

/// Fails if no file can be created in a directory, or where it would be created. The error is
/// about `path`.
pub(crate) fn check_writable(directory: &Path, path: &Path) -> Result<()> {
    #[cfg(unix)]
    {
        use rustix::fs::{Access, access};
        let mut there = directory.ancestors().filter(|it| !it.as_os_str().is_empty());
        let there = there.find(|it| it.exists()).unwrap_or(Path::new("."));
        let can_be = match there.is_dir() {
            true => access(there, Access::WRITE_OK | Access::EXEC_OK).map_err(io::Error::from),
            false => Err(io::ErrorKind::NotADirectory.into()),
        };
        can_be.map_err(|error| Error::from(error).in_path(path))
    }
    #[cfg(not(unix))]
    {
        let _ = (directory, path);
        Ok(())
    }
}

/// The files that a checkpoint is read from, and its index, under their real paths.
pub(crate) fn files_of(checkpoint: &Checkpoint) -> HashSet<PathBuf> {
    let mut files: HashSet<_> = listed(checkpoint).map(identity).collect();
    if input::is_in_parts(checkpoint) {
        // One path, that of the index or a pattern, stands for all files.
        let parts = listed(checkpoint).flat_map(|it| files_in(directory(it)));
        let is_part = |path: &PathBuf| path.extension().is_some_and(|it| it == "safetensors");
        files.extend(parts.filter(is_part).map(|it| identity(&it)));
    }
    files
}

fn listed(checkpoint: &Checkpoint) -> impl Iterator<Item = &Path> {
    checkpoint.files().iter().map(CheckpointFile::path).chain(checkpoint.index_path())
}

/// The content of files in words. They are at `path`, or in the directory there.
fn held(path: &Path, files: &[PathBuf]) -> String {
    let opening = Opening { judge: Judge::ByName, ..Opening::default() };
    let is_replaced = |found: &Checkpoint| {
        let found = files_of(found);
        files.iter().any(|file| found.contains(&identity(file)))
    };
    if let Some(found) = input::open_file(path, opening).ok().filter(is_replaced) {
        return totals(&found);
    }
    let bytes: u64 = files.iter().filter_map(|file| Some(fs::metadata(file).ok()?.len())).sum();
    match files {
        [file] if file == path => text::size(bytes),
        files => {
            let names = files.iter().filter_map(|it| it.file_name()?.to_str());
            let count = text::counted(files.len() as u64, "file");
            format!("{count} ({}), {}", text::some(names), text::size(bytes))
        }
    }
}

fn totals(checkpoint: &Checkpoint) -> String {
    let bytes: u64 = checkpoint.tensors().map(|tensor| tensor.byte_len()).sum();
    format!("{}, {}", text::counted(checkpoint.len() as u64, "tensor"), text::size(bytes))
}

/// What a directory opens as: in words, and its files, of which there are none if ranks have saved
/// them.
fn opens_as(directory: &Path) -> Option<(String, Vec<PathBuf>)> {
    if let Ok(found) = CheckpointPath::find(directory) {
        let (CheckpointPath::File(path) | CheckpointPath::Index(path)) = &found;
        let name = text::path(path.strip_prefix(directory).unwrap_or(path));
        let files = found.files_to_copy().unwrap_or_default();
        return Some((name, files.into_iter().chain([path.clone()]).collect()));
    }
    let names = files_in(directory);
    let names = names.iter().filter_map(|path| path.file_name()?.to_str());
    let is_saved_by_ranks = Format::of_directory(names).is_some_and(Format::is_of_directories)
        || NEWEST.iter().any(|name| says_newest(directory, name))
        || safetensors_core::Checkpoint::open(directory).is_ok();
    if is_saved_by_ranks {
        return Some(("files that ranks have saved".into(), Vec::new()));
    }
    // A checkpoint of another format, such as PyTorch's.
    let other = input::open(directory).ok()?;
    let files: Vec<_> = listed(&other).map(Path::to_owned).collect();
    let names: Vec<_> = files.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    Some((text::some(&names), files.clone()))
}

/// Whether a file names a directory beside it, or has its number, as Megatron does.
fn says_newest(path: &Path, name: &str) -> bool {
    let Ok(said) = beside::read_file(&path.join(name), LONGEST_NAME) else { return false };
    let Ok(said) = String::from_utf8(said) else { return false };
    let said = Path::new(said.trim());
    let is_number = name != NEWEST[0] && said.to_str().is_some_and(|it| it.parse::<u64>().is_ok());
    is_number || said.file_name() == Some(said.as_os_str()) && path.join(said).is_dir()
}

/// The index that names a file as a shard, and the names of the shard's tensors.
fn shard(path: &Path) -> Option<(PathBuf, BTreeSet<String>)> {
    let real = identity(path);
    [path, &real].into_iter().find_map(|path| {
        let name = path.file_name()?.to_str()?;
        files_in(directory(path)).into_iter().find_map(|index| {
            let Some(CheckpointPath::Index(_)) = CheckpointPath::from_name(&index) else {
                return None;
            };
            let text = beside::read_file(&index, Limits::default().index_bytes).ok()?;
            let json: Value = serde_json::from_slice(&text).ok()?;
            let tensors = json["weight_map"].as_object()?.iter().filter(|(_, file)| *file == name);
            let names: BTreeSet<_> = tensors.map(|(name, _)| name.clone()).collect();
            (!names.is_empty()).then_some((index, names))
        })
    })
}

/// The files and links in a directory, sorted.
fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).filter(|it| !it.is_dir()).collect();
    files.sort_unstable();
    files
}

/// The directory of a file.
fn directory(file: &Path) -> &Path {
    file.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What is the same for all paths to a file.
pub(crate) fn identity(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.into())
}
