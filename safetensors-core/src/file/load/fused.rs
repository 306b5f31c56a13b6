//! Converts tensors while they are read, through a small buffer.

use std::vec::Vec;

use crate::file::io::ReadAt;
use crate::format::convert::{Conversion, GROUP, STREAMED, bytes_of, elements_of};
use crate::format::dtype::Dtype;
use crate::format::error::{ErrorKind, Result};
use crate::format::tensor::{Rows, swap_on_big_endian};
use crate::format::trace::Span;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadConversion<'t> {
    pub(crate) conversion: Conversion,
    /// `None` if they are read in the wanted order.
    pub(crate) rows: Option<&'t Rows>,
}

impl ReadConversion<'_> {
    pub(crate) fn from(&self) -> Dtype {
        self.conversion.from()
    }

    pub(crate) fn to(&self) -> Dtype {
        self.conversion.to()
    }

    /// An error names the wanted place of an element.
    pub(crate) fn run(&self, src: &[u8], out: &mut [u8], first: u64) -> Result<(), ErrorKind> {
        self.conversion.run(src, out, first).map_err(|mut kind| {
            if let (Some(index), Some(rows)) = (kind.element_mut(), self.rows) {
                *index = rows.wanted_element(*index);
            }
            kind
        })
    }
}

// Words, so that elements are aligned.
#[derive(Default)]
pub(crate) struct ReadScratch(Vec<u64>);

impl ReadScratch {
    fn bytes(&mut self, len: usize) -> &mut [u8] {
        let words = len.div_ceil(size_of::<u64>());
        if self.0.len() < words {
            self.0.resize(words, 0);
        }
        &mut bytemuck::cast_slice_mut(&mut self.0)[..len]
    }
}

impl ReadScratch {
    /// Fills `out` with converted elements from a byte offset on. `first` is the index in the
    /// tensor.
    pub(crate) fn read_converted(
        &mut self,
        source: &dyn ReadAt,
        mut offset: u64,
        conversion: &ReadConversion<'_>,
        mut first: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let from = conversion.from();
        let to = conversion.to();
        let most = source.requests().map_or(STREAMED, |requests| requests.byte_len);
        let elements = elements_of(from, most) / GROUP * GROUP;
        for out in out.chunks_mut(bytes_of(to, elements)) {
            let elements = elements_of(to, out.len());
            self.convert_read(conversion, first, out, &mut |bytes| {
                Ok(source.read_exact_at(bytes, offset)?)
            })?;
            offset += bytes_of(from, elements) as u64;
            first += elements as u64;
        }
        Ok(())
    }

    /// Fills `out` with converted bytes of `read`.
    pub(crate) fn convert_read(
        &mut self,
        conversion: &ReadConversion<'_>,
        first: u64,
        out: &mut [u8],
        read: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let elements = elements_of(conversion.to(), out.len());
        let bytes = self.bytes(bytes_of(conversion.from(), elements));
        read(bytes)?;
        swap_on_big_endian(conversion.from(), bytes);
        let span = Span::convert(conversion.from().name(), conversion.to().name(), out.len());
        let _convert = span.enter();
        Ok(conversion.run(bytes, out, first)?)
    }
}
