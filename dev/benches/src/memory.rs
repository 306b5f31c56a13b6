//! This process's memory, and the machine's.

use std::fs;

/// Returns the memory that the process has now, in bytes. Linux only.
pub fn resident() -> Option<u64> {
    field("/proc/self/status", "VmRSS:")
}

/// Returns the most memory that the process has had since [`reset_peak`], in bytes. Linux only.
pub fn peak() -> Option<u64> {
    field("/proc/self/status", "VmHWM:")
}

/// Resets the peak to the memory that the process has now. Does nothing where that is impossible.
pub fn reset_peak() {
    // A failure leaves an older peak. It shows up in the table as too much memory.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Returns the machine's memory, in bytes. Linux only.
pub fn total() -> Option<u64> {
    field("/proc/meminfo", "MemTotal:")
}

/// Reads a field of a file of the kernel, converted from KiB to bytes.
fn field(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
