//! Standard output that ignores a closed pipe, with a pager for long output.

use std::io::{self, BufWriter, IsTerminal, Write};

use crate::terminal::pager::{self, Pager};
use crate::terminal::report::{self, wrong_usage};
use crate::terminal::screen::Screen;

/// Standard output, locked and buffered, that never fails because of a closed pipe. With `paged`,
/// output for a terminal waits until it is longer than the screen, and then goes to a pager.
/// Messages for the terminal follow the output. [`finish`] returns errors.
pub(crate) fn stdout(paged: bool) -> Out {
    let screen = if paged { Screen::of_stdout().zip(pager::command()) } else { None };
    let waiting = screen.map(|(screen, pager)| {
        if io::stderr().is_terminal() {
            report::hold();
        }
        Waiting { screen, pager, text: Vec::new() }
    });
    let sink = Quiet { inner: Box::new(io::stdout().lock()) as Box<dyn Write>, closed: false };
    BufWriter::new(Output { waiting, sink })
}

/// Refuses to write bytes to a terminal, where they could change its settings.
pub(crate) fn refuse_terminal() -> anyhow::Result<()> {
    if io::stdout().is_terminal() {
        Err(wrong_usage(
            "the output is binary, and standard output is a terminal; name a file with -o FILE, \
             or redirect it: -o - > FILE",
        ))
    } else {
        Ok(())
    }
}

/// Waits until the user has left the pager.
pub(crate) fn finish(mut out: Out) -> io::Result<()> {
    out.flush()?;
    out.get_mut().release()?;
    out.flush()
}

pub(crate) type Out = BufWriter<Output>;

/// Standard output, or the pager in its place.
pub(crate) struct Output {
    /// The text so far, while it may still fit the screen.
    waiting: Option<Waiting>,
    sink: Quiet<Box<dyn Write>>,
}

struct Waiting {
    screen: Screen,
    /// The words of its command.
    pager: Vec<String>,
    text: Vec<u8>,
}

impl Output {
    fn release(&mut self) -> io::Result<()> {
        match self.waiting.take() {
            Some(waiting) => self.sink.write_all(&waiting.text),
            None => Ok(()),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(waiting) = &mut self.waiting else { return self.sink.write(bytes) };
        waiting.text.extend_from_slice(bytes);
        let text = String::from_utf8_lossy(&waiting.text);
        // Colours take no room.
        if !waiting.screen.holds(&anstream::adapter::strip_str(&text).to_string()) {
            if let Some(pager) = Pager::start(&waiting.pager) {
                self.sink.inner = Box::new(pager);
            }
            self.release()?;
        }
        Ok(bytes.len())
    }

    /// Does nothing while the output may still fit the screen.
    fn flush(&mut self) -> io::Result<()> {
        if self.waiting.is_some() { Ok(()) } else { self.sink.flush() }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // `finish` has reported errors. Without it, the command has failed anyway.
        let _ = self.release().and_then(|()| self.sink.flush());
        self.sink.inner = Box::new(io::stdout().lock());
        report::release();
    }
}

/// Discards everything once its pipe is closed.
// So `inspect | head` ends without an error, and the exit code still has the result.
struct Quiet<W> {
    inner: W,
    closed: bool,
}

impl<W> Quiet<W> {
    /// Returns `instead` if the pipe is closed.
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
    fn every_failure_but_a_closed_pipe_is_reported() {
        let mut out = Quiet { inner: Failing(io::ErrorKind::StorageFull), closed: false };
        let error = out.write(b"abc").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().starts_with("standard output: "), "{error}");
        assert!(out.flush().is_err());
    }
}
