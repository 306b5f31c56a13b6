//! Runs that are killed, at any time and as often as it happens.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs, thread};

use ndarray::{Array1, Array2, Axis, Ix1, Ix3, array, s};
use safetensors_core::Result;
use safetensors_ndarray::{ErrorKind, Reader, Writer};
use safetensors_testing::process::command_of;

/// The variable that tells this program to be the run that is killed, and where it writes.
const RUN: &str = "SAFETENSORS_TEST_KILLED_RUN";

/// How often the random run is killed. `TMPDIR` says on which file system.
const ROUNDS: &str = "SAFETENSORS_TEST_KILLS";

#[test]
fn a_run_that_is_killed_leaves_the_old_file_and_the_synced_steps() {
    if let Some(path) = env::var_os(RUN) {
        run_until_killed(Path::new(&path)).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.safetensors");
    fs::write(&path, "old").unwrap();
    let test = a_run_that_is_killed_leaves_the_old_file_and_the_synced_steps;
    assert!(!command_of(test).env(RUN, &path).output().unwrap().status.success());
    assert_eq!(fs::read(&path).unwrap(), b"old");

    // Every file of synced steps is a whole file.
    let first =
        Reader::open(dir.path().join("run.safetensors.synced/00000001.safetensors")).unwrap();
    assert_eq!(first.read::<f64, Ix3>("u").unwrap().dim(), (10, 20, 300));
    assert_eq!(first.read::<f32, Ix1>("x").unwrap(), array![1.0]);
    // Nothing is lost by beginning again.
    let error = Writer::create(&path).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SyncedStepsLeft { .. }), "{error}");

    Writer::resume(&path).unwrap();
    let r = Reader::open(&path).unwrap();
    let time = r.read::<f64, Ix1>("time").unwrap();
    assert_eq!(time, Array1::from_iter((0..30).map(f64::from)));
    let u = r.read::<f64, Ix3>("u").unwrap();
    assert_eq!(u.dim(), (30, 20, 300));
    assert_eq!(u.slice(s![.., 19, 299]), time);
    let columns = r.read::<f64, ndarray::Ix2>("columns").unwrap();
    assert_eq!(columns.dim(), (2, 30));
    assert_eq!(columns.row(1), time);
    assert_eq!(r.attribute("u", "units"), Some("m/s"));
    // An array that had not grown yet comes back without steps.
    assert_eq!(r.read::<f32, Ix1>("late").unwrap().dim(), 0);
    assert_eq!(r.attribute("late", "units"), Some("s"));
    // The synced steps and the temporary files of the killed run are gone.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Appends 35 steps, syncs every 10, and is killed.
fn run_until_killed(path: &Path) -> Result<()> {
    let w = Writer::create(path)?.sync_every(10);
    w.add("x", &array![1.0_f32])?;
    let time = w.grow("time", Axis(0), &[])?;
    let u = w.grow("u", Axis(0), &[20, 300])?;
    let columns = w.grow("columns", Axis(1), &[2])?;
    w.grow::<f32>("late", Axis(0), &[])?;
    w.attribute("u", "units", "m/s")?;
    w.attribute("late", "units", "s")?;
    for step in 0..35 {
        let step = f64::from(step);
        time.push(step)?;
        // In Fortran order.
        u.append(&Array2::from_elem((300, 20), step).t())?;
        columns.append(&array![0.0, step])?;
    }
    std::process::abort();
}

/// Every start goes on with all that was said to be synced.
#[test]
fn a_run_that_is_killed_at_random_times_loses_no_synced_step() {
    if let Some(path) = env::var_os(RUN) {
        return run_for_ever(Path::new(&path)).unwrap();
    }
    let rounds = env::var(ROUNDS).map_or(10, |rounds| rounds.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.safetensors");
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
    let (mut random, mut synced, mut kills, mut finished) = (u64::from(seed), 0, 0, 0);
    let begin = Instant::now();
    for round in 0..rounds {
        let test = a_run_that_is_killed_at_random_times_loses_no_synced_step;
        let mut run = command_of(test).env(RUN, &path).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(run.stdout.take().unwrap());
        // It says how many steps are safe, and a number before that when it has opened the file.
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
        kills += 1;
        if let (Some(first), Some(last)) = (said.first(), said.last()) {
            assert!(*first >= synced, "round {round}: {first} steps after {synced} were synced");
            synced = *last;
        }
        if path.exists() {
            finished = Reader::open(&path).unwrap().read::<u64, Ix1>("time").unwrap().len();
        }
    }
    Writer::resume(&path).unwrap();
    let r = Reader::open(&path).unwrap();
    let time = r.read::<u64, Ix1>("time").unwrap();
    assert!(time.len() as u64 >= synced, "{} of {synced}", time.len());
    assert_eq!(time, Array1::from_iter(0..time.len() as u64));
    let snap = r.read::<u64, Ix1>("snap").unwrap();
    assert_eq!(snap, Array1::from_iter((0..time.len() as u64).filter(|step| step % 10 == 3)));
    let names: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["run.safetensors"]);
    println!(
        "{kills} kills, seed {seed}, {:?}: {} steps, {synced} said to be synced, {finished} in the file before",
        begin.elapsed(),
        time.len()
    );
}

/// Appends to arrays of unlike rates, syncs, finishes and goes on, until it is killed.
fn run_for_ever(path: &Path) -> Result<()> {
    loop {
        let w = Writer::resume(path)?.sync_every(7);
        let (snap, time) = (w.grow("snap", Axis(0), &[])?, w.grow("time", Axis(0), &[])?);
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
