//! Experts of a mixture, a quarter of which fits in memory.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use safetensors_bridge::candle::{Candle, ReadTensorExt};
use safetensors_bridge::framework::TensorCache;
use safetensors_bridge::{Checkpoint, LoadOptions};

use super::Spec;
use super::load::{ALLOWANCE, MAPPED, equal};
use harness::data::{Data, TestFile};
use harness::sample::{Contender, Goal, Role, Row, Watch};
use harness::system;

/// The environment variable for the size of all experts in MiB, so that a trial is quick.
const VARIABLE: &str = "SAFETENSORS_BENCH_EXPERTS_MIB";

const EXPERTS: usize = 256;
const REQUESTS: usize = 1000;
const EACH_TIME: &str = "LazyTensor, read each time";

pub(super) fn rows() -> Vec<Spec> {
    vec![Spec::new("1,000 requests for experts of 8 GiB, 2 GiB in memory", row)]
}

fn row(data: &Data) -> Result<Row> {
    let mib = std::env::var(VARIABLE).map_or(Ok(8 << 10), |text| text.parse::<usize>());
    let bytes = mib.context(VARIABLE)? << 20;
    let file = data.file("experts.safetensors", &equal(EXPERTS, bytes / EXPERTS / 2))?;
    let budget = bytes as u64 / 4;
    let cached = contender(Role::Ours, "TensorCache", &file, move |path, watch| {
        let checkpoint = Checkpoint::open(path)?;
        let cache =
            TensorCache::<Candle>::new(checkpoint, Device::Cpu, budget, &LoadOptions::new())?;
        run(watch, |name| Ok((*cache.get(name, ())?).clone()))
    });
    let each_time = contender(Role::Peer, EACH_TIME, &file, |path, watch| {
        let checkpoint = Checkpoint::open(path)?;
        run(watch, |name| Ok(checkpoint.tensor(name)?.read_tensor(&Device::Cpu)?))
    });
    let mapped = contender(Role::Peer, MAPPED, &file, |path, watch| {
        let file = system::candle_map(path)?;
        run(watch, |name| Ok(file.load(name, &Device::Cpu)?))
    });
    let in_memory = contender(Role::Limit, "all in memory", &file, |path, watch| {
        let tensors: BTreeMap<_, _> = safetensors_candle::load(path, &Device::Cpu)?;
        run(watch, |name| Ok(tensors[name].clone()))
    });
    Ok(Row {
        goals: vec![
            Goal::AtLeast(EACH_TIME, 2.0),
            Goal::AtLeast(MAPPED, 4.0),
            Goal::Memory(budget + ALLOWANCE),
        ],
        loads: 1,
        samples: 3,
        files: vec![file.path],
        ..Row::new(vec![cached, each_time, mapped, in_memory])
    })
}

/// A way to answer the requests, by the path of the file. It returns the sum of [`run`].
fn contender(
    role: Role,
    name: &'static str,
    file: &TestFile,
    answer: impl Fn(&Path, &mut Watch) -> Result<f64> + 'static,
) -> Contender {
    let path = file.path.clone();
    Contender::new(role, name, move |watch| {
        let found = answer(&path, watch)?;
        ensure!(found == expected(&path)?, "other numbers than were written");
        Ok(())
    })
}

/// Times the requests. Returns the sum of the first numbers of all experts that were asked for.
fn run(watch: &mut Watch, mut get: impl FnMut(&str) -> Result<Tensor>) -> Result<f64> {
    let names = requests();
    watch.time(|| names.iter().try_fold(0.0, |sum, name| Ok(sum + first(&get(name)?)?)))
}

fn first(tensor: &Tensor) -> Result<f64> {
    Ok(tensor.flatten_all()?.get(0)?.to_dtype(DType::F64)?.to_scalar()?)
}

/// The same sum, by slices.
fn expected(path: &Path) -> Result<f64> {
    let checkpoint = Checkpoint::open(path)?;
    requests().iter().try_fold(0.0, |sum, name| {
        let number = checkpoint.tensor(name)?.slice((..1,))?.read_tensor(&Device::Cpu)?;
        Ok(sum + first(&number)?)
    })
}

/// The names of the requested experts: the one at place `i` of some order is asked for in
/// proportion to `1 / i`, by the law of Zipf.
fn requests() -> Vec<String> {
    let weights: Vec<f64> = (1..=EXPERTS).map(|place| 1.0 / place as f64).collect();
    let sum: f64 = weights.iter().sum();
    let mut state = 1_u64;
    let request = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut left = (state >> 11) as f64 / (1_u64 << 53) as f64 * sum;
        let place = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        // Neighbours in the order are no neighbours in the file.
        let expert = place.unwrap_or(EXPERTS - 1) * 89 % EXPERTS;
        format!("blocks.{expert}.weight")
    };
    (0..REQUESTS).map(request).collect()
}
