//! [`Tensors`]: the source in which quantised weights are recognised.

use std::path::PathBuf;

use super::matrix::Stored;
use crate::format::dtype::Dtype;
use crate::format::error::Result;
use crate::format::header::Metadata;
use crate::format::tensor::TensorBuf;

pub(crate) trait Tensors {
    fn count(&self) -> usize;

    /// Returns `true` if the files are some of a larger checkpoint's.
    fn is_part(&self) -> bool {
        false
    }

    /// Finds a name or alias.
    fn position(&self, name: &str) -> Option<usize>;

    fn at(&self, position: usize) -> Option<Stored>;

    fn aliases(&self, name: &str) -> Vec<String>;

    fn metadata(&self) -> &Metadata;

    fn read(&self, positions: &[usize]) -> Result<Vec<TensorBuf>>;

    fn read_beside(&self, _name: &str, _most: u64) -> Result<Option<(PathBuf, Vec<u8>)>> {
        Ok(None)
    }
}

/// Returns `true` if codes of quantised weights may have this dtype.
pub(crate) fn may_be_codes(dtype: Dtype) -> bool {
    use Dtype::{BF16, BOOL, C64, F16, F32, F64, I64, U64};
    !matches!(dtype, F64 | F32 | F16 | BF16 | BOOL | I64 | U64 | C64)
}
