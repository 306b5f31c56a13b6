//! [`Unkept`]: reads that leave nothing in the page cache.

use std::cell::Cell;
use std::fs::File;
#[cfg(any(target_os = "linux", target_os = "android"))]
use std::io::IoSliceMut;
use std::marker::PhantomData;
#[cfg(any(target_os = "linux", target_os = "android"))]
use std::num::NonZeroU64;
use std::ops::Range;

#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::{
    fs::{Advice, fadvise},
    io::{Errno, ReadWriteFlags, preadv, preadv2, retry_on_intr},
};

#[cfg(any(target_os = "linux", target_os = "android"))]
use super::failpoint;

thread_local! {
    static UNKEPT: Cell<bool> = const { Cell::new(false) };
}

/// Until it is dropped, reads of files by this thread leave no pages in the page cache that were not
/// there before, where the system can do that.
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

/// Drops the pages of a range from the page cache. The system first begins to write changes back, and
/// this does not wait for them. Their errors show at synchronisation.
pub(crate) fn drop_pages(file: &File, range: Range<u64>) {
    // Linux takes this advice as a request to write back changes, too.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if let Some(len) = NonZeroU64::new(range.end.saturating_sub(range.start)) {
        let _ = fadvise(file, range.start, Some(len), Advice::DontNeed);
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = (file, range);
}

/// Fills buffers with bytes from `offset` on. Returns the number of bytes, and whether their pages and
/// those of the rest have to be dropped.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn read_unkept(
    file: &File,
    buffers: &mut [IoSliceMut<'_>],
    offset: u64,
) -> (usize, bool) {
    /// Since Linux 6.14, in most file systems of disks. rustix has no name for it.
    const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

    if !failpoint::lacks("uncached reads")
        && let Ok(done) = retry_on_intr(|| preadv2(file, buffers, offset, DONTCACHE))
    {
        return (done, false);
    }
    // A page in the middle stands for all. It is the only one that this question reads, because it
    // is the only one that it asks for. Reads share their first and last pages.
    let _ = fadvise(file, 0, None, Advice::Random);
    let len: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    let middle = offset.saturating_add(len as u64 / 2);
    let mut byte = [0];
    let there = preadv2(file, &mut [IoSliceMut::new(&mut byte)], middle, ReadWriteFlags::NOWAIT);
    let done = retry_on_intr(|| preadv(file, buffers, offset)).unwrap_or(0);
    (done, there == Err(Errno::AGAIN))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::file::io::failpoint::without;
    use crate::file::io::reserve::tmpfs;
    use crate::{Checkpoint, LoadOptions, SaveOptions, TensorBuf, save};

    const MIB: usize = 1 << 20;

    /// Returns for each page of a file whether it is in the page cache.
    #[allow(unsafe_code, reason = "a test of the system")]
    fn pages(path: &Path) -> Vec<bool> {
        let file = File::open(path).unwrap();
        // SAFETY: the mapping is never read.
        let map = unsafe { memmap2::Mmap::map(&file).unwrap() };
        let mut pages = vec![0_u8; map.len().div_ceil(4096)];
        let start = map.as_ptr().cast_mut().cast();
        // SAFETY: the range is the whole mapping, and the vector has a byte for each page.
        assert_eq!(unsafe { libc::mincore(start, map.len(), pages.as_mut_ptr()) }, 0);
        pages.iter().map(|page| page & 1 == 1).collect()
    }

    /// Saves a file of 12 MiB, of which only these MiB are in the page cache. `None` on a file system
    /// in memory.
    fn partly_cached(path: &Path, cached: &[usize]) -> Option<Checkpoint> {
        let buf = TensorBuf::from_vec(vec![12 * MIB], vec![7_u8; 12 * MIB]).unwrap();
        save(path, [("w", &buf)], &SaveOptions::new()).unwrap();
        let checkpoint = Checkpoint::open(path).unwrap();
        let file = File::open(path).unwrap();
        if tmpfs(&file).is_some() {
            eprintln!("NOT TESTED: the directory for temporary files is in memory");
            return None;
        }
        drop_pages(&file, 0..u64::MAX >> 1);
        fadvise(&file, 0, None, Advice::Random).unwrap();
        for number in cached {
            let start = (number * MIB) as u64;
            crate::file::io::positional::read_exact_at(&file, &mut vec![0; MIB], start).unwrap();
        }
        Some(checkpoint)
    }

    /// Loads such a file, and returns its pages before and after.
    fn loaded(cached: &[usize], options: &LoadOptions) -> Option<(Vec<bool>, Vec<bool>)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let checkpoint = partly_cached(&path, cached)?;
        let before = pages(&path);
        assert_eq!(before.iter().filter(|page| **page).count(), 256 * cached.len());
        let read = checkpoint.read_all(options).unwrap();
        assert!(read[0].bytes().iter().all(|byte| *byte == 7));
        Some((before, pages(&path)))
    }

    #[test]
    fn pages_that_were_there_stay_and_others_are_gone() {
        for threads in [1, 3] {
            let options = LoadOptions::new().threads(threads).drop_page_cache(true);
            let Some((before, after)) = loaded(&[0, 3, 9], &options) else { return };
            assert_eq!(after, before);
        }
    }

    #[test]
    fn older_systems_decide_for_each_read() {
        let options = LoadOptions::new().threads(1).drop_page_cache(true);
        let load = || loaded(&[0, 1, 2, 3, 4], &options);
        let Some((_, after)) = without("uncached reads", load) else { return };
        assert!(after[..1024].iter().all(|page| *page));
        // Each two of the three reads share a page.
        let left = after[1024..].iter().filter(|page| **page).count();
        assert!(left <= 3, "{left} pages");
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

    /// Prints the time of loads from a cold page cache, and the most pages that they leave.
    #[test]
    #[ignore = "writes 4 GiB, and measures"]
    fn loads_of_four_gigabytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let buf = TensorBuf::from_vec(vec![64 * MIB], vec![7_u8; 64 * MIB]).unwrap();
        let names: Vec<_> = (0..64).map(|i| i.to_string()).collect();
        save(&path, names.iter().map(|name| (name, &buf)), &SaveOptions::new()).unwrap();
        let cached = || pages(&path).iter().filter(|page| **page).count() as u64 * 4096;
        for round in 0..3 {
            for (way, drops, lacks) in
                [("kept", false, ""), ("dropped", true, ""), ("older", true, "uncached reads")]
            {
                drop_pages(&File::open(&path).unwrap(), 0..u64::MAX >> 1);
                let checkpoint = Checkpoint::open(&path).unwrap();
                let options = LoadOptions::new().drop_page_cache(drops);
                let options = if lacks.is_empty() { options } else { options.threads(1) };
                let is_done = AtomicBool::new(false);
                let (took, most) = std::thread::scope(|scope| {
                    let watch = scope.spawn(|| {
                        let mut most = 0;
                        while !is_done.load(Ordering::Relaxed) {
                            most = most.max(cached());
                            std::thread::sleep(Duration::from_millis(50));
                        }
                        most.max(cached())
                    });
                    let begun = Instant::now();
                    without(lacks, || checkpoint.read_all(&options)).unwrap();
                    let took = begun.elapsed();
                    is_done.store(true, Ordering::Relaxed);
                    (took, watch.join().unwrap())
                });
                println!("{round} {way}: {took:?}, at most {} MiB cached", most >> 20);
            }
        }
    }

    #[test]
    fn without_the_option_all_pages_stay() {
        let Some((_, after)) = loaded(&[], &LoadOptions::new()) else { return };
        assert!(after.iter().all(|page| *page));
    }
}
