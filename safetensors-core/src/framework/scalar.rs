//! [`RecordScalar`]: a number of a record, in the metadata.

use std::string::{String, ToString};

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number or a boolean of a training that is not a tensor. Its JSON, in the entry
/// [`SCALARS_KEY`](crate::framework::SCALARS_KEY), keeps the type and all bits.
///
/// ```
/// use safetensors_core::framework::RecordScalar;
///
/// let text = serde_json::to_string(&RecordScalar::F64(0.5))?;
/// assert_eq!(text, r#"{"f64":{"value":"0.5","bits":"3fe0000000000000"}}"#);
/// assert_eq!(serde_json::from_str::<RecordScalar>(&text)?, RecordScalar::F64(0.5));
/// assert_eq!(serde_json::to_string(&RecordScalar::U64(3))?, r#"{"u64":3}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[allow(missing_docs, reason = "a variant is named for the type that it holds")]
#[doc(hidden)]
pub enum RecordScalar {
    U64(u64),
    I64(i64),
    Bool(bool),
    F64(#[serde(serialize_with = "write_bits", deserialize_with = "read_bits")] f64),
}

// JSON has no NaN and no infinity.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Float {
    /// For people; the bits are read back.
    value: String,
    bits: String,
}

fn write_bits<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let bits = std::format!("{:016x}", number.to_bits());
    Float { value: number.to_string(), bits }.serialize(serializer)
}

fn read_bits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let Float { bits, .. } = Float::deserialize(deserializer)?;
    let is_hex = bits.len() == 16 && bits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(&bits, 16).ok().filter(|_| is_hex);
    let wrong = || D::Error::custom("the bits of a number should be 16 hex digits");
    number.map(f64::from_bits).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sixteen_hex_digits_are_the_bits_of_a_float() {
        let read = |bits: &str| {
            let text = std::format!(r#"{{"f64":{{"value":"1","bits":"{bits}"}}}}"#);
            serde_json::from_str::<RecordScalar>(&text)
        };
        assert_eq!(read("fff0000000000000").unwrap(), RecordScalar::F64(f64::NEG_INFINITY));
        for bits in ["", "1", "fff000000000000g", "0fff0000000000000", "+ff0000000000000"] {
            let error = read(bits).unwrap_err().to_string();
            assert!(error.starts_with("the bits of a number should be"), "{bits}: {error}");
        }
    }
}
