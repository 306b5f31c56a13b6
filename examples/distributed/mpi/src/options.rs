//! [`Options`]: the arguments of the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

pub(crate) const USAGE: &str = "\
usage: mpi-llama --write [--seed N] DIR
       mpirun -n RANKS mpi-llama [options] DIR

options:
  --message-len BYTES      the most bytes of one message (default: 64 MiB, at most 1 GiB)
  --fail-reading RANK      this rank's files fail while replicated tensors are read: an error on
                           all ranks
  --fail-computing RANK    this rank fails while the others wait for it: MPI ends all ranks";

/// The default of `--message-len`.
const MESSAGE_LEN: usize = 64 << 20;

/// MPI counts the elements of a message by `int`.
const MOST: usize = 1 << 30;

/// The arguments of the command line.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    /// The directory of the checkpoint, which is read or written.
    pub(crate) directory: PathBuf,
    /// Writes a checkpoint, and does nothing else.
    pub(crate) write: bool,
    /// The seed of the weights.
    pub(crate) seed: u64,
    /// The most bytes of a message.
    pub(crate) message_len: usize,
    /// The rank with files that fail.
    pub(crate) fail_reading: Option<usize>,
    /// The rank that fails while the others wait for it.
    pub(crate) fail_computing: Option<usize>,
}

impl Options {
    /// Parses the arguments after the name of the program.
    pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self> {
        let mut options = Self {
            directory: PathBuf::new(),
            write: false,
            seed: 1,
            message_len: MESSAGE_LEN,
            fail_reading: None,
            fail_computing: None,
        };
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("--write") => options.write = true,
                Some("--seed") => options.seed = number("--seed", args.next())?,
                Some("--message-len") => {
                    options.message_len = number("--message-len", args.next())?;
                    let found = options.message_len;
                    ensure!(
                        (1..=MOST).contains(&found),
                        "--message-len: expected 1 to {MOST} bytes, found {found}"
                    );
                }
                Some("--fail-reading") => {
                    options.fail_reading = Some(number("--fail-reading", args.next())?);
                }
                Some("--fail-computing") => {
                    options.fail_computing = Some(number("--fail-computing", args.next())?);
                }
                Some(flag) if flag.starts_with('-') => bail!("{flag}: no such option"),
                _ if options.directory.as_os_str().is_empty() => options.directory = arg.into(),
                _ => bail!("{}: a second directory", arg.display()),
            }
        }
        ensure!(
            !options.directory.as_os_str().is_empty(),
            "the directory of the checkpoint is missing"
        );
        Ok(options)
    }
}

fn number<T: FromStr>(option: &str, value: Option<OsString>) -> Result<T> {
    let value = value.with_context(|| format!("{option}: a number is missing"))?;
    let number = value.to_str().and_then(|value| value.parse().ok());
    number.with_context(|| format!("{option}: expected a number, found {}", value.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<Options> {
        Options::parse(args.split_whitespace().map(OsString::from))
    }

    #[test]
    fn options_and_their_errors() {
        let options = parse("--message-len 1000 model --fail-reading 3").unwrap();
        assert_eq!((options.message_len, options.fail_reading), (1000, Some(3)));
        assert_eq!((options.directory, options.write), ("model".into(), false));
        for (args, expected) in [
            ("", "the directory of the checkpoint is missing"),
            ("--message-len 0 model", "--message-len: expected 1 to 1073741824 bytes, found 0"),
            ("--seed", "--seed: a number is missing"),
            ("--seed -1 model", "--seed: expected a number, found -1"),
            ("--sed 1 model", "--sed: no such option"),
            ("model models", "models: a second directory"),
        ] {
            assert_eq!(parse(args).unwrap_err().to_string(), expected);
        }
    }
}
