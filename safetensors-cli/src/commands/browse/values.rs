//! Statistics of a tensor, computed in another thread.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;

use safetensors_core::quantized::QuantizedWeight;
use safetensors_core::{Error, ErrorKind};

use super::events::Event;
use super::{Args, Checkpoint};
use crate::commands::stats::{self, Facts};
use crate::input;
use crate::terminal::progress::Progress;

/// The number of bins of a histogram.
const BINS: u16 = 48;

/// The statistics of each tensor that has been computed, or why it cannot be.
pub(super) type KnownFacts = HashMap<usize, Result<Facts, String>>;

/// Where values come from: the tensors as they are stored, and the numbers of quantised weights.
pub(super) struct Sources {
    stored: Arc<Checkpoint>,
    numbers: Option<Arc<Checkpoint>>,
    /// The name of the weight, by the name of the tensor that holds its codes.
    weights: HashMap<String, String>,
}

impl Sources {
    /// Opens the numbers of the weights, unless codes and scales are asked for. A pipe cannot be
    /// opened twice, and has codes.
    pub(super) fn new(
        args: &Args,
        stored: Checkpoint,
        weights: &[QuantizedWeight],
    ) -> anyhow::Result<Self> {
        let codes =
            |weight: &QuantizedWeight| Some((weight.tensors.first()?.clone(), weight.name.clone()));
        let weights: HashMap<_, _> = weights.iter().filter_map(codes).collect();
        let is_stored = args.values.are_stored() || weights.is_empty();
        let numbers = if is_stored || input::is_pipe(args.input.path()) {
            None
        } else {
            Some(Arc::new(args.input.open()?.dequantized()?.into_boxed()))
        };
        Ok(Self { stored: Arc::new(stored), numbers, weights })
    }

    pub(super) fn stored(&self) -> &Checkpoint {
        &self.stored
    }

    /// The checkpoint and the name by which the values of a stored tensor are read.
    pub(super) fn of<'n>(&'n self, name: &'n str) -> (&'n Arc<Checkpoint>, &'n str) {
        match (&self.numbers, self.weights.get(name)) {
            (Some(numbers), Some(weight)) => (numbers, weight),
            _ => (&self.stored, name),
        }
    }
}

/// Work that is under way. It goes on in its thread until it is done or cancelled.
#[derive(Debug)]
pub(super) struct Job {
    /// The node of the tensor.
    pub(super) node: usize,
    progress: Arc<Progress>,
}

impl Job {
    /// Starts to compute the statistics of a tensor. The result comes as [`Event::Values`]; nothing
    /// comes if it is cancelled.
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

    /// The part that is done, from 0 to 1.
    pub(super) fn fraction(&self) -> f64 {
        self.progress.fraction()
    }
}

fn is_cancelled(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Error>().is_some_and(|error| matches!(error.kind(), ErrorKind::Cancelled))
}
