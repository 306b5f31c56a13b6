//! The only table of dtypes.

use safetensors_core::Dtype;
use safetensors_core::framework::Support;

/// Calls the macro `$then` with rows of a variant of [`DynArray`](crate::DynArray), the type of its
/// elements, and the dtype.
macro_rules! for_each_array_dtype {
    ($then:ident) => {
        $then! {
            Bool(bool) = BOOL,
            U8(u8) = U8,
            I8(i8) = I8,
            U16(u16) = U16,
            I16(i16) = I16,
            U32(u32) = U32,
            I32(i32) = I32,
            U64(u64) = U64,
            I64(i64) = I64,
            F8E4M3(float8::F8E4M3) = F8_E4M3,
            F8E5M2(float8::F8E5M2) = F8_E5M2,
            F8E4M3Fnuz(safetensors_core::element::F8E4M3Fnuz) = F8_E4M3FNUZ,
            F8E5M2Fnuz(safetensors_core::element::F8E5M2Fnuz) = F8_E5M2FNUZ,
            F8E8M0(safetensors_core::element::F8E8M0) = F8_E8M0,
            F16(half::f16) = F16,
            BF16(half::bf16) = BF16,
            F32(f32) = F32,
            F64(f64) = F64,
            C64(num_complex::Complex<f32>) = C64,
        }
    };
}

pub(crate) use for_each_array_dtype;

macro_rules! define_support {
    ($($variant:ident($type:ty) = $dtype:ident,)*) => {
        pub(crate) fn support(dtype: Dtype) -> Support {
            match dtype {
                $(Dtype::$dtype => Support::Exact,)*
                dtype if is_packed(dtype) => Support::Exact,
                _ => Support::Unsupported,
            }
        }
    };
}

for_each_array_dtype!(define_support);

/// Returns `true` if tensors of this dtype are kept as [`Packed`](crate::Packed).
pub(crate) fn is_packed(dtype: Dtype) -> bool {
    dtype.is_sub_byte()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_of_the_format_is_held_exactly() {
        for &dtype in Dtype::ALL {
            assert_eq!(support(dtype), Support::Exact, "{dtype}");
        }
    }

    #[test]
    fn the_types_of_the_table_have_its_dtypes() {
        macro_rules! check {
            ($($variant:ident($type:ty) = $dtype:ident,)*) => {
                $(assert_eq!(<$type as safetensors_core::element::Element>::DTYPE, Dtype::$dtype);)*
            };
        }
        for_each_array_dtype!(check);
    }
}
