//! The page cache: it must have each test file before and after a measurement.
//! For a row of cold reading, it must not have it before each sample.

use std::path::Path;

use anyhow::{Result, ensure};

/// Brings a file into the page cache and makes sure that it is there.
pub fn warm(path: &Path) -> Result<()> {
    let mut attempts = 0;
    loop {
        std::io::copy(&mut std::fs::File::open(path)?, &mut std::io::sink())?;
        attempts += 1;
        match assert_warm(path) {
            Err(_) if attempts < 5 => {}
            result => return result.map(drop),
        }
    }
}

/// Returns the share of a file's pages that are in the page cache. Fails if it is too small: the
/// system may drop a few at any time, but no more. It is 1 where the system does not report it.
pub fn assert_warm(path: &Path) -> Result<f64> {
    let share = share(path)?;
    ensure!(share >= 0.95, "{}: {:.1} % of it is cached", path.display(), 100.0 * share);
    Ok(share)
}

/// Drops a file from the page cache and makes sure that it is not there. Linux only.
#[cfg(target_os = "linux")]
pub fn evict(path: &Path) -> Result<()> {
    let file = std::fs::File::open(path)?;
    // Only pages that are on the disk can be dropped.
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let share = share(path)?;
    ensure!(share <= 0.01, "{}: {:.1} % of it is still cached", path.display(), 100.0 * share);
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub fn evict(_: &Path) -> Result<()> {
    anyhow::bail!("the page cache can be emptied on Linux only")
}

#[cfg(target_os = "linux")]
fn share(path: &Path) -> Result<f64> {
    let (resident, pages) = crate::system::resident_pages(&crate::system::map(path)?)?;
    Ok(resident as f64 / pages as f64)
}

#[cfg(not(target_os = "linux"))]
fn share(_: &Path) -> Result<f64> {
    Ok(1.0)
}

/// The state of the page cache, for the table's head.
pub const STATE: &str = if cfg!(target_os = "linux") {
    "warm, unless the row says cold: mincore finds at least 95 % of every file that is read, before \
     and after its row"
} else {
    "warm: every file was read before"
};
