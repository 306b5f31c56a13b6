//! [`Kind`]: the kind of a file, by its name. [`Judge`]: the verdict on its content.

use std::ffi::OsStr;
use std::path::Path;
use std::{fmt, io};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use safetensors_core::Error;
use safetensors_formats::Format;

use crate::input::address;
use crate::terminal::report::warn;
use crate::terminal::text;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Safetensors,
    /// An index of shards.
    Index,
    /// A directory, or a name of no known kind.
    Checkpoint,
    /// Another format that can be read.
    Other(Format),
    /// The name of a format of weights that can be neither read nor written.
    Foreign(&'static str),
}

/// Other formats of models, by extension. A file of any other name may be a safetensors file.
const FOREIGN: [(&str, &str); 9] = [
    ("pickle", "pickle"),
    ("pkl", "pickle"),
    ("ggml", "GGML"),
    ("h5", "Keras"),
    ("hdf5", "Keras"),
    ("keras", "Keras"),
    ("msgpack", "Flax"),
    ("onnx", "ONNX"),
    ("tflite", "TensorFlow Lite"),
];

impl Kind {
    /// A directory with any name is a checkpoint.
    pub(crate) fn from_path(path: &Path) -> Self {
        match address::in_path(path) {
            // Repositories and folders may be named like files of other formats.
            Some(address) => match Self::of_name(address::shown(address).as_ref()) {
                Self::Other(Format::Pytorch) | Self::Foreign(_) => Self::Checkpoint,
                kind => kind,
            },
            None if path.is_dir() => Self::Checkpoint,
            None => Self::of_name(path),
        }
    }

    /// Ignores case.
    fn of_name(path: &Path) -> Self {
        if let Some(format) = Format::from_name(path) {
            return Self::Other(format);
        }
        let extension = path.extension().and_then(OsStr::to_str).map(str::to_lowercase);
        match extension.as_deref() {
            Some("safetensors") => Self::Safetensors,
            Some("json") => Self::Index,
            other => {
                let found = FOREIGN.iter().find(|(known, _)| Some(*known) == other);
                found.map_or(Self::Checkpoint, |(_, format)| Self::Foreign(format))
            }
        }
    }
}

/// Returns `true` for the name of a file of another format, read or not.
pub(crate) fn is_other(name: &str) -> bool {
    matches!(Kind::of_name(name.as_ref()), Kind::Other(_) | Kind::Foreign(_))
}

/// Returns the ending of a new name that looks like a file's, such as `model.st`, but has no known
/// [kind](Kind::from_path). Names may have dots, like `llama-3.1` and `model.fp8`.
pub(crate) fn unknown_ending(path: &Path) -> Option<String> {
    let address = address::in_path(path).map(address::shown);
    // The name of a bucket may have dots.
    let is_bucket = address.as_ref().is_some_and(|it| it.matches('/').count() < 3);
    let path = address.as_deref().map_or(path, Path::new);
    let is_directory = is_bucket
        || path.is_dir()
        || path.as_os_str().to_string_lossy().ends_with(std::path::is_separator);
    let ending = path.extension()?.to_str().filter(|_| !is_directory)?;
    // A blank at the end is seldom meant: it comes from a script or a file of Windows.
    let letters = ending.trim();
    let is_like_a_file = !letters.is_empty() && letters.bytes().all(|it| it.is_ascii_alphabetic());
    (is_like_a_file && Kind::from_path(path) == Kind::Checkpoint).then(|| ending.to_owned())
}

/// `None` is safetensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected(Option<Format>);

const EXPECTED: [(&str, Option<Format>); 7] = [
    ("safetensors", None),
    ("pytorch", Some(Format::Pytorch)),
    ("gguf", Some(Format::Gguf)),
    ("burn", Some(Format::Burn)),
    ("burnpack", Some(Format::Burnpack)),
    ("npy", Some(Format::Npy)),
    ("npz", Some(Format::Npz)),
];

impl Expected {
    pub(crate) fn parser() -> impl TypedValueParser<Value = Self> {
        PossibleValuesParser::new(EXPECTED.map(|(name, _)| name)).try_map(|text| {
            let found = EXPECTED.iter().find(|(name, _)| *name == text);
            found.map(|(_, format)| Self(*format)).ok_or("there is no such format")
        })
    }

    /// Assumes safetensors for a name of no known kind.
    fn by_name(path: &Path) -> Self {
        match Kind::from_path(path) {
            Kind::Other(format) => Self::new(format),
            _ => Self(None),
        }
    }

