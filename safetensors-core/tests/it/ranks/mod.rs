//! Ranks: their numbers from launchers, plans, reading, saving, and whole tensors again.

mod joined;
mod plans;
mod published;
mod reading;
mod refused;
mod saving;

use safetensors_core::error::RankProblem;
use safetensors_core::ranks::{RankPlan, RankRules, RankSaved, RankSaver};

use crate::support::*;

/// A plan of two divided tensors and a replicated one.
fn plan(world_size: usize) -> RankPlan {
    let rules = RankRules::new()
        .parse_rule("rows=split:0")
        .and_then(|rules| rules.parse_rule("columns=uneven:1"))
        .and_then(|rules| rules.parse_rule("norm=replicate"))
        .unwrap();
    let tensors = [
        ("rows", Dtype::U8, vec![world_size * 2, 3]),
        ("columns", Dtype::U8, vec![2, 7]),
        ("norm", Dtype::U8, vec![5]),
    ];
    rules.plan_tensors(tensors, world_size).unwrap()
}

/// Saves a rank's parts, which are filled with one number.
fn save_rank(
    directory: &Path,
    (rank, world_size): (usize, usize),
    attempt: &str,
    fill: u8,
) -> Result<RankSaved> {
    let plan = plan(world_size);
    let options = ShardOptions::new().save_options(SaveOptions::new().durable(false));
    RankSaver::new(&plan, rank, attempt).save(directory, parts(&plan, rank, fill), &options)
}

/// A rank's parts, which are filled with one number.
fn parts(plan: &RankPlan, rank: usize, fill: u8) -> Vec<(String, TensorBuf)> {
    let parts = plan.tensors().map(|tensor| {
        let shape = tensor.part(rank).unwrap().shape(tensor.shape()).unwrap();
        let len = shape.iter().product();
        (tensor.name().to_owned(), TensorBuf::from_vec(shape, vec![fill; len]).unwrap())
    });
    parts.collect()
}

/// The number that fills all tensors of a checkpoint.
fn fill_of(checkpoint: &Checkpoint<impl ReadAt>) -> u8 {
    let tensors = checkpoint.read_all(&LoadOptions::new().threads(1)).unwrap();
    let bytes: Vec<u8> = tensors.iter().flat_map(TensorBuf::bytes).copied().collect();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixture: {bytes:?}");
    bytes[0]
}

/// The problem with ranks that an error is about.
fn problem(error: &Error) -> &RankProblem {
    let ErrorKind::Ranks { problem } = error.kind() else { panic!("{error}") };
    problem
}
