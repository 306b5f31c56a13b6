//! [`Replacement`]: an output file that takes its place complete, or not at all.

use std::fs;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::NamedTempFile;

/// A file that is being written beside its destination. Dropped before it is [done](Replacement::finish), it leaves nothing.
///
/// A killed command leaves the temporary file, whose name ends in `.safetensors.tmp`, and the destination as it was.
#[derive(Debug)]
pub(crate) struct Replacement {
    file: BufWriter<NamedTempFile>,
    destination: PathBuf,
}

impl Replacement {
    /// Begins a file that will have this path. A link is followed: what it leads to is replaced.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let begin = || {
            let destination = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
            if destination.is_dir() {
                return Err(io::Error::from(io::ErrorKind::IsADirectory));
            }
            let folder = destination.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let mut builder = tempfile::Builder::new();
            builder.prefix(".").suffix(".safetensors.tmp");
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt;
                // As for any new file: what the umask leaves.
                builder.permissions(fs::Permissions::from_mode(0o666));
            }
            let file = BufWriter::new(builder.tempfile_in(folder)?);
            Ok(Self { file, destination })
        };
        begin().with_context(|| path.display().to_string())
    }

    /// Gives the file its name, once all of it has reached the disk.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let Self { file, destination } = self;
        let persist = || -> io::Result<()> {
            let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.as_file().sync_all()?;
            file.persist(&destination)?;
            Ok(())
        };
        persist().with_context(|| destination.display().to_string())
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for Replacement {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}
