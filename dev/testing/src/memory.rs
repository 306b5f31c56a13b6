//! The memory of this process, in bytes. Linux only.
//! A test that measures it runs in a process for itself ([`is_alone`](crate::process::is_alone)).

use std::fs;

/// Returns the most memory that the process has had.
pub fn peak() -> u64 {
    status("VmHWM:")
}

/// Returns the memory that the process has now.
pub fn resident() -> u64 {
    status("VmRSS:")
}

/// Does some work. Returns its result, and how far the peak of the memory was above `before` during
/// it.
pub fn growth<T>(before: u64, work: impl FnOnce() -> T) -> (T, u64) {
    // Resets the peak.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let done = work();
    (done, peak().saturating_sub(before))
}

fn status(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}
