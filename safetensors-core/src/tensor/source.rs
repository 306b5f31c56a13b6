//! [`TensorSource`]: a tensor that can be written, wherever it lies.

use alloc::boxed::Box;

use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{Storage, TensorBuf, TensorView, swap_on_big_endian};

/// Takes the bytes of a tensor, piece by piece, in order.
pub type Sink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// A tensor to be saved: its dtype, its shape, and its bytes on demand.
///
/// Sources are shared between the threads that write, so what they borrow must be [`Sync`].
///
/// ```
/// use safetensors_core::save::Sink;
/// use safetensors_core::{Dtype, Result, SafeTensors, SaveOptions, TensorSource, serialize};
///
/// /// The numbers from 0 on, as many as asked for: made when they are written, and never all in memory.
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
    /// The type of the elements.
    fn dtype(&self) -> Dtype;

    /// The dimensions, outermost first; empty for a scalar.
    fn shape(&self) -> &[usize];

    /// Gives the bytes to `sink` as a file has them, little-endian and in C order: in one piece
    /// without a copy where they lie so in memory, in pieces of bounded size elsewhere.
    ///
    /// # Errors
    ///
    /// Those of `sink`, which end the giving, and those of getting at the bytes. A source that
    /// gives more or fewer bytes than dtype and shape ask for makes the save fail.
    fn write_to(&self, sink: &mut Sink<'_>) -> Result<()>;

    /// The memory that the elements lie in, if it may be shared with other tensors:
    /// [`SaveOptions::tied`](crate::SaveOptions::tied) finds tied weights by it. By default it is
    /// not known, and nothing is tied.
    fn storage(&self) -> Option<Storage> {
        None
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

    /// The borrowed bytes. Of what they are a part is not known.
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

    /// The buffer: two references to one buffer are the same tensor.
    fn storage(&self) -> Option<Storage> {
        Some(Storage::whole(self.bytes().as_ptr().addr() as u64, self.bytes().len() as u64))
    }
}

/// Gives the memory of contiguous elements to `sink`: without a copy, but on a big-endian target
/// swapped through a buffer.
///
/// # Errors
///
/// Those of `sink`.
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

            fn storage(&self) -> Option<Storage> {
                (**self).storage()
            }
        }
    )*};
}

forward!(&S, Box<S>);

/// Has a source write its bytes, gives each piece to `sink` with its place in the tensor, and holds
/// the source to `expected` bytes: none over that reaches `sink`.
pub(crate) fn write_exactly(
    tensor: &(impl TensorSource + ?Sized),
    expected: u64,
    sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut written = 0;
    tensor.write_to(&mut |bytes| {
        let found = written + bytes.len() as u64;
        if found > expected {
            // Remembered, so that a source which goes on regardless fails at its end.
            written = found;
            return Err(ErrorKind::SourceLength { expected, found }.into());
        }
        sink(written, bytes)?;
        written = found;
        Ok(())
    })?;
    if written != expected {
        return Err(Error::from(ErrorKind::SourceLength { expected, found: written }));
    }
    Ok(())
}
