//! This process's memory, and the machine's.

use std::fs;

use anyhow::Result;
use memmap2::MmapMut;

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

/// Touches this many bytes of memory and frees them, just before a sample that needs them.
///
/// A virtual machine returns free memory to its host after a second or two. Getting it back takes
/// longer than any work that is measured here.
pub fn warm(bytes: u64) -> Result<()> {
    if bytes > 0 {
        let mut memory = MmapMut::map_anon(bytes as usize)?;
        #[cfg(target_os = "linux")]
        memory.advise(memmap2::Advice::HugePage)?;
        memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        std::hint::black_box(&memory);
    }
    Ok(())
}

/// Reads a field of a file of the kernel, converted from KiB to bytes.
fn field(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
