//! [`gather`]: the statistics of tensors, read once on several threads.

use std::collections::HashMap;

use safetensors_core::framework::in_order;
use safetensors_core::load::Piece;
use safetensors_core::{Dtype, Result};

use super::codes;
use super::counts::{Counts, Page};
use super::distribution::Distribution;
use super::moments::{self, Moments};
use crate::input::{Source, Tensor};
use crate::model::values::{self, Numbers, block_bytes};
use crate::terminal::progress::Progress;

/// How many pieces of a tensor a thread takes.
// To read them takes far longer than to add the counts of two threads.
const PIECES: usize = 16;

/// More elements are not sorted, but counted.
const SORTED: u64 = 4096;

#[derive(Debug)]
pub(super) struct TensorValues {
    pub(super) moments: Moments,
    pub(super) values: Distribution,
}

struct Job<'a> {
    tensor: usize,
    pieces: Vec<Piece<'a, Source>>,
    /// Whether the first piece is the tensor's first, and the last its last.
    is_first: bool,
    is_last: bool,
}

struct CountedPieces {
    moments: Moments,
    counts: Vec<Page>,
}

#[derive(Default)]
struct ThreadBuffers {
    bytes: Vec<u8>,
    numbers: Numbers,
    sorted: Vec<f64>,
    counts: Counts<u32>,
}

enum Outcome<T> {
    All(T),
    Part(Box<CountedPieces>),
}

/// The value of each code, for each dtype counted by its bits.
type Values = HashMap<Dtype, Vec<f64>>;

/// Finds the statistics of tensors. Threads share a large one.
///
/// `take` gets the results of `summary` in the order of the tensors, except for those without
/// elements. It also gets errors, and decides whether to go on.
pub(super) fn gather<T: Send>(
    tensors: &[Tensor<'_>],
    progress: &Progress,
    summary: impl Fn(TensorValues) -> T + Sync,
    mut take: impl FnMut(usize, Result<T>) -> Result<()>,
) -> Result<()> {
    let values = values_of(tensors)?;
    let jobs = tensors.iter().enumerate().flat_map(|(i, tensor)| jobs(i, tensor));
    let work = |job: &Job<'_>, own: &mut ThreadBuffers| own.work(job, &values, progress, &summary);
    let (mut total, mut counts) = (Moments::default(), Counts::<u64>::default());
    let mut failed = None;
    in_order(jobs, 0, work, |job, outcome| {
        if job.is_first {
            total = Moments::default();
            counts.clear();
        }
        match outcome {
            _ if failed == Some(job.tensor) => Ok(()),
            Err(error) => {
                failed = Some(job.tensor);
                take(job.tensor, Err(error))
            }
            Ok(Outcome::All(found)) => take(job.tensor, Ok(found)),
            Ok(Outcome::Part(part)) => {
                total.merge(&part.moments);
                counts.merge(&part.counts);
                if !job.is_last {
                    return Ok(());
                }
                let found = found(tensors[job.tensor].dtype(), &total, counts.iter(), &values);
                take(job.tensor, Ok(summary(found)))
            }
        }
    })
}

fn jobs<'a>(i: usize, tensor: &Tensor<'a>) -> impl Iterator<Item = Job<'a>> + use<'a> {
    let (mut pieces, elements) = (tensor.pieces(), tensor.element_count());
    std::iter::from_fn(move || {
        let pieces: Vec<_> = pieces.by_ref().take(PIECES).collect();
        let (is_first, end) = (pieces.first()?.start() == 0, pieces.last()?);
        let is_last = end.start() + end.element_count() == elements;
        Some(Job { tensor: i, pieces, is_first, is_last })
    })
}

fn values_of(tensors: &[Tensor<'_>]) -> Result<Values> {
    let mut values = Values::new();
    for tensor in tensors {
        let dtype = tensor.dtype();
        if codes::are_exact(dtype)
            && tensor.element_count() > SORTED
            && !values.contains_key(&dtype)
        {
            values.insert(dtype, codes::values(dtype)?);
        }
    }
    Ok(values)
}

fn found(
    dtype: Dtype,
    moments: &Moments,
    counts: impl Iterator<Item = (u32, u64)>,
    values: &Values,
) -> TensorValues {
    if let Some(values) = values.get(&dtype) {
        let (values, moments) = Distribution::of_bits(counts, values);
        return TensorValues { moments, values };
    }
    let integers = !dtype.is_float() && dtype != Dtype::C64;
    TensorValues { moments: *moments, values: Distribution::of_ranges(counts, integers, moments) }
}

impl ThreadBuffers {
    fn work<T>(
        &mut self,
        job: &Job<'_>,
        values: &Values,
        progress: &Progress,
        summary: impl Fn(TensorValues) -> T,
    ) -> Result<Outcome<T>> {
        let tensor = job.pieces[0].tensor();
        if tensor.element_count() <= SORTED {
            return Ok(Outcome::All(summary(self.sort(&job.pieces[0], progress)?)));
        }
        let moments = self.count(job, progress)?;
        if job.is_first && job.is_last {
            let found = found(tensor.dtype(), &moments, self.counts.iter(), values);
            return Ok(Outcome::All(summary(found)));
        }
        let counts = self.counts.take();
        Ok(Outcome::Part(Box::new(CountedPieces { moments, counts })))
    }

    fn sort(&mut self, piece: &Piece<'_, Source>, progress: &Progress) -> Result<TensorValues> {
        progress.check()?;
        let bytes = values::read(piece, &mut self.bytes)?;
        progress.add(piece.byte_len());
        let numbers = self.numbers.of_part(piece, bytes)?;
        let mut moments = Moments::default();
        moments.add(numbers);
        self.sorted.clear();
        self.sorted.extend(numbers);
        Ok(TensorValues { moments, values: Distribution::of_values(&mut self.sorted) })
    }

    /// Moments of elements that are counted by their bits follow from the counts.
    fn count(&mut self, job: &Job<'_>, progress: &Progress) -> Result<Moments> {
        let mut moments = Moments::default();
        self.counts.clear();
        for piece in &job.pieces {
            let dtype = piece.tensor().dtype();
            progress.check()?;
            let bytes = values::read(piece, &mut self.bytes)?;
            progress.add(piece.byte_len());
            if codes::are_exact(dtype) {
                codes::count_bits(dtype, bytes, &mut self.counts);
                continue;
            }
            for block in bytes.chunks(block_bytes(dtype)) {
                let numbers = self.numbers.of_part(piece, block)?;
                for block in numbers.chunks(moments::BLOCK) {
                    let magnitudes = moments.add_block(block);
                    codes::count_ranges(block, magnitudes, &mut self.counts);
                }
            }
        }
        let is_bool = job.pieces[0].tensor().dtype() == Dtype::BOOL;
        if is_bool && self.counts.iter().any(|(byte, _)| byte > 1) {
            // Core finds which element it is.
            job.pieces.iter().try_for_each(|piece| piece.read().map(drop))?;
        }
        Ok(moments)
    }
}
