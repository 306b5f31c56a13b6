//! Saves to a remote store, where a file becomes visible completely or not at all.
//! A directory opens as the earlier or the new checkpoint.

mod bucket;
mod directory;
#[cfg(test)]
mod tests;
mod unfinished;
mod upload;

use std::io;
use std::sync::Arc;

use bucket::BucketDirectory;
use object_store::path::Path as Key;
use safetensors_core::checkpoint::{SavedShards, save_sharded_to, stage_sharded_to};
use safetensors_core::save::write_to;
use safetensors_core::{
    Error, ErrorKind, ReadAt, Result, Rewrite, SaveOptions, ShardOptions, TensorSource, shape,
};
pub use unfinished::abort_uploads;
use upload::Upload;

use super::object::Service;
use super::place::RemotePlace;
use super::{RemoteOptions, local_path};

impl RemoteOptions {
    /// Saves tensors to one file of a remote store, which is replaced completely or not at all.
    ///
    /// It is sent in parts of 8 MiB or more, at most eight in memory, and has the bytes of
    /// [`serialize`](safetensors_core::serialize). After an error the parts are aborted. For
    /// `file:///path` all methods save like [core](safetensors_core::save()).
    ///
    /// ```
    /// use safetensors_core::{SaveOptions, TensorView};
    /// use safetensors_hub::remote::{self, RemoteOptions};
    ///
    /// let address = "memory:///saved/model.safetensors";
    /// let bias = TensorView::from_slice(&[2], &[0.5_f32, 1.5])?;
    /// RemoteOptions::new().save(address, [("bias", bias)], &SaveOptions::new())?;
    /// assert_eq!(remote::open(address)?.tensor("bias")?.read()?.as_slice::<f32>()?, [0.5, 1.5]);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Like [`write_to`]; [`ErrorKind::Io`] if the store refuses or fails. It then has the earlier
    /// file, unless only the last answer was lost. Web servers and the Hub take no files.
    pub fn save<N: AsRef<str>, S: TensorSource>(
        &self,
        address: &str,
        tensors: impl IntoIterator<Item = (N, S)>,
        options: &SaveOptions,
    ) -> Result<()> {
        if let Some(path) = local_path(address)? {
            return safetensors_core::save(path, tensors, options);
        }
        stage(address, tensors, options, self)?.commit()
    }

    /// Saves a rewrite to one file, like [`save`](Self::save).
    ///
    /// ```
    /// use safetensors_core::{Checkpoint, Dtype, Rewrite, SaveOptions, TensorView, serialize};
    /// use safetensors_hub::remote::{self, RemoteOptions};
    ///
    /// let bias = TensorView::from_slice(&[2], &[0.5_f32, 1.5])?;
    /// let bytes = serialize([("bias", bias)], &SaveOptions::new())?;
    /// let checkpoint = Checkpoint::from_source(bytes, "bytes in memory")?;
    /// let rewrite = Rewrite::from_checkpoint(&checkpoint).rename(|name| format!("head.{name}"));
    /// let address = "memory:///rewritten.safetensors";
    /// RemoteOptions::new().save_rewrite(address, &rewrite, &SaveOptions::new())?;
    /// assert!(remote::open(address)?.get("head.bias").is_some());
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Like [`save`](Self::save) and [`Rewrite::plan`]; [`ErrorKind::Io`] if a source changes
    /// before the file is in place.
    pub fn save_rewrite<S: ReadAt>(
        &self,
        address: &str,
        rewrite: &Rewrite<'_, S>,
        options: &SaveOptions,
    ) -> Result<()> {
        if let Some(path) = local_path(address)? {
            return rewrite.save(path, options);
        }
        rewrite.plan(options)?;
        let options = rewrite.complete_options(options);
        let staged = stage(address, rewrite.tensors(), &options, self)?;
        rewrite.check_unchanged().map_err(|error| error.in_file(&staged.place.shown))?;
        staged.commit()
    }

    /// Saves tensors to a directory of a remote store, as one file, or as several and their index:
    /// the same files as [`save_sharded`](safetensors_core::save_sharded).
    ///
    /// At every moment, even after an interruption, the directory opens as the complete earlier or
    /// new checkpoint:
    ///
    /// 1. All files are sent, and none is visible.
    /// 2. If new files need names of the index in place, the store copies the old ones to second
    ///    names, and gets an index with these. S3 copies at most 5 GiB: a larger file is fetched
    ///    and sent again.
    /// 3. The new files become visible. Nothing names them yet.
    /// 4. The new index replaces the one in place, if unchanged: by a condition of the store, or
    ///    by asking just before.
    /// 5. Earlier files and second names are removed.
    ///
    /// Two saves to one directory at the same time do not mix, unless their steps 3 and 4
    /// interleave. The second one fails with [`ErrorKind::Overtaken`]. Nothing is locked.
    ///
    /// If the answer to the index is lost, the store is asked whether it has the new one. A failed
    /// request may still arrive some seconds later, so a save that failed by the network counts as
    /// running, and leaves the second names to the next save.
    ///
    /// ```
    /// use safetensors_core::{ShardOptions, TensorView};
    /// use safetensors_hub::remote::{self, RemoteOptions};
    ///
    /// let values = [1.0_f32, 2.0];
    /// let tensors =
    ///     ["a", "b", "c"].map(|name| (name, TensorView::from_slice(&[2], &values).unwrap()));
    /// let options = ShardOptions::new().max_shard_size(16.into());
    /// let saved = RemoteOptions::new().save_sharded("memory:///sharded", tensors, &options)?;
    /// assert_eq!(saved.files.len(), 2);
    /// assert_eq!(remote::open("memory:///sharded")?.len(), 3);
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Like [`save`](Self::save); [`ErrorKind::DuplicateTensor`]; [`ErrorKind::Overtaken`];
    /// [`ErrorKind::LeftBehind`], after which the directory opens as the new checkpoint;
    /// [`ErrorKind::Io`] if the store refuses to remove an earlier single file, which then stays
    /// the checkpoint and is named.
    pub fn save_sharded<N: AsRef<str>, S: TensorSource>(
        &self,
        address: &str,
        tensors: impl IntoIterator<Item = (N, S)>,
        options: &ShardOptions,
    ) -> Result<SavedShards> {
        if let Some(directory) = local_path(address)? {
            return safetensors_core::save_sharded(directory, tensors, options);
        }
        let place = RemotePlace::writable(address, self)?;
        save_to(&place, tensors, options)
    }

