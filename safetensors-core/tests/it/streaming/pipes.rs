//! Files that are written front to back.

use std::io::{self, Write};

use safetensors_core::save::write_to;
use safetensors_testing::tensors::bytes_by;

use crate::support::*;

/// A writer that accepts a limited number of bytes, and remembers whether it was flushed.
struct Pipe {
    left: usize,
    flushed: bool,
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.left).min(7);
        self.left -= taken;
        if taken == 0 && !bytes.is_empty() {
            Err(io::ErrorKind::BrokenPipe.into())
        } else {
            Ok(taken)
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flushed = true;
        Ok(())
    }
}

#[test]
fn a_pipe_that_takes_everything_is_flushed_and_one_that_breaks_is_an_error() {
    let tensors = || [("a", TensorView::new(Dtype::U8, &[3], &[1, 2, 3]).unwrap())];
    let len = serialize(tensors(), &SaveOptions::new()).unwrap().len();
    for left in 0..=len {
        let mut pipe = Pipe { left, flushed: false };
        match write_to(&mut pipe, tensors(), &SaveOptions::new()) {
            Ok(()) => assert!(left == len && pipe.flushed),
            Err(error) => {
                let broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
                assert!(matches!(error.kind(), ErrorKind::Io(error) if broken(error)), "{error}");
                assert!(left < len && !pipe.flushed);
                assert_eq!(error.tensor(), (left >= len - 3).then_some("a"));
            }
        }
    }
    let refused = [tensors(), tensors()].concat();
    let mut pipe = Pipe { left: len, flushed: false };
    assert!(write_to(&mut pipe, refused, &SaveOptions::new()).is_err());
    assert_eq!(pipe.left, len, "what is refused beforehand writes nothing");
}

/// A log of the actions of a writer and its sources.
struct Log<'a>(&'a Mutex<Vec<String>>, &'static str);

impl Log<'_> {
    fn note(&self, what: impl std::fmt::Display) {
        self.0.lock().unwrap().push(format!("{}: {what}", self.1));
    }
}

impl Write for Log<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The header is longer than any of the pieces.
        if bytes.len() < 8 {
            self.note(bytes.len());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_pipe_gets_each_piece_before_the_next_is_requested() {
    let log = Mutex::default();
    let tensors = ["b", "a"].map(|name| {
        let log = Log(&log, name);
        let source = bytes_by(5, move |sink| {
            log.note("asked");
            sink(&[0; 2])?;
            sink(&[0; 3])
        });
        (name, source)
    });
    write_to(Log(&log, "pipe"), tensors, &SaveOptions::new()).unwrap();
    let expected = ["a: asked", "pipe: 2", "pipe: 3", "b: asked", "pipe: 2", "pipe: 3"];
    assert_eq!(log.into_inner().unwrap(), expected);
}
