//! Huge pages for large buffers.
//!
//! Loading from a warm page cache spends most of its time in page faults: the kernel must find and
//! clear every page of the destination buffers. Pages of 2 MiB instead of 4 KiB cause 512 times
//! fewer faults. Most Linux systems give huge pages only to memory for which a program asks with
//! `madvise`.

#![allow(unsafe_code, reason = "advice about memory is given by address")]

use core::ops::Range;

/// Asks the kernel to back newly allocated buffers with huge pages. The buffers must not have been
/// written to yet, because a page that was touched already stays small.
///
/// The kernel may refuse; then loading is only slower. The advice stays with the memory after the
/// buffers are freed, until the allocator returns it to the system.
#[cfg(target_os = "linux")]
pub(crate) fn advise(buffers: impl IntoIterator<Item = Range<*const u8>>) {
    linux::advise(
        buffers.into_iter().map(|buffer| buffer.start.addr()..buffer.end.addr()).collect(),
    );
}

/// Does nothing on other systems, which have no such advice.
#[cfg(not(target_os = "linux"))]
pub(crate) fn advise(_: impl IntoIterator<Item = Range<*const u8>>) {}

#[cfg(target_os = "linux")]
mod linux {
    use core::ops::Range;
    use std::sync::OnceLock;
    use std::vec::Vec;

    use rustix::param::page_size;

    /// The smallest stretch of memory to give advice for. Each piece of advice splits the kernel's
    /// record of a mapping, and a process may have only 65,530 such records by default. So small
    /// buffers never get advice one by one.
    const WORTH_IT: usize = 4 << 20;

    /// The size of a huge page on most machines. On a machine with larger ones, fewer small pages
    /// are joined.
    const HUGE: usize = 2 << 20;

    /// Buffers no further apart than this are treated as one stretch of memory. Such a gap holds
    /// only the allocator's own records.
    const GAP: usize = 8 << 10;

    /// The value in `linux/mman.h`, the same on every architecture. Kernels before 6.1 refuse it.
    const MADV_COLLAPSE: libc::c_int = 25;

    pub(super) fn advise(mut buffers: Vec<Range<usize>>) {
        // Neighbouring buffers share one piece of advice, so that many small buffers get huge pages
        // too.
        buffers.sort_unstable_by_key(|buffer| buffer.start);
        for buffers in buffers.chunk_by(|a, b| b.start.saturating_sub(a.end) <= GAP) {
            let (Some(first), Some(last)) = (buffers.first(), buffers.last()) else { continue };
            // Only whole pages may be advised: a page at either end may hold other data.
            let stretch =
                first.start.next_multiple_of(page_size())..last.end / page_size() * page_size();
            if stretch.len() < WORTH_IT || !may_join() {
                continue;
            }
            // From here on, the first touch of a page brings in a whole huge page.
            if madvise(stretch.clone(), libc::MADV_HUGEPAGE) {
                // The allocator writes the length of a buffer just before its first byte. So the
                // page there was touched before the advice, and is small. Those pages are joined
                // into huge ones explicitly. After the first failure the rest is left as it is.
                let _ = touched(&stretch, buffers)
                    .into_iter()
                    .all(|range| madvise(range, MADV_COLLAPSE));
            }
        }
    }

    /// Whether the administrator allows huge pages. `MADV_COLLAPSE` ignores that setting, so it is
    /// read here.
    fn may_join() -> bool {
        static ALLOWED: OnceLock<bool> = OnceLock::new();
        *ALLOWED.get_or_init(|| {
            let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
            !setting.is_ok_and(|setting| setting.contains("[never]"))
        })
    }

    /// The huge pages of `stretch` that the allocator touched at the start of a buffer. Adjacent
    /// pages are joined into one range, to save system calls.
    fn touched(stretch: &Range<usize>, buffers: &[Range<usize>]) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for buffer in buffers {
            // The huge page that holds the word before the buffer. A huge page that is not wholly
            // inside the stretch cannot be joined.
            let page = buffer.start.saturating_sub(size_of::<usize>()) / HUGE * HUGE;
            if page < stretch.start || stretch.end - page < HUGE {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if page <= last.end => last.end = page + HUGE,
                _ => ranges.push(page..page + HUGE),
            }
        }
        ranges
    }

    /// Gives advice about a range of addresses, and returns whether the kernel accepted it.
    fn madvise(range: Range<usize>, advice: libc::c_int) -> bool {
        let start = core::ptr::without_provenance_mut(range.start);
        // SAFETY: both kinds of advice keep the contents of the memory and only change the pages
        // that back it. This holds for memory of any owner, and for addresses without memory. The
        // pointer is never dereferenced.
        unsafe { libc::madvise(start, range.len(), advice) == 0 }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn huge_pages_in_which_a_buffer_begins() {
            let page = |number: usize| number * HUGE;
            // Three large buffers and many small ones. The first begins before the first whole huge
            // page.
            let large =
                [page(0) + 16..page(4), page(4) + 16..page(8), page(8) + 4096..page(9) - 4096];
            let small = (0..64).map(|i| page(9) + i * (64 << 10)..page(9) + (i + 1) * (64 << 10));
            let buffers: Vec<_> = large.into_iter().chain(small).collect();
            assert_eq!(touched(&(4096..page(11)), &buffers), [page(4)..page(5), page(8)..page(11)]);
            // The stretch ends inside the last huge page.
            assert_eq!(
                touched(&(4096..page(11) - 4096), &buffers),
                [page(4)..page(5), page(8)..page(10)]
            );
            // The word before a buffer that starts on a page boundary lies in the page before.
            let (before, buffer) = (page(1)..page(2), page(2)..page(3));
            assert_eq!(touched(&(0..page(3)), &[buffer]), [before]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_stay_as_they_are_whatever_their_places_and_sizes() {
        let buffer: Vec<u8> = (0..9 << 20).map(|i| (i % 251) as u8).collect();
        let small: Vec<Vec<u8>> = (0..400).map(|i| vec![i as u8; 40_000]).collect();
        let ranges =
            [(0, 0), (0, 1), (1, 4 << 20), (0, 9 << 20), (4097, (9 << 20) - 1), (3, (4 << 20) + 3)];
        advise(ranges.map(|(start, end)| buffer[start..end].as_ptr_range()));
        advise(small.iter().map(|buffer| buffer.as_ptr_range()));
        advise([]);
        assert!(buffer.iter().enumerate().all(|(i, &byte)| byte == (i % 251) as u8));
        assert!(small.iter().enumerate().all(|(i, buffer)| *buffer == [i as u8; 40_000]));
    }
}
