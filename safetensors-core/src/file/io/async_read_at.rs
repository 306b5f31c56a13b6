//! [`AsyncReadAt`]: the bytes of a file, read asynchronously.

use std::io;

use super::read_at::Requests;

/// Bytes of a file, read asynchronously at any position: [`ReadAt`](super::ReadAt) for programs
/// that must not block, such as in a browser.
///
/// Depends on no runtime; the futures are `Send` if the source's are.
/// [`AsyncStore`](crate::checkpoint::store::AsyncStore) has an example.
///
/// All bytes must come from one version of the file, for example by a condition on the ETag.
/// Otherwise a file that is replaced during the read gives wrong values.
pub trait AsyncReadAt: Send + Sync {
    /// Returns the number of bytes when the source was opened.
    fn byte_len(&self) -> u64;

    /// Fills `buf` with the bytes from `offset` on. The future may be dropped early.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::UnexpectedEof`] if the source ends before `buf` is full.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> impl Future<Output = io::Result<()>>;

    /// Returns the most bytes for a call, and the most calls at once: by default 8 MiB and 6, as in
    /// browsers.
    fn requests(&self) -> Requests {
        Requests::new(8 << 20, 6)
    }

    /// Returns the version of the file when it was opened, such as its ETag, if it is known.
    ///
    /// [`open_async`](crate::Checkpoint::open_async) opens a versioned index again after its files.
    /// If the version differs, it opens all files again.
    fn version(&self) -> Option<String> {
        None
    }
}
