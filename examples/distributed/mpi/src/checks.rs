//! The steps of the program, and their checks.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{Device, Tensor};
use safetensors_candle::{Candle, TensorParallelBackend};
use safetensors_core::framework::Framework;
use safetensors_core::ranks::{RankPlan, RankTensor};
use safetensors_core::slice::TensorPart;
use safetensors_core::{Checkpoint, LoadOptions, TensorBuf};

use crate::counting::{self, Counter};
use crate::group::{Alone, Group};
use crate::model::{Model, Parts};
use crate::options::Options;
use crate::replicated::{read_and_broadcast, read_stripes_and_gather, stripe_bytes};
use crate::report::Report;
use crate::weights;

const TOKENS: [u32; 6] = [3, 141, 59, 265, 358, 511];

/// The most by which logits may differ from a single process. Logits are up to 4, and the ranks add
/// the products in another order.
const TOLERANCE: f32 = 1e-4;

/// Loads the parts of this rank, runs the model, and checks bytes and logits.
///
/// # Errors
///
/// An [`Agreed`](crate::failure::Agreed) error if a file cannot be read, or if anything is not as
/// expected on any rank. All ranks have the same error then.
pub(crate) fn run(group: &Group, options: &Options) -> Result<()> {
    let rank = group.agree(group.rank_of_environment())?;
    let report = Report(group);
    report.ranks(&rank);

    let (size, counter) = (group.world_size(), Arc::<Counter>::default());
    let checkpoint =
        group.agree(counting::open(&options.directory, &counter).context("opening"))?;
    let plan = weights::rules(size).and_then(|rules| Ok(rules.plan(&checkpoint, size)?));
    let plan = group.agree(plan.context("planning"))?;
    // Ranks with other plans would wait for messages that never come.
    let same = format!("messages of {} bytes\n{}", options.message_len, plan.to_json());
    group.agree_on("the plan", &same)?;
    let replicated: Vec<_> =
        plan.tensors().filter(|tensor| tensor.division().dim().is_none()).collect();
    report.checkpoint(&checkpoint, &replicated);

    // The parts that each rank reads if the ranks do not talk to each other.
    let parts = plan.read(&checkpoint, rank.rank(), &LoadOptions::new());
    let parts = group.agree(parts.context("reading the rank's parts"))?;
    let bytes = Bytes::new(&plan, &replicated, rank.rank())?;
    let every = size as u64 * bytes.replicated;
    report.bytes("each rank its parts", &counter, bytes.mine, bytes.split + every)?;

    if options.fail_reading == Some(rank.rank()) {
        counter.fail();
    }
    let broadcast = read_and_broadcast(group, &checkpoint, &replicated)?;
    let mine = |i: usize| i % size == rank.rank();
    let own = replicated.iter().enumerate().filter(|(i, _)| mine(*i));
    let own = own.map(|(_, tensor)| tensor.byte_len(rank.rank())).sum::<Result<_, _>>()?;
    report.bytes("replicated: one reads, broadcast", &counter, own, bytes.replicated)?;

    let gathered = read_stripes_and_gather(group, &checkpoint, &replicated)?;
    let own = stripe_bytes(&replicated, rank.rank(), size)?;
    report.bytes("replicated: stripes, all-gather", &counter, own, bytes.replicated)?;

    let read: HashMap<_, _> = plan.tensors().map(RankTensor::name).zip(&parts).collect();
    for (how, bufs) in [("broadcast", &broadcast), ("all-gather", &gathered)] {
        group.agree(compare(how, &replicated, bufs, &read))?;
    }
    report.line("replicated tensors: bit-equal on all ranks, whichever way they came");

    // The model takes the replicated tensors as they came, and reads the others.
    let received = replicated.iter().zip(gathered).map(|(tensor, buf)| {
        Ok((tensor.name().to_owned(), Candle::from_exact(buf, &Device::Cpu)?))
    });
    let received = received.collect::<Result<HashMap<_, _>>>()?;
    let backend = TensorParallelBackend::new(checkpoint).hints::<TensorPart>();
    let parts = Parts::read(backend, &plan, rank.rank(), received);
    let parts = group.agree(parts.context("reading the model"))?;
    let model = group.agree(Model::load(&parts).context("loading the model"))?;
    let own = bytes.mine - bytes.replicated;
    report.bytes("the model: split tensors", &counter, own, bytes.split)?;

    if options.fail_computing == Some(rank.rank()) {
        bail!("fails on purpose");
    }
    let logits = model.forward(&TOKENS, group)?;
    let expected = match rank.rank() {
        0 => alone(options).context("running the model in one process"),
        _ => Ok(vec![0.0; logits.elem_count()]),
    };
    let mut expected = group.agree(expected.and_then(|expected| {
        ensure!(expected.len() == logits.elem_count(), "{} logits of one process", expected.len());
        Ok(expected)
    }))?;
    group.broadcast(0, &mut expected);
    let difference = group.agree(difference(&logits, &expected))?;
    report.logits(&logits, &expected, difference, TOLERANCE);
    Ok(())
}

