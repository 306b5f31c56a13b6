//! [`run`]: threads fill slots while the calling thread has them copied.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use super::{StagedPart, Staging, StagingBuffers};
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::parallel::{OnPanic, Task, default_threads, lock};

enum Message<S> {
    Filled(usize, S),
    Failed(usize, Error),
    Panicked,
}

struct Queue<S> {
    free: Receiver<S>,
    next: usize,
}

pub(super) trait Filler<T: Staging>: Sync {
    type Scratch: Default;

    fn count(&self) -> usize;

    fn fill(&self, number: usize, slot: &mut T::Slot, scratch: &mut Self::Scratch) -> Result<()>;

    fn parts(&self, number: usize) -> &[StagedPart];
}

struct Readers<'f, T: Staging, F> {
    queue: Mutex<Queue<T::Slot>>,
    stop: AtomicBool,
    filler: &'f F,
}

impl<T: Staging, F: Filler<T>> Readers<'_, T, F> {
    /// Returns a free slot in order of the numbers, or `None` at the end.
    fn next(&self) -> Option<(usize, T::Slot)> {
        let mut queue = lock(&self.queue);
        if queue.next == self.filler.count() || self.stop.load(Ordering::Relaxed) {
            return None;
        }
        // Fails when the calling thread has ended.
        let slot = queue.free.recv().ok().filter(|_| !self.stop.load(Ordering::Relaxed))?;
        queue.next += 1;
        Some((queue.next - 1, slot))
    }

    fn work(&self, messages: Sender<Message<T::Slot>>) {
        let _stop = OnPanic(|| {
            self.stop.store(true, Ordering::Relaxed);
            let _ = messages.send(Message::Panicked);
        });
        let mut scratch = F::Scratch::default();
        while let Some((number, mut slot)) = self.next() {
            let message = match self.filler.fill(number, &mut slot, &mut scratch) {
                Ok(()) => Message::Filled(number, slot),
                Err(error) => {
                    self.stop.store(true, Ordering::Relaxed);
                    Message::Failed(number, error)
                }
            };
            if messages.send(message).is_err() {
                break;
            }
        }
    }
}

/// The first failure stops all threads, each after its slot; the error names the first slot that
/// failed.
pub(super) fn run<T: Staging, F: Filler<T>>(
    filler: &F,
    threads: usize,
    buffers: StagingBuffers,
    staging: &mut T,
) -> Result<()> {
    let slots = buffers.slots.max(1).min(filler.count());
    let threads = NonZeroUsize::new(threads).map_or_else(default_threads, usize::from).min(slots);
    let (free, free_slots) = channel();
    let queue = Mutex::new(Queue { free: free_slots, next: 0 });
    let shared = Readers::<T, F> { queue, stop: AtomicBool::new(false), filler };
    let mut device = Device { slots, slot_bytes: buffers.slot_bytes, staging, filler };
    thread::scope(|scope| {
        let (sender, messages) = channel();
        let start = |_| {
            let shared = &shared;
            let sender = sender.clone();
            let task = Task::current();
            let work = move || {
                let _task = task.enter();
                shared.work(sender);
            };
            thread::Builder::new().spawn_scoped(scope, work).ok()
        };
        let readers: Vec<_> = (0..threads).map_while(start).collect();
        drop(sender);
        let result = if readers.is_empty() {
            // The system has no more threads to give.
            device.in_turn()
        } else {
            device.copy(&free, &messages)
        };
        if result.is_err() {
            shared.stop.store(true, Ordering::Relaxed);
        }
        // Threads that wait for a slot end now.
        drop(free);
        let failed = first_failure(result, messages, filler.count());
        for reader in readers {
            reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        failed.map_or(Ok(()), Err)
    })
}

/// Slots before the failed one have been begun.
fn first_failure<S>(
    result: Result<(), Stopped>,
    messages: Receiver<Message<S>>,
    count: usize,
) -> Option<Error> {
    let mut failed = match result {
        Err(Stopped::Failed(number, error)) => Some((number, error)),
        Err(Stopped::Copy(error)) => Some((0, error)),
        // The panic goes on in the calling thread, so this error is never seen.
        Err(Stopped::Panicked) => Some((count, ended_early())),
        Ok(()) => None,
    };
    for message in messages {
        if let Message::Failed(number, error) = message
            && failed.as_ref().is_none_or(|(first, _)| number < *first)
        {
            failed = Some((number, error));
        }
    }
    failed.map(|(_, error)| error)
}

fn ended_early() -> Error {
    ErrorKind::Io(std::io::Error::other("a thread that reads ended early")).into()
}

enum Stopped {
    Failed(usize, Error),
    Copy(Error),
    Panicked,
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Copy(error)
    }
}

/// Only the calling thread talks to the device.
// A device may tie its work to the thread: candle's CUDA devices have one stream for each thread.
struct Device<'d, T, F> {
    slots: usize,
    slot_bytes: usize,
    staging: &'d mut T,
    filler: &'d F,
}

