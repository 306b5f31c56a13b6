//! Ranges of a file on the Hub, several at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::{io, thread};

use safetensors_core::ErrorKind;

use super::object::IN_FLIGHT;
use super::plan::Request;
use crate::client::HubFile;
use crate::error::{Result, to_io};

/// Bounds how many requests of all files of a repository are under way.
#[derive(Default)]
pub(super) struct Slots {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// Frees its place when it is dropped.
pub(super) struct RequestSlot<'a>(&'a Slots);

impl Slots {
    pub(super) fn take(&self) -> RequestSlot<'_> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken >= IN_FLIGHT {
            taken = self.freed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken += 1;
        RequestSlot(self)
    }
}

impl Drop for RequestSlot<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.freed.notify_one();
    }
}

/// Runs the requests, several at once, and fills their memory. The first failure ends the others.
pub(super) fn fill(file: &HubFile, slots: &Slots, requests: Vec<Request<'_>>) -> io::Result<()> {
    let threads = requests.len().min(IN_FLIGHT);
    let stop = AtomicBool::new(false);
    let (waiting, failed) = (Mutex::new(requests.into_iter()), Mutex::new(None));
    let work = || {
        let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some(request) = next() {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let _slot = slots.take();
            if let Err(error) = fetch(file, request, &stop) {
                // Later ones are those that this one stops.
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.get_or_insert(error);
                stop.store(true, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // If the system refuses to start a thread, fewer threads do the work.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(to_io(error)),
        None => Ok(()),
    }
}

fn fetch(file: &HubFile, mut request: Request<'_>, stop: &AtomicBool) -> Result<()> {
    file.stream(request.range(), stop, &mut |bytes| {
        request.take(bytes).map_err(|error| ErrorKind::Io(error).into())
    })
}
