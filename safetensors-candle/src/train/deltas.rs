//! Training checkpoints that are kept as the difference from an earlier one.

use std::fs;
use std::path::Path;

use safetensors_core::framework::synced_later;
use safetensors_core::save::AtomicDirectory;
use safetensors_core::{Error, ErrorKind, Result, SaveOptions};
use safetensors_delta::{Options, make_linked};

use super::StateRef;
use super::checkpoint::save;
use super::linked::{FILE, VERSIONS, file_of};

/// Saves like [`save`], to a new directory, as the difference from an earlier checkpoint. [`load`]
/// reads it. Returns `false` if the directory has the whole checkpoint instead, because a delta
/// would not be smaller, or because none could be made: the file system has no hard links, or the
/// earlier checkpoint is damaged.
///
/// The earlier checkpoint is a file of [`save`], a directory that has one, or a directory of this
/// function. A delta always has a whole file as its base: if the earlier checkpoint is a delta,
/// both have the same base. How much space it saves depends on the training: variables that are
/// frozen, or change little, take little space; the moments of an optimizer that trains everything
/// change completely.
///
/// The directory has a second name of the base's file, a hard link: `base/model.safetensors`. So
/// checkpoints can be deleted at any time, in any order, and the base takes its space until the
/// last one that needs it is deleted. Another copy of it is made by programs that do not keep hard
/// links.
///
/// Loading takes space for the whole file, in a hidden directory next to this one. Everything else
/// that reads checkpoints refuses a delta. `safetensors delta apply DIRECTORY/base DIRECTORY whole`
/// makes a whole one for other programs.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use safetensors_candle::train;
/// use safetensors_core::SaveOptions;
///
/// let dir = tempfile::tempdir()?;
/// let path = |epoch: u32| dir.path().join(format!("epoch-{epoch}"));
/// let mut var_map = VarMap::new();
/// let builder = VarBuilder::from_varmap(&var_map, DType::F32, &Device::Cpu);
/// candle_nn::linear(64, 64, builder.pp("frozen"))?;
/// let head = builder.get_with_hints(2, "head", candle_nn::init::ZERO)?;
///
/// let options = SaveOptions::new();
/// for epoch in 0..6 {
///     var_map.set_one("head", (&head + f64::from(epoch))?)?;
///     // Each third one is whole.
///     if epoch % 3 == 0 {
///         std::fs::create_dir(path(epoch))?;
///         train::save(path(epoch).join("model.safetensors"), &var_map, &options)?;
///     } else {
///         assert!(train::save_delta(path(epoch), path(epoch - 1), &var_map, &options)?);
///     }
///     // The last two are kept.
///     if epoch >= 2 {
///         std::fs::remove_dir_all(path(epoch - 2))?;
///     }
/// }
/// train::load(path(4), &var_map)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Like [`save`]; an error of finding the earlier checkpoint, and [`NotAFile`](ErrorKind::NotAFile)
/// if it has several files; [`FileExists`](ErrorKind::FileExists) if the directory has files;
/// [`NotDurable`](ErrorKind::NotDurable) if the checkpoint is in place, but a power cut may lose
/// it.
///
/// [`load`]: super::load
pub fn save_delta<'a>(
    directory: impl AsRef<Path>,
    base: impl AsRef<Path>,
    state: impl Into<StateRef<'a>>,
    options: &SaveOptions,
) -> Result<bool> {
    let directory = directory.as_ref();
    if fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Error::from(ErrorKind::FileExists).in_path(directory));
    }
    let base = file_of(base.as_ref())?;
    let new = AtomicDirectory::create(directory)?;
    let whole = new.path().join(FILE);
    let saved = save(&whole, state, &synced_later(options.clone()));
    saved.map_err(|error| new.locate(error))?;
    let in_directory = |error| Error::io(error, directory);
    // The delta replaces the file, which waits in the hidden directory around it.
    let aside = new.path().with_file_name(FILE);
    fs::rename(&whole, &aside).map_err(in_directory)?;
    let [from, to] = VERSIONS;
    // It is synchronised with the directory.
    let delta = Options::new().versions(from, to).durable(false);
    // A damaged base is no reason to lose the checkpoint.
    let is_delta = make_linked(base, &aside, new.path(), &delta).unwrap_or(false);
    if !is_delta {
        fs::rename(&aside, &whole).map_err(in_directory)?;
    }
    new.commit()?;
    Ok(is_delta)
}
