//! Runs tests in a separate process: to kill it, to measure its memory, to set its environment.

use std::any::type_name;
use std::env;
use std::process::Command;

const ALONE: &str = "SAFETENSORS_TEST_ALONE";

/// Returns a command that starts this test program again with only `test`, and passes its output
/// on.
///
/// `test` is the test's function itself, so that no name has to be kept up to date.
pub fn command_of<T>(test: T) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", name_of(&test), "--nocapture", "--test-threads=1"]);
    command
}

/// Runs a test in a process for itself: returns `true` in that process. In the process that started
/// it, returns `false` after the test has passed there.
///
/// # Panics
///
/// If the test fails, with all that it printed.
#[track_caller]
pub fn is_alone<T>(test: T) -> bool {
    let name = name_of(&test);
    if env::var_os(ALONE).is_some_and(|alone| alone == name) {
        return true;
    }
    // glibc would keep memory that threads free in an arena of each, more or less by chance.
    let output = command_of(test).env(ALONE, name).env("MALLOC_ARENA_MAX", "1").output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("1 passed"),
        "{printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

/// Returns the name of a test's function below the root of its program.
fn name_of<T>(_: &T) -> &'static str {
    type_name::<T>().split_once("::").unwrap().1
}
