//! Standard output that ignores a closed pipe.

use std::io::{self, BufWriter, StdoutLock, Write};

/// Standard output, locked and buffered, that never fails because of a closed pipe.
pub(crate) fn stdout() -> BufWriter<Quiet<StdoutLock<'static>>> {
    BufWriter::new(Quiet { inner: io::stdout().lock(), closed: false })
}

/// A writer that discards everything once its pipe is closed.
///
/// So `inspect | head` ends without an error, and the exit code still tells the result.
pub(crate) struct Quiet<W> {
    inner: W,
    closed: bool,
}

impl<W> Quiet<W> {
    /// The outcome of a write or flush, or `instead` if the pipe is closed.
    fn settle<T>(&mut self, result: io::Result<T>, instead: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(instead)
            }
            // `write_all` retries on this kind, so it is passed on unchanged.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => Err(io::Error::new(error.kind(), format!("standard output: {error}"))),
            Ok(done) => Ok(done),
        }
    }
}

impl<W: Write> Write for Quiet<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.closed {
            return Ok(buf.len());
        }
        let result = self.inner.write(buf);
        self.settle(result, buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.closed {
            return Ok(());
        }
        let result = self.inner.flush();
        self.settle(result, ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails every write with one kind of error.
    struct Failing(io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_closed_pipe_takes_everything() {
        let mut out = Quiet { inner: Failing(io::ErrorKind::BrokenPipe), closed: false };
        assert_eq!(out.write(b"abc").unwrap(), 3);
        assert!(out.closed);
        out.write_all(b"def").unwrap();
        out.flush().unwrap();
    }

    #[test]
    fn every_other_failure_is_told() {
        let mut out = Quiet { inner: Failing(io::ErrorKind::StorageFull), closed: false };
        let error = out.write(b"abc").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().starts_with("standard output: "), "{error}");
        assert!(out.flush().is_err());
    }
}
