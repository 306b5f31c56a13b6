//! Huge pages for large buffers.
//!
//! A load from a warm page cache spends most of its time in page faults. Pages of 2 MiB cause 512
//! times fewer than pages of 4 KiB, but most Linux systems give them only if `madvise` asks. They
//! can be slow: a virtual machine waits for its host, and a full machine moves other pages away. So
//! memory is divided into windows, and the first huge page of each is timed. After a slow one, that
//! window and some more get small pages.

#![allow(unsafe_code, reason = "advice about memory is given by address")]

use core::ops::Range;
use std::sync::{Mutex, Once, OnceLock};
use std::time::{Duration, Instant};
use std::vec::Vec;

use rustix::param::page_size;

use crate::format::parallel::lock;

// Each piece of advice splits the kernel's record of a mapping, and a process may have only 65,530
// records by default.
const WORTH_IT: usize = 4 << 20;

// The usual size. If huge pages are larger, fewer small ones are joined.
const HUGE: usize = 2 << 20;

/// The size of pages is decided for this much memory.
const WINDOW: usize = 32 << 20;

// Between buffers no further apart are only the allocator's records.
const GAP: usize = 8 << 10;

// 512 small pages come sooner than a huge one that takes longer. One at hand takes a third of it.
// Measured on a virtual machine with 2 cores, over 2 GiB: a huge page at hand takes 0.2 ms, one
// that the host has taken back 4.2 to 6.3 ms, and 2 MiB of small pages 0.7 to 1.1 ms.
const SLOW: Duration = Duration::from_micros(1200);

// As in `linux/mman.h` on every architecture. Kernels before 5.14 refuse the first, before 6.1 the
// second.
const MADV_POPULATE_WRITE: libc::c_int = 23;
const MADV_COLLAPSE: libc::c_int = 25;

pub(crate) struct Pages {
    /// By address.
    windows: Vec<Window>,
    pace: Mutex<Pace>,
}

/// Adjacent memory with equal pages.
struct Window {
    memory: Range<usize>,
    /// Huge pages that the allocator touched, with small pages that can be joined.
    touched: Vec<Range<usize>>,
    decided: Once,
}

impl Pages {
    /// The buffers must be new: a page that was written to stays small.
    pub(crate) fn behind(buffers: impl IntoIterator<Item = Range<*const u8>>) -> Self {
        let mut buffers: Vec<_> = buffers.into_iter().map(addresses).collect();
        // Neighbouring buffers share their windows, so that many small buffers get huge pages
        // too.
        buffers.sort_unstable_by_key(|buffer| buffer.start);
        let mut windows = Vec::new();
        for buffers in buffers.chunk_by(|a, b| b.start.saturating_sub(a.end) <= GAP) {
            let (Some(first), Some(last)) = (buffers.first(), buffers.last()) else { continue };
            // Only whole pages may be advised: a page at either end may hold other data.
            let stretch =
                first.start.next_multiple_of(page_size())..last.end / page_size() * page_size();
            if stretch.len() >= WORTH_IT && may_join() {
                windows.extend(divide(&stretch, touched(&stretch, buffers)));
            }
        }
        Self { windows, pace: Mutex::default() }
    }

    /// Asks for huge pages everywhere, without touching any.
    pub(crate) fn advise(&self) {
        self.windows.iter().for_each(|window| window.decided.call_once(|| window.advise()));
    }

    /// Asks for huge pages in a part that is about to be written, unless they are slow to come.
    // If the kernel refuses, this is only slower. The advice stays with freed memory until the
    // allocator returns it to the system.
    pub(crate) fn prepare(&self, part: Range<*const u8>) {
        let part = addresses(part);
        let first = self.windows.partition_point(|window| window.memory.end <= part.start);
        let rest = self.windows[first..].iter();
        for window in rest.take_while(|window| window.memory.start < part.end) {
            window.decided.call_once(|| self.decide(window));
        }
    }

    fn decide(&self, window: &Window) {
        let Some(before) = lock(&self.pace).try_next() else { return };
        // One measurement for a load is not enough: the first huge pages often come quickly,
        // and the rest slowly. With every page timed, the median of 24 loads of 2 GiB was
        // 729 ms instead of 620 ms.
        if let Some((page, advice)) = window.first_page()
            && lock(&self.pace).is_slow(time_of(page, advice), before)
        {
            return;
        }
        window.advise();
    }
}

fn addresses(room: Range<*const u8>) -> Range<usize> {
    room.start.addr()..room.end.addr()
}

