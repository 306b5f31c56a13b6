//! Errors of loading and saving modules that core does not have.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::DType;
use safetensors_core::framework::NameList;
use safetensors_core::{Error, Result};

/// Burn's [`Framework`](safetensors_core::framework::Framework), for generic code.
///
/// Its tensor is [`TensorData`](burn::tensor::TensorData), of which `Tensor::from_data` makes a
/// `Tensor<D, K>` on any device.
///
/// ```
/// use burn::tensor::{DType, TensorData};
/// use safetensors_burn::Burn;
/// use safetensors_core::framework::Framework;
/// use safetensors_core::{TensorBuf, Widening};
///
/// let buf = TensorBuf::from_vec(vec![2], vec![1.0_f32, 2.0])?;
/// let data: TensorData = Burn::from_buf(buf, &(), Widening::Refuse)?;
/// assert_eq!((data.dtype(), &data.shape()[..]), (DType::F32, &[2][..]));
/// # Ok::<(), safetensors_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Burn;

/// Why a [`CheckpointStore`](crate::CheckpointStore) could not load or save a module: the source of
/// an [`ErrorKind::Framework`](safetensors_core::ErrorKind::Framework). For a tensor of the wrong
/// shape or kind, the source is an [`ApplyError`](crate::ApplyError) or
/// [`Transposed`](StoreError::Transposed).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The checkpoint lacks parameters of the module.
    #[error("the checkpoint lacks {}: allow_partial(true) loads the rest", NameList(.names))]
    Missing {
        /// Their paths in the module, or PyTorch's names.
        names: Vec<String>,
    },
    /// The module has only some of the parameters in a tensor of PyTorch.
    #[error("the tensor holds {expected} parameters, but the module has only {}", NameList(.found))]
    OtherParts {
        /// The number of parameters in the tensor.
        expected: usize,
        /// The paths of the parameters in the module.
        found: Vec<String>,
    },
    /// Both the adapter and the layout of PyTorch transpose linear layers.
    #[error(
        "the adapter transposes linear layers, and pytorch(true) does so too: remove the adapter"
    )]
    TransposedTwice,
    /// Parameters that PyTorch saves in one tensor differ in dtype or shape.
    #[error(
        "{path} has the dtype {:?} and the shape {:?}, but the tensor also holds parameters of \
         {:?} and {:?}",
        .found.0, .found.1, .expected.0, .expected.1
    )]
    UnlikeParts {
        /// The path of the parameter in the module.
        path: String,
        /// The dtype and shape of the first parameter in the file.
        expected: (DType, Vec<usize>),
        /// The dtype and shape of this parameter in the file.
        found: (DType, Vec<usize>),
    },
    /// A pattern is not a regular expression.
    #[error(transparent)]
    Pattern(regex::Error),
    /// The destination of a save is an index.
    #[error("a module is saved to a file or in a directory, not to an index (*.json)")]
    IndexDestination,
    /// The backend or an adapter panicked, for example because the device lacks the dtype.
    #[error("the backend or an adapter panicked: {message}")]
    Panicked {
        /// The message of the panic.
        message: String,
    },
    /// A tensor has the shape of its parameter with rows and columns exchanged.
    #[error(
        "expected shape {expected:?}, found {found:?}, which fits transposed: {}",
        hint(*.is_adapted)
    )]
    Transposed {
        /// The shape of the parameter.
        expected: [usize; 2],
        /// The shape of the tensor, after the adapter.
        found: [usize; 2],
        /// Whether the adapter or the layout of PyTorch has changed the shape.
        is_adapted: bool,
    },
    /// The metadata entry of the ids of parameters is malformed.
    #[error("the entry {key} in __metadata__ is malformed: {source}; param_ids(false) ignores it")]
    ParamIds {
        /// The key of the entry.
        key: &'static str,
        /// The problem of its value.
        source: serde_json::Error,
    },
    /// Ids of parameters were requested, and the metadata has none.
    #[error(
        "expected the ids of parameters, found no {key} in __metadata__; param_ids(false) \
         keeps those of the module"
    )]
    NoParamIds {
        /// The key of the entry.
        key: &'static str,
    },
    /// Loading in steps failed after some parameters had got their new values.
    #[error("{loaded} of {total} parameters have their new values, and the rest do not: {}", .source.kind())]
    PartlyLoaded {
        /// The number of parameters with new values.
        loaded: usize,
        /// The number of parameters to be loaded.
        total: usize,
        /// Why loading failed.
        source: Box<Error>,
    },
    /// A store in memory has no bytes.
    #[error("the store has no bytes: save a module to it, or give it the bytes of a file")]
    NoBytes,
    /// The bytes of a store that is not in memory were requested.
    #[error("the store is not in memory: only one made by from_bytes has bytes")]
    NotInMemory,
    /// A store of an open checkpoint cannot save, or load after reading it failed.
    #[error("the store loads from an open checkpoint, once: from_file makes one that saves")]
    OnlyLoads,
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::framework::<Burn>(error)
    }
}

fn hint(is_adapted: bool) -> &'static str {
    if is_adapted {
        "it has been transposed, but the file seems to have burn's layout already; leave out \
         pytorch(true), or the adapter"
    } else {
        "PyTorch stores linear layers so, and pytorch(true) transposes them"
    }
}

pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        StoreError::Panicked { message: text.unwrap_or("without a message").into() }.into()
    })
}
