//! Takes samples.
//! The contenders of a row take turns, so that other load on the machine affects all of them.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::{cache, memory};

/// How often a process of a load row does the work: first, and again.
pub const LOADS: usize = 2;

/// The rounds of a load row.
pub const PAIRS: usize = 20;

/// A slow contender takes no more samples after this time.
const LONG_ENOUGH: Duration = Duration::from_secs(90);

/// The role of a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// This workspace.
    Ours,
    /// Another crate.
    Peer,
    /// The least work that the machine must do for the same result.
    Limit,
}

/// One way to do the work of a row.
pub struct Contender {
    pub name: &'static str,
    pub role: Role,
    /// If processes do the work twice: the first time of each.
    pub samples: Vec<Sample>,
    /// The second time of each of these processes.
    pub again: Vec<Sample>,
    /// The time that samples have taken, with preparation and checks.
    spent: Duration,
    run: Box<Run>,
}

/// Does a contender's work once.
pub type Run = dyn FnMut(&mut Watch) -> Result<()>;

impl Contender {
    pub fn new(
        role: Role,
        name: &'static str,
        run: impl FnMut(&mut Watch) -> Result<()> + 'static,
    ) -> Self {
        let (samples, again, spent) = (Vec::new(), Vec::new(), Duration::ZERO);
        Self { name, role, samples, again, spent, run: Box::new(run) }
    }

    pub fn ours(name: &'static str, run: impl FnMut(&mut Watch) -> Result<()> + 'static) -> Self {
        Self::new(Role::Ours, name, run)
    }

    pub fn peer(name: &'static str, run: impl FnMut(&mut Watch) -> Result<()> + 'static) -> Self {
        Self::new(Role::Peer, name, run)
    }

    pub fn limit(name: &'static str, run: impl FnMut(&mut Watch) -> Result<()> + 'static) -> Self {
        Self::new(Role::Limit, name, run)
    }

    fn sample(&mut self) -> Result<Sample> {
        let ((), sample) = sample_of(&mut self.run).with_context(|| self.name.to_owned())?;
        Ok(sample)
    }

    /// Adds the samples of one process.
    fn add(&mut self, samples: &[Sample]) {
        self.samples.extend(samples.first());
        self.again.extend(samples.get(1));
    }
}

/// Takes one sample of work, and returns the result of the work, too.
pub fn sample_of<T>(work: impl FnOnce(&mut Watch) -> Result<T>) -> Result<(T, Sample)> {
    let mut watch = Watch::default();
    let done = work(&mut watch)?;
    let seconds = watch.seconds.context("nothing was timed")?;
    Ok((done, Sample { seconds, growth: watch.growth }))
}

/// Times the part of a contender's work that counts. Preparation and checks do not count.
#[derive(Default)]
pub struct Watch {
    seconds: Option<f64>,
    growth: Option<u64>,
}

impl Watch {
    /// Times work that is done once, and measures how much the process's memory grows during it.
    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        memory::reset_peak();
        let before = memory::resident();
        let start = Instant::now();
        let done = black_box(work());
        self.seconds = Some(start.elapsed().as_secs_f64());
        self.growth = memory::peak().zip(before).map(|(peak, before)| peak.saturating_sub(before));
        done
    }

    /// Times work that is too short to be timed once, by repeating it for some milliseconds.
    /// Dropping its result each time is part of the work.
    pub fn repeat<T>(&mut self, mut work: impl FnMut() -> Result<T>) -> Result<()> {
        const LEAST: Duration = Duration::from_millis(4);
        let start = Instant::now();
        let mut count = 0_u32;
        while start.elapsed() < LEAST {
            black_box(work()?);
            count += 1;
        }
        self.seconds = Some(start.elapsed().as_secs_f64() / f64::from(count));
        Ok(())
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sample {
    pub seconds: f64,
    /// The peak of the process's memory during the work, minus its memory before, in bytes.
    pub growth: Option<u64>,
}

/// A goal of a row.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// At least this many times as fast as the peer of this name, or this share of the limit's
    /// speed.
    AtLeast(&'static str, f64),
    /// At least this many times as fast as the fastest peer, in each round: at the first time in a
    /// process, and again.
    EachTime(f64, f64),
    /// At most this much memory more than the process had, in bytes.
    Memory(u64),
}

/// The place of a row in a family of rows that do the same work on more and more: how time and
/// memory grow is drawn over the amount.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    pub family: String,
    /// The unit that increases.
    pub unit: &'static str,
    pub amount: u64,
}

