//! [`AsyncReadAt`]: the bytes of a file, read asynchronously.

use std::io;

use super::read_at::Requests;

/// Bytes that can be read at any position, asynchronously: an HTTP server in a browser, a socket, a
/// file of an asynchronous runtime. It is [`ReadAt`](super::ReadAt) for programs that must not
/// block.
///
/// [`AsyncStore`](crate::checkpoint::store::AsyncStore) reads checkpoints from such sources, and
/// has an example. It depends on no runtime: any runtime, or a browser, can poll the futures. They
/// can be sent to other threads if the source's futures can.
///
/// All bytes should come from one version of the file. If a source cannot ensure that, for example
/// by a condition on the ETag, a file that is replaced during the read gives wrong values. The
/// [version](AsyncReadAt::version) shows whether an index still belongs to its files.
pub trait AsyncReadAt: Send + Sync {
    /// Returns the number of bytes, as it was when the source was opened.
    fn byte_len(&self) -> u64;

    /// Fills `buf` with the bytes from `offset` on. The future may be dropped before it is done.
    ///
    /// # Errors
    ///
    /// Any error of the source; [`io::ErrorKind::UnexpectedEof`] if it ends before `buf` is full.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> impl Future<Output = io::Result<()>>;

    /// Returns the most bytes for one call, and the most calls to make at once. The default is 8
    /// MiB and 6, the number of requests that browsers send to one server at once.
    fn requests(&self) -> Requests {
        Requests::new(8 << 20, 6)
    }

    /// Returns the version of the file when the source was opened, such as its ETag. `None`, the
    /// default, if it is not known.
    ///
    /// After [`open_async`](crate::Checkpoint::open_async) has opened the files of an index that
    /// has a version, it opens the index once more. If the version differs, the files may not
    /// belong together, and all are opened again.
    fn version(&self) -> Option<String> {
        None
    }
}
