//! [`Format`]: the formats that this crate reads, and the names that their files have.

use std::fmt;
use std::path::Path;

/// The names of files of each format, by what follows the last dot, in lower case.
const EXTENSIONS: [(&str, Format); 8] = [
    ("bin", Format::Pytorch),
    ("ckpt", Format::Pytorch),
    ("gguf", Format::Gguf),
    ("jit", Format::Pytorch),
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
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Npy => "NumPy .npy",
            Self::Npz => "NumPy .npz",
            Self::Pytorch => "PyTorch",
            Self::Gguf => "GGUF",
        })
    }
}

impl Format {
    /// The format that a name claims by what follows its last dot, in upper or lower case.
    /// [`detect`](Format::detect) tells what a file is.
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
}