/// A row, ready to be measured.
pub struct Row {
    pub contenders: Vec<Contender>,
    pub goals: Vec<Goal>,
    pub point: Option<Point>,
    /// The number of bytes that are moved, for the rate.
    pub bytes: Option<u64>,
    /// The number of samples of each contender.
    pub samples: usize,
    /// How often a fresh process does the work for a sample. 0 if samples are taken in this process.
    pub loads: usize,
    /// Whether the files must not be in the page cache before each sample.
    pub cold: bool,
    /// The files that the work reads. They must be in the page cache, unless the row is cold.
    pub files: Vec<PathBuf>,
}

impl Row {
    /// A row of quick work, in this process.
    pub fn new(contenders: Vec<Contender>) -> Self {
        Self {
            contenders,
            goals: vec![],
            point: None,
            bytes: None,
            samples: 9,
            loads: 0,
            cold: false,
            files: vec![],
        }
    }

    /// A row of processes that each load once, and then again.
    pub fn loads(contenders: Vec<Contender>) -> Self {
        let goals = vec![Goal::EachTime(1.5, 1.2)];
        Self { loads: LOADS, samples: PAIRS, goals, ..Self::new(contenders) }
    }

    /// Takes the samples of a contender, in the process that was started for it.
    pub fn measure_one(mut self, contender: &str) -> Result<Vec<Sample>> {
        let contender = self.contenders.iter_mut().find(|candidate| candidate.name == contender);
        let contender = contender.context("no such contender")?;
        (0..self.loads).map(|_| contender.sample()).collect()
    }

    /// Takes all samples. Starts again if the system drops the files from its cache in between.
    /// Returns the least share of a file that was in the page cache at the end, unless the row is
    /// cold.
    pub fn measure(&mut self, name: &str, data: &Path) -> Result<Option<f64>> {
        const ATTEMPTS: usize = 3;
        if self.cold {
            self.rounds(name, data)?;
            return Ok(None);
        }
        let mut attempt = 1;
        loop {
            self.files.iter().try_for_each(|file| cache::warm(file))?;
            self.rounds(name, data)?;
            let shares = self.files.iter().map(|file| cache::assert_warm(file));
            match shares.collect::<Result<Vec<_>>>() {
                Ok(shares) => return Ok(shares.into_iter().reduce(f64::min)),
                Err(error) if attempt == ATTEMPTS => return Err(error),
                Err(error) => eprintln!("        {error}: measured again"),
            }
            attempt += 1;
        }
    }

    /// Samples the contenders in turn, round after round.
    fn rounds(&mut self, name: &str, data: &Path) -> Result<()> {
        // In this process the first round only warms up: pages, branch prediction, the allocator's
        // memory.
        let rounds_before = usize::from(self.loads == 0);
        for contender in &mut self.contenders {
            contender.samples.clear();
            contender.again.clear();
            contender.spent = Duration::ZERO;
        }
        for round in 0..rounds_before + self.samples {
            for contender in &mut self.contenders {
                if contender.spent > LONG_ENOUGH {
                    continue;
                }
                if self.cold {
                    self.files.iter().try_for_each(|file| cache::evict(file))?;
                }
                let started = Instant::now();
                let samples = match self.loads {
                    0 => vec![contender.sample()?],
                    _ => in_own_process(name, contender.name, data)?,
                };
                contender.spent += started.elapsed();
                if round >= rounds_before {
                    contender.add(&samples);
                }
            }
        }
        Ok(())
    }
}

fn in_own_process(row: &str, contender: &str, data: &Path) -> Result<Vec<Sample>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--child", row, contender]).arg(data).stderr(std::process::Stdio::inherit());
    let output = command.output()?;
    ensure!(output.status.success(), "{contender}: {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}
