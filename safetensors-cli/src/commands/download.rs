//! `safetensors download`: files of the Hub, into the cache that Python shares, or a directory.

#[cfg(feature = "remote")]
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use super::Run;
use crate::terminal::stdout::Out;

/// Download a model from the Hugging Face Hub, into a directory or the cache that Python shares.
///
/// Without FILE, downloads the checkpoint: model.safetensors, otherwise an index with its shards.
/// With FILE, --include or --exclude, only those files. A file in the cache is not downloaded
/// again, and an interrupted download continues. A file gets its name after its digest was checked.
///
/// With --local-dir, files go into a directory, and none into the cache. A file there with the
/// Hub's digest stays. An unchanged file of an earlier download is replaced by a newer one. Any
/// other that would be replaced is an error before anything is downloaded.
///
/// Prints the path of the download: the directory of the files, or the one FILE.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
#[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "the arguments are only explained"))]
pub(crate) struct Args {
    /// owner/name, owner/name@revision, or an address such as hf://owner/name/folder
    ///
    /// A data set is datasets/owner/name; spaces and kernels likewise
    #[arg(value_name = "REPO")]
    repo: String,
    /// Files of the repository, or patterns of their whole names: * any text, ? one character
    ///
    /// [0-9] is one of several characters, [!0-9] any other, {a,b} either, and folder/ everything
    /// in it. A file is also found by its plain name
    #[arg(value_name = "FILE")]
    files: Vec<String>,
    /// The type of REPO, as for `hf`; datasets/ or spaces/ before REPO is the same
    #[arg(long, value_name = "TYPE", value_parser = ["model", "dataset", "space"])]
    repo_type: Option<String>,
    /// A branch, a tag, a commit, or a pull request such as refs/pr/1; main by default
    #[arg(long, value_name = "REV")]
    revision: Option<String>,
    /// Download the files that match
    ///
    /// May be repeated
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// Skip the files that match; without --include and FILE, take all others
    ///
    /// May be repeated
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Download the files that match as well as the checkpoint, such as config.json
    ///
    /// May be repeated
    #[arg(long, value_name = "GLOB", conflicts_with_all = ["files", "include", "exclude"])]
    also: Vec<String>,
    /// Download into a directory, as `hf download --local-dir` does, and not into the cache
    ///
    /// Cached files are copied. Records are in DIR/.cache/huggingface, where `hf` finds them
    #[arg(long, value_name = "DIR")]
    local_dir: Option<PathBuf>,
    /// Replace files of DIR that were changed since their download, or are from elsewhere
    #[arg(long, requires = "local_dir")]
    force: bool,
    /// The cache; by default HF_HUB_CACHE, else hub in HF_HOME, else ~/.cache/huggingface/hub
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// The access token; by default HF_TOKEN, which other users of the machine do not see
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Download a renamed repository from its new place
    ///
    /// Otherwise an error has the new name: the owner of a name decides where it leads
    #[arg(long)]
    follow_renames: bool,
    /// The number of connections, for several files or for the parts of a large one
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = crate::input::integer::<u16>(1..=u16::MAX.into())
    )]
    max_workers: u16,
    /// List the files that would be downloaded, with their sizes, and write nothing
    ///
    /// The last column marks files that are already in the cache, or in DIR
    #[arg(long)]
    dry_run: bool,
    /// Show no progress
    ///
    /// It is shown on a terminal only
    #[arg(short, long)]
    quiet: bool,
}

const EXAMPLES: &str = "\
Examples:
  safetensors download openai-community/gpt2
  safetensors download openai-community/gpt2 --also config.json --also 'token*'
  safetensors download owner/name@v1.0 config.json
  safetensors download owner/name --include '*.json' --dry-run
  safetensors download owner/name --repo-type dataset '*.parquet'
  safetensors download owner/name --include onnx/ --local-dir model
  safetensors download hf://owner/name/unet --cache-dir models
  safetensors inspect $(safetensors download owner/name)

