//! Gathers one block in a second thread, while another is written.
//! With the feature `rayon`, several threads share each block.

use std::sync::mpsc::sync_channel;
use std::thread;

use safetensors_core::Result;

use super::blocks::{Blocks, Rows};
use super::buffer::Buffer;
use super::{LocalSink, Stop, gather, give_rows, write_here};
use crate::error::shape_error;
use safetensors_core::element::Element;

/// The number of buffers: one is gathered while the other is written.
const BUFFERS: usize = 2;

/// Writes in the calling thread, because the sink belongs to it.
pub(super) fn write<T: Element>(blocks: &Blocks<'_, T>, sink: &mut LocalSink<'_>) -> Result<()> {
    // The buffers go round: empty ones to the second thread, full ones back, with the place of the
    // block. Each channel has room for all of them, so that sending never waits.
    let (give_back, empty) = sync_channel::<Buffer<T>>(BUFFERS);
    let (pass_on, full) = sync_channel::<(Buffer<T>, usize, Rows)>(BUFFERS);
    for _ in 0..BUFFERS {
        // Cannot fail: the receiver is there.
        let _ = give_back.send(Buffer::new(blocks.most));
    }
    let gather_all = move || {
        blocks.for_each(&mut |block, rows| {
            let mut buffer = empty.recv().map_err(|_| Stop::NotNeeded)?;
            let elements = block.len();
            gather::gather_in_parallel(block, buffer.first(elements))
                .map_err(|error| Stop::Failed(shape_error(error)))?;
            pass_on.send((buffer, elements, rows)).map_err(|_| Stop::NotNeeded)
        })
    };
    // After an error this closure drops its ends of the channels, which stops the second thread.
    thread::scope(move |scope| {
        let Ok(gathering) = thread::Builder::new().spawn_scoped(scope, gather_all) else {
            return write_here(blocks, sink);
        };
        for (mut buffer, elements, rows) in full {
            give_rows(buffer.first(elements), rows, sink)?;
            // Fails if the last block has been gathered.
            let _ = give_back.send(buffer);
        }
        match gathering.join() {
            Ok(Ok(()) | Err(Stop::NotNeeded)) => Ok(()),
            Ok(Err(Stop::Failed(error))) => Err(error),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
