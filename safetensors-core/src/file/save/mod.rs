//! Saving tensors to files. A file is replaced completely or not at all.
//!
//! | to | use |
//! |---|---|
//! | save tensors to a file | [`save()`] |
//! | write tensors piece by piece, in any order, from several threads | [`StreamWriter`] |
//! | send a file through a pipe, a socket or a compressor | [`write_to`] |
//! | have a file in memory | [`serialize`] |
//! | write tensors that are not known at the start, or grow | [`GrowingWriter`] |
//! | save while the program continues | [`BackgroundSaver`] |
//! | write a file of another kind as safely | [`AtomicFile`] |
//! | write a directory of files as safely | [`AtomicDirectory`] |
//! | end the process during a save, and leave nothing behind | [`remove_temporaries`] |
//!
//! The first four take the same [`SaveOptions`], and write the same bytes for the same tensors.

#[cfg(feature = "std")]
pub(crate) mod atomic;
#[cfg(feature = "std")]
mod background;
#[cfg(feature = "std")]
pub(crate) mod cached;
#[cfg(feature = "std")]
pub(crate) mod directories;
#[cfg(feature = "std")]
mod directory;
#[cfg(feature = "std")]
mod early;
#[cfg(feature = "std")]
mod gather;
#[cfg(feature = "std")]
mod growing;
pub(crate) mod layout;
#[cfg(feature = "std")]
pub(crate) mod leftovers;
#[cfg(feature = "std")]
mod lock;
mod options;
#[cfg(feature = "std")]
pub(crate) mod permissions;
#[cfg(feature = "std")]
mod pieces;
#[cfg(feature = "std")]
mod ranges;
#[cfg(feature = "std")]
mod recording;
pub(crate) mod sequential;
pub(crate) mod spec;
#[cfg(feature = "std")]
mod stream;
#[cfg(feature = "std")]
pub(crate) mod temporary;
#[cfg(feature = "std")]
mod tensor_writer;
#[cfg(all(test, feature = "std"))]
mod tests;
mod ties;
#[cfg(feature = "std")]
mod writer;

#[cfg(feature = "std")]
pub use self::{
    atomic::AtomicFile,
    background::BackgroundSaver,
    directory::{AtomicDirectory, DirectoryPlace},
    growing::{GrowingTensor, GrowingWriter},
    sequential::write_to,
    stream::StreamWriter,
    tensor_writer::TensorWriter,
    writer::save,
};
pub use options::{Order, SaveOptions};
pub use sequential::serialize;
#[cfg(feature = "std")]
pub(crate) use writer::stage;

#[cfg(feature = "std")]
pub use crate::file::io::unfinished::remove_temporaries;
pub use crate::format::tensor::{PieceSink, Sink, TensorSource};
