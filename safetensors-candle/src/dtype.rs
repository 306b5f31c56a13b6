//! The only table that maps the dtypes of the format to candle's.

use candle_core::{CpuStorage, DType};
use float8::F8E4M3;
use half::{bf16, f16};
use safetensors_core::element::{F4Packed, F6E2M3Packed, F6E3M2Packed, F8E8M0};
use safetensors_core::framework::Support;
use safetensors_core::{Dtype, Error, Result, TensorBuf};

use crate::Candle;

/// Calls the macro `$then` with the table: the format's dtype, candle's dtype, and the type of the
/// elements as they are read. candle stores `raw` dtypes as plain bytes, and lacks `widened` ones.
macro_rules! for_each_dtype {
    ($then:ident) => {
        $then! {
            exact {
                U8 = U8 as u8,
                U32 = U32 as u32,
                I16 = I16 as i16,
                I32 = I32 as i32,
                I64 = I64 as i64,
                BF16 = BF16 as bf16,
                F16 = F16 as f16,
                F32 = F32 as f32,
                F64 = F64 as f64,
                F8_E4M3 = F8E4M3 as F8E4M3,
            }
            raw {
                F4 = F4 as F4Packed,
                F6_E2M3 = F6E2M3 as F6E2M3Packed,
                F6_E3M2 = F6E3M2 as F6E3M2Packed,
                F8_E8M0 = F8E8M0 as F8E8M0,
            }
            widened {
                BOOL to U8,
                I8 to I16,
                U16 to U32,
                U64 to I64,
                F8_E5M2 to F16,
                F8_E4M3FNUZ to F16,
                F8_E5M2FNUZ to F16,
                C64 to F32,
            }
        }
    };
}

#[cfg(feature = "cuda")]
pub(crate) use for_each_dtype;

macro_rules! dtypes {
    (
        exact { $($exact:ident = $exact_candle:ident as $element:ty,)* }
        raw { $($raw:ident = $raw_candle:ident as $raw_element:ident,)* }
        widened { $($narrow:ident to $wide:ident,)* }
    ) => {
        pub(crate) fn support(dtype: Dtype) -> Support {
            match dtype {
                $(Dtype::$exact => Support::Exact,)*
                $(Dtype::$raw => Support::Exact,)*
                $(Dtype::$narrow => Support::Widened(Dtype::$wide),)*
                _ => Support::Unsupported,
            }
        }

        /// Returns the format's dtype that candle tensors of `dtype` are saved as.
        ///
        /// ```
        /// use candle_core::DType;
        /// use safetensors_candle::from_candle_dtype;
        /// use safetensors_core::Dtype;
        ///
        /// assert_eq!(from_candle_dtype(DType::F8E4M3)?, Dtype::F8_E4M3);
        /// # Ok::<(), safetensors_core::Error>(())
        /// ```
        ///
        /// # Errors
        ///
        /// [`UnsupportedFrameworkType`](safetensors_core::ErrorKind::UnsupportedFrameworkType)
        /// if the format has no such dtype.
        pub fn from_candle_dtype(dtype: DType) -> Result<Dtype> {
            match dtype {
                $(DType::$exact_candle => Ok(Dtype::$exact),)*
                $(DType::$raw_candle => Ok(Dtype::$raw),)*
                _ => Err(Error::unsupported_framework_type::<Candle>(dtype.as_str())),
            }
        }

        /// Returns the candle dtype that tensors of `dtype` are loaded as: the same, or a wider one
        /// if candle lacks it. [`Candle::support`](Candle#method.support) returns which.
        ///
        /// ```
        /// use candle_core::DType;
        /// use safetensors_candle::to_candle_dtype;
        /// use safetensors_core::Dtype;
        ///
        /// assert_eq!(to_candle_dtype(Dtype::BF16)?, DType::BF16);
        /// assert_eq!(to_candle_dtype(Dtype::U16)?, DType::U32);
        /// # Ok::<(), safetensors_core::Error>(())
        /// ```
        ///
        /// # Errors
        ///
        /// [`ErrorKind::UnsupportedDtype`](safetensors_core::ErrorKind::UnsupportedDtype) for a
        /// dtype that candle cannot hold. Today there is none.
        pub fn to_candle_dtype(dtype: Dtype) -> Result<DType> {
            match dtype {
                $(Dtype::$exact => Ok(DType::$exact_candle),)*
                $(Dtype::$raw => Ok(DType::$raw_candle),)*
                $(Dtype::$narrow => to_candle_dtype(Dtype::$wide),)*
                _ => Err(Error::unsupported_dtype::<Candle>(dtype)),
            }
        }

        /// Moves the elements without a copy.
        pub(crate) fn into_storage(buf: TensorBuf) -> Result<CpuStorage> {
            match buf.dtype() {
                $(Dtype::$exact => Ok(CpuStorage::$exact_candle(buf.into_vec::<$element>()?)),)*
                // `collect` reuses the memory of the `Vec`, because both elements have one layout.
                $(Dtype::$raw => {
                    let bytes = buf.into_vec::<$raw_element>()?.into_iter().map(|$raw_element(byte)| byte).collect();
                    Ok(CpuStorage::$raw_candle(bytes))
                })*
                dtype => Err(Error::unsupported_dtype::<Candle>(dtype)),
            }
        }

        pub(crate) fn storage_bytes(storage: &CpuStorage) -> (Dtype, &[u8]) {
            match storage {
                $(CpuStorage::$exact_candle(values) => (Dtype::$exact, bytemuck::cast_slice(values)),)*
                $(CpuStorage::$raw_candle(bytes) => (Dtype::$raw, bytes),)*
            }
        }
    };
}

for_each_dtype!(dtypes);

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use candle_core::backend::BackendStorage;
    use safetensors_core::Widening;
    use safetensors_core::framework::Framework as _;

    use super::*;

    #[test]
    fn every_dtype_of_the_format_has_a_place() {
        for &dtype in Dtype::ALL {
            match support(dtype) {
                Support::Exact => {
                    let buf = TensorBuf::filled_by(dtype, vec![8], |_| Ok(())).unwrap();
                    let storage = into_storage(buf).unwrap();
                    assert_eq!(from_candle_dtype(storage.dtype()).unwrap(), dtype);
                    let (found, bytes) = storage_bytes(&storage);
                    assert_eq!((found, bytes.len()), (dtype, dtype.bits() as usize));
                }
                Support::Widened(to) => assert_eq!(support(to), Support::Exact, "{dtype}"),
                Support::Unsupported => panic!("{dtype} has no place"),
            }
        }
    }

    #[test]
    fn a_loaded_tensor_has_the_dtype_of_the_table() {
        for &dtype in Dtype::ALL {
            let buf = TensorBuf::filled_by(dtype, vec![8], |_| Ok(())).unwrap();
            let tensor = Candle::from_buf(buf, &Device::Cpu, Widening::Lossless).unwrap();
            assert_eq!(to_candle_dtype(dtype).unwrap(), tensor.dtype(), "{dtype}");
            if support(dtype) == Support::Exact {
                assert_eq!(from_candle_dtype(tensor.dtype()).unwrap(), dtype);
            }
        }
    }

    #[test]
    fn raw_bytes_are_moved_not_copied() {
        let buf = TensorBuf::from_vec(vec![64], vec![F8E8M0(7); 64]).unwrap();
        let address = buf.bytes().as_ptr();
        let storage = into_storage(buf).unwrap();
        assert_eq!(storage_bytes(&storage).1.as_ptr(), address);
    }
}
