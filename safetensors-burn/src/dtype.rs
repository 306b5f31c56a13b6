//! The dtype table: which burn dtype holds which dtype of the format.

use burn::tensor::{BoolStore, Bytes, DType, bf16, f16};
use safetensors_core::convert::widen;
use safetensors_core::framework::Support;
use safetensors_core::{Dtype, Error, Result, TensorBuf};

use crate::Burn;

/// Declares the dtypes that are the same on both sides, with the Rust type of their elements.
macro_rules! exact {
    ($($dtype:ident = $element:ty),* $(,)?) => {
        /// Returns `None` if burn lacks the dtype.
        pub(crate) fn to_burn(dtype: Dtype) -> Option<DType> {
            match dtype {
                $(Dtype::$dtype => Some(DType::$dtype),)*
                Dtype::BOOL => Some(DType::Bool(BoolStore::Native)),
                _ => None,
            }
        }

        pub(crate) fn to_file(dtype: DType) -> Result<Dtype> {
            match dtype {
                $(DType::$dtype => Ok(Dtype::$dtype),)*
                // burn stores Flex32 as f32. Only its kernels compute with less precision.
                DType::Flex32 => Ok(Dtype::F32),
                DType::Bool(_) => Ok(Dtype::BOOL),
                DType::QFloat(_) => Err(Error::unsupported_framework_type::<Burn>(dtype.name())),
            }
        }

        /// Moves the elements of a buffer into burn's owned bytes, without a copy.
        pub(crate) fn into_bytes(buf: TensorBuf) -> Result<Bytes> {
            match buf.dtype() {
                $(Dtype::$dtype => Ok(Bytes::from_elems(buf.into_vec::<$element>()?)),)*
                // burn also stores booleans as the bytes 0 and 1, so they are moved as U8.
                Dtype::BOOL => Ok(Bytes::from_elems(widen(buf, Dtype::U8)?.into_vec::<u8>()?)),
                dtype => Err(Error::unsupported_dtype::<Burn>(dtype)),
            }
        }
    };
}

exact! {
    F64 = f64, F32 = f32, F16 = f16, BF16 = bf16,
    I64 = i64, I32 = i32, I16 = i16, I8 = i8,
    U64 = u64, U32 = u32, U16 = u16, U8 = u8,
}

pub(crate) fn support(dtype: Dtype) -> Support {
    match dtype {
        Dtype::F4
        | Dtype::F6_E2M3
        | Dtype::F6_E3M2
        | Dtype::F8_E4M3
        | Dtype::F8_E5M2
        | Dtype::F8_E4M3FNUZ
        | Dtype::F8_E5M2FNUZ => Support::Widened(Dtype::F16),
        Dtype::F8_E8M0 | Dtype::C64 => Support::Widened(Dtype::F32),
        _ if to_burn(dtype).is_some() => Support::Exact,
        _ => Support::Unsupported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_of_the_format_loads() {
        for &dtype in Dtype::ALL {
            match support(dtype) {
                Support::Exact => assert_eq!(to_file(to_burn(dtype).unwrap()).unwrap(), dtype),
                Support::Widened(to) => {
                    assert_eq!(support(to), Support::Exact, "{dtype} becomes {to}")
                }
                Support::Unsupported => panic!("{dtype} does not load"),
            }
        }
    }

    #[test]
    fn widths_agree() {
        for &dtype in Dtype::ALL {
            if let Some(burn) = to_burn(dtype) {
                assert_eq!(burn.size() * 8, dtype.bits() as usize, "{dtype}");
            }
        }
        assert_eq!(DType::Flex32.size(), size_of::<f32>());
    }
}
