//! [`Report`]: the signed files, and their differences from the present ones.

use std::fmt;

use safetensors_core::framework::{NameList, Quoted};

/// The signed files, or their differences from the present ones.
///
/// Names are as in the signature: relative to the model, with `/` between their parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Who signed: `key` and the SHA-256 of the public key in PEM, or `certificate` and the subject
    /// of the leaf. A root vouches for every certificate below it, so compare the subject, too.
    pub signer: String,
    /// The number of signed files.
    pub files: usize,
    /// The bytes of all signed files that were hashed.
    pub bytes: u64,
    /// Signed files with other content.
    pub changed: Vec<String>,
    /// Signed files that are not there, under any name.
    pub missing: Vec<String>,
    /// Files that are not signed, where the signature does not allow them.
    pub unsigned: Vec<String>,
    /// Signed files that are there under another name: the signed name and the present one.
    pub renamed: Vec<(String, String)>,
    /// Paths that the signature itself omits, other than its own and Git's, each with the number of
    /// unsigned files that a [`Verifier`](crate::Verifier) has found there.
    pub left_out: Vec<(String, usize)>,
    /// Symbolic links that lead out of the model. Their targets are signed, but a copy of the
    /// directory may lack them.
    pub links_outside: Vec<String>,
}

impl Report {
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
