//! Each file-related system call of the command, failed on purpose or never returned from.
//!
//! The command runs under `strace`, which makes the chosen call fail or kills the process there. In
//! every case, the destination afterwards is the complete old checkpoint or the complete new one,
//! which every library reads as it is; a signature or a delta is the old or the new. Code 0 means
//! the new one, and the same command succeeds when it is run again. Only a change in place may also
//! leave a file that all readers refuse: the next edit restores its header, and the next run
//! completes its data. The next run removes the leftovers of a failed one.
//!
//! Where there is no `strace`, or tracing is forbidden, the tests report it on standard error and
//! check nothing. `SAFETENSORS_FAULTS=all`, as in `.ci/run`, tries every error and a kill at every
//! call, on the disk, instead of a sample in memory.

mod cases;
mod strace;

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cases::{
    Case, FILE, FOLDER, State, change_last_byte, make_delta, old_file, old_folder, run, state,
};
use safetensors_core::SaveOptions;
use strace::{Call, Fault, Outcome};

/// The faults at every call; a kill only where it leaves other files than an earlier one.
const ALWAYS: [Fault; 3] = [Fault::Killed, Fault::Error("EIO"), Fault::ErrorsFromHere("EIO")];

/// The faults at every fourth call.
const SAMPLED: [Fault; 2] = [Fault::Error("ENOSPC"), Fault::Error("EACCES")];

/// The faults that are tried only if everything is.
const SELDOM: [Fault; 2] = [Fault::ErrorsFromHere("ENOSPC"), Fault::ErrorsFromHere("EACCES")];

/// The results of all runs of a case.
#[derive(Default)]
struct Tally {
    old: usize,
    new: usize,
    /// Failed, with the new checkpoint in place.
    late: usize,
    killed: usize,
    /// Left with half a header or half the data, which was refused and could be restored.
    restored: usize,
    /// The state that each run left, and whether it succeeded.
    states: HashSet<(State, bool)>,
}

impl Tally {
    fn count(&mut self, outcome: Outcome, is_new: bool) {
        match outcome {
            Outcome::Exit(0) => {}
            Outcome::Exit(_) => self.late += usize::from(is_new),
            Outcome::Signal(_) | Outcome::Endless => self.killed += 1,
        }
        *(if is_new { &mut self.new } else { &mut self.old }) += 1;
    }
}

/// Whether every error is to be tried at every call.
fn tries_all() -> bool {
    std::env::var_os("SAFETENSORS_FAULTS").is_some_and(|value| value == "all")
}

fn check(case: &Case) {
    if let Err(reason) = strace::is_usable() {
        say(&format!("SKIPPED: no system call of {} was failed: {reason}", case.name));
        return;
    }
    let calls = case.calls();
    assert_eq!(case.calls(), calls, "{}: another run makes other calls", case.name);
    let faults = faults(case, &calls);
    let (tally, problems) = (Mutex::new(Tally::default()), Mutex::new(Vec::new()));
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((call, fault)) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(problem) = one_fault(case, call, *fault, &tally) {
                        problems.lock().unwrap().push(format!("{fault:?} at {call:?}: {problem}"));
                    }
                }
            });
        }
    });
    let (tally, problems) = (tally.into_inner().unwrap(), problems.into_inner().unwrap());
    assert!(problems.is_empty(), "{}:\n{}", case.name, problems.join("\n"));
    assert!(calls.len() >= 20 && tally.old > 0 && tally.new > 0, "{}", case.name);
    let kills = faults.iter().filter(|(_, fault)| matches!(fault, Fault::Killed)).count();
    assert_eq!(tally.killed, kills);
    let Tally { old, new, late, killed, restored, states } = tally;
    say(&format!(
        "{}: {} system calls; {old} old, {new} new, {late} late, {killed} killed, {restored} \
         restored, {} states",
        case.name,
        calls.len(),
        states.len()
    ));
}

/// Returns the faults with their calls.
fn faults<'a>(case: &Case, calls: &'a [Call]) -> Vec<(&'a Call, Fault)> {
    let all = tries_all();
    // A signature is put in place as any file is, so all errors are a sample there, and a delta and
    // the directory of a follower as any directory is.
    let is_like_others = !case.is_checkpoint || case.follows;
    let always = if all || !is_like_others { &ALWAYS[..] } else { &[Fault::Killed] };
    let (mut faults, mut reads) = (Vec::new(), 0..);
    for (number, call) in calls.iter().enumerate() {
        // A process in which all later reads fail leaves the same state as one with a single failed
        // read.
        let is_followed = all || !call.only_reads() || reads.next().is_some_and(|i| i % 4 == 0);
        let sampled = SAMPLED.iter().enumerate();
        let sampled = sampled.filter(|(i, _)| all || (number + i).is_multiple_of(4));
        let seldom = if all { &SELDOM[..] } else { &[] };
        let always = always.iter().filter(|fault| match fault {
            Fault::Killed => all || call.follows_change,
            Fault::ErrorsFromHere(_) => is_followed,
            Fault::Error(_) => true,
        });
        let here = always.chain(sampled.map(|(_, fault)| fault)).chain(seldom);
        faults.extend(here.map(|&fault| (call, fault)));
    }
    faults
}

