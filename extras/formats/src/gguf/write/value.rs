//! [`Value`]: a value in the metadata of a GGUF file.

/// A value in the metadata of a GGUF file.
///
/// ```
/// use safetensors_formats::gguf::Value;
///
/// assert_eq!(Value::from("llama"), Value::String("llama".into()));
/// assert_eq!(Value::from(32_u32), Value::U32(32));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "a variant is named for the type that it holds")]
pub enum Value {
    U32(u32),
    I32(i32),
    U64(u64),
    F32(f32),
    Bool(bool),
    String(String),
    /// An array of I32.
    I32s(Vec<i32>),
    /// An array of texts.
    Strings(Vec<String>),
}

macro_rules! from {
    ($($type:ty => $variant:ident),* $(,)?) => {$(
        impl From<$type> for Value {
            fn from(value: $type) -> Self {
                Self::$variant(value.into())
            }
        }
    )*};
}

from! {
    u32 => U32, i32 => I32, u64 => U64, f32 => F32, bool => Bool, &str => String, String => String,
    Vec<i32> => I32s, Vec<String> => Strings,
}

const ARRAY: u32 = 9;
const I32: u32 = 5;
const STRING: u32 = 8;

impl Value {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mut put = |kind: u32, bytes: &[u8]| {
            out.extend_from_slice(&kind.to_le_bytes());
            out.extend_from_slice(bytes);
        };
        match self {
            Self::U32(value) => put(4, &value.to_le_bytes()),
            Self::I32(value) => put(I32, &value.to_le_bytes()),
            Self::F32(value) => put(6, &value.to_le_bytes()),
            Self::Bool(value) => put(7, &[u8::from(*value)]),
            Self::U64(value) => put(10, &value.to_le_bytes()),
            Self::String(text) => {
                put(STRING, &[]);
                encode_text(text, out);
            }
            Self::I32s(values) => {
                put(ARRAY, &I32.to_le_bytes());
                out.extend_from_slice(&(values.len() as u64).to_le_bytes());
                values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
            }
            Self::Strings(texts) => {
                put(ARRAY, &STRING.to_le_bytes());
                out.extend_from_slice(&(texts.len() as u64).to_le_bytes());
                texts.iter().for_each(|text| encode_text(text, out));
            }
        }
    }
}

pub(super) fn encode_text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}