Environment:
  HF_TOKEN         The access token, for repositories that are private or gated
  HF_HOME          Where the cache and the token are
  HF_ENDPOINT      Another Hub, such as a mirror
  HF_HUB_OFFLINE   1: look into the cache, and make no request
  HTTPS_PROXY      A proxy; ALL_PROXY and NO_PROXY too

Exit codes: 0 downloaded, 1 the Hub or the disk failed, or a file is not there, 2 wrong usage.";

/// Omits the token.
impl std::fmt::Debug for Args {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Args").field("repo", &self.repo).finish_non_exhaustive()
    }
}

impl Run for Args {
    #[cfg(not(feature = "remote"))]
    fn run(&self, _: &mut Out) -> anyhow::Result<ExitCode> {
        Err(crate::input::address::missing())
    }

    #[cfg(feature = "remote")]
    fn run(&self, out: &mut Out) -> anyhow::Result<ExitCode> {
        let selection = selection::DownloadSelection::new(self)?;
        if self.dry_run {
            return selection.preview(self, out);
        }
        let progress = if self.quiet {
            crate::terminal::progress::Progress::hidden()
        } else {
            crate::terminal::progress::Progress::bytes(0)
        };
        let snapshot =
            safetensors_hub::download(&selection.repo, &selection.options(self, &progress))
                .map_err(selection::advise)?;
        drop(progress);
        let path = selection.path(self, &snapshot);
        // As it is, not escaped: a program reads it.
        out.write_all(path.as_os_str().as_encoded_bytes())?;
        writeln!(out)?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(feature = "remote")]
mod selection {
    use std::io::Write;
    use std::ops::ControlFlow;
    use std::path::PathBuf;
    use std::process::ExitCode;

    use safetensors_hub::client::ClientOptions;
    use safetensors_hub::{DownloadOptions, HubAddress, PreviewedFile, RepoId, Revision, Snapshot};

    use super::Args;
    use crate::terminal::progress::Progress;
    use crate::terminal::report::wrong_usage;
    use crate::terminal::stdout::Out;
    use crate::terminal::table::{self, Column, Columns};
    use crate::terminal::{screen, text};

    /// Adds the option or command that helps.
    pub(super) fn advise(error: safetensors_core::Error) -> anyhow::Error {
        use safetensors_hub::ErrorKind::{Bucket, LocalChanges, Renamed};
        let help = match error.other() {
            Some(LocalChanges { .. }) => "--force replaces them".into(),
            Some(Renamed { .. }) => "--follow-renames follows".into(),
            Some(Bucket { bucket }) => {
                format!("`safetensors convert hf://{bucket} OUT` copies it")
            }
            _ => return error.into(),
        };
        anyhow::anyhow!("{error}; {help}")
    }

    pub(super) struct DownloadSelection {
        pub(super) repo: String,
        revision: Option<String>,
        /// The folder or file of the checkpoint in the address.
        path: Option<String>,
    }

    impl DownloadSelection {
        pub(super) fn new(args: &Args) -> anyhow::Result<Self> {
            let asks_for_files =
                !(args.files.is_empty() && args.include.is_empty() && args.exclude.is_empty());
            let kind = args.repo_type.as_deref().filter(|kind| *kind != "model");
            if args.repo.starts_with("hf://") && args.repo_type.is_some() {
                return Err(wrong_usage("the address has the type of REPO; omit --repo-type"));
            }
            let given = kind.map_or_else(|| args.repo.clone(), |it| format!("{it}s/{}", args.repo));
            let (repo, revision, path) = if args.repo.starts_with("hf://") {
                let address: HubAddress = args.repo.parse().map_err(wrong_usage)?;
                let revision = Some(address.revision()).filter(|it| **it != Revision::default());
                let path = Some(address.path().to_owned()).filter(|path| !path.is_empty());
                (address.repo().to_string(), revision.map(ToString::to_string), path)
            } else {
                let (repo, revision) = match given.split_once('@') {
                    Some((repo, revision)) => (repo, Some(revision.to_owned())),
                    None => (given.as_str(), None),
                };
                (repo.parse::<RepoId>().map_err(wrong_usage)?.to_string(), revision, None)
            };
            if asks_for_files && let Some(path) = &path {
                let path = crate::terminal::text::short(path);
                return Err(wrong_usage(format!(
                    "the address names {path}, and FILE, --include or --exclude other files; give \
                     the repository alone, and name all files as FILE"
                )));
            }
            if revision.is_some() && args.revision.is_some() {
                return Err(wrong_usage("the revision is given twice: after @ and by --revision"));
            }
            let revision = revision.or_else(|| args.revision.clone());
            if let Some(revision) = &revision {
                revision.parse::<Revision>().map_err(wrong_usage)?;
            }
            Ok(Self { repo, revision, path })
        }

