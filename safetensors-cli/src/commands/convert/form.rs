//! [`Form`]: the kind of output, by its name.

use std::fmt::Display;
use std::path::Path;

use safetensors_formats::Format;

use crate::input::address;
use crate::input::kind::{Kind, unknown_ending};
use crate::terminal::text;

/// The form of an output that is not GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    File,
    /// One safetensors file, or several with an index.
    Directory,
    Npy,
    Npz,
    Burnpack,
}

/// Returns `None` for GGUF. Names of no known kind are directories.
pub(super) fn form(path: &Path) -> Result<Option<Form>, String> {
    let form = match Kind::from_path(path) {
        Kind::Safetensors => return Ok(Some(Form::File)),
        Kind::Checkpoint => match unknown_ending(path) {
            Some(ending) => return Err(unknown(path, &ending)),
            None => return Ok(Some(Form::Directory)),
        },
        Kind::Other(Format::Npy) => Some(Form::Npy),
        Kind::Other(Format::Npz) => Some(Form::Npz),
        Kind::Other(Format::Burnpack) => Some(Form::Burnpack),
        Kind::Other(Format::Gguf) => None,
        Kind::Other(format) => return Err(unwritable(format)),
        Kind::Foreign(format) => return Err(unwritable(format)),
        Kind::Index => {
            let instead = "name the directory for all of them";
            return Err(format!("an index is written with its files; {instead}"));
        }
    };
    match address::in_path(path) {
        Some(_) => Err("burnpack, GGUF and NumPy's files are written to the disk only".into()),
        None => Ok(form),
    }
}

/// Describes a name that ends like a file's, such as `model.st`.
fn unknown(path: &Path, ending: &str) -> String {
    let address = address::in_path(path).map(address::shown);
    let path = address.as_deref().map_or(path, Path::new);
    let (file, directory) = (text::path(&path.with_extension("safetensors")), text::path(path));
    format!(
        "no file ends in '.{}' that can be written; {file} is a file, and {directory}/ a directory",
        text::printable(ending)
    )
}

fn unwritable(format: impl Display) -> String {
    format!(
        "{format} files cannot be written; an output ends in .safetensors, .gguf, .bpk, .npz or \
         .npy, or is a directory: write that, and convert it with a tool that knows {format}"
    )
}
