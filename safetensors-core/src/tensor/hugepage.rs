//! Huge pages for large buffers.
//!
//! Most of the time of loading from a warm page cache goes into page faults: the kernel has to find
//! and clear every page of the buffers that are read into. With pages of 2 MiB instead of 4 KiB
//! there are 512 times fewer of them. Linux hands them out only where it is asked to, on most
//! systems.

#![allow(unsafe_code, reason = "advice about memory is given by address")]

use core::ops::Range;

/// Asks for huge pages behind buffers that were just allocated and are not written to yet. It may
/// be refused: nothing depends on it. The memory stays advised after the buffers are gone, until
/// the allocator gives it back.
#[cfg(target_os = "linux")]
pub(crate) fn advise(buffers: impl IntoIterator<Item = Range<*const u8>>) {
    linux::advise(
        buffers.into_iter().map(|buffer| buffer.start.addr()..buffer.end.addr()).collect(),
    );
}

/// Elsewhere there is no such advice to give.
#[cfg(not(target_os = "linux"))]
pub(crate) fn advise(_: impl IntoIterator<Item = Range<*const u8>>) {}

#[cfg(target_os = "linux")]
mod linux {
    use core::ops::Range;
    use std::sync::OnceLock;
    use std::vec::Vec;

    use rustix::param::page_size;

    /// The smallest stretch of memory that is worth it. Advice splits the kernel's record of a
    /// mapping, and those are limited (65,530 a process), so it is never given for small buffers
    /// one by one.
    const WORTH_IT: usize = 4 << 20;

    /// The size of a huge page on most machines. Where it is larger, small pages are joined in
    /// fewer places.
    const HUGE: usize = 2 << 20;

    /// Buffers that lie no further apart than this are one stretch: between them is nothing but the
    /// allocator's own notes.
    const GAP: usize = 8 << 10;

    /// From `linux/mman.h`, the same on every architecture. Kernels before 6.1 refuse it.
    const MADV_COLLAPSE: libc::c_int = 25;

    pub(super) fn advise(mut buffers: Vec<Range<usize>>) {
        buffers.sort_unstable_by_key(|buffer| buffer.start);
        for buffers in buffers.chunk_by(|a, b| b.start.saturating_sub(a.end) <= GAP) {
            let (Some(first), Some(last)) = (buffers.first(), buffers.last()) else { continue };
            let stretch =
                first.start.next_multiple_of(page_size())..last.end / page_size() * page_size();
            if stretch.len() < WORTH_IT || !may_join() {
                continue;
            }
            // A page that is touched from now on comes as a part of a huge one.
            if madvise(stretch.clone(), libc::MADV_HUGEPAGE) {
                // But not where the allocator has touched one already, to note the length of a
                // buffer just before it. There the small pages have to be made a huge one. It is
                // not worth insisting if that fails for one of them.
                let _ = touched(&stretch, buffers)
                    .into_iter()
                    .all(|range| madvise(range, MADV_COLLAPSE));
            }
        }
    }

    /// Whether the administrator allows huge pages. `MADV_COLLAPSE` would not ask.
    fn may_join() -> bool {
        static ALLOWED: OnceLock<bool> = OnceLock::new();
        *ALLOWED.get_or_init(|| {
            let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
            !setting.is_ok_and(|setting| setting.contains("[never]"))
        })
    }

    /// The huge pages of `stretch` in which a buffer begins, as few ranges as possible.
    fn touched(stretch: &Range<usize>, buffers: &[Range<usize>]) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for buffer in buffers {
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

    /// Whether the advice was taken.
    fn madvise(range: Range<usize>, advice: libc::c_int) -> bool {
        let start = core::ptr::without_provenance_mut(range.start);
        // SAFETY: both kinds of advice leave the contents as they are, whoever the memory belongs to and whether or not there is
        // any: the kernel only backs it with other pages. The pointer is not used to access it.
        unsafe { libc::madvise(start, range.len(), advice) == 0 }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn huge_pages_in_which_a_buffer_begins() {
            let page = |number: usize| number * HUGE;
            // Three large buffers and many small ones. The first begins before the first whole
            // page.
            let large =
                [page(0) + 16..page(4), page(4) + 16..page(8), page(8) + 4096..page(9) - 4096];
            let small = (0..64).map(|i| page(9) + i * (64 << 10)..page(9) + (i + 1) * (64 << 10));
            let buffers: Vec<_> = large.into_iter().chain(small).collect();
            assert_eq!(touched(&(4096..page(11)), &buffers), [page(4)..page(5), page(8)..page(11)]);
            // The last page is not whole.
            assert_eq!(
                touched(&(4096..page(11) - 4096), &buffers),
                [page(4)..page(5), page(8)..page(10)]
            );
            // A note just before a page is in the page before it.
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