fn one_fault(case: &Case, call: &Call, fault: Fault, tally: &Mutex<Tally>) -> Result<(), String> {
    let run = case.run_with(call, fault);
    let directory = run.directory.path();
    if run.outcome == Outcome::Endless {
        return Err("the command does not end".into());
    }
    let mut found = case.found(directory);
    if !case.may_tear {
        case.is_readable(directory)?;
    } else if found.is_err() && run.outcome != Outcome::Exit(0) && case.restore(directory)? {
        // Readers refused the file until then.
        tally.lock().unwrap().restored += 1;
        found = case.found(directory);
    }
    let is_new = match found {
        Ok(found) if found == case.new => true,
        Ok(found) if found == case.old => false,
        Ok(found) => return Err(format!("neither old nor new: {found:?}")),
        Err(error) => return Err(format!("neither old nor new: {error}")),
    };
    if run.outcome == Outcome::Exit(0) && !is_new {
        return Err("exit code 0, and nothing done".into());
    }
    tally.lock().unwrap().count(run.outcome, is_new);
    let state = (state(directory), run.outcome == Outcome::Exit(0));
    if !tally.lock().unwrap().states.insert(state) {
        // From here on, all is as it was after an earlier fault.
        return Ok(());
    }
    if case.is_checkpoint {
        case.verifies(directory)?;
    }
    if run.outcome != Outcome::Exit(0) {
        case.run_again(directory).map_err(|error| format!("run again: {error}"))?;
        if case.found(directory).as_ref() != Ok(&case.new) {
            return Err("run again: it is not the new one".into());
        }
        let left = case.hidden_files(directory);
        if !left.is_empty() {
            return Err(format!("run again: {left:?} stay behind"));
        }
    }
    Ok(())
}

/// Says something that `cargo test` does not keep back.
#[allow(clippy::explicit_write, reason = "the harness keeps what eprintln! prints to itself")]
fn say(line: &str) {
    writeln!(std::io::stderr(), "faults: {line}").unwrap();
}

#[test]
fn a_save_over_an_older_file() {
    let line = "convert input.safetensors checkpoint/model.safetensors --force";
    check(&Case::new("a save", line, FILE, |dir| old_file(&dir.join(FILE), &SaveOptions::new())));
}

#[test]
fn a_sharded_save_over_an_older_checkpoint() {
    let line = "convert input.safetensors checkpoint --max-shard-size 12 --force";
    let old = |dir: &Path| old_folder(dir, "--max-shard-size 12");
    check(&Case::new("a sharded save", line, FOLDER, old));
}

#[test]
fn a_save_for_ranks_over_an_older_checkpoint() {
    let line = "convert input.safetensors checkpoint --force --ranks 2 --preset none \
                --rule '*=uneven:0'";
    let old = |dir: &Path| old_folder(dir, "--ranks 2 --preset none --rule '*=uneven:0'");
    check(&Case::new("a save for ranks", line, FOLDER, old));
}

#[test]
fn a_delta_replaces_an_older_one_or_nothing() {
    let line = "delta make base new.safetensors checkpoint --force";
    check(&Case::new("a delta", line, FOLDER, |dir| {
        make_delta(dir);
        fs::remove_dir(dir.join(FOLDER)).unwrap();
        fs::rename(dir.join("delta"), dir.join(FOLDER)).unwrap();
        change_last_byte(&dir.join("new.safetensors"));
    }));
}

#[test]
fn an_applied_delta_replaces_an_older_directory_or_nothing() {
    let line = "delta apply base delta checkpoint --force";
    check(&Case::new("an applied delta", line, FOLDER, |dir| {
        old_file(&dir.join(FILE), &SaveOptions::new());
        make_delta(dir);
    }));
}

#[cfg(feature = "sign")]
#[test]
fn a_signature_replaces_an_older_one_or_nothing() {
    let line = "sign checkpoint --key key.pem --hash blake3 --force";
    check(&Case::new("a signature", line, "checkpoint/model.sig", |dir| {
        fs::copy(crate::sign::fixture("p256.pem"), dir.join("key.pem")).unwrap();
        old_file(&dir.join(FILE), &SaveOptions::new());
        run(dir, "sign checkpoint --key key.pem");
    }));
}

#[test]
fn a_delta_that_a_follower_applies() {
    let line = "delta follow root checkpoint --once";
    check(&Case::new("a delta that is followed", line, FOLDER, |dir| {
        let full = dir.join("root/weight_v000000");
        fs::create_dir_all(&full).unwrap();
        old_file(&full.join("model.safetensors"), &SaveOptions::new());
        run(dir, line);
        let new = dir.join("new.safetensors");
        fs::copy(full.join("model.safetensors"), &new).unwrap();
        change_last_byte(&new);
        run(dir, "delta make root/weight_v000000 new.safetensors root/weight_v000001");
    }));
}

/// A change of the header, which has this alignment.
fn check_edit(name: &'static str, line: &'static str, align: usize) {
    let options = SaveOptions::new().align(align);
    check(&Case::new(name, line, FILE, |dir| old_file(&dir.join(FILE), &options)));
}

/// The header has room for the change, which is made in a copy nevertheless.
#[test]
fn an_edit_is_complete_or_changes_nothing() {
    check_edit("an edit", "metadata set checkpoint/model.safetensors note=new", 4096);
}

#[test]
fn an_edit_in_place_is_complete_or_can_be_restored() {
    let line = "metadata set checkpoint/model.safetensors note=new --in-place";
    check_edit("an edit in place", line, 4096);
}

/// The header has no room.
#[test]
fn an_edit_that_moves_the_data() {
    let line = "metadata set checkpoint/model.safetensors note=longer-than-the-padding --in-place";
    check_edit("an edit that moves the data", line, 8);
}