        pub(super) fn options(&self, args: &Args, progress: &Progress) -> DownloadOptions {
            let mut client = ClientOptions::new().follow_renames(args.follow_renames);
            if let Some(token) = &args.token {
                client = client.token(Some(token));
            }
            let mut options =
                DownloadOptions::new().threads(args.max_workers.into()).client(client);
            if let Some(revision) = &self.revision {
                options = options.revision(revision);
            }
            if let Some(dir) = &args.cache_dir {
                options = options.cache(dir);
            }
            if let Some(dir) = &args.local_dir {
                options = options.local_dir(dir).overwrite(args.force);
            }
            if let Some(path) = &self.path {
                options = options.checkpoint(path);
            }
            let mut patterns: Vec<_> = args.files.iter().chain(&args.include).collect();
            let everything = "*".to_owned();
            if patterns.is_empty() && !args.exclude.is_empty() {
                patterns.push(&everything);
            }
            if !patterns.is_empty() {
                options = options.no_checkpoint();
            }
            options =
                patterns.into_iter().chain(&args.also).fold(options, DownloadOptions::include);
            options = args.exclude.iter().fold(options, DownloadOptions::exclude);
            let follow = progress.following();
            options.progress(move |progress| {
                follow(progress.bytes_done, progress.bytes_total);
                ControlFlow::Continue(())
            })
        }

        pub(super) fn preview(&self, args: &Args, out: &mut Out) -> anyhow::Result<ExitCode> {
            let options = self.options(args, &Progress::hidden());
            let files = safetensors_hub::preview(&self.repo, &options).map_err(advise)?;
            let present = if args.local_dir.is_some() { "present" } else { "cached" };
            let columns: &Columns<'_, &PreviewedFile> = &[
                (Column::name("file").rank(0).distinct(), &|file| {
                    text::printable(&file.name).to_string()
                }),
                (Column::number("size").rank(1), &|file| text::size(file.byte_len)),
                (Column::text("state").rank(2), &|file| {
                    if file.is_cached { present } else { "-" }.to_owned()
                }),
            ];
            table::list(files.iter(), columns, out)?;
            if !screen::is_for_programs() {
                let missing: Vec<_> = files.iter().filter(|file| !file.is_cached).collect();
                let bytes = missing.iter().map(|file| u128::from(file.byte_len)).sum::<u128>();
                let all = text::counted(files.len() as u64, "file");
                let (missing, bytes) = (text::count(missing.len() as u64), text::size(bytes));
                writeln!(out, "\nwould download {missing} of {all}, {bytes}")?;
            }
            Ok(ExitCode::SUCCESS)
        }

        /// Returns the one requested file, otherwise the checkpoint, otherwise the directory.
        pub(super) fn path(&self, args: &Args, snapshot: &Snapshot) -> PathBuf {
            match args.files.as_slice() {
                [file] if snapshot.files() == [file.as_str()] => {
                    let mut path = snapshot.dir().to_owned();
                    path.extend(file.split('/'));
                    path
                }
                _ => snapshot.into(),
            }
        }
    }
}
