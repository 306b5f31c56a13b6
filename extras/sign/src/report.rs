//! [`Report`]: what a signature is about, and where the files differ from it.

use std::fmt;

use safetensors_core::framework::{NameList, Quoted};

/// What was signed, or what was found to differ from it.
///
/// Names are those in the signature: relative to the model, with `/` between their parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub(crate) signer: String,
    pub(crate) files: usize,
    pub(crate) bytes: u64,
    pub(crate) changed: Vec<String>,
    pub(crate) missing: Vec<String>,
    pub(crate) unsigned: Vec<String>,
    pub(crate) renamed: Vec<(String, String)>,
    pub(crate) left_out: Vec<(String, usize)>,
    pub(crate) links_outside: Vec<String>,
}

impl Report {
    /// Who signed: `key` and the SHA-256 of the public key in PEM, or `certificate` and the subject
    /// of the leaf. A root vouches for every certificate below it, so compare the subject, too.
    pub fn signer(&self) -> &str {
        &self.signer
    }

    /// The number of signed files.
    pub fn files(&self) -> usize {
        self.files
    }

    /// The bytes of all signed files that were hashed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Signed files with other content.
    pub fn changed(&self) -> &[String] {
        &self.changed
    }

    /// Signed files that are not there, under any name.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Files that are not signed, where the signature does not leave them out.
    pub fn unsigned(&self) -> &[String] {
        &self.unsigned
    }

    /// Signed files that are there under another name: the signed name and the present one.
    pub fn renamed(&self) -> &[(String, String)] {
        &self.renamed
    }

    /// Paths that the signature itself leaves out, besides its own and those of Git, each with the
    /// number of unsigned files that a [`Verifier`](crate::Verifier) has found there.
    pub fn left_out(&self) -> &[(String, usize)] {
        &self.left_out
    }

    /// Symbolic links that lead out of the model. What they lead to is signed, but a copy of the
    /// directory may not have it.
    pub fn links_outside(&self) -> &[String] {
        &self.links_outside
    }

    /// Whether every signed file is there, unchanged.
    pub(crate) fn has_all(&self) -> bool {
        self.changed.is_empty() && self.missing.is_empty() && self.renamed.is_empty()
    }
}

/// The differences in one line.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the files are not those that were signed")?;
        for (what, names) in
            [("changed", &self.changed), ("missing", &self.missing), ("unsigned", &self.unsigned)]
        {
            if !names.is_empty() {
                write!(f, "; {what}: {}", NameList(names))?;
            }
        }
        if let [(from, to), more @ ..] = &self.renamed[..] {
            write!(f, "; renamed: {} to {}", Quoted(from), Quoted(to))?;
            if !more.is_empty() {
                write!(f, " and {} more", more.len())?;
            }
        }
        Ok(())
    }
}
