//! Measures two things in turns, so that other load on the machine affects both.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// The name of a measurement, and its work.
pub(crate) type Contender<'a> = (&'a str, &'a dyn Fn() -> Result<()>);

/// Prints the titles of the columns.
pub(crate) fn title(samples: usize) {
    let (median, minimum) = ("median", "minimum");
    println!("{:<38}{median:>12}{minimum:>12}{:>8}   of {samples} samples", "row", "ratio");
}

/// Measures a thing and its limit in turns, and prints a line for each. The ratio is the reached
/// part of the limit: the median over the samples of the limit's time divided by ours.
pub(crate) fn row(samples: usize, ours: Contender<'_>, limit: Contender<'_>) -> Result<()> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..samples {
        for ((_, run), times) in [ours, limit].iter().zip(&mut times) {
            let started = Instant::now();
            run()?;
            times.push(started.elapsed());
        }
    }
    let mut ratios: Vec<_> = times[1]
        .iter()
        .zip(&times[0])
        .map(|(limit, ours)| limit.as_secs_f64() / ours.as_secs_f64())
        .collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let ratio = format!("{:.2}", ratios[samples / 2]);
    for (((name, _), mut times), ratio) in [ours, limit].into_iter().zip(times).zip([&ratio, ""]) {
        times.sort_unstable();
        let milliseconds = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
        let (median, minimum) = (milliseconds(times[samples / 2]), milliseconds(times[0]));
        println!("{name:<38}{median:>12}{minimum:>12}{ratio:>8}");
    }
    Ok(())
}

/// Runs a command and drops its output. It has to end with one of these codes.
pub(crate) fn status(command: &mut Command, codes: &[i32]) -> Result<()> {
    let status = command.stdout(Stdio::null()).status()?;
    ensure!(status.code().is_some_and(|code| codes.contains(&code)), "{command:?}: {status}");
    Ok(())
}