impl Window {
    fn advise(&self) {
        if madvise(self.memory.clone(), libc::MADV_HUGEPAGE) {
            // After the first failure the rest is left as it is.
            let mut touched = self.touched.iter().cloned();
            let _ = touched.all(|range| madvise(range, MADV_COLLAPSE));
        }
    }

    /// Returns the huge page to time, and the advice that brings it. With small buffers, the
    /// allocator has touched all of them.
    fn first_page(&self) -> Option<(Range<usize>, libc::c_int)> {
        let first = self.memory.start.next_multiple_of(HUGE);
        let untouched = (first..)
            .step_by(HUGE)
            .take_while(|page| page + HUGE <= self.memory.end)
            .find(|page| !self.touched.iter().any(|range| range.contains(page)))
            .map(|page| (page, MADV_POPULATE_WRITE));
        let touched = || self.touched.first().map(|range| (range.start, MADV_COLLAPSE));
        untouched.or_else(touched).map(|(page, advice)| (page..page + HUGE, advice))
    }
}

/// Decides which windows try huge pages. After slow ones, more and more are skipped.
#[derive(Default)]
struct Pace {
    pause: u32,
    left_out: u32,
}

impl Pace {
    /// Returns the pause before this window, if it is to be tried.
    fn try_next(&mut self) -> Option<u32> {
        let is_due = self.left_out >= self.pause;
        self.left_out = if is_due { 0 } else { self.left_out + 1 };
        is_due.then_some(self.pause)
    }

    /// Returns whether a huge page was slow. Slow tries at the same time, with the same pause
    /// `before`, make one longer pause.
    fn is_slow(&mut self, time: Duration, before: u32) -> bool {
        let is_slow = time > SLOW;
        let longer = before.saturating_mul(2).saturating_add(1);
        // Slow pages come in runs of 26 to 130 neighbours. Of a machine that had just started,
        // 1,012 of 1,024 were slow: 4.8 s, where small pages took 1.0 s.
        self.pause = if is_slow { self.pause.max(longer) } else { 0 };
        is_slow
    }
}

fn divide(stretch: &Range<usize>, touched: Vec<Range<usize>>) -> impl Iterator<Item = Window> {
    // Windows meet at boundaries of huge pages, so that none is lost.
    let starts = (stretch.start / HUGE * HUGE..stretch.end).step_by(WINDOW);
    let stretch = stretch.clone();
    starts.map(move |start| {
        let memory = start.max(stretch.start)..(start + WINDOW).min(stretch.end);
        let within = |range: &Range<usize>| range.start.max(start)..range.end.min(start + WINDOW);
        let touched = touched.iter().map(within).filter(|range| !range.is_empty()).collect();
        Window { memory, touched, decided: Once::new() }
    })
}

// `MADV_COLLAPSE` ignores the administrator's setting.
fn may_join() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        !setting.is_ok_and(|setting| setting.contains("[never]"))
    })
}

// The allocator writes a buffer's length before its first byte. Adjacent pages become one range, to
// save system calls.
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

/// Also of a refusal: an old kernel refuses at once, a full machine after a search for memory.
fn time_of(page: Range<usize>, advice: libc::c_int) -> Duration {
    let start = Instant::now();
    let _ = madvise(page.clone(), libc::MADV_HUGEPAGE) && madvise(page, advice);
    start.elapsed()
}

