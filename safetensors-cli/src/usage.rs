//! [`WrongUsage`]: what is wrong with the arguments and not with any file.

use std::fmt;

/// Arguments that do not go together, found out after they were read one by one. The command ends with the code of wrong usage.
#[derive(Debug)]
pub(crate) struct WrongUsage(String);

impl WrongUsage {
    /// An error with this message.
    pub(crate) fn error(message: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self(message.into()))
    }
}

impl fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUsage {}
