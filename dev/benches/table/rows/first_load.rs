//! A process that loads once, while the machine has neither memory nor the file at hand.

use harness::data::{Data, TestFile};
use harness::files::two_gib;
use harness::sample::{Contender, Goal, Row};

use anyhow::Result;

use super::load::{ALLOWANCE, CANDLE_LOAD, MAPPED, candle_load, data_len, mapped, ours, reading};
use super::{Spec, limits};

/// The processes of a row with samples that differ much from each other.
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
    let mut row = row(&file, touch, 1.5)?;
    row.goals.push(Goal::NeverSlower(MAPPED));
    Ok(Row { samples: PROCESSES, memory: 0, given_back: true, ..row })
}

/// No sample prepares the memory: a part of it was just used by the last process.
fn one_after_another(data: &Data) -> Result<Row> {
    let file = data.file("two-gib.safetensors", &two_gib())?;
    let goals = vec![Goal::NeverSlower(MAPPED), Goal::Memory(data_len(&file)? + ALLOWANCE)];
    let row = reading(vec![ours(&file), mapped(&file)], &file)?;
    Ok(Row { goals, memory: 0, samples: PROCESSES, ..row })
}

#[cfg(target_os = "linux")]
fn cache_cold(data: &Data) -> Result<Row> {
    const DIRECT: &str = "read past the cache (O_DIRECT)";
    let file = data.file("two-gib.safetensors", &two_gib())?;
    let path = file.path.clone();
    let direct =
        Contender::limit(DIRECT, move |watch| watch.time(|| limits::read_past_the_cache(&path)));
    let mut row = row(&file, direct, 2.0)?;
    row.goals.push(Goal::AtLeast(DIRECT, 1.0));
    row.cold = true;
    Ok(row)
}

/// Ours compared with both ways of candle. The goal is to be `times` times as fast.
fn row(file: &TestFile, limit: Contender, times: f64) -> Result<Row> {
    let goals = vec![
        Goal::AtLeast(MAPPED, times),
        Goal::AtLeast(CANDLE_LOAD, times),
        Goal::Memory(data_len(file)? + ALLOWANCE),
    ];
    let contenders = vec![ours(file), mapped(file), candle_load(file), limit];
    Ok(Row { goals, samples: 3, ..reading(contenders, file)? })
}
