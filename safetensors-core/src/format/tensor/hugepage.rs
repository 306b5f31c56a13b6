//! Huge pages for large buffers.
//!
//! A load from a warm page cache spends most of its time in page faults. Pages of 2 MiB cause 512
//! times fewer than pages of 4 KiB, but most Linux systems give them only if `madvise` asks. They
//! can be slow: a virtual machine waits for its host, and a full machine moves other pages away. So
//! memory is divided into windows, and the first huge page of each is timed. After a slow one, that
//! window and some more get small pages.

#![allow(unsafe_code, reason = "advice about memory is given by address")]

use core::ops::Range;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};
use std::vec::Vec;

use rustix::param::page_size;

use crate::format::parallel::lock;

// Each piece of advice splits the kernel's record of a mapping, and a process may have only 65,530
// records by default.
const WORTH_IT: usize = 4 << 20;

// The usual size.
const HUGE: usize = 2 << 20;

/// The size of pages is decided for this much memory.
const WINDOW: usize = 32 << 20;

// Memory of others between two buffers may be advised too.
const GAP: usize = HUGE;

// 512 small pages come sooner than a huge one that takes longer. One at hand takes a third of it.
// Measured on a virtual machine with 2 cores, over 2 GiB: a huge page at hand takes 0.2 ms, one
// that the host has taken back 4.2 to 6.3 ms, and 2 MiB of small pages 0.7 to 1.1 ms.
const SLOW: Duration = Duration::from_micros(1200);

// As in `linux/mman.h` on every architecture. Kernels before 5.14 refuse it.
const MADV_POPULATE_WRITE: libc::c_int = 23;

pub(crate) struct Pages {
    /// By address.
    windows: Vec<Window>,
    pace: Mutex<Pace>,
}

/// Adjacent memory with equal pages.
struct Window {
    memory: Range<usize>,
    /// The first huge page that is wholly in a buffer.
    first: usize,
    decided: Once,
}

impl Pages {
    /// The buffers must be new: a page that was written to stays small. So does a page with the
    /// start of a buffer, because the allocator writes the length before the first byte. Joining it
    /// later (`MADV_COLLAPSE`) takes another page from the host and copies: loads of 625 MiB in
    /// buffers of 64 KiB took up to six times as long, and none was faster.
    pub(crate) fn behind(buffers: impl IntoIterator<Item = Range<*const u8>>) -> Self {
        let buffers = buffers.into_iter().map(addresses);
        let mut buffers: Vec<_> = buffers.filter(|buffer| buffer.len() >= HUGE).collect();
        // Neighbouring buffers share their windows, so that there are few pieces of advice.
        buffers.sort_unstable_by_key(|buffer| buffer.start);
        let mut windows = Vec::new();
        for buffers in buffers.chunk_by(|a, b| b.start.saturating_sub(a.end) <= GAP) {
            let (Some(first), Some(last)) = (buffers.first(), buffers.last()) else { continue };
            // Only whole pages may be advised: a page at either end may hold other data.
            let stretch =
                first.start.next_multiple_of(page_size())..last.end / page_size() * page_size();
            if stretch.len() >= WORTH_IT {
                windows.extend(divide(&stretch, buffers));
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
        if !lock(&self.pace).is_slow(time_of(window.first..window.first + HUGE), before) {
            window.advise();
        }
    }
}

fn addresses(room: Range<*const u8>) -> Range<usize> {
    room.start.addr()..room.end.addr()
}

impl Window {
    fn advise(&self) {
        madvise(self.memory.clone(), libc::MADV_HUGEPAGE);
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

fn divide(stretch: &Range<usize>, buffers: &[Range<usize>]) -> impl Iterator<Item = Window> {
    // Windows meet at boundaries of huge pages, so that none is lost.
    let starts = (stretch.start / HUGE * HUGE..stretch.end).step_by(WINDOW);
    starts.filter_map(move |start| {
        let memory = start.max(stretch.start)..(start + WINDOW).min(stretch.end);
        let from = buffers.partition_point(|buffer| buffer.end <= memory.start);
        let mut within = buffers[from..].iter().take_while(|buffer| buffer.start < memory.end);
        let first = within.find_map(|buffer| {
            let first = buffer.start.max(memory.start).next_multiple_of(HUGE);
            (first + HUGE <= buffer.end.min(memory.end)).then_some(first)
        })?;
        Some(Window { memory, first, decided: Once::new() })
    })
}

/// Also of a refusal: an old kernel refuses at once, a full machine after a search for memory.
fn time_of(page: Range<usize>) -> Duration {
    let start = Instant::now();
    let _ = madvise(page.clone(), libc::MADV_HUGEPAGE) && madvise(page, MADV_POPULATE_WRITE);
    start.elapsed()
}

/// Returns whether the kernel accepted it.
fn madvise(range: Range<usize>, advice: libc::c_int) -> bool {
    let start = core::ptr::without_provenance_mut(range.start);
    // SAFETY: both kinds of advice keep the contents of the memory and only change the
    // pages that back it. This holds for memory of any owner, and for addresses without memory.
    // The pointer is never dereferenced.
    unsafe { libc::madvise(start, range.len(), advice) == 0 }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

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
    fn windows_meet_at_huge_pages_and_begin_with_one_that_is_untouched() {
        let page = |number: usize| number * HUGE;
        let windows = |stretch: Range<usize>, buffers: &[Range<usize>]| {
            let windows = divide(&stretch, buffers);
            windows.map(|window| (window.memory, window.first / HUGE)).collect::<Vec<_>>()
        };
        let (whole, middle) = (page(1) + 4096..page(33) + 8192, page(17));
        let before = (whole.start..middle, 2);
        // There is no window where no huge page is wholly in a buffer.
        let rest = (middle..page(33), 17);
        assert_eq!(windows(whole.clone(), from_ref(&whole)), [before.clone(), rest]);
        // The length of a buffer is in the page before its first byte, which may be in the middle
        // of a huge page.
        let two = [whole.start..page(20) - 4096, page(20)..page(32)];
        let rest = (middle..page(32), 17);
        assert_eq!(windows(whole.start..page(32), &two), [before.clone(), rest]);
        let two = [whole.start..page(17) + 4096, page(17) + 8192..page(32)];
        assert_eq!(windows(whole.start..page(32), &two), [before.clone(), (middle..page(32), 18)]);
        let two = [whole.start..page(17) + 4096, page(17) + 8192..page(19) - 4096];
        assert_eq!(windows(whole.start..page(19) - 4096, &two), [before]);
    }

    #[test]
    fn small_buffers_have_no_windows() {
        let buffers = |len: usize, count: usize, apart: usize| {
            let starts = (0..count).map(move |i| 16 + i * (len + apart));
            starts.map(move |start| {
                let pointer = core::ptr::without_provenance::<u8>;
                pointer(start)..pointer(start + len)
            })
        };
        assert_eq!(Pages::behind(buffers(64 << 10, 1000, 16)).windows.len(), 0);
        assert_eq!(Pages::behind(buffers(HUGE, 1, 0)).windows.len(), 0);
        assert_eq!(Pages::behind(buffers(8 << 20, 4, 4096)).windows.len(), 1);
        // Small ones lie between them.
        assert_eq!(Pages::behind(buffers(8 << 20, 4, 64 << 10)).windows.len(), 1);
        assert_eq!(Pages::behind(buffers(8 << 20, 4, 64 << 20)).windows.len(), 4);
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
