//! Plans requests for ranges of files, and runs futures at once.

use std::future::poll_fn;
use std::io;
use std::ops::{ControlFlow, Range};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use super::async_file::CachedFile;
use crate::file::io::AsyncReadAt;
use crate::format::parallel::Task;

// At 10 MB a second these bytes take as long as one of six requests at once of 20 ms each.
const GAP: u64 = 32 << 10;

/// Wanted bytes, and the caller's number for their purpose.
pub(super) struct FileRange<S> {
    pub(super) file: Arc<CachedFile<S>>,
    pub(super) range: Range<u64>,
    pub(super) of: usize,
}

pub(super) struct Request<S> {
    pub(super) file: Arc<CachedFile<S>>,
    pub(super) range: Range<u64>,
    pub(super) wanted: u64,
    pub(super) of: usize,
}

pub(super) fn plan<S: AsyncReadAt>(mut wanted: Vec<FileRange<S>>, owner: Task) -> Vec<Request<S>> {
    wanted.sort_by_key(|wanted| (Arc::as_ptr(&wanted.file).addr(), wanted.range.start));
    let mut requests: Vec<Request<S>> = Vec::new();
    for FileRange { file, range, of } in wanted {
        let most = file.source.requests().byte_len.max(1) as u64;
        for hole in file.claim(range, owner) {
            let last = requests.last().filter(|last| Arc::ptr_eq(&last.file, &file));
            // Ranges may overlap.
            let mut at = last.map_or(hole.start, |last| last.range.end.max(hole.start));
            while at < hole.end {
                let range = at..hole.end.min(at.saturating_add(most));
                at = range.end;
                match requests.last_mut() {
                    Some(last) if last.may_take(&file, &range, most) => last.add(range),
                    _ => {
                        let file = Arc::clone(&file);
                        let wanted = range.end - range.start;
                        requests.push(Request { file, range, wanted, of });
                    }
                }
            }
        }
    }
    requests
}

impl<S: AsyncReadAt> Request<S> {
    fn may_take(&self, file: &Arc<CachedFile<S>>, range: &Range<u64>, most: u64) -> bool {
        if !Arc::ptr_eq(&self.file, file) {
            return false;
        }
        let gap = range.start - self.range.end;
        let span = range.end - self.range.start;
        let wanted = self.wanted + (range.end - range.start);
        span <= most && (gap <= GAP || span <= wanted.saturating_mul(2))
    }

    fn add(&mut self, range: Range<u64>) {
        self.wanted += range.end - range.start;
        self.range.end = range.end;
    }

    /// Keeps the bytes, or the error, with the file for their owner.
    pub(super) async fn send(self, owner: Task) -> (usize, u64, Result<(), Arc<io::Error>>) {
        let Self { file, range, wanted, of } = self;
        let bytes = read(&file.source, range.clone()).await.map_err(Arc::new);
        let result = bytes.as_ref().map(drop).map_err(Arc::clone);
        file.add(range, bytes, owner);
        (of, wanted, result)
    }
}

pub(super) async fn read<S: AsyncReadAt>(source: &S, range: Range<u64>) -> io::Result<Vec<u8>> {
    let len = range.end - range.start;
    let mut bytes = Vec::new();
    usize::try_from(len)
        .ok()
        .and_then(|len| bytes.try_reserve_exact(len).ok().map(|()| bytes.resize(len, 0)))
        .ok_or_else(|| {
            let message = format!("no memory for {len} bytes");
            io::Error::new(io::ErrorKind::OutOfMemory, message)
        })?;
    source.read_exact_at(&mut bytes, range.start).await?;
    Ok(bytes)
}

/// Runs at most `at_once` futures at a time, until all are done or `done` stops it.
pub(super) async fn each<F: Future>(
    futures: impl IntoIterator<Item = F>,
    at_once: usize,
    mut done: impl FnMut(F::Output) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut waiting = futures.into_iter();
    let mut running: Vec<Pin<Box<F>>> =
        waiting.by_ref().take(at_once.max(1)).map(Box::pin).collect();
    poll_fn(|context| {
        let mut next = 0;
        while let Some(future) = running.get_mut(next) {
            let Poll::Ready(output) = future.as_mut().poll(context) else {
                next += 1;
                continue;
            };
            if done(output).is_break() {
                return Poll::Ready(ControlFlow::Break(()));
            }
            match waiting.next() {
                Some(future) => running[next] = Box::pin(future),
                None => drop(running.swap_remove(next)),
            }
        }
        if running.is_empty() { Poll::Ready(ControlFlow::Continue(())) } else { Poll::Pending }
    })
    .await
}
