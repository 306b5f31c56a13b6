//! Turns the content of a pipe into a file that can be read at any position.

use std::fs::File;
use std::io::{self, Read, Seek, Write};

use anyhow::Context;
use safetensors_core::Limits;
use safetensors_core::header::Header;

use crate::terminal::text;

const BUFFER: usize = 1 << 20;

/// Returns standard input as a file, with a copy of the content of a pipe.
// A redirected file is read through its open descriptor: this process may lack the permission to
// open it again.
pub(crate) fn standard_input() -> anyhow::Result<File> {
    let redirected = duplicate()?;
    if redirected.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(redirected);
    }
    copy(redirected)
}

/// Copies to a file without a name, which disappears when it is closed, even if the command is
/// killed.
// The header is read first, to refuse a file of another format or a malformed header before
// anything is copied. Data beyond the header's tensors is refused, too: a pipe may never end.
pub(crate) fn copy(mut source: impl Read) -> anyhow::Result<File> {
    let mut start = Copied { source: &mut source, bytes: Vec::new() };
    let data_len = Header::read(&mut start, &Limits::default())?.data_len();
    let start = start.bytes;
    let directory = || text::path(&std::env::temp_dir());
    let mut file = tempfile::tempfile().with_context(|| {
        format!(
            "cannot create a temporary file in {}; TMPDIR can name another directory",
            directory()
        )
    })?;
    copy_to(start.chain((&mut source).take(data_len)), &mut file, directory)?;
    let mut more = Vec::new();
    if source.take(1).read_to_end(&mut more)? > 0 {
        anyhow::bail!(
            "trailing data: the tensors have {data_len} bytes, but more follow the header"
        );
    }
    file.rewind()?;
    Ok(file)
}

/// Keeps a copy of all that is read.
struct Copied<R> {
    source: R,
    bytes: Vec<u8>,
}

impl<R: Read> Read for Copied<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buf)?;
        self.bytes.extend_from_slice(&buf[..read]);
        Ok(read)
    }
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

    fn file(data_len: u32) -> Vec<u8> {
        let header = format!(
            r#"{{"a":{{"dtype":"U8","shape":[{data_len}],"data_offsets":[0,{data_len}]}}}}"#
        );
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend((0..data_len).map(|i| (i % 251) as u8));
        bytes
    }

    #[test]
    fn all_is_copied_and_the_copy_has_no_name() {
        for len in [0, 1, 3_000_000] {
            let bytes = file(len);
            let mut copied = Vec::new();
            copy(&*bytes).unwrap().read_to_end(&mut copied).unwrap();
            assert!(copied == bytes);
        }
    }

    /// A source that counts its bytes, and never ends.
    struct Endless<'a> {
        start: &'a [u8],
        read: usize,
    }

    impl Read for Endless<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let read = if self.start.is_empty() {
                io::repeat(b'x').read(buf)?
            } else {
                self.start.read(buf)?
            };
            self.read += read;
            Ok(read)
        }
    }

    #[test]
    fn an_endless_input_is_refused_as_soon_as_possible() {
        let too_long = file(2_000_000);
        let unknown_dtype = String::from_utf8_lossy(&file(0)).replace("U8", "U9").into_bytes();
        for (start, says, most) in [
            (&b""[..], "not a safetensors file: a text file", 1_000),
            (b"PK\x03\x04\0\0\x08\x08", "not a safetensors file: a ZIP archive", 1_000),
            (&unknown_dtype, "unknown dtype \"U9\"", 1_000),
            (&too_long, "the tensors have 2000000 bytes, but more follow", too_long.len() + 10),
        ] {
            let mut source = Endless { start, read: 0 };
            let error = format!("{:#}", copy(&mut source).unwrap_err());
            assert!(error.contains(says), "{error}");
            assert!(source.read <= most, "{says}: {} bytes", source.read);
        }
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
