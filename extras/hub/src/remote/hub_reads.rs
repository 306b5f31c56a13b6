//! Reads ranges of a file on the Hub, several at once.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex, PoisonError};

use safetensors_core::{ErrorKind, Result, lock};

use super::object::IN_FLIGHT;
use super::plan::Request;
use crate::client::{GLANCE, HubFile};
use crate::error::{check_stop, to_io};
use crate::parallel::each;

/// Bounds the requests for a repository.
#[derive(Default)]
pub(super) struct Slots {
    taken: Mutex<usize>,
    freed: Condvar,
}

pub(super) struct RequestSlot<'a>(&'a Slots);

impl Slots {
    pub(super) fn take(&self, stop: &AtomicBool) -> Result<RequestSlot<'_>> {
        let mut taken = lock(&self.taken);
        while *taken >= IN_FLIGHT {
            check_stop(stop)?;
            let waited = self.freed.wait_timeout(taken, GLANCE);
            taken = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *taken += 1;
        Ok(RequestSlot(self))
    }
}

impl Drop for RequestSlot<'_> {
    fn drop(&mut self) {
        *lock(&self.0.taken) -= 1;
        self.0.freed.notify_one();
    }
}

/// The first failure ends the others.
pub(super) fn fill(file: &HubFile, slots: &Slots, requests: Vec<Request<'_>>) -> io::Result<()> {
    let stop = AtomicBool::new(false);
    let fetch = |mut request: Request<'_>| {
        let _slot = slots.take(&stop)?;
        file.stream(request.range(), &stop, &mut |bytes| {
            request.take(bytes).map_err(|error| ErrorKind::Io(error).into())
        })
    };
    each(requests, IN_FLIGHT, &stop, fetch).map(drop).map_err(to_io)
}
