//! The number of threads that the environment asks for.

use std::num::NonZeroUsize;

use crate::terminal::report::wrong_usage;
use crate::terminal::text;

/// Refuses a number of threads that core would ignore.
pub(crate) fn check_environment() -> anyhow::Result<()> {
    const VARIABLE: &str = "SAFETENSORS_THREADS";
    match std::env::var_os(VARIABLE) {
        Some(threads) => match threads.to_str().map(|it| it.trim().parse::<NonZeroUsize>()) {
            Some(Ok(_)) => Ok(()),
            _ => Err(wrong_usage(format!(
                "{VARIABLE} should be a number of threads, at least 1, found \"{}\"",
                text::short(&threads.to_string_lossy())
            ))),
        },
        None => Ok(()),
    }
}