impl<T: Staging, F: Filler<T>> Device<'_, T, F> {
    fn copy(
        &mut self,
        free: &Sender<T::Slot>,
        messages: &Receiver<Message<T::Slot>>,
    ) -> Result<(), Stopped> {
        let mut begun = 0;
        let mut copying = 0;
        let mut made = 0;
        while begun < self.filler.count() || copying > 0 {
            // First give the device everything that it can take, then make new slots, and only then
            // wait: for the device if it is busy, otherwise for the threads.
            let message = match messages.try_recv() {
                Err(TryRecvError::Empty) if made < self.slots => {
                    let slot = self.staging.new_slot(self.slot_bytes)?;
                    made += 1;
                    // Fails if no thread is left, which the next message says.
                    let _ = free.send(slot);
                    continue;
                }
                Err(_) if copying > 0 => {
                    let slot = self.staging.finish_copy()?;
                    copying -= 1;
                    let _ = free.send(slot);
                    continue;
                }
                Err(TryRecvError::Empty) => messages.recv().ok(),
                message => message.ok(),
            };
            match message {
                Some(Message::Filled(number, slot)) => {
                    self.staging.begin_copy(slot, self.filler.parts(number))?;
                    begun += 1;
                    copying += 1;
                }
                Some(Message::Failed(number, error)) => return Err(Stopped::Failed(number, error)),
                // Threads end before all is filled only if one of them panicked.
                Some(Message::Panicked) | None => return Err(Stopped::Panicked),
            }
        }
        Ok(())
    }

    fn in_turn(&mut self) -> Result<(), Stopped> {
        let mut scratch = F::Scratch::default();
        let mut free = None;
        for number in 0..self.filler.count() {
            let mut slot = match free.take() {
                Some(slot) => slot,
                None => self.staging.new_slot(self.slot_bytes)?,
            };
            let filled = self.filler.fill(number, &mut slot, &mut scratch);
            filled.map_err(|error| Stopped::Failed(number, error))?;
            self.staging.begin_copy(slot, self.filler.parts(number))?;
            free = Some(self.staging.finish_copy()?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use super::*;

    #[derive(Default)]
    struct Noting {
        made: usize,
        copying: VecDeque<Vec<u8>>,
        arrived: Vec<u8>,
    }

    impl Staging for Noting {
        type Slot = Vec<u8>;

        fn new_slot(&mut self, len: usize) -> Result<Vec<u8>> {
            self.made += 1;
            Ok(vec![0; len])
        }

        fn bytes_mut(slot: &mut Vec<u8>) -> Result<&mut [u8]> {
            Ok(slot)
        }

        fn begin_copy(&mut self, slot: Vec<u8>, _: &[StagedPart]) -> Result<()> {
            self.copying.push_back(slot);
            Ok(())
        }

        fn finish_copy(&mut self) -> Result<Vec<u8>> {
            let slot = self.copying.pop_front().unwrap();
            self.arrived.push(slot[0]);
            Ok(slot)
        }
    }

    /// Fills slots with their numbers; slots from `failing` on fail, later ones sooner.
    struct Numbers {
        count: usize,
        failing: usize,
    }

    impl Filler<Noting> for Numbers {
        type Scratch = ();

        fn count(&self) -> usize {
            self.count
        }

        fn fill(&self, number: usize, slot: &mut Vec<u8>, _: &mut ()) -> Result<()> {
            if number >= self.failing {
                let wait = if number == self.failing { 30 } else { 0 };
                thread::sleep(Duration::from_millis(wait));
                return Err(Error::from(ErrorKind::TensorNotFound).in_tensor(&number.to_string()));
            }
            slot[0] = number as u8;
            Ok(())
        }

        fn parts(&self, _: usize) -> &[StagedPart] {
            &[]
        }
    }

    #[test]
    fn without_threads_one_slot_is_filled_after_the_other() {
        let in_turn = |count: usize, staging: &mut Noting| {
            let filler = &Numbers { count, failing: 5 };
            Device { slots: 4, slot_bytes: 1, staging, filler }.in_turn()
        };
        let mut noting = Noting::default();
        assert!(in_turn(5, &mut noting).is_ok());
        assert_eq!(noting.made, 1);
        assert_eq!(noting.arrived, [0, 1, 2, 3, 4]);

        let mut noting = Noting::default();
        assert!(matches!(in_turn(7, &mut noting), Err(Stopped::Failed(5, _))));
        assert_eq!(noting.arrived.len(), 5);
    }

    #[test]
    fn the_first_slot_that_cannot_be_filled_counts() {
        for threads in [1, 2, 6] {
            let ring = StagingBuffers { slots: 6, slot_bytes: 1 };
            let filler = Numbers { count: 100, failing: 3 };
            let error = run(&filler, threads, ring, &mut Noting::default()).unwrap_err();
            assert_eq!(error.tensor(), Some("3"));
        }
    }
}
