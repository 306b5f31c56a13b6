//! [`Report`]: the signed files, and their differences from the present ones.

use std::fmt;

use safetensors_core::framework::{NameList, Quoted};

/// The signed files, or their differences from the present ones.
///
/// Names are relative to the model, with `/` between their parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The signer: `key` and the SHA-256 of the public key in PEM, or `certificate` and the subject
    /// of the leaf. Compare the subject: a root vouches for every certificate below it.
    pub signer: String,
    /// The number of signed files.
    pub files: usize,
    /// The bytes of all hashed signed files.
    pub bytes: u64,
    /// Signed files with different content.
    pub changed: Vec<String>,
    /// Signed files that are absent under any name.
    pub missing: Vec<String>,
    /// Unsigned files where the signature allows none.
    pub unsigned: Vec<String>,
    /// Signed files under another name: the signed and the present one.
    pub renamed: Vec<(String, String)>,
    /// Paths that the signature omits, except its own and Git's, with the number of unsigned files
    /// that a [`Verifier`](crate::Verifier) found there.
    pub left_out: Vec<(String, usize)>,
    /// Symbolic links out of the model. Their targets are signed, but a copy may lack them.
    pub links_outside: Vec<String>,
}

impl Report {
    pub(crate) fn has_all(&self) -> bool {
        self.changed.is_empty() && self.missing.is_empty() && self.renamed.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the files differ from the signed ones")?;
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
