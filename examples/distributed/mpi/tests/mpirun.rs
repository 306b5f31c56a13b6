//! The program under a real `mpirun`: bytes, logits, and ranks that fail.
//!
//! Environment variables replace flags of `mpirun`, because Open MPI and MPICH have different
//! flags.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;

use safetensors_core::{Checkpoint, SaveOptions, save};
use tempfile::{TempDir, tempdir};

const PROGRAM: &str = env!("CARGO_BIN_EXE_mpi-llama");

/// One job at a time: the ranks of each wait for each other and need all processors.
static TURN: Mutex<()> = Mutex::new(());

/// Starts ranks. Each group of them has its arguments.
fn mpirun(groups: &[(usize, &[&str])], variables: &[(&str, &str)]) -> Output {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut command = Command::new("mpirun");
    command
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        // A container may forbid one process to read another's memory. Sockets and pipes do then.
        .env("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
        // A job that hangs is a failure, however slow the machine is.
        .env("MPIEXEC_TIMEOUT", "600")
        .envs(variables.iter().copied());
    for (i, (ranks, args)) in groups.iter().enumerate() {
        if i > 0 {
            command.arg(":");
        }
        command.args(["-n", &ranks.to_string(), PROGRAM]).args(*args);
    }
    command.output().unwrap()
}

fn write(seed: &str) -> TempDir {
    let directory = tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    printed(&command.args(["--write", "--seed", seed]).arg(directory.path()).output().unwrap());
    directory
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the output of the program, if it succeeded.
fn printed(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stderr}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Checks that all 4 ranks have ended with an error that has all of these texts.
fn all_fail(output: &Output, expected: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{stderr}");
    for rank in 0..4 {
        let begin = format!("rank {rank}: ");
        let line = stderr.lines().find(|line| line.starts_with(&begin));
        let line = line.unwrap_or_else(|| panic!("rank {rank} says nothing:\n{stderr}"));
        for expected in expected {
            assert!(line.contains(expected), "expected {expected:?} in:\n{line}");
        }
    }
}

/// 3 ranks with one checkpoint, and rank 3 with another.
fn with_other(good: &Path, other: &Path) -> Output {
    mpirun(&[(3, &[text(good)]), (1, &[text(other)])], &[])
}

/// Returns the numbers of a row of the table.
fn row(output: &str, name: &str) -> Vec<u64> {
    let row = output.lines().find_map(|line| line.strip_prefix(name));
    let row = row.unwrap_or_else(|| panic!("no row {name:?}:\n{output}"));
    row.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

#[test]
fn logits_are_equal_and_each_byte_is_read_once_for_any_number_of_ranks() {
    let directory = write("1");
    let checkpoint = Checkpoint::open(directory.path()).unwrap();
    let total: u64 = checkpoint.tensors().map(|tensor| tensor.byte_len()).sum();
    let replicated: u64 = checkpoint
        .tensors()
        .filter(|tensor| tensor.name().contains("norm"))
        .map(|tensor| tensor.byte_len())
        .sum();
    let heads: u64 = checkpoint
        .tensors()
        .filter(|tensor| tensor.name().contains("k_proj") || tensor.name().contains("v_proj"))
        .map(|tensor| tensor.byte_len())
        .sum();
    assert!(checkpoint.files().len() > 2 && replicated > 0 && heads > 0);
    // The last one sends everything in many messages.
    for (ranks, args) in [(1, &[][..]), (2, &[]), (4, &[]), (8, &["--message-len", "1000"])] {
        let args = [args, &[text(directory.path())]].concat();
        let output = printed(&mpirun(&[(ranks, &args)], &[]));
        let count = ranks as u64;
        let numbers: Vec<_> = (0..ranks).map(|rank| rank.to_string()).collect();
        let numbers = numbers.join(" ");
        let expected = format!("ranks {numbers} of {ranks}, local ranks {numbers}\n");
        assert!(output.contains(&expected), "{output}");
        // From 4 ranks on, several read the same heads of keys and values.
        let split = total - replicated + heads * ((count / 2).max(1) - 1);
        let all = |name: &str| {
            let row = row(&output, name);
            assert_eq!((row.len(), row[ranks]), (ranks + 1, row[..ranks].iter().sum()));
            row[ranks]
        };
        assert_eq!(all("each rank its parts"), split + count * replicated);
        assert_eq!(all("replicated: one reads, broadcast"), replicated);
        assert_eq!(all("replicated: stripes, all-gather"), replicated);
        assert_eq!(all("the model: split tensors"), split);
        assert!(output.contains("replicated tensors: bit-equal on all ranks"), "{output}");
        assert!(output.contains("logits [6, 512]"), "{output}");
    }
}

#[test]
fn a_broken_file_on_one_rank_fails_all_ranks() {
    let (good, broken) = (write("1"), write("1"));
    let mut files: Vec<_> = Checkpoint::open(broken.path())
        .unwrap()
        .files()
        .iter()
        .map(|file| file.path().to_owned())
        .collect();
    let last = files.pop().unwrap();
    let name = last.file_name().unwrap().to_str().unwrap();
    let file = fs::File::options().write(true).open(&last).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    all_fail(&with_other(good.path(), broken.path()), &["rank 3 has failed: opening", name]);
    fs::remove_file(&last).unwrap();
    all_fail(&with_other(good.path(), broken.path()), &["rank 3 has failed: opening", name]);
}

#[test]
fn a_file_that_fails_while_others_wait_is_an_error_of_all() {
    let directory = write("1");
    let args = ["--fail-reading", "2", text(directory.path())];
    let output = mpirun(&[(4, &args)], &[]);
    all_fail(&output, &["rank 2 has failed: reading what is broadcast", ".safetensors", "norm"]);
}

#[test]
fn a_rank_that_fails_alone_ends_all() {
    let directory = write("1");
    let args = ["--fail-computing", "1", text(directory.path())];
    let output = mpirun(&[(4, &args)], &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(stderr.contains("rank 1 ends all ranks: fails on purpose"), "{stderr}");
    assert!(!stderr.to_lowercase().contains("timeout"), "{stderr}");
}

#[test]
fn different_tensors_on_one_rank_are_reported_before_sending() {
    let (good, other) = (write("1"), tempdir().unwrap());
    let checkpoint = Checkpoint::open(good.path()).unwrap();
    let norm = checkpoint.tensor("model.norm.weight").unwrap().read().unwrap();
    let path = other.path().join("model.safetensors");
    save(path, [("model.norm.weight", norm)], &SaveOptions::new()).unwrap();
    let output = with_other(good.path(), other.path());
    all_fail(&output, &["rank 3 has failed: the plan differs from that of rank 0"]);
}

/// The checks of the program can fail.
#[test]
fn different_values_on_one_rank_are_reported() {
    let (good, other) = (write("1"), write("2"));
    all_fail(&with_other(good.path(), other.path()), &["logit ", "within 1e-4"]);

    let checkpoint = Checkpoint::open(other.path()).unwrap();
    let norm = checkpoint.tensor("model.norm.weight").unwrap();
    let (path, offset) = (norm.file().unwrap().to_owned(), norm.file_offset() as usize);
    let mut bytes = fs::read(&path).unwrap();
    bytes[offset] ^= 1;
    fs::write(&path, bytes).unwrap();
    let expected = ["\"model.norm.weight\" came by", "with other bytes than this rank has read"];
    all_fail(&with_other(good.path(), other.path()), &expected);
}

#[test]
fn a_number_of_ranks_that_the_heads_do_not_divide_by() {
    let directory = write("1");
    let output = mpirun(&[(3, &[text(directory.path())])], &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(stderr.contains("the 8 heads cannot be divided among 3 ranks"), "{stderr}");
}

/// A launcher that contradicts `mpirun`.
#[test]
fn a_contradiction_of_the_environment_names_both_variables() {
    let directory = write("1");
    let variables = [("RANK", "0"), ("WORLD_SIZE", "9")];
    let output = mpirun(&[(4, &[text(directory.path())])], &variables);
    all_fail(&output, &["WORLD_SIZE=9, but ", "SIZE=4"]);
}
