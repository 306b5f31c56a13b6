//! [`GrowingTensor`]: a tensor that is appended to, step by step.

use std::ops::Range;
use std::sync::{Arc, Mutex};

#[cfg(doc)]
use super::GrowingWriter;
use super::Shared;
use super::body::{ALIGN, Body};
use super::passes::Rank;
use super::steps::{Layers, write_layers};
use super::stored::StoredSteps;
use crate::format::dtype::Dtype;
use crate::format::error::{Error, ErrorKind, Result};
use crate::format::parallel::lock;
use crate::format::tensor::{TensorSource, shape, write_exactly};

/// A tensor of a [`GrowingWriter`] that grows along a dimension. All its clones, also in other
/// threads, append to the one tensor. It borrows nothing, so a struct can hold it with its writer.
#[derive(Clone, Debug)]
pub struct GrowingTensor {
    pub(super) writer: Arc<Shared>,
    pub(super) series: Arc<Series>,
}

impl GrowingTensor {
    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        lock(&self.series.state).steps
    }

    /// Appends a step, or leaves the tensor unchanged.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongDtype`] and [`ErrorKind::WrongShape`] unless the step is as declared;
    /// [`ErrorKind::AlreadyFinished`], also after the writer's drop; [`ErrorKind::Io`]; errors of
    /// the source; with [`sync_every`](GrowingWriter::sync_every) as for
    /// [`sync`](GrowingWriter::sync).
    pub fn append(&self, step: &dyn TensorSource) -> Result<()> {
        self.append_if(
            step,
            |expected, found| {
                if found == expected { Ok(1) } else { Err(expected.to_vec()) }
            },
        )
    }

    /// Appends several steps. The first dimension of the source counts them, whatever the axis.
    pub fn extend(&self, steps: &dyn TensorSource) -> Result<()> {
        self.append_if(steps, |expected, found| match found.split_first() {
            Some((&steps, found)) if found == expected => Ok(steps as u64),
            split => Err([&[split.map_or(1, |(&steps, _)| steps)], expected].concat()),
        })
    }

    /// `count` gets the shapes of a step and of the source, and returns the number of steps, or the
    /// expected shape.
    fn append_if(
        &self,
        source: &dyn TensorSource,
        count: impl FnOnce(&[usize], &[usize]) -> Result<u64, Vec<usize>>,
    ) -> Result<()> {
        let series = &*self.series;
        let append = || {
            if source.dtype() != series.dtype {
                let expected = series.dtype;
                let found = source.dtype();
                return Err(ErrorKind::WrongDtype { expected, found }.into());
            }
            let steps = count(&series.step_shape, source.shape()).map_err(|expected| {
                ErrorKind::WrongShape { expected, found: source.shape().to_vec() }
            })?;
            let overflow = || ErrorKind::ShapeOverflow { shape: source.shape().to_vec() };
            let len = series.step_len.checked_mul(steps).ok_or_else(overflow)?;
            self.writer.while_writing(|writing| {
                self.writer.sync_if_due(series, writing)?;
                let mut state = lock(&series.state);
                state.append(series, source, steps, len, &writing.body)?;
                let new_steps = series.new_steps(&state);
                let new_steps = new_steps.end - new_steps.start;
                state.rank = Some(lock(&self.writer.passes).append(state.rank, new_steps));
                Ok(())
            })
        };
        append().map_err(|error: Error| self.writer.locate(error.in_tensor(&series.name)))
    }
}

#[derive(Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) step_shape: Vec<usize>,
    pub(super) axis: usize,
    step_len: u64,
    pub(super) layers: Layers,
    /// Steps in the file that is appended to.
    pub(super) kept: u64,
    pub(super) state: Mutex<SeriesState>,
}

#[derive(Debug, Default)]
pub(super) struct SeriesState {
    pub(super) steps: u64,
    /// `None` if no synced file has the tensor.
    pub(super) synced: Option<u64>,
    /// `None` before the first append.
    pub(super) rank: Option<Rank>,
    pub(super) stored: StoredSteps,
}

