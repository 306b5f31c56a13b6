//! Statistics of a tensor, computed in another thread.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;

use safetensors_core::{Error, ErrorKind};

use super::Checkpoint;
use super::events::Event;
use crate::commands::stats::{self, Facts};
use crate::terminal::progress::Progress;

const BINS: u16 = 48;

/// Statistics, or why there are none, by node.
pub(super) type KnownFacts = HashMap<usize, Result<Facts, String>>;

/// Goes on in its thread until it is done or cancelled.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) node: usize,
    progress: Arc<Progress>,
}

impl Job {
    /// Sends the result as [`Event::Values`], unless it is cancelled.
    pub(super) fn start(
        checkpoint: &Arc<Checkpoint>,
        name: &str,
        node: usize,
        events: Sender<Event>,
    ) -> std::io::Result<Self> {
        let bytes = checkpoint.get(name).map_or(0, |tensor| tensor.byte_len());
        let progress = Arc::new(Progress::silent(bytes));
        let (checkpoint, name) = (Arc::clone(checkpoint), name.to_owned());
        let own = Self { node, progress: Arc::clone(&progress) };
        thread::Builder::new().name("values".into()).spawn(move || {
            // A panic in this thread must not end the interface.
            let compute = || {
                let tensor = checkpoint.tensor(&name)?;
                stats::of_tensor(&tensor, BINS, &progress)
            };
            let found = match catch_unwind(AssertUnwindSafe(compute)) {
                Ok(Ok(summary)) => Ok(summary),
                Ok(Err(error)) if is_cancelled(&error) => return,
                Ok(Err(error)) => Err(format!("{error:#}")),
                Err(_) => Err("internal error; please report it".to_owned()),
            };
            // The receiver is gone once the interface has ended.
            let _ = events.send(Event::Values { node, found });
        })?;
        Ok(own)
    }

    /// Ends the work at the next piece that is read.
    pub(super) fn cancel(&self) {
        self.progress.cancel();
    }

    pub(super) fn fraction(&self) -> f64 {
        self.progress.fraction()
    }
}

fn is_cancelled(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Error>().is_some_and(|error| matches!(error.kind(), ErrorKind::Cancelled))
}
