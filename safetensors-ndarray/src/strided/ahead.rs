//! Gathers in a second thread, so that one block is gathered while another is written.

use std::sync::mpsc::sync_channel;
use std::thread;

use ndarray::{ArrayViewD, ShapeError};
use safetensors_core::Result;
use safetensors_core::save::Sink;

use super::{for_each_block, gather, give, write_blocks};
use crate::ArrayElement;
use crate::error::shape_error;

/// One is gathered while the other is written.
const BUFFERS: usize = 2;

/// Why the second thread ended early.
enum Stop {
    /// Writing failed, so that no more blocks are needed.
    NotNeeded,
    /// A block could not be gathered.
    Failed(ShapeError),
}

/// Writes an array in blocks of at most `len` elements. The calling thread writes, because the sink
/// belongs to it.
pub(super) fn write<T: ArrayElement>(
    array: ArrayViewD<'_, T>,
    len: usize,
    sink: &mut Sink<'_>,
) -> Result<()> {
    // The buffers go round: empty ones to the second thread, full ones back, with the number of
    // elements. Each channel has room for all of them, so that sending never waits.
    let (give_back, empty) = sync_channel::<Vec<T>>(BUFFERS);
    let (pass_on, full) = sync_channel::<(Vec<T>, usize)>(BUFFERS);
    for _ in 0..BUFFERS {
        // Cannot fail: the receiver is there.
        let _ = give_back.send(bytemuck::zeroed_vec(len));
    }
    let blocks = array.clone();
    let gather_all = move || {
        for_each_block(blocks, len, &mut |block| {
            let mut buffer = empty.recv().map_err(|_| Stop::NotNeeded)?;
            let elements = block.len();
            gather::gather(block, &mut buffer[..elements]).map_err(Stop::Failed)?;
            pass_on.send((buffer, elements)).map_err(|_| Stop::NotNeeded)
        })
    };
    // After an error this closure drops its ends of the channels, which stops the second thread.
    thread::scope(move |scope| {
        let Ok(gathering) = thread::Builder::new().spawn_scoped(scope, gather_all) else {
            return write_blocks(array, len, sink);
        };
        for (buffer, elements) in full {
            give(&buffer[..elements], sink)?;
            // Fails if the last block has been gathered.
            let _ = give_back.send(buffer);
        }
        match gathering.join() {
            Ok(Ok(()) | Err(Stop::NotNeeded)) => Ok(()),
            Ok(Err(Stop::Failed(error))) => Err(shape_error(error)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
