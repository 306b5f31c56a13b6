//! [`AsyncReadAt`]: where the bytes of a file come from if reading them is asynchronous.

use std::io;

use super::read_at::Requests;

/// Bytes that can be read at any position, asynchronously: an HTTP server in a browser, a socket, a
/// file of an asynchronous runtime. It is [`ReadAt`](super::ReadAt) for programs that must not
/// wait for it.
///
/// [`AsyncStore`](crate::checkpoint::store::AsyncStore) reads checkpoints from such sources, and
/// has an example. It knows no runtime: the futures are polled by whoever polls its own, and may
/// be of any runtime, or of a browser. Its futures can be sent to other threads if those of the
/// source can.
///
/// All bytes should be of one version of the file. If a source cannot make sure of that, for
/// example by a condition on the ETag, a file that is replaced meanwhile gives wrong values. The
/// [version](AsyncReadAt::version) tells whether an index still belongs to its files.
pub trait AsyncReadAt: Send + Sync {
    /// The number of bytes, as it was when the source was opened.
    fn byte_len(&self) -> u64;

    /// Fills `buf` with the bytes from `offset` on. The future may be dropped before it is done.
    ///
    /// # Errors
    ///
    /// The errors of the source; [`io::ErrorKind::UnexpectedEof`] if it ends before `buf` is full.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> impl Future<Output = io::Result<()>>;

    /// How many bytes one call may have, and how many calls may be under way at once. 8 MiB and 6
    /// by default, which is how many requests browsers send to one server at once.
    fn requests(&self) -> Requests {
        Requests::new(8 << 20, 6)
    }

    /// The version of the file as it was when the source was opened, such as its ETag. `None`, the
    /// default, if that is not known.
    ///
    /// After [`open_async`](crate::Checkpoint::open_async) has opened the files of an index that
    /// has a version, it opens the index once more. If the version differs, the files may not
    /// belong together, and all are opened again.
    fn version(&self) -> Option<String> {
        None
    }
}
