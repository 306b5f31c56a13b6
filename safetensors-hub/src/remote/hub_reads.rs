//! Ranges of a file on the Hub, several at once.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex, PoisonError};

use safetensors_core::ErrorKind;

use super::object::IN_FLIGHT;
use super::plan::Request;
use crate::client::HubFile;
use crate::error::to_io;
use crate::parallel::each;

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
    let stop = AtomicBool::new(false);
    let fetch = |mut request: Request<'_>| {
        let _slot = slots.take();
        file.stream(request.range(), &stop, &mut |bytes| {
            request.take(bytes).map_err(|error| ErrorKind::Io(error).into())
        })
    };
    each(requests, IN_FLIGHT, &stop, fetch).map(drop).map_err(to_io)
}
