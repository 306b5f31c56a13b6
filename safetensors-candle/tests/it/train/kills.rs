//! Processes that are killed while they train and save.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use candle_nn::VarMap;
use safetensors_candle::train::{self, AdamW};
use safetensors_core::save::BackgroundSaver;
use safetensors_testing::process::command_of;

use super::support::{model, optimizer, quick, shards, state, train, values};

const STEPS: u32 = 120;

const VARIABLE: &str = "SAFETENSORS_CANDLE_TRAIN";

fn save(saver: &mut BackgroundSaver, path: &Path, map: &VarMap, optimizer: &AdamW) {
    let state = (map, optimizer);
    match path.file_name().unwrap().to_str().unwrap() {
        "a.safetensors" => train::save(path, state, &quick()).unwrap(),
        "sharded" => drop(train::save_sharded(path, state, &shards(64)).unwrap()),
        "background" => {
            train::save_sharded_in_background(saver, path, state, &shards(64)).unwrap();
        }
        _ => train::save_in_background(saver, path, state, &quick()).unwrap(),
    }
}

/// Runs only as a child process: resumes a run if there is one, trains, and saves after each step.
#[test]
fn child() {
    let Some(path) = std::env::var_os(VARIABLE).map(PathBuf::from) else { return };
    let map = model(1);
    let mut optimizer = optimizer(&map);
    let mut saver = BackgroundSaver::new();
    if path.exists() {
        train::load(&path, (&map, &mut optimizer)).unwrap();
    } else {
        // The first kill comes after this.
        save(&mut saver, &path, &map, &optimizer);
        saver.wait().unwrap();
    }
    while optimizer.step_count() < STEPS as usize {
        let step = optimizer.step_count() as u32;
        train(&map, &mut optimizer, step);
        println!("saving");
        save(&mut saver, &path, &map, &optimizer);
    }
}

/// Runs the child, kills it at its save of this number, and says whether it was killed.
fn run(path: &Path, saves: u32, wait: Duration) -> bool {
    let mut child = command_of(child)
        .env(VARIABLE, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut saves_left = saves;
    for line in lines {
        // The harness prints the name of the test on the same line.
        if line.unwrap().ends_with("saving") {
            saves_left -= 1;
            if saves_left == 0 {
                sleep(wait);
                child.kill().unwrap();
                child.wait().unwrap();
                return true;
            }
        }
    }
    assert!(child.wait().unwrap().success());
    false
}

/// Kills runs that save to this name, and checks what each has left.
fn check(name: &str, rounds: u32) {
    let whole = model(1);
    let mut never_stopped = optimizer(&whole);
    (0..STEPS).for_each(|step| train(&whole, &mut never_stopped, step));

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    let mut kills = 0;
    for round in 0..rounds {
        let wait = Duration::from_micros(u64::from(round) * 397 % 2003);
        kills += u32::from(run(&path, 1 + round % 4, wait));
        // The file has a complete state, of the step that it names.
        let (map, expected) = (model(50), model(1));
        let (mut found, mut again) = (optimizer(&map), optimizer(&expected));
        train::load(&path, (&map, &mut found)).unwrap();
        (0..found.step_count() as u32).for_each(|step| train(&expected, &mut again, step));
        assert_eq!((values(&map), state(&found)), (values(&expected), state(&again)));
    }
    assert!(kills > rounds / 2, "{kills} kills");
    assert!(!run(&path, u32::MAX, Duration::ZERO));
    let map = model(50);
    let mut ended = optimizer(&map);
    train::load(&path, (&map, &mut ended)).unwrap();
    assert_eq!((values(&map), state(&ended)), (values(&whole), state(&never_stopped)));
}

#[test]
fn a_run_that_is_killed_again_and_again_ends_with_the_same_bits() {
    check("a.safetensors", 12);
    check("background.safetensors", 4);
}

#[test]
fn a_run_with_shards_that_is_killed_again_and_again_ends_with_the_same_bits() {
    check("sharded", 10);
    check("background", 4);
}
