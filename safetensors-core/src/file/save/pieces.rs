//! [`Pieces`]: the bytes of a source, each once.

use super::ranges::Ranges;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::{PieceSink, TensorSource};

#[derive(Debug)]
pub(super) struct Pieces {
    expected: u64,
    pub(super) written: Ranges,
    /// The number of bytes, if there are too many.
    excess: Option<u64>,
}

impl Pieces {
    pub(super) fn new(expected: u64) -> Self {
        Self { expected, written: Ranges::default(), excess: None }
    }

    /// Writes in the source's order. Fails with [`ErrorKind::SourceLength`] or
    /// [`ErrorKind::WrittenTwice`] before such bytes reach `sink`.
    pub(super) fn write(
        &mut self,
        source: &dyn TensorSource,
        sink: &mut PieceSink<'_>,
    ) -> Result<()> {
        source.write_pieces(&mut |offset, bytes| self.take(offset, bytes, sink))?;
        self.finish()
    }

    pub(super) fn write_in_order(
        &mut self,
        source: &dyn TensorSource,
        sink: &mut PieceSink<'_>,
    ) -> Result<()> {
        source.write_to(&mut |bytes| self.take(self.written.end(), bytes, sink))?;
        self.finish()
    }

    fn take(&mut self, offset: u64, bytes: &[u8], sink: &mut PieceSink<'_>) -> Result<()> {
        let len = bytes.len() as u64;
        let end = offset.saturating_add(len);
        let found = end.max(self.written.byte_len() + len);
        if found > self.expected {
            // A source that ignores this error must still fail at its end.
            self.excess = Some(found);
            return self.finish();
        }
        self.written
            .insert(offset..end)
            .map_err(|twice| ErrorKind::WrittenTwice { begin: twice.start, end: twice.end })?;
        sink(offset, bytes).inspect_err(|_| self.written.remove(offset..end))
    }

    fn finish(&self) -> Result<()> {
        let expected = self.expected;
        let found = self.excess.unwrap_or(self.written.byte_len());
        if found == expected {
            return Ok(());
        }
        Err(ErrorKind::SourceLength { expected, found }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::dtype::Dtype;
    use crate::format::tensor::Sink;

    struct Given(&'static [(u64, &'static [u8])]);

    impl TensorSource for Given {
        fn dtype(&self) -> Dtype {
            Dtype::U8
        }

        fn shape(&self) -> &[usize] {
            &[4]
        }

        fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
            self.0.iter().for_each(|(_, bytes)| _ = sink(bytes));
            Ok(())
        }

        fn write_pieces(&self, sink: &mut PieceSink<'_>) -> Result<()> {
            self.0.iter().for_each(|&(offset, bytes)| _ = sink(offset, bytes));
            Ok(())
        }
    }

    fn written(given: &Given) -> (Result<()>, Vec<u8>) {
        let mut file = vec![0; 4];
        let result = Pieces::new(4).write(given, &mut |offset, bytes| {
            file[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        });
        (result, file)
    }

    #[test]
    fn pieces_may_come_in_any_order() {
        let given = Given(&[(3, b"d"), (0, b"ab"), (2, b""), (2, b"c")]);
        let (result, file) = written(&given);
        result.unwrap();
        assert_eq!(file, b"abcd");
        let mut file = Vec::new();
        let in_order = Pieces::new(4).write_in_order(&given, &mut |offset, bytes| {
            assert_eq!(offset, file.len() as u64);
            file.extend_from_slice(bytes);
            Ok(())
        });
        in_order.unwrap();
        assert_eq!(file, b"dabc");
    }

    #[test]
    fn a_source_that_gives_other_bytes_fails_even_if_it_ignores_the_error() {
        let length = |found| Some((4, found));
        for (given, expected) in [
            (Given(&[]), length(0)),
            (Given(&[(0, b"abc")]), length(3)),
            (Given(&[(0, b"ab"), (3, b"d")]), length(3)),
            (Given(&[(0, b"abcde")]), length(5)),
            (Given(&[(0, b"abcd"), (4, b"e")]), length(5)),
            (Given(&[(u64::MAX, b"a")]), length(u64::MAX)),
            // The second piece is refused, so that bytes are missing at the end.
            (Given(&[(0, b"abc"), (2, b"c")]), length(3)),
            (Given(&[(0, b"ab"), (1, b"bcd")]), length(5)),
        ] {
            let found = written(&given).0.unwrap_err();
            let found = match *found.kind() {
                ErrorKind::SourceLength { expected, found } => Some((expected, found)),
                _ => None,
            };
            assert_eq!(found, expected, "{:?}", given.0);
        }
    }

    #[test]
    fn bytes_that_the_sink_refuses_do_not_count_as_written() {
        let mut pieces = Pieces::new(4);
        let error = pieces.write(&Given(&[(0, b"ab"), (2, b"cd")]), &mut |offset, _| {
            if offset == 0 { Ok(()) } else { Err(ErrorKind::Cancelled.into()) }
        });
        assert!(matches!(error.unwrap_err().kind(), ErrorKind::SourceLength { found: 2, .. }));
        assert_eq!(pieces.written.byte_len(), 2);
    }
}
