//! [`TensorSource`]: a tensor to be saved, from memory, a file or a device.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::tensor::{Storage, TensorBuf, TensorView, swap_on_big_endian};

/// Takes the bytes of a tensor, piece by piece, in order.
pub type Sink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Takes pieces of a tensor, each after its byte offset, in any order. Threads may take turns.
pub type PieceSink<'a> = dyn FnMut(u64, &[u8]) -> Result<()> + Send + 'a;

/// A tensor to be saved: its dtype, its shape, and its bytes on demand.
///
/// The threads of a save share the sources.
///
/// ```
/// use safetensors_core::save::Sink;
/// use safetensors_core::{Dtype, Result, SafeTensors, SaveOptions, TensorSource, serialize};
///
/// /// The numbers from 0 on. They are made while they are written, and never all in memory.
/// struct Counting([usize; 1]);
///
/// impl TensorSource for Counting {
///     fn dtype(&self) -> Dtype {
///         Dtype::U32
///     }
///
///     fn shape(&self) -> &[usize] {
///         &self.0
///     }
///
///     fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
///         (0..self.0[0] as u32).try_for_each(|number| sink(&number.to_le_bytes()))
///     }
/// }
///
/// let file = serialize([("ids", Counting([3]))], &SaveOptions::new())?;
/// assert_eq!(SafeTensors::parse(&file)?.view("ids")?.as_slice::<u32>()?, [0, 1, 2]);
/// # Ok::<(), safetensors_core::Error>(())
/// ```
pub trait TensorSource: Sync {
    /// Returns the type of the elements.
    fn dtype(&self) -> Dtype;

    /// Returns the dimensions, outermost first; empty for a scalar.
    fn shape(&self) -> &[usize];

    /// Passes the bytes to `sink`, little-endian and in C order: at once if they are in memory,
    /// else in pieces of bounded size.
    ///
    /// # Errors
    ///
    /// Failures to read, and errors of `sink`, at which it must stop. Too many or too few bytes
    /// fail the save.
    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()>;

    /// Passes the bytes in any order, each piece with its offset. Override this if the elements
    /// have another order in memory, so that a piece is passed while it is in the cache.
    ///
    /// # Errors
    ///
    /// As for [`write_to`](Self::write_to). A byte that is missing or passed twice fails the save.
    fn write_pieces(&self, sink: &mut PieceSink<'_>) -> Result<()> {
        let mut offset = 0;
        self.write_to(&mut |bytes| {
            sink(offset, bytes)?;
            offset += bytes.len() as u64;
            Ok(())
        })
    }

    /// Returns the memory of the elements, to find [tied](crate::SaveOptions::tied) weights.
    /// `None`, the default, is never tied.
    fn storage(&self) -> Option<Storage> {
        None
    }

    /// Fails if the elements are codes of a quantised weight, which
    /// [`Converted`](crate::convert::Converted) would take for numbers. A source that wraps another
    /// one asks it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Quantization`].
    fn refuse_codes(&self) -> Result<()> {
        Ok(())
    }
}

impl TensorSource for TensorView<'_> {
    fn dtype(&self) -> Dtype {
        Self::dtype(self)
    }

    fn shape(&self) -> &[usize] {
        Self::shape(self)
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        sink(self.data())
    }

    // A view does not know its allocation.
    fn storage(&self) -> Option<Storage> {
        Some(Storage::whole(self.data().as_ptr().addr() as u64, self.data().len() as u64))
    }
}

impl TensorSource for TensorBuf {
    fn dtype(&self) -> Dtype {
        Self::dtype(self)
    }

    fn shape(&self) -> &[usize] {
        Self::shape(self)
    }

    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
        write_native(Self::dtype(self), self.bytes(), sink)
    }

    // Two references to a buffer are the same tensor.
    fn storage(&self) -> Option<Storage> {
        Some(Storage::whole(self.bytes().as_ptr().addr() as u64, self.bytes().len() as u64))
    }
}

/// Passes native elements to `sink` as a file has them. Only a big-endian target copies.
#[doc(hidden)]
pub fn write_native(dtype: Dtype, bytes: &[u8], sink: &mut Sink<'_>) -> Result<()> {
    if cfg!(target_endian = "little") {
        return sink(bytes);
    }
    let mut buffer = [0_u8; 4096];
    for piece in bytes.chunks(buffer.len()) {
        let swapped = &mut buffer[..piece.len()];
        swapped.copy_from_slice(piece);
        swap_on_big_endian(dtype, swapped);
        sink(swapped)?;
    }
    Ok(())
}

macro_rules! forward {
    ($($type:ty),*) => {$(
        impl<S: TensorSource + ?Sized> TensorSource for $type {
            fn dtype(&self) -> Dtype {
                (**self).dtype()
            }

            fn shape(&self) -> &[usize] {
                (**self).shape()
            }

            fn write_to(&self, sink: &mut Sink<'_>) -> Result<()> {
                (**self).write_to(sink)
            }

            fn write_pieces(&self, sink: &mut PieceSink<'_>) -> Result<()> {
                (**self).write_pieces(sink)
            }

            fn storage(&self) -> Option<Storage> {
                (**self).storage()
            }

            fn refuse_codes(&self) -> Result<()> {
                (**self).refuse_codes()
            }
        }
    )*};
}

forward!(&S, Box<S>);

/// A tensor under its name. What follows after [`named`] is compiled once, not for each source.
pub(crate) type Named<'a> = (&'a str, &'a dyn TensorSource);

pub(crate) fn named<N: AsRef<str>, S: TensorSource>(tensors: &[(N, S)]) -> Vec<Named<'_>> {
    tensors.iter().map(|(name, tensor)| (name.as_ref(), tensor as &dyn TensorSource)).collect()
}

/// Writes a source to `sink`, which gets at most `expected` bytes, and nothing after its first
/// error. Fails with [`ErrorKind::SourceLength`] for another number of bytes, or an error of `sink`
/// that the source ignored.
#[doc(hidden)]
pub fn write_exactly(source: &dyn TensorSource, expected: u64, sink: &mut Sink<'_>) -> Result<()> {
    let mut written = 0;
    let mut has_failed = false;
    source.write_to(&mut |bytes| {
        let found = written + bytes.len() as u64;
        if has_failed || found > expected {
            (written, has_failed) = (found, true);
            return Err(ErrorKind::SourceLength { expected, found }.into());
        }
        has_failed = true;
        sink(bytes)?;
        (written, has_failed) = (found, false);
        Ok(())
    })?;
    if has_failed || written != expected {
        return Err(Error::from(ErrorKind::SourceLength { expected, found: written }));
    }
    Ok(())
}

/// Passes the bytes on in pieces of `len` bytes, except for the last, without alignment. Fails as
/// [`write_exactly`].
#[doc(hidden)]
pub fn write_in_pieces(
    source: &dyn TensorSource,
    expected: u64,
    len: usize,
    take: &mut Sink<'_>,
) -> Result<()> {
    let mut gathered = Vec::new();
    let mut left = expected;
    write_exactly(source, expected, &mut |mut bytes| {
        while !bytes.is_empty() {
            let len = left.min(len.max(1) as u64) as usize;
            let (now, rest) = bytes.split_at(bytes.len().min(len - gathered.len()));
            bytes = rest;
            // Most sources give whole pieces at once, which are not copied.
            let piece = if now.len() == len {
                now
            } else {
                gathered.reserve_exact(len - gathered.len());
                gathered.extend_from_slice(now);
                &gathered
            };
            if piece.len() == len {
                take(piece)?;
                gathered.clear();
                left -= len as u64;
            }
        }
        Ok(())
    })
}
