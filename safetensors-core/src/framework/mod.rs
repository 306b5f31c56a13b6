//! Tools for adapters of a tensor library. Programs that only load and save need none of them.
//!
//! An adapter implements [`Framework`]: the dtypes that its library holds, and conversions between
//! a loaded tensor and a tensor of the library. [`load`], [`save`] and [`save_sharded`] then work
//! for it, with conversion, widening, errors and quantised weights.
//!
//! This module knows no library by name. Begin with the example of [`Framework`].
//!
//! | for | there are |
//! |---|---|
//! | adapters that read in their own way | [`read_in_batches`], [`in_parallel`] |
//! | memory of a device | [`read_staged`] |
//! | batches of a training | [`Samples`] |
//! | models larger than memory | [`TensorCache`] |
//! | tools | [`OtherFormat`], [`default_threads`] |
//!
//! Items without a page here are only for the packages of this repository.

#[cfg(feature = "std")]
mod cache;
#[cfg(feature = "std")]
mod expanded;
#[cfg(feature = "std")]
mod files;
#[cfg(feature = "std")]
mod samples;
#[cfg(feature = "std")]
mod scalar;
#[cfg(feature = "std")]
mod staged;
#[cfg(all(test, feature = "std"))]
mod testing;

use alloc::boxed::Box;
use alloc::string::String;

#[cfg(feature = "std")]
pub use cache::{CacheStats, TensorCache};
#[cfg(feature = "std")]
pub use expanded::most_expanded;
#[cfg(feature = "std")]
use files::read_into_host;
#[cfg(feature = "std")]
pub use files::{
    add_aliases, into_view, load, load_path, prepare, read_in_batches, save, save_sharded,
    synced_later, view,
};
#[cfg(feature = "std")]
pub use samples::{Sample, SampleBatch, Samples};
#[cfg(feature = "std")]
pub use scalar::RecordScalar;

#[cfg(feature = "std")]
use crate::file::io::ReadAt;
#[cfg(feature = "std")]
pub use crate::file::io::hidden::is_temporary_name;
#[cfg(feature = "std")]
pub use crate::file::io::positional::start_writing_back;
#[cfg(feature = "std")]
use crate::file::load::{LazyTensor, LoadOptions};
pub use crate::format::convert::support::Support;
use crate::format::convert::{DtypeTable, Widening, widen};
use crate::format::dtype::Dtype;
#[cfg(feature = "std")]
pub use crate::format::error::similar_names;
pub use crate::format::error::text::{Escaped, NameList, Quoted};
use crate::format::error::{Error, ErrorKind, Result};
#[cfg(feature = "std")]
pub use crate::format::header::{PARAM_IDS_KEY, SCALARS_KEY};
pub use crate::format::other_format::OtherFormat;
#[cfg(feature = "std")]
#[doc(hidden)]
pub use crate::format::parallel::Meter;
#[cfg(feature = "std")]
pub use crate::format::parallel::{default_threads, in_order, in_order_ahead, in_parallel};
pub use crate::format::tensor::boolean::check_bools;
use crate::format::tensor::{TensorBuf, TensorSource, TensorView};
pub use crate::format::tensor::{write_exactly, write_in_pieces, write_native};
#[cfg(feature = "std")]
pub use crate::format::trace::Span;
#[cfg(feature = "std")]
pub use staged::{StagedPart, Staging, StagingBuffers, read_staged};