impl Series {
    pub(super) fn new(
        name: &str,
        dtype: Dtype,
        axis: usize,
        step_shape: &[usize],
    ) -> Result<Self, ErrorKind> {
        let Some((outer, inner)) = step_shape.split_at_checked(axis) else {
            return Err(ErrorKind::NoSuchDim { dim: axis, ndim: step_shape.len() + 1 });
        };
        let step_len = shape::byte_len(dtype, step_shape)?;
        // Contiguous elements must be whole bytes.
        let inner = shape::byte_len(dtype, inner)?;
        let layers = Layers { outer: shape::element_count(outer)?, inner };
        Ok(Self {
            name: name.into(),
            dtype,
            step_shape: step_shape.into(),
            axis,
            step_len,
            layers,
            kept: 0,
            state: Mutex::default(),
        })
    }

    pub(super) fn go_on(&mut self, dtype: Dtype, shape: &[usize]) -> Result<(), ErrorKind> {
        if dtype != self.dtype {
            return Err(ErrorKind::WrongDtype { expected: dtype, found: self.dtype });
        }
        let steps = shape.get(self.axis).map_or(0, |&steps| steps as u64);
        if self.shape(steps) != shape {
            return Err(ErrorKind::WrongShape { expected: shape.into(), found: self.shape(steps) });
        }
        self.kept = steps;
        self.state = Mutex::new(SeriesState { steps, synced: Some(steps), ..Default::default() });
        Ok(())
    }

    /// Returns the steps that are not yet synced.
    pub(super) fn new_steps(&self, state: &SeriesState) -> Range<u64> {
        state.synced.unwrap_or(self.kept)..state.steps
    }

    pub(super) fn shape(&self, steps: u64) -> Vec<usize> {
        let mut shape = self.step_shape.clone();
        // An append that makes it larger is refused.
        shape.insert(self.axis, usize::try_from(steps).unwrap_or(usize::MAX));
        shape
    }

    pub(super) fn byte_len(&self, steps: u64) -> u64 {
        // This cannot overflow, because that many bytes have been written.
        self.step_len * steps
    }

    /// Returns `true` for steps that may go to the end of the file.
    fn may_be_tail(&self) -> bool {
        self.is_in_order() && self.step_len.is_multiple_of(ALIGN)
    }

    /// Returns `true` if the steps are contiguous in the tensor.
    pub(super) fn is_in_order(&self) -> bool {
        self.layers.outer <= 1
    }

    /// Writes new steps as a tensor of only these, in pieces inside a row.
    pub(super) fn write_steps(
        &self,
        state: &SeriesState,
        body: &Body,
        steps: Range<u64>,
        write: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let first = self.byte_len(steps.start - self.kept);
        let read = |buf: &mut [u8], offset| state.stored.read_exact_at(body, buf, first + offset);
        write_layers(self.layers, steps.end - steps.start, &read, write)
    }
}

impl SeriesState {
    fn append(
        &mut self,
        series: &Series,
        source: &dyn TensorSource,
        steps: u64,
        len: u64,
        body: &Body,
    ) -> Result<()> {
        let too_long = || ErrorKind::Io(std::io::ErrorKind::FileTooLarge.into());
        series.byte_len(self.steps).checked_add(len).ok_or_else(too_long)?;
        let kept = series.byte_len(series.kept);
        let before = series.byte_len(self.steps) - kept;
        // Steps without elements take no bytes.
        let after = self.steps.checked_add(steps).filter(|&after| usize::try_from(after).is_ok());
        let after = after.ok_or_else(too_long)?;
        self.stored.truncate(before);
        let written = write_exactly(source, len, &mut |bytes| {
            let tail = series.may_be_tail().then_some(kept);
            Ok(self.stored.push(bytes, body, tail)?)
        });
        match written {
            Ok(()) => self.steps = after,
            Err(_) => self.stored.truncate(before),
        }
        written
    }
}