/// Returns whether the kernel accepted it.
fn madvise(range: Range<usize>, advice: libc::c_int) -> bool {
    let start = core::ptr::without_provenance_mut(range.start);
    // SAFETY: all three kinds of advice keep the contents of the memory and only change the
    // pages that back it. This holds for memory of any owner, and for addresses without memory.
    // The pointer is never dereferenced.
    unsafe { libc::madvise(start, range.len(), advice) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_pages_are_tried_less_and_less_often() {
        let mut pace = Pace::default();
        let mut tried = |number: u32, time: Duration| {
            let mut tried = Vec::new();
            for window in 0..number {
                if let Some(before) = pace.try_next() {
                    tried.push(window);
                    assert_eq!(pace.is_slow(time, before), time > SLOW);
                }
            }
            tried
        };
        assert_eq!(tried(3, SLOW / 3), [0, 1, 2]);
        assert_eq!(tried(20, SLOW * 2), [0, 2, 6, 14]);
        assert_eq!(tried(12, SLOW / 3), [10, 11], "as soon as one is quick, all are tried");
    }

    #[test]
    fn tries_at_the_same_time_count_once() {
        let mut pace = Pace::default();
        let begun: Vec<_> = (0..40).map(|_| pace.try_next().unwrap()).collect();
        assert!(begun.into_iter().all(|before| pace.is_slow(SLOW * 2, before)));
        assert_eq!((pace.try_next(), pace.try_next()), (None, Some(1)));

        // One of two is quick, after a window was skipped.
        let mut pace = Pace::default();
        let slow = pace.try_next().unwrap();
        let quick = pace.try_next().unwrap();
        assert!(pace.is_slow(SLOW * 2, slow));
        assert_eq!(pace.try_next(), None);
        assert!(!pace.is_slow(SLOW / 3, quick));
        assert_eq!(pace.try_next(), Some(0));
    }

    #[test]
    fn windows_meet_at_huge_pages_and_hold_the_touched_ones() {
        let stretch = HUGE + 4096..HUGE + 2 * WINDOW + 8192;
        let last = 2 * WINDOW..HUGE + 2 * WINDOW;
        let windows = divide(&stretch, vec![2 * HUGE..4 * HUGE, WINDOW..WINDOW + 2 * HUGE, last]);
        let windows: Vec<_> = windows.map(|window| (window.memory, window.touched)).collect();
        let middle = HUGE + WINDOW;
        assert_eq!(
            windows,
            [
                (stretch.start..middle, vec![2 * HUGE..4 * HUGE, WINDOW..middle]),
                (middle..middle + WINDOW, vec![middle..middle + HUGE, 2 * WINDOW..middle + WINDOW]),
                (middle + WINDOW..stretch.end, vec![]),
            ]
        );
    }

    #[test]
    fn the_timed_page_is_complete_and_untouched_if_one_is() {
        let page = |memory, touched: Option<Range<usize>>| {
            let touched = touched.into_iter().collect();
            let page = Window { memory, touched, decided: Once::new() }.first_page();
            page.map(|(page, advice)| (page.start / HUGE, advice))
        };
        assert_eq!(page(4096..4 * HUGE, None), Some((1, MADV_POPULATE_WRITE)));
        assert_eq!(page(4096..4 * HUGE, Some(HUGE..3 * HUGE)), Some((3, MADV_POPULATE_WRITE)));
        assert_eq!(page(4096..4 * HUGE, Some(HUGE..4 * HUGE)), Some((1, MADV_COLLAPSE)));
        assert_eq!(page(4096..2 * HUGE - 4096, None), None);
    }

    #[test]
    fn huge_pages_with_the_start_of_a_buffer_are_touched() {
        let page = |number: usize| number * HUGE;
        // Three large buffers and many small ones. The first begins before the first whole huge
        // page.
        let large = [page(0) + 16..page(4), page(4) + 16..page(8), page(8) + 4096..page(9) - 4096];
        let small = (0..64).map(|i| page(9) + i * (64 << 10)..page(9) + (i + 1) * (64 << 10));
        let buffers: Vec<_> = large.into_iter().chain(small).collect();
        assert_eq!(touched(&(4096..page(11)), &buffers), [page(4)..page(5), page(8)..page(11)]);
        // The stretch ends inside the last huge page.
        assert_eq!(
            touched(&(4096..page(11) - 4096), &buffers),
            [page(4)..page(5), page(8)..page(10)]
        );
        // The word before a buffer that starts on a page boundary is in the page before.
        let before = page(1)..page(2);
        let buffer = page(2)..page(3);
        assert_eq!(touched(&(0..page(3)), &[buffer]), [before]);
    }

    #[test]
    fn buffers_stay_as_they_are_whatever_their_places_and_sizes() {
        let buffer: Vec<u8> = (0..9 << 20).map(|i| (i % 251) as u8).collect();
        let small: Vec<Vec<u8>> = (0..400).map(|i| vec![i as u8; 40_000]).collect();
        let ranges =
            [(0, 0), (0, 1), (1, 4 << 20), (0, 9 << 20), (4097, (9 << 20) - 1), (3, (4 << 20) + 3)];
        let ranges = ranges.map(|(start, end)| buffer[start..end].as_ptr_range());
        let pages = Pages::behind(ranges.clone());
        ranges.into_iter().for_each(|range| pages.prepare(range));
        let pages = Pages::behind(small.iter().map(|buffer| buffer.as_ptr_range()));
        small.iter().for_each(|buffer| pages.prepare(buffer.as_ptr_range()));
        Pages::behind([]).prepare(buffer.as_ptr_range());
        assert!(buffer.iter().enumerate().all(|(i, &byte)| byte == (i % 251) as u8));
        assert!(small.iter().enumerate().all(|(i, buffer)| *buffer == [i as u8; 40_000]));
    }
}
