//! [`Agreed`]: an error that all ranks know of.

use std::fmt;

/// The most bytes of a message that ranks send to each other. Core's messages are shorter.
const LONGEST: usize = 4096;

/// The error of a rank, as all ranks have it. Each of them ends, and none waits for another.
#[derive(Debug)]
pub(crate) struct Agreed {
    /// The first rank that has failed.
    pub(crate) rank: usize,
    /// How many have failed.
    pub(crate) failed: usize,
    /// The message of the first one.
    pub(crate) message: String,
}

impl fmt::Display for Agreed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} has failed", self.rank)?;
        match self.failed {
            1 => {}
            failed => write!(f, ", as the first of {failed}")?,
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for Agreed {}

/// Returns the bytes of an error's message, shortened.
pub(crate) fn message(error: &anyhow::Error) -> Vec<u8> {
    let mut message = format!("{error:#}");
    message.truncate(message.floor_char_boundary(LONGEST));
    message.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_bounded_and_remain_text() {
        let long = "ä".repeat(LONGEST) + "!";
        let bytes = message(&anyhow::anyhow!(long));
        assert_eq!(bytes.len(), LONGEST);
        assert!(std::str::from_utf8(&bytes).is_ok());
        let bytes = message(&anyhow::anyhow!("a"[..].to_owned() + &"ä".repeat(LONGEST)));
        assert_eq!(bytes.len(), LONGEST - 1);
        let error = anyhow::anyhow!("no such file").context("opening");
        assert_eq!(message(&error), b"opening: no such file");
    }
}
