//! [`Output`]: the kinds of output.

use std::ffi::OsStr;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use anyhow::Context;
use safetensors_core::{Error, ErrorKind, MaxShardSize, SaveOptions, ShardOptions, TensorSource, save, save_sharded};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::replace::Replacement;
use crate::usage::WrongUsage;
use crate::{npy, text};

/// Where tensors go.
#[derive(Debug)]
pub(crate) enum Output {
    /// One safetensors file.
    File(PathBuf),
    /// A directory with a checkpoint of one file, or of several with an index.
    Directory(PathBuf, MaxShardSize),
    /// One array.
    Npy(PathBuf),
    /// An archive of arrays.
    Npz(PathBuf),
}

impl Output {
    /// The kind of output that its name says, or a directory.
    pub(crate) fn new(path: &Path, max_shard_size: Option<MaxShardSize>) -> anyhow::Result<Self> {
        let extension = path.extension().and_then(OsStr::to_str).map(str::to_lowercase);
        let wrong = |problem: &str| WrongUsage::error(format!("{}: {problem}", text::path(path)));
        let output = match extension.as_deref() {
            _ if path == Path::new("-") => {
                return Err(wrong("the output cannot be a pipe: its layout is decided beforehand"));
            }
            _ if path.is_dir() => Self::Directory(path.into(), max_shard_size.unwrap_or_default()),
            Some("safetensors") => Self::File(path.into()),
            Some("npy") => Self::Npy(path.into()),
            Some("npz") => Self::Npz(path.into()),
            Some("bin" | "pt" | "pth" | "ckpt" | "gguf" | "onnx" | "h5" | "json") => {
                return Err(wrong(
                    "cannot be written; an output ends in .safetensors, .npz or .npy, or is a directory",
                ));
            }
            _ => Self::Directory(path.into(), max_shard_size.unwrap_or_default()),
        };
        if max_shard_size.is_some() && !matches!(output, Self::Directory(..)) {
            return Err(wrong("--max-shard-size is for a directory as output"));
        }
        Ok(output)
    }

    /// Refuses tensors that this output cannot hold, before any is read.
    pub(crate) fn check<S: TensorSource>(&self, tensors: &[(String, S)]) -> anyhow::Result<()> {
        if let Self::Npy(path) = self
            && tensors.len() != 1
        {
            let found = text::counted(tensors.len() as u64, "tensor");
            anyhow::bail!("{}: a .npy file holds one tensor, not {found}; .npz holds several", text::path(path));
        }
        if matches!(self, Self::Npy(_) | Self::Npz(_)) {
            for (name, tensor) in tensors {
                npy_header(name, tensor)?;
            }
        }
        Ok(())
    }

    /// Writes all tensors. The output is there complete, or as it was. What was written, in words.
    pub(crate) fn write<S: TensorSource>(
        &self,
        tensors: Vec<(String, S)>,
        options: SaveOptions,
    ) -> anyhow::Result<String> {
        match self {
            Self::File(path) => {
                save(path, tensors, &options)?;
                Ok(text::path(path))
            }
            Self::Directory(path, size) => {
                let options = ShardOptions::new().max_shard_size(*size).save(options);
                let saved = save_sharded(path, tensors, &options)?;
                Ok(format!("{}, {}", text::path(path), text::counted(saved.files.len() as u64, "file")))
            }
            Self::Npy(path) => {
                let mut file = Replacement::create(path)?;
                for (name, tensor) in &tensors {
                    file.write_all(&npy_header(name, tensor)?).with_context(|| text::path(path))?;
                    copy(name, tensor, &mut file, path)?;
                }
                file.finish()?;
                Ok(text::path(path))
            }
            Self::Npz(path) => {
                let mut file = Replacement::create(path)?;
                // An archive that is given up would try to write its end, and tell on standard error if that fails too: it is not
                // dropped then. The file is, and is gone.
                let mut zip = ManuallyDrop::new(ZipWriter::new(&mut file));
                for (name, tensor) in &tensors {
                    // As numpy.savez: not compressed, so that it can be read at once.
                    let options =
                        SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(true);
                    zip.start_file(format!("{name}.npy"), options).with_context(|| text::path(path))?;
                    zip.write_all(&npy_header(name, tensor)?).with_context(|| text::path(path))?;
                    copy(name, tensor, &mut *zip, path)?;
                }
                ManuallyDrop::into_inner(zip).finish().with_context(|| text::path(path))?;
                file.finish()?;
                Ok(text::path(path))
            }
        }
    }
}

fn npy_header(name: &str, tensor: &impl TensorSource) -> anyhow::Result<Vec<u8>> {
    npy::header(tensor.dtype(), tensor.shape()).with_context(|| {
        format!("tensor {}: NumPy has no type for {}; add --dtype f32", text::name(name), tensor.dtype())
    })
}

fn copy(name: &str, tensor: &impl TensorSource, out: &mut impl Write, path: &Path) -> anyhow::Result<()> {
    let written = tensor.write_to(&mut |bytes| {
        out.write_all(bytes).map_err(|error| Error::from(ErrorKind::Io(error)).in_file(path.display()))
    });
    Ok(written.map_err(|error| error.in_tensor(name))?)
}
