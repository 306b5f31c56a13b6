//! [`Format`]: the formats that this crate reads, and the names of their files.

use std::fmt;
use std::path::Path;

/// The files that a directory is opened as if it is not a trainer's.
pub(crate) const STANDARD: [&str; 2] = ["pytorch_model.bin.index.json", "pytorch_model.bin"];

/// The names of files of each format, by the text after the last dot, in lower case.
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

/// A format of files that this crate reads as [`TensorFile`](crate::TensorFile)s.
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
    /// One array of NumPy.
    Npy,
    /// An archive of such arrays.
    Npz,
    /// A file of PyTorch.
    Pytorch,
    /// A file of llama.cpp.
    Gguf,
    /// A record of burn 0.14 to 0.21, as its `NamedMpkFileRecorder` wrote it (`.mpk`). It was
    /// burn's default; burn 0.22 reads none of them.
    ///
    /// A record is MessagePack: maps by the names of fields, lists of layers, and at their ends the
    /// bytes, the shape and the dtype of each tensor. A tensor is named by the keys that lead to
    /// it, as burn names its parameters: `layers.0.weight`. The elements are read in place, so a
    /// model larger than memory can be converted. Names of enum variants are parts of the names of
    /// tensors, as in burn.
    ///
    /// The ids of parameters become the metadata entry by which the burn adapter finds them
    /// (`safetensors_bridge.param_ids`); the version of burn becomes `burn.version`.
    ///
    /// | in the file | here |
    /// |---|---|
    /// | F64 F32 F16 BF16, I64 to I8, U64 to U8, Bool | the same |
    /// | Flex32 | F32, as which burn stores it |
    ///
    /// A tensor of another dtype, which is quantised or has booleans of 4 bytes, is
    /// [`ErrorKind::NoDtype`](crate::ErrorKind::NoDtype).
    ///
    /// Values that are no tensors are skipped and counted in
    /// [`TensorFile::notes`](crate::TensorFile::notes). Records of burn 0.13 and older list their
    /// numbers without a dtype; burn 0.14 to 0.16 read them with the feature
    /// `record-backward-compat`, and can save them again. Files of the other recorders (bincode,
    /// JSON, gzip) are not read: bincode has no names.
    ///
    /// Such files are not written. Since 0.20, burn reads burnpack, and an older record needs more
    /// than names: `layers.0` is an entry of a list or of a map.
    Burn,
    /// A burnpack file of burn, as its `ModuleRecord` writes it since 0.22, and burn-store's
    /// `BurnpackStore` since 0.20 (`.bpk`). `burn::Writer` writes such files.
    ///
    /// Tensors have the names of burn's parameters and the dtypes of the table above, and are read
    /// in place. Two names of the same bytes are a tied weight. The metadata is kept, and the ids
    /// of parameters are the entry `safetensors_bridge.param_ids`. Numbers that are not tensors,
    /// such as the steps of an optimizer, are skipped and counted in
    /// [`TensorFile::notes`](crate::TensorFile::notes).
    Burnpack,
    /// A directory of PyTorch's distributed checkpoints, with `.metadata` and `.distcp` files, also
    /// of Megatron.
    Dcp,
    /// A directory of DeepSpeed.
    DeepSpeed,
    /// A directory with one file of PyTorch for each rank of a job, with its parts of tensors.
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
    /// Returns the format that a name claims by the text after its last dot, in upper or lower
    /// case. [`detect`](Format::detect) examines the file.
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

    /// Returns the format of a directory, by the names of the files in it: a trainer's, or
    /// [`Pytorch`](Self::Pytorch) for `pytorch_model.bin` or its index. `None` for every other
    /// directory, also for one of safetensors files.
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

/// Returns the text before the name of PyTorch's pickle in the name of an archive's member, which
/// every other member has too; `None` for another name.
pub(crate) fn root_of(member: &str) -> Option<&str> {
    member.strip_suffix("data.pkl").filter(|root| root.is_empty() || root.ends_with('/'))
}

/// Returns `true` if only `torch.export` writes an archive's member with this name.
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
