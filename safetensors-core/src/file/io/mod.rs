//! Positional reads and writes, and a parsed file.

#[cfg(feature = "std")]
mod async_read_at;
#[cfg(feature = "std")]
pub(crate) mod copy;
#[cfg(feature = "std")]
pub(crate) mod failpoint;
#[cfg(feature = "std")]
mod file;
#[cfg(feature = "std")]
pub(crate) mod hidden;
#[cfg(feature = "std")]
pub(crate) mod identity;
#[cfg(feature = "std")]
pub(crate) mod lock;
#[cfg(feature = "std")]
pub(crate) mod names;
#[cfg(feature = "std")]
#[doc(hidden)]
pub mod next_to;
#[cfg(feature = "std")]
pub(crate) mod page_cache;
#[cfg(feature = "std")]
pub(crate) mod positional;
#[cfg(feature = "std")]
pub(crate) mod read_at;
#[cfg(feature = "std")]
pub(crate) mod remove;
#[cfg(feature = "std")]
pub(crate) mod reserve;
mod safetensors;
#[cfg(feature = "std")]
pub(crate) mod stamp;
#[cfg(all(test, feature = "std"))]
pub(crate) mod testing;
#[cfg(feature = "std")]
pub(crate) mod unfinished;
#[cfg(feature = "std")]
mod waiting;

pub use safetensors::SafeTensors;

#[cfg(feature = "std")]
pub use self::{
    async_read_at::AsyncReadAt,
    file::FileSource,
    read_at::{ReadAt, Requests},
};
#[cfg(feature = "std")]
pub use crate::format::slice::read_range::ReadRange;
#[cfg(feature = "std")]
pub use memmap2::Mmap;
