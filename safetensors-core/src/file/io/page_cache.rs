//! [`Unkept`]: reads that leave hardly anything in the page cache.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static UNKEPT: Cell<bool> = const { Cell::new(false) };
}

/// Until it is dropped, reads of files by this thread drop from the page cache what was not there
/// before, where the system can do that.
#[must_use]
pub(crate) struct Unkept {
    before: bool,
    _of_thread: PhantomData<*const ()>,
}

impl Unkept {
    /// Changes nothing unless `is_unkept`. A load inside another one does as that one.
    pub(crate) fn begin(is_unkept: bool) -> Self {
        let before = UNKEPT.get();
        UNKEPT.set(before || is_unkept);
        Self { before, _of_thread: PhantomData }
    }

    pub(super) fn is_begun() -> bool {
        UNKEPT.get()
    }
}

impl Drop for Unkept {
    fn drop(&mut self) {
        UNKEPT.set(self.before);
    }
}

/// Returns `true` for a load of so many bytes that the page cache would have no room for them next
/// to the tensors.
pub(crate) fn fills_memory(bytes: u64) -> bool {
    /// Such a load takes much longer than the question.
    const LARGE: u64 = 256 << 20;

    bytes >= LARGE && available().is_some_and(|available| bytes > available / 2)
}

/// Returns the bytes that programs can have without swapping.
fn available() -> Option<u64> {
    let about = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = about.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Reads bytes from `offset` on. Pages that were not there before are dropped after the copy. Fails
/// where the system or the file system cannot do that.
///
/// Pages that are read ahead stay if another thread has read them already. Without reading ahead
/// (`Advice::Random`) none would, and a load would take 1.2 times as long.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn read_unkept(
    file: &std::fs::File,
    buffers: &mut [std::io::IoSliceMut<'_>],
    offset: u64,
) -> rustix::io::Result<usize> {
    use rustix::io::{ReadWriteFlags, preadv2, retry_on_intr};

    /// `RWF_DONTCACHE`, for which rustix has no name. Older systems have `RWF_NOWAIT` and advice to
    /// drop pages, but a read that does not wait already reads ahead. So it cannot find which pages
    /// were there before.
    const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

    retry_on_intr(|| preadv2(file, buffers, offset, DONTCACHE))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::File;
    use std::io::IoSliceMut;
    use std::path::Path;

    use rustix::fs::{Advice, fadvise};
    use rustix::io::{ReadWriteFlags, preadv2};

    use super::*;
    use crate::file::io::positional::read_exact_at;
    use crate::{Checkpoint, LoadOptions, SaveOptions, TensorBuf, save};

    const MIB: usize = 1 << 20;

    /// Returns for each MiB of the data the number of its pages that are in the page cache. Pages
    /// that are not begin to be read.
    fn cached_pages(path: &Path) -> Vec<usize> {
        let file = File::open(path).unwrap();
        fadvise(&file, 0, None, Advice::Random).unwrap();
        let is_cached = |page: &usize| {
            let mut byte = [0];
            let mut bytes = [IoSliceMut::new(&mut byte)];
            let offset = (page * 4096) as u64;
            preadv2(&file, &mut bytes, offset, ReadWriteFlags::NOWAIT).is_ok()
        };
        (0..12).map(|mib| (mib * 256..(mib + 1) * 256).filter(is_cached).count()).collect()
    }

    /// Saves a file of 12 MiB, of which only these MiB are in the page cache. `None` if the system
    /// cannot drop pages.
    fn partly_cached(path: &Path, cached: &[usize]) -> Option<Checkpoint> {
        let buf = TensorBuf::from_vec(vec![12 * MIB], vec![7_u8; 12 * MIB]).unwrap();
        save(path, [("w", &buf)], &SaveOptions::new()).unwrap();
        let checkpoint = Checkpoint::open(path).unwrap();
        let file = File::open(path).unwrap();
        if read_unkept(&file, &mut [IoSliceMut::new(&mut [0])], 0).is_err() {
            eprintln!("NOT TESTED: needs Linux 6.14, and temporary files on a disk");
            return None;
        }
        for advice in [Advice::DontNeed, Advice::Random] {
            fadvise(&file, 0, None, advice).unwrap();
        }
        for number in cached {
            read_exact_at(&file, &mut vec![0; MIB], (number * MIB) as u64).unwrap();
        }
        Some(checkpoint)
    }

    /// Loads such a file, and returns the pages that are cached then.
    fn loaded(cached: &[usize], options: &LoadOptions) -> Option<Vec<usize>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let checkpoint = partly_cached(&path, cached)?;
        let read = checkpoint.read_all(options).unwrap();
        assert!(read[0].bytes().iter().all(|byte| *byte == 7));
        Some(cached_pages(&path))
    }

    #[test]
    fn pages_that_were_there_stay_and_others_are_gone() {
        let expected: Vec<_> =
            (0..12).map(|mib| [0, 256][[0, 3, 9].contains(&mib) as usize]).collect();
        let options = LoadOptions::new().drop_page_cache(true);
        let Some(found) = loaded(&[0, 3, 9], &options.clone().threads(1)) else { return };
        assert_eq!(found, expected);
        // With several threads, some of the others stay, too.
        let Some(found) = loaded(&[0, 3, 9], &options.threads(3)) else { return };
        assert_eq!([0, 3, 9].map(|mib| found[mib]), [256; 3]);
        assert!(found.iter().sum::<usize>() < (3 + 9 / 2) * 256, "{found:?}");
    }

    #[test]
    fn only_a_load_that_fills_memory_drops_its_pages_unasked() {
        assert!(available().is_some_and(|bytes| bytes > 0));
        let options = LoadOptions::new();
        for (bytes, drops) in [(0, false), (255 << 20, false), (u64::MAX, true)] {
            assert_eq!(options.drops_page_cache(bytes), drops, "{bytes}");
            assert!(options.clone().drop_page_cache(true).drops_page_cache(bytes));
            assert!(!options.clone().drop_page_cache(false).drops_page_cache(bytes));
            // A part of a larger operation does as the operation.
            assert_eq!(options.clone().parts_of(bytes).drops_page_cache(0), drops);
        }
    }

    #[test]
    fn without_the_option_all_pages_stay() {
        let Some(found) = loaded(&[], &LoadOptions::new()) else { return };
        assert_eq!(found, [256; 12]);
    }
}
