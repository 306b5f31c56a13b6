//! The common part of the examples that are killed: they start themselves as a child process with a
//! path to train at, and kill the child with SIGKILL, which no process can catch.
//!
//! The child prints the line `saving` when it begins a save, and `saved, loss N` after it.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// How a child process ended.
pub struct Run {
    /// Whether it did all its work.
    pub finished: bool,
    /// Whether it had begun a save and not ended it.
    pub was_saving: bool,
    /// The last loss that it printed.
    pub loss: String,
    /// All lines that it printed.
    pub lines: Vec<String>,
}

/// When a child is killed.
pub struct Kill {
    /// After it has printed this many lines. The first says that a save begins.
    pub lines: usize,
    /// And after this time.
    pub wait: Duration,
}

impl Kill {
    /// A moment that is different each time.
    pub fn at_random(random: &mut Random) -> Self {
        let lines = 1 + random.below(8) as usize;
        // From 1 µs to 16 ms, short and long waits alike: on disks of any speed, some kills hit the
        // beginning of a save, some its end, and some the next step.
        let longest = 1 << random.below(15);
        Self { lines, wait: Duration::from_micros(random.below(longest)) }
    }
}

/// Starts a child that trains at a path, and kills it if `kill` says when.
///
/// # Errors
///
/// The child cannot be started, or it fails although it was not killed.
pub fn run_child(path: &Path, kill: Option<Kill>) -> Result<Run> {
    let mut child = Command::new(env::current_exe()?)
        .arg(path)
        // Sums in parallel could be added in another order.
        .env("RAYON_NUM_THREADS", "1")
        .stdout(Stdio::piped())
        .spawn()?;
    let lines = BufReader::new(child.stdout.take().context("the child has no output")?).lines();
    let mut run =
        Run { finished: false, was_saving: false, loss: String::new(), lines: Vec::new() };
    let mut killed = false;
    // The lines that it printed before it died are read to the end.
    for (before, line) in lines.enumerate() {
        let line = line?;
        run.was_saving = line == "saving";
        if let Some(loss) = line.strip_prefix("saved, loss ") {
            run.loss = loss.into();
        }
        run.lines.push(line);
        if let Some(Kill { wait, .. }) = kill.as_ref().filter(|kill| kill.lines == before + 1) {
            sleep(*wait);
            child.kill()?;
            killed = true;
        }
    }
    let status = child.wait()?;
    run.finished = status.success();
    ensure!(run.finished || killed, "the child failed: {status}");
    Ok(run)
}

/// SplitMix64: random numbers from a state of 64 bits.
pub struct Random(pub u64);

impl Random {
    /// Returns the next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number from 0 to `end`, without `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }
}
