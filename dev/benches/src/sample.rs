//! Takes samples.
//! The contenders of a row take turns, so that other load on the machine affects all of them.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::{cache, memory};

/// A virtual machine gives free memory back to its host after a second or two.
const GIVEN_BACK_AFTER: Duration = Duration::from_secs(4);

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
    pub samples: Vec<Sample>,
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
        Self { name, role, samples: Vec::new(), run: Box::new(run) }
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

    fn sample(&mut self, memory: u64) -> Result<Sample> {
        memory::warm(memory)?;
        let ((), sample) = sample_of(&mut self.run).with_context(|| self.name.to_owned())?;
        Ok(sample)
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
    /// As fast as the contender of this name, or faster, in each sample and not only in most.
    NeverSlower(&'static str),
    /// At most this much memory more than the process had, in bytes.
    Memory(u64),
}

/// The place of a row in a family of rows that do the same work on more and more: how time and
/// memory grow is drawn over the amount.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    pub family: &'static str,
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
    /// Whether each sample is taken in a separate process, like a program that loads one model.
    pub isolated: bool,
    /// The memory to warm before a sample, in bytes. 0 if a sample takes little.
    pub memory: u64,
    /// Whether the machine is idle before each sample, until it has given free memory back.
    pub given_back: bool,
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
            isolated: false,
            memory: 0,
            given_back: false,
            cold: false,
            files: vec![],
        }
    }

    /// Takes a sample of a contender, in the process that was started for it.
    pub fn measure_one(mut self, contender: &str) -> Result<Sample> {
        let contender = self.contenders.iter_mut().find(|candidate| candidate.name == contender);
        contender.context("no such contender")?.sample(self.memory)
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
        let rounds_before = usize::from(!self.isolated);
        self.contenders.iter_mut().for_each(|contender| contender.samples.clear());
        for round in 0..rounds_before + self.samples {
            for contender in &mut self.contenders {
                if self.given_back {
                    sleep(GIVEN_BACK_AFTER);
                }
                if self.cold {
                    self.files.iter().try_for_each(|file| cache::evict(file))?;
                }
                let sample = if self.isolated {
                    in_own_process(name, contender.name, data)?
                } else {
                    contender.sample(self.memory)?
                };
                if round >= rounds_before {
                    contender.samples.push(sample);
                }
            }
        }
        Ok(())
    }
}

fn in_own_process(row: &str, contender: &str, data: &Path) -> Result<Sample> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--child", row, contender]).arg(data).stderr(std::process::Stdio::inherit());
    let output = command.output()?;
    ensure!(output.status.success(), "{contender}: {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}
