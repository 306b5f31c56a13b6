//! [`Others`]: files without tensors, from a directory IN to a directory OUT.

use std::path::{Path, PathBuf};

use safetensors_core::checkpoint::OtherFiles;
use safetensors_core::quantized::settings_files;

use super::Args;
use super::config::{self, Config};
use super::preview::Preview;
use super::source::{CONFIG, Source};
use crate::input::{self, Rewrite, address};
use crate::output::existing::identity;
use crate::terminal::report::warn;
use crate::terminal::text;

/// The settings of an adapter, next to its tensors.
pub(super) const SETTINGS: &str = "adapter_config.json";

pub(super) const DIFFUSERS: &str = "diffusion_pytorch_model";

/// The names, other than `model`, by which libraries load a file.
const NAMES: [&str; 3] = [DIFFUSERS, "adapter_model", "pytorch_lora_weights"];

#[derive(Debug, Default)]
pub(super) struct Others {
    /// The path that was read, and the text that is written.
    pub(super) config: Option<(PathBuf, String)>,
    pub(super) files: OtherFiles,
    /// The settings of an adapter.
    pub(super) settings: Option<String>,
}

impl Others {
    /// Uses the one directory among the inputs, and a `config.json` for the written tensors.
    pub(super) fn new(
        args: &Args,
        sources: &[Source],
        rewrite: &Rewrite<'_>,
        is_directory: bool,
    ) -> anyhow::Result<Self> {
        let Some(out) = args.paths.last() else { return Ok(Self::default()) };
        if is_directory && args.no_other_files {
            warn_of_codes(rewrite, out, "; without --no-other-files, OUT gets one");
            return Ok(Self::default());
        }
        let directories = sources.iter().map(|it| &it.checkpoint);
        let directories: Vec<_> =
            directories.filter(|it| is_directory && it.is_of_directory()).collect();
        let mut others = Self::default();
        match directories.as_slice() {
            [] => {}
            [one] => {
                // The path of a checkpoint at an address has no credentials either.
                let address = address::in_path(out).map(address::shown);
                let found = OtherFiles::new(one, address.as_deref().map_or(out, Path::new));
                others.files = found.map_err(|error| {
                    anyhow::anyhow!("{error}; --no-other-files leaves such files behind")
                })?;
                others.warn_of_missing(out);
            }
            several => warn(format!(
                "the other files of {} directories are not copied, such as tokenizers",
                several.len()
            )),
        }
        let directory = is_directory.then_some(out.as_path());
        match config::config(sources, rewrite, directory, directories.len() == 1)? {
            Config::AsIs => {}
            Config::Left => others.files.leave(|name| name == CONFIG),
            Config::Written(path, text) => {
                others.files.remove(CONFIG);
                if is_directory {
                    others.config = Some((path, text));
                } else {
                    warn_of_codes(rewrite, out, "; a directory as OUT gets one");
                }
            }
        }
        if config::outdates_settings(sources, rewrite) {
            others.files.leave(|name| settings_files().any(|it| it == name));
        }
        if address::in_path(out).is_none() {
            others.files.remove_equal(out);
        }
        Ok(others)
    }

    fn warn_of_missing(&self, out: &Path) {
        let missing = self.files.missing().iter().map(|path| text::path(path));
        let missing: Vec<_> = missing.collect();
        if self.files.is_refused() {
            warn(format!(
                "{}: no access to the list of files of IN, so its other files may be missing, such \
                 as config.json; --no-other-files leaves them behind",
                input::shown(out)
            ));
        }
        if !missing.is_empty() {
            warn(format!(
                "{}: nothing can load it without {}, which modules.json or model_index.json names \
                 and which is not copied; convert or copy it yourself",
                input::shown(out),
                text::some(&missing)
            ));
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let settings = self.settings.iter().map(|_| SETTINGS);
        self.config.iter().map(|_| CONFIG).chain(settings).chain(self.files.names())
    }

    /// Does not name hidden files.
    pub(super) fn preview(&self, preview: &mut Preview) {
        preview.has_config = self.names().any(|name| name == CONFIG);
        let names = self.names().filter(|name| *name != CONFIG);
        preview.others = names.map(|name| text::path(name.as_ref())).collect();
        let left = self.files.left_out().iter().map(|path| text::path(path));
        preview.left = left.filter(|name| !name.starts_with('.')).collect();
    }
}

fn warn_of_codes(rewrite: &Rewrite<'_>, out: &Path, remedy: &str) {
    if rewrite.tensors().any(|(_, tensor)| tensor.is_quantized()) {
        warn(format!(
            "{}: transformers and vLLM need a config.json that describes quantised weights{remedy}",
            input::shown(out)
        ));
    }
}

/// Returns the name by which a library loads the one input, if not `model.safetensors`, and the
/// start of its files' names. An input in OUT keeps its variant, such as `.fp16`.
pub(super) fn library_name(
    sources: &[Source],
    out: &Path,
) -> Option<(&'static str, Option<String>)> {
    let [source] = sources else { return None };
    let name = input::path_of(&source.checkpoint)?.file_name()?.to_str()?;
    let known = NAMES.into_iter().find(|known| name.split('.').next() == Some(known))?;
    if !source.files().contains(&identity(&out.join(name))) {
        return Some((known, Some(known.to_owned())));
    }
    let start = match name.strip_suffix(".index.json").unwrap_or(name).strip_suffix(".safetensors")
    {
        // A file of PyTorch stays, next to the new one.
        None if !name.contains(".safetensors.") => Some(known),
        start => start,
    };
    Some((known, start.map(str::to_owned)))
}