    /// Saves a rewrite to a directory, like [`save_sharded`](Self::save_sharded). Its sources may
    /// be in the same directory.
    ///
    /// # Errors
    ///
    /// Like [`save_sharded`](Self::save_sharded) and [`Rewrite::plan_sharded`]; [`ErrorKind::Io`]
    /// if a source changes before the first file is in place.
    pub fn save_rewrite_sharded<S: ReadAt>(
        &self,
        address: &str,
        rewrite: &Rewrite<'_, S>,
        options: &ShardOptions,
    ) -> Result<SavedShards> {
        if let Some(directory) = local_path(address)? {
            return rewrite.save_sharded(directory, options);
        }
        let place = RemotePlace::writable(address, self)?;
        rewrite.plan_sharded(options)?;
        let options = rewrite.complete_shard_options(options);
        save_rewrite_to(&place, rewrite, &options).map_err(|error| error.in_file(&place.shown))
    }
}

struct StagedFile {
    upload: Upload,
    place: RemotePlace,
    overwrites: bool,
}

fn stage<N: AsRef<str>, S: TensorSource>(
    address: &str,
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &SaveOptions,
    remote: &RemoteOptions,
) -> Result<StagedFile> {
    let place = RemotePlace::writable(address, remote)?;
    let overwrites = options.overwrites();
    if place.key.as_ref().is_empty() || address.ends_with('/') {
        let message = "expected the address of a file, found that of a directory";
        let error = io::Error::new(io::ErrorKind::InvalidInput, message);
        return Err(failed(error).in_file(&place.shown));
    }
    let upload = unless_refused(&place, overwrites)
        .and_then(|()| send(&place.service, place.key.clone(), tensors, options))
        .map_err(|error| error.in_file(&place.shown))?;
    Ok(StagedFile { upload, place, overwrites })
}

impl StagedFile {
    fn commit(self) -> Result<()> {
        let Self { upload, place, overwrites } = self;
        let committed = unless_refused(&place, overwrites)
            .and_then(|()| upload.commit().map(drop).map_err(failed));
        committed.map_err(|error| error.in_file(&place.shown))
    }
}

/// Fails for a file that must not be replaced. Uploads in parts know no condition, so ask just
/// before.
fn unless_refused(place: &RemotePlace, overwrites: bool) -> Result<()> {
    if overwrites || place.service.head(place.key.clone()).map_err(failed)?.is_none() {
        Ok(())
    } else {
        Err(ErrorKind::FileExists.into())
    }
}

/// The file is not visible yet.
fn send<N: AsRef<str>, S: TensorSource>(
    service: &Arc<Service>,
    key: Key,
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &SaveOptions,
) -> Result<Upload> {
    let tensors: Vec<_> = tensors.into_iter().collect();
    let sizes = tensors.iter().map(|(_, tensor)| {
        // Writing gives the error of a shape that overflows.
        shape::byte_len(tensor.dtype(), tensor.shape()).unwrap_or(0)
    });
    let byte_len = sizes.fold(0, u64::saturating_add);
    let mut upload = Upload::new(Arc::clone(service), key, byte_len);
    write_to(&mut upload, tensors, options)?;
    upload.close().map_err(failed)?;
    Ok(upload)
}

fn save_to<N: AsRef<str>, S: TensorSource>(
    place: &RemotePlace,
    tensors: impl IntoIterator<Item = (N, S)>,
    options: &ShardOptions,
) -> Result<SavedShards> {
    let saved = BucketDirectory::new(place, options.pattern())
        .and_then(|mut directory| save_sharded_to(&mut directory, tensors, options));
    saved.map_err(|error| error.in_file(&place.shown))
}

fn save_rewrite_to<S: ReadAt>(
    place: &RemotePlace,
    rewrite: &Rewrite<'_, S>,
    options: &ShardOptions,
) -> Result<SavedShards> {
    let mut directory = BucketDirectory::new(place, options.pattern())?;
    let mut staged = stage_sharded_to(&mut directory, rewrite.tensors(), options)?;
    staged.begin()?;
    rewrite.check_unchanged()?;
    staged.commit()
}

fn failed(error: io::Error) -> Error {
    ErrorKind::Io(error).into()
}
