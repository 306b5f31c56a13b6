//! The page cache: a file is all in it before and after it is measured with.

use std::path::Path;

use anyhow::Result;

/// Brings a file into the page cache and makes sure that it is there.
pub(crate) fn warm(path: &Path) -> Result<()> {
    // The system may drop what was just read, to make room or of its own accord; it does not do so again and again.
    let read = || -> Result<()> {
        std::io::copy(&mut std::fs::File::open(path)?, &mut std::io::sink())?;
        assert_warm(path)
    };
    (0..4).find_map(|_| read().ok()).map_or_else(read, Ok)
}

/// Fails unless all of a file is in the page cache, where the system tells.
#[cfg(target_os = "linux")]
pub(crate) fn assert_warm(path: &Path) -> Result<()> {
    let (resident, pages) = crate::system::resident_pages(&crate::system::map(path)?)?;
    anyhow::ensure!(resident == pages, "{}: {resident} of {pages} pages are in the page cache", path.display());
    Ok(())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn assert_warm(_: &Path) -> Result<()> {
    Ok(())
}

/// What can be said of the state of the page cache.
pub(crate) const STATE: &str = if cfg!(target_os = "linux") {
    "warm: mincore finds every page of every file that is read, before and after its row"
} else {
    "warm: every file was read before"
};
