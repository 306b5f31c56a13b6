//! A description of the machine, for the table's head.

use std::fs;

use serde::Serialize;

use crate::memory;

/// The machine and its state.
#[derive(Serialize)]
pub struct Machine {
    processor: String,
    cores: usize,
    memory_gib: u64,
    system: String,
    huge_pages: String,
}

impl Machine {
    pub fn this() -> Self {
        let cpus = read("/proc/cpuinfo");
        let processor =
            cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            processor: processor.map_or(std::env::consts::ARCH, |(_, name)| name).into(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: memory::total().unwrap_or_default().div_ceil(1 << 30),
            system: format!("{} {}", std::env::consts::OS, read("/proc/sys/kernel/osrelease")),
            huge_pages: read("/sys/kernel/mm/transparent_hugepage/enabled"),
        }
    }
}

/// Returns the text of a file of the kernel; nothing on other systems.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { processor, cores, memory_gib, system, huge_pages } = self;
        writeln!(f, "- {processor}, {cores} cores, {memory_gib} GiB, {system}")?;
        write!(f, "- transparent huge pages: {huge_pages}")
    }
}
