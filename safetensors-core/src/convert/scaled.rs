//! [`ReadConversion`]: a conversion that may multiply elements by their scales on the way.

use super::block::{BLOCK, Failure, Scratch, bytes_of, cast_mut, check_all, elements_of};
use super::decode::decode;
use super::encode::saturate;
use super::scales::Scales;
use super::{Conversion, ConvertOptions, Overflow};
use crate::dtype::Dtype;
use crate::error::{ErrorKind, Result};
use crate::tensor::Rows;

/// The conversion of elements while they are read or saved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadConversion<'s> {
    from: Dtype,
    to: Conversion,
    overflow: Overflow,
    scales: Option<&'s Scales>,
    /// The rows that the elements are of, if they are read in another order than they are wanted.
    rows: Option<&'s Rows>,
}

impl<'s> ReadConversion<'s> {
    /// `conversion`, applied to elements that are multiplied by `scales` first, if there are any.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoConversion`].
    pub(crate) fn new(
        conversion: Conversion,
        scales: Option<&'s Scales>,
        options: &ConvertOptions,
    ) -> Result<Self, ErrorKind> {
        let (from, overflow) = (conversion.from(), options.overflow);
        let to = match scales {
            None => conversion,
            Some(_) => Conversion::new(Dtype::F32, conversion.to(), options)?,
        };
        Ok(Self { from, to, overflow, scales, rows: None })
    }

    /// The same for elements of rows. Errors then name the place where an element is wanted.
    #[cfg(feature = "std")]
    pub(crate) fn of_rows(self, rows: Option<&'s Rows>) -> Self {
        Self { rows, ..self }
    }

    /// The dtype of the source.
    pub(crate) fn from(&self) -> Dtype {
        self.from
    }

    /// The dtype of the result.
    pub(crate) fn to(&self) -> Dtype {
        self.to.to()
    }

    /// Converts elements as [`Conversion::run`] does. `first` also says which scales belong to
    /// them.
    pub(crate) fn run(&self, src: &[u8], out: &mut [u8], first: u64) -> Result<(), ErrorKind> {
        use ErrorKind::{DoesNotFit, InvalidBool};
        let mut converted = self.run_in_order(src, out, first);
        if let Err(DoesNotFit { index, .. } | InvalidBool { index, .. }) = &mut converted
            && let Some(rows) = self.rows
        {
            *index = rows.wanted_element(*index);
        }
        converted
    }

    fn run_in_order(&self, src: &[u8], out: &mut [u8], first: u64) -> Result<(), ErrorKind> {
        let Some(scales) = self.scales else { return self.to.run(src, out, first) };
        let mut scratch = Scratch::new();
        let blocks =
            src.chunks(bytes_of(self.from, BLOCK)).zip(out.chunks_mut(bytes_of(self.to(), BLOCK)));
        for (number, (src, out)) in blocks.enumerate() {
            let first = first + (number * BLOCK) as u64;
            let count = elements_of(self.from, src.len());
            if self.to() == Dtype::F32 {
                let products = cast_mut(out).map_err(|failure| self.explain(&failure, first))?;
                self.multiply(scales, src, products, first, &mut scratch.source)?;
            } else {
                let products = &mut scratch.floats[..count];
                self.multiply(scales, src, products, first, &mut scratch.source)?;
                self.to.run(bytemuck::cast_slice(products), out, first)?;
            }
        }
        Ok(())
    }

    /// Decodes a block of elements and multiplies them by their scales.
    fn multiply(
        &self,
        scales: &Scales,
        src: &[u8],
        products: &mut [f32],
        first: u64,
        scratch: &mut [u64; BLOCK],
    ) -> Result<(), ErrorKind> {
        let decoded = decode(self.from, src, products, scratch);
        decoded.map_err(|failure| self.explain(&failure, first))?;
        match self.overflow {
            Overflow::Ieee => scales.apply(first, products),
            Overflow::Saturate => {
                scales.apply(first, products);
                saturate(Dtype::F32, products);
            }
            Overflow::Error => {
                let mut finite = [false; BLOCK];
                for (finite, value) in finite.iter_mut().zip(&*products) {
                    *finite = value.is_finite();
                }
                scales.apply(first, products);
                let fits =
                    products.iter().zip(finite).map(|(p, finite)| !(finite && p.is_infinite()));
                check_all(fits).map_err(|failure| self.explain(&failure, first))?;
            }
        }
        Ok(())
    }

    fn explain(&self, failure: &Failure, first: u64) -> ErrorKind {
        match *failure {
            Failure::DoesNotFit(index) => ErrorKind::DoesNotFit {
                index: first + index as u64,
                value: "inf".into(),
                to: self.to(),
            },
            Failure::NoConversion | Failure::Misaligned => {
                ErrorKind::NoConversion { from: self.from, to: self.to() }
            }
        }
    }
}
