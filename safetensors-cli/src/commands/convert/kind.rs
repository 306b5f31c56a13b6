//! [`Kind`]: the kind of a file, by its name.

use std::ffi::OsStr;
use std::path::Path;

use crate::address;

/// What a path is, as input and as output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One safetensors file.
    Safetensors,
    /// An index of shards.
    Index,
    /// A directory, or a name of no known kind.
    Checkpoint,
    /// One array of NumPy.
    Npy,
    /// An archive of such arrays.
    Npz,
    /// Weights in a format that is read and not written. Holds the name of the format.
    Readable(&'static str),
    /// Weights in a format that is neither read nor written. Holds the name of the format.
    Foreign(&'static str),
}

/// Formats that are read, by extension. The content of a file decides which it is.
const READABLE: [(&str, &str); 5] = [
    ("bin", "PyTorch"),
    ("ckpt", "PyTorch"),
    ("gguf", "GGUF"),
    ("pt", "PyTorch"),
    ("pth", "PyTorch"),
];

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
    /// The kind of a path. A directory is a checkpoint whatever its name.
    pub(super) fn of(path: &Path) -> Self {
        if let Some(address) = address::of(path) {
            return Self::of_address(&address::shown(address));
        }
        let extension = path.extension().and_then(OsStr::to_str).map(str::to_lowercase);
        match extension.as_deref() {
            _ if path.is_dir() => Self::Checkpoint,
            Some("safetensors") => Self::Safetensors,
            Some("json") => Self::Index,
            Some("npy") => Self::Npy,
            Some("npz") => Self::Npz,
            Some(extension) => {
                let named = |formats: &[(&str, &'static str)]| {
                    let found = formats.iter().find(|(known, _)| *known == extension);
                    found.map(|(_, format)| *format)
                };
                match (named(&READABLE), named(&FOREIGN)) {
                    (Some(format), _) => Self::Readable(format),
                    (None, Some(format)) => Self::Foreign(format),
                    (None, None) => Self::Checkpoint,
                }
            }
            None => Self::Checkpoint,
        }
    }
}

impl Kind {
    /// The kind of an address. One that is no file of a known kind is a checkpoint: repositories
    /// and folders may be named like files of other formats.
    fn of_address(address: &str) -> Self {
        match address.rsplit_once('.').map(|(_, extension)| extension.to_lowercase()).as_deref() {
            Some("safetensors") => Self::Safetensors,
            Some("json") => Self::Index,
            Some("npy") => Self::Npy,
            Some("npz") => Self::Npz,
            _ => Self::Checkpoint,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_says_the_kind_unless_it_is_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("v1.bin")).unwrap();
        let kind = |name: &str| Kind::of(&dir.path().join(name));
        assert_eq!(kind("a.SafeTensors"), Kind::Safetensors);
        assert_eq!(kind("model.safetensors.index.json"), Kind::Index);
        assert_eq!((kind("a.npy"), kind("a.NPZ")), (Kind::Npy, Kind::Npz));
        assert_eq!(
            (kind("a.gguf"), kind("v2.bin"), kind("a.onnx")),
            (Kind::Readable("GGUF"), Kind::Readable("PyTorch"), Kind::Foreign("ONNX"))
        );
        for checkpoint in ["", "v1.bin", "llama-3.1", "npy", ".npz"] {
            assert_eq!(kind(checkpoint), Kind::Checkpoint, "{checkpoint}");
        }
        assert_eq!(Kind::of(Path::new("-")), Kind::Checkpoint);
        let signed = "https://host/a/model.safetensors?signature=x.npz";
        assert_eq!(Kind::of(Path::new(signed)), Kind::Safetensors);
        assert_eq!(Kind::of(Path::new("hf://owner/yolo.pt")), Kind::Checkpoint);
    }
}