/// A tensor library that tensors are loaded into and saved from.
///
/// An adapter implements this trait for its own zero-size type (`Ndarray`, `Candle`, `Burn`).
/// The adapters share [`load`], [`save`] and one conformance suite.
///
/// ```
/// use safetensors_core::framework::{Framework, Support, load, save};
/// use safetensors_core::{
///     Checkpoint, Dtype, Error, LoadOptions, Result, SaveOptions, TensorBuf, TensorSource,
///     TensorView,
/// };
///
/// /// The tensors of a library that has nothing but 16-bit integers.
/// #[derive(Clone, Debug, PartialEq)]
/// struct Samples {
///     shape: Vec<usize>,
///     values: Vec<i16>,
/// }
///
/// /// The library, as a framework.
/// struct Audio;
///
/// impl Framework for Audio {
///     const NAME: &'static str = "audio";
///     type Tensor = Samples;
///     type Device = ();
///
///     fn support(dtype: Dtype) -> Support {
///         match dtype {
///             Dtype::I16 => Support::Exact,
///             Dtype::I8 => Support::Widened(Dtype::I16),
///             _ => Support::Unsupported,
///         }
///     }
///
///     fn from_exact(buf: TensorBuf, (): &()) -> Result<Samples> {
///         match buf.dtype() {
///             Dtype::I16 => Ok(Samples { shape: buf.shape().to_vec(), values: buf.into_vec()? }),
///             dtype => Err(Error::unsupported_dtype::<Self>(dtype)),
///         }
///     }
///
///     fn source(tensor: &Samples) -> Result<impl TensorSource + '_> {
///         TensorView::from_slice(&tensor.shape, &tensor.values)
///     }
/// }
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("sound.safetensors");
/// let wave = Samples { shape: vec![2, 2], values: vec![0, 1, 0, -1] };
/// save::<Audio>(&path, [("wave", &wave)], &SaveOptions::new())?;
/// assert_eq!(load::<Audio>(&Checkpoint::open(&path)?, &(), &LoadOptions::new())?["wave"], wave);
///
/// // A narrower dtype is widened.
/// let small = TensorView::from_slice(&[2], &[-1_i8, 1])?;
/// safetensors_core::save(&path, [("small", small)], &SaveOptions::new())?;
/// let loaded = load::<Audio>(&Checkpoint::open(&path)?, &(), &LoadOptions::new())?;
/// assert_eq!(loaded["small"].values, [-1, 1]);
///
/// // A dtype that the library cannot hold is an error that names the tensor.
/// let float = TensorView::from_slice(&[1], &[0.5_f32])?;
/// safetensors_core::save(&path, [("f", float)], &SaveOptions::new())?;
/// let error = load::<Audio>(&Checkpoint::open(&path)?, &(), &LoadOptions::new()).unwrap_err();
/// let expected = r#"tensor "f": audio has no type that holds F32 exactly"#;
/// assert!(error.to_string().ends_with(expected), "{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Framework {
    /// The framework's name, for messages.
    const NAME: &'static str;

    /// A tensor with a dtype and a number of dimensions, 0 or more, that are known only at run
    /// time. A library that has only matrices needs an additional type. Elements are in C order. A
    /// tensor with several names in a file is cloned for each.
    type Tensor: Clone;

    /// The device that tensors are loaded to; `()` if there is only main memory.
    type Device;

    /// Returns how this framework holds elements of `dtype`. This is the adapter's dtype table.
    fn support(dtype: Dtype) -> Support;

    /// Makes a tensor from a buffer with a dtype that the framework holds exactly. The elements are
    /// moved, not copied, if the device is main memory.
    ///
    /// Users call [`from_buf`](Framework::from_buf) instead, which widens a dtype that the
    /// framework lacks.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnsupportedDtype`] for any other dtype; [`ErrorKind::Framework`] if the
    /// framework fails.
    fn from_exact(buf: TensorBuf, device: &Self::Device) -> Result<Self::Tensor>;

    /// Borrows a tensor as a source of its dtype, shape and bytes, to be saved. Contiguous tensors
    /// in main memory are not copied.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnsupportedFrameworkType`] if the format has no dtype for the tensor's
    /// elements.
    fn source(tensor: &Self::Tensor) -> Result<impl TensorSource + '_>;

    /// Makes a tensor from an owned buffer. A dtype that the framework lacks is widened losslessly
    /// if `widening` allows that.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnsupportedDtype`] and [`ErrorKind::WouldWiden`] for dtypes that the framework
    /// does not hold; [`ErrorKind::DoesNotFit`] for a value that the wider dtype does not hold;
    /// [`ErrorKind::Framework`] if the framework fails.
    fn from_buf(buf: TensorBuf, device: &Self::Device, widening: Widening) -> Result<Self::Tensor> {
        let dtype = buf.dtype();
        match DtypeTable::new::<Self>().accept(dtype, widening)? {
            to if to == dtype => Self::from_exact(buf, device),
            to => Self::from_exact(widen(buf, to)?, device),
        }
    }

    /// Makes a tensor from a view, as [`from_buf`](Framework::from_buf) does. The bytes are copied.
    ///
    /// # Errors
    ///
    /// As for [`from_buf`](Framework::from_buf); [`ErrorKind::InvalidBool`].
    fn from_view(
        view: &TensorView<'_>,
        device: &Self::Device,
        widening: Widening,
    ) -> Result<Self::Tensor> {
        DtypeTable::new::<Self>().accept(view.dtype(), widening)?;
        Self::from_buf(TensorBuf::from_view(view)?, device, widening)
    }

    /// Reads tensors onto a device, in parallel, and returns them in the order given. [`load`] does
    /// this with all tensors.
    ///
    /// By default all of them are in main memory at once. A framework for devices with separate
    /// memory calls [`read_in_batches`], or [`read_staged`] if a device copies while threads read,
    /// so that not all tensors are held twice.
    ///
    /// # Errors
    ///
    /// As for [`read_tensors`](crate::load::read_tensors) and
    /// [`from_exact`](Framework::from_exact); each error names the file and the tensor. Dtypes are
    /// checked before a byte of data is read.
    #[cfg(feature = "std")]
    fn read_tensors<S: ReadAt>(
        tensors: &[LazyTensor<'_, S>],
        device: &Self::Device,
        options: &LoadOptions,
    ) -> Result<Vec<Self::Tensor>> {
        read_into_host::<Self, S>(tensors, device, options)
    }
}

/// Constructors of the errors of adapters.
impl Error {
    /// Makes [`ErrorKind::Framework`]: the framework `F` itself failed with `source`.
    ///
    /// ```
    /// use safetensors_core::Error;
    /// use safetensors_core::framework::Framework;
    ///
    /// fn parse<F: Framework>(text: &str) -> safetensors_core::Result<i32> {
    ///     text.parse().map_err(Error::framework::<F>)
    /// }
    /// ```
    #[doc(hidden)]
    pub fn framework<F: Framework + ?Sized>(
        source: impl core::error::Error + Send + Sync + 'static,
    ) -> Self {
        ErrorKind::Framework { framework: F::NAME, source: Box::new(source) }.into()
    }

    /// Makes [`ErrorKind::UnsupportedDtype`]: the framework `F` has no type for elements of
    /// `dtype`.
    pub fn unsupported_dtype<F: Framework + ?Sized>(dtype: Dtype) -> Self {
        ErrorKind::UnsupportedDtype { framework: F::NAME, dtype }.into()
    }

    /// Makes [`ErrorKind::UnsupportedFrameworkType`]: the format has no dtype for elements that the
    /// framework `F` calls `found`.
    #[doc(hidden)]
    pub fn unsupported_framework_type<F: Framework + ?Sized>(found: impl Into<String>) -> Self {
        ErrorKind::UnsupportedFrameworkType { framework: F::NAME, found: found.into() }.into()
    }
}

impl DtypeTable {
    pub(crate) fn new<F: Framework + ?Sized>() -> Self {
        Self { framework: F::NAME, support: F::support }
    }
}
