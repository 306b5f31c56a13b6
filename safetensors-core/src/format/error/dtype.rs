//! Parses dtypes from their names.

use core::str::FromStr;

use super::{Error, ErrorKind};
use crate::format::dtype::Dtype;

const WORDS: [(Dtype, &[&str]); 18] = [
    (Dtype::BF16, &["bfloat16"]),
    (Dtype::F16, &["float16", "half", "fp16"]),
    (Dtype::F32, &["float32", "float", "fp32"]),
    (Dtype::F64, &["float64", "double", "fp64"]),
    (Dtype::F8_E4M3, &["float8_e4m3fn", "fp8"]),
    (Dtype::F8_E5M2, &["float8_e5m2"]),
    (Dtype::F8_E4M3FNUZ, &["float8_e4m3fnuz"]),
    (Dtype::F8_E5M2FNUZ, &["float8_e5m2fnuz"]),
    (Dtype::F8_E8M0, &["float8_e8m0fnu"]),
    (Dtype::U8, &["uint8"]),
    (Dtype::I8, &["int8"]),
    (Dtype::U16, &["uint16"]),
    (Dtype::I16, &["int16", "short"]),
    (Dtype::I32, &["int32", "int"]),
    (Dtype::U32, &["uint32"]),
    (Dtype::I64, &["int64", "long"]),
    (Dtype::U64, &["uint64"]),
    (Dtype::C64, &["complex64"]),
];

const TORCH: &str = "torch.";

impl FromStr for Dtype {
    type Err = Error;

    /// Parses the format's name in upper or lower case, PyTorch's, such as `torch.half`, or a short
    /// form, such as `fp16`. `fp8` is F8_E4M3. A header must spell the format's name exactly.
    ///
    /// ```
    /// use safetensors_core::Dtype;
    ///
    /// for word in ["BF16", "bf16", "bfloat16", "torch.bfloat16"] {
    ///     assert_eq!(word.parse::<Dtype>()?, Dtype::BF16);
    /// }
    /// # Ok::<(), safetensors_core::Error>(())
    /// ```
    fn from_str(name: &str) -> Result<Self, Error> {
        let short = match name.split_at_checked(TORCH.len()) {
            Some((start, rest)) if start.eq_ignore_ascii_case(TORCH) => rest,
            _ => name,
        };
        let is_it = |word: &&str| word.eq_ignore_ascii_case(short);
        let named = Self::ALL.iter().find(|dtype| is_it(&dtype.name()));
        let known = || WORDS.iter().find(|(_, words)| words.iter().any(is_it)).map(|(it, _)| it);
        let found = named.or_else(known).copied();
        found.ok_or_else(|| ErrorKind::UnknownDtype { found: name.into() }.into())
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::ToOwned;
    use std::format;
    use std::string::ToString;

    use super::*;

    #[test]
    fn each_dtype_parses_from_its_name_and_from_known_words() {
        for &dtype in Dtype::ALL {
            for name in [dtype.name().to_owned(), dtype.name().to_lowercase()] {
                assert_eq!(name.parse::<Dtype>().unwrap(), dtype);
            }
        }
        let words = || WORDS.iter().flat_map(|(it, words)| words.iter().map(|word| (*word, *it)));
        for (word, dtype) in words() {
            for name in [word.to_owned(), word.to_uppercase(), format!("torch.{word}")] {
                assert_eq!(name.parse::<Dtype>().unwrap(), dtype, "{name}");
            }
            let taken = Dtype::ALL.iter().any(|dtype| dtype.name().eq_ignore_ascii_case(word));
            assert!(!taken && words().filter(|(other, _)| *other == word).count() == 1);
        }
        assert_eq!("Torch.Bool".parse::<Dtype>().unwrap(), Dtype::BOOL);
    }

    #[test]
    fn other_words_are_unknown_and_the_error_names_some_dtypes() {
        for name in ["", "BF16 ", "bf17", "torch.", "torch.torch.half", "tor\u{e9}", "C128"] {
            let error = name.parse::<Dtype>().unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::UnknownDtype { found } if found == name),
                "{error}"
            );
        }
        assert_eq!(
            "bf17".parse::<Dtype>().unwrap_err().to_string(),
            "unknown dtype \"bf17\"; there are BF16, F16, F32, F64, F8_E4M3, I64 and 16 more"
        );
    }
}
