//! Tensors as `.npy` files.

use std::io::{self, Write};

use safetensors_core::{self as core, TensorSource, shape};

use super::header::Header;
use crate::error::Result;

/// Writes an array as a `.npy` file, in C order and little-endian, with NumPy's header, piece by
/// piece.
///
/// The writer is not flushed. An [`AtomicFile`](safetensors_core::save::AtomicFile) replaces a file
/// completely or not at all.
///
/// ```
/// use safetensors_core::TensorBuf;
/// use safetensors_formats::npy;
///
/// let mut file = Vec::new();
/// npy::write(&mut file, &TensorBuf::from_vec(vec![2], vec![1_u8, 2])?)?;
/// assert!(file.starts_with(b"\x93NUMPY") && file.ends_with(&[1, 2]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`NoNumpyType`](crate::ErrorKind::NoNumpyType), before anything is written; errors of reading
/// the tensor; [`Io`](safetensors_core::ErrorKind::Io).
pub fn write(mut out: impl Write, tensor: &dyn TensorSource) -> Result<()> {
    out.write_all(&Header::new(tensor.dtype(), tensor.shape()).encode()?)?;
    write_data(out, tensor)
}

/// Writes only the elements of a tensor.
pub fn write_data(mut out: impl Write, tensor: &dyn TensorSource) -> Result<()> {
    let expected = shape::byte_len(tensor.dtype(), tensor.shape())?;
    let mut found = 0;
    let mut refused = None;
    let given = tensor.write_to(&mut |bytes| {
        found += bytes.len() as u64;
        if found > expected {
            return Err(core::ErrorKind::SourceLength { expected, found }.into());
        }
        out.write_all(bytes).map_err(|error| {
            // The tensor may say in the error that it is about its own file.
            refused = Some(error);
            core::ErrorKind::Io(io::ErrorKind::Other.into()).into()
        })
    });
    match refused {
        Some(error) => Err(error.into()),
        None => given.and_then(|()| match found {
            _ if found == expected => Ok(()),
            _ => Err(core::ErrorKind::SourceLength { expected, found }.into()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use safetensors_core::Dtype;
    use safetensors_core::save::Sink;

    use super::*;

    struct Gives(usize);

    impl TensorSource for Gives {
        fn dtype(&self) -> Dtype {
            Dtype::U8
        }

        fn shape(&self) -> &[usize] {
            &[3]
        }

        fn write_to(&self, sink: &mut Sink<'_>) -> core::Result<()> {
            // Goes on after an error, as it should not.
            let mut given = Ok(());
            for _ in 0..self.0 {
                let piece = sink(&[7]);
                given = given.and(piece);
            }
            given
        }
    }

    #[test]
    fn a_tensor_must_write_exactly_its_length() {
        let mut file = Vec::new();
        write_data(&mut file, &Gives(3)).unwrap();
        assert_eq!(file, [7, 7, 7]);
        for gives in [0, 2, 4, 5] {
            let mut file = Vec::new();
            let error = write_data(&mut file, &Gives(gives)).unwrap_err();
            let kind = error.kind();
            assert!(matches!(kind, core::ErrorKind::SourceLength { expected: 3, .. }), "{kind}");
            assert!(file.len() <= 3);
        }
    }

    #[test]
    fn an_error_of_the_writer_is_returned_unchanged() {
        let error = write(&mut [0_u8; 100][..], &Gives(3)).unwrap_err();
        assert!(
            matches!(error.kind(), core::ErrorKind::Io(error) if error.kind() == io::ErrorKind::WriteZero)
        );
        let error = write(&mut [0_u8; 130][..], &Gives(3)).unwrap_err();
        assert!(
            matches!(error.kind(), core::ErrorKind::Io(error) if error.kind() == io::ErrorKind::WriteZero)
        );
    }
}
