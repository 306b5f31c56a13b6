//! Files that are read asynchronously, and an executor.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::{fs, io, thread};

use safetensors_core::ReadAt;
use safetensors_core::checkpoint::store::AsyncStore;
use safetensors_core::io::{AsyncReadAt, Requests};

/// Polls a future in this thread until it is done.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Lets other futures run once.
pub async fn yield_now() {
    let mut is_done = false;
    poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut is_done, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await
}

/// Opens a file of a [`Server`].
pub type Opening = Pin<Box<dyn Future<Output = io::Result<RemoteFile>> + Send>>;

/// Files that are only to be had asynchronously. It notes each request.
#[derive(Debug, Default)]
pub struct Server {
    files: BTreeMap<PathBuf, Vec<u8>>,
    requests: Option<(usize, usize)>,
    /// The events since the log was last taken.
    pub log: Mutex<Log>,
    /// Requests that contain this byte of a file of this name fail.
    pub failing: Mutex<Option<(PathBuf, u64)>>,
}

/// The events at a [`Server`].
#[derive(Debug, Default)]
pub struct Log {
    /// The files that were asked for.
    pub opened: Vec<PathBuf>,
    /// The ranges that were asked for.
    pub ranges: Vec<(PathBuf, Range<u64>)>,
    /// The requests that are under way, and the most that were.
    pub in_flight: usize,
    /// The most of these.
    pub most: usize,
}

impl Log {
    /// Returns the number of bytes that were asked for.
    pub fn byte_len(&self) -> u64 {
        self.ranges.iter().map(|(_, range)| range.end - range.start).sum()
    }
}

impl Server {
    /// A server of these files.
    pub fn new<N: Into<PathBuf>>(files: impl IntoIterator<Item = (N, Vec<u8>)>) -> Self {
        let files = files.into_iter().map(|(name, bytes)| (name.into(), bytes)).collect();
        Self { files, ..Self::default() }
    }

    /// A server of the files of a directory, under their paths.
    pub fn of_directory(directory: &Path) -> Self {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let files = entries.filter(|path| path.is_file());
        Self::new(files.map(|path| (path.clone(), fs::read(path).unwrap())))
    }

    /// The most bytes of a request, and the most requests at once.
    #[must_use]
    pub fn requests(self, byte_len: usize, concurrency: usize) -> Self {
        Self { requests: Some((byte_len, concurrency)), ..self }
    }

    /// Takes the events since the last call.
    pub fn take_log(&self) -> Log {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    /// A store of the files.
    pub fn store(self: &Arc<Self>) -> AsyncStore<RemoteFile, impl Fn(PathBuf) -> Opening + use<>> {
        let server = Arc::clone(self);
        AsyncStore::new(move |path: PathBuf| {
            let server = Arc::clone(&server);
            Box::pin(async move {
                server.log.lock().unwrap().opened.push(path.clone());
                yield_now().await;
                let is_there = server.files.contains_key(&path);
                is_there.then_some(()).ok_or(io::ErrorKind::NotFound)?;
                Ok(RemoteFile { server, path })
            }) as Opening
        })
    }
}

/// A file of a [`Server`].
#[derive(Debug)]
pub struct RemoteFile {
    server: Arc<Server>,
    path: PathBuf,
}

/// Counts a request that is under way.
struct InFlight<'s>(&'s Server);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        // The log may have been taken in between.
        let mut log = self.0.log.lock().unwrap();
        log.in_flight = log.in_flight.saturating_sub(1);
    }
}

impl AsyncReadAt for RemoteFile {
    fn byte_len(&self) -> u64 {
        self.server.files[&self.path].len() as u64
    }

    async fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let range = offset..offset + buf.len() as u64;
        let _in_flight = {
            let mut log = self.server.log.lock().unwrap();
            log.ranges.push((self.path.clone(), range.clone()));
            log.in_flight += 1;
            log.most = log.most.max(log.in_flight);
            InFlight(&self.server)
        };
        yield_now().await;
        let failing = self.server.failing.lock().unwrap().clone();
        if failing.is_some_and(|(path, byte)| path == self.path && range.contains(&byte)) {
            return Err(io::Error::new(io::ErrorKind::ConnectionReset, "the line is dead"));
        }
        self.server.files[&self.path].read_exact_at(buf, offset)
    }

    fn requests(&self) -> Requests {
        let (byte_len, concurrency) = self.server.requests.unwrap_or((8 << 20, 6));
        let mut requests = Requests::new(byte_len, concurrency);
        requests.byte_len = byte_len;
        requests
    }
}
