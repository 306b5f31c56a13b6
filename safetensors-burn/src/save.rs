//! Saves [`TensorData`].

use std::path::Path;

use burn::tensor::{BoolStore, DType, TensorData};
use safetensors_core::checkpoint::SavedShards;
use safetensors_core::framework::{check_bools, write_native};
use safetensors_core::save::Sink;
use safetensors_core::tied::Storage;
use safetensors_core::{
    Dtype, ErrorKind, Result, SaveOptions, ShardOptions, TensorSource, framework, shape,
};

use crate::{Burn, dtype};

/// Saves tensors to one file, atomically. `tensors` yields names and tensors, such as a
/// `&BTreeMap<String, TensorData>`. Elements are written from their memory, without a copy.
///
/// With [`SaveOptions::tied`], tensors that share memory are saved once.
///
/// ```
/// use burn::tensor::TensorData;
/// use safetensors_core::SaveOptions;
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("mask.safetensors");
/// let mask = TensorData::from([true, false]);
/// safetensors_burn::save(
///     &path,
///     [("mask", &mask)],
///     &SaveOptions::new().metadata([("format", "pt")]),
/// )?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`ErrorKind::UnsupportedFrameworkType`] for a quantized tensor; [`ErrorKind::InvalidBool`] for a
/// boolean that is neither 0 nor 1; an error of [`safetensors_core::save()`].
pub fn save<'a>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (impl AsRef<str>, &'a TensorData)>,
    options: &SaveOptions,
) -> Result<()> {
    framework::save::<Burn>(path, tensors, options)
}

/// Saves tensors to a directory, like [`safetensors_core::save_sharded`], as a single file or
/// several shards. For a module, use
/// [`CheckpointStore::max_shard_size`](crate::CheckpointStore::max_shard_size).
///
/// ```
/// use burn::tensor::TensorData;
/// use safetensors_core::ShardOptions;
///
/// let dir = tempfile::tempdir()?;
/// let values = TensorData::from([1.0_f32, 2.0]);
/// let options = ShardOptions::new().max_shard_size(16.into());
/// let saved = safetensors_burn::save_sharded(
///     dir.path(),
///     ["a", "b", "c"].map(|name| (name, &values)),
///     &options,
/// )?;
/// assert_eq!((saved.files.len(), saved.total_size), (2, 24));
/// assert_eq!(safetensors_burn::load(dir.path())?["c"], values);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn save_sharded<'a>(
    directory: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (impl AsRef<str>, &'a TensorData)>,
    options: &ShardOptions,
) -> Result<SavedShards> {
    framework::save_sharded::<Burn>(directory, tensors, options)
}

pub(crate) struct DataSource<'a> {
    data: &'a TensorData,
    dtype: Dtype,
}

impl<'a> DataSource<'a> {
    pub(crate) fn new(data: &'a TensorData) -> Result<Self> {
        let dtype = dtype::to_file(data.dtype())?;
        let elements = shape::element_count(data.shape())?;
        let expected = elements.saturating_mul(data.dtype().size() as u64);
        let found = data.bytes().len() as u64;
        if expected != found {
            return Err(ErrorKind::DataLength {
                dtype,
                shape: data.shape().to_vec(),
                expected,
                found,
            }
            .into());
        }
        Ok(Self { data, dtype })
    }
}

impl TensorSource for DataSource<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.data.shape()
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        let bytes = self.data.as_bytes();
        match self.data.dtype() {
            DType::Bool(BoolStore::Native) => {
                check_bools(bytes, 0)?;
                sink(bytes)
            }
            // Backends that store booleans so take every value but 0 for true.
            DType::Bool(BoolStore::U8) => write_bools(bytes, 1, sink),
            DType::Bool(BoolStore::U32) => write_bools(bytes, size_of::<u32>(), sink),
            _ => write_native(self.dtype, bytes, sink),
        }
    }

    /// Returns `None` for booleans of four bytes, which are shorter in a file.
    fn storage(&self) -> Option<Storage> {
        let bytes = self.data.as_bytes();
        let wide = self.data.dtype() == DType::Bool(BoolStore::U32);
        (!wide).then(|| Storage::whole(bytes.as_ptr().addr() as u64, bytes.len() as u64))
    }
}

/// Writes booleans of `width` bytes each as bytes of 0 and 1.
fn write_bools(bytes: &[u8], width: usize, sink: &mut Sink<'_>) -> Result<()> {
    let mut buffer = [0_u8; 4096];
    for piece in bytes.chunks(buffer.len() * width) {
        let written = &mut buffer[..piece.len() / width];
        for (to, from) in written.iter_mut().zip(piece.chunks_exact(width)) {
            *to = u8::from(from.iter().any(|&byte| byte != 0));
        }
        sink(written)?;
    }
    Ok(())
}
