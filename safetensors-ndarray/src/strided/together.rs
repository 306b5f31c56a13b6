//! Gathers and writes blocks in two threads, where the order is free.
// Each thread writes while its block is in the cache of its processor. With the feature `rayon`,
// several threads gather for the second one.

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use ndarray::{ArrayViewD, ShapeError};
use safetensors_core::Result;
use safetensors_core::save::PieceSink;

use super::blocks::Blocks;
use super::buffer::Buffer;
use super::{Stop, gather, give_rows};
use crate::error::shape_error;
use safetensors_core::element::Element;

type Gather<T> = fn(ArrayViewD<'_, T>, &mut [T]) -> Result<(), ShapeError>;

/// Writes an array block by block. Each thread has a one-block buffer.
pub(super) fn write<T: Element>(blocks: &Blocks<'_, T>, sink: &mut PieceSink<'_>) -> Result<()> {
    // How many blocks are taken: always the first ones.
    let taken = AtomicUsize::new(0);
    // `None` after the sink has failed.
    let sink = Mutex::new(Some(sink));
    let work = |gather: Gather<T>| {
        let mut buffer = Buffer::new(blocks.most);
        let mut number = 0;
        let result = blocks.for_each(&mut |block, rows| {
            // Both threads meet all blocks in the same order. The first that meets one takes it.
            let next = number + 1;
            let is_taken = taken.compare_exchange(number, next, Relaxed, Relaxed).is_err();
            number = next;
            if is_taken {
                return Ok(());
            }
            let gathered = buffer.first(block.len());
            gather(block, gathered).map_err(|error| Stop::Failed(shape_error(error)))?;
            // The lock is poisoned if the sink panicked in the other thread.
            let mut guard = sink.lock().map_err(|_| Stop::NotNeeded)?;
            let sink = guard.as_mut().ok_or(Stop::NotNeeded)?;
            give_rows(gathered, rows, *sink).map_err(|error| {
                *guard = None;
                Stop::Failed(error)
            })
        });
        match result {
            Ok(()) | Err(Stop::NotNeeded) => Ok(()),
            Err(Stop::Failed(error)) => Err(error),
        }
    };
    thread::scope(|scope| {
        // Without a second thread, this one does all the work.
        let second =
            thread::Builder::new().spawn_scoped(scope, || work(gather::gather_in_parallel));
        // This thread gathers alone: it may be one of rayon's, which must not wait for others.
        let first = work(gather::gather);
        match second.map(|second| second.join()) {
            Ok(Ok(second)) => first.and(second),
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => first,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use ndarray::{Array3, ArrayD, ShapeBuilder};
    use safetensors_core::ErrorKind;

    use super::*;

    /// Makes an array of 8 blocks of up to 64 rows, with the place of each element as its value.
    fn counted() -> ArrayD<u32> {
        let mut array = Array3::zeros((200, 19, 33).f());
        array.iter_mut().zip(0..).for_each(|(place, number)| *place = number);
        array.into_dyn()
    }

    #[test]
    fn every_byte_is_written_once_at_its_place() {
        let array = counted();
        let mut places = vec![0; array.len()];
        let blocks = Blocks::in_any_order(array.view());
        write(&blocks, &mut |offset, bytes| {
            let place = &mut places[offset as usize / 4..][..bytes.len() / 4];
            assert!(place.iter().all(|&place| place == 0));
            bytemuck::cast_slice_mut(place).copy_from_slice(bytes);
            Ok(())
        })
        .unwrap();
        // Written elements have the byte order of the format.
        assert!(places.into_iter().map(u32::from_le).eq(0..array.len() as u32));
    }

    #[test]
    fn after_an_error_no_thread_writes() {
        let array = counted();
        let mut calls = 0;
        let result = write(&Blocks::in_any_order(array.view()), &mut |_, _| {
            calls += 1;
            if calls < 100 { Ok(()) } else { Err(ErrorKind::Cancelled.into()) }
        });
        assert!(matches!(result.unwrap_err().kind(), ErrorKind::Cancelled));
        assert_eq!(calls, 100);
    }

    #[test]
    fn after_a_panic_no_thread_writes() {
        let array = counted();
        let mut calls = 0;
        let panic = catch_unwind(AssertUnwindSafe(|| {
            write(&Blocks::in_any_order(array.view()), &mut |_, _| {
                calls += 1;
                assert!(calls < 100, "the sink panics");
                Ok(())
            })
        }));
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"the sink panics"));
        assert_eq!(calls, 100);
    }
}
