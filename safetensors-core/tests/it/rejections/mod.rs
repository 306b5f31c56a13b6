//! Tests for every rule of the format: the rule, bytes that break it, and the error.
//!
//! Each case is refused in memory and from a file, with the same [`ErrorKind`] and the same
//! numbers.

mod fields;
mod frame;
mod layout;
mod names;
mod text;

use crate::support::*;

pub(crate) use crate::support::file;

/// Asserts that a file with this header and its bytes of data is refused with exactly `kind`. The
/// error names `tensor`, and its message contains all of `says`.
#[track_caller]
pub(crate) fn rejects(
    header: impl AsRef<[u8]>,
    data: usize,
    tensor: Option<&str>,
    kind: ErrorKind,
    says: &[&str],
) {
    let file = file(header, data);
    let rule = String::from_utf8_lossy(&file[8..file.len().min(200)]);
    rejects_file(&rule, &file, tensor, kind, says);
}

#[track_caller]
pub(crate) fn rejects_file(
    rule: &str,
    file: &[u8],
    tensor: Option<&str>,
    kind: ErrorKind,
    says: &[&str],
) {
    let error = SafeTensors::parse(file).err();
    let message = message(rule, error.as_ref(), tensor, &kind, says);
    assert_eq!(error.unwrap().file(), None, "{rule}");

    let directory = tempdir().unwrap();
    let path = write(directory.path(), "hostile.safetensors", file);
    let error = Checkpoint::open(&path).err();
    let in_file = self::message(rule, error.as_ref(), tensor, &kind, says);
    assert_eq!(error.unwrap().file(), path.to_str(), "{rule}");
    assert_eq!(in_file, format!("{}: {message}", path.display()), "{rule}");
}

/// Asserts that an error is the expected one, and returns its message.
#[track_caller]
fn message(
    rule: &str,
    error: Option<&Error>,
    tensor: Option<&str>,
    kind: &ErrorKind,
    says: &[&str],
) -> String {
    assert!(error.is_some(), "{rule}: accepted");
    let error = error.unwrap();
    // Kinds can hold I/O errors, which have no `PartialEq`. The `Debug` form shows every number.
    assert_eq!(format!("{:?}", error.kind()), format!("{kind:?}"), "{rule}");
    assert_eq!(error.tensor(), tensor, "{rule}");
    let message = error.to_string();
    if let Some(tensor) = tensor {
        assert!(
            message.contains(&format!("tensor {tensor:?}: ")),
            "{rule}: no tensor in {message}"
        );
    }
    for part in says {
        assert!(message.contains(part), "{rule}: {part:?} is not in {message:?}");
    }
    message
}
