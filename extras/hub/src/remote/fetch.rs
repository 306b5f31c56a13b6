//! [`fill`]: many requests at once, copied into place by the calling thread.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use tokio::task::AbortHandle;

use super::object::{Arrived, IN_FLIGHT, Object, Take};
use super::plan::Request;
use super::runtime::{ended_early, handle};

enum Message {
    Arrived(usize, Arrived),
    Ended(usize, io::Result<()>),
}

/// Dropping it, even by a panic, notifies the waiting thread.
struct Running {
    number: usize,
    sender: Sender<Message>,
    has_ended: bool,
}

impl Running {
    fn end(&mut self, result: io::Result<()>) {
        self.has_ended = true;
        // Fails if another request has failed, so that no thread waits any more.
        let _ = self.sender.send(Message::Ended(self.number, result));
    }
}

impl Take for Running {
    fn take(&mut self, arrived: Arrived) -> bool {
        self.sender.send(Message::Arrived(self.number, arrived)).is_ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(Err(ended_early()));
        }
    }
}

#[derive(Default)]
struct Tasks(Vec<AbortHandle>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

/// At most [`IN_FLIGHT`] at once for a store. The first failure ends the others.
pub(super) fn fill(object: &Arc<Object>, mut requests: Vec<Request<'_>>) -> io::Result<()> {
    let runtime = handle()?;
    let (sender, messages) = channel();
    let mut tasks = Tasks::default();
    let ranges: Vec<Range<u64>> = requests.iter().map(Request::range).collect();
    let mut waiting = ranges.into_iter().enumerate();
    let mut begin = || {
        let Some((number, range)) = waiting.next() else { return false };
        let mut running = Running { number, sender: sender.clone(), has_ended: false };
        let object = Arc::clone(object);
        let task = runtime.spawn(async move {
            let result = object.fetch(range, &mut running).await;
            running.end(result);
        });
        tasks.0.push(task.abort_handle());
        true
    };
    let mut under_way = (0..IN_FLIGHT).take_while(|_| begin()).count();
    while under_way > 0 {
        match messages.recv().map_err(|_| ended_early())? {
            Message::Arrived(number, arrived) => {
                arrived.pieces().try_for_each(|bytes| requests[number].take(bytes))?;
            }
            Message::Ended(number, result) => {
                result?;
                if !requests[number].is_filled() {
                    return Err(ended_early());
                }
                if !begin() {
                    under_way -= 1;
                }
            }
        }
    }
    Ok(())
}
