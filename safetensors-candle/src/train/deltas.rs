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
/// reads it. Returns `false` if the directory has the complete checkpoint instead, because a delta
/// would not be smaller, the file system has no hard links, or the earlier checkpoint is damaged.
///
/// The earlier checkpoint is a file of [`save`], a directory with one, or a directory of this
/// function, with which the new one then shares its base. Only variables that are frozen or change
/// little save space.
///
/// The directory has a hard link to the base's file, `base/model.safetensors`, so checkpoints can
/// be deleted in any order. Loading takes space for the complete file, next to this directory. For
/// other readers, `safetensors delta apply DIRECTORY/base DIRECTORY whole` makes a complete
/// checkpoint.
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
/// Like [`save`]; [`NotAFile`](ErrorKind::NotAFile) if the earlier checkpoint has several files;
/// [`FileExists`](ErrorKind::FileExists) if the directory has files;
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
