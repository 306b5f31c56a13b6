//! Huge pages for large buffers.
//!
//! Loading from a warm page cache spends most of its time in page faults: the kernel must find and
//! clear every page of the destination buffers. Pages of 2 MiB instead of 4 KiB cause 512 times
//! fewer faults. Most Linux systems give huge pages only to memory for which a program asks with
//! `madvise`.
//!
//! Huge pages can also be slow to come. A virtual machine gives free stretches of 2 MiB back to its
//! host, and waits for the host when it needs them again. A machine with little free memory first
//! has to move other pages out of the way. Small pages then come from what is left in between. So
//! the first huge pages are timed, and the rest stays small if they are slow.

#![allow(unsafe_code, reason = "advice about memory is given by address")]

use core::ops::Range;

/// Asks the kernel to back newly allocated buffers with huge pages. The buffers must not have been
/// written to yet, because a page that was touched already stays small.
///
/// Nothing is asked for while huge pages are slow to come. The kernel may refuse; then loading is
/// only slower. The advice stays with the memory after the
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
    use std::time::{Duration, Instant};
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

    /// A huge page that takes longer than this is slow: 512 small pages come sooner. A huge page
    /// that is at hand takes a third of it or less.
    const SLOW: Duration = Duration::from_millis(1);

    /// So many huge pages must be slow one after the other, because another program can delay one.
    const TRIES: usize = 3;

    /// The values in `linux/mman.h`, the same on every architecture. Kernels before 5.14 refuse the
    /// first, kernels before 6.1 the second.
    const MADV_POPULATE_WRITE: libc::c_int = 23;
    const MADV_COLLAPSE: libc::c_int = 25;

    pub(super) fn advise(mut buffers: Vec<Range<usize>>) {
        // Neighbouring buffers share one piece of advice, so that many small buffers get huge pages
        // too.
        buffers.sort_unstable_by_key(|buffer| buffer.start);
        let mut was_timed = false;
        for buffers in buffers.chunk_by(|a, b| b.start.saturating_sub(a.end) <= GAP) {
            let (Some(first), Some(last)) = (buffers.first(), buffers.last()) else { continue };
            // Only whole pages may be advised: a page at either end may hold other data.
            let stretch =
                first.start.next_multiple_of(page_size())..last.end / page_size() * page_size();
            if stretch.len() < WORTH_IT || !may_join() {
                continue;
            }
            if !was_timed {
                if are_slow(whole_pages(&stretch), time_of) {
                    return;
                }
                // A shorter stretch has too few pages to tell.
                was_timed = stretch.len() > TRIES * HUGE + HUGE;
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

    /// Whether the first of these pages are slow to come, by the time that each took. `None` stops
    /// the timing.
    fn are_slow(
        pages: impl Iterator<Item = Range<usize>>,
        time_of: impl FnMut(Range<usize>) -> Option<Duration>,
    ) -> bool {
        let times = pages.take(TRIES).map(time_of);
        times.take_while(|time| time.is_some_and(|time| time > SLOW)).count() == TRIES
    }

    /// The huge pages that lie wholly inside a stretch.
    fn whole_pages(stretch: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (first, end) = (stretch.start.next_multiple_of(HUGE), stretch.end);
        (first..)
            .step_by(HUGE)
            .map(|page| page..page + HUGE)
            .take_while(move |page| page.end <= end)
    }

    /// Brings in a huge page, and returns how long that took. `None` if the kernel refused.
    fn time_of(page: Range<usize>) -> Option<Duration> {
        let start = Instant::now();
        let is_there =
            madvise(page.clone(), libc::MADV_HUGEPAGE) && madvise(page, MADV_POPULATE_WRITE);
        is_there.then(|| start.elapsed())
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
        // SAFETY: all three kinds of advice keep the contents of the memory and only change the
        // pages that back it. This holds for memory of any owner, and for addresses without memory. The
        // pointer is never dereferenced.
        unsafe { libc::madvise(start, range.len(), advice) == 0 }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn pages_are_slow_if_one_after_the_other_is() {
            let pages = || whole_pages(&(4096..16 * HUGE));
            let (slow, quick) = (Some(SLOW * 2), Some(SLOW / 4));
            let verdict = |times: [Option<Duration>; TRIES]| {
                let mut times = times.into_iter();
                (are_slow(pages(), |_| times.next().unwrap()), times.len())
            };
            assert_eq!(verdict([slow, slow, slow]), (true, 0));
            // The second number says how many pages need not be timed any more.
            assert_eq!(verdict([quick, slow, slow]), (false, 2));
            assert_eq!(verdict([slow, slow, quick]), (false, 0));
            assert_eq!(verdict([None, slow, slow]), (false, 2));
            assert!(!are_slow(pages().take(2), |_| slow), "too few pages to tell");
        }

        #[test]
        fn whole_pages_of_a_stretch() {
            let pages = |stretch: Range<usize>| whole_pages(&stretch).collect::<Vec<_>>();
            assert_eq!(pages(4096..3 * HUGE), [HUGE..2 * HUGE, 2 * HUGE..3 * HUGE]);
            assert_eq!(pages(HUGE..3 * HUGE + 4096), [HUGE..2 * HUGE, 2 * HUGE..3 * HUGE]);
            assert!(pages(4096..HUGE + 4096).is_empty());
        }

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
