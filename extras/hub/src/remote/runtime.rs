//! The runtime of all network I/O.
//!
//! A caller may itself be inside an asynchronous runtime, where blocking on another one panics or
//! deadlocks. So futures are polled only in the threads here, and the caller waits for a channel.

use std::future::Future;
use std::sync::{Mutex, mpsc};
use std::{io, thread};

use safetensors_core::lock;
use tokio::runtime::{Builder, Handle, Runtime};

/// More gain nothing: they only move bytes between sockets and channels.
const MOST_THREADS: usize = 4;

/// Lives as long as the process: it cannot be dropped inside another runtime.
pub(super) fn handle() -> io::Result<Handle> {
    static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);
    let mut runtime = lock(&RUNTIME);
    if let Some(runtime) = &*runtime {
        return Ok(runtime.handle().clone());
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let made = Builder::new_multi_thread()
        .worker_threads(cores.clamp(2, MOST_THREADS))
        .thread_name("safetensors-remote")
        .enable_all()
        .build()?;
    Ok(runtime.insert(made).handle().clone())
}

pub(super) fn run<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    handle()?.spawn(async move {
        // The caller waits, so it takes the result.
        let _ = sender.send(future.await);
    });
    receiver.recv().map_err(|_| ended_early())
}

pub(super) fn ended_early() -> io::Error {
    io::Error::other("a task of the network ended early")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        let panicked = run(async { std::panic::resume_unwind(Box::new("of the task")) });
        let error: io::Result<()> = panicked;
        assert!(error.unwrap_err().to_string().contains("ended early"));
    }
}
