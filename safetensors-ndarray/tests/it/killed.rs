//! Runs that are killed, at any time and as often as it happens.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};
use std::{env, thread};

use ndarray::{Array1, Axis, Ix1};
use safetensors_core::Result;
use safetensors_ndarray::{Reader, Writer};
use safetensors_testing::files::names_in;
use safetensors_testing::process::command_of;

use crate::common::place;

/// The variable that makes this program the run that is killed, with the path that it writes.
const RUN: &str = "SAFETENSORS_TEST_KILLED_RUN";

/// How often the random run is killed. `TMPDIR` says on which file system.
const ROUNDS: &str = "SAFETENSORS_TEST_KILLS";

/// Every start goes on with all that was said to be synced.
#[test]
fn a_run_that_is_killed_at_random_times_loses_no_synced_step() {
    if let Some(path) = env::var_os(RUN) {
        return run_for_ever(Path::new(&path)).unwrap();
    }
    let rounds = env::var(ROUNDS).map_or(10, |rounds| rounds.parse().unwrap());
    let (dir, path) = place("run.safetensors");
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
    let mut random = u64::from(seed);
    let mut synced = 0;
    for round in 0..rounds {
        let test = a_run_that_is_killed_at_random_times_loses_no_synced_step;
        let mut run = command_of(test).env(RUN, &path).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(run.stdout.take().unwrap());
        // It prints how many steps are safe, and before that a number when it has opened the file.
        let reader = thread::spawn(move || {
            let lines = said.lines().map_while(|line| line.ok());
            let said =
                lines.filter_map(|line| Some(line.strip_prefix("steps ")?.parse::<u64>().unwrap()));
            said.collect::<Vec<_>>()
        });
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        thread::sleep(Duration::from_micros(10_000 + (random >> 33) % 150_000));
        run.kill().unwrap();
        let status = run.wait().unwrap();
        let said = reader.join().unwrap();
        assert!(!status.success(), "round {round}: the run ended by itself after {said:?}");
        if let (Some(first), Some(last)) = (said.first(), said.last()) {
            assert!(*first >= synced, "round {round}: {first} steps after {synced} were synced");
            synced = *last;
        }
        if path.exists() {
            Reader::open(&path).unwrap().read::<u64, Ix1>("time").unwrap();
        }
    }
    Writer::resume(&path).unwrap();
    let r = Reader::open(&path).unwrap();
    let time = r.read::<u64, Ix1>("time").unwrap();
    assert!(time.len() as u64 >= synced, "{} of {synced}", time.len());
    assert_eq!(time, Array1::from_iter(0..time.len() as u64));
    let snap = r.read::<u64, Ix1>("snap").unwrap();
    assert_eq!(snap, Array1::from_iter((0..time.len() as u64).filter(|step| step % 10 == 3)));
    assert_eq!(names_in(dir.path()), ["run.safetensors"]);
}

/// Appends to arrays of unlike rates, syncs, finishes and goes on, until it is killed.
fn run_for_ever(path: &Path) -> Result<()> {
    loop {
        let w = Writer::resume(path)?.sync_every(7);
        let snap = w.grow("snap", Axis(0), &[])?;
        let time = w.grow("time", Axis(0), &[])?;
        println!("steps {}", time.steps());
        for pass in 0..100 {
            let step: u64 = time.steps();
            if step % 10 == 3 {
                snap.push(step)?;
            }
            time.push(step)?;
            if pass % 25 == 24 {
                w.sync()?;
                println!("steps {}", time.steps());
            }
        }
        let steps = time.steps();
        w.finish()?;
        println!("steps {steps}");
    }
}
