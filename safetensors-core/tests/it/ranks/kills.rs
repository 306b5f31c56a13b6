//! Ranks as processes, one of which is killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::sleep;
use std::time::Duration;

use safetensors_core::Checkpoint;
use safetensors_core::error::RankProblem;
use safetensors_testing::process::command_of;
use tempfile::tempdir;

use super::{fill_of, problem, save_rank};
use crate::support;

const RANKS: usize = 3;

/// Not a test of its own: a rank that saves once.
#[test]
fn child() {
    let Ok(directory) = std::env::var("CHILD_DIRECTORY") else { return };
    let number = |name| std::env::var(name).unwrap().parse::<usize>().unwrap();
    let (rank, turn) = (number("CHILD_RANK"), number("CHILD_TURN"));
    println!("begin");
    let saved = save_rank(Path::new(&directory), (rank, RANKS), &format!("t-{turn}"), turn as u8);
    match saved {
        Ok(saved) => println!("{saved:?}"),
        Err(error) => {
            assert!(matches!(problem(&error), RankProblem::AttemptComplete { .. }), "{error}");
        }
    }
}

/// Starts a rank, and returns when it begins to save.
fn start(directory: &Path, rank: usize, turn: u8) -> Child {
    let mut child = command_of(child)
        .env("CHILD_DIRECTORY", directory)
        .env("CHILD_RANK", rank.to_string())
        .env("CHILD_TURN", turn.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    while !lines.next().unwrap().unwrap().contains("begin") {}
    child
}

/// Runs one turn: all ranks save, one is killed meanwhile and started again. Returns whether the
/// checkpoint was incomplete after the kill.
fn turn(directory: &Path, turn: u8) -> bool {
    let victim = usize::from(turn) % RANKS;
    let others = (0..RANKS).filter(|&rank| rank != victim);
    let mut children: Vec<_> = others.map(|rank| start(directory, rank, turn)).collect();
    let mut killed = start(directory, victim, turn);
    sleep(Duration::from_micros(u64::from(turn) * 397 % 4001));
    killed.kill().unwrap();
    killed.wait().unwrap();
    for child in &mut children {
        assert!(child.wait().unwrap().success(), "turn {turn}");
    }
    let after_kill = match Checkpoint::open(directory) {
        Ok(checkpoint) => fill_of(&checkpoint),
        Err(error) => {
            assert_eq!(turn, 1, "{error}");
            0
        }
    };
    assert!(after_kill == turn || after_kill == turn - 1, "{after_kill} in turn {turn}");
    assert!(start(directory, victim, turn).wait().unwrap().success(), "turn {turn}");
    assert_eq!(fill_of(&Checkpoint::open(directory).unwrap()), turn);
    after_kill != turn
}

#[test]
fn a_killed_rank_leaves_the_old_checkpoint_and_a_restarted_one_completes_the_new() {
    const TURNS: u8 = 60;
    let directory = tempdir().unwrap();
    let (is_done, current) = (AtomicBool::new(false), AtomicU8::new(0));
    let (mut incomplete, mut opened) = (0, 0);
    std::thread::scope(|scope| {
        // A reader that opens all the while sees only whole checkpoints, and none older than the
        // last that was complete.
        let reader = scope.spawn(|| {
            let mut opened = 0_u32;
            while !is_done.load(Ordering::SeqCst) {
                let least = current.load(Ordering::SeqCst);
                match Checkpoint::open(directory.path()) {
                    Ok(checkpoint) => {
                        let fill = fill_of(&checkpoint);
                        assert!(fill >= least, "{fill} after {least}");
                        opened += 1;
                    }
                    Err(error) => assert_eq!(least, 0, "{error}"),
                }
            }
            opened
        });
        let turns = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for number in 1..=TURNS {
                incomplete += u32::from(turn(directory.path(), number));
                current.store(number, Ordering::SeqCst);
            }
        }));
        is_done.store(true, Ordering::SeqCst);
        opened = reader.join().unwrap();
        turns.unwrap();
    });
    let mut names = support::names_in(directory.path());
    names.retain(|name| name.starts_with('.') && name != ".safetensors.lock");
    // A turn whose last rank was killed at the very end leaves its directory to the next one.
    assert!(names.len() <= 1, "{names:?}");
    eprintln!(
        "{incomplete} of {TURNS} kills left the old checkpoint; it was opened {opened} times"
    );
    assert!(opened > 0);
}
