//! The page cache: each test file must be in it before and after a measurement.

use std::path::Path;

use anyhow::{Result, ensure};

/// The least share of a file's pages that must be in the page cache. The system may drop a few at
/// any time.
const LEAST: f64 = 0.95;

/// Brings a file into the page cache and makes sure that it is there.
pub(crate) fn warm(path: &Path) -> Result<()> {
    let read = || -> Result<f64> {
        std::io::copy(&mut std::fs::File::open(path)?, &mut std::io::sink())?;
        assert_warm(path)
    };
    (0..4).find_map(|_| read().ok()).map_or_else(read, Ok).map(drop)
}

/// The share of a file's pages that are in the page cache. Fails if it is too small. It is 1 where
/// the system does not tell.
pub(crate) fn assert_warm(path: &Path) -> Result<f64> {
    let share = share(path)?;
    ensure!(
        share >= LEAST,
        "{}: {:.1} % of it is in the page cache",
        path.display(),
        100.0 * share
    );
    Ok(share)
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
pub(crate) const STATE: &str = if cfg!(target_os = "linux") {
    "warm: mincore finds at least 95 % of every file that is read, before and after its row"
} else {
    "warm: every file was read before"
};
