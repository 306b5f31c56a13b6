//! PyTorch's types of elements, by their names and their storages'.

use safetensors_core::Dtype;

use super::values::Kind;

struct Row {
    /// As in `torch.float32`.
    name: &'static str,
    storage: &'static str,
    /// Bytes of an element.
    width: u8,
    dtype: Option<Dtype>,
}

const fn row(name: &'static str, storage: &'static str, width: u8, dtype: Option<Dtype>) -> Row {
    Row { name, storage, width, dtype }
}

const KINDS: [Row; 29] = [
    row("float32", "FloatStorage", 4, Some(Dtype::F32)),
    row("float64", "DoubleStorage", 8, Some(Dtype::F64)),
    row("float16", "HalfStorage", 2, Some(Dtype::F16)),
    row("bfloat16", "BFloat16Storage", 2, Some(Dtype::BF16)),
    row("int64", "LongStorage", 8, Some(Dtype::I64)),
    row("int32", "IntStorage", 4, Some(Dtype::I32)),
    row("int16", "ShortStorage", 2, Some(Dtype::I16)),
    row("int8", "CharStorage", 1, Some(Dtype::I8)),
    row("uint8", "ByteStorage", 1, Some(Dtype::U8)),
    row("bool", "BoolStorage", 1, Some(Dtype::BOOL)),
    row("complex64", "ComplexFloatStorage", 8, Some(Dtype::C64)),
    row("uint16", "", 2, Some(Dtype::U16)),
    row("uint32", "", 4, Some(Dtype::U32)),
    row("uint64", "", 8, Some(Dtype::U64)),
    row("float8_e4m3fn", "", 1, Some(Dtype::F8_E4M3)),
    row("float8_e5m2", "", 1, Some(Dtype::F8_E5M2)),
    row("float8_e4m3fnuz", "", 1, Some(Dtype::F8_E4M3FNUZ)),
    row("float8_e5m2fnuz", "", 1, Some(Dtype::F8_E5M2FNUZ)),
    row("float8_e8m0fnu", "", 1, Some(Dtype::F8_E8M0)),
    // Two elements in a byte, which PyTorch counts as one.
    row("float4_e2m1fn_x2", "", 1, Some(Dtype::F4)),
    row("complex128", "ComplexDoubleStorage", 16, None),
    row("complex32", "ComplexHalfStorage", 4, None),
    row("qint8", "QInt8Storage", 1, None),
    row("quint8", "QUInt8Storage", 1, None),
    row("qint32", "QInt32Storage", 4, None),
    row("quint4x2", "QUInt4x2Storage", 1, None),
    row("quint2x4", "QUInt2x4Storage", 1, None),
    row("bits8", "", 1, None),
    row("bits16", "", 2, None),
];

fn kind(row: &Row) -> Kind {
    Kind { name: row.name, width: row.width }
}

pub(super) fn of_name(name: &str) -> Option<Kind> {
    KINDS.iter().find(|row| row.name == name).map(kind)
}

pub(super) fn of_dtype(dtype: Dtype) -> Option<Kind> {
    KINDS.iter().find(|row| row.dtype == Some(dtype)).map(kind)
}

pub(super) fn of_storage(class: &str) -> Option<Kind> {
    KINDS.iter().find(|row| row.storage == class && !class.is_empty()).map(kind)
}

impl Kind {
    pub(super) fn dtype(self) -> Option<Dtype> {
        KINDS.iter().find(|row| row.name == self.name)?.dtype
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_equal_the_dtypes() {
        for row in &KINDS {
            let Some(dtype) = row.dtype else { continue };
            let elements = if dtype == Dtype::F4 { 2 } else { 1 };
            assert_eq!(u32::from(row.width) * 8, dtype.bits() * elements, "{}", row.name);
            assert_eq!(of_name(row.name), Some(kind(row)));
        }
        assert_eq!(of_storage("HalfStorage").unwrap().name, "float16");
        assert!(of_storage("").is_none() && of_name("").is_none());
    }
}
