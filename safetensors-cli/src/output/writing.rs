//! [`Writing`]: the rule about an output that exists.
//!
//! An output is replaced with `--force`, or after a question on a terminal. An input that is its
//! own output needs neither if nothing is lost. A shard of a checkpoint is replaced only by itself.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Display;
use std::io::{self, BufRead, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use safetensors_core::save::AtomicFile;
use safetensors_core::{Error, Result, SaveOptions};

use super::existing::{Existing, Hidden, Shard, files_of, identity};
use super::file::{Argument, OUTPUT, advise, replace, tell};
use crate::input::{self, Checkpoint, Rewrite};
use crate::terminal::report::wrong_usage;
use crate::terminal::text;

/// The options of every command that writes an output.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Writing {
    /// Print what would be written, and write nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Replace an existing output without asking, even if read-only or in the Hub's cache
    #[arg(long)]
    force: bool,
}

/// The facts about an output that the rule needs.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// The [files](files_of) that were read.
    pub(crate) inputs: HashSet<PathBuf>,
    pub(crate) names: BTreeSet<String>,
    /// The loss of the inputs that are replaced, in words.
    pub(crate) loss: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Destination {
    path: PathBuf,
    /// The replaced content, in words.
    replaced: Option<String>,
    /// The checkpoint that the directory will no longer open as, in words.
    hidden: Option<String>,
    writing: Writing,
    argument: Argument,
}

impl Writing {
    /// The options of a save, before it is known whether something is replaced.
    pub(crate) fn options(self) -> SaveOptions {
        SaveOptions::new().replace_read_only(self.force).replace_cached(self.force)
    }

    /// Returns `None` for standard output.
    pub(crate) fn output(
        self,
        path: &Path,
        read: &Checkpoint,
    ) -> anyhow::Result<Option<Destination>> {
        if input::is_stdin(path) {
            if self.dry_run {
                return Err(wrong_usage("standard output has no dry run; name a file"));
            }
            return Ok(None);
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
        let destination = check_file(path, &self.options())
            .map_err(anyhow::Error::from)
            .and_then(|()| self.permit(Existing::at_file(path), &Content::default()))
            .map_err(|error| advise(error, path, 0, argument))?;
        Ok(Destination { argument, ..destination })
    }

    /// Fails before work is lost if the directory cannot be written.
    pub(crate) fn permit(
        self,
        existing: Existing,
        content: &Content,
    ) -> anyhow::Result<Destination> {
        if let Some(directory) = &existing.directory {
            check_writable(directory, &existing.path)?;
        }
        let shown = input::shown(&existing.path);
        let is_own = content.reads(&existing.files);
        if let Some(Shard { index, names }) = &existing.shard
            && !(is_own && *names == content.names)
        {
            anyhow::bail!(
                "{shown} is a shard of {}, and only this shard can replace it, even with --force; \
                 write another file, or all of the checkpoint",
                text::path(index)
            );
        }
        if !is_own {
            let held = &existing.held;
            let problem = format!("{shown} exists: it has {held}, and would be replaced");
            self.ask(&problem, "replace", &shown)?;
        } else if let Some(loss) = content.loss.as_ref().filter(|_| !existing.files.is_empty()) {
            self.ask(&format!("{shown} is an input, and {loss}"), "replace", &shown)?;
        }
        if let Some(Hidden { name, files }) = &existing.hidden
            && (files.is_empty() || !content.reads(files))
        {
            let opened = text::path(existing.directory.as_deref().unwrap_or(&existing.path));
            let problem = format!("{shown} would hide {name}, which {opened} opens as");
            self.ask(&problem, "write", &shown)?;
        }
        Ok(Destination {
            path: existing.path,
            replaced: (!existing.files.is_empty()).then_some(existing.held),
            hidden: existing.hidden.map(|hidden| hidden.name),
            writing: self,
            argument: OUTPUT,
        })
    }

    /// The options of a command that only removes.
    #[cfg(feature = "remote")]
    pub(crate) fn forced(force: bool) -> Self {
        Self { dry_run: false, force }
    }

    /// Asks on a terminal, and fails elsewhere.
    pub(crate) fn ask(self, problem: &str, verb: &str, shown: &str) -> anyhow::Result<()> {
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

impl Content {
    /// Returns `true` if all of these files were read.
    fn reads(&self, files: &[PathBuf]) -> bool {
        files.iter().all(|file| self.inputs.contains(&identity(file)))
    }
}

impl Destination {
    /// A file that appears later is not replaced.
    pub(crate) fn options(&self) -> SaveOptions {
        self.writing.options().overwrite(self.overwrites())
    }

    /// Returns `true` if existing files may be replaced.
    pub(crate) fn overwrites(&self) -> bool {
        self.writing.force || self.replaced.is_some()
    }

    pub(crate) fn would(&self, new: impl Display) -> String {
        let path = input::shown(&self.path);
        match &self.replaced {
            Some(old) => format!("would replace {path} ({old}) with {new}"),
            None => format!("would write {path} ({new})"),
        }
    }

    /// Prints the message of a dry run, and returns whether this is one.
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

    /// Writes a document to an output that [`Writing::output`] allows.
    pub(crate) fn put(
        output: Option<Self>,
        out: &mut impl Write,
        document: &[u8],
        content: impl Display,
    ) -> anyhow::Result<()> {
        let Some(destination) = output else { return Ok(out.write_all(document)?) };
        if destination.is_dry_run(out, &content)? {
            return Ok(());
        }
        destination.write(document.len() as u64, |file| Ok(file.write_all(document)?))?;
        destination.tell(out, content)
    }

    pub(crate) fn tell(&self, out: &mut impl Write, content: impl Display) -> anyhow::Result<()> {
        tell(out, &input::shown(&self.path), "written", content)
    }

    /// The end of a message, with the hidden checkpoint.
    pub(crate) fn hides(&self) -> String {
        match &self.hidden {
            Some(name) => format!("; the directory opens as it, and no longer as {name}"),
            None => String::new(),
        }
    }
}

/// Fails if names and modes show that no file can be saved.
pub(crate) fn check_file(path: &Path, options: &SaveOptions) -> Result<()> {
    Rewrite::default().plan(options)?.check_destination(path)
}

/// Fails if no file can be created in a directory, or where it would be made. The error is about
/// `path`.
#[cfg(unix)]
pub(crate) fn check_writable(directory: &Path, path: &Path) -> Result<()> {
    use rustix::fs::{Access, access};

    let mut above = directory.ancestors().filter(|it| !it.as_os_str().is_empty());
    let there = above.find(|it| it.exists()).unwrap_or(Path::new("."));
    let found = if there.is_dir() {
        access(there, Access::WRITE_OK | Access::EXEC_OK).map_err(io::Error::from)
    } else {
        Err(io::ErrorKind::NotADirectory.into())
    };
    found.map_err(|error| Error::from(error).in_path(path))
}

#[cfg(not(unix))]
pub(crate) fn check_writable(_: &Path, _: &Path) -> Result<()> {
    Ok(())
}
