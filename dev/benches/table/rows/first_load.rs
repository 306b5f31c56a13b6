//! A process that loads once, while the machine has neither memory nor the file at hand.

use harness::data::{Data, TestFile};
use harness::files::two_gib;
use harness::sample::{Contender, Goal, Row};

use anyhow::Result;

use super::load::{ALLOWANCE, CANDLE_LOAD, MAPPED, candle_load, data_len, mapped, ours, reading};
use super::{Spec, limits};

/// The processes of a row whose samples differ much from each other.
const PROCESSES: usize = 20;

pub(super) fn rows() -> Vec<Spec> {
    let mut rows = vec![
        Spec::new("first load of 2 GiB into candle, memory given back", memory_given_back),
        Spec::new("first load of 2 GiB into candle, process after process", one_after_another),
    ];
    #[cfg(target_os = "linux")]
    rows.push(Spec::new("first load of 2 GiB into candle, page cache cold", cache_cold));
    rows
}

fn memory_given_back(data: &Data) -> Result<Row> {
    let file = data.file("two-gib.safetensors", &two_gib())?;
    let bytes = data_len(&file)?;
    let touch = Contender::limit("touch the memory", move |watch| {
        watch.time(|| limits::touch(bytes as usize)).map(drop)
    });
    let row = row(&file, touch, 1.5)?.goals([Goal::NeverSlower(MAPPED)]);
    Ok(row.samples(PROCESSES).given_back())
}

/// No sample prepares the memory: a part of it was just used by the last process.
fn one_after_another(data: &Data) -> Result<Row> {
    let file = data.file("two-gib.safetensors", &two_gib())?;
    let row = reading(vec![ours(&file), mapped(&file)], &file)?.memory(0).samples(PROCESSES);
    Ok(row.goals([Goal::NeverSlower(MAPPED), Goal::Memory(data_len(&file)? + ALLOWANCE)]))
}

#[cfg(target_os = "linux")]
fn cache_cold(data: &Data) -> Result<Row> {
    const DIRECT: &str = "read past the cache (O_DIRECT)";
    let file = data.file("two-gib.safetensors", &two_gib())?;
    let path = file.path.clone();
    let direct =
        Contender::limit(DIRECT, move |watch| watch.time(|| limits::read_past_the_cache(&path)));
    Ok(row(&file, direct, 2.0)?.goals([Goal::OfLimit(DIRECT, 1.0)]).cold())
}

/// Ours beside both ways of candle. Each goal is to be this many times as fast.
fn row(file: &TestFile, limit: Contender, times: f64) -> Result<Row> {
    let goals = [
        Goal::Faster(MAPPED, times),
        Goal::Faster(CANDLE_LOAD, times),
        Goal::Memory(data_len(file)? + ALLOWANCE),
    ];
    let contenders = vec![ours(file), mapped(file), candle_load(file), limit];
    Ok(reading(contenders, file)?.goals(goals).samples(3))
}