/// Numbers of bytes.
struct Bytes {
    /// The parts of this rank.
    mine: u64,
    /// The parts of split tensors of all ranks together.
    split: u64,
    /// All replicated tensors, once.
    replicated: u64,
}

impl Bytes {
    fn new(plan: &RankPlan, replicated: &[&RankTensor], rank: usize) -> Result<Self> {
        let once = replicated.iter().map(|tensor| tensor.byte_len(rank));
        let once = once.sum::<Result<u64, _>>()?;
        let all = (0..plan.world_size()).map(|rank| plan.byte_len(rank));
        let all = all.sum::<Result<u64, _>>()?;
        let split = all - once * plan.world_size() as u64;
        Ok(Self { mine: plan.byte_len(rank)?, split, replicated: once })
    }
}

/// Compares tensors with the ones that this rank has read itself.
fn compare(
    how: &str,
    tensors: &[&RankTensor],
    bufs: &[TensorBuf],
    read: &HashMap<&str, &TensorBuf>,
) -> Result<()> {
    for (tensor, buf) in tensors.iter().zip(bufs) {
        let name = tensor.name();
        let read = read.get(name).with_context(|| format!("{name:?} was not read"))?;
        let is_same =
            (buf.dtype(), buf.shape(), buf.bytes()) == (read.dtype(), read.shape(), read.bytes());
        ensure!(is_same, "{name:?} came by {how} with other bytes than this rank has read");
    }
    Ok(())
}

/// Computes the logits in one process that has the whole model.
fn alone(options: &Options) -> Result<Vec<f32>> {
    let checkpoint = Checkpoint::open(&options.directory)?;
    let plan = weights::rules(1)?.plan(&checkpoint, 1)?;
    let backend = TensorParallelBackend::new(checkpoint).hints::<TensorPart>();
    let model = Model::load(&Parts::read(backend, &plan, 0, HashMap::new())?)?;
    Ok(model.forward(&TOKENS, &Alone)?.flatten_all()?.to_vec1()?)
}

/// Returns how far the logits are from a single process.
fn difference(logits: &Tensor, expected: &[f32]) -> Result<f32> {
    let logits = logits.flatten_all()?.to_vec1::<f32>()?;
    let mut most = 0.0_f32;
    for (i, (&found, &expected)) in logits.iter().zip(expected).enumerate() {
        let difference = (found - expected).abs();
        // Not `>`: NaN is an error, too.
        ensure!(
            difference <= TOLERANCE,
            "logit {i}: expected {expected} within {TOLERANCE:e}, found {found}"
        );
        most = most.max(difference);
    }
    let largest = expected.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
    ensure!(largest > 0.1, "the logits should not vanish, but the largest is {largest}");
    Ok(most)
}
