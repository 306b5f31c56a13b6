//! [`Format`]: the supported formats, and their file names.

use std::fmt;
use std::path::Path;

/// A directory that is not a trainer's opens as one of these.
pub(crate) const STANDARD: [&str; 2] = ["pytorch_model.bin.index.json", "pytorch_model.bin"];

/// By the text after the last dot, in lower case.
const EXTENSIONS: [(&str, Format); 11] = [
    ("bin", Format::Pytorch),
    ("bpk", Format::Burnpack),
    ("ckpt", Format::Pytorch),
    ("distcp", Format::Dcp),
    ("gguf", Format::Gguf),
    ("jit", Format::Pytorch),
    ("mpk", Format::Burn),
    ("npy", Format::Npy),
    ("npz", Format::Npz),
    ("pt", Format::Pytorch),
    ("pth", Format::Pytorch),
];

/// A format of files that open as [`TensorFile`](crate::TensorFile)s.
///
/// ```
/// use safetensors_formats::Format;
///
/// assert_eq!(Format::detect(b"GGUF\x03\x00\x00\x00\x00\x00\x00\x00")?, Some(Format::Gguf));
/// assert_eq!(Format::detect(b"\x02\0\0\0\0\0\0\0{}")?, None);
/// # Ok::<(), safetensors_formats::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// A NumPy array.
    Npy,
    /// An archive of NumPy arrays.
    Npz,
    /// A file of PyTorch.
    Pytorch,
    /// A file of llama.cpp.
    Gguf,
    /// A record of burn 0.14 to 0.21 (`.mpk`), from its `NamedMpkFileRecorder`. Read only; burn
    /// 0.22 reads none.
    ///
    /// Tensors have burn's parameter names, such as `layers.0.weight`, with names of enum variants,
    /// and are read in place. The ids of parameters become the metadata
    /// `safetensors_bridge.param_ids`, for the burn adapter; the version becomes `burn.version`.
    ///
    /// | in the file | here |
    /// |---|---|
    /// | F64 F32 F16 BF16, I64 to I8, U64 to U8, Bool | the same |
    /// | Flex32 | F32, as which burn stores it |
    ///
    /// Quantised tensors and booleans of 4 bytes are
    /// [`ErrorKind::NoDtype`](crate::ErrorKind::NoDtype). Other values are skipped, and counted in
    /// [`TensorFile::notes`](crate::TensorFile::notes).
    ///
    /// Records of burn 0.13 and older have no dtypes: burn 0.14 to 0.16 can save them again, with
    /// the feature `record-backward-compat`. Files of other recorders (bincode, JSON, gzip) are not
    /// read.
    Burn,
    /// A burnpack file (`.bpk`), from burn's `ModuleRecord` since 0.22 and burn-store's
    /// `BurnpackStore` since 0.20. `burn::Writer` writes it.
    ///
    /// Tensors have burn's parameter names and the dtypes of the table above, and are read in
    /// place. Names with the same bytes are a tied weight. Metadata is kept, and parameter ids
    /// become `safetensors_bridge.param_ids`. Other numbers, such as an optimizer's steps, are
    /// skipped, and counted in [`TensorFile::notes`](crate::TensorFile::notes).
    Burnpack,
    /// A directory of PyTorch's distributed checkpoints, with `.metadata` and `.distcp` files, also
    /// of Megatron.
    Dcp,
    /// A directory of DeepSpeed.
    DeepSpeed,
    /// A directory with a PyTorch file for each rank, with its parts of tensors.
    Dtensor,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Npy => "NumPy .npy",
            Self::Npz => "NumPy .npz",
            Self::Pytorch => "PyTorch",
            Self::Gguf => "GGUF",
            Self::Burn => "burn",
            Self::Burnpack => "burnpack",
            Self::Dcp => "PyTorch DCP",
            Self::DeepSpeed => "DeepSpeed",
            Self::Dtensor => "PyTorch DTensor",
        })
    }
}

impl Format {
    /// Returns the format of a name, by its extension in any case. [`detect`](Format::detect)
    /// examines the file.
    ///
    /// ```
    /// use safetensors_formats::Format;
    ///
    /// assert_eq!(Format::from_name("weights.NPZ"), Some(Format::Npz));
    /// assert_eq!(Format::from_name("pytorch_model.bin"), Some(Format::Pytorch));
    /// assert_eq!(Format::from_name("model.safetensors"), None);
    /// ```
    pub fn from_name(path: impl AsRef<Path>) -> Option<Self> {
        let extension = path.as_ref().extension()?.to_str()?.to_lowercase();
        let found = EXTENSIONS.iter().find(|(known, _)| *known == extension);
        found.map(|(_, format)| *format)
    }

    /// Returns the format of a directory with these names: a trainer's, or
    /// [`Pytorch`](Self::Pytorch) for `pytorch_model.bin` or its index. `None` for others, such as
    /// safetensors files.
    ///
    /// ```
    /// use safetensors_formats::Format;
    ///
    /// assert_eq!(Format::of_directory([".metadata", "__0_0.distcp"]), Some(Format::Dcp));
    /// assert_eq!(Format::of_directory(["__0.metadata"]), Some(Format::Dcp));
    /// assert_eq!(Format::of_directory(["pytorch_model.bin"]), Some(Format::Pytorch));
    /// assert_eq!(Format::of_directory(["config.json", "a.metadata"]), None);
    /// ```
    pub fn of_directory<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut is_standard = false;
        let trainers = names.into_iter().find_map(|name| {
            is_standard |= STANDARD.contains(&name);
            let before = |end| name.strip_suffix(end);
            if before(".metadata").is_some_and(|it: &str| it.is_empty() || it.starts_with("__"))
                || before(".distcp").is_some()
            {
                return Some(Self::Dcp);
            }
            if before("optim_states.pt").or(before("model_states.pt")).is_some() {
                return Some(Self::DeepSpeed);
            }
            let (_, rest) = before(".pt")?.split_once("_world_size_")?;
            rest.contains("_rank_").then_some(Self::Dtensor)
        });
        trainers.or(is_standard.then_some(Self::Pytorch))
    }

    /// Returns `true` for a format of directories, `false` for a format of single files.
    pub fn is_of_directories(self) -> bool {
        matches!(self, Self::Dcp | Self::DeepSpeed | Self::Dtensor)
    }
}

/// Returns the prefix of all members, if this one is PyTorch's pickle.
pub(crate) fn root_of(member: &str) -> Option<&str> {
    member.strip_suffix("data.pkl").filter(|root| root.is_empty() || root.ends_with('/'))
}

pub(crate) fn is_exported(member: &str) -> bool {
    ["archive_format", "models/model.json", "serialized_exported_program.json"]
        .iter()
        .any(|name| member.strip_suffix(name).is_some_and(|it| it.is_empty() || it.ends_with('/')))
}

#[cfg(test)]
mod tests {
    use safetensors_core::checkpoint::OtherFiles;

    use super::*;

    #[test]
    fn no_file_with_tensors_goes_along_with_another_model() {
        for (extension, _) in EXTENSIONS {
            assert!(!OtherFiles::belongs(&format!("x.{extension}")), "{extension}");
        }
    }
}
