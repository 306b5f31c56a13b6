//! A description of the machine, for the table's head.

use std::fs;

use serde::Serialize;

use crate::{cache, memory};

/// The machine and its state.
#[derive(Serialize)]
pub struct Machine {
    processor: String,
    cores: usize,
    memory_gib: Option<f64>,
    system: String,
    huge_pages: String,
    page_cache: &'static str,
}

impl Machine {
    pub fn this() -> Self {
        let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
        let processor = read("/proc/cpuinfo").and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        let kernel = read("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            processor: processor.unwrap_or_else(|| std::env::consts::ARCH.into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: memory::total().map(|bytes| (bytes as f64 / f64::from(1 << 30)).round()),
            system: format!("{} {kernel}", std::env::consts::OS),
            huge_pages: read("/sys/kernel/mm/transparent_hugepage/enabled")
                .unwrap_or_else(|| "-".into()),
            page_cache: cache::STATE,
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let memory = self.memory_gib.map_or("-".into(), |gib| format!("{gib} GiB"));
        writeln!(f, "- {}, {} cores, {memory}, {}", self.processor, self.cores, self.system)?;
        writeln!(f, "- transparent huge pages: {}", self.huge_pages)?;
        write!(f, "- page cache {}", self.page_cache)
    }
}
