//! [`Fault`]: one reason why a file or a checkpoint is not sound.

use std::io;

use safetensors_core::{Error, ErrorKind};
use safetensors_formats::ErrorKind as FormatKind;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(super) struct Fault {
    kind: &'static str,
    pub(super) file: Option<String>,
    tensor: Option<String>,
    pub(super) error: String,
}

impl Fault {
    /// A fault that only this command finds.
    pub(super) fn new(kind: &'static str, error: String) -> Self {
        Self { kind, file: None, tensor: None, error }
    }

    pub(super) fn of_tensor(self, file: Option<String>, tensor: &str) -> Self {
        Self { file, tensor: Some(tensor.to_owned()), ..self }
    }

    /// Whether the other says as much about the file, and maybe about a tensor.
    pub(super) fn repeats(&self, other: &Self) -> bool {
        let has_no_more = self.tensor.is_none() || self.tensor == other.tensor;
        self.kind == other.kind && self.file == other.file && has_no_more
    }
}

impl From<anyhow::Error> for Fault {
    fn from(error: anyhow::Error) -> Self {
        let text = format!("{error:#}");
        if let Some(error) = error.downcast_ref::<Error>() {
            let file = error.file().map(str::to_owned);
            let tensor = error.tensor().map(str::to_owned);
            return Self { kind: kind(error), file, tensor, error: text };
        }
        Self::new(error.downcast_ref().map_or("malformed", kind_of_io), text)
    }
}

/// The words of a schema: programs depend on them.
fn kind(error: &Error) -> &'static str {
    if let Some(kind) = error.other::<FormatKind>() {
        return match kind {
            FormatKind::UnknownFormat { .. }
            | FormatKind::NotEnabled { .. }
            | FormatKind::TwoFormats { .. }
            | FormatKind::AlsoPickle { .. }
            | FormatKind::OtherFormat { .. } => "format",
            _ => "malformed",
        };
    }
    match error.kind() {
        ErrorKind::TrailingData { .. } => "trailing",
        _ if error.is_other_format() => "format",
        ErrorKind::TooShort { .. }
        | ErrorKind::HeaderPastEnd { .. }
        | ErrorKind::MissingData { .. } => "truncated",
        ErrorKind::Io(error) => kind_of_io(error),
        ErrorKind::NoCheckpoint { .. } => "missing",
        ErrorKind::NotAFile { .. } => "unreadable",
        ErrorKind::BadIndex { .. } | ErrorKind::NotInShard { .. } => "index",
        ErrorKind::DigestMismatch { .. }
        | ErrorKind::BadDigestRecord { .. }
        | ErrorKind::BadDigest { .. }
        | ErrorKind::BadModelSpec { .. }
        | ErrorKind::DigestWithoutTensor => "digest",
        ErrorKind::Ranks { .. } | ErrorKind::Quantization { .. } | ErrorKind::Other(_) => {
            "malformed"
        }
        // Every other one is a rule about the header.
        _ => "header",
    }
}

fn kind_of_io(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "missing",
        io::ErrorKind::PermissionDenied => "permission",
        io::ErrorKind::InvalidData => "format",
        _ => "unreadable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_repeats_another_of_its_kind_and_of_the_same_tensor_or_file() {
        let fault = |kind, file: &str, tensor: Option<&str>| Fault {
            file: Some(file.to_owned()),
            tensor: tensor.map(str::to_owned),
            ..Fault::new(kind, "an error".to_owned())
        };
        let known = fault("truncated", "a", Some("w"));
        for (kind, file, tensor, repeats) in [
            ("truncated", "a", Some("w"), true),
            ("truncated", "a", None, true),
            ("truncated", "a", Some("v"), false),
            ("truncated", "b", Some("w"), false),
            ("digest", "a", Some("w"), false),
            ("not_finite", "a", None, false),
        ] {
            let fault = fault(kind, file, tensor);
            assert_eq!(fault.repeats(&known), repeats, "{fault:?}");
        }
    }
}
