//! [`Fault`]: one reason for which a file or a checkpoint is not sound.

use std::io;

use safetensors_core::{Error, ErrorKind};
use safetensors_formats::ErrorKind as FormatKind;
use serde::Serialize;

/// One reason for which a file or a checkpoint is not sound.
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

    /// Adds the file and the tensor.
    pub(super) fn of_tensor(self, file: Option<String>, tensor: &str) -> Self {
        Self { file, tensor: Some(tensor.to_owned()), ..self }
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

/// Returns the words of a schema: a program decides by them, so each stays.
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