    fn new(format: Format) -> Self {
        Self(Some(format).filter(|_| EXPECTED.iter().any(|(_, it)| *it == Some(format))))
    }

    /// The value of `--format`.
    fn option(self) -> &'static str {
        EXPECTED.iter().find(|(_, format)| *format == self.0).map_or("", |(name, _)| name)
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("a safetensors file"),
            Some(format) => write!(f, "a file of {format}"),
        }
    }
}

/// How to treat a file of another format.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Judge {
    /// Reads it, and warns if its name has another format.
    #[default]
    Any,
    /// Reads it only if its name has that format.
    ByName,
    /// Reads it only if it has this format.
    As(Expected),
}

impl Judge {
    /// Warns of a safetensors file with the name of another format, which some programs trust.
    pub(crate) fn misnamed(self, path: &Path) -> Option<String> {
        let format = match (self, Kind::from_path(path)) {
            (Self::As(_), _) => return None,
            (_, Kind::Other(format)) => format.to_string(),
            (_, Kind::Foreign(format)) => format.to_owned(),
            _ => return None,
        };
        let shown = text::path(path);
        Some(format!("{shown}: a safetensors file under the name of a file of {format}"))
    }

    /// `found` is `None` for a safetensors file.
    pub(crate) fn judge(self, path: &Path, found: Option<Format>) -> anyhow::Result<()> {
        // The name of a directory carries no information, and the names of the files in it are
        // fixed.
        if let Some(format) = found.filter(|format| format.is_of_directories()) {
            return match self {
                Self::As(expected) => {
                    let found = format!("expected {expected}, found a directory of {format}");
                    Err(wrong_format(path, found))
                }
                _ => Ok(()),
            };
        }
        let found = found.map_or(Expected(None), Expected::new);
        let named = Expected::by_name(path);
        let expected = if let Self::As(expected) = self { expected } else { named };
        if expected == found {
            return Ok(());
        }
        let shown = text::path(path);
        match self {
            Self::Any if matches!(Kind::from_path(path), Kind::Safetensors | Kind::Other(_)) => {
                warn(format!("{shown}: {found} under the name of {named}"));
            }
            // Other names carry no information, such as the name of a file in the Hub's cache.
            Self::Any => {}
            // It is the format of this command, with any name.
            Self::ByName if found == Expected(None) => {}
            Self::ByName | Self::As(_) => {
                let option = found.option();
                let message = format!(
                    "expected {expected}, found {found}; --format {option} checks it as one"
                );
                return Err(wrong_format(path, message));
            }
        }
        Ok(())
    }
}

/// `verify --json` names this kind of error.
fn wrong_format(path: &Path, message: String) -> anyhow::Error {
    Error::from(io::Error::new(io::ErrorKind::InvalidData, message)).in_path(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_with_tensors_goes_along_with_another_model() {
        for (extension, _) in FOREIGN {
            let name = format!("x.{extension}");
            assert!(!safetensors_core::checkpoint::OtherFiles::belongs(&name), "{name}");
        }
    }

    #[test]
    fn the_name_determines_the_kind_except_of_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("v1.bin")).unwrap();
        let kind = |name: &str| Kind::from_path(&dir.path().join(name));
        assert_eq!(kind("a.SafeTensors"), Kind::Safetensors);
        assert_eq!(kind("model.safetensors.index.json"), Kind::Index);
        let other = [kind("a.npy"), kind("a.NPZ"), kind("a.gguf"), kind("v2.bin")];
        assert_eq!(
            other,
            [Format::Npy, Format::Npz, Format::Gguf, Format::Pytorch].map(Kind::Other)
        );
        assert_eq!(kind("a.onnx"), Kind::Foreign("ONNX"));
        for checkpoint in ["", "v1.bin", "llama-3.1", "npy", ".npz"] {
            assert_eq!(kind(checkpoint), Kind::Checkpoint, "{checkpoint}");
        }
        assert_eq!(Kind::from_path(Path::new("-")), Kind::Checkpoint);
        let signed = "https://host/a/model.safetensors?signature=x.npz";
        assert_eq!(Kind::from_path(Path::new(signed)), Kind::Safetensors);
        assert_eq!(Kind::from_path(Path::new("s3://bucket/a.npz")), Kind::Other(Format::Npz));
        assert_eq!(Kind::from_path(Path::new("hf://owner/yolo.pt")), Kind::Checkpoint);
    }
}
