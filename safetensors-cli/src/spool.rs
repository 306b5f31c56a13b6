//! Turns the content of a pipe into a file that can be read at any position.

use std::fs::File;
use std::io::{self, Read, Seek, Write};

use anyhow::Context;

use crate::text;

/// The most bytes that are read at once.
const BUFFER: usize = 1 << 20;

/// Standard input as a file.
///
/// A redirected file is read in place, through its open descriptor: this process may lack the
/// permission to open the file again. The content of a pipe is copied.
pub(crate) fn standard_input() -> anyhow::Result<File> {
    let redirected = duplicate()?;
    if redirected.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(redirected);
    }
    copy(redirected)
}

/// Copies everything to a temporary file without a name. The file disappears when it is closed,
/// even if the command is killed.
pub(crate) fn copy(source: impl Read) -> anyhow::Result<File> {
    let directory = || text::path(&std::env::temp_dir());
    let mut file = tempfile::tempfile().with_context(|| {
        format!(
            "cannot create a temporary file in {}; TMPDIR can name another directory",
            directory()
        )
    })?;
    copy_to(source, &mut file, directory)?;
    file.rewind()?;
    Ok(file)
}

fn copy_to(
    mut source: impl Read,
    file: &mut impl Write,
    directory: impl Fn() -> String,
) -> anyhow::Result<()> {
    let (mut buffer, mut copied) = (vec![0; BUFFER], 0_u64);
    loop {
        let read = match source.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        file.write_all(&buffer[..read]).with_context(|| {
            let copied = text::size(copied);
            format!(
                "cannot be copied to a temporary file in {}, after {copied}; \
                 TMPDIR can name a directory with more room",
                directory()
            )
        })?;
        copied += read as u64;
    }
}

#[cfg(unix)]
fn duplicate() -> io::Result<File> {
    use std::os::fd::AsFd;
    io::stdin().as_fd().try_clone_to_owned().map(File::from)
}

#[cfg(windows)]
fn duplicate() -> io::Result<File> {
    use std::os::windows::io::AsHandle;
    io::stdin().as_handle().try_clone_to_owned().map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_copied_and_the_copy_has_no_name() {
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        let mut copied = Vec::new();
        copy(&*bytes).unwrap().read_to_end(&mut copied).unwrap();
        assert!(copied == bytes);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_named_with_how_far_it_went() {
        let mut full = io::BufWriter::with_capacity(3 << 19, File::create("/dev/full").unwrap());
        let error = copy_to(&[0; 3 << 20][..], &mut full, || "/some/where".into()).unwrap_err();
        let expected = "cannot be copied to a temporary file in /some/where, after 1.0 MB; \
            TMPDIR can name a directory with more room: No space";
        assert!(format!("{error:#}").starts_with(expected), "{error:#}");
    }
}
