//! Errors of loading and saving modules that core does not have.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::DType;
use safetensors_core::framework::NameList;
use safetensors_core::{Error, Result};

/// The [`Framework`](safetensors_core::framework::Framework) of burn, for code that is generic over tensor libraries.
///
/// Its tensor is [`TensorData`](burn::tensor::TensorData), with a dtype and number of dimensions
/// that are known at run time. `Tensor::from_data` makes a `Tensor<D, K>` of it on any device.
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

/// Why a [`CheckpointStore`](crate::CheckpointStore) could not load or save a module.
///
/// This error is the source of an [`ErrorKind::Framework`](safetensors_core::ErrorKind::Framework).
/// For a tensor of the wrong shape or kind, the source is an [`ApplyError`](crate::ApplyError),
/// except for [`Transposed`](StoreError::Transposed).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The checkpoint lacks parameters that the module has, and partial loading is not allowed.
    #[error("the checkpoint lacks {}: allow_partial(true) loads the rest", NameList(.names))]
    Missing {
        /// The parameters, by the name of their tensor: their path in the module, or the name
        /// that PyTorch has for it.
        names: Vec<String>,
    },
    /// A tensor of PyTorch holds several parameters, and the module has only some of them.
    #[error("the tensor holds {expected} parameters, but the module has only {}", NameList(.found))]
    OtherParts {
        /// The number of parameters that the tensor holds.
        expected: usize,
        /// The parameters that the module has, by their path.
        found: Vec<String>,
    },
    /// An adapter transposes linear layers, and so does the layout of PyTorch. Together they would
    /// leave square weights as they are, without an error.
    #[error(
        "the adapter transposes linear layers, and pytorch(true) does so too: leave the adapter out"
    )]
    TransposedTwice,
    /// Parameters that PyTorch saves in one tensor differ in dtype or shape.
    #[error(
        "{path} has the dtype {:?} and the shape {:?}, but the tensor also holds parameters of \
         {:?} and {:?}",
        .found.0, .found.1, .expected.0, .expected.1
    )]
    UnlikeParts {
        /// The parameter, by its path in the module.
        path: String,
        /// The dtype and shape of the first of the parameters, in the layout of the file.
        expected: (DType, Vec<usize>),
        /// The dtype and shape of this parameter, in the layout of the file.
        found: (DType, Vec<usize>),
    },
    /// A pattern is not a regular expression.
    #[error(transparent)]
    Pattern(regex::Error),
    /// The destination of a save is an index. The save would replace the index with tensors.
    #[error("a module is saved to a file or in a directory, not to an index (*.json)")]
    IndexDestination,
    /// The backend or an adapter panicked while it handled a tensor, for example because the device
    /// lacks the dtype.
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
        /// Whether the adapter, or the layout of PyTorch, has changed the shape.
        is_adapted: bool,
    },
    /// The metadata entry of the ids of parameters is not JSON of the form that it should have.
    #[error("the entry {key} in __metadata__ is malformed: {source}; param_ids(false) ignores it")]
    ParamIds {
        /// The key of the entry.
        key: &'static str,
        /// The problem of its value.
        source: serde_json::Error,
    },
    /// The ids of parameters were asked for, and the metadata has none.
    #[error(
        "expected the ids of parameters, found no {key} in __metadata__; param_ids(false) \
         keeps those of the module"
    )]
    NoParamIds {
        /// The key of the entry.
        key: &'static str,
    },
    /// Loading in steps failed after some parameters had got their new values. The others have
    /// their old ones. See [`max_extra_memory`](crate::CheckpointStore::max_extra_memory).
    #[error("{loaded} of {total} parameters have their new values already: {}", .source.kind())]
    PartlyLoaded {
        /// The number of parameters that have their new values.
        loaded: usize,
        /// The number of parameters to be loaded.
        total: usize,
        /// Why loading failed.
        source: Box<Error>,
    },
    /// A store in memory was given no bytes, and nothing has been saved to it.
    #[error("the store has no bytes: save a module to it, or give it the bytes of a file")]
    NoBytes,
    /// The bytes of a store were asked for that saves to a path.
    #[error("the store is not in memory: only one made by from_bytes has bytes")]
    NotInMemory,
    /// A store of a checkpoint that was open already was asked to save, or to load after it could
    /// not read that checkpoint.
    #[error("the store loads from an open checkpoint, once: from_file makes one that saves")]
    OnlyLoads,
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::framework::<Burn>(error)
    }
}

/// Returns advice for a tensor that fits transposed.
fn hint(is_adapted: bool) -> &'static str {
    if is_adapted {
        "it has been transposed, but the file seems to have burn's layout already; leave out \
         pytorch(true), or the adapter"
    } else {
        "PyTorch stores linear layers so, and pytorch(true) transposes them"
    }
}

/// Calls the code of a backend or an adapter, and turns its panic into an error.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        StoreError::Panicked { message: text.unwrap_or("without a message").into() }.into()
    })
}
